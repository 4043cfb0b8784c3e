//! Compactions that nobody asks for: when they run, when they wait, and what happens when they cannot.
//!
//! Nothing here measures time. What must happen is waited for; that something did not happen is seen behind a
//! fence: a session that became due later and is done, where one session is looked at at a time, the longest
//! due first.

mod crossings;
mod defaults;
mod trouble;
mod when;

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::Http;
use crate::support::messages::{assistant, user};

/// Nothing in a test takes this long unless it is stuck.
const STUCK: Duration = Duration::from_mins(1);

/// The trigger of these tests, in tokens.
const TRIGGER: i64 = 2_000;

/// One session at a time is looked at.
const ONE_AT_A_TIME: (&str, &str) = ("PRECIS_AUTO_COMPACT__CONCURRENCY", "1");
/// Summaries without a model.
const EXTRACTIVE: (&str, &str) = ("PRECIS_COMPACTION__SUMMARIZER", "extractive");

/// A session with this policy over the one of the tests, and short summaries.
fn session(policy: &Value) -> Value {
    let mut auto = json!({"enabled": true, "triggerTokens": TRIGGER, "when": "now"});
    for (name, value) in policy.as_object().expect("a policy is an object") {
        auto[name] = value.clone();
    }
    json!({"autoCompact": auto, "compaction": {"maxSummaryTokens": 200}})
}

/// Text of about this many tokens.
fn text(number: usize, tokens: usize) -> String {
    let sentence = format!("Step {number}: we decided to keep src/part_{number}.rs as it is. ");
    sentence
        .chars()
        .cycle()
        .take(tokens * 4)
        .collect::<String>()
        .trim()
        .to_owned()
}

/// A turn of about this many tokens.
fn turn(number: usize, tokens: usize) -> [String; 2] {
    let half = text(number, tokens / 2);
    [user(&half), assistant(&half)]
}

fn turns(count: usize, tokens: usize) -> Vec<String> {
    (0..count).flat_map(|number| turn(number, tokens)).collect()
}

/// What the context is estimated at.
async fn estimate(http: &Http, id: &str) -> i64 {
    let tokens = http.context(id).await.tokens;
    tokens["estimate"].as_i64().expect("an estimate")
}

/// Waits until a session has this many versions; gives the chain.
async fn versions(http: &Http, id: &str, count: usize) -> Vec<Value> {
    let waiting = async {
        loop {
            let chain = http.compactions(id).await;
            if chain.len() >= count {
                return chain;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let chain = tokio::time::timeout(STUCK, waiting)
        .await
        .unwrap_or_else(|_| panic!("expected {count} compactions of {id}"));
    assert_eq!(chain.len(), count, "no more compactions than expected");
    chain
}

/// Everything that was due before is looked at, once this gives back.
async fn fence(http: &Http) {
    let id = http.create(&session(&json!({}))).await;
    http.append(&id, &turns(10, 300)).await;
    versions(http, &id, 1).await;
}

/// Sends the context to nobody, which counts as a dispatch.
async fn dispatch(http: &Http, id: &str) {
    let path = format!("/sessions/{id}/context");
    http.post(&path, &json!({})).await.expect(200);
}

/// The events of a session's compactions: their types and data, in order.
async fn events(http: &Http, id: &str) -> Vec<(String, Value)> {
    let title = json!({"title": "the end of what is read"});
    let path = format!("/sessions/{id}");
    http.patch(&path, &title).await.expect(200);
    let mut reader = http.events(id, Some("0")).await;
    let mut found = Vec::new();
    loop {
        let frame = reader.next().await.expect("an event");
        if frame.data["reason"] == "patch" {
            return found;
        }
        if frame.data["compactionId"].is_string() {
            found.push((frame.event, frame.data));
        }
    }
}

fn kinds(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(kind, _)| kind.as_str()).collect()
}
