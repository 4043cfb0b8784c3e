//! What a server says instead of an answer, and what is tried again.

use std::time::{Duration, Instant, SystemTime};

use rstest::rstest;
use serde_json::{Value, json};
use wiremock::ResponseTemplate;

use super::support::{
    RETRY, TIMEOUTS, answer, ask, ask_body, base, calls, model, model_with, ok, request, scripted,
};
use crate::provider::{ProviderError, RetryPolicy};

#[rstest]
#[case(json!({"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}), ProviderError::Overflow { status: 200, prompt_tokens: Some(9), window: Some(8) }, 1)]
#[case(json!({"error": {"code": 400, "message": "prompt is too long"}}), ProviderError::Overflow { status: 400, prompt_tokens: None, window: None }, 1)]
#[case(json!([{"error": {"code": 400, "message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}}]), ProviderError::Overflow { status: 400, prompt_tokens: Some(9), window: Some(8) }, 1)]
#[case(json!({"error": {"code": 429, "message": "Rate limited"}}), ProviderError::RateLimited { status: 429, retry_after: None }, 3)]
#[case(json!({"error": {"code": 502, "message": "Upstream"}, "choices": []}), ProviderError::Unavailable { status: 502, retry_after: None }, 3)]
#[case(json!({"error": "something"}), ProviderError::Refused { status: 200 }, 1)]
#[case(json!({"object": "error", "message": "no such model", "code": 404}), ProviderError::Refused { status: 404 }, 1)]
#[case(json!({"choices": [{"error": {"code": 502, "message": "Upstream"}, "finish_reason": "error", "message": {"content": "par"}}]}), ProviderError::Unavailable { status: 502, retry_after: None }, 3)]
#[tokio::test]
async fn an_error_inside_a_200(
    #[case] body: Value,
    #[case] expected: ProviderError,
    #[case] tries: usize,
) {
    let server = scripted(vec![ResponseTemplate::new(200).set_body_json(body)]).await;
    assert_eq!(
        model(&base(&server))
            .complete(&request())
            .await
            .unwrap_err(),
        expected
    );
    assert_eq!(calls(&server).await, tries);
}

#[tokio::test]
async fn an_error_member_that_says_nothing_is_none() {
    for error in [json!(null), json!(""), json!({}), json!(false)] {
        let mut body = answer("hi");
        body["error"] = error.clone();
        body["choices"][0]["error"] = error;
        assert_eq!(ask_body(&body.to_string()).await.unwrap().text, "hi");
    }
}

#[tokio::test]
async fn the_text_of_an_answer_is_never_an_overflow() {
    let words = "This model's maximum context length is 8192 tokens; prompt is too long.";
    assert_eq!(ask(ok(words)).await.unwrap().text, words);
}

#[rstest]
#[case(400, 1)]
#[case(401, 1)]
#[case(404, 1)]
#[case(409, 1)]
#[case(422, 1)]
#[case(408, 3)]
#[case(302, 1)]
#[tokio::test]
async fn refused(#[case] status: u16, #[case] tries: usize) {
    let template = ResponseTemplate::new(status)
        .insert_header("location", "/elsewhere")
        .set_body_json(json!({"error": {"message": "the secret prompt is bad"}}));
    let server = scripted(vec![template]).await;
    let error = model(&base(&server))
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(error, ProviderError::Refused { status });
    assert_eq!(error.status(), Some(status));
    assert_eq!(calls(&server).await, tries);
}

#[rstest]
#[case(400)]
#[case(500)]
#[case(413)]
#[tokio::test]
async fn an_overflow_is_not_repeated(#[case] status: u16) {
    let body = json!({"error": {"code": "context_length_exceeded", "message": "This model's maximum context length is 10 tokens. However, your messages resulted in 12 tokens."}});
    let server = scripted(vec![ResponseTemplate::new(status).set_body_json(body)]).await;
    let error = model(&base(&server))
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Overflow {
            status,
            prompt_tokens: Some(12),
            window: Some(10)
        }
    );
    assert_eq!(calls(&server).await, 1);
}

#[tokio::test]
async fn no_credit_is_not_waited_for() {
    let body = json!({"error": {"message": "This request requires more credits, or fewer max_tokens.", "code": 402}});
    let server = scripted(vec![ResponseTemplate::new(402).set_body_json(body)]).await;
    let error = model(&base(&server))
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::RateLimited {
            status: 402,
            retry_after: None
        }
    );
    assert_eq!(calls(&server).await, 1);
}

// Trying again

#[tokio::test]
async fn unavailable_twice_then_fine() {
    let server = scripted(vec![
        ResponseTemplate::new(503),
        ResponseTemplate::new(529),
        ok("there"),
    ])
    .await;
    let done = model(&base(&server)).complete(&request()).await.unwrap();
    assert_eq!((done.text.as_str(), done.attempts), ("there", 3));
    let requests = server.received_requests().await.unwrap();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|other| other.body == requests[0].body));
}

#[tokio::test]
async fn unavailable_for_good() {
    let server = scripted(vec![
        ResponseTemplate::new(503).insert_header("retry-after", "0"),
    ])
    .await;
    let error = model(&base(&server))
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Unavailable {
            status: 503,
            retry_after: Some(Duration::ZERO)
        }
    );
    assert_eq!(calls(&server).await, 3);
}

fn in_http_date(ahead: i64) -> String {
    let now = SystemTime::now();
    let seconds = Duration::from_secs(ahead.unsigned_abs());
    httpdate::fmt_http_date(if ahead < 0 {
        now - seconds
    } else {
        now + seconds
    })
}

/// A 429 with this header, then an answer: how many tries, and the shortest and longest wait.
#[rstest]
#[case::seconds("retry-after", "1".into(), 2, 1_000, 4_000)]
#[case::fraction("retry-after", "0.3".into(), 2, 300, 3_000)]
#[case::millis("retry-after-ms", "200".into(), 2, 200, 3_000)]
#[case::date("retry-after", in_http_date(2), 2, 300, 6_000)]
#[case::past("retry-after", in_http_date(-60), 2, 1, 3_000)]
#[case::nonsense("retry-after", "abc".into(), 2, 1, 3_000)]
#[case::negative("retry-after", "-7".into(), 2, 1, 3_000)]
#[case::missing("x-none", "1".into(), 2, 1, 3_000)]
#[case::a_day("retry-after", "86400".into(), 1, 0, 3_000)]
#[case::a_distant_date("retry-after", in_http_date(86_400), 1, 0, 3_000)]
#[case::huge("retry-after", "999999999999999999999".into(), 1, 0, 3_000)]
#[tokio::test]
async fn s14_retry_after(
    #[case] name: &'static str,
    #[case] value: String,
    #[case] tries: usize,
    #[case] at_least: u64,
    #[case] at_most: u64,
) {
    let limited = ResponseTemplate::new(429).insert_header(name, value.as_str());
    let server = scripted(vec![limited, ok("there")]).await;
    let started = Instant::now();
    let result = model(&base(&server)).complete(&request()).await;
    let took = started.elapsed();
    assert_eq!(calls(&server).await, tries);
    assert!(
        took >= Duration::from_millis(at_least) && took < Duration::from_millis(at_most),
        "{took:?}"
    );
    if tries == 2 {
        assert_eq!(result.unwrap().attempts, 2);
    } else {
        let error = result.unwrap_err();
        assert_eq!(error.status(), Some(429));
        assert!(error.retry_after().unwrap() > Duration::from_secs(86_000));
    }
}

#[tokio::test]
async fn all_waits_together_are_capped() {
    let limited = ResponseTemplate::new(429).insert_header("retry-after-ms", "150");
    let server = scripted(vec![limited]).await;
    let retry = RetryPolicy {
        attempts: 50,
        wait_total: Duration::from_millis(400),
        ..RETRY
    };
    let error = model_with(&base(&server), TIMEOUTS, retry)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_millis(150)));
    assert_eq!(calls(&server).await, 3);
}
