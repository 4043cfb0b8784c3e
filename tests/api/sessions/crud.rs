//! Create, read, change, delete.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{assistant, user};
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_new_session_has_the_documented_shape(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let reply = app.post("/sessions", &json!({})).await.expect(201);
    let session = reply.json();
    let id = session["id"].as_str().expect("an id");
    assert!(id.starts_with("sess_"), "ids carry their prefix: {id}");
    let location = reply.header("location").unwrap_or_default();
    assert!(
        location.ends_with(&format!("/sessions/{id}")),
        "expected the place of the session in Location, got `{location}`"
    );
    for (member, value) in [
        ("agentName", Value::Null),
        ("mode", json!("chat")),
        ("status", json!("active")),
        ("title", Value::Null),
        ("modelThinking", Value::Null),
        ("instanceFolder", Value::Null),
        ("metadata", json!({})),
        ("compactSummary", Value::Null),
        ("compactSize", json!(0)),
        ("compactCount", json!(50)),
        ("compactionVersion", json!(0)),
        ("messageCount", json!(0)),
        ("historyLength", json!(0)),
        ("lastSeq", json!(0)),
        ("closedAt", Value::Null),
    ] {
        assert_eq!(session[member], value, "`{member}` of a new session");
    }
    assert_eq!(
        session["compaction"],
        json!({"keepRecentTurns": 1, "boundary": "turn", "maxSummaryTokens": 2000, "redactSecrets": true}),
        "the default policy"
    );
    for member in ["createdAt", "updatedAt"] {
        let time = session[member].as_str().unwrap_or_default();
        let (seconds, fraction) = time.split_once('.').unwrap_or_default();
        assert!(
            seconds.len() == "2026-11-29T12:00:00".len()
                && fraction.len() == "123456Z".len()
                && fraction.ends_with('Z'),
            "`{member}` is RFC 3339 in UTC with microseconds, got `{time}`"
        );
    }
    assert_eq!(
        app.session(id).await,
        session,
        "reading gives what creating gave"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_takes_all_it_is_given(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let metadata = r#"{"z":1,"a":{"deep":[1,2.50,1e3]},"k":"v"}"#;
    let body = format!(
        r#"{{"mode":"task","title":"A title","model":"m-1","modelThinking":"low",
            "instanceFolder":"/srv/one","metadata":{metadata},"compactCount":25,
            "compaction":{{"keepRecentTurns":3,"boundary":"step","maxSummaryTokens":900}},
            "messages":[{},{}]}}"#,
        user("hello"),
        assistant("hi")
    );
    let session = app.post_raw("/sessions", body).await.expect(201).json();
    for (member, value) in [
        ("mode", json!("task")),
        ("title", json!("A title")),
        ("model", json!("m-1")),
        ("modelThinking", json!("low")),
        ("instanceFolder", json!("/srv/one")),
        ("compactCount", json!(25)),
        (
            "compaction",
            json!({"keepRecentTurns": 3, "boundary": "step", "maxSummaryTokens": 900, "redactSecrets": true}),
        ),
        ("messageCount", json!(2)),
        ("historyLength", json!(7)),
        ("lastSeq", json!(2)),
    ] {
        assert_eq!(session[member], value, "`{member}`");
    }
    assert_eq!(
        session["metadata"],
        serde_json::from_str::<Value>(metadata).expect("JSON"),
        "metadata is kept"
    );
}

#[rstest]
#[case::unknown(json!({"surprise": true}), "/surprise")]
#[case::percentage_zero(json!({"compactCount": 0}), "/compactCount")]
#[case::percentage_hundred(json!({"compactCount": 100}), "/compactCount")]
#[case::percentage_fraction(json!({"compactCount": 50.5}), "/compactCount")]
#[case::percentage_text(json!({"compactCount": "50"}), "/compactCount")]
#[case::percentage_null(json!({"compactCount": null}), "/compactCount")]
#[case::mode(json!({"mode": "dream"}), "/mode")]
#[case::title(json!({"title": 5}), "/title")]
#[case::metadata(json!({"metadata": []}), "/metadata")]
#[case::boundary(json!({"compaction": {"boundary": "word"}}), "/compaction/boundary")]
#[case::keep(json!({"compaction": {"keepRecentTurns": -1}}), "/compaction/keepRecentTurns")]
#[case::unknown_policy(json!({"compaction": {"surprise": 1}}), "/compaction/surprise")]
#[case::messages(json!({"messages": "hello"}), "/messages")]
#[case::role(json!({"messages": [{"role": "wizard", "content": "x"}]}), "/messages/0/role")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_session_is_refused_by_pointer(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] body: Value,
    #[case] pointer: &str,
) {
    let app = TestApp::spawn(backend).await;
    app.post("/sessions", &body).await.invalid(pointer);
    let list = app.get("/sessions").await.expect(200).json();
    assert_eq!(list["data"], json!([]), "nothing was created");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_a_request_is_named(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let body = json!({"compactCount": 0, "mode": "dream", "surprise": 1});
    let reply = app.post("/sessions", &body).await;
    for pointer in ["/compactCount", "/mode", "/surprise"] {
        reply.invalid(pointer);
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_patch_changes_what_it_names(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({"title": "old", "model": "m-1"})).await;
    let path = format!("/sessions/{id}");
    let before = app.session(&id).await;

    let patch = json!({"title": "new", "compactCount": 25.0, "metadata": {"k": "v"}});
    let after = app.patch(&path, &patch).await.expect(200).json();
    assert_eq!(after["title"], "new");
    assert_eq!(after["compactCount"], 25, "25.0 is 25");
    assert_eq!(after["metadata"], json!({"k": "v"}));
    assert_eq!(after["model"], "m-1", "what is not named stays");
    assert_eq!(after["createdAt"], before["createdAt"]);
    assert_eq!(app.session(&id).await, after, "the change is stored");

    let after = app
        .patch(
            &path,
            &json!({"title": null, "compaction": {"keepRecentTurns": 4}}),
        )
        .await
        .expect(200)
        .json();
    assert_eq!(after["title"], Value::Null, "null takes a title away");
    assert_eq!(after["compaction"]["keepRecentTurns"], 4);
    assert_eq!(after["compaction"]["boundary"], "turn");
    assert_eq!(after["compactCount"], 25, "what is not named stays");
}

#[rstest]
#[case::null(json!({"compactCount": null}), "/compactCount")]
#[case::zero(json!({"compactCount": 0}), "/compactCount")]
#[case::hundred(json!({"compactCount": 100}), "/compactCount")]
#[case::unknown(json!({"surprise": 1}), "/surprise")]
#[case::status(json!({"status": "closed"}), "/status")]
#[case::pointer(json!({"compactSize": 4}), "/compactSize")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_patch_changes_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] patch: Value,
    #[case] pointer: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({"title": "old"})).await;
    let before = app.session(&id).await;
    let mut body = patch;
    body["title"] = json!("new");
    app.patch(&format!("/sessions/{id}"), &body)
        .await
        .invalid(pointer);
    assert_eq!(app.session(&id).await, before, "all or nothing");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_session_is_gone_with_all_that_was_its_own(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&[user("one"), assistant("two")]).await;
    let other = app.create_with(&[user("other")]).await;
    app.delete(&format!("/sessions/{id}")).await.expect(204);

    for path in ["", "/messages", "/context", "/compactions"] {
        app.get(&format!("/sessions/{id}{path}"))
            .await
            .problem(404, "SESSION_NOT_FOUND");
    }
    app.delete(&format!("/sessions/{id}"))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    assert_eq!(app.history(&other).await.len(), 1, "others are left alone");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_route_of_an_unknown_session_is_404(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let root = "/sessions/sess_0123456789abcdef";
    for path in [
        "",
        "/messages",
        "/messages/msg_1",
        "/context",
        "/compactions",
        "/compactions/1",
    ] {
        app.get(&format!("{root}{path}"))
            .await
            .problem(404, "SESSION_NOT_FOUND");
    }
    for path in ["/close", "/reopen", "/reset", "/compact"] {
        app.post_empty(&format!("{root}{path}"))
            .await
            .problem(404, "SESSION_NOT_FOUND");
    }
    app.append_raw("sess_0123456789abcdef", &format!("[{}]", user("x")))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    app.patch(root, &json!({"title": "x"}))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    app.delete(root).await.problem(404, "SESSION_NOT_FOUND");
}
