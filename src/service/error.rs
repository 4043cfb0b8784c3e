//! What a use case refuses or fails at. Names the fact and holds the cause; how it is told is HTTP's.

use std::time::Duration;

use super::access::Scope;
use crate::domain::message::{Identity, MessageFault};
use crate::domain::pairing::PairingFault;
use crate::domain::summary::Unacceptable;
use crate::provider::ProviderError;
use crate::storage::{StorageError, Timestamp, WriteRefusal};

/// Longest time a client is told to wait for work that runs; most ends sooner than its lease.
pub(super) const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// Why a use case did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// There are keys, and none that counts came with the request. Which of the reasons it was is not told.
    #[error("This needs a key that is valid: send `Authorization: Bearer KEY`.")]
    Unauthenticated,
    /// The caller's key does not allow this.
    #[error("The key lacks the scope `{}`.", .0.as_str())]
    ScopeMissing(Scope),
    /// No such tenant, or another one than the caller's.
    #[error("No tenant `{name}`.")]
    TenantNotFound {
        /// The name given, shortened.
        name: String,
    },
    /// A tenant's own key was to change what the tenant may use.
    #[error("A tenant's limits are changed with the server's admin key (PRECIS_ADMIN_KEY) only.")]
    LimitsAreTheServers,
    /// A tenant uses as much as it may. Time heals it.
    #[error("The tenant's limit `{limit}` of {most} is reached; try again after `Retry-After`.")]
    LimitReached {
        /// Its name, as in the tenant's settings.
        limit: &'static str,
        /// How much it is.
        most: i64,
        /// When to come back.
        retry_after: Duration,
    },
    /// A tenant stores as much as it may. Time alone does not heal it.
    #[error(
        "The tenant's limit `storedBytes` of {most} would be exceeded; nothing was stored. Delete sessions, rewind or \
         erase messages, or have the limit raised."
    )]
    StorageQuota {
        /// Bytes that it may store.
        most: i64,
    },
    /// The process bears no more of something just now.
    #[error("{most} {what} already ({limit}); try again after `Retry-After`.")]
    Overloaded {
        /// Name of the setting.
        limit: &'static str,
        /// What there is so much of, as the end of a sentence.
        what: &'static str,
        /// How much it is.
        most: usize,
        /// When to come back.
        retry_after: Duration,
    },
    /// A tenant's key was to make one for another tenant.
    #[error("A tenant's key makes keys of its own tenant only.")]
    OtherTenant,
    /// No such key, or another tenant's.
    #[error("No key `{id}`.")]
    KeyNotFound {
        /// The id given, shortened.
        id: String,
    },
    /// A key cannot be made so.
    #[error("`{member}` {problem}.")]
    InvalidKey {
        /// Which member of the request.
        member: &'static str,
        /// What it must be.
        problem: &'static str,
    },
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
    /// No such item.
    #[error("No item `{id}` in this conversation.")]
    ItemNotFound {
        /// The id given, shortened.
        id: String,
    },
    /// An item that cannot go alone.
    #[error(
        "The item is a part of the message `{message}`, which was appended whole; delete that."
    )]
    PartOfMessage {
        /// The message's id.
        message: String,
    },
    /// Items without anything that a summary could tell.
    #[error(
        "There is nothing to compact: send `input` with messages, or name a `conversation` that has some."
    )]
    NothingToCompact,
    /// More text than one compaction of a request takes.
    #[error(
        "The conversation has more than {limit} bytes; compact it as a session: POST /sessions/{{id}}/compact."
    )]
    ConversationTooLarge {
        /// The limit.
        limit: usize,
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
    /// Another item has the id that the client chose.
    #[error(
        "messages[{index}]: the conversation has another item with this `id`. Nothing of this request was stored."
    )]
    ItemIdTaken {
        /// Which item of the request.
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
    /// A client's key stands for another request.
    #[error(
        "This Idempotency-Key was sent here with another body before; a new request takes a new key."
    )]
    KeyTaken,
    /// The request of a client's key has not ended.
    #[error(
        "The request that came first with this Idempotency-Key is still at work; come back for its answer."
    )]
    RequestAtWork {
        /// When to come back.
        retry_after: Duration,
    },
    /// A client's key was taken, and is free again or its answer cannot be shown.
    #[error("The request that came with this Idempotency-Key was overtaken; send it again.")]
    AskedBefore,
    /// The session is being compacted.
    #[error("A compaction of this session is running; its result will be in …/compactions.")]
    CompactionInProgress {
        /// When to come back.
        retry_after: Duration,
    },
    /// No such turn.
    #[error("No turn `{id}` in this session.")]
    TurnNotFound {
        /// The id given, shortened.
        id: String,
    },
    /// A turn runs in the session.
    #[error(
        "A turn of this session is running; GET …/turns shows it, POST …/turns/{{turnId}}/cancel stops it."
    )]
    TurnInProgress {
        /// When to come back.
        retry_after: Duration,
    },
    /// A turn without a question.
    #[error(
        "There is nothing to answer: the newest message must be a user's or a tool's result, sent with this turn or stored before."
    )]
    NothingToAnswer,
    /// A turn that was stopped, or ended by somebody else.
    #[error("The turn was stopped before the model's answer was stored.")]
    TurnOver,
    /// A turn whose time had run out before its answer came.
    #[error(
        "The turn was not renewed in time and was ended; the answer is not stored. Send a turn without messages to try again."
    )]
    TurnInterrupted,
    /// No model is configured.
    #[error(
        "No model is configured: set PRECIS_MODEL_BASE_URL and PRECIS_MODEL (see `precis config`)."
    )]
    ModelNotConfigured,
    /// The model gave no answer.
    #[error(
        "The model gave no answer: {0}. The new messages are stored; send a turn without messages to try again."
    )]
    ModelFailed(#[source] ProviderError),
    /// The context does not fit the model's window, also after what could be done about it.
    #[error("{0}")]
    ContextOverflow(Box<Overflow>),
    /// What was to make a context smaller freed nothing.
    #[error("the context got no smaller")]
    NothingFreed,
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

/// A context that does not fit.
#[derive(Debug, Clone)]
pub struct Overflow {
    /// Tokens of the context, as it was sent first.
    pub before: i64,
    /// Tokens of it as it was sent the second time; `None` if it was not.
    pub after: Option<i64>,
    /// Its length as the provider told it.
    pub prompt_tokens: Option<u64>,
    /// The model's window as the provider told it.
    pub window: Option<u64>,
    /// Why the context could not be made smaller.
    pub cause: Option<String>,
}

impl Overflow {
    /// What is known of it from the provider's first refusal.
    pub(super) fn of(refusal: &ProviderError, before: i64) -> Self {
        let (prompt_tokens, window) = match refusal {
            ProviderError::Overflow {
                prompt_tokens,
                window,
                ..
            } => (*prompt_tokens, *window),
            _ => (None, None),
        };
        Self {
            before,
            after: None,
            prompt_tokens,
            window,
            cause: None,
        }
    }
}

impl std::fmt::Display for Overflow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "The context does not fit the model's window: about {} tokens by the service's count",
            self.before
        )?;
        if let Some(prompt) = self.prompt_tokens {
            write!(f, ", {prompt} by the provider's")?;
        }
        if let Some(window) = self.window {
            write!(f, ", for a window of {window}")?;
        }
        match (self.after, &self.cause) {
            (Some(after), None) => {
                write!(f, "; made smaller (about {after}), it was refused again.")?;
            }
            (Some(after), Some(cause)) => write!(
                f,
                "; pruned (about {after}), it was refused again, and it could not be compacted: {cause}"
            )?,
            (None, Some(cause)) => write!(f, "; it could not be made smaller: {cause}")?,
            (None, None) => write!(f, "; nothing of it could be made smaller.")?,
        }
        write!(
            f,
            " The new messages are stored. Use a model with a larger window, shorten the instructions or the newest \
             message, or lower keepRecentTurns."
        )
    }
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
            Self::CompactionInProgress { .. } => "COMPACTION_IN_PROGRESS",
            Self::CompactionConflict => "COMPACTION_CONFLICT",
            Self::TurnInterrupted => "TURN_INTERRUPTED",
            Self::ModelNotConfigured => "MODEL_NOT_CONFIGURED",
            Self::ModelFailed(ProviderError::Timeout { .. }) => "MODEL_TIMEOUT",
            Self::ModelFailed(_) => "MODEL_FAILED",
            Self::ContextOverflow(_) => "CONTEXT_OVERFLOW",
            Self::SessionClosed => "SESSION_CLOSED",
            Self::LimitReached { .. } => "RATE_LIMITED",
            Self::StorageQuota { .. } => "STORAGE_QUOTA_EXCEEDED",
            Self::Overloaded { .. } => "OVERLOADED",
            Self::NotMappable(_) => "VALIDATION_FAILED",
            Self::Storage(error) if error.is_temporary() => "STORAGE_UNAVAILABLE",
            Self::ShuttingDown | Self::ContextMoved => "STORAGE_UNAVAILABLE",
            _ => "INTERNAL",
        }
    }

    /// A turn runs until then at least, or until it ends.
    #[must_use]
    pub fn turn_in_progress(until: Timestamp) -> Self {
        let now = Timestamp::of(time::OffsetDateTime::now_utc());
        let left = Duration::from_micros(u64::try_from(until.0 - now.0).unwrap_or(0));
        Self::TurnInProgress {
            retry_after: left.min(LONGEST_RETRY),
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
        WriteRefusal::TurnInProgress(until) => ServiceError::turn_in_progress(until),
    }
}
