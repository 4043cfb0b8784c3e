//! The context: what the model should see now. Reading it changes nothing.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Caller, Service, ServiceError, key};
use crate::domain::anthropic;
use crate::domain::context::{Joiner, Opening, RENDERER_VERSION, TailRow, summary_tokens};
use crate::storage::{ContextHead, Database, OpeningRow, SessionKey, View};

/// Rendered bytes up to which a context is built whole, so that an error can still be a status.
const WHOLE_BYTES: usize = 4 << 20;
/// Times a context is read anew because the history was rewritten meanwhile.
pub(super) const TRIES: u32 = 5;

/// The form that a context is rendered in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Chat-completions messages.
    #[default]
    OpenAi,
    /// Anthropic's messages, with its system blocks apart.
    Anthropic,
}

impl Format {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }

    /// The format of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::OpenAi, Self::Anthropic]
            .into_iter()
            .find(|format| format.as_str() == name)
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
    /// Its messages.
    pub rendered: Rendered,
}

/// Messages in the form that was asked for.
pub struct Rendered {
    /// System blocks, joined by commas, if the form has them apart.
    pub system: Option<String>,
    /// Messages, joined by commas.
    pub messages: String,
    /// More messages follow.
    pub rest: Option<TailReader>,
}

/// What stands before a tail, and what is known of the whole.
pub(super) struct Frame {
    pub(super) view: View,
    /// The messages before the tail, joined by commas.
    pub(super) opening: String,
    /// How many those are, and how many of them are instructions.
    pub(super) opening_count: usize,
    pub(super) instruction_count: usize,
    /// Tokens of the summary pair and of carried messages.
    pub(super) added_tokens: i64,
    pub(super) summary_at: Option<usize>,
    /// User messages behind the pointer are shown.
    pub(super) carries: bool,
}

/// Texts that are shown in place of stored ones, by `seq`.
pub(super) type Overlay = Arc<HashMap<i64, String>>;

/// Reads the tail of a context page by page.
pub struct TailReader {
    database: Database,
    key: SessionKey,
    view: View,
    overlay: Overlay,
    /// `seq` and running bytes of what was read.
    after: i64,
    bytes: i64,
    /// What may go on with the next page.
    joiner: Joiner,
    /// All of it, if that was read before.
    ready: Option<String>,
}

/// What was read of a context together with its head.
#[derive(Default)]
struct Start {
    opening: Option<OpeningRow>,
    tail: Option<String>,
}

impl TailReader {
    pub(super) fn new(database: Database, key: SessionKey, view: &View, overlay: Overlay) -> Self {
        Self {
            database,
            key,
            overlay,
            after: view.compact_seq,
            bytes: view.compact_bytes,
            joiner: Joiner::default(),
            ready: None,
            view: View {
                summary: None,
                ..view.clone()
            },
        }
    }

    /// Puts the next messages behind a text, with commas between all of them; false at the end.
    ///
    /// # Errors
    /// The history was rewritten since the head was read, or the database failed.
    pub async fn next(&mut self, into: &mut String) -> Result<bool, ServiceError> {
        let comma = !into.is_empty();
        self.read(into, comma).await
    }

    /// The next messages, each with a comma before it; `None` at the end.
    ///
    /// # Errors
    /// As [`TailReader::next`].
    pub async fn next_behind(&mut self) -> Result<Option<String>, ServiceError> {
        let mut page = String::new();
        Ok(self.read(&mut page, true).await?.then_some(page))
    }

    async fn read(&mut self, into: &mut String, comma: bool) -> Result<bool, ServiceError> {
        let last = self.view.last_seq;
        if self.after >= last {
            return Ok(false);
        }
        let before = into.len();
        if comma {
            into.push(',');
        }
        let start = into.len();
        match self.ready.take() {
            Some(ready) => {
                self.after = last;
                if into.is_empty() {
                    *into = ready;
                } else {
                    into.push_str(&ready);
                }
            }
            None => self.read_page(into).await?,
        }
        if into.len() == start {
            // A page may hold instructions alone, which stand at the front already.
            into.truncate(before);
        }
        Ok(true)
    }

    async fn read_page(&mut self, into: &mut String) -> Result<(), ServiceError> {
        let last = self.view.last_seq;
        let is_last = self.view.history_bytes - self.bytes <= crate::storage::PAGE_BYTES;
        let end = if is_last {
            last
        } else {
            self.database
                .find_page_end(
                    self.key,
                    (self.after, last),
                    (self.bytes, self.view.history_bytes),
                )
                .await?
        };
        if self.overlay.is_empty() && !self.view.joins {
            let page = self
                .database
                .load_tail_page(self.key, &self.view, (self.after, end), into)
                .await?;
            self.check(page.rewrites)?;
            self.bytes = page.behind.unwrap_or(self.view.history_bytes);
        } else {
            let (text, bytes) = self.join_page(end).await?;
            into.push_str(&text);
            self.bytes += bytes;
        }
        self.after = end;
        Ok(())
    }

    fn check(&self, rewrites: Option<i64>) -> Result<(), ServiceError> {
        if rewrites == Some(self.view.rewrites) {
            Ok(())
        } else {
            Err(ServiceError::ContextMoved)
        }
    }

    async fn join_page(&mut self, end: i64) -> Result<(String, i64), ServiceError> {
        let rows = self
            .database
            .load_tail_messages(self.key, &self.view, self.after, end)
            .await?;
        let mut bytes = 0;
        for row in rows {
            self.check(row.rewrites)?;
            bytes += row.bytes;
            let shown = self.overlay.get(&row.seq).cloned().unwrap_or(row.shown);
            let (joins, silent) = (row.joins, row.silent);
            let fill = row.fill.as_deref();
            self.joiner.push(
                shown,
                TailRow {
                    fill,
                    joins,
                    silent,
                },
            );
        }
        let is_last = end >= self.view.last_seq;
        Ok((self.joiner.take(is_last), bytes))
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
        is_known: Option<impl Fn(&str) -> bool>,
    ) -> Result<Result<LoadedContext, String>, ServiceError> {
        let key = key(caller, session)?;
        let Some(is_known) = is_known else {
            return self.load_anew(key, session, format).await.map(Ok);
        };
        let head = self.load_head(key, session).await?;
        let etag = etag(&head, format);
        if is_known(&etag) {
            return Ok(Err(etag));
        }
        match self
            .build_context(key, format, &head, Start::default())
            .await
        {
            Err(ServiceError::ContextMoved) => self.load_anew(key, session, format).await.map(Ok),
            context => context.map(Ok),
        }
    }

    /// The context of a session, most of it in one read.
    async fn load_anew(
        &self,
        key: SessionKey,
        session: &str,
        format: Format,
    ) -> Result<LoadedContext, ServiceError> {
        let mut tried = 0;
        loop {
            tried += 1;
            let start = self.database().load_context_start(key).await?;
            let (head, start) = match start {
                Some(mut start) if start.head.is_sound() => {
                    let tail = start.tail();
                    let opening = Some(start.opening);
                    (start.head, Start { opening, tail })
                }
                _ => (self.load_head(key, session).await?, Start::default()),
            };
            match self.build_context(key, format, &head, start).await {
                Err(ServiceError::ContextMoved) if tried < TRIES => {}
                context => return context,
            }
        }
    }

    async fn build_context(
        &self,
        key: SessionKey,
        format: Format,
        head: &ContextHead,
        start: Start,
    ) -> Result<LoadedContext, ServiceError> {
        let tail = head.tail()?;
        let carry = Carry::IfOpen(tail.turn_is_open());
        let view = head.view();
        let frame = match start.opening {
            Some(opening) => self.frame_of(key, view, carry, opening).await?,
            None => self.load_frame(key, view, carry).await?,
        };
        let plan = match frame.view.plan {
            // What a dispatch has added since the head was read is not shown, so it is not counted.
            Some(plan) => {
                let version = frame.view.version;
                self.database().load_plan(key, version, plan).await?
            }
            None => Vec::new(),
        };
        let saved: i64 = plan.iter().map(|edit| edit.saved).sum();
        let mut reader = TailReader::new(
            self.database().clone(),
            key,
            &frame.view,
            Overlay::default(),
        );
        reader.ready = start.tail;
        let rendered = match format {
            Format::OpenAi => read_some(&frame, reader).await?,
            Format::Anthropic => {
                let saved = plan.iter().map(|edit| (edit.seq, edit.saved)).collect();
                let layout = self.load_layout(key, head, &frame, saved).await?;
                let messages = read_all(&frame, reader).await?;
                to_anthropic(messages, layout.breakpoints).await?.0
            }
        };
        Ok(LoadedContext {
            meta: ContextMeta {
                format,
                last_seq: head.last_seq,
                compaction: (head.compaction_version > 0)
                    .then_some((head.compaction_version, head.compact_size)),
                summary_at: frame.summary_at,
                open_calls: tail.open_calls().map(ToOwned::to_owned).collect(),
                tokens: frame.tokens(head) - saved,
                tokens_by: self.inner.counter.name(),
                etag: etag(head, format),
            },
            rendered,
        })
    }

    /// Reads what stands before the tail.
    pub(super) async fn load_frame(
        &self,
        key: SessionKey,
        view: View,
        carry: Carry,
    ) -> Result<Frame, ServiceError> {
        let row = self.database().load_opening(key, &view).await?;
        self.frame_of(key, view, carry, row).await
    }

    /// What stands before the tail, from what was read of it.
    async fn frame_of(
        &self,
        key: SessionKey,
        view: View,
        carry: Carry,
        row: OpeningRow,
    ) -> Result<Frame, ServiceError> {
        if row.rewrites != Some(view.rewrites) {
            return Err(ServiceError::ContextMoved);
        }
        // The request that the model works on is never only in a summary.
        let carries = match carry {
            Carry::As(carries) => carries,
            Carry::IfOpen(turn_is_open) => {
                view.compact_size > 0
                    && row
                        .first_starts_turn
                        .map_or(turn_is_open, |starts_turn| !starts_turn)
            }
        };
        let (mut behind, mut behind_count, mut behind_tokens) = (None, 0, 0);
        if carries {
            let found = self.database().load_carried(key, view.compact_seq).await?;
            if found.rewrites != Some(view.rewrites) {
                return Err(ServiceError::ContextMoved);
            }
            behind = found.bodies;
            behind_count = usize::try_from(found.count).unwrap_or(0);
            behind_tokens = found.tokens.unwrap_or(0);
        }
        let opening = Opening {
            instructions: row.instructions.as_deref(),
            instruction_count: usize::try_from(row.instruction_count).unwrap_or(0),
            summary: view.summary.as_deref(),
            carried: behind.as_deref(),
            carried_count: behind_count,
            tail_begins_with_assistant: row.first_role.as_deref() == Some("assistant"),
        };
        let summary = view.summary.as_deref().map_or(0, summary_tokens);
        Ok(Frame {
            opening: opening.render(),
            opening_count: opening.count(),
            instruction_count: opening.instruction_count,
            added_tokens: behind_tokens + i64::try_from(summary).unwrap_or(i64::MAX),
            summary_at: opening.summary_at(),
            carries,
            view,
        })
    }
}

/// Whether user messages behind the pointer are shown.
pub(super) enum Carry {
    /// As it was recorded.
    As(bool),
    /// If the newest turn reaches over the pointer; a turn without a message in the tail does if it is open.
    IfOpen(bool),
}

impl Frame {
    /// Tokens of the context as it is stored, without any edit.
    pub(super) fn tokens(&self, head: &ContextHead) -> i64 {
        head.instruction_tokens + self.added_tokens + head.history_tokens - head.compact_tokens
    }
}

/// The beginning of a context, up to what is built whole.
pub(super) async fn read_some(
    frame: &Frame,
    mut reader: TailReader,
) -> Result<Rendered, ServiceError> {
    let mut messages = frame.opening.clone();
    let mut rest = None;
    while reader.next(&mut messages).await? {
        if messages.len() > WHOLE_BYTES {
            rest = Some(reader);
            break;
        }
    }
    Ok(Rendered {
        system: None,
        messages,
        rest,
    })
}

/// All messages of a context.
pub(super) async fn read_all(
    frame: &Frame,
    mut reader: TailReader,
) -> Result<String, ServiceError> {
    let mut messages = frame.opening.clone();
    while reader.next(&mut messages).await? {}
    Ok(messages)
}

/// Messages in Anthropic's form, and where the breakpoints are in it.
pub(super) async fn to_anthropic(
    messages: String,
    breakpoints: Vec<usize>,
) -> Result<(Rendered, Vec<usize>), ServiceError> {
    // Reading megabytes of JSON is work; it must not hold up the tasks beside it.
    let rendered = tokio::task::spawn_blocking(move || anthropic::render(&messages, &breakpoints))
        .await
        .map_err(|_| ServiceError::Internal("a context could not be rendered"))??;
    let whole = Rendered {
        system: Some(rendered.system),
        messages: rendered.messages,
        rest: None,
    };
    Ok((whole, rendered.breakpoints))
}
