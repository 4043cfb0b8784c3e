//! `POST …/messages`: numbers, conditions, all or none.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{a, calls, r, system, u, user};
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_append_answers_with_the_numbers_of_its_messages(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let first = app.append(&id, &[system("s"), u(10)]).await;
    let second = app
        .append(&id, &[calls(&["c1"], 5), system("more"), r("c1", 7), a(3)])
        .await;
    let all: Vec<&Value> = first.iter().chain(&second).collect();
    let seqs: Vec<_> = all.iter().map(|item| item["seq"].as_u64()).collect();
    assert_eq!(
        seqs,
        (1..=6).map(Some).collect::<Vec<_>>(),
        "seq over all messages"
    );
    let positions: Vec<_> = all.iter().map(|item| item["position"].as_u64()).collect();
    assert_eq!(
        positions,
        [None, Some(0), Some(1), None, Some(2), Some(3)],
        "position over all but the instructions"
    );
    for item in &all {
        let message_id = item["id"].as_str().expect("an id");
        assert!(
            message_id.starts_with("msg_"),
            "ids carry their prefix: {message_id}"
        );
        let one = app
            .get(&format!("/sessions/{id}/messages/{message_id}"))
            .await
            .expect(200)
            .json();
        for member in ["id", "seq", "position", "length"] {
            assert_eq!(one[member], item[member], "`{member}` of {message_id}");
        }
        assert_eq!(one["state"], "verbatim");
        assert!(
            one["createdAt"].is_string(),
            "a message has a time: {one:#}"
        );
    }
    let session = app.session(&id).await;
    assert_eq!(session["lastSeq"], 6);
    assert_eq!(session["messageCount"], 6);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_expected_last_seq_is_a_condition(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let path = format!("/sessions/{id}/messages");
    let body = |text: &str, seq: u64| json!({"messages": [{"role": "user", "content": text}], "expectedLastSeq": seq});
    app.post(&path, &body("one", 0)).await.expect(201);
    app.post(&path, &body("two", 1)).await.expect(201);
    for wrong in [0, 1, 3] {
        app.post(&path, &body("never", wrong))
            .await
            .problem(409, "SEQUENCE_CONFLICT");
    }
    assert_eq!(
        app.history(&id).await.len(),
        2,
        "a refused append stores nothing"
    );

    // Of many that expect the same, one is right.
    let racing = (0..8).map(|n| {
        let (app, path) = (&app, &path);
        async move { app.post(path, &body(&format!("racer {n}"), 2)).await.status }
    });
    let mut statuses = futures_util::future::join_all(racing).await;
    statuses.sort_unstable();
    assert_eq!(
        statuses,
        [201, 409, 409, 409, 409, 409, 409, 409],
        "exactly one of the racing appends is first"
    );
    assert_eq!(app.history(&id).await.len(), 3);
}

#[rstest]
#[case::no_messages(json!({"messages": []}), "/messages")]
#[case::messages_null(json!({"messages": null}), "/messages")]
#[case::unknown(json!({"messages": [{"role": "user", "content": "x"}], "surprise": 1}), "/surprise")]
#[case::expected_seq(json!({"messages": [{"role": "user", "content": "x"}], "expectedLastSeq": "1"}), "/expectedLastSeq")]
#[case::second_role(json!({"messages": [{"role": "user", "content": "x"}, {"role": "wizard", "content": "x"}]}), "/messages/1/role")]
#[case::not_an_object(json!({"messages": [{"role": "user", "content": "x"}, "hello"]}), "/messages/1")]
#[case::content(json!({"messages": [{"role": "user", "content": 5}]}), "/messages/0/content")]
#[case::content_object(json!({"messages": [{"role": "user", "content": {"text": "x"}}]}), "/messages/0/content")]
#[case::calls(json!({"messages": [{"role": "assistant", "tool_calls": "x"}]}), "/messages/0/tool_calls")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_append_is_refused_by_pointer(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] body: Value,
    #[case] pointer: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    app.post(&format!("/sessions/{id}/messages"), &body)
        .await
        .invalid(pointer);
    assert!(app.history(&id).await.is_empty(), "all or none");
}

#[rstest]
#[case::no_role(json!({"content": "x"}))]
#[case::tool_without_id(json!({"role": "tool", "content": "x"}))]
#[case::call_without_id(json!({"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": ""}}]}))]
#[case::one_id_twice(json!({"role": "assistant", "tool_calls": [
    {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}},
    {"id": "c", "type": "function", "function": {"name": "g", "arguments": ""}}]}))]
#[tokio::test(flavor = "multi_thread")]
async fn a_misshapen_message_is_refused_with_its_place(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] message: Value,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let body = json!({"messages": [{"role": "user", "content": "fine"}, message]});
    let reply = app.post(&format!("/sessions/{id}/messages"), &body).await;
    let problem = reply.problem(422, "VALIDATION_FAILED");
    let pointers: Vec<&str> = problem["errors"]
        .as_array()
        .expect("a list of errors")
        .iter()
        .filter_map(|error| error["pointer"].as_str())
        .collect();
    assert!(
        pointers
            .iter()
            .any(|pointer| pointer.starts_with("/messages/1")),
        "expected the second message to be named, got {pointers:?}"
    );
    assert!(app.history(&id).await.is_empty(), "all or none");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_messages_are_taken_and_one_more_is_not(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let mut many: Vec<String> = (0..1_001).map(|n| user(&format!("message {n}"))).collect();
    app.append_raw(&id, &format!("[{}]", many.join(",")))
        .await
        .invalid("/messages");
    many.pop();
    app.append(&id, &many).await;
    let stored: Vec<String> = app
        .history(&id)
        .await
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    assert_eq!(stored, many, "in the order of the request");
}
