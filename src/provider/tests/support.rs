//! What the tests of calls share: a client with short waits, requests, servers that answer in turn.

use std::sync::Once;
use std::time::Duration;

use serde_json::{Value, json};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use crate::provider::{
    ChatModel, ChatRequest, Completion, Endpoint, PromptMessage, ProviderError, RetryPolicy,
    Timeouts,
};

pub const KEY: &str = "sk-very-secret-0123456789";

pub const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    first_byte: Duration::from_secs(5),
    idle: Duration::from_secs(5),
    call: Duration::from_secs(10),
};

pub const RETRY: RetryPolicy = RetryPolicy {
    attempts: 3,
    backoff_initial: Duration::from_millis(4),
    backoff_max: Duration::from_millis(20),
    retry_after_max: Duration::from_secs(3),
    wait_total: Duration::from_secs(4),
};

pub fn ready() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

pub fn model_with(url: &str, timeouts: Timeouts, retry: RetryPolicy) -> ChatModel {
    ready();
    let endpoint = Endpoint::parse(url, Some(KEY.into())).unwrap();
    ChatModel::new(&endpoint, timeouts, retry).unwrap()
}

pub fn model(url: &str) -> ChatModel {
    model_with(url, TIMEOUTS, RETRY)
}

pub fn request() -> ChatRequest {
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

pub fn answer(content: &str) -> Value {
    json!({"id": "c", "object": "chat.completion", "model": "test-model-0613", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    ], "usage": {"prompt_tokens": 12, "completion_tokens": 3}})
}

/// A server that gives these answers in turn, and the last one for ever.
pub async fn scripted(answers: Vec<ResponseTemplate>) -> MockServer {
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

pub async fn calls(server: &MockServer) -> usize {
    server.received_requests().await.unwrap().len()
}

pub fn base(server: &MockServer) -> String {
    format!("{}/v1", server.uri())
}

pub fn ok(content: &str) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(answer(content))
}

pub async fn ask(template: ResponseTemplate) -> Result<Completion, ProviderError> {
    let server = scripted(vec![template]).await;
    model(&base(&server)).complete(&request()).await
}

pub async fn ask_body(body: &str) -> Result<Completion, ProviderError> {
    ask(ResponseTemplate::new(200).set_body_raw(body.as_bytes().to_vec(), "application/json")).await
}

pub fn malformed(result: Result<Completion, ProviderError>) -> &'static str {
    match result {
        Err(ProviderError::Malformed { what }) => what,
        other => panic!("expected a malformed answer, got {other:?}"),
    }
}
