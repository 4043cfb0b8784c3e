//! Requests that clients make again by themselves: without a key, but they say how often they tried.

use reqwest::Method;
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::{all, create, says, user};
use crate::support::{Backend, Reply, TestApp};

async fn try_again(app: &TestApp, path: &str, body: &str, tried: &str) -> Reply {
    let headers = [
        ("content-type", "application/json"),
        ("x-stainless-retry-count", tried),
    ];
    app.send(Method::POST, path, &headers, Some(body.into()))
        .await
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_tried_again_is_stored_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let path = format!("/v1/conversations/{id}/items");
    let question = format!(r#"{{"items":[{}]}}"#, user("Go on."));
    let pair = format!(r#"{{"items":[{},{}]}}"#, user("Go on."), says("I do."));

    let first = try_again(&app, &path, &pair, "0").await.expect(200);
    for tried in ["1", "2"] {
        let again = try_again(&app, &path, &pair, tried).await.expect(200);
        assert!(again.body == first.body, "{again}");
    }
    assert_eq!(all(&app, &id).await.len(), 2);
    // Said twice by intention.
    try_again(&app, &path, &pair, "0").await.expect(200);
    assert_eq!(all(&app, &id).await.len(), 4);
    // The first try never came here: these are not the newest.
    try_again(&app, &path, &question, "1").await.expect(200);
    assert_eq!(all(&app, &id).await.len(), 5);
    try_again(&app, &path, &question, "2").await.expect(200);
    assert_eq!(all(&app, &id).await.len(), 5);
    // As many, but not stored together; and more than there are.
    try_again(&app, &path, &question, "0").await.expect(200);
    let both = format!(r#"{{"items":[{},{}]}}"#, user("Go on."), user("Go on."));
    try_again(&app, &path, &both, "1").await.expect(200);
    assert_eq!(all(&app, &id).await.len(), 8);
    let many: Vec<_> = (0..9).map(|_| user("Go on.")).collect();
    let many = format!(r#"{{"items":[{}]}}"#, many.join(","));
    try_again(&app, &path, &many, "1").await.expect(200);
    assert_eq!(all(&app, &id).await.len(), 17);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_long_ago_is_stored_again(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let path = format!("/v1/conversations/{id}/items");
    let body = format!(r#"{{"items":[{}]}}"#, user("Go on."));
    try_again(&app, &path, &body, "0").await.expect(200);
    app.database
        .execute(
            "UPDATE messages SET created_at = created_at - 61 * 1000000",
            "UPDATE messages SET created_at = created_at - interval '61 seconds'",
        )
        .await;
    try_again(&app, &path, &body, "1").await.expect(200);
    assert_eq!(all(&app, &id).await.len(), 2);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_worth_more_than_a_count(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let path = format!("/v1/conversations/{id}/items");
    let body = format!(r#"{{"items":[{}]}}"#, user("Go on."));
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "the-key"),
        ("x-stainless-retry-count", "0"),
    ];
    let ask = || app.send(Method::POST, &path, &headers, Some(body.clone().into()));
    let first = ask().await.expect(200);
    app.post_raw(&path, body.as_str()).await.expect(200);
    let again = ask().await.expect(200);
    assert!(again.body == first.body, "{again}");
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(all(&app, &id).await.len(), 2);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_under_a_key_is_repeated_from_the_same_items(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let items = json!([{"role": "user", "content": "What grows in shade?"}, {"role": "assistant", "content": "Ferns."}]);
    let id = create(&app, &json!({ "items": items })).await;
    let body = json!({"conversation": id, "input": items}).to_string();
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "the-key"),
    ];
    let ask = || {
        let body = Some(body.clone().into());
        app.send(Method::POST, "/v1/responses/compact", &headers, body)
    };
    let first = ask().await.expect(200);
    let path = format!("/v1/conversations/{id}/items");
    app.post(&path, &json!({ "items": items }))
        .await
        .expect(200);
    let again = ask().await.expect(200);
    assert!(again.body == first.body, "{again}\n\n{first}");
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    // What is deleted is shown by nothing that was kept.
    let oldest = all(&app, &id).await.remove(0);
    let oldest: Value = serde_json::from_str(&oldest).expect("an item");
    let oldest = oldest["id"].as_str().expect("an id");
    app.delete(&format!("{path}/{oldest}")).await.expect(200);
    let anew = ask().await.expect(200);
    assert_eq!(anew.header("idempotency-replayed"), None);
    assert!(!String::from_utf8_lossy(&anew.body).contains(oldest));
}

/// Sends a try until it is refused for the rate; how often it was not.
async fn until_refused(app: &TestApp, path: &str, body: &str, tried: &str) -> usize {
    for taken in 0..10_000 {
        let reply = try_again(app, path, body, tried).await;
        if reply.status == 429 {
            return taken;
        }
        reply.expect(200);
    }
    panic!("no request was refused");
}

async fn set_rate(app: &TestApp, rate: Value) {
    let limits = json!({"requestsPerSecond": rate, "requestBurst": 1});
    loop {
        let reply = app.patch("/admin/tenants/default", &limits).await;
        if reply.status == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_is_stored_when_it_comes_again(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let path = format!("/v1/conversations/{id}/items");
    let body = format!(r#"{{"items":[{}]}}"#, user("Go on."));
    try_again(&app, &path, &body, "0").await.expect(200);
    set_rate(&app, json!(1)).await;
    let mut stored = 1 + until_refused(&app, &path, &body, "0").await;
    // Refused twice, so nothing of it is stored yet.
    while try_again(&app, &path, &body, "1").await.status != 429 {
        stored += 1;
        stored += until_refused(&app, &path, &body, "0").await;
    }
    set_rate(&app, Value::Null).await;
    try_again(&app, &path, &body, "2").await.expect(200);
    assert_eq!(all(&app, &id).await.len(), stored + 1);
    // The answer was lost.
    try_again(&app, &path, &body, "3").await.expect(200);
    assert_eq!(all(&app, &id).await.len(), stored + 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_what_may_be_stored_already_says_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let path = format!("/v1/conversations/{id}/items");
    let body = format!(r#"{{"items":[{}]}}"#, user("Go on."));
    try_again(&app, &path, &body, "0").await.expect(200);
    set_rate(&app, json!(1)).await;
    until_refused(&app, &path, &body, "1").await;
    set_rate(&app, Value::Null).await;
    try_again(&app, &path, &body, "2").await.expect(200);
    assert_eq!(all(&app, &id).await.len(), 1);
}
