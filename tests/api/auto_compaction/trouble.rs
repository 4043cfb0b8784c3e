//! A summarizer that fails, a context that cannot get smaller, a replica that dies.

use rstest::rstest;
use serde_json::json;

use super::{
    EXTRACTIVE, ONE_AT_A_TIME, TRIGGER, estimate, events, fence, kinds, session, turn, turns,
    versions,
};
use crate::support::backend::TestDatabase;
use crate::support::process::Process;
use crate::support::{Answer, Backend, ScriptedModel, TestApp, model};

fn refusal() -> Answer {
    Answer::Status(400, vec![], "{}".to_owned())
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_backs_off_and_fails_no_append(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let settings = [
        ONE_AT_A_TIME,
        ("PRECIS_AUTO_COMPACT__BACKOFF_INITIAL_MS", "3600000"),
    ];
    let app = TestApp::with_model(backend, &model, &settings).await;
    model.script(model::MAIN, [refusal(), Answer::Summary]);
    let id = app.create(&session(&json!({}))).await;
    app.append(&id, &turns(8, 300)).await;
    model.arrived(1).await;
    fence(&app).await;
    // Nothing that is added calls it back before its time, and nothing that is added is refused.
    app.append(&id, &turns(8, 300)).await;
    fence(&app).await;
    assert_eq!(
        model.calls().len(),
        3,
        "one failed, and those of the fences"
    );
    assert!(app.compactions(&id).await.is_empty());
    let events = events(&app, &id).await;
    assert_eq!(kinds(&events), ["compaction.started", "compaction.failed"]);
    assert_eq!(events[1].1["code"], "SUMMARIZER_FAILED");
    assert_eq!(events[1].1["trigger"], "auto");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_tried_again_by_itself(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let settings = [("PRECIS_AUTO_COMPACT__BACKOFF_INITIAL_MS", "1")];
    let app = TestApp::with_model(backend, &model, &settings).await;
    model.script(model::MAIN, [refusal(), refusal(), Answer::Summary]);
    let id = app.create(&session(&json!({}))).await;
    app.append(&id, &turns(8, 300)).await;
    versions(&app, &id, 1).await;
    let expected = [
        "compaction.started",
        "compaction.failed",
        "compaction.started",
        "compaction.failed",
        "compaction.started",
        "context.defaultCompacted",
    ];
    assert_eq!(kinds(&events(&app, &id).await), expected);
    assert!(estimate(&app, &id).await < TRIGGER);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_progress_twice_stops_it_until_the_session_grows_by_a_tenth(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE, ONE_AT_A_TIME]).await;
    let mut body = session(&json!({}));
    body["compaction"]["keepRecentTurns"] = json!(3);
    let id = app.create(&body).await;
    // The three newest turns are kept, and one of them alone is over the trigger.
    let mut history = turns(6, 100);
    history.extend(turn(6, 3_000));
    app.append(&id, &history).await;
    let first = versions(&app, &id, 1).await.remove(0);
    fence(&app).await;
    app.append(&id, &turn(7, 100)).await;
    let second = versions(&app, &id, 2).await.remove(1);
    fence(&app).await;
    for record in [&first, &second] {
        let note = record["note"].as_str().expect("it says why");
        assert!(note.contains(&format!("trigger of {TRIGGER}")), "{note}");
    }
    let stalled = estimate(&app, &id).await;
    assert!(stalled >= TRIGGER);

    // The large turn could be folded in now, but nobody looks.
    app.append(&id, &turn(8, 40)).await;
    app.append(&id, &turn(9, 40)).await;
    assert!(estimate(&app, &id).await < stalled + stalled / 10);
    fence(&app).await;
    versions(&app, &id, 2).await;

    app.append(&id, &turn(10, 400)).await;
    let third = versions(&app, &id, 3).await.remove(2);
    assert!(third["note"].is_null());
    assert!(estimate(&app, &id).await < TRIGGER);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_is_tried_again_under_other_settings(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE, ONE_AT_A_TIME]).await;
    let mut body = session(&json!({}));
    body["compaction"]["keepRecentTurns"] = json!(9);
    let id = app.create(&body).await;
    app.append(&id, &turns(8, 300)).await;
    fence(&app).await;
    app.append(&id, &turn(8, 20)).await;
    fence(&app).await;
    assert!(app.compactions(&id).await.is_empty(), "all of it is kept");
    let path = format!("/sessions/{id}");
    app.patch(&path, &json!({"compaction": {"keepRecentTurns": 1}}))
        .await
        .expect(200);
    versions(&app, &id, 1).await;
    assert!(estimate(&app, &id).await < TRIGGER);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_replica_began_is_done_once_by_the_other(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let database = TestDatabase::create(backend).await;
    let mut variables = model.variables();
    let lease = "PRECIS_COMPACTION__LEASE_SECONDS";
    variables.push((lease.to_owned(), "1".to_owned()));
    let mut one = Process::start(&database, &variables);
    model.hold();
    let id = one.create(&session(&json!({}))).await;
    one.append(&id, &turns(8, 300)).await;
    model.arrived(1).await;
    let other = Process::start(&database, &variables);
    one.kill();
    model.release();

    let chain = versions(&other, &id, 1).await;
    assert_eq!(chain[0]["trigger"], "auto");
    assert!(estimate(&other, &id).await < TRIGGER);
    fence(&other).await;
    versions(&other, &id, 1).await;
    let events = events(&other, &id).await;
    let expected = [
        "compaction.started",
        "compaction.cancelled",
        "compaction.started",
        "context.defaultCompacted",
    ];
    assert_eq!(kinds(&events), expected);
    assert_eq!(events[1].1["compactionId"], events[0].1["compactionId"]);
    assert_eq!(events[1].1["reason"], "lease_expired");
}
