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
