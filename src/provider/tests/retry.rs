use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rstest::rstest;

use crate::provider::retry::{MAX_RETRY_AFTER, backoff, next_wait, retry_after};
use crate::provider::{ProviderError, RetryPolicy, TimeoutKind};

const POLICY: RetryPolicy = RetryPolicy {
    attempts: 4,
    backoff_initial: Duration::from_millis(100),
    backoff_max: Duration::from_secs(1),
    retry_after_max: Duration::from_secs(20),
    wait_total: Duration::from_secs(30),
};

fn limited(retry_after: Option<Duration>) -> ProviderError {
    ProviderError::RateLimited {
        status: 429,
        retry_after,
    }
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            )
        })
        .collect()
}

#[rstest]
#[case("1", Some(1_000))]
#[case(" 7 ", Some(7_000))]
#[case("0", Some(0))]
#[case("1.5", Some(1_500))]
#[case("0.0001", Some(1))]
#[case("1.9999", Some(2_000))]
#[case("3.", Some(3_000))]
#[case("86400", Some(86_400_000))]
#[case("99999999999999999999999999", Some(31_536_000_000))]
#[case("18446744073709551615", Some(31_536_000_000))]
#[case("-5", None)]
#[case("+5", None)]
#[case("abc", None)]
#[case("", None)]
#[case(".5", None)]
#[case("1e3", None)]
#[case("inf", None)]
#[case("NaN", None)]
#[case("5s", None)]
#[case("1, 2", None)]
#[case("1.2.3", None)]
// The moment is Sun, 06 Nov 1994 08:49:37 GMT.
#[case("Sun, 06 Nov 1994 08:49:39 GMT", Some(2_000))]
#[case("Sunday, 06-Nov-94 08:49:39 GMT", Some(2_000))]
#[case("Sun Nov  6 08:49:39 1994", Some(2_000))]
#[case("Sun, 06 Nov 1994 08:49:00 GMT", Some(0))]
#[case("Fri, 31 Dec 9999 23:59:59 GMT", Some(31_536_000_000))]
#[case("Sun, 99 Nov 1994 08:49:39 GMT", None)]
fn retry_after_is_understood_or_ignored(#[case] value: &str, #[case] millis: Option<u64>) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    assert_eq!(
        retry_after(&headers(&[("retry-after", value)]), now),
        millis.map(Duration::from_millis)
    );
}

#[rstest]
#[case(&[("retry-after-ms", "250"), ("retry-after", "1")], Some(250))]
#[case(&[("retry-after-ms", "250.2")], Some(251))]
#[case(&[("retry-after-ms", "soon"), ("retry-after", "1")], Some(1_000))]
#[case(&[("retry-after-ms", "-1")], None)]
#[case(&[("retry-after-ms", "99999999999999999999")], Some(31_536_000_000))]
#[case(&[], None)]
fn milliseconds_win(#[case] pairs: &[(&'static str, &str)], #[case] millis: Option<u64>) {
    assert_eq!(
        retry_after(&headers(pairs), SystemTime::now()),
        millis.map(Duration::from_millis)
    );
}

#[test]
fn bytes_that_are_no_text_are_ignored() {
    let mut map = HeaderMap::new();
    map.insert("retry-after", HeaderValue::from_bytes(b"\xff\xfe").unwrap());
    assert_eq!(retry_after(&map, SystemTime::now()), None);
}

#[test]
fn backoff_doubles_within_its_bounds() {
    for failures in 1..100 {
        let full = Duration::from_millis(100)
            .saturating_mul(1_u32 << (failures - 1).min(20))
            .min(POLICY.backoff_max);
        assert_eq!(backoff(&POLICY, failures, 0), full / 2);
        for roll in [1, 511, 1023, u64::MAX] {
            let wait = backoff(&POLICY, failures, roll);
            assert!(
                wait >= full / 2 && wait <= full,
                "{failures} {roll} {wait:?}"
            );
        }
    }
    let endless = RetryPolicy {
        backoff_initial: Duration::MAX,
        backoff_max: Duration::MAX,
        ..POLICY
    };
    assert!(backoff(&endless, u32::MAX, u64::MAX) >= Duration::MAX / 2);
    assert_eq!(
        next_wait(&endless, 1, &limited(None), Duration::MAX, 0),
        None
    );
}

#[test]
fn the_server_is_waited_for_within_bounds() {
    let wait = |asked, waited| {
        next_wait(
            &POLICY,
            1,
            &limited(Some(Duration::from_secs(asked))),
            Duration::from_secs(waited),
            0,
        )
    };
    assert_eq!(wait(3, 0), Some(Duration::from_secs(3)));
    assert_eq!(wait(20, 0), Some(Duration::from_secs(20)));
    // "Now" is not sooner than our own back-off.
    assert_eq!(wait(0, 0), Some(Duration::from_millis(50)));
    // Longer than we would wait for one answer, or for all of them.
    assert_eq!(wait(21, 0), None);
    assert_eq!(wait(86_400, 0), None);
    assert_eq!(wait(20, 10), Some(Duration::from_secs(20)));
    assert_eq!(wait(20, 11), None);
    assert_eq!(
        next_wait(
            &POLICY,
            1,
            &limited(Some(MAX_RETRY_AFTER)),
            Duration::ZERO,
            0
        ),
        None
    );
}

#[test]
fn tries_are_counted() {
    let wait = |attempts, failures| {
        next_wait(
            &RetryPolicy { attempts, ..POLICY },
            failures,
            &limited(None),
            Duration::ZERO,
            0,
        )
    };
    assert!(wait(3, 1).is_some());
    assert!(wait(3, 2).is_some());
    assert!(wait(3, 3).is_none());
    assert!(wait(1, 1).is_none());
    assert!(wait(0, 1).is_none());
}

#[rstest]
#[case(ProviderError::Unavailable { status: 503, retry_after: None }, true)]
#[case(ProviderError::Refused { status: 408 }, true)]
#[case(ProviderError::Refused { status: 400 }, false)]
#[case(ProviderError::Refused { status: 302 }, false)]
#[case(ProviderError::RateLimited { status: 429, retry_after: None }, true)]
#[case(ProviderError::RateLimited { status: 200, retry_after: None }, true)]
#[case(ProviderError::RateLimited { status: 503, retry_after: None }, true)]
#[case(ProviderError::RateLimited { status: 402, retry_after: None }, false)]
#[case(ProviderError::RateLimited { status: 413, retry_after: None }, false)]
#[case(ProviderError::Overflow { status: 500, prompt_tokens: None, window: None }, false)]
#[case(ProviderError::Connect, true)]
#[case(ProviderError::Timeout { which: TimeoutKind::Connect }, true)]
#[case(ProviderError::Timeout { which: TimeoutKind::FirstByte }, true)]
#[case(ProviderError::Timeout { which: TimeoutKind::Idle }, false)]
#[case(ProviderError::Timeout { which: TimeoutKind::Call }, false)]
#[case(ProviderError::Malformed { what: "x" }, false)]
#[case(ProviderError::TooLarge, false)]
fn what_is_worth_another_try(#[case] error: ProviderError, #[case] worth: bool) {
    assert_eq!(error.is_retryable(), worth);
    assert_eq!(
        next_wait(&POLICY, 1, &error, Duration::ZERO, 0).is_some(),
        worth
    );
}
