//! The second mode of compaction, read as plainly as the first: a budget of tokens for what stays.
//!
//! Only the estimate is told here. What a provider's `usage` makes of sizes is tested by examples
//! in which there is one right number.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::oracle::{Boundary, History, Plan, without_white_space};

#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub tokens: usize,
    pub boundary: Boundary,
    pub keep: usize,
}

impl Budget {
    pub fn body(self) -> Value {
        json!({
            "keepTokens": self.tokens,
            "boundary": self.boundary.name(),
            "keepRecentTurns": self.keep,
        })
    }
}

#[derive(Deserialize)]
struct Shallow<'a> {
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
}

/// (3 · ASCII + 4 · other UTF-8 bytes) / 12, rounded up; a part that is no text counts 1,000.
pub fn estimate(raw: &str) -> usize {
    let message: Value = serde_json::from_str(raw).expect("a message of a test");
    let mut twelfths = match &message["content"] {
        Value::String(text) => twelfths(text),
        Value::Array(parts) if message["role"] == "assistant" => {
            parts.iter().map(thought_or_part).sum()
        }
        Value::Array(parts) => parts.iter().map(part).sum(),
        _ => 0,
    };
    if message["tool_calls"]
        .as_array()
        .is_some_and(|calls| !calls.is_empty())
    {
        let shallow: Shallow<'_> = serde_json::from_str(raw).expect("a message of a test");
        let calls = shallow.tool_calls.map_or("", RawValue::get);
        twelfths += self::twelfths(&without_white_space(calls));
    }
    // A model is sent the reasoning of an assistant as well.
    if message["role"] == "assistant" {
        let reasoning = ["reasoning_content", "reasoning", "thinking"];
        let texts = reasoning.iter().filter_map(|name| message[*name].as_str());
        twelfths += texts.map(self::twelfths).sum::<usize>();
    }
    twelfths.div_ceil(12)
}

fn part(part: &Value) -> usize {
    ["text", "refusal"]
        .iter()
        .find_map(|name| part[*name].as_str())
        .map_or(12_000, twelfths)
}

/// A thought that can be read counts its text.
fn thought_or_part(part: &Value) -> usize {
    match part["type"].as_str() {
        Some("thinking") => part["thinking"].as_str().map_or(12_000, twelfths),
        _ => self::part(part),
    }
}

fn twelfths(text: &str) -> usize {
    let ascii = text.bytes().filter(u8::is_ascii).count();
    3 * ascii + 4 * (text.len() - ascii)
}

impl History {
    /// What a run with this budget does, each message being as large as its estimate.
    pub fn plan_within(&self, size: usize, budget: Budget) -> Plan {
        let end = self.messages.len();
        if size >= end {
            return Plan::UpToDate;
        }
        let left = |cut: usize| -> usize {
            let tail = self.messages[cut..].iter();
            tail.map(|message| estimate(&message.raw)).sum()
        };
        if left(size) <= budget.tokens {
            return Plan::WithinBudget;
        }
        let allowed = self.allowed(size, budget.boundary, budget.keep);
        let cut = allowed
            .iter()
            .find(|cut| left(**cut) <= budget.tokens)
            .or_else(|| allowed.last());
        match cut {
            None => Plan::NoCut,
            Some(cut) if self.messages[size..*cut].iter().all(|m| m.length == 0) => Plan::Empty,
            Some(cut) => Plan::Cut(*cut),
        }
    }
}
