//! What clients know: the messages that they sent, and what they were told about them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::findings::Findings;
use crate::model::Model;
use crate::random::Random;
use crate::server::Replica;
use crate::web::{CONTENT_MARK, Web};

/// Everything that the tasks of a run share.
pub struct World {
    pub seed: u64,
    pub web: Web,
    pub replicas: Vec<Arc<Replica>>,
    pub model: Model,
    pub findings: Arc<Findings>,
    pub sessions: Mutex<Vec<Arc<Session>>>,
    /// Whether appends with `Idempotency-Key` are sent.
    pub idempotency: bool,
    pub over: AtomicBool,
}

impl World {
    /// Whether the load ends.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// All sessions that clients work with.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.lock();
        sessions.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Who works with a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Several writers at once.
    Shared,
    /// One writer, which says what it believes to be the last message.
    Sole,
    /// One client that sends turns.
    Turns,
    /// A client that sends turns, and one that appends between them.
    Contended,
}

/// A session and what is known of it.
pub struct Session {
    pub id: String,
    pub title: String,
    pub kind: Kind,
    pub prunes: bool,
    ledger: Mutex<Ledger>,
}

impl Session {
    /// A session of which nothing is known yet.
    pub fn new(id: String, title: String, kind: Kind, prunes: bool) -> Self {
        Self {
            id,
            title,
            kind,
            prunes,
            ledger: Mutex::default(),
        }
    }

    /// What is known.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A path below the session.
    pub fn path(&self, rest: &str) -> String {
        format!("/sessions/{}{rest}", self.id)
    }
}

/// A message that a client was told of.
#[derive(Debug, Clone)]
pub struct Acknowledged {
    pub seq: i64,
    pub id: String,
    pub stored: String,
    /// Who sent it, counted from 0 in its session.
    pub writer: usize,
}

/// What the clients of a session know.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Messages that are there, and where.
    pub acknowledged: Vec<Acknowledged>,
    /// Messages that are there once, wherever.
    pub certain: Vec<String>,
    /// Appends that are there as a whole or not at all.
    pub maybe: Vec<Vec<String>>,
    /// Messages that were refused.
    pub never: Vec<String>,
    /// Events as they came, with their numbers.
    pub events: Vec<(i64, String)>,
    /// Numbers of dispatches, with the digest of what was handed out.
    pub dispatches: Vec<(i64, String)>,
    /// Ids of turns that ended, with their status.
    pub turns: Vec<(String, String)>,
    /// Versions of compactions that were made, with their digests.
    pub compactions: Vec<(i64, String)>,
    /// Ids of forks, with the last `seq` that they have.
    pub forks: Vec<(String, i64)>,
}

/// A message before it is sent.
#[derive(Debug, Clone)]
pub struct Draft {
    /// What is sent.
    pub sent: String,
    /// What is to be stored.
    pub stored: String,
}

impl Draft {
    /// A message, with an id of the client's own if there is one.
    pub fn new(stored: String, id: Option<&str>) -> Self {
        let sent = match (id, stored.strip_prefix('{')) {
            (Some(id), Some(rest)) => format!("{{\"precis\":{{\"id\":\"{id}\"}},{rest}"),
            _ => stored.clone(),
        };
        Self { sent, stored }
    }
}

/// The body of an append, or the messages of a turn.
pub fn array(drafts: &[Draft]) -> String {
    let sent: Vec<&str> = drafts.iter().map(|draft| draft.sent.as_str()).collect();
    format!("[{}]", sent.join(","))
}

/// Makes the messages of one writer, each unlike any other.
pub struct Pen {
    name: String,
    count: u64,
    /// Ids of the client's own.
    pub with_ids: bool,
}

impl Pen {
    /// The pen of a writer of a session.
    pub fn new(session: &str, writer: usize) -> Self {
        Self {
            name: format!("{session}.{writer}"),
            count: 0,
            with_ids: false,
        }
    }

    fn draft(&mut self, random: &mut Random, write: impl FnOnce(&str) -> String) -> Draft {
        self.count += 1;
        let name = format!("{}.{}", self.name, self.count);
        let mut text = format!("{CONTENT_MARK}{name};");
        let words = if random.chance(6) {
            random.below(700)
        } else {
            random.below(20)
        };
        for _ in 0..words {
            text.push_str(
                random
                    .pick(&[
                        " word",
                        " caf\\u00e9",
                        " \u{6f22}\u{5b57}",
                        "\\n- item",
                        " 0.10",
                    ])
                    .copied()
                    .unwrap_or_default(),
            );
        }
        let id = self
            .with_ids
            .then(|| format!("own-{name}").replace('.', "-"));
        Draft::new(write(&text), id.as_deref())
    }

    /// A user's message, spelled in one of several ways.
    pub fn user(&mut self, random: &mut Random) -> Draft {
        let way = random.below(3);
        self.draft(random, |text| match way {
            0 => format!(r#"{{"role":"user","content":"{text}"}}"#),
            1 => {
                format!(r#"{{ "content" : "{text}", "role":"user", "x_n": 1.50e+2, "x_n2":[ ] }}"#)
            }
            _ => format!(r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}"#),
        })
    }

    /// An answer without calls.
    pub fn assistant(&mut self, random: &mut Random) -> Draft {
        self.draft(random, |text| {
            format!(r#"{{"role":"assistant","content":"{text}","reasoning_content":"thought"}}"#)
        })
    }

    /// An answer with two calls, whose ids other answers use as well.
    pub fn calls(&mut self, random: &mut Random) -> Draft {
        self.draft(random, |text| {
            let call = |id: &str| {
                format!(
                    r#"{{"id":"{id}","type":"function","function":{{"name":"look","arguments":"{{ not json"}}}}"#
                )
            };
            format!(
                r#"{{"role":"assistant","content":"{text}","tool_calls":[{}, {}]}}"#,
                call("call_1"),
                call("call_2")
            )
        })
    }

    /// The result of a call.
    pub fn result(&mut self, random: &mut Random, call: &str) -> Draft {
        self.draft(random, |text| {
            format!(r#"{{"role":"tool","tool_call_id":"{call}","content":"{text}"}}"#)
        })
    }

    /// A few messages that belong together.
    pub fn exchange(&mut self, random: &mut Random) -> Vec<Draft> {
        match random.below(4) {
            0 => vec![self.user(random)],
            1 => vec![self.user(random), self.assistant(random)],
            2 => vec![
                self.user(random),
                self.calls(random),
                self.result(random, "call_2"),
                self.result(random, "call_1"),
                self.assistant(random),
            ],
            // One call without a result.
            _ => vec![
                self.user(random),
                self.calls(random),
                self.result(random, "call_1"),
                self.user(random),
                self.assistant(random),
            ],
        }
    }
}

/// A message as the service lists it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    pub id: String,
    pub seq: i64,
    pub position: Option<i64>,
    pub length: i64,
    pub state: String,
    pub incomplete: bool,
    pub message: Box<RawValue>,
}

/// The answer to an append.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Appended {
    pub data: Vec<Listed>,
    pub last_seq: i64,
}

/// A page of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    pub data: Vec<T>,
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_json_and_unlike_any_other() {
        let (mut pen, mut random) = (Pen::new("main0", 1), Random::new(3));
        let mut seen = std::collections::HashSet::new();
        for n in 0..200 {
            pen.with_ids = n % 2 == 0;
            for draft in pen.exchange(&mut random) {
                let sent: serde_json::Value = serde_json::from_str(&draft.sent).unwrap();
                let stored: serde_json::Value = serde_json::from_str(&draft.stored).unwrap();
                assert_eq!(sent.get("precis").is_some(), pen.with_ids);
                assert_eq!(stored.get("precis"), None);
                assert_eq!(sent.get("content"), stored.get("content"));
                assert!(seen.insert(draft.stored), "a message came twice");
            }
        }
    }
}
