//! Creating, reading, changing and deleting a conversation; it is a session by another name.

use rstest::rstest;
use serde_json::json;

use super::{all, create, user};
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_a_session_by_another_name(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let body =
        json!({"items": [{"role": "user", "content": "hi"}], "metadata": {"topic": "garden"}});
    let made = app
        .post("/v1/conversations", &body)
        .await
        .expect(200)
        .json();
    let id = made["id"].as_str().unwrap();
    assert!(id.starts_with("conv_"), "{made}");
    assert_eq!(made["object"], "conversation");
    assert!(made["created_at"].as_i64().unwrap() > 1_700_000_000);
    assert_eq!(made["metadata"], json!({"topic": "garden"}));
    let session = id.replace("conv_", "sess_");
    for name in [id, &session] {
        let read = app
            .get(&format!("/v1/conversations/{name}"))
            .await
            .expect(200);
        assert_eq!(read.json(), made, "{name}");
        assert_eq!(app.session(name).await["id"], session.as_str());
        assert_eq!(app.session(name).await["messageCount"], 1);
    }
    let path = format!("/v1/conversations/{id}");
    let changed = app.post(&path, &json!({"metadata": {"a": "1"}})).await;
    assert_eq!(changed.expect(200).json()["metadata"], json!({"a": "1"}));
    let emptied = app.post(&path, &json!({"metadata": null})).await;
    assert_eq!(emptied.expect(200).json()["metadata"], json!({}));
    let gone = app.delete(&path).await.expect(200).json();
    let expected = json!({"id": id, "object": "conversation.deleted", "deleted": true});
    assert_eq!(gone, expected);
    app.get(&path).await.expect(404);
    app.get(&format!("/sessions/{session}")).await.expect(404);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn everything_at_creation_may_be_left_out(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for body in [
        "",
        "{}",
        r#"{"items":null,"metadata":null}"#,
        r#"{"items":[],"new":1}"#,
    ] {
        let made = app
            .post_raw("/v1/conversations", body)
            .await
            .expect(200)
            .json();
        assert_eq!(made["metadata"], json!({}), "{body}");
        let id = made["id"].as_str().unwrap();
        let list = super::page(&app, id, "").await;
        assert_eq!((list.object.as_str(), list.has_more), ("list", false));
        assert_eq!((list.first_id.as_str(), list.last_id.as_str()), ("", ""));
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn more_than_twenty_items_are_one_append(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let items: Vec<_> = (0..45).map(|n| user(&n.to_string())).collect();
    assert_eq!(super::append(&app, &id, &items).await.data.len(), 45);
    // All or none: the last one does not fit.
    let mut items = items;
    items.push(super::output("nobody", "x"));
    let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
    let refused = app
        .post_raw(&format!("/v1/conversations/{id}/items"), body)
        .await;
    let error = refused.expect(400).json()["error"].clone();
    assert_eq!(error["param"], "items[45].call_id");
    assert_eq!(error["code"], "tool_call_not_found");
    assert_eq!(all(&app, &id).await.len(), 45);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_item_with_an_id_of_its_own_is_stored_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let item =
        r#"{"id":"rs_a+b/c=","type":"reasoning","summary":[],"encrypted_content":"gA"}"#.to_owned();
    for _ in 0..2 {
        let list = super::append(&app, &id, std::slice::from_ref(&item)).await;
        assert_eq!(list.texts(), std::slice::from_ref(&item));
    }
    assert_eq!(all(&app, &id).await, std::slice::from_ref(&item));
    let path = format!("/v1/conversations/{id}/items");
    let read = app
        .get(&format!("{path}/rs_a%2Bb%2Fc%3D"))
        .await
        .expect(200);
    assert_eq!(read.body, item.as_bytes());
    let other = json!({"items": [{"id": "rs_a+b/c=", "type": "reasoning", "summary": []}]});
    let refused = app.post(&path, &other).await.expect(409);
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(refused.json()["error"]["type"], "conflict_error");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_was_listed_is_known_when_it_is_sent_back(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let items = [
        r#"{ "role":"user", "content":"h\u00e4", "x":1.0}"#.to_owned(),
        super::call("a"),
        super::output("a", "1"),
        r#"{"type":"reasoning","summary":[],"x":[1,{}]}"#.to_owned(),
    ];
    let list = super::append(&app, &id, &items).await;
    let respelled: Vec<_> = list
        .texts()
        .iter()
        .map(|text| {
            let item: serde_json::Value = serde_json::from_str(text).unwrap();
            // As JavaScript spells a number.
            item.to_string().replace("1.0", "1")
        })
        .collect();
    for again in [list.texts(), respelled] {
        let known = super::append(&app, &id, &again).await;
        assert_eq!(known.ids(), list.ids());
        assert_eq!(all(&app, &id).await, list.texts());
    }
    let path = format!("/v1/conversations/{id}/items");
    let other = list.texts()[3].replace("[1,{}]", "[1,{},null]");
    let body = format!(r#"{{"items":[{other}]}}"#);
    app.post_raw(&path, body).await.expect(409);
    // What was erased is not what it was.
    app.delete(&format!("{path}/{}", list.ids()[1]))
        .await
        .expect(200);
    let body = format!(r#"{{"items":[{}]}}"#, list.texts()[1]);
    app.post_raw(&path, body).await.expect(409);
}
