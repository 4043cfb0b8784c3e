//! Dispatches and replays as the bytes that came, and what every one of them must hold.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::messages::raws;
use crate::support::oracle::Shown;
use crate::support::{Http, Reply, tokens};

/// An answer to a dispatch.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sent {
    pub dispatch: u64,
    pub format: String,
    pub last_seq: u64,
    pub compaction: Option<Value>,
    pub open_calls: Vec<String>,
    pub tokens: Tokens,
    pub fits: Option<bool>,
    pub candidates: Vec<Value>,
    pub reasons: Vec<String>,
    pub cache_breakpoints: Vec<usize>,
    pub sha256: String,
    system: Option<Vec<Box<RawValue>>>,
    messages: Vec<Box<RawValue>>,
}

#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
pub struct Tokens {
    pub before: i64,
    pub after: i64,
    pub by: String,
}

/// A past dispatch.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The record and what is said of the replay.
    pub record: Value,
    /// Items of `system` and of `messages`; absent if they cannot be shown.
    pub items: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Items {
    system: Option<Vec<Box<RawValue>>>,
    messages: Option<Vec<Box<RawValue>>>,
}

impl Sent {
    #[track_caller]
    pub fn of(reply: &Reply) -> Self {
        let sent: Self = serde_json::from_slice(&reply.body)
            .unwrap_or_else(|cause| panic!("expected a dispatch ({cause}): {reply}"));
        assert_eq!(
            sent.sha256,
            sha(&sent.items()),
            "the digest is the one of what was sent: dispatch {}",
            sent.dispatch
        );
        let is_rising = sent.cache_breakpoints.windows(2).all(|two| two[0] < two[1]);
        assert!(
            is_rising || sent.format == "anthropic",
            "breakpoints rise: {:?}",
            sent.cache_breakpoints
        );
        assert!(sent.cache_breakpoints.len() <= 4, "four at most");
        sent
    }

    /// The items of `system`, if there is one, and of `messages`.
    pub fn items(&self) -> Vec<String> {
        let system = self.system.as_deref().unwrap_or_default();
        [raws(system), raws(&self.messages)].concat()
    }

    pub fn messages(&self) -> Vec<String> {
        raws(&self.messages)
    }

    pub fn values(&self) -> (Value, Value) {
        let system = self.system.as_deref().unwrap_or_default();
        (parsed(&raws(system)), parsed(&self.messages()))
    }
}

impl Replay {
    pub fn is_possible(&self) -> bool {
        assert_eq!(self.record["replay"]["possible"], self.items.is_some());
        self.items.is_some()
    }

    /// What is missing: kind, `seq` and message.
    pub fn missing(&self) -> Vec<(String, u64, Option<String>)> {
        let missing = self.record["replay"]["missing"].as_array();
        let missing = missing.expect("a list of what is missing");
        let text = |value: &Value| value.as_str().map(str::to_owned);
        missing
            .iter()
            .map(|one| {
                let kind = text(&one["kind"]).expect("a kind");
                let seq = one["seq"].as_u64().expect("a seq");
                (kind, seq, text(&one["messageId"]))
            })
            .collect()
    }
}

fn parsed(items: &[String]) -> Value {
    let items = items
        .iter()
        .map(|raw| serde_json::from_str(raw).expect("an item is JSON"));
    Value::Array(items.collect())
}

/// SHA-256 of items joined by commas, in hexadecimal.
pub fn sha(items: &[String]) -> String {
    let digest = Sha256::digest(items.join(","));
    let mut text = String::new();
    for byte in digest {
        write!(text, "{byte:02x}").expect("a string takes all");
    }
    text
}

impl Http {
    pub async fn dispatch(&self, id: &str, body: &Value) -> Sent {
        let reply = self.post(&format!("/sessions/{id}/context"), body).await;
        Sent::of(&reply.expect(200))
    }

    pub async fn replay(&self, id: &str, n: u64) -> Replay {
        let reply = self.get(&format!("/sessions/{id}/dispatches/{n}")).await;
        let reply = reply.expect(200);
        let items: Items = serde_json::from_slice(&reply.body)
            .unwrap_or_else(|cause| panic!("expected a replay ({cause}): {reply}"));
        let system = raws(items.system.as_deref().unwrap_or_default());
        let items = items
            .messages
            .map(|messages| [system, raws(&messages)].concat());
        let mut record = reply.json();
        if let Some(record) = record.as_object_mut() {
            record.remove("system");
            record.remove("messages");
        }
        Replay { record, items }
    }

    /// Replays and expects the bytes that were sent.
    pub async fn replays_as(&self, id: &str, sent: &Sent, what: &str) {
        let replay = self.replay(id, sent.dispatch).await;
        assert!(
            replay.is_possible(),
            "{what}: dispatch {} is replayed, but: {:#}",
            sent.dispatch,
            replay.record
        );
        assert_eq!(replay.record["sha256"], sent.sha256, "{what}: the digest");
        let items = replay.items.expect("the items");
        assert_eq!(sha(&items), sent.sha256, "{what}: the digest of the bytes");
        assert_eq!(items, sent.items(), "{what}: the bytes");
        if sent.format == "openai" {
            let count = sent.messages.len();
            assert_eq!(
                replay.record["messageCount"], count,
                "{what}: how many they are"
            );
            let last = sent.cache_breakpoints.last().map(|at| at + 1);
            assert_eq!(last.unwrap_or(0), count, "{what}: the last ends a prefix");
        }
    }

    pub async fn stats(&self, id: &str) -> Value {
        let reply = self.get(&format!("/sessions/{id}/stats")).await;
        reply.expect(200).json()
    }

    /// Changes the session's pruning policy.
    pub async fn set_pruning(&self, id: &str, policy: Value) {
        let body = json!({"pruning": policy});
        self.patch(&format!("/sessions/{id}"), &body)
            .await
            .expect(200);
    }

    /// A session of that pruning policy with these messages.
    pub async fn create_pruned(&self, policy: Value, messages: &[String]) -> String {
        let id = self.create(&json!({"pruning": policy})).await;
        for some in messages.chunks(1_000) {
            self.append(&id, some).await;
        }
        id
    }

    /// `GET …/context` as items.
    pub async fn shown(&self, id: &str) -> Vec<String> {
        raws(&self.context(id).await.messages)
    }
}

/// What is not a stored message word for word, by index; panics on a difference that is no edit.
#[track_caller]
pub fn edits(shown: &[String], rendered: &[Shown], what: &str) -> Vec<usize> {
    assert_eq!(
        shown.len(),
        rendered.len(),
        "{what}: no message is added or removed"
    );
    let mut edits = Vec::new();
    for (index, (shown, rendered)) in shown.iter().zip(rendered).enumerate() {
        match rendered {
            Shown::Made(made) => {
                let shown: Value = serde_json::from_str(shown).expect("JSON");
                assert_eq!(shown, *made, "{what}: message {index} made by the service");
            }
            Shown::Stored(stored) if shown == stored => {}
            Shown::Stored(stored) => {
                check_edit(shown, stored, &format!("{what}: message {index}"));
                edits.push(index);
            }
        }
    }
    edits
}

/// Role, calls, ids, and every other member are the same; the content is text, shorter, and says so.
#[track_caller]
fn check_edit(shown: &str, stored: &str, what: &str) {
    let mut new: Value = serde_json::from_str(shown).expect("JSON");
    let mut old: Value = serde_json::from_str(stored).expect("JSON");
    assert!(shown.len() < stored.len(), "{what}: is shorter");
    if old["role"] == "tool" {
        let text = text(&new["content"]).unwrap_or_else(|| panic!("{what}: is text: {new}"));
        let whole =
            self::text(&old["content"]).unwrap_or_else(|| panic!("{what}: was text: {old}"));
        let crumbs = text.lines().filter(|line| line.starts_with("[precis: "));
        let crumbs: Vec<_> = crumbs.collect();
        assert_eq!(crumbs.len(), 1, "{what}: one breadcrumb: {text}");
        assert!(
            crumbs[0].contains(&format!("{} bytes)", whole.len())),
            "{what}: says how large it was ({}): {}",
            whole.len(),
            crumbs[0]
        );
        assert!(
            crumbs[0].contains("GET …/messages/msg_"),
            "{what}: {}",
            crumbs[0]
        );
        old["content"] = Value::Null;
        new["content"] = Value::Null;
    } else {
        assert_eq!(
            old["role"], "assistant",
            "{what}: only reasoning is dropped"
        );
        without_reasoning(&mut old);
    }
    assert_eq!(new, old, "{what}: nothing else is changed");
}

/// A message as it is without its reasoning.
pub fn without_reasoning(message: &mut Value) {
    let Some(members) = message.as_object_mut() else {
        return;
    };
    for name in [
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "thinking",
        "thinking_blocks",
    ] {
        members.remove(name);
    }
    let is_thought = |part: &Value| {
        let kind = part["type"].as_str().unwrap_or_default();
        ["thinking", "redacted_thinking", "reasoning"].contains(&kind)
    };
    if let Some(Value::Array(parts)) = members.get_mut("content") {
        let before = parts.len();
        parts.retain(|part| !is_thought(part));
        if parts.is_empty() && before > 0 {
            members.insert("content".to_owned(), Value::Null);
        }
    }
}

/// The text of a content that is text and nothing else.
pub fn text(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts
            .iter()
            .map(|part| part["text"].as_str().filter(|_| part["type"] == "text"))
            .collect(),
        _ => None,
    }
}

/// Tokens of these messages, those that the service made left out, as the contract estimates them.
pub fn estimate(shown: &[String], rendered: &[Shown]) -> i64 {
    let stored = shown
        .iter()
        .zip(rendered)
        .filter(|(_, rendered)| matches!(rendered, Shown::Stored(_)));
    let sum: usize = stored.map(|(shown, _)| tokens::estimate(shown)).sum();
    i64::try_from(sum).expect("a small number")
}

/// The index from which on nothing may be touched, among messages of which `opening` stand before the tail.
pub fn window(shown: &[String], opening: usize, protect: usize) -> usize {
    let speaks = |raw: &String| {
        let message: Value = serde_json::from_str(raw).expect("JSON");
        message["role"] == "user" || message["role"] == "assistant"
    };
    if protect == 0 {
        return shown.len();
    }
    let tail = shown.iter().enumerate().skip(opening);
    let speaking: Vec<usize> = tail
        .filter(|(_, raw)| speaks(raw))
        .map(|(index, _)| index)
        .collect();
    let first = speaking.len().checked_sub(protect);
    first.map_or(opening, |first| speaking[first])
}
