//! Compactions and turns at once.

use rstest::rstest;
use serde_json::{Value, json};

use super::{limited, overloaded, until};
use crate::support::messages::{a, turns, u, user};
use crate::support::model::ScriptedModel;
use crate::support::stream_model::{Script, StreamModel};
use crate::support::{Backend, Http, Reply, TestApp};

const ONE_COMPACTION: (&str, &str) = ("PRECIS_TENANTS__CONCURRENT_COMPACTIONS", "1");
const ONE_TURN: &str = "PRECIS_TENANTS__CONCURRENT_TURNS";

fn beside(http: &Http, path: String, body: Value) -> tokio::task::JoinHandle<Reply> {
    let http = http.clone();
    tokio::spawn(async move { http.post(&path, &body).await })
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_more_sessions_are_compacted_at_once_than_may_be(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[ONE_COMPACTION]).await;
    let one = app.create_with(&turns(6, 600)).await;
    let other = app.create_with(&turns(6, 600)).await;
    model.hold();
    let first = beside(&app, format!("/sessions/{one}/compact"), json!({}));
    model.arrived(1).await;

    limited(
        &app.compact(&other, &json!({})).await,
        "concurrentCompactions",
        1,
    );
    if backend == Backend::Postgres {
        let second = app.spawn_second().await;
        let refused = second.compact(&other, &json!({})).await;
        limited(&refused, "concurrentCompactions", 1);
    }
    // The session that is being compacted says so, and what compacts nothing is not counted.
    let same = app.compact(&one, &json!({})).await;
    same.problem(409, "COMPACTION_IN_PROGRESS");
    app.compact(&other, &json!({"dryRun": true}))
        .await
        .expect(200);
    assert_eq!(app.session(&other).await["compactionVersion"], 0);

    model.release();
    first.await.expect("no panic").expect(200);
    app.compact(&other, &json!({})).await.expect(200);
    assert_eq!(app.session(&other).await["compactionVersion"], 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_nobody_asked_for_waits_for_room(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[ONE_COMPACTION]).await;
    let one = app.create_with(&turns(6, 600)).await;
    model.hold();
    let first = beside(&app, format!("/sessions/{one}/compact"), json!({}));
    model.arrived(1).await;
    let auto = json!({"autoCompact": {"enabled": true, "triggerTokens": 500, "when": "now"}});
    let due = app.create(&auto).await;
    app.append(&due, &turns(8, 600)).await;
    model.release();
    first.await.expect("no panic").expect(200);
    let path = format!("/sessions/{due}/compactions/1");
    until(200, || app.get(&path)).await;
    let events = model.calls().len();
    assert_eq!(
        events, 2,
        "one call for each: none was made for a try without room"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_more_turns_run_at_once_than_may(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = StreamModel::start().await;
    let answer = || Script::texts(&["an answer"]);
    model.script(crate::support::model::MAIN, [answer(), answer()]);
    let mut variables = model.variables();
    variables.push((ONE_TURN.to_owned(), "1".to_owned()));
    let database = crate::support::backend::TestDatabase::create(backend).await;
    let app = TestApp::on(std::sync::Arc::new(database), variables).await;
    let one = app.create_with(&[u(100), a(100)]).await;
    let other = app.create_with(&[u(100), a(100)]).await;
    let question: Value = serde_json::from_str(&user("a question")).expect("JSON");
    let body = json!({"messages": [question], "stream": true});
    let path = |id: &str| format!("/sessions/{id}/turns");
    model.hold();
    let first = beside(&app, path(&one), body.clone());
    model.arrived(1).await;

    limited(&app.post(&path(&other), &body).await, "concurrentTurns", 1);
    if backend == Backend::Postgres {
        let second = app.spawn_second().await;
        limited(
            &second.post(&path(&other), &body).await,
            "concurrentTurns",
            1,
        );
    }
    assert_eq!(
        app.session(&other).await["lastSeq"],
        2,
        "nothing was stored"
    );
    app.post(&path(&one), &body)
        .await
        .problem(409, "TURN_IN_PROGRESS");

    model.release();
    first.await.expect("no panic").expect(200);
    let other = path(&other);
    until(200, || app.post(&other, &body)).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_more_streams_of_events_are_open_than_may_be(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let variables = [
        ("PRECIS_LIMITS__EVENT_STREAMS", "1"),
        ("PRECIS_EVENTS__KEEP_ALIVE_SECONDS", "1"),
    ];
    let app = TestApp::with(backend, &variables).await;
    let id = app.create(&json!({})).await;
    let open = app
        .streaming()
        .get(app.url("/events"))
        .send()
        .await
        .expect("a stream");
    assert_eq!(open.status(), 200);
    let path = format!("/sessions/{id}/events");
    overloaded(&app.get(&path).await, "limits.event_streams");
    overloaded(&app.get("/events").await, "limits.event_streams");
    drop(open);
    until(200, || app.get(&path)).await;
}
