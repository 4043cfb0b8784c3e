//! What counts as JSON, and that what counts is stored as it was written.

use rstest::rstest;
use serde_json::json;

use crate::support::messages;
use crate::support::{Backend, TestApp};

/// Everything a rewriting store would change.
const KEPT: [&str; 10] = [
    r#"{ "content" : "spaces",   "role":"user" }"#,
    "{\n\t\"role\": \"user\",\r\n\t\"content\": \"lines\"\n}",
    r#"{"role":"user","content":"escapes \u00e9 \/ \u0041 \ud83d\ude00 \u0000 \b"}"#,
    "{\"role\":\"user\",\"content\":\"\u{e9} \u{1f600} A\u{30a} \u{c5} \u{202e}rtl\"}",
    r#"{"z":1,"role":"user","a":2,"content":"order"}"#,
    r#"{"role":"user","content":"numbers","n":[1.0,1.50,1E3,-0,12345678901234567890,0.1e-7,1e400]}"#,
    r#"{"role":"user","content":"twice","x":1,"x":2}"#,
    r#"{"role":"assistant","content":null,"refusal":null,"annotations":[],"reasoning_content":"r"}"#,
    r#"{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"c2ln"},{"text":"said","type":"text"}]}"#,
    r#"{"role":"user","name":"node_7","content":[{"type":"unheard_of","deep":{"a":[[[{"b":null}]]]}}]}"#,
];

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_spelling_is_kept(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    // White space between the messages is nobody's.
    app.append_raw(&id, &format!("[ {} ]", KEPT.join(" ,\n ")))
        .await
        .expect(201);
    let items = app.history(&id).await;
    let stored: Vec<&str> = items.iter().map(|item| item.message.get()).collect();
    assert_eq!(stored, KEPT, "the list gives the bytes that came");
    let shown = messages::raws(&app.context(&id).await.messages);
    assert_eq!(shown, KEPT, "and so does the context");
}

#[rstest]
#[case::role(r#"{"role":"user","role":"user","content":"x"}"#)]
#[case::role_escaped(r#"{"role":"user","r\u006fle":"system","content":"x"}"#)]
#[case::content(r#"{"role":"user","content":"x","content":"y"}"#)]
#[case::tool_calls(r#"{"role":"assistant","tool_calls":[],"content":"x","tool_calls":[]}"#)]
#[case::tool_call_id(r#"{"role":"tool","tool_call_id":"a","tool_call_id":"b","content":"x"}"#)]
#[case::precis(r#"{"role":"user","content":"x","precis":{},"precis":{}}"#)]
#[case::id_of_a_call(r#"{"role":"assistant","tool_calls":[{"id":"a","id":"b","type":"function","function":{"name":"f","arguments":""}}]}"#)]
#[case::function_of_a_call(r#"{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":""},"function":{"name":"g","arguments":""}}]}"#)]
#[case::lone_surrogate_in_arguments(r#"{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"\udc00"}}]}"#)]
#[case::lone_surrogate_in_an_unknown_field(r#"{"role":"user","content":"x","x_vendor":"\ud800"}"#)]
#[case::lone_surrogate_in_a_name(r#"{"role":"user","content":"x","\ud800":1}"#)]
#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_json_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] message: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    app.append_raw(&id, &format!("[{}, {message}]", messages::user("fine")))
        .await
        .problem(400, "INVALID_JSON");
    assert!(app.history(&id).await.is_empty(), "all or none");
}

/// A message whose unknown field is nested this deep.
fn nested(levels: usize) -> String {
    let (open, close) = ("[".repeat(levels), "]".repeat(levels));
    format!(r#"{{"role":"user","content":"x","x_deep":{open}{close}}}"#)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn nesting_has_a_limit(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let deep = nested(120);
    app.append(&id, std::slice::from_ref(&deep)).await;
    for levels in [129, 1_000, 200_000] {
        app.append_raw(&id, &format!("[{}]", nested(levels)))
            .await
            .problem(400, "INVALID_JSON");
    }
    let unclosed = format!(
        r#"[{{"role":"user","content":"x","x_deep":{}"#,
        "[".repeat(200_000)
    );
    app.append_raw(&id, &unclosed)
        .await
        .problem(400, "INVALID_JSON");
    let items = app.history(&id).await;
    assert_eq!(items.len(), 1, "only what is within the limit was stored");
    assert_eq!(items[0].message.get(), deep, "deep values keep their bytes");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn invalid_utf8_in_a_message_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    for bytes in [
        &b"\xff"[..],
        b"\xc3\x28",
        b"\xed\xa0\x80",
        b"\xf5\x80\x80\x80",
    ] {
        let mut body = br#"{"messages":[{"role":"user","content":"x","x_vendor":""#.to_vec();
        body.extend_from_slice(bytes);
        body.extend_from_slice(br#""}]}"#);
        app.post_raw(&format!("/sessions/{id}/messages"), body)
            .await
            .problem(400, "INVALID_JSON");
    }
    assert!(app.history(&id).await.is_empty(), "nothing was stored");
}
