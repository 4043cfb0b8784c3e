//! One compaction for each time that the trigger is crossed, and none while one runs.

use rstest::rstest;
use serde_json::json;

use super::{EXTRACTIVE, TRIGGER, estimate, events, kinds, session, text, turn, turns, versions};
use crate::support::messages::{assistant, user};
use crate::support::{Backend, ScriptedModel, TestApp};

const APPENDS: usize = 300;

/// Waits until the context is under the trigger, or the newest record says why it is not.
async fn settled(app: &TestApp, id: &str) -> i64 {
    let waiting = async {
        loop {
            let tokens = estimate(app, id).await;
            if tokens < TRIGGER {
                return tokens;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(super::STUCK, waiting)
        .await
        .expect("the context gets under the trigger")
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn each_crossing_is_answered_by_one_compaction(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE]).await;
    let id = app.create(&session(&json!({}))).await;
    let text = text(7, 60);
    let (mut before, mut crossings) = (0, 0);
    let mut sizes = [0, 0];
    for number in 0..APPENDS {
        let message = [user(&text), assistant(&text)][number % 2].clone();
        app.append(&id, &[message]).await;
        if number < 2 {
            let now = estimate(&app, &id).await;
            sizes[number] = now - before;
            before = now;
            continue;
        }
        let crossed = before + sizes[number % 2] >= TRIGGER;
        crossings += usize::from(crossed);
        before = settled(&app, &id).await;
        let chain = app.compactions(&id).await;
        assert_eq!(chain.len(), crossings, "append {number}");
        if crossed {
            let record = chain.last().expect("a record");
            assert_eq!(record["trigger"], "auto");
            assert!(record["note"].is_null(), "it is under the trigger");
        }
    }
    assert!(crossings > 5, "the trigger was crossed {crossings} times");
    let events = events(&app, &id).await;
    let pair = ["compaction.started", "context.defaultCompacted"];
    assert_eq!(kinds(&events), pair.repeat(crossings));
    for (kind, data) in &events {
        assert_eq!(data["trigger"], "auto", "{kind}");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn appends_that_wait_for_nothing_never_make_two_run(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE]).await;
    let other = app.spawn_second().await;
    let id = app.create(&session(&json!({}))).await;
    let text = text(7, 60);
    for number in 0..APPENDS {
        let message = [user(&text), assistant(&text)][number % 2].clone();
        [&app, &other][number % 2].append(&id, &[message]).await;
    }
    settled(&app, &id).await;
    let events = events(&app, &id).await;
    let pair = ["compaction.started", "context.defaultCompacted"];
    assert_eq!(kinds(&events), pair.repeat(events.len() / 2));
    assert!(events.len() >= 2, "the trigger was crossed");
    // Headings of the summary, which the events leave out.
    let frame = 60;
    for (_, started) in events
        .iter()
        .filter(|(kind, _)| kind == "compaction.started")
    {
        let tokens = started["tokensBefore"].as_i64().expect("a number");
        assert!(
            tokens + frame >= TRIGGER,
            "none under the trigger: {tokens}"
        );
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn none_begins_while_one_runs(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    model.hold();
    let id = app.create(&session(&json!({}))).await;
    app.append(&id, &turns(10, 300)).await;
    model.arrived(1).await;
    // What asks again while it runs, the trigger and a person.
    app.append(&id, &turns(10, 300)).await;
    app.compact(&id, &json!({}))
        .await
        .problem(409, "COMPACTION_IN_PROGRESS");
    assert_eq!(model.calls().len(), 1);
    model.release();
    // What came meanwhile has crossed the trigger once more.
    let chain = versions(&app, &id, 2).await;
    assert!(chain.iter().all(|record| record["trigger"] == "auto"));
    settled(&app, &id).await;
    assert_eq!(
        kinds(&events(&app, &id).await),
        ["compaction.started", "context.defaultCompacted"].repeat(2)
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn messages_are_a_trigger_too(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE]).await;
    let policy = json!({"triggerTokens": 1_000_000, "triggerMessages": 10});
    let id = app.create(&session(&policy)).await;
    for number in 0..4 {
        app.append(&id, &turn(number, 100)).await;
    }
    // The newest turn, as large as all others together: a percentage of the text alone would leave too many.
    app.append(&id, &turn(4, 100_000)).await;
    let record = &versions(&app, &id, 1).await[0];
    assert!(record["note"].is_null(), "{record}");
    let session = app.session(&id).await;
    let left = session["messageCount"].as_i64().expect("a number")
        - session["compactSize"].as_i64().expect("a number");
    assert!(left < 10, "{left} messages are left");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn one_is_enough_where_the_percentage_is_not(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[EXTRACTIVE]).await;
    // Many times the trigger: half of it would still be over.
    let mut body = session(&json!({}));
    body["messages"] = turns(100, 150)
        .iter()
        .map(|message| serde_json::from_str::<serde_json::Value>(message).expect("JSON"))
        .collect();
    let id = app.create(&body).await;
    let record = &versions(&app, &id, 1).await[0];
    assert!(record["compactCount"].is_null() && record["note"].is_null());
    assert!(record["keepTokens"].as_i64().expect("a budget") <= TRIGGER / 2);
    assert!(estimate(&app, &id).await < TRIGGER);
    // Not more than must be: more stays than the newest turn.
    let session = app.session(&id).await;
    assert!(session["compactSize"].as_i64().expect("a number") < 198);
}
