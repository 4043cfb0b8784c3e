//! What is read from an answer in one piece.

use rstest::rstest;
use serde_json::{Value, json};
use wiremock::ResponseTemplate;

use super::support::{answer, ask, ask_body, base, calls, malformed, model, ok, request, scripted};

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
