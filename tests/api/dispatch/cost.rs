//! What a plan reads: of user messages, instructions and small results no rule ever asks for the text.

use std::collections::HashSet;

use precis::domain::message::{Message, Role};
use precis::domain::policy::PruningPolicy;
use precis::domain::pruning::{Aim, Planner, Row, Step};
use precis::domain::tokens::Counter;
use sha2::{Digest, Sha256};

use super::random::Story;

fn rows(messages: &[String]) -> Vec<Row> {
    let mut calls = Vec::new();
    let row = |(index, raw): (usize, &String)| {
        let mut message = Message::read(raw).expect("a message");
        Counter::Estimate.count(&mut message);
        if !message.calls.is_empty() {
            calls.clone_from(&message.calls);
        }
        let value: serde_json::Value = serde_json::from_str(raw).expect("JSON");
        let answered = calls
            .iter()
            .position(|call| value["tool_call_id"] == *call.id);
        let answered = answered.filter(|_| message.role == Role::Tool);
        Row {
            joins: false,
            seq: i64::try_from(index).expect("small") + 1,
            id: format!("msg_{index}"),
            role: message.role,
            tokens: i64::try_from(message.tokens).expect("small"),
            bytes: i64::try_from(raw.len()).expect("small"),
            call_index: answered.map(|at| i64::try_from(at).expect("small")),
            tool_name: answered.and_then(|at| calls[at].name.clone()),
            calls: message.calls.clone(),
            content_digest: Sha256::digest(value["content"].to_string()).into(),
            erased: false,
            carried: None,
        }
    };
    messages.iter().enumerate().map(row).collect()
}

/// Which messages a plan asks for, and how many edits it makes.
fn asked(messages: &[String], policy: &PruningPolicy, target: i64) -> (HashSet<usize>, usize) {
    let rows = rows(messages);
    let aim = Aim {
        policy,
        estimate: rows.iter().map(|row| row.tokens).sum(),
        target,
        tool_choice: None,
        counter: Counter::Estimate,
    };
    let mut planner = Planner::new(rows, &aim);
    let mut asked = HashSet::new();
    loop {
        match planner.step() {
            Step::Done(edits) => return (asked, edits.len()),
            Step::Read(seqs) => {
                assert!(!seqs.is_empty() && seqs.len() <= 256);
                for seq in seqs {
                    let index = usize::try_from(seq - 1).expect("small");
                    planner.supply(seq, &messages[index]);
                    asked.insert(index);
                }
            }
        }
    }
}

#[test]
fn no_body_is_read_that_no_rule_may_edit() {
    let messages = Story::new(5).go_on(300);
    let messages: Vec<String> = messages
        .into_iter()
        .filter(|raw| !raw.contains(r#""role":"system""#))
        .collect();
    let policy = PruningPolicy {
        enabled: true,
        ..PruningPolicy::default()
    };
    let (all, edits) = asked(&messages, &policy, i64::MIN);
    assert!(edits > 20, "{edits}");
    let is_user = |index: &usize| messages[*index].contains(r#""role":"user""#);
    assert!(!all.iter().any(is_user), "no user message is read");

    // With the third rule alone: large results before the window and who called for those that were cut.
    let policy = PruningPolicy {
        collapse_duplicate_results: false,
        elide_superseded_reads: false,
        drop_stale_reasoning: false,
        ..policy
    };
    let (large, edits) = asked(&messages, &policy, i64::MIN);
    assert!(edits > 20);
    for index in &large {
        let is_result = messages[*index].contains(r#""role":"tool""#);
        assert!(
            !is_result || messages[*index].len() > 4_096,
            "message {index} is small"
        );
        assert!(
            is_result || messages[*index].contains("tool_calls"),
            "message {index}"
        );
    }
    let (few, _) = asked(
        &messages,
        &policy,
        rows(&messages).iter().map(|row| row.tokens).sum::<i64>() - 100,
    );
    assert!(
        few.len() <= 4,
        "a little to save is a little to read: {few:?}"
    );
}
