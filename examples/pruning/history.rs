//! Sessions in memory: made up, placed as an append would place them, and read as storage would read them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use precis::domain::context::{TailMessage, join_tail};
use precis::domain::message::Message;
use precis::domain::pairing::{Counters, Placed, Tail, place};
use precis::domain::pruning::{Aim, Carried, Elision, Planner, Row, Step};
use serde_json::json;

/// A placed history; a message's `seq` is its number from 1.
pub struct Session {
    placed: Vec<Placed>,
}

/// Edits by `seq`.
pub type Plan = BTreeMap<i64, Elision>;

impl Session {
    fn new(bodies: impl Iterator<Item = serde_json::Value>) -> Self {
        let message = |(index, body): (usize, serde_json::Value)| {
            let read = Message::read(&body.to_string());
            let message = read.unwrap_or_else(|fault| unreachable!("{fault}"));
            (format!("msg_{index:06}"), message)
        };
        let messages = bodies.enumerate().map(message).collect();
        let placement = place(Counters::default(), Tail::default(), messages)
            .unwrap_or_else(|(at, fault)| unreachable!("{at}: {fault}"));
        Self {
            placed: placement.rows,
        }
    }

    /// One task and an agent that works on it: each turn a call and its result, each result a little
    /// larger than the one before. Now and then a file is read again after a change, or a command is run
    /// again with the same outcome.
    pub fn agent_loop(turns: usize) -> Self {
        let task = json!({"role": "user", "content": "Find out why the nightly import is slow, and repair it. ".repeat(20)});
        let turn = |turn: usize| {
            let (tool, arguments, topic) = match turn {
                9 => (
                    "read_file",
                    json!({"path": "src/part_5.rs"}),
                    "part_5, changed".to_owned(),
                ),
                14 => (
                    "run",
                    json!({"command": "cargo test part_12"}),
                    "part_12".to_owned(),
                ),
                _ if turn.is_multiple_of(3) => (
                    "run",
                    json!({"command": format!("cargo test part_{turn}")}),
                    format!("part_{turn}"),
                ),
                _ => (
                    "read_file",
                    json!({"path": format!("src/part_{turn}.rs")}),
                    format!("part_{turn}"),
                ),
            };
            let size = if turn == 14 { 12 } else { turn };
            step(tool, &arguments, &output(&topic, 5_400 + 60 * size))
        };
        Self::new([task].into_iter().chain((0..turns).flat_map(turn)))
    }

    /// Many small turns: a question, two parallel calls with their results, an answer. A result in eight
    /// is large, files come again after a while, some results are the same.
    pub fn long(messages: usize) -> Self {
        let turn = |turn: usize| {
            let path = format!("src/file_{}.rs", turn % 97 + turn / 500 * 97);
            let page = json!({"path": path, "offset": turn % 7, "limit": 200}).to_string();
            let large = if turn.is_multiple_of(4) { 6_000 } else { 600 };
            let topic = format!("{}", turn - turn % 3);
            [
                json!({"role": "user", "content": format!("Question {turn}: what about {path}?")}),
                json!({"role": "assistant", "content": null, "reasoning_content": "I had better look. ".repeat(4), "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "read_file", "arguments": page}},
                    {"id": "b", "type": "function", "function": {"name": "search", "arguments": json!({"query": topic}).to_string()}},
                ]}),
                json!({"role": "tool", "tool_call_id": "a", "content": output(&path, large)}),
                json!({"role": "tool", "tool_call_id": "b", "content": output(&topic, 400)}),
                json!({"role": "assistant", "content": format!("It is fine, see {path}.")}),
            ]
        };
        Self::new((0..messages.div_ceil(5)).flat_map(turn).take(messages))
    }

    /// The session as it stood after its first `count` messages.
    pub fn first(&self, count: usize) -> Self {
        Self {
            placed: self.placed.iter().take(count).cloned().collect(),
        }
    }

    pub fn len(&self) -> usize {
        self.placed.len()
    }

    /// What storage reads for a plan.
    pub fn rows(&self, plan: &Plan) -> Vec<Row> {
        let row = |placed: &Placed| Row {
            joins: false,
            seq: placed.seq,
            id: placed.id.clone(),
            role: placed.message.role,
            tokens: signed(placed.message.tokens),
            bytes: signed(placed.message.body.len() as u64),
            call_index: placed.call_index,
            tool_name: placed.tool_name.clone(),
            calls: placed.message.calls.clone(),
            content_digest: placed.message.content_digest,
            erased: false,
            carried: plan.get(&placed.seq).map(|edit| Carried {
                rule: edit.rule,
                names: edit.names,
            }),
        };
        self.placed.iter().map(row).collect()
    }

    /// Tokens that are sent under a plan.
    pub fn tokens(&self, plan: &Plan) -> i64 {
        let tokens = |placed: &Placed| {
            let edit = plan.get(&placed.seq);
            edit.map_or(signed(placed.message.tokens), |edit| edit.tokens)
        };
        self.placed.iter().map(tokens).sum()
    }

    /// New edits for `rows`.
    pub fn plan(&self, rows: Vec<Row>, aim: &Aim<'_>) -> Vec<Elision> {
        let mut planner = Planner::new(rows, aim);
        loop {
            match planner.step() {
                Step::Done(edits) => return edits,
                Step::Read(seqs) => {
                    for seq in seqs {
                        planner.supply(seq, self.body(seq));
                    }
                }
            }
        }
    }

    fn body(&self, seq: i64) -> &str {
        let placed = usize::try_from(seq - 1)
            .ok()
            .and_then(|at| self.placed.get(at));
        placed.map_or("", |placed| &placed.message.body)
    }

    /// The messages under a plan, joined by commas.
    pub fn render(&self, plan: &Plan) -> String {
        let message =
            |placed: &'_ Placed| plan.get(&placed.seq).map(|edit| edit.replacement.as_str());
        let messages: Vec<_> = self
            .placed
            .iter()
            .map(|placed| TailMessage {
                body: message(placed).unwrap_or(&placed.message.body),
                fill: placed.fill.as_deref(),
            })
            .collect();
        join_tail(&messages)
    }
}

fn step(tool: &str, arguments: &serde_json::Value, output: &str) -> [serde_json::Value; 2] {
    let function = json!({"name": tool, "arguments": arguments.to_string()});
    [
        json!({"role": "assistant", "content": "Next I look at this.", "tool_calls": [
            {"id": "call_0", "type": "function", "function": function}]}),
        json!({"role": "tool", "tool_call_id": "call_0", "content": output}),
    ]
}

/// Lines about a topic, some `bytes` in all.
fn output(topic: &str, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 80);
    let mut number = 0_usize;
    while text.len() < bytes {
        number += 1;
        let value = (number * 2_654_435_761) % 99_991;
        let _ = writeln!(
            text,
            "{number:>5}  {topic}: measured {value} units in step {number}"
        );
    }
    text
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
