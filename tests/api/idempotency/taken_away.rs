//! An answer goes with what it shows: an edit, an erasure, a rewind, a reset, a deletion.

use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use super::{is_repeated, kept_answers, keyed, messages, sessions};
use crate::support::messages::{assistant, user};
use crate::support::{Backend, TestApp};

const SECRET: &str = "the old content, which must be gone";

/// What takes the second message away, or what it said.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Taking {
    Erase,
    Replace,
    Rewind,
    Reset,
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_away_is_not_repeated(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(Taking::Erase, Taking::Replace, Taking::Rewind, Taking::Reset)] taking: Taking,
) {
    let app = TestApp::spawn(backend).await;
    let create = r#"{"title":"kept"}"#;
    let created = keyed(&app, "/sessions", "create", create).await.expect(201);
    let id = created.json()["id"].as_str().expect("an id").to_owned();
    let other = keyed(&app, "/sessions", "other", create).await.expect(201);
    let path = |end: &str| format!("/sessions/{id}/{end}");
    app.append(&id, &[user("first")]).await;
    let append = messages(&[assistant(SECRET)]);
    let appended = keyed(&app, &path("messages"), "append", &append).await;
    let message = appended.appended()[0]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    keyed(&app, &path("context"), "dispatch", "{}")
        .await
        .expect(200);
    let reopen = keyed(&app, &path("reopen"), "reopen", "").await.expect(200);
    is_repeated(&keyed(&app, &path("reopen"), "reopen", "").await, &reopen);
    assert_eq!(kept_answers(&app).await, 5);

    match taking {
        Taking::Erase => app.erase(&id, &message).await.expect(204),
        Taking::Replace => app
            .replace(&id, &message, &assistant("something else"))
            .await
            .expect(200),
        Taking::Rewind => app.rewind(&id, 1).await.expect(200),
        Taking::Reset => app.post_empty(&path("reset")).await.expect(200),
    };
    assert_eq!(kept_answers(&app).await, 2, "those of the two creations");
    // The history is another now, so the request is a new one, but no old content comes back with it.
    let context = keyed(&app, &path("context"), "dispatch", "{}")
        .await
        .expect(200);
    assert_eq!(context.header("idempotency-replayed"), None);
    assert!(!context.to_string().contains(SECRET), "{context}");
    // No answer that shows no history is lost.
    is_repeated(&keyed(&app, "/sessions", "create", create).await, &created);
    is_repeated(&keyed(&app, "/sessions", "other", create).await, &other);
    assert_eq!(sessions(&app).await.len(), 2);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_and_a_reset_are_repeated_themselves(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("rewind", "reset")] what: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&[user("a"), assistant("b")]).await;
    let path = format!("/sessions/{id}/{what}");
    let body = if what == "rewind" {
        r#"{"toSeq":1}"#
    } else {
        ""
    };
    let first = keyed(&app, &path, "k", body).await.expect(200);
    // What was said since stays when the retry of the first comes late.
    app.append(&id, &[user("new")]).await;
    let before = app.history(&id).await.len();
    is_repeated(&keyed(&app, &path, "k", body).await, &first);
    assert_eq!(app.history(&id).await.len(), before);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_session_takes_its_answers_along(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let first = keyed(&app, "/sessions", "k", "{}").await.expect(201);
    let id = first.json()["id"].as_str().expect("an id").to_owned();
    let append = format!("/sessions/{id}/messages");
    let body = messages(&[user("a")]);
    keyed(&app, &append, "k", &body).await.expect(201);
    let fork = format!("/sessions/{id}/fork");
    let copy = keyed(&app, &fork, "k", "{}").await.expect(201);
    app.send(Method::DELETE, &format!("/sessions/{id}"), &[], None)
        .await
        .expect(204);
    keyed(&app, &append, "k", &body)
        .await
        .problem(404, "SESSION_NOT_FOUND");
    let second = keyed(&app, "/sessions", "k", "{}").await.expect(201);
    assert_ne!(
        second.json()["id"],
        first.json()["id"],
        "not one that is gone"
    );
    // The copy is a session of its own, and is there.
    is_repeated(&keyed(&app, &fork, "k", "{}").await, &copy);
    let copy = copy.json()["id"].as_str().expect("an id").to_owned();
    app.delete(&format!("/sessions/{copy}")).await.expect(204);
    keyed(&app, &fork, "k", "{}")
        .await
        .problem(404, "SESSION_NOT_FOUND");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_append_is_told_with_its_states_of_then(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app
        .create_with(&crate::support::messages::turns(6, 400))
        .await;
    app.compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    // One that was there already and is summarised by now, and new ones around it.
    let known = r#"{"role":"user","content":"known","precis":{"id":"mine","usage":{"n": 1.50}}}"#;
    let path = format!("/sessions/{id}/messages");
    let first = app
        .post_raw(&path, messages(&[known.to_owned()]))
        .await
        .expect(201);
    app.append(&id, &crate::support::messages::turns(6, 400))
        .await;
    app.compact(&id, &json!({"compactCount": 99, "keepRecentTurns": 0}))
        .await
        .expect(200);
    let body = messages(&[user("new \u{1f33f}"), known.to_owned(), user("newer")]);
    let second = keyed(&app, &path, "k", &body).await.expect(201);
    let states: Vec<_> = second
        .appended()
        .iter()
        .map(|m| m["state"].clone())
        .collect();
    assert_eq!(states, ["verbatim", "summarised", "verbatim"]);
    assert_ne!(first.body, second.body);
    app.append(&id, &[assistant("a"), user("b")]).await;
    app.compact(&id, &json!({"compactCount": 99, "keepRecentTurns": 0}))
        .await
        .expect(200);
    is_repeated(&keyed(&app, &path, "k", &body).await, &second);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_large_append_is_told_whole(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let path = format!("/sessions/{id}/messages");
    // More than one page of a list holds.
    let many: Vec<_> = (0..1_000)
        .map(|n| user(&format!("{n:05}{}", "x".repeat(20_000))))
        .collect();
    let body = messages(&many);
    let first = keyed(&app, &path, "k", &body).await.expect(201);
    is_repeated(&keyed(&app, &path, "k", &body).await, &first);
}
