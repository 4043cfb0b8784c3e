//! A session filled through `/sessions` reads as items, a conversation reads as a session.

use rstest::rstest;
use serde_json::{Value, json};

use super::{all, append, call, create, output, page, says, user};
use crate::support::{Backend, TestApp};

fn chat() -> Vec<String> {
    [
        json!({"role": "developer", "content": "rules"}),
        json!({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}]}),
        json!({"role": "assistant", "content": "looking", "reasoning_content": "hm", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            {"id": "b", "type": "custom", "custom": {"name": "run", "input": "ls"}}]}),
        json!({"role": "tool", "tool_call_id": "b", "content": "2"}),
        json!({"role": "tool", "tool_call_id": "a", "content": "1"}),
        json!({"role": "assistant", "content": "done"}),
    ]
    .map(|message| message.to_string())
    .to_vec()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_reads_as_items(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let session = app.create_with(&chat()).await;
    let id = session.replace("sess_", "conv_");
    let items = all(&app, &id).await;
    let read: Vec<Value> = items
        .iter()
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    let kinds: Vec<_> = read
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    let expected = [
        "message",
        "message",
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
        "function_call_output",
        "function_call_output",
        "message",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(read[1]["content"][1]["type"], "input_image");
    assert_eq!(
        read[3]["content"],
        json!([{"type": "output_text", "text": "looking", "annotations": []}])
    );
    let ids: Vec<_> = read
        .iter()
        .map(|item| item["id"].as_str().unwrap())
        .collect();
    for (id_of_item, text) in ids.iter().zip(&items) {
        let path = format!("/v1/conversations/{id}/items/{id_of_item}");
        assert_eq!(app.get(&path).await.expect(200).body, text.as_bytes());
    }
    for order in ["asc", "desc"] {
        let mut expected: Vec<_> = ids.iter().map(|id| (*id).to_owned()).collect();
        if order == "desc" {
            expected.reverse();
        }
        for limit in 1..=4 {
            let mut found = Vec::new();
            let mut query = format!("order={order}&limit={limit}");
            loop {
                let list = page(&app, &id, &query).await;
                found.extend(list.ids());
                if !list.has_more {
                    break;
                }
                query = format!("order={order}&limit={limit}&after={}", list.last_id);
            }
            assert_eq!(found, expected, "{order} {limit}");
        }
    }
    // A part of a message does not go alone; the whole message does.
    let path = |item: &str| format!("/v1/conversations/{id}/items/{item}");
    let refused = app.delete(&path(ids[4])).await.expect(400).json();
    assert_eq!(refused["error"]["param"], "item_id");
    app.delete(&path(ids[8])).await.expect(200);
    assert_eq!(app.session(&session).await["messageCount"], 5);
    // Its outputs keep the calls in place.
    app.delete(&path(ids[3])).await.expect(200);
    assert_eq!(all(&app, &id).await.len(), 4);
    assert_eq!(app.context(&session).await.messages.len(), 5);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_goes_in_as_items_and_out_as_items_is_the_same_context(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let session = app.create_with(&chat()).await;
    let items = all(&app, &session).await;
    let copy = create(&app, &json!({})).await;
    // Ids of parts stay with the messages that they name.
    let path = format!("/v1/conversations/{copy}/items");
    let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
    let refused = app.post_raw(&path, body).await.expect(400).json();
    assert_eq!(refused["error"]["param"], "items[0].id");
    let anew = items.iter().map(|item| without_id(item));
    append(&app, &copy, &anew.collect::<Vec<_>>()).await;
    let shown = super::context(&app, &copy).await;
    let mut expected: Vec<Value> = chat()
        .iter()
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    expected[1]["content"][1]["image_url"]["detail"] = json!("auto");
    assert_eq!(shown, expected);
    let copied = all(&app, &copy).await;
    assert!(
        copied
            .iter()
            .map(|item| without_id(item))
            .eq(items.iter().map(|item| without_id(item)))
    );
}

fn without_id(item: &str) -> String {
    let mut item: Value = serde_json::from_str(item).expect("an item");
    let members = item.as_object_mut().expect("an object");
    members.remove("id");
    item.to_string()
}

fn named(id: &str, role: &str) -> String {
    json!({"role": role, "content": id, "precis": {"id": id}}).to_string()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn ids_of_parts_are_nobody_elses(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let rows = ["x", "msg_x", "msg-of-x", "fc_0_x", "msg-of-msg-of-x"];
    let messages: Vec<_> = rows.iter().map(|id| named(id, "user")).collect();
    let id = app.create_with(&messages).await;
    let mut ids = Vec::new();
    let mut query = "order=asc&limit=1".to_owned();
    for _ in 0..rows.len() {
        let list = page(&app, &id, &query).await;
        ids.push(list.last_id.clone());
        query = format!("order=asc&limit=1&after={}", list.last_id);
    }
    assert!(page(&app, &id, &query).await.data.is_empty());
    for (id_of_item, row) in ids.iter().zip(rows) {
        let path = format!("/v1/conversations/{id}/items/{id_of_item}");
        let item = app.get(&path).await.expect(200).json();
        assert_eq!(item["content"][0]["text"], row, "{id_of_item}");
        assert_eq!(item["id"], id_of_item.as_str());
    }
    let path = format!("/v1/conversations/{id}/items/{}", ids[0]);
    app.delete(&path).await.expect(200);
    let left = page(&app, &id, "order=asc").await.ids();
    assert_eq!(left, ids[1..]);
    // What is erased is no item any more, but a place to go on from.
    app.get(&path).await.expect(404);
    app.delete(&path).await.expect(404);
    for after in ["x", &ids[0]] {
        let list = page(&app, &id, &format!("order=asc&after={after}")).await;
        assert_eq!(list.ids(), left, "{after}");
    }
    let path = format!("/v1/conversations/{id}/items");
    for taken in ["msg-of-x", "fc-3-of-anything", "rs-of-y"] {
        let body = json!({"items": [{"id": taken, "role": "user", "content": "a"}]});
        let error = app.post(&path, &body).await.expect(400).json()["error"].clone();
        assert_eq!(error["param"], "items[0].id", "{error}");
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("leave `id` out")
        );
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_compacted_of_chat_messages_can_be_kept(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let session = app.create_with(&chat()).await;
    let body = json!({"conversation": session, "input": [{"role": "user", "content": "more"}]});
    let compact = || app.post("/v1/responses/compact", &body);
    let output = compact().await.expect(200).json()["output"].clone();
    let again = compact().await.expect(200).json()["output"].clone();
    assert_eq!(output[0], again[0], "the same item, the same id");
    create(&app, &json!({ "items": output })).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_reads_as_a_session(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let items = [user("q"), call("a"), output("a", "1"), says("done")];
    let ids = append(&app, &id, &items).await.ids();
    let history = app.history(&id).await;
    let texts: Vec<_> = history.iter().map(|item| item.message.get()).collect();
    assert_eq!(texts, items, "each as it came");
    assert_eq!(
        history
            .iter()
            .map(|item| item.id.clone())
            .collect::<Vec<_>>(),
        ids
    );
    // Chat messages go on from there.
    app.append(
        &id,
        &[json!({"role": "user", "content": "more"}).to_string()],
    )
    .await;
    let shown = super::context(&app, &id).await;
    let roles: Vec<_> = shown
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "user"]);
    let found = app
        .get(&format!("/sessions/{id}/search?q=done"))
        .await
        .expect(200);
    assert_eq!(found.json()["data"][0]["messageId"], ids[3].as_str());
    let fork = app.fork(&id, &json!({})).await.expect(201).json();
    let copy = fork["id"].as_str().unwrap();
    assert_eq!(all(&app, copy).await, all(&app, &id).await);
    assert_eq!(super::context(&app, copy).await, shown);
}
