//! An overflow in a session whose stale results may be pruned: as far as the rules go, and only once.

use rstest::rstest;
use serde_json::{Value, json};

use super::{Stage, Turn, records, sent, stored, turn};
use crate::support::Backend;
use crate::support::messages::{assistant, calls, result, user};
use crate::support::model::COMPACT;
use crate::support::stream_model::{Script, StreamCall};

const QUESTION: &str = "and now?";

/// Turns with a large result each; all results are different.
fn history(turns: usize) -> Vec<String> {
    let turn = |n: usize| {
        let call = format!("c{n}");
        let text = format!("line {n} of the output\n").repeat(1_000);
        [
            user(&format!("question {n}")),
            calls(&[&call], 0),
            result(&call, &text),
            assistant(&format!("answer {n}")),
        ]
    };
    (0..turns).flat_map(turn).collect()
}

/// How many results of a request are shortened.
fn shortened(call: &StreamCall) -> usize {
    let messages = call.body["messages"].as_array().expect("messages");
    let results = messages.iter().filter(|message| message["role"] == "tool");
    results
        .filter(|message| {
            message["content"]
                .as_str()
                .is_some_and(|text| text.len() < 10_000)
        })
        .count()
}

/// What a model says that summarises nothing, whichever of the two is asked.
fn no() -> Script {
    Script::Status(400, Vec::new(), String::new())
}

async fn session(stage: &Stage, pruning: &Value) -> String {
    let id = stage.create(&json!({"pruning": pruning})).await;
    stage.append(&id, &history(5)).await;
    id
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn pruning_alone_may_save_the_retry(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    stage.script([Script::overflow(), no(), Script::Text("fine".to_owned())]);
    stage.model.script(COMPACT, [no()]);
    let id = session(&stage, &json!({"enabled": true, "budgetTokens": 1_000_000})).await;
    let before = stored(&stage, &id).await;
    let made = Turn::of(&turn(&stage, &id, &[user(QUESTION)]).await);
    assert_eq!(
        (made.status.as_str(), made.compaction_version),
        ("completed", None)
    );
    let asked = stage.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(
        (shortened(&asked[0]), shortened(&asked[1])),
        (0, 4),
        "all that the rules let: not the newest"
    );
    assert_eq!(
        sent(&asked[1]).len(),
        sent(&asked[0]).len(),
        "no message is removed"
    );
    assert_eq!(sent(&asked[1]).last(), Some(&user(QUESTION)));
    assert_eq!(
        stored(&stage, &id).await[..20],
        before[..],
        "what is stored is untouched"
    );
    let dispatch = stage
        .get(&format!("/sessions/{id}/dispatches/2"))
        .await
        .expect(200);
    assert!(
        dispatch.json().to_string().contains("forced"),
        "the record says so"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn where_both_fail_both_are_named() {
    let stage = Stage::new(Backend::Sqlite).await;
    let overflow = Script::overflow;
    stage.script([overflow(), no(), overflow(), overflow(), no()]);
    stage.model.script(COMPACT, [no()]);
    let id = session(&stage, &json!({"enabled": true, "budgetTokens": 1_000_000})).await;
    let problem = turn(&stage, &id, &[user(QUESTION)])
        .await
        .problem(422, "CONTEXT_OVERFLOW");
    assert_eq!(stage.asked().len(), 2, "pruned, and refused again");
    let detail = problem["detail"].as_str().expect("a text");
    assert!(
        detail.contains("refused again") && detail.contains("summarizer"),
        "both causes: {detail}"
    );
    // Pruned to the floor already, and no summary: there is no second call.
    let problem = turn(&stage, &id, &[])
        .await
        .problem(422, "CONTEXT_OVERFLOW");
    assert_eq!(stage.asked().len(), 3);
    let detail = problem["detail"].as_str().expect("a text");
    assert!(detail.contains("summarizer"), "the cause: {detail}");
    assert_eq!(
        records(&stage, &id).await[0]["error"]["detail"],
        problem["detail"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_retry_prunes_what_the_compaction_left() {
    let stage = Stage::new(Backend::Sqlite).await;
    stage.script([Script::overflow(), Script::Text("fine".to_owned())]);
    let pruning = json!({"enabled": true, "budgetTokens": 1_000_000, "protectRecentTurns": 1});
    let id = session(&stage, &pruning).await;
    let made = Turn::of(&turn(&stage, &id, &[user(QUESTION)]).await);
    assert_eq!(made.compaction_version, Some(1));
    let asked = stage.asked();
    let results = |call: &StreamCall| {
        sent(call)
            .iter()
            .filter(|raw| raw.contains("\"tool_call_id\""))
            .count()
    };
    assert!(
        results(&asked[1]) > 0 && results(&asked[1]) < 5,
        "some were folded in"
    );
    assert_eq!(
        shortened(&asked[1]),
        results(&asked[1]),
        "and the rest is short"
    );
}

/// Where pruning is off, it stays off.
#[tokio::test(flavor = "multi_thread")]
async fn pruning_is_never_implicit() {
    let stage = Stage::new(Backend::Sqlite).await;
    stage.script([Script::overflow()]);
    let id = session(&stage, &json!({"enabled": false})).await;
    turn(&stage, &id, &[user(QUESTION)])
        .await
        .problem(422, "CONTEXT_OVERFLOW");
    let asked = stage.asked();
    assert_eq!(asked.len(), 2);
    assert!(asked.iter().all(|call| shortened(call) == 0));
}
