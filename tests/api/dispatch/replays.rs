//! A thousand dispatches over sessions that go on: each is replayed byte for byte.

use futures_util::stream::{self, StreamExt};
use rstest::rstest;
use serde_json::{Value, json};

use super::random::Story;
use super::sent::Sent;
use crate::support::{Backend, Http, TestApp};

/// Sessions, and dispatches of each: a thousand and a few on both databases together.
const SESSIONS: u64 = 8;
const DISPATCHES: usize = 63;

struct Session {
    id: String,
    story: Story,
    sent: Vec<Sent>,
    /// Its forks, each with what it dispatched.
    forks: Vec<(String, Sent)>,
}

impl Session {
    async fn step(&mut self, http: &Http) {
        match self.story.dice.below(12) {
            0 => {
                let percent = 10 + self.story.dice.below(80);
                let keep = self.story.dice.below(3);
                let body =
                    json!({"compactCount": percent, "keepRecentTurns": keep, "boundary": "step"});
                http.compact(&self.id, &body).await.expect(200);
            }
            1 => {
                let versions = http.compactions(&self.id).await.len();
                let version = self.story.dice.below(versions + 1) as u64;
                // A version that would hide an open call is refused.
                let reply = http.restore(&self.id, version).await;
                assert!([200, 409].contains(&reply.status), "{reply}");
            }
            2 => {
                let fork = http.fork(&self.id, &json!({})).await.expect(201).json();
                let fork = fork["id"].as_str().expect("an id").to_owned();
                let sent = http.dispatch(&fork, &json!({})).await;
                self.forks.push((fork, sent));
            }
            3 => {
                let budget = 1_000 + self.story.dice.below(6_000);
                let enabled = self.story.dice.below(4) > 0;
                let policy = json!({"budgetTokens": budget, "enabled": enabled});
                http.set_pruning(&self.id, policy).await;
            }
            _ => {
                let count = 1 + self.story.dice.below(3);
                let messages = self.story.go_on(count);
                http.append(&self.id, &messages).await;
            }
        }
        let body = self.body();
        let sent = http.dispatch(&self.id, &body).await;
        assert_eq!(
            sent.dispatch,
            self.sent.len() as u64 + 1,
            "numbers without a gap"
        );
        self.sent.push(sent);
    }

    fn body(&mut self) -> Value {
        match self.story.dice.below(5) {
            0 => json!({"format": "anthropic"}),
            1 => {
                json!({"contextWindow": 2_000 + self.story.dice.below(20_000), "reservedTokens": 100})
            }
            2 => json!({"tool_choice": {"function": {"name": "run"}}, "model": "m"}),
            _ => json!({}),
        }
    }

    async fn check(&self, http: &Http) {
        for sent in &self.sent {
            http.replays_as(&self.id, sent, "much later").await;
        }
        for (fork, sent) in &self.forks {
            http.replays_as(fork, sent, "a fork").await;
        }
    }
}

async fn run(http: &Http, seed: u64) -> usize {
    let policy = json!({"enabled": true, "budgetTokens": 2_000, "protectRecentTurns": 2, "maxToolResultBytes": 900,
        "keepHeadBytes": 120, "keepTailBytes": 80, "milestoneTokens": 1_000, "floorRatio": 0.8});
    let mut session = Session {
        id: http.create_pruned(policy, &[]).await,
        story: Story::new(seed * 77),
        sent: Vec::new(),
        forks: Vec::new(),
    };
    for _ in 0..DISPATCHES {
        session.step(http).await;
    }
    session.check(http).await;
    session.sent.len() + session.forks.len()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_random_dispatches_are_replayed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let runs = stream::iter(1..=SESSIONS).map(|seed| run(&app, seed));
    let done: Vec<usize> = runs.buffer_unordered(2).collect().await;
    assert!(done.iter().sum::<usize>() >= 500, "{done:?}");
}
