//! Compactions under a key: while one is at work, when it fails, when its process dies.

use std::time::{Duration, Instant};

use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use super::{SUMMARY, Stage, is_repeated, keyed, long_session, variables};
use crate::support::backend::TestDatabase;
use crate::support::model::{COMPACT, MAIN};
use crate::support::process::Process;
use crate::support::stream_model::{Script, StreamModel};
use crate::support::{Backend, Http, Reply};

const KEY: &str = "compact-once";

/// That the first use is still at work, which time heals.
#[track_caller]
pub fn is_at_work(reply: &Reply) {
    reply.problem(409, "IDEMPOTENCY_CONFLICT");
    let wait = reply
        .header("retry-after")
        .and_then(|wait| wait.parse().ok());
    assert!(
        wait.is_some_and(|wait: u64| (1..=5).contains(&wait)),
        "{reply}"
    );
}

/// Posts beside the test.
pub fn beside(http: &Http, path: &str, key: &str, body: &str) -> tokio::task::JoinHandle<Reply> {
    let (http, path) = (http.clone(), path.to_owned());
    let (key, body) = (key.to_owned(), body.to_owned());
    tokio::spawn(async move { keyed(&http, &path, &key, &body).await })
}

#[rstest]
#[case::sqlite(Backend::Sqlite, false)]
#[case::postgres(Backend::Postgres, false)]
#[case::another_replica(Backend::Postgres, true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_at_work_is_told_of_and_then_repeated(
    #[case] backend: Backend,
    #[case] another: bool,
) {
    let stage = Stage::new(backend).await;
    let second = if another {
        Some(stage.app.spawn_second().await)
    } else {
        None
    };
    let http = second.as_ref().map_or(stage.app.http(), |app| app.http());
    let id = long_session(&stage.app).await;
    let path = format!("/sessions/{id}/compact");
    stage.model.hold();
    let first = beside(&stage.app, &path, KEY, "{}");
    stage.model.arrived(1).await;
    is_at_work(&keyed(http, &path, KEY, "{}").await);
    let other = keyed(http, &path, KEY, r#"{"compactCount":99}"#).await;
    other.problem(409, "IDEMPOTENCY_CONFLICT");
    assert_eq!(other.header("retry-after"), None, "{other}");
    keyed(http, &path, "another-key", "{}")
        .await
        .problem(409, "COMPACTION_IN_PROGRESS");
    stage.model.release();
    let first = first.await.expect("the client's task ends").expect(200);
    is_repeated(&keyed(http, &path, KEY, "{}").await, &first);
    assert_eq!(stage.app.compactions(&id).await.len(), 1);
    assert_eq!(stage.model.calls().len(), 1, "the model is asked once");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_whose_client_went_away_is_told_of_all_the_same(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = long_session(&stage.app).await;
    let path = format!("/sessions/{id}/compact");
    stage.model.hold();
    let first = beside(&stage.app, &path, KEY, "{}");
    stage.model.arrived(1).await;
    first.abort();
    drop(first.await);
    stage.model.release();
    let deadline = Instant::now() + Duration::from_secs(20);
    let told = loop {
        let reply = keyed(&stage.app, &path, KEY, "{}").await;
        if reply.status == 200 {
            break reply;
        }
        is_at_work(&reply);
        assert!(Instant::now() < deadline, "the compaction ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(told.header("idempotency-replayed"), Some("true"));
    assert_eq!(told.json()["compaction"]["version"], 1);
    assert_eq!(stage.app.compactions(&id).await.len(), 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_failed_frees_its_key(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = long_session(&stage.app).await;
    let path = format!("/sessions/{id}/compact");
    for model in [COMPACT, MAIN] {
        stage.model.script(model, [Script::unavailable()]);
    }
    for _ in 0..2 {
        keyed(&stage.app, &path, KEY, "{}")
            .await
            .problem(502, "SUMMARIZER_FAILED");
    }
    let script = [Script::Text(SUMMARY.to_owned())];
    stage.model.script(COMPACT, script);
    // Not kept, so it may even be another request.
    let body = r#"{"compactCount":60}"#;
    let done = keyed(&stage.app, &path, KEY, body).await.expect(200);
    assert_eq!(done.header("idempotency-replayed"), None);
    is_repeated(&keyed(&stage.app, &path, KEY, body).await, &done);
    assert_eq!(stage.app.compactions(&id).await.len(), 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_with_nothing_to_do_and_one_that_is_only_planned_are_repeated(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = stage.app.create(&json!({})).await;
    let path = format!("/sessions/{id}/compact");
    let nothing = keyed(&stage.app, &path, KEY, "{}").await.expect(200);
    assert_eq!(nothing.json()["alreadyUpToDate"], true);
    let dry = r#"{"dryRun":true}"#;
    let planned = keyed(&stage.app, &path, "dry", dry).await.expect(200);
    stage
        .app
        .append(&id, &crate::support::messages::turns(6, 400))
        .await;
    is_repeated(&keyed(&stage.app, &path, KEY, "{}").await, &nothing);
    is_repeated(&keyed(&stage.app, &path, "dry", dry).await, &planned);
    assert_eq!(stage.app.compactions(&id).await.len(), 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite, false)]
#[case::postgres(Backend::Postgres, false)]
#[case::another_replica(Backend::Postgres, true)]
#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_killed_compaction_is_free_when_its_lease_runs_out(
    #[case] backend: Backend,
    #[case] another: bool,
) {
    let model = StreamModel::start().await;
    model.script(COMPACT, [Script::Text(SUMMARY.to_owned())]);
    let database = TestDatabase::create(backend).await;
    let mut settings = variables(&model);
    settings.push((
        "PRECIS_COMPACTION__LEASE_SECONDS".to_owned(),
        "2".to_owned(),
    ));
    let mut process = Process::start(&database, &settings);
    let survivor = another.then(|| Process::start(&database, &settings));
    let id = long_session(&process).await;
    let path = format!("/sessions/{id}/compact");
    model.hold();
    let (http, at) = ((*process).clone(), path.clone());
    let asking = tokio::spawn(async move {
        let headers = [("idempotency-key", KEY)];
        http.try_send(Method::POST, &at, &headers, None).await
    });
    model.arrived(1).await;
    process.kill();
    asking
        .await
        .expect("the client's task ends")
        .expect_err("a killed server answers nobody");
    model.release();
    let next = survivor.unwrap_or_else(|| Process::start(&database, &settings));
    let deadline = Instant::now() + Duration::from_secs(30);
    let done = loop {
        let reply = keyed(&next, &path, KEY, "").await;
        if reply.status == 200 {
            break reply;
        }
        is_at_work(&reply);
        assert!(Instant::now() < deadline, "the key is free after the lease");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(done.header("idempotency-replayed"), None);
    is_repeated(&keyed(&next, &path, KEY, "").await, &done);
    assert_eq!(next.compactions(&id).await.len(), 1);
}
