//! Clients that append: plainly, with ids or keys that make it safe to send again, and on a condition.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::ledger::{Acknowledged, Appended, Draft, Ledger, Listed, Pen, Session, World, array};
use crate::random::Random;
use crate::web::{Ask, Reply};

/// How long a client goes on asking once the load is over.
const LONGEST: Duration = Duration::from_secs(45);

/// How an append is made.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    /// Sent once.
    Plain,
    /// Sent until it is acknowledged: its messages have ids.
    WithIds,
    /// Sent until it is acknowledged: it has a key.
    WithKey(String),
    /// Sent once, on the condition that this is the last `seq`.
    Expecting(i64),
}

/// A client that appends to one session.
pub struct Writer {
    world: Arc<World>,
    session: Arc<Session>,
    number: usize,
    random: Random,
    pen: Pen,
    last_seq: i64,
}

/// What came of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Stored,
    Refused,
    Unknown,
}

impl Writer {
    /// A writer of its own number.
    pub fn new(world: &Arc<World>, session: &Arc<Session>, number: usize) -> Self {
        let random = Random::of(world.seed, &format!("{} writer {number}", session.title));
        Self {
            world: Arc::clone(world),
            session: Arc::clone(session),
            number,
            random,
            pen: Pen::new(&session.title, number),
            last_seq: 0,
        }
    }

    /// Appends exchanges until the load is over.
    pub async fn share(mut self) {
        while !self.world.is_over() {
            let way = match self
                .random
                .below(if self.world.idempotency { 3 } else { 2 })
            {
                0 => Way::Plain,
                1 => Way::WithIds,
                _ => Way::WithKey(format!("{}-{}", self.session.title, self.random.next())),
            };
            self.pen.with_ids = way == Way::WithIds;
            let drafts = self.pen.exchange(&mut self.random);
            self.append(&drafts, &way).await;
            sleep(self.random.millis(20, 250)).await;
        }
    }

    /// Appends on the condition that nobody else did, calls and their results apart.
    pub async fn alone(mut self) {
        while !self.world.is_over() {
            let calls = vec![
                self.pen.user(&mut self.random),
                self.pen.calls(&mut self.random),
            ];
            let mut parts = vec![calls];
            // Now and then a client gives up between a call and its result.
            for call in ["call_1", "call_2"] {
                if self.random.chance(85) {
                    parts.push(vec![self.pen.result(&mut self.random, call)]);
                }
            }
            parts.push(vec![self.pen.assistant(&mut self.random)]);
            for drafts in parts {
                let way = Way::Expecting(self.last_seq);
                if self.append(&drafts, &way).await != End::Stored {
                    self.catch_up().await;
                }
                sleep(self.random.millis(10, 150)).await;
            }
        }
    }

    /// Learns what is last.
    async fn catch_up(&mut self) {
        let ask = Ask::get("session", self.session.path(""));
        let reply = self.world.web.ask(&mut self.random, ask).await;
        let session = reply.json().unwrap_or_default();
        if let Some(last) = session.get("lastSeq").and_then(serde_json::Value::as_i64) {
            self.last_seq = last;
        }
    }

    async fn append(&mut self, drafts: &[Draft], way: &Way) -> End {
        let condition = match way {
            Way::Expecting(last) => format!(r#","expectedLastSeq":{last}"#),
            _ => String::new(),
        };
        let body = format!(r#"{{"messages":{}{condition}}}"#, array(drafts));
        let codes = [
            "SEQUENCE_CONFLICT",
            "TURN_IN_PROGRESS",
            "TOOL_CALL_NOT_FOUND",
        ];
        let again = matches!(way, Way::WithIds | Way::WithKey(_));
        let mut unsure = false;
        let mut late = None;
        loop {
            if self.world.is_over() {
                let began = *late.get_or_insert_with(Instant::now);
                if began.elapsed() > LONGEST {
                    break;
                }
            }
            let path = self.session.path("/messages");
            let mut ask = Ask::post("append", path, body.clone(), &codes);
            if let Way::WithKey(key) = way {
                ask = ask.with("idempotency-key", key.clone());
            }
            match self.world.web.ask(&mut self.random, ask).await {
                Reply::Done(answer) => {
                    let answer: Option<Appended> = serde_json::from_slice(&answer).ok();
                    self.stored(drafts, answer);
                    return End::Stored;
                }
                Reply::Nobody => continue,
                Reply::Refused(code) if code == "TURN_IN_PROGRESS" && again => {}
                Reply::Refused(code) if code != "STORAGE_UNAVAILABLE" => {
                    if unsure {
                        break;
                    }
                    let refused = drafts.iter().map(|draft| draft.stored.clone());
                    self.session.ledger().never.extend(refused);
                    return End::Refused;
                }
                Reply::Refused(_) | Reply::Broken => {
                    unsure = true;
                    if !again {
                        break;
                    }
                }
            }
            sleep(self.random.millis(50, 300)).await;
        }
        let drafts = drafts.iter().map(|draft| draft.stored.clone());
        self.session.ledger().maybe.push(drafts.collect());
        End::Unknown
    }

    /// Takes down what was acknowledged.
    fn stored(&mut self, drafts: &[Draft], answer: Option<Appended>) {
        let findings = &self.world.findings;
        let Some(answer) = answer else {
            findings.violation(format!(
                "an append's answer is unreadable: {}",
                self.session.id
            ));
            return;
        };
        findings.check(answer.data.len() == drafts.len(), || {
            format!(
                "an append of {} was answered with {}",
                drafts.len(),
                answer.data.len()
            )
        });
        for (listed, draft) in answer.data.iter().zip(drafts) {
            findings.check(listed.message.get() == draft.stored, || {
                format!(
                    "{} seq {}: not the bytes that were sent",
                    self.session.id, listed.seq
                )
            });
        }
        findings.add("messages acknowledged", answer.data.len());
        self.last_seq = answer.last_seq;
        acknowledge(&mut self.session.ledger(), &answer.data, self.number);
    }
}

/// Takes down messages that a client was told of.
pub fn acknowledge(ledger: &mut Ledger, listed: &[Listed], writer: usize) {
    let messages = listed.iter().map(|listed| Acknowledged {
        seq: listed.seq,
        id: listed.id.clone(),
        stored: listed.message.get().to_owned(),
        writer,
    });
    ledger.acknowledged.extend(messages);
}
