//! What must hold of every dispatch, over random sessions that grow.

use rstest::rstest;
use serde_json::{Value, json};

use super::breakpoints::expected;
use super::random::Story;
use super::sent::{Sent, edits, estimate, text, window};
use crate::support::oracle::Shown;
use crate::support::{Backend, Http, TestApp};

const LIMIT: usize = 1_000;
const PROTECT: usize = 3;
const MILESTONE: usize = 700;

fn policy(budget: i64, floor: f64) -> Value {
    json!({
        "enabled": true, "budgetTokens": budget, "floorRatio": floor, "protectRecentTurns": PROTECT,
        "maxToolResultBytes": LIMIT, "keepHeadBytes": 150, "keepTailBytes": 100,
        "milestoneTokens": MILESTONE,
    })
}

/// What was sent last time, and what of it was edited.
struct Before {
    messages: Vec<String>,
    edits: Vec<usize>,
    instructions: usize,
}

struct Run<'a> {
    http: &'a Http,
    id: String,
    story: Story,
    before: Option<Before>,
    /// How far it is pruned.
    target: i64,
    budget: i64,
    changes: usize,
}

impl Run<'_> {
    async fn step(&mut self, what: &str) {
        let count = 1 + self.story.dice.below(9);
        let messages = self.story.go_on(count);
        self.http.append(&self.id, &messages).await;
        let etag = self.http.etag(&self.id).await;
        let sent = self.http.dispatch(&self.id, &json!({})).await;
        let rendered = self.story.history.render(0, None);
        let messages = sent.messages();
        let edits = edits(&messages, &rendered, what);
        self.check_pairs(&sent, &messages, what);
        self.check_window(&messages, &rendered, what);
        let instructions = self.story.history.instructions.len();
        let breakpoints = expected(&messages, instructions, MILESTONE);
        assert_eq!(sent.cache_breakpoints, breakpoints, "{what}: breakpoints");
        let grown = self.check_monotone(&messages, &edits, what);
        self.check_tokens(&sent, &messages, &rendered, what).await;
        assert_eq!(
            self.http.etag(&self.id).await == etag,
            !grown,
            "{what}: the ETag"
        );
        assert_eq!(
            self.http.shown(&self.id).await,
            messages,
            "{what}: GET is the dispatch"
        );
        self.check_states(&edits, what).await;
        self.check_again(&sent, what).await;
        self.changes += usize::from(grown);
        self.before = Some(Before {
            messages,
            edits,
            instructions: self.story.history.instructions.len(),
        });
    }

    fn check_pairs(&self, sent: &Sent, messages: &[String], what: &str) {
        let mut waiting: Vec<String> = Vec::new();
        for raw in messages {
            let message: Value = serde_json::from_str(raw).expect("JSON");
            if message["role"] == "tool" {
                let at = waiting
                    .iter()
                    .position(|id| message["tool_call_id"] == **id);
                waiting
                    .remove(at.unwrap_or_else(|| panic!("{what}: an orphaned result {raw:.200}")));
                continue;
            }
            assert!(waiting.is_empty(), "{what}: {waiting:?} before {raw:.200}");
            let calls = message["tool_calls"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            waiting = calls
                .iter()
                .filter_map(|call| call["id"].as_str().map(str::to_owned))
                .collect();
        }
        assert_eq!(sent.open_calls, waiting, "{what}: open calls");
        assert_eq!(sent.open_calls, self.story.history.open_calls(), "{what}");
    }

    fn check_window(&self, messages: &[String], rendered: &[Shown], what: &str) {
        let opening = self.story.history.instructions.len();
        let from = window(messages, opening, PROTECT);
        for (index, (shown, rendered)) in messages.iter().zip(rendered).enumerate() {
            let is_protected = index < opening || index >= from;
            if let (true, Shown::Stored(stored)) = (is_protected, rendered) {
                assert_eq!(shown, stored, "{what}: message {index} is protected");
            }
        }
    }

    /// Edits stay, and nothing changes before the first new one. Whether there is a new one.
    fn check_monotone(&self, messages: &[String], edits: &[usize], what: &str) -> bool {
        let Some(before) = &self.before else {
            return !edits.is_empty();
        };
        // An instruction that came late stands at the front.
        let late = self.story.history.instructions.len() - before.instructions;
        let moved = |index: usize| {
            if index < before.instructions {
                index
            } else {
                index + late
            }
        };
        for edit in &before.edits {
            let now = moved(*edit);
            assert!(edits.contains(&now), "{what}: the edit of {now} stays");
            assert_eq!(messages[now], before.messages[*edit], "{what}: as it was");
        }
        let old: Vec<usize> = before.edits.iter().map(|edit| moved(*edit)).collect();
        let first_new = edits.iter().find(|edit| !old.contains(edit)).copied();
        for (index, raw) in before.messages.iter().enumerate() {
            if first_new.is_none_or(|first| moved(index) < first) {
                assert_eq!(
                    messages[moved(index)],
                    *raw,
                    "{what}: the prefix, message {index}"
                );
            }
        }
        first_new.is_some()
    }

    async fn check_tokens(&self, sent: &Sent, messages: &[String], rendered: &[Shown], what: &str) {
        let after = estimate(messages, rendered);
        assert_eq!(sent.tokens.after, after, "{what}: tokens of what was sent");
        let stored: Vec<String> = rendered
            .iter()
            .map(|shown| match shown {
                Shown::Stored(raw) => raw.clone(),
                Shown::Made(made) => made.to_string(),
            })
            .collect();
        let before = estimate(&stored, rendered);
        assert_eq!(
            sent.tokens.before, before,
            "{what}: tokens of what is stored"
        );
        let shown = self.http.context(&self.id).await.tokens;
        assert_eq!(shown["estimate"], after, "{what}: tokens of the context");
        if after <= self.budget {
            return;
        }
        // Over the budget: then it was pruned as far as it goes, and it says so.
        assert!(after > self.target);
        let says = sent
            .reasons
            .iter()
            .any(|line| line.contains("could do no more"));
        assert!(
            says,
            "{what}: says that no more could be done: {:?}",
            sent.reasons
        );
        let opening = self.story.history.instructions.len();
        let from = window(messages, opening, PROTECT);
        for (index, raw) in messages.iter().enumerate().take(from).skip(opening) {
            let message: Value = serde_json::from_str(raw).expect("JSON");
            let is_large = text(&message["content"]).is_some_and(|text| text.len() > LIMIT);
            assert!(
                message["role"] != "tool" || !is_large,
                "{what}: {index} is large still"
            );
            let mut cut = message.clone();
            super::sent::without_reasoning(&mut cut);
            let last = messages
                .iter()
                .rposition(|raw| raw.contains(r#""role":"assistant""#));
            assert!(
                cut == message || last == Some(index),
                "{what}: {index} has reasoning still"
            );
        }
        let fork = self
            .http
            .fork(&self.id, &json!({}))
            .await
            .expect(201)
            .json();
        let fork = fork["id"].as_str().expect("an id");
        self.http
            .set_pruning(fork, json!({"budgetTokens": 1}))
            .await;
        let least = self.http.dispatch(fork, &json!({})).await;
        assert_eq!(least.tokens.after, after, "{what}: no less can be had");
    }

    /// What a list says of messages that are edited, and of those that are not.
    async fn check_states(&self, edits: &[usize], what: &str) {
        let items = self.http.history(&self.id).await;
        let elided = items.iter().filter(|item| item.state == "elided").count();
        assert_eq!(elided, edits.len(), "{what}: states in the list");
        assert!(
            items
                .iter()
                .all(|item| ["elided", "verbatim"].contains(&item.state.as_str()))
        );
    }

    /// Nothing was appended: the next dispatch is the same, byte for byte.
    async fn check_again(&self, sent: &Sent, what: &str) {
        let again = self.http.dispatch(&self.id, &json!({})).await;
        assert_eq!(again.dispatch, sent.dispatch + 1, "{what}: the next number");
        assert_eq!(again.items(), sent.items(), "{what}: pruning is idempotent");
        assert_eq!(again.sha256, sent.sha256, "{what}");
        assert_eq!(again.tokens, sent.tokens, "{what}");
        assert_eq!(again.cache_breakpoints, sent.cache_breakpoints, "{what}");
        let record = self.http.replay(&self.id, again.dispatch).await.record;
        assert_eq!(record["added"], 0, "{what}: nothing was added");
        assert_eq!(
            record["sharedBytes"], record["previousBytes"],
            "{what}: the whole prefix"
        );
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_dispatch_of_a_random_session_holds(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut changes = 0;
    for (seed, budget, floor, target) in [
        (1, 1_500, 1.0, 1_500),
        (2, 4_000, 0.75, 3_000),
        (3, 4_000, 1.0, 4_000),
        (4, 9_000, 0.5, 4_500),
        (5, 9_000, 0.75, 6_750),
    ] {
        let mut run = Run {
            http: &app,
            id: app.create_pruned(policy(budget, floor), &[]).await,
            story: Story::new(seed),
            before: None,
            target,
            budget,
            changes: 0,
        };
        for step in 0..12 {
            run.step(&format!("seed {seed}, budget {budget}, step {step}"))
                .await;
        }
        changes += run.changes;
    }
    assert!(changes >= 10, "something was pruned: {changes}");
}
