//! What a prompt looks like on the wire, and what is found wrong before it goes out.

use rstest::rstest;
use serde_json::{Value, json};
use wiremock::matchers::{body_json, header, method, path, query_param};
use wiremock::{Mock, MockServer};

use super::support::{KEY, RETRY, TIMEOUTS, base, model, ok, ready, request, scripted};
use crate::provider::{ChatModel, ChatRequest, Endpoint, OutputCap, OutputCapName, SetupError};

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
