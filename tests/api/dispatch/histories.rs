//! Everything that can be done to a session, in any order, with a dispatch after each: the context is what
//! the history makes of it but for edits, and a past dispatch is replayed exactly if all it was made of is
//! still there.

use rstest::rstest;
use serde_json::{Value, json};

use super::random::Story;
use super::sent::{Sent, edits};
use crate::support::messages::raws;
use crate::support::oracle::{Shown, units};
use crate::support::shadow::Shadow;
use crate::support::{Backend, Http, Request, TestApp, strict_anthropic};

/// A dispatch, and what it was made of.
struct Past {
    sent: Sent,
    messages: Vec<(u64, String)>,
    version: u64,
    summary: Option<String>,
}

struct Run<'a> {
    http: &'a Http,
    story: Story,
    shadow: Shadow,
    past: Vec<Past>,
    /// Edits that were seen, and dispatches that could not be shown.
    edited: usize,
    gone: usize,
}

impl Run<'_> {
    async fn change(&mut self, what: &str) {
        let count = self.shadow.messages.len();
        match self.story.dice.below(16) {
            0..=1 => self.compact(what).await,
            2 if count > 0 => {
                let most = usize::try_from(self.shadow.last_seq).expect("small");
                let back = self.story.dice.below(most.min(12));
                self.shadow.rewind(self.http, (most - back) as u64).await;
            }
            3 if count > 0 => {
                let index = self.story.dice.below(count);
                self.shadow.erase(self.http, index).await;
            }
            4 if count > 0 => self.edit(count).await,
            5 => {
                let version = self.story.dice.below(self.shadow.versions.len() + 1);
                self.shadow.restore(self.http, version as u64).await;
            }
            6 => {
                let back = self.story.dice.below(4) as u64;
                let at = self.shadow.last_seq.checked_sub(back).filter(|_| back > 0);
                self.shadow = self.shadow.fork(self.http, at).await;
                self.past.clear();
            }
            _ => {
                self.story.history = self.shadow.history();
                let count = 1 + self.story.dice.below(6);
                for raw in self.story.go_on(count) {
                    self.shadow.push(raw);
                }
                self.shadow.flush(self.http).await;
            }
        }
    }

    async fn compact(&mut self, what: &str) {
        let percent = 20 + self.story.dice.below(79);
        let request = match self.story.dice.below(2) {
            0 => Request::percent(percent),
            _ => Request::step(percent),
        };
        let (size, summary) = (self.shadow.size(), self.shadow.summary().map_or(0, units));
        let plan = self.shadow.history().plan(size, summary, request);
        self.shadow
            .compact(self.http, &request.body(), plan, what)
            .await;
    }

    async fn edit(&mut self, count: usize) {
        let index = self.story.dice.below(count);
        let raw = &self.shadow.messages[index].raw;
        let mut message: Value = serde_json::from_str(raw).expect("JSON");
        message["content"] = json!(format!(
            "edited {} {}",
            self.past.len(),
            "y".repeat(self.story.dice.below(3_000))
        ));
        let raw = message.to_string();
        self.shadow.edit(self.http, index, &raw).await;
    }

    async fn dispatch(&mut self, what: &str) {
        let id = self.shadow.id.clone();
        let sent = self.http.dispatch(&id, &json!({})).await;
        let rendered = self
            .shadow
            .history()
            .render(self.shadow.size(), self.shadow.summary());
        let shown = sent.messages();
        let edited = edits(&shown, &rendered, what);
        for index in &edited {
            if let Shown::Stored(stored) = &rendered[*index] {
                self.check_breadcrumb(&shown[*index], stored, what);
            }
        }
        self.edited += edited.len();
        let context = self.http.context(&id).await;
        assert_eq!(
            raws(&context.messages),
            shown,
            "{what}: GET is the dispatch"
        );
        assert_eq!(
            context.tokens["estimate"], sent.tokens.after,
            "{what}: tokens"
        );
        assert_eq!(context.open_calls, sent.open_calls, "{what}: open calls");
        let reply = self
            .http
            .get(&format!("/sessions/{id}/context?format=anthropic"))
            .await;
        let other = reply.expect(200).json();
        strict_anthropic::check(&other["system"], &other["messages"], what);
        let messages = self.shadow.messages.iter();
        self.past.push(Past {
            messages: messages.map(|one| (one.seq, one.raw.clone())).collect(),
            version: self.shadow.active,
            summary: self.shadow.summary().map(str::to_owned),
            sent,
        });
    }

    /// A breadcrumb names nothing but what the context shows, and as the same only what is the same.
    fn check_breadcrumb(&self, shown: &str, stored: &str, what: &str) {
        let ids = shown.match_indices("msg_").map(|(at, _)| {
            let rest = &shown[at..];
            let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric());
            &rest[..end.unwrap_or(rest.len())]
        });
        for id in ids {
            let named = self.shadow.messages.iter().find(|one| one.id == id);
            let named = named.unwrap_or_else(|| panic!("{what}: {id} is gone: {shown}"));
            let shown_at = self.shadow.position(id);
            let is_shown = shown_at.is_some_and(|position| position >= self.shadow.size());
            assert!(
                is_shown && !named.erased,
                "{what}: {id} is not shown: {shown}"
            );
            let content = |raw: &str| {
                let message: Value = serde_json::from_str(raw).expect("JSON");
                message["content"].clone()
            };
            if shown.contains("the same result as") {
                assert_eq!(
                    content(&named.raw),
                    content(stored),
                    "{what}: {id} is the same"
                );
            }
        }
    }

    async fn check_past(&mut self, what: &str) {
        for past in &self.past {
            let now = &self.shadow.messages;
            let is_there = |(seq, raw): &(u64, String)| {
                now.iter().any(|one| one.seq == *seq && one.raw == *raw)
            };
            let version = self
                .shadow
                .versions
                .iter()
                .find(|one| one.number == past.version);
            let tells = past.version == 0 || version.is_some_and(|one| one.summary == past.summary);
            let n = past.sent.dispatch;
            if past.messages.iter().all(is_there) {
                assert!(
                    tells,
                    "{what}: the summary of {n} is there as its messages are"
                );
                self.http
                    .replays_as(&self.shadow.id, &past.sent, what)
                    .await;
                continue;
            }
            self.gone += 1;
            let replay = self.http.replay(&self.shadow.id, n).await;
            assert!(!replay.is_possible(), "{what}: {n} cannot be shown");
            let last = past.sent.last_seq;
            let missing = replay.missing();
            assert!(
                !missing.is_empty() && missing.iter().all(|one| one.1 <= last),
                "{what}: {missing:?}"
            );
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn any_history_is_dispatched_and_replayed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let policy = json!({"enabled": true, "budgetTokens": 1_500, "protectRecentTurns": 2, "maxToolResultBytes": 900,
        "keepHeadBytes": 120, "keepTailBytes": 80, "milestoneTokens": 900});
    let (mut edited, mut gone) = (0, 0);
    for seed in 1..=3 {
        let mut run = Run {
            http: &app,
            story: Story::new(seed * 31),
            shadow: Shadow::create(&app).await,
            past: Vec::new(),
            edited: 0,
            gone: 0,
        };
        app.set_pruning(&run.shadow.id, policy.clone()).await;
        for step in 0..40 {
            let what = format!("seed {seed}, step {step}");
            run.change(&what).await;
            run.dispatch(&what).await;
            if step % 13 == 12 {
                run.check_past(&what).await;
            }
        }
        run.check_past(&format!("seed {seed}, at last")).await;
        edited += run.edited;
        gone += run.gone;
    }
    assert!(edited > 50 && gone > 20, "{edited} edits, {gone} gone");
}
