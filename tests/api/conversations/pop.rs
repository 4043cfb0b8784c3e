//! Deleting items: the newest is taken back, as clients pop; any other is erased.

use rstest::rstest;
use serde_json::{Value, json};

use super::{append, call, context, create, output, page, says, user};
use crate::support::{Backend, TestApp};

async fn pop(app: &TestApp, id: &str) -> Value {
    let list = page(app, id, "order=desc&limit=1").await;
    let item = list.ids().remove(0);
    let path = format!("/v1/conversations/{id}/items/{item}");
    app.delete(&path).await.expect(200);
    serde_json::from_str(list.data[0].get()).expect("an item")
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_popped_item_is_gone_and_can_come_again(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let items = [
        user("q"),
        says("let me see"),
        call("a"),
        call("b"),
        output("a", "1"),
    ];
    append(&app, &id, &items).await;
    assert_eq!(pop(&app, &id).await["type"], "function_call_output");
    assert_eq!(app.session(&id).await["messageCount"], 4);
    assert_eq!(app.context(&id).await.open_calls, ["a", "b"]);
    assert_eq!(pop(&app, &id).await["call_id"], "b");
    assert_eq!(app.context(&id).await.open_calls, ["a"]);
    // The answer goes on where it was cut.
    append(&app, &id, &[call("c"), output("c", "3"), output("a", "1")]).await;
    let shown = context(&app, &id).await;
    assert_eq!(shown.len(), 4);
    let calls: Vec<_> = shown[1]["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["id"].clone())
        .collect();
    assert_eq!(calls, ["a", "c"]);
    assert_eq!(shown[1]["content"], "let me see");
    for _ in 0..6 {
        pop(&app, &id).await;
    }
    assert!(page(&app, &id, "").await.data.is_empty());
    assert!(context(&app, &id).await.is_empty());
    append(&app, &id, &items).await;
    assert_eq!(context(&app, &id).await.len(), 3);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_was_erased_behind_the_newest_goes_with_it(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let ids = append(&app, &id, &[user("a"), user("b"), user("c")])
        .await
        .ids();
    app.erase(&id, &ids[2]).await.expect(204);
    assert_eq!(
        page(&app, &id, "").await.ids(),
        [ids[1].clone(), ids[0].clone()]
    );
    pop(&app, &id).await;
    assert_eq!(app.session(&id).await["messageCount"], 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_erased_call_keeps_its_output_paired(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let thought =
        json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "a secret"}]})
            .to_string();
    let web = json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "a secret"}}).to_string();
    let items = [
        user("q"),
        thought,
        web,
        call("a"),
        output("a", "1"),
        says("done"),
    ];
    let ids = append(&app, &id, &items).await.ids();
    for at in [1, 2, 3] {
        let path = format!("/v1/conversations/{id}/items/{}", ids[at]);
        app.delete(&path).await.expect(200);
    }
    let shown = context(&app, &id).await;
    assert_eq!(shown.len(), 4);
    assert_eq!(
        shown[1]["tool_calls"][0]["function"],
        json!({"name": "look", "arguments": "{}"})
    );
    assert_eq!(
        shown[2],
        json!({"role": "tool", "tool_call_id": "a", "content": "1"})
    );
    let history = app.history(&id).await;
    assert!(
        history
            .iter()
            .all(|item| !item.message.get().contains("secret"))
    );
    assert_eq!(history[2].state, "erased");
    let left = super::all(&app, &id).await;
    assert_eq!(left.len(), 3);
    // An item is not replaced by a chat message.
    let refused = app
        .replace(&id, &ids[0], r#"{"role":"user","content":"x"}"#)
        .await;
    refused.problem(422, "VALIDATION_FAILED");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_call_is_filled(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    append(
        &app,
        &id,
        &[
            user("q"),
            call("a"),
            call("b"),
            output("b", "2"),
            user("never mind"),
        ],
    )
    .await;
    let shown = context(&app, &id).await;
    assert_eq!(shown.len(), 5);
    assert_eq!(
        shown[3],
        json!({"role": "tool", "tool_call_id": "a", "content": "[no result was recorded for this call]"})
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_was_erased_before_the_newest_goes_with_it(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let ids = append(&app, &id, &[user("q"), call("a"), user("never mind")])
        .await
        .ids();
    let path = format!("/v1/conversations/{id}/items/{}", ids[1]);
    app.delete(&path).await.expect(200);
    pop(&app, &id).await;
    let shown = app.context(&id).await;
    assert!(shown.open_calls.is_empty(), "{:?}", shown.open_calls);
    assert_eq!(shown.messages.len(), 1);
    assert_eq!(app.session(&id).await["messageCount"], 1);
    pop(&app, &id).await;
    assert_eq!(app.session(&id).await["messageCount"], 0);
}

fn thinks(text: &str) -> String {
    json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}).to_string()
}

/// Roles of the context's messages, in the form of chat completions and in Anthropic's.
async fn roles(app: &TestApp, id: &str) -> (Vec<String>, Vec<String>) {
    let role = |message: &Value| message["role"].as_str().expect("a role").to_owned();
    let chat = context(app, id).await;
    let path = format!("/sessions/{id}/context?format=anthropic");
    let other = app.get(&path).await.expect(200).json();
    let other = other["messages"].as_array().expect("messages").iter();
    (chat.iter().map(role).collect(), other.map(role).collect())
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_a_text_or_a_call_is_no_message(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    append(&app, &id, &[user("q"), thinks("hm"), says("a")]).await;
    assert_eq!(
        context(&app, &id).await[1],
        json!({"role": "assistant", "reasoning_content": "hm", "content": "a"})
    );
    pop(&app, &id).await;
    append(&app, &id, &[says("")]).await;
    let chat = |roles: &[&str]| -> Vec<String> { roles.iter().map(|r| (*r).to_owned()).collect() };
    assert_eq!(roles(&app, &id).await, (chat(&["user"]), chat(&["user"])));
    append(&app, &id, &[thinks("so"), call("c"), output("c", "1")]).await;
    let shown = context(&app, &id).await;
    assert_eq!(shown.len(), 3);
    assert_eq!(shown[1]["reasoning_content"], "hm\n\nso");
    // Left out for good where another message follows; places in the context are counted without it.
    append(&app, &id, &[thinks("never said"), user("r"), says("b")]).await;
    let expected = ["user", "assistant", "tool", "user", "assistant"];
    assert_eq!(roles(&app, &id).await.0, chat(&expected));
    let sent = app
        .post(&format!("/sessions/{id}/context"), &json!({}))
        .await
        .expect(200)
        .json();
    assert_eq!(sent["messages"].as_array().unwrap().len(), 5);
    let newest = sent["cacheBreakpoints"].as_array().unwrap().last().cloned();
    assert_eq!(newest, Some(json!(4)), "{}", sent["cacheBreakpoints"]);
    // A chat message that came so is shown so.
    let body = r#"{"role":"assistant","reasoning_content":"hm","content":""}"#;
    app.append(
        &id,
        &[super::user("s"), body.to_owned()].map(|text| text.replace(r#""type":"message","#, "")),
    )
    .await;
    let shown = app.context(&id).await;
    assert_eq!(shown.messages.last().unwrap().get(), body);
}
