//! What a key is, where it holds, and for how long.

use std::time::{Duration, Instant};

use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use super::{is_repeated, kept_answers, keyed, sessions};
use crate::support::{Backend, TestApp};

/// Runs one statement that both databases take.
async fn run(app: &TestApp, statement: &str) {
    app.database.execute(statement, statement).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_visible_ascii(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let (longest, too_long) = ("k".repeat(255), "k".repeat(256));
    for path in ["/sessions".to_owned(), format!("/sessions/{id}/close")] {
        for bad in ["", "two words", "tab\there", "caf\u{e9}", &too_long] {
            let reply = keyed(&app, &path, bad, "").await;
            let problem = reply.problem(400, "INVALID_PARAMETER");
            assert_eq!(problem["errors"][0]["pointer"], "Idempotency-Key");
        }
        let two = [("idempotency-key", "a"), ("idempotency-key", "b")];
        let reply = app.send(Method::POST, &path, &two, None).await;
        reply.problem(400, "INVALID_PARAMETER");
        for good in ["!", "~", "\"quoted\"", &longest] {
            let reply = keyed(&app, &path, good, "").await;
            assert!(reply.status < 300, "{reply}");
        }
    }
    assert_eq!(sessions(&app).await.len(), 5, "nothing else was made");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_one_tenant_s(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let first = keyed(&app, "/sessions", "k", "{}").await.expect(201);
    is_repeated(&keyed(&app, "/sessions", "k", "{}").await, &first);
    run(&app, "INSERT INTO tenants (id, name) VALUES (2, 'other')").await;
    run(
        &app,
        "UPDATE idempotency SET session_id = NULL, tenant_id = 2",
    )
    .await;
    let second = keyed(&app, "/sessions", "k", r#"{"title":"mine"}"#)
        .await
        .expect(201);
    assert_ne!(second.json()["id"], first.json()["id"]);
    assert_eq!(sessions(&app).await.len(), 2);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_expires(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let first = keyed(&app, "/sessions", "k", "{}").await.expect(201);
    let past = "UPDATE idempotency SET expires_at = created_at";
    run(&app, past).await;
    // Another body too: nothing is known of the key any more.
    let second = keyed(&app, "/sessions", "k", r#"{"title":"later"}"#)
        .await
        .expect(201);
    assert_eq!(second.header("idempotency-replayed"), None);
    assert_ne!(second.json()["id"], first.json()["id"]);
    is_repeated(
        &keyed(&app, "/sessions", "k", r#"{"title":"later"}"#).await,
        &second,
    );
}

#[rstest]
#[case::as_set("2", 2)]
#[case::unless_set("24", 24)]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_kept_for_as_long_as_set(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] setting: &str,
    #[case] hours: i64,
) {
    let set = [("PRECIS_IDEMPOTENCY__HOURS", setting)];
    let settings = if hours == 24 { &[][..] } else { &set[..] };
    let app = TestApp::with(backend, settings).await;
    let first = keyed(&app, "/sessions", "k", "{}").await.expect(201);
    // Just within, and then just over it.
    let age = |minutes: i64| {
        let sqlite =
            format!("UPDATE idempotency SET expires_at = expires_at - {minutes} * 60000000");
        let postgres = format!(
            "UPDATE idempotency SET expires_at = expires_at - make_interval(mins => {minutes})"
        );
        (sqlite, postgres)
    };
    let (sqlite, postgres) = age(hours * 60 - 5);
    app.database.execute(&sqlite, &postgres).await;
    is_repeated(&keyed(&app, "/sessions", "k", "{}").await, &first);
    let (sqlite, postgres) = age(6);
    app.database.execute(&sqlite, &postgres).await;
    let anew = keyed(&app, "/sessions", "k", "{}").await.expect(201);
    assert_ne!(anew.json()["id"], first.json()["id"]);
}

/// A replica that starts does it at once, and then from time to time.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn expired_answers_are_deleted(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for key in 0..600 {
        keyed(&app, "/sessions", &format!("old-{key}"), "{}")
            .await
            .expect(201);
    }
    run(&app, "UPDATE idempotency SET expires_at = created_at").await;
    let kept = keyed(&app, "/sessions", "kept", "{}").await.expect(201);
    assert_eq!(kept_answers(&app).await, 601);
    let second = app.spawn_second().await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while kept_answers(&app).await > 1 {
        assert!(Instant::now() < deadline, "expired answers are deleted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    is_repeated(&keyed(&second, "/sessions", "kept", "{}").await, &kept);
}
