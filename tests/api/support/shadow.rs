//! A session as a plain list of messages and versions, changed by the words of the contract, and
//! compared with the service after each step. It holds what each summary must know (the marks of
//! its messages), so that being covered once is checked by content, not by numbers.

use serde_json::{Value, json};

use super::chain;
use super::http::{Http, Item};
use super::model::marks;
use super::oracle::{History, Message, Plan};

#[derive(Clone, Debug)]
pub struct Stored {
    pub seq: u64,
    pub id: String,
    pub raw: String,
    pub erased: bool,
}

#[derive(Clone, Debug)]
pub struct Version {
    pub number: u64,
    pub based_on: u64,
    pub from: usize,
    pub to: usize,
    /// None once a message it covers was changed or is gone.
    pub summary: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Shadow {
    pub id: String,
    pub messages: Vec<Stored>,
    pub versions: Vec<Version>,
    /// The active version; 0 is none.
    pub active: u64,
    pub last_seq: u64,
    /// Appended here, not yet sent.
    pending: Vec<String>,
    /// Marks that must not be readable anywhere in this session any more.
    gone: Vec<String>,
    /// Ids that were messages once, and of those that were edited or erased.
    touched: Vec<String>,
    pub closed: bool,
}

impl Stored {
    fn is_instruction(&self) -> bool {
        let message = Message::read(&self.raw);
        matches!(message.role.as_str(), "system" | "developer")
    }
}

impl Shadow {
    pub async fn create(http: &Http) -> Self {
        Self {
            id: http.create(&json!({})).await,
            messages: Vec::new(),
            versions: Vec::new(),
            active: 0,
            last_seq: 0,
            pending: Vec::new(),
            gone: Vec::new(),
            touched: Vec::new(),
            closed: false,
        }
    }

    /// The history as it will be once everything is sent.
    pub fn history(&self) -> History {
        let stored = self.messages.iter();
        let stored = stored.filter(|message| !(message.erased && message.is_instruction()));
        let raws = stored.map(|message| &message.raw).chain(&self.pending);
        History::new(&raws.cloned().collect::<Vec<_>>())
    }

    /// Positions by index of `messages`; None for instructions.
    fn positions(&self) -> Vec<Option<usize>> {
        let mut next = 0;
        let place = |message: &Stored| {
            if message.is_instruction() {
                return None;
            }
            next += 1;
            Some(next - 1)
        };
        self.messages.iter().map(place).collect()
    }

    /// The position of the message of that id; None for instructions, and if it is gone.
    pub fn position(&self, id: &str) -> Option<usize> {
        let index = self.messages.iter().position(|one| one.id == id)?;
        self.positions()[index]
    }

    fn count(&self) -> usize {
        self.positions().iter().flatten().count()
    }

    fn active(&self) -> Option<&Version> {
        self.versions.iter().find(|v| v.number == self.active)
    }

    pub fn size(&self) -> usize {
        self.active().map_or(0, |version| version.to)
    }

    pub fn summary(&self) -> Option<&str> {
        self.active()?.summary.as_deref()
    }

    /// Appends with the next request that needs it.
    pub fn push(&mut self, raw: String) {
        self.pending.push(raw);
    }

    pub async fn flush(&mut self, http: &Http) {
        if self.pending.is_empty() {
            return;
        }
        let raws = std::mem::take(&mut self.pending);
        let items = http.append(&self.id, &raws).await;
        for (raw, item) in raws.into_iter().zip(items) {
            let seq = item["seq"].as_u64().expect("a seq");
            assert!(seq > self.last_seq, "a seq is never used twice: {item}");
            self.last_seq = seq;
            let id = item["id"].as_str().expect("an id").to_owned();
            self.messages.push(Stored {
                seq,
                id,
                raw,
                erased: false,
            });
        }
    }

    /// Compacts, compares the outcome with the plan, and takes over the new version.
    pub async fn compact(&mut self, http: &Http, body: &Value, plan: Plan, what: &str) {
        let size = self.size();
        let what = format!("{what}, {body} at pointer {size}");
        let answer = http.compact(&self.id, body).await.expect(200).json();
        let expected = plan.size_after(size);
        assert_eq!(answer["newSize"], expected, "{what}: newSize in {answer:#}");
        assert_eq!(answer["compactedCount"], expected - size, "{what}: count");
        assert_eq!(answer["alreadyUpToDate"], expected == size, "{what}");
        assert!(
            plan.reasons().contains(&answer["reason"].as_str()),
            "{what}: expected one of {:?}, got {}",
            plan.reasons(),
            answer["reason"]
        );
        if expected > size {
            let record = &answer["compaction"];
            let version = self.versions.iter().map(|v| v.number).max().unwrap_or(0) + 1;
            assert_eq!(record["version"], version, "{what}: the next version");
            let summary = record["summary"].as_str().expect("a summary").to_owned();
            self.versions.push(Version {
                number: version,
                based_on: self.active,
                from: size,
                to: expected,
                summary: Some(summary),
            });
            self.active = version;
        }
    }

    /// Forgets what comes after `to`.
    pub async fn rewind(&mut self, http: &Http, to: u64) {
        let session = http.rewind(&self.id, to).await.expect(200).json();
        let (kept, lost): (Vec<_>, Vec<_>) = self
            .messages
            .drain(..)
            .partition(|message| message.seq <= to);
        self.messages = kept;
        for message in &lost {
            self.gone.extend(marks(&message.raw));
            self.touched.push(message.id.clone());
        }
        self.invalidate(self.count());
        assert_eq!(
            session,
            http.session(&self.id).await,
            "the session as it is"
        );
    }

    /// Every version that covers more than the first `end` positions has lost its text.
    fn invalidate(&mut self, end: usize) {
        for version in &mut self.versions {
            if version.to > end {
                version.summary = None;
            }
        }
        let limit = self.history().coverable();
        if self.size() > end.min(limit) {
            let usable = |v: &&Version| v.summary.is_some() && self.may_stand_for(v.to);
            let left = self.versions.iter().filter(usable);
            self.active = left.map(|v| v.number).max().unwrap_or(0);
        }
    }

    fn may_stand_for(&self, end: usize) -> bool {
        let history = self.history();
        end <= history.coverable() && history.may_end(end)
    }

    pub async fn restore(&mut self, http: &Http, version: u64) {
        let known = self.versions.iter().find(|v| v.number == version);
        let reply = http.restore(&self.id, version).await;
        match known {
            None if version > 0 => drop(reply.problem(404, "COMPACTION_NOT_FOUND")),
            Some(known) if known.summary.is_none() || !self.may_stand_for(known.to) => {
                reply.problem(409, "COMPACTION_CONFLICT");
                assert_eq!(reply.header("retry-after"), None, "no time heals it");
            }
            _ => {
                reply.expect(200);
                self.active = version;
            }
        }
    }

    pub async fn edit(&mut self, http: &Http, index: usize, raw: &str) {
        let id = self.messages[index].id.clone();
        http.replace(&self.id, &id, raw).await.expect(200);
        self.changed(index, raw.to_owned());
    }

    pub async fn erase(&mut self, http: &Http, index: usize) {
        let id = self.messages[index].id.clone();
        http.erase(&self.id, &id).await.expect(204);
        let item = item(http, &self.id, &id).await;
        assert_eq!(item.state, "erased", "the state of an erased message");
        check_erased(&self.messages[index].raw, item.message.get());
        self.changed(index, item.message.get().to_owned());
        self.messages[index].erased = true;
    }

    fn changed(&mut self, index: usize, raw: String) {
        let old = std::mem::replace(&mut self.messages[index].raw, raw);
        self.gone.extend(marks(&old));
        self.touched.push(self.messages[index].id.clone());
        if let Some(position) = self.positions()[index] {
            self.invalidate(position);
        }
    }

    pub async fn reset(&mut self, http: &Http) {
        http.post_empty(&format!("/sessions/{}/reset", self.id))
            .await
            .expect(200);
        for message in self.messages.drain(..) {
            self.gone.extend(marks(&message.raw));
            self.touched.push(message.id);
        }
        self.versions.clear();
        self.active = 0;
    }

    /// The same session under another id, up to `at`.
    pub async fn fork(&self, http: &Http, at: Option<u64>) -> Self {
        let body = at.map_or_else(|| json!({}), |at| json!({"atSeq": at}));
        let reply = http.fork(&self.id, &body).await.expect(201);
        let session = reply.json();
        let id = session["id"].as_str().expect("an id").to_owned();
        assert_ne!(id, self.id, "a fork is another session");
        let location = reply.header("location").unwrap_or_default();
        assert!(location.ends_with(&format!("/sessions/{id}")), "{location}");
        let mut copy = self.clone();
        copy.id = id;
        copy.closed = false;
        if let Some(at) = at {
            copy.messages.retain(|message| message.seq <= at);
            copy.invalidate(copy.count());
            // Whether the fork keeps the record of a version that covers more than it has is not
            // said; a text of it must not be there.
            let records = http.compactions(&copy.id).await;
            copy.versions.retain(|version| {
                version.summary.is_some()
                    || records
                        .iter()
                        .any(|record| record["version"] == version.number)
            });
            copy.last_seq = session["lastSeq"].as_u64().expect("a lastSeq");
        }
        copy
    }

    /// Panics unless the service says the same.
    pub async fn check(&self, http: &Http, what: &str) {
        let session = http.session(&self.id).await;
        for (member, value) in [
            ("compactionVersion", json!(self.active)),
            ("compactSize", json!(self.size())),
            ("compactSummary", json!(self.summary())),
            ("lastSeq", json!(self.last_seq)),
            ("messageCount", json!(self.messages.len())),
            (
                "status",
                json!(if self.closed { "closed" } else { "active" }),
            ),
        ] {
            assert_eq!(session[member], value, "{what}: `{member}` in {session:#}");
        }
        chain::check_context(http, &self.id, &self.history(), what).await;
        self.check_records(&http.compactions(&self.id).await, what);
        self.check_messages(&http.history(&self.id).await, what);
        self.check_marks(what);
    }

    fn check_records(&self, records: &[Value], what: &str) {
        let shown: Vec<Value> = records
            .iter()
            .map(|record| {
                let based_on = record["basedOn"].as_u64().unwrap_or(0);
                json!([
                    record["version"],
                    based_on,
                    record["from"],
                    record["to"],
                    record["summary"]
                ])
            })
            .collect();
        let expected: Vec<Value> = self
            .versions
            .iter()
            .map(|v| json!([v.number, v.based_on, v.from, v.to, v.summary]))
            .collect();
        assert_eq!(
            shown, expected,
            "{what}: version, basedOn, from, to, summary"
        );
        // Back from the active version: contiguous down to the first message.
        let mut version = self.active();
        while let Some(current) = version {
            version = self.versions.iter().find(|v| v.number == current.based_on);
            let end = version.map_or(0, |v| v.to);
            assert_eq!(current.from, end, "{what}: {current:?} follows {version:?}");
        }
    }

    fn check_messages(&self, items: &[Item], what: &str) {
        assert_eq!(items.len(), self.messages.len(), "{what}: every message");
        let size = self.size();
        for ((item, stored), position) in items.iter().zip(&self.messages).zip(self.positions()) {
            let what = format!("{what}: message {} of {}", item.seq, self.id);
            assert_eq!(item.seq, stored.seq, "{what}: seq");
            assert_eq!(item.id, stored.id, "{what}: id");
            assert_eq!(item.position, position, "{what}: position");
            assert_eq!(item.message.get(), stored.raw, "{what}: bytes");
            let length = Message::read(&stored.raw).length;
            assert_eq!(item.length, length, "{what}: length");
            let state = match position {
                _ if stored.erased => "erased",
                Some(position) if position < size => "summarised",
                _ => "verbatim",
            };
            assert_eq!(item.state, state, "{what}: state");
        }
    }

    /// The active summary knows each message before the pointer, and no other. It holds for a model
    /// that lists what it was shown.
    fn check_marks(&self, what: &str) {
        let Some(summary) = self.summary() else {
            return;
        };
        let size = self.size();
        let covered: Vec<String> = self
            .messages
            .iter()
            .zip(self.positions())
            .filter(|(_, position)| position.is_some_and(|position| position < size))
            .flat_map(|(message, _)| marks(&message.raw))
            .collect();
        assert_eq!(
            marks(summary),
            covered,
            "{what}: each message is covered once, by the summary or verbatim"
        );
    }

    /// Panics if anything that was changed, erased, rewound or reset can be read anywhere.
    pub async fn check_traces(&self, http: &Http, what: &str) {
        if self.gone.is_empty() {
            return;
        }
        let root = format!("/sessions/{}", self.id);
        let mut paths = vec![
            root.clone(),
            format!("{root}/messages?limit=1000"),
            format!("{root}/messages?limit=1000&order=desc"),
            format!("{root}/context"),
            format!("{root}/compactions?limit=1000"),
        ];
        paths.extend(
            self.touched
                .iter()
                .map(|id| format!("{root}/messages/{id}")),
        );
        paths.extend(
            self.versions
                .iter()
                .map(|v| format!("{root}/compactions/{}", v.number)),
        );
        let mut bodies = Vec::new();
        for path in paths {
            bodies.push(http.get(&path).await);
        }
        if !self.closed {
            let dry = json!({"dryRun": true, "compactCount": 99});
            bodies.push(http.compact(&self.id, &dry).await);
        }
        for reply in bodies {
            let text = String::from_utf8_lossy(&reply.body);
            for mark in &self.gone {
                assert!(!text.contains(mark), "{what}: {mark} is gone, but: {reply}");
            }
        }
    }
}

pub async fn item(http: &Http, session: &str, message: &str) -> Item {
    let path = format!("/sessions/{session}/messages/{message}");
    let reply = http.get(&path).await.expect(200);
    serde_json::from_slice(&reply.body).unwrap_or_else(|cause| panic!("an item ({cause}): {reply}"))
}

/// What is left of an erased message: its role, its calls by id and name, the id it answers.
#[track_caller]
pub fn check_erased(before: &str, after: &str) {
    let before: Value = serde_json::from_str(before).expect("JSON");
    let after: Value = serde_json::from_str(after).expect("JSON");
    assert_eq!(after["role"], before["role"], "the role stays: {after}");
    assert_eq!(after["content"], "[erased]", "the content is gone: {after}");
    assert_eq!(after["tool_call_id"], before["tool_call_id"], "{after}");
    let calls = |message: &Value| {
        message["tool_calls"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let (old, new) = (calls(&before), calls(&after));
    assert_eq!(old.len(), new.len(), "its calls stay: {after}");
    for (old, new) in old.iter().zip(&new) {
        assert_eq!(new["id"], old["id"], "{after}");
        assert_eq!(new["function"]["name"], old["function"]["name"], "{after}");
        assert_eq!(new["function"]["arguments"], "{}", "{after}");
    }
}
