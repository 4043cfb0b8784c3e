//! What a user said last, and the newest step of a tool loop, reach the model word for word, whatever
//! had to be made smaller before; and every request is one that a strict provider takes.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::answers::calling;
use super::{Stage, Turn, is_strict, sent, stored, turn};
use crate::support::Backend;
use crate::support::messages::{padded, result, system, user};
use crate::support::stream_model::Script;

#[rstest]
#[case::compacted(json!({}))]
#[case::pruned(json!({"pruning": {"enabled": true, "budgetTokens": 500, "protectRecentTurns": 1}}))]
#[case::by_steps(json!({"compaction": {"boundary": "step", "keepRecentTurns": 0}}))]
#[tokio::test(flavor = "multi_thread")]
async fn a_newest_message_larger_than_all_before_it_is_sent_whole(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] settings: Value,
) {
    let stage = Stage::new(backend).await;
    stage.script([Script::overflow(), Script::Text("fine".to_owned())]);
    let id = stage.create(&settings).await;
    let mut history = vec![system("rules")];
    history.extend(super::conversation(4));
    stage.append(&id, &history).await;
    let large = user(&padded("the newest: ", 50_000));
    let made = Turn::of(&turn(&stage, &id, std::slice::from_ref(&large)).await);
    assert_eq!(made.compaction_version, Some(1));
    history.push(large.clone());
    let session = stage.session(&id).await;
    let asked = stage.asked();
    assert_eq!(asked.len(), 2);
    assert!(asked.iter().all(|call| sent(call).last() == Some(&large)));
    is_strict(&asked[1], &history, &session, "after the recovery");
    // Compacted once more, and asked again.
    stage.compact(&id, &json!({})).await.expect(200);
    stage.script([Script::Text("fine".to_owned())]);
    turn(&stage, &id, &[user("next")]).await.expect(200);
    let session = stage.session(&id).await;
    let now = stored(&stage, &id).await;
    is_strict(
        &stage.asked()[2],
        &now[..now.len() - 1],
        &session,
        "the next request",
    );
}

/// Steps of a tool loop, the results of each sent in one turn; every third request is refused as too long.
#[rstest]
#[case::by_turns(json!({"compaction": {"keepRecentTurns": 1}}))]
#[case::by_steps(json!({"compaction": {"boundary": "step", "keepRecentTurns": 0}}))]
#[case::pruned(json!({"compaction": {"boundary": "step"}, "pruning": {"enabled": true, "budgetTokens": 2_000, "protectRecentTurns": 2}}))]
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_step_of_a_tool_loop_is_sent_whole(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] settings: Value,
) {
    const STEPS: usize = 5;
    let pruned = settings.get("pruning").is_some();
    let stage = Stage::new(backend).await;
    let ids: Vec<[String; 2]> = (0..=STEPS)
        .map(|n| [format!("a{n}"), format!("b{n}")])
        .collect();
    let mut script = Vec::new();
    for (n, ids) in ids.iter().enumerate() {
        if n % 3 == 2 {
            script.push(Script::overflow());
        }
        script.push(calling(&[ids[0].as_str(), ids[1].as_str()]));
    }
    stage.script(script);
    let id = stage.create(&settings).await;
    stage.append(&id, &super::conversation(3)).await;
    let mut newest = vec![user("read all of it")];
    for (n, calls) in ids.iter().enumerate() {
        let asked = stage.asked().len();
        let made = Turn::of(&turn(&stage, &id, &newest).await);
        assert_eq!(made.open_calls, *calls, "step {n}");
        let history = stored(&stage, &id).await;
        let before = &history[..history.len() - 1];
        let session = stage.session(&id).await;
        for call in &stage.asked()[asked..] {
            let shown = sent(call);
            assert!(
                shown.ends_with(&newest),
                "step {n}: the results of the newest step, whole and in order"
            );
            if n > 0 {
                let caller = &before[before.len() - newest.len() - 1];
                assert_eq!(
                    shown.get(shown.len() - newest.len() - 1),
                    Some(caller),
                    "step {n}: behind their calls"
                );
            }
        }
        let call = stage.model.last();
        if !pruned
            && call.body["model"] == crate::support::model::MAIN
            && settings["compaction"]["boundary"] != "step"
        {
            is_strict(&call, before, &session, &format!("step {n}"));
        }
        pairs_are_whole(&sent(&stage.asked()[stage.asked().len() - 1]), n);
        // The second of the results is half of the whole context.
        let context: usize = before.iter().map(String::len).sum();
        newest = vec![
            result(&calls[1], &padded("large ", context)),
            result(&calls[0], "small"),
        ];
        if context > 50_000 {
            newest[0] = result(&calls[1], &padded("large ", 50_000));
        }
    }
}

/// Summaries are made between the turns and beside them, and nobody asks for one.
fn by_itself() -> Value {
    json!({
        "autoCompact": {"enabled": true, "triggerTokens": 1_500, "when": "now"},
        "compaction": {"maxSummaryTokens": 200},
    })
}

/// Waits until compactions were made of a session without being asked for.
async fn compacted_by_itself(stage: &Stage, id: &str, count: usize) {
    let waiting = async {
        loop {
            let chain = stage.compactions(id).await;
            if chain.len() >= count {
                return chain;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let chain = tokio::time::timeout(Duration::from_mins(1), waiting)
        .await
        .unwrap_or_else(|_| panic!("expected {count} compactions of {id}"));
    assert!(chain.iter().all(|made| made["trigger"] == "auto"));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_newest_message_is_sent_whole_while_compactions_run_by_themselves(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    stage.script([Script::Text("fine".to_owned())]);
    let id = stage.create(&by_itself()).await;
    for n in 0..6 {
        // Larger than all before it.
        let newest = user(&padded(&format!("newest {n}: "), 4_000 << n));
        let asked = stage.asked().len();
        Turn::of(&turn(&stage, &id, std::slice::from_ref(&newest)).await);
        let calls = stage.asked();
        assert_eq!(calls.len(), asked + 1, "turn {n}");
        assert_eq!(sent(&calls[asked]).last(), Some(&newest), "turn {n}");
        // Each but the first turn leaves one behind it that may be folded in.
        if n > 1 {
            compacted_by_itself(&stage, &id, 1).await;
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_newest_step_is_sent_whole_while_compactions_run_by_themselves(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let ids: Vec<[String; 2]> = (0..6).map(|n| [format!("a{n}"), format!("b{n}")]).collect();
    stage.script(ids.iter().map(|[a, b]| calling(&[a.as_str(), b.as_str()])));
    let id = stage.create(&by_itself()).await;
    let mut newest = vec![user("read all of it")];
    for (n, calls) in ids.iter().enumerate() {
        let asked = stage.asked().len();
        let made = Turn::of(&turn(&stage, &id, &newest).await);
        assert_eq!(made.open_calls, *calls, "step {n}");
        let request = sent(&stage.asked()[asked]);
        assert!(
            request.ends_with(&newest),
            "step {n}: all results, whole and in order"
        );
        pairs_are_whole(&request, n);
        if n > 0 {
            let history = stored(&stage, &id).await;
            let caller = &history[history.len() - newest.len() - 2];
            let before = request.len() - newest.len() - 1;
            assert_eq!(
                request.get(before),
                Some(caller),
                "step {n}: behind their calls"
            );
        }
        // The second of the results is half of the whole context.
        let context: usize = request.iter().map(String::len).sum();
        newest = vec![
            result(&calls[1], &padded("large ", context.max(4_000))),
            result(&calls[0], "small"),
        ];
        if n > 2 {
            compacted_by_itself(&stage, &id, 1).await;
        }
    }
}

/// Every result stands behind its call, every call has its result.
#[track_caller]
fn pairs_are_whole(messages: &[String], step: usize) {
    let mut open: Vec<String> = Vec::new();
    for raw in messages {
        let message: Value = serde_json::from_str(raw).expect("a message");
        if let Some(call) = message["tool_call_id"].as_str() {
            let at = open.iter().position(|open| open == call);
            open.remove(
                at.unwrap_or_else(|| panic!("step {step}: the result of {call} has no call")),
            );
            continue;
        }
        assert!(open.is_empty(), "step {step}: {open:?} have no result");
        let calls = message["tool_calls"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        open = calls
            .iter()
            .filter_map(|call| call["id"].as_str().map(str::to_owned))
            .collect();
    }
    assert!(open.is_empty(), "step {step}: {open:?} have no result");
}
