use std::sync::Once;
use std::time::{Duration, Instant, SystemTime};

use rstest::rstest;
use serde_json::{Value, json};
use wiremock::matchers::{body_json, header, method, path, query_param};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use super::server::{RawServer, head, send};
use crate::provider::{
    ChatModel, ChatRequest, Completion, Endpoint, OutputCap, OutputCapName, PromptMessage,
    ProviderError, RetryPolicy, SetupError, TimeoutKind, Timeouts,
};

const KEY: &str = "sk-very-secret-0123456789";

const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    first_byte: Duration::from_secs(5),
    idle: Duration::from_secs(5),
    call: Duration::from_secs(10),
};

const RETRY: RetryPolicy = RetryPolicy {
    attempts: 3,
    backoff_initial: Duration::from_millis(4),
    backoff_max: Duration::from_millis(20),
    retry_after_max: Duration::from_secs(3),
    wait_total: Duration::from_secs(4),
};

fn ready() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

fn model_with(url: &str, timeouts: Timeouts, retry: RetryPolicy) -> ChatModel {
    ready();
    let endpoint = Endpoint::parse(url, Some(KEY.into())).unwrap();
    ChatModel::new(&endpoint, timeouts, retry).unwrap()
}

fn model(url: &str) -> ChatModel {
    model_with(url, TIMEOUTS, RETRY)
}

fn request() -> ChatRequest {
    ChatRequest {
        model: "test-model".into(),
        messages: vec![
            PromptMessage {
                role: "system",
                content: "Be brief.".into(),
            },
            PromptMessage {
                role: "user",
                content: "the secret prompt".into(),
            },
        ],
        output_cap: None,
    }
}

fn answer(content: &str) -> Value {
    json!({"id": "c", "object": "chat.completion", "model": "test-model-0613", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    ], "usage": {"prompt_tokens": 12, "completion_tokens": 3}})
}

/// A server that gives these answers in turn, and the last one for ever.
async fn scripted(answers: Vec<ResponseTemplate>) -> MockServer {
    struct Script(std::sync::Mutex<std::collections::VecDeque<ResponseTemplate>>);
    impl Respond for Script {
        fn respond(&self, _: &Request) -> ResponseTemplate {
            let mut answers = self.0.lock().unwrap();
            if answers.len() > 1 {
                answers.pop_front().unwrap()
            } else {
                answers[0].clone()
            }
        }
    }
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/v1/chat/completions"))
        .respond_with(Script(std::sync::Mutex::new(answers.into())))
        .mount(&server)
        .await;
    server
}

async fn calls(server: &MockServer) -> usize {
    server.received_requests().await.unwrap().len()
}

fn base(server: &MockServer) -> String {
    format!("{}/v1", server.uri())
}

fn ok(content: &str) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(answer(content))
}

async fn ask(template: ResponseTemplate) -> Result<Completion, ProviderError> {
    let server = scripted(vec![template]).await;
    model(&base(&server)).complete(&request()).await
}

async fn ask_body(body: &str) -> Result<Completion, ProviderError> {
    ask(ResponseTemplate::new(200).set_body_raw(body.as_bytes().to_vec(), "application/json")).await
}

fn malformed(result: Result<Completion, ProviderError>) -> &'static str {
    match result {
        Err(ProviderError::Malformed { what }) => what,
        other => panic!("expected a malformed answer, got {other:?}"),
    }
}

// What is sent

#[rstest]
#[case("/v1")]
#[case("/v1/")]
#[case("/v1//")]
#[tokio::test]
async fn the_request_is_what_was_asked_for(#[case] base: &str) {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/v1/chat/completions"))
        .and(header("authorization", format!("Bearer {KEY}").as_str()))
        .and(header("content-type", "application/json"))
        .and(body_json(json!({"model": "test-model", "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "the secret prompt"}
        ]})))
        .respond_with(ok("done"))
        .expect(1)
        .mount(&server)
        .await;
    let done = model(&format!("{}{base}", server.uri()))
        .complete(&request())
        .await
        .unwrap();
    assert_eq!(done.text, "done");
    assert_eq!(done.finish.as_deref(), Some("stop"));
    assert_eq!(done.model.as_deref(), Some("test-model-0613"));
    assert_eq!(done.attempts, 1);
    assert!(!done.reasoning_only && !done.has_tool_calls && done.refusal.is_none());
}

#[rstest]
#[case(OutputCapName::MaxTokens, "max_tokens", "max_completion_tokens")]
#[case(
    OutputCapName::MaxCompletionTokens,
    "max_completion_tokens",
    "max_tokens"
)]
#[tokio::test]
async fn the_cap_goes_out_under_its_name(
    #[case] name: OutputCapName,
    #[case] sent: &str,
    #[case] unsent: &str,
) {
    let server = scripted(vec![ok("done")]).await;
    let request = ChatRequest {
        output_cap: Some(OutputCap { name, tokens: 777 }),
        ..request()
    };
    model(&base(&server)).complete(&request).await.unwrap();
    let body: Value = server.received_requests().await.unwrap()[0]
        .body_json()
        .unwrap();
    assert_eq!(body[sent], 777);
    assert_eq!(body.get(unsent), None);
    assert_eq!(body.as_object().unwrap().len(), 3);
}

#[tokio::test]
async fn a_query_is_kept_and_a_password_gives_way_to_the_key() {
    ready();
    let server = MockServer::start().await;
    Mock::given(path("/x/chat/completions"))
        .and(query_param("api-version", "2"))
        .respond_with(ok("done"))
        .mount(&server)
        .await;
    let port = server.address().port();
    let url = format!("http://user:pass-word@127.0.0.1:{port}/x?api-version=2#f");
    for (key, sent) in [
        (Some(KEY), format!("Bearer {KEY}")),
        (None, "Basic dXNlcjpwYXNzLXdvcmQ=".into()),
        (Some("  "), "Basic dXNlcjpwYXNzLXdvcmQ=".into()),
    ] {
        let endpoint = Endpoint::parse(&url, key.map(Into::into)).unwrap();
        let model = ChatModel::new(&endpoint, TIMEOUTS, RETRY).unwrap();
        model.complete(&request()).await.unwrap();
        let requests = server.received_requests().await.unwrap();
        let values: Vec<_> = requests
            .last()
            .unwrap()
            .headers
            .get_all("authorization")
            .iter()
            .collect();
        assert_eq!(values, [sent.as_str()]);
        for shown in [format!("{endpoint:?}"), format!("{model:?}")] {
            assert!(
                !shown.contains("pass-word") && !shown.contains("api-version"),
                "{shown}"
            );
        }
    }
    let endpoint =
        Endpoint::parse(&format!("http://127.0.0.1:{port}/x?api-version=2"), None).unwrap();
    ChatModel::new(&endpoint, TIMEOUTS, RETRY)
        .unwrap()
        .complete(&request())
        .await
        .unwrap();
    let requests = server.received_requests().await.unwrap();
    assert!(
        !requests
            .last()
            .unwrap()
            .headers
            .contains_key("authorization")
    );
}

#[rstest]
#[case("")]
#[case("not a url")]
#[case("/v1")]
#[case("ftp://example.org/v1")]
#[case("mailto:a@example.org")]
#[case("http://")]
fn bad_addresses_are_found_at_once(#[case] url: &str) {
    assert_eq!(Endpoint::parse(url, None).unwrap_err(), SetupError::BaseUrl);
}

#[test]
fn a_key_that_no_header_carries_is_found_at_once() {
    ready();
    let endpoint = Endpoint::parse("http://127.0.0.1:1/v1", Some("a\nb".into())).unwrap();
    assert_eq!(
        ChatModel::new(&endpoint, TIMEOUTS, RETRY).unwrap_err(),
        SetupError::ApiKey
    );
    // A line break at the end is what files have.
    let endpoint = Endpoint::parse("http://127.0.0.1:1/v1", Some("abc\n".into())).unwrap();
    ChatModel::new(&endpoint, TIMEOUTS, RETRY).unwrap();
}

// What comes back

#[tokio::test]
async fn usage_is_kept_byte_for_byte() {
    let usage = r#"{ "prompt_tokens":12, "x" : 1.0e2, "prompt_tokens":13,"big":123456789012345678901234567890}"#;
    let body = format!(r#"{{"choices":[{{"message":{{"content":"hi"}}}}],"usage":{usage}}}"#);
    assert_eq!(ask_body(&body).await.unwrap().usage.unwrap().get(), usage);
    let done = ask_body(r#"{"choices":[{"message":{"content":"hi"}}],"usage":null}"#)
        .await
        .unwrap();
    assert!(done.usage.is_none());
}

#[rstest]
#[case(json!("plain"), "plain")]
#[case(json!([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]), "one two")]
#[case(json!(["a", {"text": "b"}, {"type": "image_url", "image_url": {}}, 5, null]), "ab")]
#[case(json!([]), "")]
#[case(json!(null), "")]
#[case(json!(""), "")]
#[case(json!("  \n\t"), "  \n\t")]
#[case(json!("nul \u{0} and \u{1f980}"), "nul \u{0} and \u{1f980}")]
#[tokio::test]
async fn content_in_all_its_shapes(#[case] content: Value, #[case] text: &str) {
    let mut body = answer("");
    body["choices"][0]["message"]["content"] = content;
    let done = ask_body(&body.to_string()).await.unwrap();
    assert_eq!(done.text, text);
    assert!(!done.reasoning_only);
}

#[rstest]
#[case(json!({"content": "", "reasoning_content": "hm"}), true)]
#[case(json!({"content": null, "reasoning": "hm"}), true)]
#[case(json!({"reasoning": "hm"}), true)]
#[case(json!({"content": " \n", "reasoning": "hm"}), true)]
#[case(json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}), true)]
#[case(json!({"content": "text", "reasoning_content": "hm"}), false)]
#[case(json!({"content": "", "reasoning_content": ""}), false)]
#[case(json!({"content": "", "reasoning": null}), false)]
#[tokio::test]
async fn reasoning_without_an_answer(#[case] message: Value, #[case] only: bool) {
    let body = json!({"choices": [{"message": message, "finish_reason": "length"}]});
    let done = ask_body(&body.to_string()).await.unwrap();
    assert_eq!(done.reasoning_only, only);
    assert_eq!(done.finish.as_deref(), Some("length"));
}

#[rstest]
#[case(json!({"content": null, "refusal": "I will not."}), Some("I will not."), false)]
#[case(json!({"content": [{"type": "refusal", "refusal": "No."}]}), Some("No."), false)]
#[case(json!({"content": "x", "refusal": null, "tool_calls": []}), None, false)]
#[case(json!({"content": "x", "tool_calls": null, "function_call": null}), None, false)]
#[case(json!({"content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}]}), None, true)]
#[case(json!({"content": null, "function_call": {"name": "f", "arguments": ""}}), None, true)]
#[tokio::test]
async fn refusals_and_calls_are_reported(
    #[case] message: Value,
    #[case] refusal: Option<&str>,
    #[case] calls: bool,
) {
    let body = json!({"choices": [{"message": message}], "model": 5});
    let done = ask_body(&body.to_string()).await.unwrap();
    assert_eq!(done.refusal.as_deref(), refusal);
    assert_eq!(done.has_tool_calls, calls);
    assert_eq!(done.finish, None);
    assert_eq!(done.model, None);
}

#[rstest]
#[case("", "the body is empty")]
#[case(" \n\n ", "the body is empty")]
#[case("<!doctype html><title>Log in</title>", "the body is a page, not JSON")]
#[case("data: {}", "the body is not a JSON object")]
#[case(
    r#"{"choices":[{"message":{"content":"cut of"#,
    "the body is not a JSON object"
)]
#[case("null", "the body is not a JSON object")]
#[case("[]", "there is no list of choices")]
#[case("{}", "there is no list of choices")]
#[case(r#"{"choices":null}"#, "there is no list of choices")]
#[case(r#"{"choices":{}}"#, "there is no list of choices")]
#[case(r#"{"choices":[]}"#, "the list of choices is empty")]
#[case(r#"{"choices":[null]}"#, "the choice is not an object")]
#[case(
    r#"{"choices":[{"finish_reason":"stop"}]}"#,
    "the choice has no message"
)]
#[case(r#"{"choices":[{"message":null}]}"#, "the choice has no message")]
#[case(r#"{"choices":[{"message":"hi"}]}"#, "the message is not an object")]
#[case(r#"{"choices":[{"message":["hi"]}]}"#, "the message is not an object")]
#[case(
    r#"{"choices":[{"message":{"content":5}}]}"#,
    "the content is neither text nor a list of parts"
)]
#[tokio::test]
async fn answers_that_are_none(#[case] body: &str, #[case] what: &str) {
    assert_eq!(malformed(ask_body(body).await), what);
}

#[tokio::test]
async fn invalid_utf8_is_malformed() {
    let body = b"{\"choices\":[{\"message\":{\"content\":\"\xff\xfe\"}}]}".to_vec();
    let result = ask(ResponseTemplate::new(200).set_body_raw(body, "application/json")).await;
    assert_eq!(malformed(result), "the body is not UTF-8");
}

#[tokio::test]
async fn white_space_sent_to_keep_the_line_open_is_ignored() {
    let body = format!("\u{feff}{}{}", "\n ".repeat(100), answer("hi"));
    assert_eq!(ask_body(&body).await.unwrap().text, "hi");
}

#[tokio::test]
async fn a_malformed_answer_is_not_asked_for_again() {
    let server = scripted(vec![
        ResponseTemplate::new(200).set_body_string("<html>"),
        ok("late"),
    ])
    .await;
    malformed(model(&base(&server)).complete(&request()).await);
    assert_eq!(calls(&server).await, 1);
}

// Refusals

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

// Below HTTP

#[tokio::test]
async fn nobody_listens() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let error = model(&format!("http://127.0.0.1:{port}/v1"))
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(error, ProviderError::Connect);
    assert_eq!(error.status(), None);
}

#[tokio::test]
async fn a_hung_handshake_is_a_connect_timeout() {
    let server = RawServer::start(|_, _| std::thread::sleep(Duration::from_secs(2)));
    let timeouts = Timeouts {
        connect: Duration::from_millis(80),
        ..TIMEOUTS
    };
    let url = format!("https://127.0.0.1:{}/v1", server.port);
    let error = model_with(&url, timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::Connect
        }
    );
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_server_that_hangs_first_is_asked_again() {
    let body = answer("second").to_string();
    let server = RawServer::start(move |connection, number| {
        if number == 1 {
            std::thread::sleep(Duration::from_secs(2));
        }
        send(connection, &head("200 OK", body.len()));
        send(connection, body.as_bytes());
    });
    let timeouts = Timeouts {
        first_byte: Duration::from_millis(700),
        ..TIMEOUTS
    };
    let done = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap();
    assert_eq!((done.text.as_str(), done.attempts), ("second", 2));
}

#[tokio::test]
async fn a_head_without_a_body_is_no_first_byte() {
    let server = RawServer::start(|connection, _| {
        send(connection, &head("200 OK", 50));
        std::thread::sleep(Duration::from_secs(2));
    });
    let timeouts = Timeouts {
        first_byte: Duration::from_millis(120),
        ..TIMEOUTS
    };
    let error = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::FirstByte
        }
    );
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_stalled_answer_is_not_asked_for_again() {
    let server = RawServer::start(|connection, _| {
        send(connection, &head("200 OK", 50));
        send(connection, b"{\"choices\"");
        std::thread::sleep(Duration::from_secs(2));
    });
    let timeouts = Timeouts {
        idle: Duration::from_millis(100),
        ..TIMEOUTS
    };
    let error = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::Idle
        }
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_trickle_does_not_extend_the_call() {
    let server = RawServer::start(|connection, _| {
        send(connection, &head("200 OK", 100_000));
        while send(connection, b" ") {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let timeouts = Timeouts {
        idle: Duration::from_millis(600),
        call: Duration::from_millis(900),
        ..TIMEOUTS
    };
    let started = Instant::now();
    let error = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::Call
        }
    );
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_flood_does_not_extend_the_call() {
    let server = RawServer::start(|connection, _| {
        send(
            connection,
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        let started = Instant::now();
        while send(connection, b"1\r\n \r\n") && started.elapsed() < Duration::from_secs(5) {}
    });
    let timeouts = Timeouts {
        call: Duration::from_millis(300),
        ..TIMEOUTS
    };
    let started = Instant::now();
    let error = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::Call
        }
    );
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn a_cut_answer_is_asked_for_again() {
    let body = answer("whole").to_string();
    let server = RawServer::start(move |connection, number| {
        send(connection, &head("200 OK", body.len()));
        let part = if number < 3 {
            body.get(..20).unwrap()
        } else {
            &body
        };
        send(connection, part.as_bytes());
    });
    let done = model(&server.url()).complete(&request()).await.unwrap();
    assert_eq!((done.text.as_str(), done.attempts), ("whole", 3));
}

#[rstest]
#[case(b"")]
#[case(b"HTTP/1.1 200 OK\r\ncontent-le")]
#[case(b"SSH-2.0-OpenSSH_9.9\r\n")]
#[tokio::test]
async fn what_is_not_http_is_a_connection_error(#[case] bytes: &'static [u8]) {
    let server = RawServer::start(move |connection, _| {
        send(connection, bytes);
    });
    assert_eq!(
        model(&server.url()).complete(&request()).await.unwrap_err(),
        ProviderError::Connect
    );
    assert_eq!(server.connections(), 3);
}

#[rstest]
#[case::cut(false)]
#[case::hung(true)]
#[tokio::test]
async fn the_status_of_a_refusal_survives_its_body(#[case] hang: bool) {
    let server = RawServer::start(move |connection, _| {
        send(
            connection,
            b"HTTP/1.1 429 Too Many\r\nretry-after: 99\r\ncontent-length: 5000\r\n\r\n{\"err",
        );
        if hang {
            std::thread::sleep(Duration::from_secs(2));
        }
    });
    let timeouts = Timeouts {
        idle: Duration::from_millis(100),
        ..TIMEOUTS
    };
    let error = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::RateLimited {
            status: 429,
            retry_after: Some(Duration::from_secs(99))
        }
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn an_announced_flood_is_not_read() {
    let server = RawServer::start(|connection, _| {
        send(connection, &head("200 OK", ChatModel::MAX_ANSWER_BYTES + 1));
        std::thread::sleep(Duration::from_secs(2));
    });
    let started = Instant::now();
    assert_eq!(
        model(&server.url()).complete(&request()).await.unwrap_err(),
        ProviderError::TooLarge
    );
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(server.connections(), 1);
}

#[rstest]
#[case("200 OK", ProviderError::TooLarge)]
#[case("418 Teapot", ProviderError::Refused { status: 418 })]
#[tokio::test]
async fn a_flood_is_cut_off(#[case] status: &'static str, #[case] expected: ProviderError) {
    let server = RawServer::start(move |connection, _| {
        send(
            connection,
            format!("HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes(),
        );
        let mut piece = b"100000\r\n".to_vec();
        piece.extend(vec![b' '; 0x0010_0000]);
        piece.extend(b"\r\n");
        for _ in 0..200 {
            if !send(connection, &piece) {
                return;
            }
        }
    });
    assert_eq!(
        model(&server.url()).complete(&request()).await.unwrap_err(),
        expected
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn limits_without_end_do_not_overflow() {
    let endless = Timeouts {
        connect: Duration::MAX,
        first_byte: Duration::MAX,
        idle: Duration::MAX,
        call: Duration::MAX,
    };
    let server = scripted(vec![ok("there")]).await;
    model_with(&base(&server), endless, RETRY)
        .complete(&request())
        .await
        .unwrap();
    let none = Timeouts {
        call: Duration::ZERO,
        ..TIMEOUTS
    };
    let error = model_with(&base(&server), none, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::Call
        }
    );
}

// What is never shown

#[tokio::test]
async fn nothing_secret_is_ever_printed() {
    use std::sync::{Arc, Mutex};
    use tracing::field::{Field, Visit};
    use tracing::span;

    /// Keeps all that is logged by this thread, of any level and from any library.
    #[derive(Clone, Default)]
    struct Keep(Arc<Mutex<Vec<(tracing::Level, String)>>>);
    struct Line(String);
    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            use std::fmt::Write as _;
            let _ = write!(self.0, " {}={value:?}", field.name());
        }
    }
    impl tracing::Subscriber for Keep {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
            let mut line = Line(attributes.metadata().target().to_owned());
            attributes.record(&mut line);
            self.0
                .lock()
                .unwrap()
                .push((*attributes.metadata().level(), line.0));
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut line = Line(event.metadata().target().to_owned());
            event.record(&mut line);
            self.0
                .lock()
                .unwrap()
                .push((*event.metadata().level(), line.0));
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    let keep = Keep::default();
    // With a single subscriber alive, tracing asks that of the thread which meets a log line first
    // (another test's: none) and remembers "never" for all. Two make it ask both.
    let _second = tracing::Dispatch::new(Keep::default());
    let guard = tracing::subscriber::set_default(keep.clone());
    let body = json!({"error": {"message": format!("you sent: the secret prompt with {KEY}")}});
    let mut shown = Vec::new();
    for status in [503, 429, 400, 200] {
        let server = scripted(vec![
            ResponseTemplate::new(status).set_body_json(body.clone()),
        ])
        .await;
        let url = format!(
            "http://user:pass-word@127.0.0.1:{}/v1?key={KEY}",
            server.address().port()
        );
        let model = model(&url);
        let error = model.complete(&request()).await.unwrap_err();
        shown.push(format!("{error} {error:?} {model:?}"));
        let source = std::error::Error::source(&error);
        assert!(source.is_none());
    }
    let server = scripted(vec![ResponseTemplate::new(500), ok("the secret answer")]).await;
    model(&base(&server)).complete(&request()).await.unwrap();
    let endpoint =
        Endpoint::parse("http://user:pass-word@127.0.0.1:1/v1", Some(KEY.into())).unwrap();
    shown.push(format!("{endpoint:?}"));
    let unreachable = model("http://user:pass-word@127.0.0.1:1/v1");
    shown.push(format!("{:?}", unreachable.complete(&request()).await));
    drop(guard);

    let logged = keep.0.lock().unwrap().clone();
    let ours: Vec<_> = logged
        .iter()
        .filter(|(_, line)| line.contains("provider::chat"))
        .collect();
    // Each attempt once: 3 + 3 + 1 + 1 refused, 2 for the answer, 3 unreachable.
    assert_eq!(ours.len(), 13, "{ours:#?}");
    assert!(
        ours.iter()
            .all(|(level, _)| *level == tracing::Level::DEBUG),
        "whoever asked says once, at a level of its own, what failed"
    );
    shown.extend(
        logged
            .into_iter()
            .filter(|(_, line)| !line.starts_with("wiremock"))
            .map(|(_, line)| line),
    );
    for line in &shown {
        for secret in [KEY, "pass-word", "secret prompt", "secret answer"] {
            assert!(!line.contains(secret), "{line}");
        }
    }
}

#[test]
fn calls_can_be_made_from_any_thread() {
    fn check<T: Send + Sync + Clone + 'static>() {}
    fn check_future<T: Send>(_: T) {}
    check::<ChatModel>();
    check::<ProviderError>();
    let model = model("http://127.0.0.1:1/v1");
    check_future(model.complete(&request()));
}
