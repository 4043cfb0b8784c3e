//! When a failed try is worth another one, and how long to wait before it.
//!
//! Pure functions: the time of day and the dice are handed in, so a test needs neither clock nor
//! luck. The waiting itself is done by the client, which also counts the tries.
//!
//! A server that asks for a longer wait than the operator allows is not waited for at all:
//! coming back early would only be refused again, and the caller can use the time better (another
//! model, or an answer to its own client that says when to come back).
//!
//! What does not belong here: which failures are worth a retry at all; that is a property of
//! [`ProviderError`].

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, HeaderName, RETRY_AFTER};

use super::error::ProviderError;

/// The longest `Retry-After` that is told apart: one year. Whatever is longer counts as this.
pub const MAX_RETRY_AFTER: Duration = Duration::from_hours(365 * 24);

static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// How often to try, and how long to wait in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries in all, the first one included. 0 counts as 1.
    pub attempts: u32,
    /// The wait after the first failure; doubled after each further one.
    pub backoff_initial: Duration,
    /// The longest wait of our own choosing.
    pub backoff_max: Duration,
    /// The longest `Retry-After` that is waited for. A longer one ends the call at once.
    pub retry_after_max: Duration,
    /// All waits of one call together. A wait that would go beyond ends the call at once.
    pub wait_total: Duration,
}

/// How long to wait before the next try, or `None` to give up.
///
/// `failures` counts the tries that have failed, `error` is the last of them, `waited` is what
/// this call has spent waiting so far, and `roll` is any random number.
///
/// The wait is never shorter than what the server asked for, and never shorter than our own
/// back-off: a server that says "0 seconds" in a loop is not hammered.
#[must_use]
pub fn next_wait(
    policy: &RetryPolicy,
    failures: u32,
    error: &ProviderError,
    waited: Duration,
    roll: u64,
) -> Option<Duration> {
    if failures >= policy.attempts.max(1) || !error.is_retryable() {
        return None;
    }
    let asked = error.retry_after().unwrap_or_default();
    if asked > policy.retry_after_max {
        return None;
    }
    let wait = backoff(policy, failures, roll).max(asked);
    let total = waited.checked_add(wait)?;
    (total <= policy.wait_total).then_some(wait)
}

/// Our own wait after that many failures (1 or more): exponential, capped, and somewhere in the
/// upper half of that, so that callers who failed together do not come back together.
#[must_use]
pub fn backoff(policy: &RetryPolicy, failures: u32, roll: u64) -> Duration {
    let doublings = failures.saturating_sub(1).min(31);
    let full = policy
        .backoff_initial
        .saturating_mul(1_u32 << doublings)
        .min(policy.backoff_max);
    let half = full / 2;
    // 1024 steps are plenty for spreading, and exact in integers.
    let step = u32::try_from(roll % 1024).unwrap_or(0);
    half.saturating_add((half / 1024).saturating_mul(step))
}

/// A number nobody can guess, for [`next_wait`].
///
/// The standard library seeds its hash maps from the system's randomness and moves the seed on
/// with each map; that is all a jitter needs, and saves a crate.
#[must_use]
pub fn roll() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// What the server asks us to wait, from `retry-after-ms` or `Retry-After`.
///
/// Understood: whole and fractional seconds (or milliseconds), and HTTP dates in all three of
/// their spellings; a date in the past is no wait. Ignored: signs, words, units, lists. Clamped
/// to [`MAX_RETRY_AFTER`]. The finer header wins if both can be read.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let millis = headers
        .get(&RETRY_AFTER_MS)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| decimal(text, 1));
    millis.or_else(|| {
        let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
        decimal(text, 1_000).or_else(|| date(text, now))
    })
}

/// A plain decimal number of units of `unit_ms` milliseconds each, rounded up to whole
/// milliseconds, so that a wait is never shorter than what was asked for.
fn decimal(text: &str, unit_ms: u64) -> Option<Duration> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    // Only digits: the one way to fail is a number beyond 64 bits.
    let whole = whole.parse::<u64>().unwrap_or(u64::MAX);
    let thousandths: u64 = format!("{fraction:0<3.3}").parse().ok()?;
    let rest = fraction.bytes().skip(3).any(|byte| byte != b'0');
    let part_ms = (thousandths + u64::from(rest))
        .saturating_mul(unit_ms)
        .div_ceil(1_000);
    let millis = whole.saturating_mul(unit_ms).saturating_add(part_ms);
    Some(Duration::from_millis(millis).min(MAX_RETRY_AFTER))
}

fn date(text: &str, now: SystemTime) -> Option<Duration> {
    let at = httpdate::parse_http_date(text.trim()).ok()?;
    let wait = at.duration_since(now).unwrap_or_default();
    Some(wait.min(MAX_RETRY_AFTER))
}
