//! A session in memory: bodies, the rows that storage would read, and a context under a plan.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use crate::domain::json;
use crate::domain::message::{Message, Role};
use crate::domain::pairing::{Counters, Placed, Tail, place};

/// Messages by `seq`, which is their number from 1.
#[derive(Debug, Clone)]
pub struct Session {
    pub bodies: Vec<String>,
    pub placed: Vec<Placed>,
    pub carried: BTreeMap<i64, Elision>,
    pub counter: Counter,
}

/// A finished plan and how it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub edits: Vec<Elision>,
    pub asked: Vec<Vec<i64>>,
}

impl Outcome {
    pub fn saved(&self) -> i64 {
        self.edits.iter().map(|edit| edit.saved).sum()
    }

    /// `seq`, rule and named message of each edit.
    pub fn summary(&self) -> Vec<(i64, Rule, Option<i64>)> {
        self.edits
            .iter()
            .map(|edit| (edit.seq, edit.rule, edit.names))
            .collect()
    }

    pub fn asked_for(&self) -> BTreeSet<i64> {
        self.asked.iter().flatten().copied().collect()
    }
}

impl Session {
    pub fn new<T: Into<String>>(bodies: impl IntoIterator<Item = T>) -> Self {
        let bodies: Vec<String> = bodies.into_iter().map(Into::into).collect();
        let message = |(index, body): (usize, &String)| {
            (
                format!("msg_{:03}", index + 1),
                Message::read(body).unwrap(),
            )
        };
        let messages = bodies.iter().enumerate().map(message).collect();
        let placed = place(Counters::default(), Tail::default(), messages).unwrap();
        Self {
            bodies,
            placed: placed.rows,
            carried: BTreeMap::new(),
            counter: Counter::Estimate,
        }
    }

    pub fn of_fixture(text: &str) -> Self {
        Self::new(json::elements(text))
    }

    pub fn body(&self, seq: i64) -> &str {
        &self.bodies[usize::try_from(seq - 1).unwrap()]
    }

    pub fn id(&self, seq: i64) -> &str {
        &self.placed[usize::try_from(seq - 1).unwrap()].id
    }

    /// What is sent for a message.
    pub fn sent(&self, seq: i64) -> &str {
        let edit = self.carried.get(&seq);
        edit.map_or_else(|| self.body(seq), |edit| edit.replacement.as_str())
    }

    /// The messages as they are sent.
    pub fn render(&self) -> Vec<String> {
        let messages = self.placed.iter();
        messages.map(|row| self.sent(row.seq).to_owned()).collect()
    }

    pub fn rows(&self) -> Vec<Row> {
        let positioned = self.placed.iter().filter(|row| row.position.is_some());
        positioned.map(|placed| self.row(placed)).collect()
    }

    fn row(&self, placed: &Placed) -> Row {
        let mut message = placed.message.clone();
        self.counter.count(&mut message);
        Row {
            joins: placed.message.role == crate::domain::message::Role::Assistant
                && !placed.starts_group,
            seq: placed.seq,
            id: placed.id.clone(),
            role: message.role,
            tokens: i64::try_from(message.tokens).unwrap(),
            bytes: i64::try_from(message.body.len()).unwrap(),
            call_index: placed.call_index,
            tool_name: placed.tool_name.clone(),
            calls: message.calls,
            content_digest: message.content_digest,
            erased: false,
            carried: self.carried.get(&placed.seq).map(|edit| Carried {
                rule: edit.rule,
                names: edit.names,
            }),
        }
    }

    /// Tokens of the messages as they are sent.
    pub fn estimate(&self) -> i64 {
        let row = |row: Row| {
            let carried = self.carried.get(&row.seq);
            carried.map_or(row.tokens, |edit| edit.tokens)
        };
        self.rows().into_iter().map(row).sum()
    }

    pub fn aim<'a>(&self, policy: &'a PruningPolicy, target: i64) -> Aim<'a> {
        Aim {
            policy,
            estimate: self.estimate(),
            target,
            tool_choice: None,
            counter: self.counter,
        }
    }

    pub fn plan(&self, policy: &PruningPolicy, target: i64) -> Outcome {
        self.plan_rows(self.rows(), &self.aim(policy, target))
    }

    /// Runs a planner, holding it to the bounds of a round.
    pub fn plan_rows(&self, rows: Vec<Row>, aim: &Aim<'_>) -> Outcome {
        let mut planner = Planner::new(rows, aim);
        let mut asked = Vec::new();
        loop {
            match planner.step() {
                Step::Done(edits) => return Outcome { edits, asked },
                Step::Read(seqs) => {
                    let bytes: usize = seqs.iter().map(|seq| self.body(*seq).len()).sum();
                    assert!((1..=256).contains(&seqs.len()));
                    assert!(seqs.len() == 1 || bytes <= 1024 * 1024);
                    assert!(seqs.is_sorted_by(|one, next| one < next));
                    for seq in seqs.iter().rev() {
                        planner.supply(*seq, self.body(*seq));
                    }
                    asked.push(seqs);
                }
            }
        }
    }

    pub fn carry(&mut self, outcome: &Outcome) {
        let edits = outcome.edits.iter().cloned();
        self.carried.extend(edits.map(|edit| (edit.seq, edit)));
    }

    /// From which `seq` on nothing is touched.
    pub fn window(&self, protect: i64) -> i64 {
        let speaks = |row: &&Placed| matches!(row.message.role, Role::User | Role::Assistant);
        let speaking: Vec<_> = self
            .placed
            .iter()
            .filter(speaks)
            .map(|row| row.seq)
            .collect();
        let protect = usize::try_from(protect).unwrap();
        match (protect, speaking.len().checked_sub(protect)) {
            (0, _) => i64::MAX,
            (_, Some(first)) => speaking[first],
            (_, None) => 0,
        }
    }
}

pub fn user(text: &str) -> String {
    serde_json::json!({"role": "user", "content": text}).to_string()
}

/// An assistant message with calls: id, tool, arguments.
pub fn calls(calls: &[(&str, &str, &str)]) -> String {
    let call = |(id, tool, arguments): &(&str, &str, &str)| serde_json::json!({"id": id, "type": "function", "function": {"name": tool, "arguments": arguments}});
    let calls: Vec<_> = calls.iter().map(call).collect();
    serde_json::json!({"role": "assistant", "content": null, "tool_calls": calls}).to_string()
}

pub fn result(id: &str, text: &str) -> String {
    serde_json::json!({"role": "tool", "tool_call_id": id, "content": text}).to_string()
}

/// A call of one tool and its result.
pub fn step(tool: &str, arguments: &str, text: &str) -> [String; 2] {
    [calls(&[("c", tool, arguments)]), result("c", text)]
}

/// Lines of text that say `word`.
pub fn lines(word: &str, count: usize) -> String {
    let lines: Vec<_> = (0..count)
        .map(|number| format!("{word} {number:04}\n"))
        .collect();
    lines.concat()
}

/// A policy of small numbers that protects nothing.
pub fn policy() -> PruningPolicy {
    PruningPolicy {
        enabled: true,
        protect_recent_turns: 0,
        max_tool_result_bytes: 1_000,
        keep_head_bytes: 100,
        keep_tail_bytes: 100,
        ..PruningPolicy::default()
    }
}

pub fn text_of(body: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(body).unwrap();
    match &value["content"] {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}
