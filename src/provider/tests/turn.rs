//! A turn's call over HTTP: what goes out byte for byte, and what comes back.

use std::sync::{Arc, Mutex};

use rstest::rstest;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use wiremock::ResponseTemplate;

use super::support::{base, calls, model, scripted};
use crate::provider::{
    OutputCap, OutputCapName, ProviderError, TurnAnswer, TurnRequest, into_channel,
};

pub fn request(stream: bool) -> TurnRequest {
    TurnRequest {
        model: "test-model".into(),
        messages: r#"{"role":"user","content":"the secret prompt"}"#.into(),
        tools: None,
        parameters: Vec::new(),
        max_output: None,
        stream,
    }
}

pub fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

/// Keeps the deltas.
#[derive(Clone, Default)]
pub struct Deltas(Arc<Mutex<Vec<String>>>);

impl Deltas {
    pub fn keep(&self) -> impl FnMut(&RawValue) + Send + use<> {
        let kept = Arc::clone(&self.0);
        move |delta| kept.lock().unwrap().push(delta.get().to_owned())
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

pub fn chunk(text: &str) -> String {
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": text}}]});
    format!("data: {chunk}\n\n")
}

pub const FINISH: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
pub const DONE: &str = "data: [DONE]\n\n";

fn streamed(text: &str) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_raw(text.as_bytes().to_vec(), "text/event-stream")
}

fn whole(body: &str) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_raw(body.as_bytes().to_vec(), "application/json")
}

async fn ask(
    template: ResponseTemplate,
    stream: bool,
) -> (Result<TurnAnswer, ProviderError>, Vec<String>, usize) {
    let server = scripted(vec![template]).await;
    let deltas = Deltas::default();
    let answer = model(&base(&server))
        .turn(request(stream), deltas.keep())
        .await;
    (answer, deltas.all(), calls(&server).await)
}

// What is sent

async fn sent(request: TurnRequest) -> (String, String) {
    let server = scripted(vec![whole(r#"{"choices":[{"message":{"content":"ok"}}]}"#)]).await;
    model(&base(&server)).turn(request, |_| {}).await.unwrap();
    let requests = server.received_requests().await.unwrap();
    let accept = requests[0].headers["accept"].to_str().unwrap().to_owned();
    (String::from_utf8(requests[0].body.clone()).unwrap(), accept)
}

#[tokio::test]
async fn everything_goes_out_as_it_came() {
    let messages = "{ \"role\":\"user\" , \"content\":\"\\u00e9\u{e9}\\/\",\"n\":1.0e2,\"n\":12345678901234567890123},{\"role\":\"assistant\",\"content\":null}";
    let (body, accept) = sent(TurnRequest {
        model: "a \"model\"".into(),
        messages: messages.into(),
        tools: Some(raw("[ {\"type\":\"function\"} ]")),
        parameters: vec![
            ("temperature".into(), raw("0.70")),
            ("x \"y\"".into(), raw("{\"b\":1, \"a\":[ ]}")),
        ],
        max_output: Some(OutputCap {
            name: OutputCapName::MaxCompletionTokens,
            tokens: 500,
        }),
        stream: true,
    })
    .await;
    assert_eq!(
        body,
        format!(
            "{{\"model\":\"a \\\"model\\\"\",\"messages\":[{messages}],\"tools\":[ {{\"type\":\"function\"}} ],\
             \"temperature\":0.70,\"x \\\"y\\\"\":{{\"b\":1, \"a\":[ ]}},\"max_completion_tokens\":500,\
             \"stream\":true,\"stream_options\":{{\"include_usage\":true}}}}"
        )
    );
    assert_eq!(accept, "text/event-stream, application/json");
}

#[tokio::test]
async fn nothing_goes_out_that_was_not_asked_for() {
    let (body, accept) = sent(TurnRequest {
        messages: String::new(),
        ..request(false)
    })
    .await;
    assert_eq!(body, r#"{"model":"test-model","messages":[]}"#);
    assert_eq!(accept, "application/json");
}

#[rstest]
#[case("max_tokens")]
#[case("max_completion_tokens")]
#[tokio::test]
async fn no_member_goes_out_twice(#[case] cap: &str) {
    let own = ["model", "messages", "tools", "stream", "stream_options"];
    let mut parameters: Vec<_> = own.map(|name| (name.to_owned(), raw("7"))).into();
    parameters.push((cap.to_owned(), raw("9")));
    let (body, _) = sent(TurnRequest {
        parameters,
        max_output: Some(OutputCap {
            name: OutputCapName::MaxTokens,
            tokens: 500,
        }),
        ..request(false)
    })
    .await;
    let messages = request(false).messages;
    assert_eq!(
        body,
        format!("{{\"model\":\"test-model\",\"messages\":[{messages}],\"{cap}\":9}}")
    );
}

// What comes back in one piece

#[rstest]
#[case::as_it_came(
    "{ \"role\" : \"assistant\",\"content\":\"\\u00e9\\/\" , \"x\":1.0e2,\"x\":2, \"tool_calls\":[ ] }",
    "{ \"role\" : \"assistant\",\"content\":\"\\u00e9\\/\" , \"x\":1.0e2,\"x\":2, \"tool_calls\":[ ] }"
)]
#[case::escaped_role(
    r#"{"r\u006fle":"assistant","content":"a"}"#,
    r#"{"r\u006fle":"assistant","content":"a"}"#
)]
#[case::without_role(r#"{ "content":"a" }"#, r#"{"role":"assistant", "content":"a" }"#)]
#[case::role_null(
    r#"{"content":"a","role":null}"#,
    r#"{"role":"assistant","content":"a"}"#
)]
#[case::only_role_null(r#"{"role":null}"#, r#"{"role":"assistant"}"#)]
#[case::role_inside(
    r#"{"content":[{"role":"x"}]}"#,
    r#"{"role":"assistant","content":[{"role":"x"}]}"#
)]
#[case::empty("{ }", "{\"role\":\"assistant\" }")]
#[tokio::test]
async fn a_message_in_one_piece(#[case] given: &str, #[case] expected: &str) {
    let usage = "{ \"n\":123456789012345678901234567890 }";
    let body = format!(
        "\u{feff}\n {{\"model\":\"m-1\",\"choices\":[{{\"finish_reason\":\"length\",\"message\":{given}}},{{}}],\"usage\":{usage}}}"
    );
    for stream in [false, true] {
        let (answer, deltas, _) = ask(whole(&body), stream).await;
        let answer = answer.unwrap();
        assert_eq!(answer.message, expected);
        assert_eq!(answer.usage.unwrap().get(), usage);
        assert_eq!(answer.finish.as_deref(), Some("length"));
        assert_eq!(answer.model.as_deref(), Some("m-1"));
        assert!(!answer.incomplete);
        // A server that ignores the wish for a stream streams once.
        assert_eq!(deltas, if stream { vec![expected] } else { vec![] });
    }
}

#[rstest]
#[case("", "the body is empty")]
#[case(" \n \n", "the body is empty")]
#[case("<html>", "the body is a page, not JSON")]
#[case("{\"choices\":[]}", "the list of choices is empty")]
#[case("{\"choices\":[{\"message\":\"a\"}]}", "the message is not an object")]
#[case(
    "{\"choices\":[{\"message\":{\"content\":\"cut",
    "the body is not a JSON object"
)]
#[case("nothing of the kind", "the stream holds no choice")]
#[tokio::test]
async fn answers_that_are_none(#[case] body: &str, #[case] what: &'static str) {
    for stream in [false, true] {
        let (answer, deltas, tries) = ask(whole(body), stream).await;
        assert_eq!(answer.unwrap_err(), ProviderError::Malformed { what });
        assert!(deltas.is_empty());
        assert_eq!(tries, 1);
    }
}

// What comes back as a stream

#[rstest]
#[case::asked_for(true)]
#[case::not_asked_for(false)]
#[tokio::test]
async fn a_stream_is_believed_whatever_its_header(#[case] stream: bool) {
    let text = format!(
        "\u{feff}\r\n: hi\n\n{}{}{FINISH}{DONE}",
        chunk("Hel"),
        chunk("lo")
    );
    for template in [streamed(&text), whole(&text)] {
        let (answer, deltas, _) = ask(template, stream).await;
        assert_eq!(
            answer.unwrap().message,
            r#"{"role":"assistant","content":"Hello"}"#
        );
        let expected = [r#"{"content":"Hel"}"#, r#"{"content":"lo"}"#];
        assert_eq!(deltas, if stream { expected.to_vec() } else { vec![] });
    }
}

// Refusals

const OVERFLOW: &str = r#"{"error":{"message":"prompt is too long: 9 tokens > 8 maximum"}}"#;

#[rstest]
#[case::status(ResponseTemplate::new(400).set_body_raw(OVERFLOW, "application/json"), 400)]
#[case::server_error(ResponseTemplate::new(500).set_body_raw(OVERFLOW, "application/json"), 500)]
#[case::success(whole(OVERFLOW), 200)]
#[case::listed(whole(&format!("[{OVERFLOW}]")), 200)]
#[case::stream(streamed(&format!("data: {OVERFLOW}\n\n")), 200)]
#[case::event(streamed(&format!("event: error\ndata: {OVERFLOW}\n\n")), 200)]
#[case::behind_a_role(streamed(&format!("{}data: {OVERFLOW}\n\n", chunk(""))), 200)]
#[case::behind_text(streamed(&format!("{}data: {OVERFLOW}\n\n", chunk("Hel"))), 200)]
#[tokio::test]
async fn an_overflow_is_found_everywhere(#[case] template: ResponseTemplate, #[case] status: u16) {
    for stream in [false, true] {
        let (answer, _, tries) = ask(template.clone(), stream).await;
        let expected = ProviderError::Overflow {
            status,
            prompt_tokens: Some(9),
            window: Some(8),
        };
        assert_eq!(answer.unwrap_err(), expected);
        assert_eq!(tries, 1);
    }
}

#[tokio::test]
async fn an_empty_answer_may_end_by_an_overflow() {
    let body = |content: &str| {
        json!({"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "model_context_window_exceeded"}]})
            .to_string()
    };
    let (answer, _, _) = ask(whole(&body("")), false).await;
    assert!(matches!(answer, Err(ProviderError::Overflow { .. })));
    let (answer, _, _) = ask(whole(&body("text")), false).await;
    assert!(answer.unwrap().message.contains("text"));
}

const LIMITED: &str = r#"{"error":{"message":"Rate limit reached","code":"rate_limit_exceeded"}}"#;

#[rstest]
#[case::status(ResponseTemplate::new(429), 429, 3)]
#[case::success(whole(LIMITED), 200, 3)]
#[case::stream(streamed(&format!("data: {LIMITED}\n\n")), 200, 3)]
#[case::event(streamed(&format!("event: error\ndata: {LIMITED}\n\n")), 200, 3)]
#[case::behind_a_role(streamed(&format!("{}data: {LIMITED}\n\n", chunk(""))), 200, 3)]
#[case::behind_text(streamed(&format!("{}data: {LIMITED}\n\n", chunk("Hel"))), 200, 1)]
#[tokio::test]
async fn a_rate_limit_is_one_everywhere(
    #[case] template: ResponseTemplate,
    #[case] status: u16,
    #[case] tries: usize,
) {
    let (answer, deltas, tried) = ask(template, true).await;
    let expected = ProviderError::RateLimited {
        status,
        retry_after: None,
    };
    assert_eq!(answer.unwrap_err(), expected);
    // Nothing is repeated once something was handed on.
    assert_eq!((tried, deltas.len()), (tries, usize::from(tries == 1)));
}

#[tokio::test]
async fn what_nobody_has_seen_may_be_repeated() {
    // Not asked for as a stream, so nothing was handed on.
    let limited = streamed(&format!("{}data: {LIMITED}\n\n", chunk("Hel")));
    let server = scripted(vec![
        limited,
        ResponseTemplate::new(503),
        streamed(&format!("{}{FINISH}", chunk("Hello"))),
    ])
    .await;
    let answer = model(&base(&server)).turn(request(false), |_| {}).await;
    assert_eq!(
        answer.unwrap().message,
        r#"{"role":"assistant","content":"Hello"}"#
    );
    let requests = server.received_requests().await.unwrap();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|other| other.body == requests[0].body));
}

// Handing on

#[tokio::test]
async fn a_channel_gets_a_beginning_without_gaps() {
    let (sender, mut receiver) = mpsc::channel::<Box<RawValue>>(2);
    let mut hand_on = into_channel(sender);
    for number in 0..3 {
        hand_on(&raw(&number.to_string()));
    }
    // The third found it full, so there is none after it, though there is room again.
    assert_eq!(receiver.recv().await.unwrap().get(), "0");
    hand_on(&raw("3"));
    assert_eq!(receiver.recv().await.unwrap().get(), "1");
    assert!(receiver.recv().await.is_none());
}

#[rstest]
#[case::gone(0)]
#[case::slow(1)]
#[case::quick(10)]
#[tokio::test]
async fn a_turn_goes_on_without_its_reader(#[case] room: usize) {
    let text: String = ["a", "b", "c", "d"].map(chunk).concat() + FINISH + DONE;
    let server = scripted(vec![streamed(&text)]).await;
    let (sender, mut receiver) = mpsc::channel::<Box<RawValue>>(room.max(1));
    if room == 0 {
        receiver.close();
    }
    let answer = model(&base(&server))
        .turn(request(true), into_channel(sender))
        .await
        .unwrap();
    assert_eq!(answer.message, r#"{"role":"assistant","content":"abcd"}"#);
    let mut got = Vec::new();
    while let Some(delta) = receiver.recv().await {
        let delta: Value = serde_json::from_str(delta.get()).unwrap();
        got.push(delta["content"].as_str().unwrap().to_owned());
    }
    assert_eq!(got, ["a", "b", "c", "d"][..room.min(4)]);
}

#[test]
fn a_turn_can_be_asked_for_from_any_thread() {
    fn check<T: Send>(_: T) {}
    let model = model("http://127.0.0.1:1/v1");
    let (sender, _receiver) = mpsc::channel::<Box<RawValue>>(1);
    check(model.turn(request(true), into_channel(sender)));
}

#[tokio::test]
async fn nothing_of_the_content_is_printed() {
    let mut request = request(true);
    request.parameters = vec![("user".into(), raw("\"the secret prompt\""))];
    request.tools = Some(raw("[\"the secret prompt\"]"));
    let shown = format!("{request:?}");
    assert!(
        !shown.contains("secret") && shown.contains("user"),
        "{shown}"
    );
    let (answer, _, _) = ask(streamed(&(chunk("the secret answer") + FINISH)), true).await;
    let shown = format!("{:?}", answer.unwrap());
    assert!(
        !shown.contains("secret") && shown.contains("stop"),
        "{shown}"
    );
}
