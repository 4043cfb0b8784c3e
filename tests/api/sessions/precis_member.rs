//! The one member of a message that is the service's: `precis`.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::user;
use crate::support::{Backend, TestApp};

#[rstest]
#[case::first(r#"{"precis":{"usage":null},"role":"user","content":"x"}"#, &[r#"{"role":"user","content":"x"}"#])]
#[case::middle(r#"{"role":"user","precis":{},"content":"x"}"#, &[r#"{"role":"user","content":"x"}"#])]
#[case::last(r#"{"role":"user","content":"x","precis":{}}"#, &[r#"{"role":"user","content":"x"}"#])]
#[case::escaped_name(r#"{"role":"user","pr\u0065cis":{},"content":"x"}"#, &[r#"{"role":"user","content":"x"}"#])]
#[case::braces_in_its_strings(r#"{"role":"user","precis":{"id":"a_1"},"content":"}\"{,"}"#, &[r#"{"role":"user","content":"}\"{,"}"#])]
// Its bytes and one comma go; the white space around them is the message's. Either comma will do.
#[case::with_spaces(
    r#"{ "role": "user", "precis" : { } , "content": "x" }"#,
    &[r#"{ "role": "user",   "content": "x" }"#, r#"{ "role": "user"  , "content": "x" }"#]
)]
#[case::one_deeper_is_no_member(r#"{"role":"user","content":[{"type":"text","text":"x","precis":{"id":"y"}}]}"#,
    &[r#"{"role":"user","content":[{"type":"text","text":"x","precis":{"id":"y"}}]}"#])]
#[case::a_text_is_no_member(r#"{"role":"user","content":"\"precis\":{},"}"#, &[r#"{"role":"user","content":"\"precis\":{},"}"#])]
#[tokio::test(flavor = "multi_thread")]
async fn it_is_cut_out_and_nothing_else(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] sent: &str,
    #[case] stored: &[&str],
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&[sent.to_owned()]).await;
    let history = app.history(&id).await;
    assert!(
        stored.contains(&history[0].message.get()),
        "expected one of {stored:#?}, got {}",
        history[0].message
    );
    let context = app.context(&id).await;
    assert_eq!(
        context.messages[0].get(),
        history[0].message.get(),
        "the model is shown what is stored"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn it_carries_id_usage_and_incompleteness(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let usage = json!({"prompt_tokens": 12, "completion_tokens": 3});
    let id = app.create_with(&[user("q")]).await;
    let answer = json!({
        "role": "assistant", "content": "half an ans",
        "precis": {"id": "my-answer_1", "usage": usage, "incomplete": true},
    });
    let appended = app.append(&id, &[answer.to_string()]).await;
    assert_eq!(appended[0]["id"], "my-answer_1", "the id is the client's");
    let one = app
        .get(&format!("/sessions/{id}/messages/my-answer_1"))
        .await
        .expect(200)
        .json();
    assert_eq!(one["usage"], usage);
    assert_eq!(one["incomplete"], true);
    assert_eq!(
        one["message"],
        json!({"role": "assistant", "content": "half an ans"}),
        "the member never reaches a model"
    );
    let plain = app.history(&id).await;
    let first = app
        .get(&format!("/sessions/{id}/messages/{}", plain[0].id))
        .await
        .expect(200)
        .json();
    assert_eq!(first["usage"], Value::Null, "no usage was given");
}

#[rstest]
#[case::unknown_member(json!({"id": "a", "surprise": 1}))]
#[case::id_as_a_path(json!({"id": "../a"}))]
#[case::id_too_long(json!({"id": "a".repeat(129)}))]
#[case::id_empty(json!({"id": ""}))]
#[case::id_a_number(json!({"id": 5}))]
#[case::not_an_object(json!("a"))]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_one_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] precis: Value,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let message = json!({"role": "user", "content": "x", "precis": precis});
    let reply = app.append_raw(&id, &format!("[{message}]")).await;
    let problem = reply.problem(422, "VALIDATION_FAILED");
    let text = problem["errors"].to_string();
    assert!(
        text.contains("/messages/0/precis"),
        "expected the member to be named: {text}"
    );
    assert!(app.history(&id).await.is_empty(), "nothing was stored");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_same_id_with_the_same_bytes_is_the_same_message(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let named = |name: &str, text: &str| {
        json!({"role": "user", "content": text, "precis": {"id": name}}).to_string()
    };
    let first = app.append(&id, &[named("m1", "hello")]).await;
    let again = app
        .append_raw(&id, &format!("[{}]", named("m1", "hello")))
        .await;
    assert!(
        [200, 201].contains(&again.status),
        "a repeated append succeeds: {again}"
    );
    assert_eq!(
        again.appended()[0]["seq"],
        first[0]["seq"],
        "with the seq of the first"
    );
    assert_eq!(app.history(&id).await.len(), 1, "it is stored once");

    app.append_raw(&id, &format!("[{}]", named("m1", "other bytes")))
        .await
        .problem(409, "IDEMPOTENCY_CONFLICT");
    assert_eq!(app.history(&id).await.len(), 1, "a conflict stores nothing");

    // A retry that was extended meanwhile.
    let both = app
        .append(&id, &[named("m1", "hello"), named("m2", "hello")])
        .await;
    assert_eq!(both[0]["seq"], 1, "the known one keeps its place");
    assert_eq!(both[1]["seq"], 2, "the new one is appended");
    let session = app.session(&id).await;
    assert_eq!(session["lastSeq"], 2, "numbers have no gap");
    assert_eq!(session["historyLength"], 10, "each is counted once");

    let elsewhere = app.create(&json!({})).await;
    app.append(&elsewhere, &[named("m1", "other bytes")]).await;

    // Parallel first uses are one message.
    let racing = (0..8).map(|_| {
        app.append_raw(
            &id,
            "[{\"role\":\"user\",\"content\":\"r\",\"precis\":{\"id\":\"m3\"}}]",
        )
    });
    for reply in futures_util::future::join_all(racing).await {
        assert!(
            [200, 201].contains(&reply.status),
            "each of the parallel appends succeeds: {reply}"
        );
        assert_eq!(
            reply.appended()[0]["seq"],
            3,
            "and names one message: {reply}"
        );
    }
    assert_eq!(
        app.history(&id).await.len(),
        3,
        "parallel first uses store one row"
    );
}
