//! A client that sends turns, whole or streamed, and goes on after whatever came of the one before.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::ledger::{Draft, Kind, Listed, Pen, Session, World, array};
use crate::random::Random;
use crate::sse::Frames;
use crate::web::{Ask, Reply};
use crate::writers::acknowledge;

/// What the model may call.
const TOOLS: &str =
    r#"[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}]"#;
/// Codes that say that the turn failed behind the point where its messages were stored.
const FAILED: &[&str] = &[
    "MODEL_FAILED",
    "MODEL_TIMEOUT",
    "CONTEXT_OVERFLOW",
    "TURN_INTERRUPTED",
    "TURN_CANCELLED",
];
/// How long one turn is tried.
const LONGEST: Duration = Duration::from_mins(1);
/// How long a streamed turn may be silent.
const SILENCE: Duration = Duration::from_mins(1);

/// A turn as it is answered.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Turn {
    id: String,
    status: String,
    open_calls: Vec<String>,
    messages: Vec<Listed>,
}

/// What came of one request.
enum Tried {
    /// A turn that ended well.
    Ended(Box<Turn>),
    /// The messages are stored, the turn failed.
    Failed,
    /// Nothing was stored.
    Refused(String),
    /// Nobody knows.
    Unsure,
    /// It was not sent.
    NotSent,
}

/// A client of one session.
pub struct Asker {
    world: Arc<World>,
    session: Arc<Session>,
    number: usize,
    random: Random,
    pen: Pen,
}

impl Asker {
    /// A client of its own number.
    pub fn new(world: &Arc<World>, session: &Arc<Session>, number: usize) -> Self {
        Self {
            world: Arc::clone(world),
            session: Arc::clone(session),
            number,
            random: Random::of(world.seed, &format!("{} asker {number}", session.title)),
            pen: Pen::new(&session.title, number),
        }
    }

    /// Sends turns until the load is over.
    pub async fn work(mut self) {
        let mut open: Vec<String> = Vec::new();
        while !self.world.is_over() {
            // Without ids a lost answer leaves the client in the dark, which is allowed.
            self.pen.with_ids = self.random.chance(80);
            let mut drafts = Vec::new();
            // Now and then a client forgets its calls.
            if open.is_empty() || self.random.chance(10) {
                drafts.push(self.pen.user(&mut self.random));
            } else {
                for call in &open {
                    drafts.push(self.pen.result(&mut self.random, call));
                }
            }
            open = self.turn(&drafts).await;
            sleep(self.random.millis(10, 200)).await;
        }
    }

    /// One turn, sent until something is known. Gives the calls that wait for results.
    async fn turn(&mut self, drafts: &[Draft]) -> Vec<String> {
        let began = Instant::now();
        let (mut unsure, mut stored) = (false, false);
        let with_ids = self.pen.with_ids;
        while began.elapsed() < LONGEST {
            // What is stored needs not be sent again.
            let empty = stored && (!with_ids || self.random.chance(50));
            let sent = if empty { &[] } else { drafts };
            match self.send(sent, unsure || stored).await {
                Tried::Ended(turn) => {
                    self.keep(&turn);
                    return turn.open_calls;
                }
                Tried::Failed => {
                    if !stored {
                        self.certain(drafts);
                    }
                    stored = true;
                    if self.world.is_over() || self.random.chance(30) {
                        return Vec::new();
                    }
                }
                Tried::Refused(code) => {
                    let waits = code == "TURN_IN_PROGRESS";
                    if !waits || (!unsure && !stored && self.world.is_over()) {
                        self.refused(drafts, unsure, stored);
                        return Vec::new();
                    }
                }
                Tried::Unsure if !with_ids => {
                    self.refused(drafts, true, stored);
                    return Vec::new();
                }
                Tried::Unsure => unsure = true,
                Tried::NotSent => {}
            }
            sleep(self.random.millis(50, 400)).await;
        }
        self.refused(drafts, true, stored);
        Vec::new()
    }

    fn certain(&self, drafts: &[Draft]) {
        let stored = drafts.iter().map(|draft| draft.stored.clone());
        self.session.ledger().certain.extend(stored);
    }

    fn refused(&self, drafts: &[Draft], unsure: bool, stored: bool) {
        let texts: Vec<String> = drafts.iter().map(|draft| draft.stored.clone()).collect();
        let mut ledger = self.session.ledger();
        match (stored, unsure) {
            (true, _) => {}
            (false, true) => ledger.maybe.push(texts),
            (false, false) => ledger.never.extend(texts),
        }
    }

    /// Takes down a turn that ended.
    fn keep(&self, turn: &Turn) {
        let mut ledger = self.session.ledger();
        ledger.turns.push((turn.id.clone(), turn.status.clone()));
        acknowledge(&mut ledger, &turn.messages, self.number);
        self.world
            .findings
            .add("messages acknowledged", turn.messages.len());
    }

    async fn send(&mut self, drafts: &[Draft], before: bool) -> Tried {
        let stream = self.random.chance(50);
        let tools = if self.random.chance(50) {
            format!(r#","tools":{TOOLS}"#)
        } else {
            String::new()
        };
        let body = format!(
            r#"{{"messages":{},"stream":{stream}{tools}}}"#,
            array(drafts)
        );
        let mut codes = vec!["TURN_IN_PROGRESS"];
        codes.extend(FAILED);
        if before {
            // It may have been answered.
            codes.push("VALIDATION_FAILED");
        }
        if self.session.kind == Kind::Contended || before {
            codes.push("TOOL_CALL_NOT_FOUND");
        }
        let ask = Ask::post("turn", self.session.path("/turns"), body, &codes);
        let reply = if stream {
            self.stream(&ask).await
        } else {
            self.world.web.ask(&mut self.random, ask).await
        };
        match reply {
            Reply::Done(body) => self.read(&body),
            Reply::Refused(code) if FAILED.contains(&code.as_str()) => Tried::Failed,
            Reply::Refused(code) if code == "STORAGE_UNAVAILABLE" => Tried::Unsure,
            Reply::Refused(code) => Tried::Refused(code),
            Reply::Broken => Tried::Unsure,
            Reply::Nobody => Tried::NotSent,
        }
    }

    fn read(&self, body: &[u8]) -> Tried {
        if let Ok(turn) = serde_json::from_slice(body) {
            return Tried::Ended(turn);
        }
        let text = format!("{}: a turn's answer is unreadable", self.session.id);
        self.world.findings.violation(text);
        Tried::Unsure
    }

    /// A streamed turn: it begins, then come pieces, and it ends once.
    async fn stream(&mut self, ask: &Ask<'_>) -> Reply {
        let web = &self.world.web;
        let Some(address) = web.address(&mut self.random) else {
            sleep(Duration::from_millis(50)).await;
            return Reply::Nobody;
        };
        let Ok(Ok(response)) = timeout(SILENCE, web.open(&address, ask)).await else {
            self.world.findings.count("turn broken");
            return Reply::Broken;
        };
        if !response.status().is_success() {
            let reply = web.read(ask, response).await;
            if let Reply::Refused(code) = &reply {
                self.world.findings.count(format!("turn {code}"));
            }
            return reply;
        }
        let mut frames = Frames::new(response);
        let mut begun = false;
        loop {
            let Ok(next) = timeout(SILENCE, frames.next()).await else {
                let text = format!("{}: a streamed turn is silent", self.session.id);
                self.world.findings.violation(text);
                return Reply::Broken;
            };
            let Some(frame) = next else {
                self.world.findings.count("turn stream broken");
                return Reply::Broken;
            };
            let is_first = !begun && !frame.event.is_empty();
            self.world
                .findings
                .check(!is_first || frame.event == "turn.started", || {
                    format!(
                        "{}: a turn's stream begins with {}",
                        self.session.id, frame.event
                    )
                });
            begun |= is_first;
            match frame.event.as_str() {
                "turn.started" => self.begun(&frame.data),
                "turn.completed" => {
                    self.world.findings.count("turn stream done");
                    return Reply::Done(Bytes::from(frame.data));
                }
                "turn.failed" => return Reply::Refused(self.failed(ask, &frame.data)),
                _ => {}
            }
        }
    }

    /// What a stream begins with is stored already.
    fn begun(&self, data: &str) {
        match serde_json::from_str::<Turn>(data) {
            Ok(turn) => acknowledge(&mut self.session.ledger(), &turn.messages, self.number),
            Err(_) => self
                .world
                .findings
                .violation(format!("{}: turn.started is unreadable", self.session.id)),
        }
    }

    fn failed(&self, ask: &Ask<'_>, data: &str) -> String {
        let problem: Value = serde_json::from_str(data).unwrap_or_default();
        let code = problem.get("code").and_then(Value::as_str);
        let code = code.unwrap_or_default().to_owned();
        let known = FAILED.contains(&code.as_str()) || code == "STORAGE_UNAVAILABLE";
        self.world
            .findings
            .check(known, || format!("{}: a turn failed with {data}", ask.path));
        self.world.findings.count(format!("turn stream {code}"));
        code
    }
}
