//! The table "Worked cases" of the compaction contract, row by row.

use std::ops::RangeInclusive;

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::chain;
use crate::support::messages::{a, call_of, r, turns, u};
use crate::support::model::MAIN;
use crate::support::{Answer, Backend, History, ScriptedModel, TestApp};

/// A call of length 100 and a result of 200.
fn step(id: &str) -> [String; 2] {
    [call_of(id, 100), r(id, 200)]
}

fn five_turns() -> Vec<String> {
    turns(5, 100)
}

fn one_long_turn() -> Vec<String> {
    let mut history = vec![u(100)];
    for id in ["c1", "c2", "c3", "c4", "c5", "c6"] {
        history.extend(step(id));
    }
    history.push(a(100));
    history
}

#[rstest]
#[case::half(five_turns(), json!({"compactCount": 50}), 0..=5)]
#[case::nearly_all(five_turns(), json!({"compactCount": 99}), 0..=7)]
#[case::plain_greedy(five_turns(), json!({"compactCount": 50, "boundary": "step", "keepRecentTurns": 0}), 0..=4)]
#[case::all(five_turns(), json!({"compactCount": 99, "keepRecentTurns": 0}), 0..=9)]
#[case::keep_four(five_turns(), json!({"compactCount": 50, "keepRecentTurns": 4}), 0..=1)]
#[case::a_step_cut(one_long_turn(), json!({"compactCount": 50}), 0..=6)]
#[tokio::test(flavor = "multi_thread")]
async fn a_first_run_takes_the_batch(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] raws: Vec<String>,
    #[case] request: Value,
    #[case] batch: RangeInclusive<usize>,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&raws).await;
    let answer = app.compact(&id, &request).await.expect(200).json();
    assert_eq!(answer["newSize"], batch.end() + 1, "{request}: {answer:#}");
    assert_eq!(answer["compactedCount"], batch.clone().count(), "{request}");
    assert_eq!(answer["alreadyUpToDate"], false, "{request}");
    assert_eq!(answer["reason"], Value::Null, "{request}");
    assert_eq!(answer["compaction"]["from"], *batch.start(), "{request}");
    assert_eq!(answer["compaction"]["to"], batch.end() + 1, "{request}");
    chain::check(&app, &id, &History::new(&raws), &request.to_string()).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_summary_counts_in_the_total(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [Answer::Text("s".repeat(50))]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let raws = five_turns();
    let id = app.create_with(&raws).await;
    let request = json!({"compactCount": 50});

    let first = app.compact(&id, &request).await.expect(200).json();
    assert_eq!(first["newSize"], 6, "positions 0–5 first");
    let second = app.compact(&id, &request).await.expect(200).json();
    assert_eq!(
        (&second["compaction"]["from"], &second["compaction"]["to"]),
        (&json!(6), &json!(8)),
        "with a summary of 50 the batch is 6–7"
    );
    chain::check(&app, &id, &History::new(&raws), "size 6, summary of 50").await;
}

#[rstest]
#[case::the_newest_turn_is_protected(vec![u(100), a(100)], json!({"compactCount": 50}), "protected")]
#[case::the_newest_turn_is_open(vec![u(100), call_of("c1", 100)], json!({"compactCount": 50, "keepRecentTurns": 0}), "open_turn")]
#[case::nothing_there(vec![], json!({}), "up_to_date")]
#[case::nothing_but_emptiness(vec![a(0), u(100), a(100)], json!({"compactCount": 1}), "empty")]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_compacted_and_the_reason_is_given(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] raws: Vec<String>,
    #[case] request: Value,
    #[case] reason: &str,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create(&json!({})).await;
    if !raws.is_empty() {
        app.append(&id, &raws).await;
    }
    let before = app.session(&id).await;
    for dry_run in [false, true] {
        let mut body = request.clone();
        body["dryRun"] = json!(dry_run);
        let answer = app.compact(&id, &body).await.expect(200).json();
        assert_eq!(answer["reason"], reason, "{body}: {answer:#}");
        assert_eq!(answer["compactedCount"], 0, "{body}");
        assert_eq!(answer["newSize"], 0, "{body}");
        assert_eq!(answer["alreadyUpToDate"], true, "{body}");
        assert_eq!(
            answer["compaction"],
            Value::Null,
            "{body}: there is no record"
        );
    }
    assert_eq!(model.calls().len(), 0, "no model is called for nothing");
    assert_eq!(app.session(&id).await, before, "the session is as before");
}
