//! What can go wrong with a model server, said without saying too much.
//!
//! A provider's own message often quotes the prompt, and a URL may carry credentials. So these
//! errors hold numbers and fixed words only: any of them may be logged, stored and shown to a
//! client. There is deliberately no `source()`: the errors of the HTTP client know the URL.
//!
//! What does not belong here: the status our own API answers with. That table is the service's.

use std::time::Duration;

/// Why a model call gave no completion.
///
/// `Display` and `Debug` never hold the API key, the URL, the prompt or the provider's text.
/// Statuses are those the provider meant: an error object inside a `200` counts with the status
/// written in it, where it names one, and as `200` otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The prompt (with the output cap, for some servers) does not fit the model's window.
    #[error("the prompt does not fit the model's context window (status {status})")]
    Overflow {
        /// HTTP status, 100–999.
        status: u16,
        /// Length of the prompt in the provider's tokens, if it said so.
        prompt_tokens: Option<u64>,
        /// The model's window (or its limit for prompts) in tokens, if the provider said so.
        window: Option<u64>,
    },
    /// A rate, quota or credit limit, whatever its status.
    #[error("the model server limits the rate of requests (status {status})")]
    RateLimited {
        /// HTTP status, mostly 429; 402, 403 and 413 are in use too.
        status: u16,
        /// What the server asked us to wait, at most [`MAX_RETRY_AFTER`](super::retry::MAX_RETRY_AFTER).
        retry_after: Option<Duration>,
    },
    /// The server understood the request and does not want it: any 4xx not named above, a
    /// redirect (never followed), or an error object in a `200` that names no status.
    #[error("the model server refused the request (status {status})")]
    Refused {
        /// HTTP status.
        status: u16,
    },
    /// The server answered 5xx.
    #[error("the model server is unavailable (status {status})")]
    Unavailable {
        /// HTTP status, 500 or more.
        status: u16,
        /// What the server asked us to wait, at most [`MAX_RETRY_AFTER`](super::retry::MAX_RETRY_AFTER).
        retry_after: Option<Duration>,
    },
    /// One of the time limits of [`Timeouts`](super::Timeouts) ran out.
    #[error("the model server took too long ({which})")]
    Timeout {
        /// Which limit.
        which: TimeoutKind,
    },
    /// No connection could be made, or it broke, or what came over it was not HTTP. Also a stream
    /// that ended before the answer in it did.
    #[error("no connection to the model server, or it broke")]
    Connect,
    /// A successful status with a body that is no chat completion.
    #[error("the model server's answer cannot be read: {what}")]
    Malformed {
        /// What was wrong, in fixed words.
        what: &'static str,
    },
    /// The answer is longer than [`MAX_ANSWER_BYTES`](super::ChatModel::MAX_ANSWER_BYTES), or a
    /// stream with all that is wrapped around it than
    /// [`MAX_STREAM_BYTES`](super::ChatModel::MAX_STREAM_BYTES).
    #[error("the model server's answer is too large")]
    TooLarge,
}

impl ProviderError {
    /// The HTTP status the failure came with; `None` where there was none (timeouts, broken
    /// connections) or where it was a success with an unreadable body.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Overflow { status, .. }
            | Self::RateLimited { status, .. }
            | Self::Refused { status }
            | Self::Unavailable { status, .. } => Some(*status),
            Self::Timeout { .. } | Self::Connect | Self::Malformed { .. } | Self::TooLarge => None,
        }
    }

    /// What the server asked us to wait before another try, if it did.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Unavailable { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }

    /// Whether the same request may succeed a little later.
    ///
    /// True for 408, 429, 5xx, a rate limit written into a `200`, connection errors, and
    /// timeouts before the answer began. False for an answer that began and stalled or ran past
    /// the limit of the call: asking again would pay for it twice. (A turn is never repeated once
    /// a delta of it was handed on, whatever this says.) A rate limit with another 4xx
    /// (no credits left, one request over the limit for a whole minute) does not pass by waiting.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::RateLimited { status, .. } => {
                matches!(status, 408 | 429 | 200..=299 | 500..=u16::MAX)
            }
            Self::Refused { status } => *status == 408,
            Self::Unavailable { .. } | Self::Connect => true,
            Self::Timeout { which } => {
                matches!(which, TimeoutKind::Connect | TimeoutKind::FirstByte)
            }
            Self::Overflow { .. } | Self::Malformed { .. } | Self::TooLarge => false,
        }
    }

    /// A short fixed name of the kind, for logs and records.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Overflow { .. } => "overflow",
            Self::RateLimited { .. } => "rate_limited",
            Self::Refused { .. } => "refused",
            Self::Unavailable { .. } => "unavailable",
            Self::Timeout { which } => which.name(),
            Self::Connect => "connect",
            Self::Malformed { .. } => "malformed",
            Self::TooLarge => "too_large",
        }
    }
}

/// Which of the time limits of [`Timeouts`](super::Timeouts) ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutKind {
    /// Name lookup, TCP and TLS.
    Connect,
    /// From the start of the attempt to the first byte of the answer's body.
    FirstByte,
    /// Between two pieces of the answer.
    Idle,
    /// The whole attempt.
    Call,
}

impl TimeoutKind {
    fn name(self) -> &'static str {
        match self {
            Self::Connect => "timeout_connect",
            Self::FirstByte => "timeout_first_byte",
            Self::Idle => "timeout_idle",
            Self::Call => "timeout_call",
        }
    }
}

impl std::fmt::Display for TimeoutKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connect => "connecting",
            Self::FirstByte => "waiting for the first byte",
            Self::Idle => "waiting for the next byte",
            Self::Call => "the whole call",
        })
    }
}

/// Why a client could not be set up. Found at start, never during a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The base URL is not an absolute `http` or `https` URL with a host.
    #[error("the base URL of the model server is not an absolute http or https URL")]
    BaseUrl,
    /// The API key holds a character that no HTTP header can carry, such as a line break.
    #[error("the API key of the model server holds a character that no HTTP header can carry")]
    ApiKey,
    /// No process-wide rustls provider was installed before.
    #[error("no TLS crypto provider is installed")]
    NoCryptoProvider,
    /// The HTTP client could not be built, for instance for lack of root certificates.
    #[error("the HTTP client cannot be built")]
    Client,
}
