//! The context: what the model should see now. Reading it changes nothing.

use super::{Caller, Service, ServiceError, key};
use crate::domain::context::{Opening, RENDERER_VERSION, summary_tokens};
use crate::storage::{ContextHead, Database, SessionKey};

/// Rendered bytes up to which a context is built whole, so that an error can still be a status.
const WHOLE_BYTES: usize = 4 << 20;
/// Times a context is read anew because the history was rewritten meanwhile.
const TRIES: u32 = 5;

/// The form that a context is rendered in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Chat-completions messages.
    #[default]
    OpenAi,
}

impl Format {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
        }
    }

    /// The format of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        (name == Self::OpenAi.as_str()).then_some(Self::OpenAi)
    }
}

/// What is said of a context beside its messages.
#[derive(Debug, Clone)]
pub struct ContextMeta {
    /// The form of the messages.
    pub format: Format,
    /// The session's highest `seq` when it was read.
    pub last_seq: i64,
    /// Version and size of the active summary.
    pub compaction: Option<(i64, i64)>,
    /// Index of the summary among the messages.
    pub summary_at: Option<usize>,
    /// Calls that still wait for a result.
    pub open_calls: Vec<String>,
    /// Tokens of the messages.
    pub tokens: i64,
    /// What counted them.
    pub tokens_by: &'static str,
    /// The strong validator.
    pub etag: String,
}

/// A context: whole, or its first part and where the rest comes from.
pub struct LoadedContext {
    /// What is said of it.
    pub meta: ContextMeta,
    /// Messages, joined by commas.
    pub messages: String,
    /// More messages follow.
    pub rest: Option<TailReader>,
}

/// Reads the tail of a context page by page.
pub struct TailReader {
    database: Database,
    key: SessionKey,
    rewrites: i64,
    compact_size: i64,
    /// `seq` and running bytes of what was read.
    after: i64,
    bytes: i64,
    last_seq: i64,
    total_bytes: i64,
}

impl TailReader {
    fn new(database: Database, key: SessionKey, head: &ContextHead) -> Self {
        Self {
            database,
            key,
            rewrites: head.rewrites,
            compact_size: head.compact_size,
            after: head.compact_seq,
            bytes: head.compact_bytes,
            last_seq: head.last_seq,
            total_bytes: head.history_bytes,
        }
    }

    /// The next messages, joined by commas; `None` at the end.
    ///
    /// # Errors
    /// The history was rewritten since the head was read, or the database failed.
    pub async fn next(&mut self) -> Result<Option<String>, ServiceError> {
        if self.after >= self.last_seq {
            return Ok(None);
        }
        let is_last = self.total_bytes - self.bytes <= crate::storage::PAGE_BYTES;
        let end = if is_last {
            self.last_seq
        } else {
            self.database
                .find_page_end(self.key, self.after, self.last_seq, self.bytes)
                .await?
        };
        let page = self
            .database
            .load_tail_page(self.key, self.after, end, self.compact_size)
            .await?;
        if page.rewrites != Some(self.rewrites) {
            return Err(ServiceError::ContextMoved);
        }
        self.bytes += page.bytes.unwrap_or(0);
        self.after = end;
        // A page may hold instructions alone, which stand at the front already.
        Ok(Some(page.bodies.unwrap_or_default()))
    }
}

fn etag(head: &ContextHead, format: Format) -> String {
    format!(
        "\"{}-{}-{RENDERER_VERSION}\"",
        head.revision,
        format.as_str()
    )
}

impl Service {
    /// The context of a session; `None` if `is_known` knows its validator already.
    ///
    /// # Errors
    /// There is no such session, or the database failed.
    pub async fn load_context(
        &self,
        caller: Caller,
        session: &str,
        format: Format,
        is_known: impl Fn(&str) -> bool,
    ) -> Result<Result<LoadedContext, String>, ServiceError> {
        let key = key(caller, session)?;
        let mut tried = 0;
        loop {
            tried += 1;
            let head = self.load_head(key, session).await?;
            let etag = etag(&head, format);
            if is_known(&etag) {
                return Ok(Err(etag));
            }
            match self.build_context(key, format, &head).await {
                Err(ServiceError::ContextMoved) if tried < TRIES => {}
                Err(error) => return Err(error),
                Ok(context) => return Ok(Ok(context)),
            }
        }
    }

    async fn build_context(
        &self,
        key: SessionKey,
        format: Format,
        head: &ContextHead,
    ) -> Result<LoadedContext, ServiceError> {
        let tail = head.tail()?;
        let row = self.database().load_opening(key, head).await?;
        if row.rewrites != Some(head.rewrites) {
            return Err(ServiceError::ContextMoved);
        }
        // The request that the model works on is never only in a summary.
        let reaches_over = head.compact_size > 0
            && match row.first_starts_turn {
                Some(starts_turn) => !starts_turn,
                None => tail.turn_is_open(),
            };
        let (mut carried, mut carried_tokens) = (None, 0);
        if reaches_over {
            let found = self.database().load_carried(key, head.compact_seq).await?;
            if found.rewrites != Some(head.rewrites) {
                return Err(ServiceError::ContextMoved);
            }
            carried = found.bodies;
            carried_tokens = found.tokens.unwrap_or(0);
        }
        let opening = Opening {
            instructions: row.instructions.as_deref(),
            instruction_count: usize::try_from(row.instruction_count).unwrap_or(0),
            summary: head.compact_summary.as_deref(),
            carried: carried.as_deref(),
            tail_begins_with_assistant: row.first_role.as_deref() == Some("assistant"),
        };
        let mut messages = opening.render();
        let summary_at = opening.summary_at();
        let mut reader = TailReader::new(self.database().clone(), key, head);
        let mut rest = None;
        while let Some(page) = reader.next().await? {
            if !messages.is_empty() && !page.is_empty() {
                messages.push(',');
            }
            messages.push_str(&page);
            if messages.len() > WHOLE_BYTES {
                rest = Some(reader);
                break;
            }
        }
        let summary_size = head.compact_summary.as_deref().map_or(0, summary_tokens);
        Ok(LoadedContext {
            meta: ContextMeta {
                format,
                last_seq: head.last_seq,
                compaction: (head.compaction_version > 0)
                    .then_some((head.compaction_version, head.compact_size)),
                summary_at,
                open_calls: tail.open_calls().map(ToOwned::to_owned).collect(),
                tokens: head.instruction_tokens
                    + i64::try_from(summary_size).unwrap_or(i64::MAX)
                    + carried_tokens
                    + head.history_tokens
                    - head.compact_tokens,
                tokens_by: self.inner.counter.name(),
                etag: etag(head, format),
            },
            messages,
            rest,
        })
    }
}
