//! What a use case refuses or fails at. Names the fact and holds the cause; how it is told is HTTP's.

use std::time::Duration;

use crate::domain::message::{Identity, MessageFault};
use crate::domain::pairing::PairingFault;
use crate::domain::summary::Unacceptable;
use crate::provider::ProviderError;
use crate::storage::{StorageError, WriteRefusal};

/// Why a use case did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// No such session.
    #[error("No session `{id}`.")]
    SessionNotFound {
        /// The id given, shortened.
        id: String,
    },
    /// No such message.
    #[error("No message `{id}` in this session.")]
    MessageNotFound {
        /// The id given, shortened.
        id: String,
    },
    /// No such agent.
    #[error("No agent `{name}`.")]
    AgentNotFound {
        /// The name given, shortened.
        name: String,
    },
    /// No such version in the chain.
    #[error("No compaction version {version} in this session.")]
    CompactionNotFound {
        /// The version given.
        version: i64,
    },
    /// No such dispatch.
    #[error("No dispatch {n} in this session.")]
    DispatchNotFound {
        /// The number given.
        n: i64,
    },
    /// A message has no place in the form that was asked for.
    #[error("messages[{}] of the context: {}. Ask for format=openai, or replace that message.", .0.index, .0)]
    NotMappable(#[from] crate::domain::anthropic::Unmappable),
    /// The session is read-only.
    #[error("The session is closed and read-only; POST …/reopen opens it again.")]
    SessionClosed,
    /// The history has moved on.
    #[error(
        "The session's lastSeq is {last_seq}, not the expected one: read what was appended meanwhile, then append again."
    )]
    SequenceConflict {
        /// What it is.
        last_seq: i64,
    },
    /// A tool result fits nowhere.
    #[error("messages[{index}]: {fault}. Nothing of this append was stored.")]
    ToolCallNotFound {
        /// Which message of the request.
        index: usize,
        /// Why.
        fault: PairingFault,
    },
    /// Another message has the id that the client chose.
    #[error(
        "messages[{index}]: the session has another message with this `precis.id`. Nothing of this append was stored."
    )]
    MessageIdTaken {
        /// Which message of the request.
        index: usize,
    },
    /// A message that cannot be taken.
    #[error("messages[{index}]: {fault}")]
    InvalidMessage {
        /// Which message of the request.
        index: usize,
        /// Why.
        fault: MessageFault,
    },
    /// More messages than one append takes.
    #[error(
        "{count} messages in one append; at most {limit} are taken (limits.messages_per_append)"
    )]
    TooManyMessages {
        /// How many came.
        count: usize,
        /// How many are taken.
        limit: usize,
    },
    /// A message over the limit.
    #[error(
        "messages[{index}] has {bytes} bytes; at most {limit} are taken (limits.message_bytes)"
    )]
    MessageTooLarge {
        /// Which message of the request.
        index: usize,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// What a replaced message may not change would change.
    #[error("A message is replaced by one of the same role, the same id, `tool_call_id` and call ids; `{}` differs.", .0.pointer())]
    IdentityChanged(Identity),
    /// A version of the summary that cannot be active again.
    #[error(
        "Version {version} cannot be restored: messages that it covers are gone or were changed."
    )]
    VersionStale {
        /// The version given.
        version: i64,
    },
    /// A member that is stored as it came is over the limit.
    #[error("`{member}` has {bytes} bytes; at most {limit} are taken (limits.metadata_bytes)")]
    MemberTooLarge {
        /// Its name.
        member: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The session is being compacted.
    #[error("A compaction of this session is running; its result will be in …/compactions.")]
    CompactionInProgress {
        /// When to come back.
        retry_after: Duration,
    },
    /// What a compaction rested on has changed; nothing was written.
    #[error(
        "The session changed while it was compacted (or the compaction lost its lease); nothing was written. Compact again."
    )]
    CompactionConflict,
    /// No summary was to be had; nothing was written.
    #[error("The summarizer failed: {0}. The session is unchanged.")]
    SummarizerFailed(#[source] SummarizerFailure),
    /// The compaction took too long; nothing was written.
    #[error("The compaction was not done within {} s (compaction.deadline_seconds). The session is unchanged.", .0.as_secs())]
    CompactionTimeout(Duration),
    /// The context was rewritten while it was read.
    #[error("the history was rewritten while its context was read")]
    ContextMoved,
    /// The server takes no new work.
    #[error("The server is shutting down; send the request again.")]
    ShuttingDown,
    /// The database failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A mistake of ours.
    #[error("{0}")]
    Internal(&'static str),
}

/// Why no summary was to be had.
#[derive(Debug, thiserror::Error)]
pub enum SummarizerFailure {
    /// The model server failed.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The answer is no summary.
    #[error(transparent)]
    Unacceptable(#[from] Unacceptable),
}

impl ServiceError {
    /// The code under which work that failed by itself is told of: the one its request is answered with.
    #[must_use]
    pub fn failure_code(&self) -> &'static str {
        match self {
            Self::SummarizerFailed(SummarizerFailure::Unacceptable(Unacceptable::NotSmaller {
                ..
            })) => "SUMMARY_NOT_SMALLER",
            Self::SummarizerFailed(_) | Self::CompactionTimeout(_) => "SUMMARIZER_FAILED",
            Self::Storage(error) if error.is_temporary() => "STORAGE_UNAVAILABLE",
            Self::ShuttingDown | Self::ContextMoved => "STORAGE_UNAVAILABLE",
            _ => "INTERNAL",
        }
    }

    /// No session of that name, which is shortened: it may be anything.
    #[must_use]
    pub fn session_not_found(id: &str) -> Self {
        Self::SessionNotFound { id: shorten(id) }
    }
}

/// A client's words for a message: what is printable of the first 128 characters.
#[must_use]
pub(super) fn shorten(text: &str) -> String {
    text.chars()
        .take(128)
        .map(|c| {
            if c.is_ascii_graphic() || c == ' ' || c.is_alphanumeric() {
                c
            } else {
                '\u{fffd}'
            }
        })
        .collect()
}

/// Tells a refused write in the words of a use case.
pub(super) fn refused(refusal: WriteRefusal, id: &str) -> ServiceError {
    match refusal {
        WriteRefusal::NotFound => ServiceError::session_not_found(id),
        WriteRefusal::Closed => ServiceError::SessionClosed,
    }
}
