//! What a dispatch refuses, and that a refusal leaves nothing behind.

use rstest::rstest;
use serde_json::json;

use crate::support::messages::user;
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn closed_and_unknown_sessions_are_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&[user("hi")]).await;
    let sent = app.dispatch(&id, &json!({})).await;
    app.post_empty(&format!("/sessions/{id}/close"))
        .await
        .expect(200);
    let path = format!("/sessions/{id}/context");
    app.post(&path, &json!({}))
        .await
        .problem(400, "SESSION_CLOSED");
    app.replays_as(&id, &sent, "a closed session can be looked at")
        .await;
    app.get(&path).await.expect(200);
    assert_eq!(app.stats(&id).await["dispatches"], 1);
    app.post_empty(&format!("/sessions/{id}/reopen"))
        .await
        .expect(200);
    assert_eq!(app.dispatch(&id, &json!({})).await.dispatch, 2);

    let gone = "sess_019acf0b2a7c7d1e9f00aabbccddeeff";
    for (path, code) in [
        (format!("/sessions/{gone}/dispatches"), "SESSION_NOT_FOUND"),
        (
            format!("/sessions/{gone}/dispatches/1"),
            "SESSION_NOT_FOUND",
        ),
        (format!("/sessions/{gone}/stats"), "SESSION_NOT_FOUND"),
        (format!("/sessions/{id}/dispatches/3"), "DISPATCH_NOT_FOUND"),
    ] {
        app.get(&path).await.problem(404, code);
    }
    app.post(&format!("/sessions/{gone}/context"), &json!({}))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    for n in ["0", "-1", "x", "1.5", "9999999999999999999999"] {
        let reply = app.get(&format!("/sessions/{id}/dispatches/{n}")).await;
        assert!([400, 404].contains(&reply.status), "{n}: {reply}");
    }
    for query in ["limit=0", "limit=1001", "cursor=x", "other=1"] {
        let reply = app.get(&format!("/sessions/{id}/dispatches?{query}")).await;
        assert_eq!(reply.status, 400, "{query}: {reply}");
    }
    app.delete(&format!("/sessions/{id}")).await.expect(204);
    app.get(&format!("/sessions/{id}/dispatches/1"))
        .await
        .problem(404, "SESSION_NOT_FOUND");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_checked(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&[user("hi")]).await;
    let path = format!("/sessions/{id}/context");
    for body in ["{", "[1", "\"\\ud800\"", "{\"model\":\"a\",}", "\u{feff}{}"] {
        app.post_raw(&path, body).await.problem(400, "INVALID_JSON");
    }
    for (body, pointer) in [
        (json!({"contextWindow": 0}), "/contextWindow"),
        (json!({"contextWindow": "8000"}), "/contextWindow"),
        (json!({"contextWindow": 1.5}), "/contextWindow"),
        (json!({"maxOutputTokens": -1}), "/maxOutputTokens"),
        (json!({"reservedTokens": null}), "/reservedTokens"),
        (json!({"format": "gemini"}), "/format"),
        (json!({"model": ""}), "/model"),
        (json!({"candidates": [{"model": "m"}]}), "/candidates/0"),
        (
            json!({"candidates": [{"model": "m", "contextWindow": 1, "x": 1}]}),
            "/candidates/0",
        ),
        (json!({"tool_choice": 5}), "/tool_choice"),
        (json!({"force": true}), ""),
    ] {
        let reply = app.post(&path, &body).await;
        let problem = reply.problem(422, "VALIDATION_FAILED");
        let errors = problem["errors"].as_array().expect("errors");
        let starts = |error: &serde_json::Value| {
            error["pointer"]
                .as_str()
                .is_some_and(|at| at.starts_with(pointer))
        };
        assert!(errors.iter().any(starts), "{body}: {problem:#}");
    }
    app.post(&path, &json!([]))
        .await
        .problem(422, "VALIDATION_FAILED");
    assert_eq!(
        app.stats(&id).await["dispatches"],
        0,
        "nothing was recorded"
    );
    // All are optional, the body too, and whole numbers may be spelled otherwise.
    app.post_empty(&path).await.expect(200);
    let sent = app
        .dispatch(
            &id,
            &json!({"contextWindow": 8_000.0, "tool_choice": {"type": "x"}}),
        )
        .await;
    assert_eq!((sent.dispatch, sent.fits), (2, Some(true)));
}
