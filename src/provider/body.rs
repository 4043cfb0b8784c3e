//! The body of an answer, piece by piece, under the limits on time and size.
//!
//! What does not belong here: what the pieces mean. They may be one JSON text or a stream.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::{Response, StatusCode};
use tokio::time::{Instant, timeout_at};

use super::chat::ChatModel;
use super::error::{ProviderError, TimeoutKind};
use super::overflow;
use super::refusal::refusal;
use super::retry;

/// How long an attempt may take. Each limit is at most one year; longer counts as that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Name lookup, TCP and TLS together.
    pub connect: Duration,
    /// From the start of the attempt, connecting included, to the first byte of the answer's
    /// body. For an answer that is not streamed this is nearly all of the model's work, for a
    /// streamed one it is the reading of the prompt.
    pub first_byte: Duration,
    /// Between two pieces of the answer's body.
    pub idle: Duration,
    /// The whole attempt; an answer that trickles in does not extend it. Waits between the
    /// attempts of a call do not count.
    pub call: Duration,
}

/// The second half of an attempt: the answer, piece by piece.
pub(super) struct Body {
    response: Response,
    clock: Clock,
    begun: bool,
    /// Bytes that may still come.
    left: usize,
}

impl Body {
    /// The body of an answer, of which nothing was read yet.
    pub(super) fn new(response: Response, clock: Clock) -> Self {
        Self {
            response,
            clock,
            begun: false,
            left: ChatModel::MAX_ANSWER_BYTES,
        }
    }

    /// The next piece, or `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ProviderError> {
        let chunk = self.response.chunk();
        let piece = if self.begun {
            self.clock.between_bytes(chunk).await?
        } else {
            self.clock.before_first_byte(chunk).await?
        };
        let Some(piece) = piece.map_err(|error| connection_error(&error))? else {
            return Ok(None);
        };
        self.begun = self.begun || !piece.is_empty();
        self.left = self
            .left
            .checked_sub(piece.len())
            .ok_or(ProviderError::TooLarge)?;
        Ok(Some(piece))
    }

    /// All pieces together.
    pub(super) async fn read_all(&mut self) -> Result<Vec<u8>, ProviderError> {
        let mut all = Vec::new();
        self.read_rest(&mut all).await?;
        Ok(all)
    }

    /// Appends the pieces that are still to come.
    pub(super) async fn read_rest(&mut self, all: &mut Vec<u8>) -> Result<(), ProviderError> {
        let announced = self.response.content_length().unwrap_or(0);
        if usize::try_from(announced).map_or(true, |announced| announced > self.left) {
            return Err(ProviderError::TooLarge);
        }
        while let Some(piece) = self.next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(())
    }

    /// A stream says little with many bytes, so it may have more of them.
    pub(super) fn expect_stream(&mut self) {
        self.left += ChatModel::MAX_STREAM_BYTES - ChatModel::MAX_ANSWER_BYTES;
    }

    /// The error that an answer with this status is. The status counts more than the text: if
    /// the text breaks off, stalls or is too long, what there is of it must do.
    pub(super) async fn into_refusal(mut self, status: StatusCode) -> ProviderError {
        // With the verdict in hand, nothing is worth a long wait for its explanation.
        self.begun = true;
        let retry_after = retry::retry_after(self.response.headers(), SystemTime::now());
        let mut text = Vec::new();
        while let Ok(Some(piece)) = self.next().await {
            text.extend_from_slice(&piece);
            if text.len() > overflow::MAX_ERROR_BYTES {
                break;
            }
        }
        refusal(status.as_u16(), retry_after, &text)
    }
}

/// When the limits of one attempt run out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    first_byte: Instant,
    call: Instant,
    idle: Duration,
}

/// Adding more than this to a point in time could overflow it.
pub(super) const LONGEST: Duration = Duration::from_hours(365 * 24);

impl Clock {
    pub(super) fn start(timeouts: &Timeouts) -> Self {
        let now = Instant::now();
        Self {
            first_byte: now + timeouts.first_byte.min(LONGEST),
            call: now + timeouts.call.min(LONGEST),
            idle: timeouts.idle.min(LONGEST),
        }
    }

    pub(super) async fn before_first_byte<F: Future>(
        &self,
        work: F,
    ) -> Result<F::Output, ProviderError> {
        self.bounded(work, self.first_byte, TimeoutKind::FirstByte)
            .await
    }

    async fn between_bytes<F: Future>(&self, work: F) -> Result<F::Output, ProviderError> {
        self.bounded(work, Instant::now() + self.idle, TimeoutKind::Idle)
            .await
    }

    async fn bounded<F: Future>(
        &self,
        work: F,
        until: Instant,
        which: TimeoutKind,
    ) -> Result<F::Output, ProviderError> {
        let (until, which) = if self.call <= until {
            (self.call, TimeoutKind::Call)
        } else {
            (until, which)
        };
        // A server that always has a byte ready would never let the timer have its turn.
        if Instant::now() >= until {
            return Err(ProviderError::Timeout { which });
        }
        timeout_at(until, work)
            .await
            .map_err(|_| ProviderError::Timeout { which })
    }
}

pub(super) fn connection_error(error: &reqwest::Error) -> ProviderError {
    // The only timer that the library runs for us is the one for connecting.
    if error.is_connect() && error.is_timeout() {
        ProviderError::Timeout {
            which: TimeoutKind::Connect,
        }
    } else {
        ProviderError::Connect
    }
}
