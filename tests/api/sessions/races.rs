//! A compaction and whatever else happens to its session while the model thinks.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::chain;
use crate::support::messages::{turns, u};
use crate::support::{Backend, History, Reply, ScriptedModel, TestApp};

/// A compaction whose call has reached the model and waits there.
async fn held_compaction(app: &TestApp, model: &ScriptedModel, id: &str) -> JoinHandle<Reply> {
    model.hold();
    let http = app.http().clone();
    let session = id.to_owned();
    let before = model.calls().len();
    let running = tokio::spawn(async move { http.compact(&session, &json!({})).await });
    model.arrived(before + 1).await;
    running
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_meanwhile_wins(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;
    let running = held_compaction(&app, &model, &id).await;
    app.post_empty(&format!("/sessions/{id}/reset"))
        .await
        .expect(200);
    let raws = turns(4, 50);
    app.append(&id, &raws).await;
    model.release();

    let reply = running.await.expect("an answer");
    reply.problem(409, "COMPACTION_CONFLICT");
    assert!(
        reply.header("retry-after").is_some(),
        "time heals it: {reply}"
    );
    assert!(app.compactions(&id).await.is_empty(), "nothing was written");
    let history = History::new(&raws);
    chain::check(&app, &id, &history, "after the reset").await;
    app.compact(&id, &json!({})).await.expect(200);
    chain::check(&app, &id, &history, "the next run works").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_closed_meanwhile_is_not_changed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;
    let running = held_compaction(&app, &model, &id).await;
    let closed = app
        .post_empty(&format!("/sessions/{id}/close"))
        .await
        .expect(200)
        .json();
    model.release();

    running
        .await
        .expect("an answer")
        .problem(409, "COMPACTION_CONFLICT");
    assert_eq!(
        app.session(&id).await,
        closed,
        "a closed session is read-only"
    );
    assert!(app.compactions(&id).await.is_empty(), "nothing was written");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_deleted_meanwhile_is_gone(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;
    let running = held_compaction(&app, &model, &id).await;
    app.delete(&format!("/sessions/{id}")).await.expect(204);
    model.release();
    running
        .await
        .expect("an answer")
        .problem(404, "SESSION_NOT_FOUND");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_changes_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let raws = turns(5, 100);
    let id = app.create_with(&raws).await;
    let running = held_compaction(&app, &model, &id).await;
    running.abort();
    assert!(
        running.await.is_err_and(|cause| cause.is_cancelled()),
        "the client is gone before the model answers"
    );
    model.release();

    let deadline = Instant::now() + Duration::from_secs(10);
    while app.compactions(&id).await.is_empty() {
        assert!(
            Instant::now() < deadline,
            "expected the compaction to be finished without its client"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let session = chain::check(&app, &id, &History::new(&raws), "without its client").await;
    assert_eq!(session["compactSize"], 6);
    assert_eq!(model.calls().len(), 1, "one run, one call");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_while_the_model_thinks(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let variables = [("PRECIS_COMPACTION__LEASE_SECONDS", "1")];
    let app = TestApp::with_model(backend, &model, &variables).await;
    let second = app.spawn_second().await;
    let id = app.create_with(&turns(5, 100)).await;
    let running = held_compaction(&app, &model, &id).await;

    // Well past the end of a lease that nobody renews.
    let until = Instant::now() + Duration::from_millis(2_500);
    while Instant::now() < until {
        for one in [&app, &second] {
            let reply = one.compact(&id, &json!({})).await;
            reply.problem(409, "COMPACTION_IN_PROGRESS");
            let after = reply.header("retry-after").unwrap_or_default();
            assert!(
                after
                    .parse::<u64>()
                    .is_ok_and(|seconds| (1..=60).contains(&seconds)),
                "expected a Retry-After in seconds, got `{after}`"
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    model.release();
    let answer = running.await.expect("an answer").expect(200).json();
    assert_eq!(answer["newSize"], 6);
    assert_eq!(model.calls().len(), 1, "nobody else called the model");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn reading_and_planning_go_on_meanwhile(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let mut raws = turns(5, 100);
    let id = app.create_with(&raws).await;
    let running = held_compaction(&app, &model, &id).await;

    let planned = app
        .compact(&id, &json!({"dryRun": true}))
        .await
        .expect(200)
        .json();
    assert_eq!(planned["newSize"], 6, "a dry run needs no lease");
    raws.push(u(70));
    app.append(&id, &raws[10..]).await;
    app.patch(&format!("/sessions/{id}"), &json!({"title": "meanwhile"}))
        .await
        .expect(200);
    let history = History::new(&raws);
    chain::check(&app, &id, &history, "while the model thinks").await;
    model.release();

    let answer = running.await.expect("an answer").expect(200).json();
    assert_eq!(
        answer["newSize"], 6,
        "the batch is the one that was planned"
    );
    let session: Value = chain::check(&app, &id, &history, "afterwards").await;
    assert_eq!(
        session["title"], "meanwhile",
        "a change meanwhile is not undone"
    );
}
