//! `cold` waits until rewriting the prefix costs nothing extra, and `now` does not.

use rstest::rstest;
use serde_json::{Value, json};

use super::{
    EXTRACTIVE, ONE_AT_A_TIME, TRIGGER, dispatch, estimate, fence, session, turn, turns, versions,
};
use crate::support::{Answer, Backend, ScriptedModel, TestApp, model};

/// A session that was dispatched just now and has grown over the trigger since.
async fn warm(app: &TestApp, policy: &Value) -> String {
    let id = app.create(&session(policy)).await;
    app.append(&id, &turn(0, 100)).await;
    dispatch(app, &id).await;
    app.append(&id, &turns(8, 300)).await;
    id
}

async fn assert_waits(app: &TestApp, id: &str) {
    fence(app).await;
    assert!(app.compactions(id).await.is_empty(), "it waits");
}

fn cold(more: &Value) -> Value {
    let mut policy = json!({"when": "cold", "cacheTtlSeconds": 3_600});
    for (name, value) in more.as_object().expect("a policy is an object") {
        policy[name] = value.clone();
    }
    policy
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn now_does_not_wait(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::with(backend, &[EXTRACTIVE]).await;
    let id = warm(&app, &json!({"cacheTtlSeconds": 3_600})).await;
    versions(&app, &id, 1).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn cold_does_not_wait_for_a_prefix_that_nobody_has(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE]).await;
    let id = app.create(&session(&cold(&json!({})))).await;
    app.append(&id, &turns(8, 300)).await;
    versions(&app, &id, 1).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn cold_waits_until_the_last_dispatch_is_old(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE]).await;
    let id = warm(&app, &cold(&json!({"cacheTtlSeconds": 1}))).await;
    let dispatched = app
        .get(&format!("/sessions/{id}/dispatches"))
        .await
        .expect(200)
        .json()["data"][0]["createdAt"]
        .clone();
    let record = &versions(&app, &id, 1).await[0];
    // Times of day of one form: as texts they are ordered as they are.
    let seconds = |time: &Value| {
        let time = time.as_str().expect("a time").trim_end_matches('Z');
        let (_, time) = time.split_once('T').expect("a time of day");
        let parts = time.split(':').map(str::parse::<f64>);
        parts.fold(0.0, |sum, part| sum * 60.0 + part.expect("a number"))
    };
    let waited = seconds(&record["createdAt"]) - seconds(&dispatched);
    assert!(waited.rem_euclid(86_400.0) >= 1.0, "only {waited} s behind");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn cold_ends_with_a_change_of_the_model(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE, ONE_AT_A_TIME]).await;
    let id = warm(&app, &cold(&json!({}))).await;
    assert_waits(&app, &id).await;
    // Something else of it changes: that is no reason.
    let path = format!("/sessions/{id}");
    app.patch(&path, &json!({"title": "other"}))
        .await
        .expect(200);
    assert_waits(&app, &id).await;
    app.patch(&path, &json!({"model": "other"}))
        .await
        .expect(200);
    versions(&app, &id, 1).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn cold_ends_with_a_change_of_the_policy(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE, ONE_AT_A_TIME]).await;
    let id = warm(&app, &cold(&json!({}))).await;
    assert_waits(&app, &id).await;
    let path = format!("/sessions/{id}");
    app.patch(&path, &json!({"autoCompact": {"when": "now"}}))
        .await
        .expect(200);
    versions(&app, &id, 1).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn cold_ends_with_a_turn_that_failed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[EXTRACTIVE, ONE_AT_A_TIME]).await;
    let id = warm(&app, &cold(&json!({}))).await;
    assert_waits(&app, &id).await;
    model.script(model::MAIN, [Answer::Status(400, vec![], "{}".to_owned())]);
    let question = json!({"messages": [{"role": "user", "content": "And now?"}]});
    let reply = app.post(&format!("/sessions/{id}/turns"), &question).await;
    reply.problem(502, "MODEL_FAILED");
    versions(&app, &id, 1).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_hard_trigger_ends_the_wait(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE, ONE_AT_A_TIME]).await;
    let hard = 2 * TRIGGER;
    let id = warm(&app, &cold(&json!({"hardTriggerTokens": hard}))).await;
    assert_waits(&app, &id).await;
    app.append(&id, &turn(8, 300)).await;
    assert!(estimate(&app, &id).await < hard);
    assert_waits(&app, &id).await;
    app.append(&id, &turns(8, 300)).await;
    versions(&app, &id, 1).await;
    assert!(estimate(&app, &id).await < TRIGGER);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_large_session_is_due_once_it_is_switched_on(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE, ONE_AT_A_TIME]).await;
    let id = app.create(&session(&json!({"enabled": false}))).await;
    app.append(&id, &turns(8, 300)).await;
    assert_waits(&app, &id).await;
    let path = format!("/sessions/{id}");
    app.patch(&path, &json!({"autoCompact": {"enabled": true}}))
        .await
        .expect(200);
    versions(&app, &id, 1).await;
}
