//! Messages: appending, listing, reading one.

use serde_json::value::RawValue;

use super::error::{refused, shorten};
use super::ids::message_id;
use super::once::{RequestKey, append_kept};
use super::{Caller, Service, ServiceError, key};
use crate::domain::message::Message;
use crate::storage::{
    Again, AppendMessages, AppendOutcome, AppendRefusal, ContextHead, CountRestore, Heal,
    MessageFilter, MessageRow, Order, SessionKey, StoredRef, Timestamp, WriteRefusal,
};

/// What to append.
#[derive(Debug)]
pub struct AppendRequest<'a> {
    /// The texts of the messages, each well-formed JSON.
    pub messages: Vec<&'a RawValue>,
    /// The `lastSeq` that the client believes in.
    pub expected_last_seq: Option<i64>,
}

/// How a message stands in the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageState {
    /// Shown as it is.
    Verbatim,
    /// The summary stands for it.
    Summarised,
    /// Pruning shows it shortened.
    Elided,
    /// Its content is gone.
    Erased,
}

impl MessageState {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Verbatim => "verbatim",
            Self::Summarised => "summarised",
            Self::Elided => "elided",
            Self::Erased => "erased",
        }
    }

    pub(super) fn of(erased: bool, elided: bool, position: Option<i64>, compact_size: i64) -> Self {
        match position {
            _ if erased => Self::Erased,
            Some(position) if position < compact_size => Self::Summarised,
            _ if elided => Self::Elided,
            _ => Self::Verbatim,
        }
    }
}

/// A message as it is listed.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the API's contract describes the members")]
pub struct ListedMessage {
    pub id: String,
    pub seq: i64,
    pub position: Option<i64>,
    pub length: i64,
    pub state: MessageState,
    pub usage: Option<String>,
    pub incomplete: bool,
    pub created_at: Timestamp,
    pub message: String,
}

impl ListedMessage {
    pub(super) fn of(row: MessageRow, compact_size: i64) -> Self {
        Self {
            state: MessageState::of(row.erased, row.elided, row.position, compact_size),
            id: row.id,
            seq: row.seq,
            position: row.position,
            length: row.length,
            usage: row.usage,
            incomplete: row.incomplete,
            created_at: row.created_at,
            message: row.body,
        }
    }

    /// A message that was just appended, or was there already.
    pub(super) fn stored(stored: StoredRef, body: String, compact_size: i64) -> Self {
        Self {
            state: MessageState::of(false, false, stored.position, compact_size),
            id: stored.id,
            seq: stored.seq,
            position: stored.position,
            length: stored.length,
            usage: stored.usage,
            incomplete: stored.incomplete,
            created_at: stored.created_at,
            message: body,
        }
    }
}

/// Tells a refused append in the words of a use case.
pub(super) fn append_refused(refusal: AppendRefusal, session: &str) -> ServiceError {
    match refusal {
        AppendRefusal::Session(refusal) => refused(refusal, session),
        AppendRefusal::Sequence { last_seq } => ServiceError::SequenceConflict { last_seq },
        AppendRefusal::Pairing { index, fault } => ServiceError::ToolCallNotFound { index, fault },
        AppendRefusal::IdTaken { index } => ServiceError::MessageIdTaken { index },
    }
}

/// Messages that were read, on their way into a session.
pub(super) struct ReadAppend {
    /// Each with its id.
    pub messages: Vec<(String, Message)>,
    /// The `lastSeq` that the client believes in.
    pub expected_last_seq: Option<i64>,
    /// How those are known that are there already.
    pub again: Again,
}

/// What an append did.
#[derive(Debug)]
pub struct Appended {
    /// One a message of the request, in its order.
    pub messages: Vec<ListedMessage>,
    /// The session's highest `seq` now.
    pub last_seq: i64,
}

/// Which messages to list.
#[derive(Debug, Clone)]
pub struct ListMessages {
    /// What is shown, and which way.
    pub filter: MessageFilter,
    /// How many at most.
    pub limit: usize,
}

impl Service {
    /// Reads the messages of a request and gives an id to each that brings none.
    pub(super) fn read_messages(
        &self,
        texts: &[&RawValue],
    ) -> Result<Vec<(String, Message)>, ServiceError> {
        self.read_each(texts, |text, index| {
            let message = self.read_message(text, index)?;
            let id = match &message.annotations.id {
                Some(id) => id.clone(),
                None => message_id(self.new_id()),
            };
            Ok((id, message))
        })
    }

    /// Reads what a request appends, within its bounds; no two may have one id.
    pub(super) fn read_each(
        &self,
        texts: &[&RawValue],
        read: impl Fn(&str, usize) -> Result<(String, Message), ServiceError>,
    ) -> Result<Vec<(String, Message)>, ServiceError> {
        let bounds = self.bounds();
        if texts.len() > bounds.messages_per_append {
            return Err(ServiceError::TooManyMessages {
                count: texts.len(),
                limit: bounds.messages_per_append,
            });
        }
        let mut messages: Vec<(String, Message)> = Vec::with_capacity(texts.len());
        let mut chosen = std::collections::HashSet::new();
        for (index, text) in texts.iter().enumerate() {
            let bytes = text.get().len();
            if bytes > bounds.message_bytes {
                return Err(ServiceError::MessageTooLarge {
                    index,
                    bytes,
                    limit: bounds.message_bytes,
                });
            }
            let (id, message) = read(text.get(), index)?;
            if !chosen.insert(id.clone()) {
                return Err(ServiceError::MessageIdTaken { index });
            }
            messages.push((id, message));
        }
        Ok(messages)
    }

    /// Reads one message and counts its tokens.
    pub(super) fn read_message(&self, text: &str, index: usize) -> Result<Message, ServiceError> {
        let mut message =
            Message::read(text).map_err(|fault| ServiceError::InvalidMessage { index, fault })?;
        self.inner.counter.count(&mut message);
        Ok(message)
    }

    /// Appends messages to a session: all, or none.
    ///
    /// # Errors
    /// What of the request does not fit; or the database failed.
    pub async fn append(
        &self,
        caller: Caller,
        session: &str,
        request: AppendRequest<'_>,
        once: Option<&RequestKey>,
    ) -> Result<Appended, ServiceError> {
        let messages = self.read_messages(&request.messages)?;
        let append = ReadAppend {
            messages,
            expected_last_seq: request.expected_last_seq,
            again: Again::No,
        };
        self.append_read(caller, session, append, once).await
    }

    /// Appends messages that were read.
    pub(super) async fn append_read(
        &self,
        caller: Caller,
        session: &str,
        append: ReadAppend,
        once: Option<&RequestKey>,
    ) -> Result<Appended, ServiceError> {
        let key = key(caller, session)?;
        let ReadAppend {
            messages,
            expected_last_seq,
            again,
        } = append;
        let echo: Vec<_> = messages
            .iter()
            .map(|(_, message)| message.item.as_ref().unwrap_or(&message.body).clone())
            .collect();
        let bytes = messages
            .iter()
            .map(|(_, message)| message.stored_bytes())
            .sum();
        self.admit_bytes(key.tenant, bytes).await?;
        let append = AppendMessages {
            key,
            messages,
            expected_last_seq,
            again,
            head: self.database().heads().find(key),
            now: self.now(),
        };
        let keep = move |outcome: &Result<AppendOutcome, AppendRefusal>| match outcome {
            Ok(outcome) => append_kept(key, outcome),
            Err(_) => Ok(None),
        };
        let outcome = self.write_once(key.tenant, once, append, keep).await?;
        let outcome = outcome.map_err(|refusal| append_refused(refusal, session))?;
        if let Some(head) = outcome.head {
            self.database().heads().remember(key, head);
        }
        self.inner.metrics.count_append(echo.len(), bytes);
        if outcome.made_due {
            self.inner.due.notify_one();
        }
        let messages = outcome.stored.into_iter().zip(echo);
        let messages = messages
            .map(|(stored, body)| ListedMessage::stored(stored, body, outcome.compact_size));
        Ok(Appended {
            messages: messages.collect(),
            last_seq: outcome.last_seq,
        })
    }

    /// Messages of a session; the flag says whether more follow.
    ///
    /// # Errors
    /// There is no such session, or the database failed.
    pub async fn list_messages(
        &self,
        caller: Caller,
        session: &str,
        list: &ListMessages,
    ) -> Result<(Vec<ListedMessage>, bool), ServiceError> {
        let key = key(caller, session)?;
        let head = self.load_head(key, session).await?;
        let (rows, more) = self
            .database()
            .list_messages(key, &list.filter, head.compaction_version, list.limit)
            .await?;
        let listed = rows
            .into_iter()
            .map(|row| ListedMessage::of(row, head.compact_size));
        Ok((listed.collect(), more))
    }

    /// The messages between two places, both included.
    pub(super) async fn messages_between(
        &self,
        key: SessionKey,
        first: i64,
        last: i64,
    ) -> Result<Vec<ListedMessage>, ServiceError> {
        let Some(head) = self.database().find_context_head(key).await? else {
            return Ok(Vec::new());
        };
        let filter = MessageFilter {
            after_seq: first - 1,
            before_seq: last.saturating_add(1),
            role: None,
            order: Order::Asc,
        };
        let limit = usize::try_from(last - first + 1).unwrap_or(1);
        let (rows, _) = self
            .database()
            .list_messages(key, &filter, head.compaction_version, limit)
            .await?;
        let listed = rows.into_iter();
        Ok(listed
            .map(|row| ListedMessage::of(row, head.compact_size))
            .collect())
    }

    /// One message of a session.
    ///
    /// # Errors
    /// There is no such session or message, or the database failed.
    pub async fn load_message(
        &self,
        caller: Caller,
        session: &str,
        id: &str,
    ) -> Result<ListedMessage, ServiceError> {
        let key = key(caller, session)?;
        let head = self.load_head(key, session).await?;
        let row = self
            .database()
            .find_message(key, id, head.compaction_version)
            .await?;
        let row = row.ok_or_else(|| ServiceError::MessageNotFound { id: shorten(id) })?;
        let listed = ListedMessage::of(row, head.compact_size);
        // Read back what a breadcrumb points at. The count must not keep the message from its reader.
        if listed.state == MessageState::Elided {
            match self.database().write(CountRestore { key }).await {
                Ok(()) => self.inner.metrics.count_restore(),
                Err(error) => {
                    tracing::warn!(%error, "that an elided message was read could not be counted");
                }
            }
        }
        Ok(listed)
    }

    /// The head of a session. A pointer that fits no version is brought back first, so that messages
    /// which were never summarised stay visible.
    pub(super) async fn load_head(
        &self,
        key: SessionKey,
        session: &str,
    ) -> Result<ContextHead, ServiceError> {
        let not_found = || refused(WriteRefusal::NotFound, session);
        let head = self.database().find_context_head(key).await?;
        let head = head.ok_or_else(not_found)?;
        if head.is_sound() {
            return Ok(head);
        }
        tracing::error!(
            session,
            compact_size = head.compact_size,
            version = head.compaction_version,
            "the pointer of a session fitted no version of its summary; it is brought back"
        );
        let now = self.now();
        self.database().write(Heal { key, now }).await?;
        let head = self.database().find_context_head(key).await?;
        head.ok_or_else(not_found)
    }
}
