//! Deleting large sessions: gone at once, and in pieces.

use futures_util::future::join;
use rstest::rstest;
use serde_json::json;

use super::{precis_beside, said};
use crate::support::messages::{turns, user};
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_many_messages_is_deleted_with_all_that_belongs_to_it(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let kept = app.create_with(&turns(2, 100)).await;
    let id = app.create(&json!({"metadata": {"customer": "7"}})).await;
    for _ in 0..3 {
        app.append(&id, &turns(300, 40)).await;
    }
    app.compact(&id, &json!({})).await.expect(200);
    app.post(&format!("/sessions/{id}/context"), &json!({}))
        .await
        .expect(200);
    app.get(&format!("/sessions/{id}/search?q=xxx"))
        .await
        .expect(200);
    // Others write meanwhile.
    let path = format!("/sessions/{id}");
    let deleting = app.delete(&path);
    let writing = async {
        for _ in 0..10 {
            app.append(&kept, &[user("meanwhile")]).await;
        }
    };
    let (deleted, ()) = join(deleting, writing).await;
    deleted.expect(204);
    app.get(&format!("/sessions/{id}"))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    app.delete(&format!("/sessions/{id}"))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    assert_eq!(app.history(&kept).await.len(), 14);
    let left = rows_of(&app, &id).await;
    assert_eq!(left, "", "nothing refers to it");
    assert_ne!(
        rows_of(&app, &kept).await,
        "",
        "the question finds something"
    );
}

/// Tables in which there are rows of a session, by way of an agent that is named after them.
async fn rows_of(app: &TestApp, id: &str) -> String {
    let hex = id.strip_prefix("sess_").expect("an id");
    let mut left = Vec::new();
    for table in [
        "messages",
        "compactions",
        "elisions",
        "dispatches",
        "dispatch_marks",
        "rewrites",
        "turns",
        "events",
        "leases",
        "session_metadata",
        "search_rows",
    ] {
        let insert = |condition: &str| {
            format!(
                "INSERT INTO agents SELECT id, 'rows', '{{}}', at, at FROM (SELECT 1 AS id, max(created_at) AS at \
                 FROM sessions) AS one WHERE EXISTS (SELECT 1 FROM {table} WHERE {condition})"
            )
        };
        app.database
            .execute(
                &insert(&format!("hex(session_id) = upper('{hex}')")),
                &insert(&format!("session_id = '{hex}'::uuid")),
            )
            .await;
        if app.get("/agents/rows").await.status == 200 {
            left.push(table);
            app.delete("/agents/rows").await.expect(204);
        }
    }
    left.join(" ")
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_being_deleted_is_nowhere_and_its_rest_goes_later(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(5, 60)).await;
    let message = app.history(&id).await[0].id.clone();
    app.compact(&id, &json!({})).await.expect(200);
    // As if a process had died behind the first step.
    app.database
        .execute(
            "UPDATE sessions SET deleted_at = 1",
            "UPDATE sessions SET deleted_at = to_timestamp(1)",
        )
        .await;
    for path in [
        String::new(),
        "/context".to_owned(),
        "/messages".to_owned(),
        format!("/messages/{message}"),
        "/compactions".to_owned(),
        "/compactions/1".to_owned(),
        "/search?q=x".to_owned(),
        "/dispatches".to_owned(),
        "/stats".to_owned(),
        "/turns".to_owned(),
        "/events".to_owned(),
    ] {
        let reply = app.get(&format!("/sessions/{id}{path}")).await;
        reply.problem(404, "SESSION_NOT_FOUND");
    }
    let list = app.get("/sessions").await.expect(200).json();
    assert_eq!(list["data"], json!([]));
    for path in [
        "/compact", "/close", "/reopen", "/reset", "/context", "/fork",
    ] {
        let reply = app.post(&format!("/sessions/{id}{path}"), &json!({})).await;
        reply.problem(404, "SESSION_NOT_FOUND");
    }
    let append = app
        .append_raw(&id, &format!("[{}]", user("too late")))
        .await;
    append.problem(404, "SESSION_NOT_FOUND");
    app.patch(&format!("/sessions/{id}"), &json!({"title": "t"}))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    app.erase(&id, &message)
        .await
        .problem(404, "SESSION_NOT_FOUND");
    app.delete(&format!("/sessions/{id}"))
        .await
        .problem(404, "SESSION_NOT_FOUND");

    let pruned = said(&precis_beside(&app.database, &["prune-store"]).await);
    assert_eq!(pruned, "0 sessions deleted, the rest of 1 deleted before\n");
    assert_eq!(rows_of(&app, &id).await, "");
}
