//! S28: a retried request stores the message twice.

use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::messages::user;
use crate::support::{Backend, Http, Reply, TestApp};

async fn append(http: &Http, id: &str, key: &str, text: &str) -> Reply {
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", key),
    ];
    let body = format!("{{\"messages\":[{}]}}", user(text));
    let path = format!("/sessions/{id}/messages");
    http.send(Method::POST, &path, &headers, Some(body.into()))
        .await
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s28_a_retried_append_is_stored_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;

    let first = append(&app, &id, "k1", "once").await.expect(201);
    let again = append(&app, &id, "k1", "once").await.expect(201);
    assert_eq!(app.history(&id).await.len(), 1, "one row for k1");
    assert_eq!(
        again.appended(),
        first.appended(),
        "the same ids and numbers"
    );
    assert_eq!(again.body, first.body, "byte for byte");
    assert_eq!(again.header("idempotency-replayed"), Some("true"));

    let other = append(&app, &id, "k1", "something else").await;
    other.problem(409, "IDEMPOTENCY_CONFLICT");
    assert_eq!(app.history(&id).await.len(), 1);

    let mut parallel = JoinSet::new();
    for _ in 0..2 {
        let (http, id) = (app.http().clone(), id.clone());
        parallel.spawn(async move { append(&http, &id, "k2", "together").await });
    }
    let both = parallel.join_all().await;
    assert_eq!(both[0].status, 201, "{}", both[0]);
    assert_eq!(both[0].body, both[1].body, "one of them repeats the other");
    assert_eq!(app.history(&id).await.len(), 2, "one row for k2");

    append(&app, &id, "k3", "once").await.expect(201);
    assert_eq!(
        app.history(&id).await.len(),
        3,
        "equal text under a new key is another message"
    );
    let elsewhere = app.create(&json!({})).await;
    append(&app, &elsewhere, "k1", "something else")
        .await
        .expect(201);
    assert_eq!(
        app.history(&elsewhere).await.len(),
        1,
        "the same key on another path is another key"
    );
}
