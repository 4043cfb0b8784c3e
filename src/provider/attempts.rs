//! The tries of one call: counting them, waiting between them, and one log line for each.
//!
//! The retries here are the only ones: those of the HTTP library are off, redirects are not
//! followed, and so a server sees exactly the number of requests that the policy says.
//!
//! Nothing here is logged above debug: whoever asked decides whether a failure is one, and says
//! so once.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

use super::error::ProviderError;
use super::retry::{self, RetryPolicy};

/// The tries of one call.
#[derive(Debug)]
pub(super) struct Attempts<'a> {
    policy: &'a RetryPolicy,
    /// Counts the tries behind the first.
    retries: &'a Counter,
    /// The number of the try under way, from 1.
    number: u32,
    started: Instant,
    waited: Duration,
}

impl<'a> Attempts<'a> {
    /// Begins the first one.
    pub(super) fn start(policy: &'a RetryPolicy, retries: &'a Counter) -> Self {
        Self {
            policy,
            retries,
            number: 1,
            started: Instant::now(),
            waited: Duration::ZERO,
        }
    }

    /// The try under way was the last: it gave an answer. `broken` says what cut it off, if
    /// anything did. Gives the number of tries.
    pub(super) fn succeeded(&self, broken: Option<&ProviderError>) -> u32 {
        tracing::debug!(
            attempt = self.number,
            status = 200,
            broken = broken.map(ProviderError::kind),
            elapsed_ms = millis(self.started.elapsed()),
            waited_ms = millis(self.waited),
            "model call succeeded"
        );
        self.number
    }

    /// The try under way failed. Waits and begins the next one, or gives the error back if there
    /// shall be none: because the policy says so, or because the call may not be repeated.
    pub(super) async fn failed(
        &mut self,
        error: ProviderError,
        may_repeat: bool,
    ) -> Result<(), ProviderError> {
        let next = may_repeat
            .then(|| retry::next_wait(self.policy, self.number, &error, self.waited, retry::roll()))
            .flatten();
        let message = match next {
            Some(_) => "model call failed and will be repeated",
            None => "model call failed",
        };
        tracing::debug!(
            attempt = self.number,
            status = error.status(),
            kind = error.kind(),
            elapsed_ms = millis(self.started.elapsed()),
            waited_ms = millis(self.waited),
            wait_ms = next.map(millis),
            "{message}"
        );
        let Some(wait) = next else {
            return Err(error);
        };
        tokio::time::sleep(wait).await;
        self.waited = self.waited.saturating_add(wait);
        self.retries.inc();
        self.number = self.number.saturating_add(1);
        self.started = Instant::now();
        Ok(())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
