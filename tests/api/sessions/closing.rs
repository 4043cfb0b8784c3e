//! Close, reopen, reset.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{turns, u, user};
use crate::support::{Backend, History, TestApp, chain};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_session_is_read_only_until_it_is_reopened(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let raws = turns(5, 100);
    let id = app.create_with(&raws).await;
    let root = format!("/sessions/{id}");

    let closed = app
        .post_empty(&format!("{root}/close"))
        .await
        .expect(200)
        .json();
    assert_eq!(closed["status"], "closed");
    assert!(
        closed["closedAt"].is_string(),
        "closing has a time: {closed:#}"
    );

    app.append_raw(&id, &format!("[{}]", user("late")))
        .await
        .problem(400, "SESSION_CLOSED");
    app.patch(&root, &json!({"title": "late"}))
        .await
        .problem(400, "SESSION_CLOSED");
    app.compact(&id, &json!({}))
        .await
        .problem(400, "SESSION_CLOSED");
    app.post_empty(&format!("{root}/reset"))
        .await
        .problem(400, "SESSION_CLOSED");
    assert_eq!(app.session(&id).await, closed, "nothing was written");
    let history = History::new(&raws);
    chain::check(&app, &id, &history, "a closed session can be read").await;

    let open = app
        .post_empty(&format!("{root}/reopen"))
        .await
        .expect(200)
        .json();
    assert_eq!(open["status"], "active");
    assert_eq!(open["closedAt"], Value::Null);
    app.append(&id, &[user("again")]).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_keeps_the_session_and_forgets_the_rest(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let body = json!({"title": "kept", "compactCount": 40, "metadata": {"k": "v"}});
    let id = app.create(&body).await;
    let before = app.append(&id, &turns(5, 100)).await;
    app.compact(&id, &json!({})).await.expect(200);
    let tag = app
        .get(&format!("/sessions/{id}/context"))
        .await
        .header("etag")
        .map(str::to_owned);

    let session = app
        .post_empty(&format!("/sessions/{id}/reset"))
        .await
        .expect(200)
        .json();
    for (member, value) in [
        ("id", json!(id)),
        ("title", json!("kept")),
        ("compactCount", json!(40)),
        ("metadata", json!({"k": "v"})),
        ("status", json!("active")),
        ("messageCount", json!(0)),
        ("historyLength", json!(0)),
        ("compactSize", json!(0)),
        ("compactSummary", Value::Null),
    ] {
        assert_eq!(session[member], value, "`{member}` after a reset");
    }
    assert!(app.history(&id).await.is_empty(), "the messages are gone");
    assert!(app.compactions(&id).await.is_empty(), "the chain is gone");
    let reply = app
        .get(&format!("/sessions/{id}/context"))
        .await
        .expect(200);
    assert!(reply.context().messages.is_empty(), "the context is empty");
    assert_ne!(
        reply.header("etag").map(str::to_owned),
        tag,
        "an emptied context is another context"
    );

    let after = app.append(&id, &[u(10)]).await;
    assert!(
        after[0]["seq"].as_u64() > before[9]["seq"].as_u64(),
        "a seq is never used twice: {} after {}",
        after[0]["seq"],
        before[9]["seq"]
    );
    assert_eq!(after[0]["position"], 0, "positions start again");
}
