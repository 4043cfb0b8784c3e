//! A compaction is told of as started and then ends exactly once: completed, failed or cancelled.

use rstest::rstest;
use serde_json::{Value, json};

use super::{append_one, kinds, only, patch};
use crate::support::backend::TestDatabase;
use crate::support::messages::turns;
use crate::support::process::Process;
use crate::support::sse::Frame;
use crate::support::{Answer, Backend, Http, ScriptedModel, TestApp, model};

/// All events of a session so far: those before one that is made for this.
async fn all(http: &Http, id: &str) -> Vec<Frame> {
    let mut live = http.events(id, None).await;
    patch(http, id).await;
    let marker = loop {
        let frame = live.next().await.expect("an event");
        if frame.data["reason"] == "patch" {
            break frame.number();
        }
    };
    let before = usize::try_from(marker - 1).expect("a few");
    http.first_events(id, before).await
}

fn of_compactions(frames: &[Frame]) -> Vec<&str> {
    let mut kinds = kinds(frames);
    kinds.retain(|kind| kind.starts_with("compaction.") || *kind == "context.defaultCompacted");
    kinds
}

fn number(data: &Value, member: &str) -> i64 {
    data[member]
        .as_i64()
        .unwrap_or_else(|| panic!("`{member}` is a number in {data}"))
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_is_started_and_completed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;
    model.hold();
    let mut live = app.events(&id, None).await;
    let body = json!({});
    let running = app.compact(&id, &body);
    let meanwhile = async {
        model.arrived(1).await;
        let started = live.next().await.expect("told before the model answers");
        assert_eq!(started.event, "compaction.started");
        // What is appended meanwhile counts for the sizes after.
        append_one(&app, &id).await;
        model.release();
    };
    let (reply, ()) = futures_util::future::join(running, meanwhile).await;
    let reply = reply.expect(200).json();

    let frames = all(&app, &id).await;
    assert_eq!(
        of_compactions(&frames),
        ["compaction.started", "context.defaultCompacted"]
    );
    let started = only(&frames, "compaction.started");
    let done = only(&frames, "context.defaultCompacted");
    assert_eq!(started["status"], "in_progress");
    assert_eq!(done["status"], "completed");
    assert_eq!(started["trigger"], "manual");
    for data in [started, done] {
        assert_eq!(data["compactionId"], reply["compaction"]["id"]);
        assert_eq!(number(data, "from"), 0);
        assert_eq!(data["to"], reply["newSize"]);
        assert_eq!(data["count"], reply["compactedCount"]);
        assert_eq!(number(data, "lengthBefore"), 1_000);
        assert_eq!(
            number(data, "tokensBefore"),
            number(started, "tokensBefore")
        );
    }
    assert_eq!(number(done, "version"), 1);
    let session = app.session(&id).await;
    let summary = session["compactSummary"].as_str().expect("a summary");
    let length = i64::try_from(summary.encode_utf16().count()).expect("short");
    let batch = number(&reply["plan"], "batchLength");
    let appended = number(&session, "historyLength") - 1_000;
    assert_eq!(
        number(done, "lengthAfter"),
        1_000 - batch + length + appended
    );
    assert!(number(done, "tokensAfter") < number(done, "tokensBefore"));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_fails_says_why_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 600)).await;
    let longer = "longer than what it replaces ".repeat(150);
    for (answer, status, code) in [
        (
            Answer::Status(400, vec![], "{}".to_owned()),
            502,
            "SUMMARIZER_FAILED",
        ),
        (Answer::Text(longer), 422, "SUMMARY_NOT_SMALLER"),
    ] {
        model.script(model::MAIN, [answer]);
        let mut live = app.events(&id, None).await;
        app.compact(&id, &json!({})).await.problem(status, code);
        let frames = live.take(2).await;
        let failed = only(&frames, "compaction.failed");
        assert_eq!(failed["code"], code, "the code of the request's answer");
        assert_eq!(failed["status"], "failed");
        assert_eq!(failed["lengthAfter"], failed["lengthBefore"]);
        assert_eq!(failed["tokensAfter"], failed["tokensBefore"]);
    }
    assert_eq!(
        of_compactions(&all(&app, &id).await),
        [
            "compaction.started",
            "compaction.failed",
            "compaction.started",
            "compaction.failed"
        ]
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_whose_ground_moves_is_cancelled_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("rewind", "close", "reset")] change: &str,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;
    model.hold();
    let body = json!({});
    let running = app.compact(&id, &body);
    let meanwhile = async {
        model.arrived(1).await;
        match change {
            "rewind" => app.rewind(&id, 9).await,
            other => app.post_empty(&format!("/sessions/{id}/{other}")).await,
        }
        .expect(200);
        model.release();
    };
    let (reply, ()) = futures_util::future::join(running, meanwhile).await;
    reply.problem(409, "COMPACTION_CONFLICT");
    if change == "close" {
        app.post_empty(&format!("/sessions/{id}/reopen"))
            .await
            .expect(200);
    }
    let frames = all(&app, &id).await;
    assert_eq!(
        of_compactions(&frames),
        ["compaction.started", "compaction.cancelled"]
    );
    let cancelled = only(&frames, "compaction.cancelled");
    let started = only(&frames, "compaction.started");
    assert_eq!(cancelled["compactionId"], started["compactionId"]);
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(cancelled["reason"], "conflict");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_of_a_dead_process_is_cancelled_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(false, true)] compact_again: bool,
) {
    let model = ScriptedModel::start().await;
    let database = TestDatabase::create(backend).await;
    let mut variables = model.variables();
    variables.push((
        "PRECIS_COMPACTION__LEASE_SECONDS".to_owned(),
        "1".to_owned(),
    ));
    let mut process = Process::start(&database, &variables);
    let id = process.create_with(&turns(5, 100)).await;
    model.hold();
    let http = (*process).clone();
    let session = id.clone();
    let running = tokio::spawn(async move {
        let path = format!("/sessions/{session}/compact");
        let json = [("content-type", "application/json")];
        let body = Some(b"{}".to_vec());
        http.try_send(reqwest::Method::POST, &path, &json, body)
            .await
            .is_err()
    });
    model.arrived(1).await;
    process.kill();
    assert!(running.await.expect("the client's task ends"));
    model.release();

    let (one, other) = (
        Process::start(&database, &variables),
        Process::start(&database, &variables),
    );
    if compact_again {
        // Whoever comes first, the next to compact or a sweep, tells of the end of the dead one.
        loop {
            let reply = one.compact(&id, &json!({})).await;
            if reply.status == 200 {
                break;
            }
            reply.problem(409, "COMPACTION_IN_PROGRESS");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    } else {
        let mut reader = other.events(&id, Some("0")).await;
        while reader.next().await.expect("an event").event != "compaction.cancelled" {}
    }
    let frames = all(&one, &id).await;
    let mut expected = vec!["compaction.started", "compaction.cancelled"];
    if compact_again {
        expected.extend(["compaction.started", "context.defaultCompacted"]);
    }
    assert_eq!(of_compactions(&frames), expected);
    let cancelled = only(&frames, "compaction.cancelled");
    assert_eq!(cancelled["reason"], "lease_expired");
    let started = frames
        .iter()
        .find(|frame| frame.event == "compaction.started");
    let started = &started.expect("a start").data;
    assert_eq!(cancelled["compactionId"], started["compactionId"]);
    assert_eq!(cancelled["lengthBefore"], started["lengthBefore"]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lost_its_lease_ends_only_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;
    model.hold();
    let mut live = app.events(&id, None).await;
    let body = json!({});
    let running = app.compact(&id, &body);
    let meanwhile = async {
        model.arrived(1).await;
        // As if the process had slept: the lease has run out, and a sweep finds it.
        let expire = "UPDATE leases SET expires_at = created_at FROM sessions \
                      WHERE sessions.id = leases.session_id";
        app.database.execute(expire, expire).await;
        while live.next().await.expect("an event").event != "compaction.cancelled" {}
        model.release();
    };
    let (reply, ()) = futures_util::future::join(running, meanwhile).await;
    reply.problem(409, "COMPACTION_CONFLICT");
    let frames = all(&app, &id).await;
    assert_eq!(
        of_compactions(&frames),
        ["compaction.started", "compaction.cancelled"]
    );
}
