//! What must hold of the rows of a session. A file that breaks one of these is not imported.
//!
//! Digests and lengths are computed anew from the bodies, places and totals are counted along, results are paired with
//! their calls, and the active summary must cover exactly what it was made of. Counts of tokens are taken as they
//! are: they depend on what counted them.

use std::collections::VecDeque;

use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};

use crate::domain::items;
use crate::domain::message::{Call, Message, Role};
use crate::domain::pairing::{Run, Tail};
use crate::domain::policy::{AutoCompactPolicy, CompactionPolicy, PruningPolicy};
use crate::service::AgentDocument;
use crate::storage::{SESSIONS, Table, Value};

/// Columns whose text is JSON, by table.
const JSON: [(&str, &[&str]); 6] = [
    (
        "sessions",
        &[
            "title",
            "model",
            "model_thinking",
            "instance_folder",
            "metadata",
        ],
    ),
    ("compactions", &["instructions", "model", "usage"]),
    ("messages", &["tool_name", "usage"]),
    ("elisions", &["arguments", "replacement"]),
    (
        "dispatches",
        &[
            "model",
            "parameters",
            "candidates",
            "reasons",
            "source_breakpoints",
            "breakpoints",
        ],
    ),
    ("turns", &["model", "finish", "usage", "open_calls"]),
];

/// The largest number taken: what every reader of JSON takes for a whole one.
const LARGEST: u64 = 1 << 53;

/// A row with the names of its columns.
#[derive(Clone, Copy)]
struct Row<'a> {
    table: &'static Table,
    values: &'a [Value],
}

impl<'a> Row<'a> {
    fn get(self, name: &str) -> Option<&'a Value> {
        self.values.get(self.table.place(name)?)
    }

    fn int(self, name: &str) -> Option<i64> {
        match self.get(name) {
            Some(Value::Int(value)) => *value,
            _ => None,
        }
    }

    /// A number that the table demands.
    fn number(self, name: &str) -> i64 {
        self.int(name).unwrap_or(-1)
    }

    fn flag(self, name: &str) -> bool {
        matches!(self.get(name), Some(Value::Bool(Some(true))))
    }

    fn text(self, name: &str) -> Option<&'a str> {
        match self.get(name) {
            Some(Value::Text(text)) => text.as_deref(),
            _ => None,
        }
    }

    fn bytes(self, name: &str) -> &'a [u8] {
        match self.get(name) {
            Some(Value::Bytes(Some(bytes))) => bytes,
            _ => &[],
        }
    }

    fn check_json(self) -> Result<(), String> {
        let named = JSON.iter().find(|(table, _)| *table == self.table.name);
        for name in named.map(|(_, columns)| *columns).unwrap_or_default() {
            if let Some(text) = self.text(name)
                && serde_json::from_str::<IgnoredAny>(text).is_err()
            {
                return Err(format!("`{name}` is no JSON"));
            }
        }
        Ok(())
    }

    /// Numbers go on being counted up: none may be near the end of what there is.
    fn check_numbers(self) -> Result<(), String> {
        let too_large = |value: &Value| matches!(value, Value::Int(Some(number)) if number.unsigned_abs() > LARGEST);
        match self.values.iter().position(too_large) {
            Some(at) => Err(format!(
                "`{}` is too large a number",
                self.table.columns.get(at).map_or("", |column| column.name)
            )),
            None => Ok(()),
        }
    }

    fn expect(self, name: &str, expected: i64) -> Result<(), String> {
        if self.int(name) == Some(expected) {
            return Ok(());
        }
        Err(format!(
            "`{name}` is not {expected}, which the lines before make it"
        ))
    }
}

/// Totals over messages that have a position.
#[derive(Default)]
struct Totals {
    positions: i64,
    length: i64,
    tokens: i64,
    bytes: i64,
}

/// A version of the summary.
struct Version {
    number: i64,
    based_on: i64,
    to_position: i64,
    to_seq: i64,
    digest: Vec<u8>,
    summary: Option<[u8; 32]>,
}

/// Checks a session's rows as they come.
pub(super) struct Check {
    /// The session's own numbers.
    session: Vec<Value>,
    versions: Vec<Version>,
    /// Ends of the batches of the active summary that are still to come.
    ends: Option<VecDeque<i64>>,
    batch: Sha256,
    messages: i64,
    last_seq: i64,
    instruction_tokens: i64,
    totals: Totals,
    last_role: Option<Role>,
    /// The answer of a model that the last items are parts of.
    run: Run,
    /// Calls of the newest message that has any, and which of them have their result.
    calls: Vec<(Call, bool)>,
    /// The last number, or pair of them, of the table that is being read.
    last: (&'static str, (i64, i64)),
}

impl Check {
    /// Begins with the session's own row.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn begin(values: &[Value]) -> Result<Self, String> {
        let row = Row {
            table: &SESSIONS,
            values,
        };
        row.check_json()?;
        row.check_numbers()?;
        let text = |name| row.text(name).unwrap_or_default();
        let fine = [
            (
                "compaction",
                serde_json::from_str::<CompactionPolicy>(text("compaction")).is_ok(),
            ),
            (
                "pruning",
                serde_json::from_str::<PruningPolicy>(text("pruning")).is_ok(),
            ),
            (
                "auto_compact",
                serde_json::from_str::<AutoCompactPolicy>(text("auto_compact")).is_ok(),
            ),
            (
                "agent",
                row.text("agent")
                    .is_none_or(|agent| serde_json::from_str::<AgentDocument>(agent).is_ok()),
            ),
            ("tail", serde_json::from_str::<Tail>(text("tail")).is_ok()),
            ("metadata", text("metadata").trim_start().starts_with('{')),
            ("status", ["active", "closed"].contains(&text("status"))),
            (
                "mode",
                ["chat", "task", "subagent", "daemon"].contains(&text("mode")),
            ),
            (
                "compact_count",
                (1..=99).contains(&row.number("compact_count")),
            ),
            (
                "retention_days",
                row.int("retention_days")
                    .is_none_or(|days| (0..=36_500).contains(&days)),
            ),
        ];
        if let Some((name, _)) = fine.iter().find(|(_, fine)| !fine) {
            return Err(format!("`{name}` is not what it must be"));
        }
        Ok(Self {
            session: values.to_vec(),
            versions: Vec::new(),
            ends: None,
            batch: Sha256::new(),
            messages: 0,
            last_seq: 0,
            instruction_tokens: 0,
            totals: Totals::default(),
            last_role: None,
            run: Run::default(),
            calls: Vec::new(),
            last: ("", (i64::MIN, i64::MIN)),
        })
    }

    fn session(&self) -> Row<'_> {
        Row {
            table: &SESSIONS,
            values: &self.session,
        }
    }

    /// Takes the next row.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn row(&mut self, table: &'static Table, values: &[Value]) -> Result<(), String> {
        let row = Row { table, values };
        row.check_json()?;
        row.check_numbers()?;
        self.check_order(row)?;
        match table.name {
            "compactions" => self.version(row),
            "messages" => self.message(row),
            "dispatches" | "dispatch_marks" if row.number("n") > self.count("dispatch_count") => {
                Err("`n` is larger than the session's `dispatch_count`".to_owned())
            }
            "rewrites" if row.number("counter") > self.count("rewrites") => {
                Err("`counter` is larger than the session's `rewrites`".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn count(&self, name: &str) -> i64 {
        self.session().number(name)
    }

    fn check_order(&mut self, row: Row<'_>) -> Result<(), String> {
        let mut numbers = row.table.order.iter().map(|name| row.int(name));
        // Ids of turns are in order by the time in them, and are no numbers.
        let Some(Some(first)) = numbers.next() else {
            return Ok(());
        };
        let place = (first, numbers.next().flatten().unwrap_or(0));
        if self.last.0 == row.table.name && place <= self.last.1 {
            let names = row.table.order.join("`, `");
            return Err(format!("`{names}` does not rise"));
        }
        self.last = (row.table.name, place);
        Ok(())
    }

    fn version(&mut self, row: Row<'_>) -> Result<(), String> {
        if row.bytes("digest").len() != 32 {
            return Err("`digest` is no SHA-256".to_owned());
        }
        self.versions.push(Version {
            number: row.number("version"),
            based_on: row.number("based_on"),
            to_position: row.number("to_position"),
            to_seq: row.number("to_seq"),
            digest: row.bytes("digest").to_vec(),
            summary: row.text("summary").map(|text| Sha256::digest(text).into()),
        });
        Ok(())
    }

    /// The batches that the active summary was made of, once all versions are known.
    fn find_ends(&self) -> Result<VecDeque<i64>, String> {
        let mut ends = VecDeque::new();
        let active = self.count("compaction_version");
        let mut wanted = active;
        while wanted != 0 {
            let found = self
                .versions
                .iter()
                .find(|version| version.number == wanted);
            let Some(version) = found else {
                return Err(format!(
                    "version {wanted} of the summary is missing, on which the active one rests"
                ));
            };
            let later = ends.front().is_none_or(|end| version.to_seq < *end);
            if !later || version.based_on >= version.number {
                return Err(format!(
                    "version {wanted} of the summary rests on a later one"
                ));
            }
            if wanted == active && !self.points_at(version) {
                return Err(
                    "the session's summary is not that of its `compaction_version`".to_owned(),
                );
            }
            ends.push_front(version.to_seq);
            wanted = version.based_on;
        }
        Ok(ends)
    }

    fn points_at(&self, version: &Version) -> bool {
        let session = self.session();
        let summary: Option<[u8; 32]> = session
            .text("compact_summary")
            .map(|text| Sha256::digest(text).into());
        summary.is_some()
            && summary == version.summary
            && session.int("compact_size") == Some(version.to_position)
            && session.int("compact_seq") == Some(version.to_seq)
    }

    fn message(&mut self, row: Row<'_>) -> Result<(), String> {
        if self.ends.is_none() {
            self.ends = Some(self.find_ends()?);
        }
        let body = row.text("body").unwrap_or_default();
        let message = read_row(row)?;
        let same = [
            (
                "body_digest",
                row.bytes("body_digest") == message.body_digest,
            ),
            (
                "content_digest",
                row.bytes("content_digest") == message.content_digest,
            ),
            ("role", row.text("role") == Some(message.role.as_str())),
            (
                "length",
                row.int("length") == i64::try_from(message.size.units).ok(),
            ),
            ("calls", stored_calls(row) == Some(message.calls.clone())),
            ("body", message.body == body),
        ];
        if let Some((name, _)) = same.iter().find(|(_, same)| !same) {
            return Err(format!("`{name}` is not that of the body"));
        }
        if row.number("tokens") < 0 {
            return Err("`tokens` is no count".to_owned());
        }
        if let Some(fill) = row.text("fill")
            && serde_json::from_str::<Vec<IgnoredAny>>(&format!("[{fill}]")).is_err()
        {
            return Err("`fill` is no list of messages".to_owned());
        }
        let goes_on = self.run.open && message.is_part_of_answer();
        self.check_place(row, &message, goes_on)?;
        self.check_pairing(row, &message, goes_on)?;
        self.count_message(row, &message, goes_on)
    }

    fn check_place(&self, row: Row<'_>, message: &Message, goes_on: bool) -> Result<(), String> {
        let role = message.role;
        row.expect("length_before", self.totals.length)?;
        row.expect("tokens_before", self.totals.tokens)?;
        row.expect("bytes_before", self.totals.bytes)?;
        let (starts_turn, starts_group) = if role.is_instruction() {
            if row.int("position").is_some() {
                return Err("an instruction has no `position`".to_owned());
            }
            (false, false)
        } else {
            row.expect("position", self.totals.positions)?;
            let first = self.last_role.is_none();
            let turn = first || role == Role::User && self.last_role != Some(Role::User);
            let shows = !message.shows_nothing();
            (shows && turn, shows && role != Role::Tool && !goes_on)
        };
        if row.flag("starts_turn") != starts_turn || row.flag("starts_group") != starts_group {
            return Err(
                "`starts_turn` or `starts_group` is not what its place makes it".to_owned(),
            );
        }
        Ok(())
    }

    fn check_pairing(
        &mut self,
        row: Row<'_>,
        message: &Message,
        goes_on: bool,
    ) -> Result<(), String> {
        let index = row.int("call_index");
        let Some(answers) = &message.answers else {
            if index.is_some() {
                return Err("it has a `call_index` and is no result".to_owned());
            }
            if !message.calls.is_empty() {
                let calls = message.calls.iter().cloned();
                if !(goes_on && self.run.calls) {
                    self.calls.clear();
                }
                self.calls.extend(calls.map(|call| (call, false)));
            }
            return Ok(());
        };
        let call = index
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| self.calls.get_mut(index))
            .filter(|(call, answered)| call.id == *answers && !answered);
        match call {
            Some((_, answered)) => {
                *answered = true;
                Ok(())
            }
            None => Err("it is the result of no call that waits for one".to_owned()),
        }
    }

    fn count_message(
        &mut self,
        row: Row<'_>,
        message: &Message,
        goes_on: bool,
    ) -> Result<(), String> {
        self.messages += 1;
        self.last_seq = row.number("seq");
        if self.last_seq < 1 || self.last_seq > self.count("last_seq") {
            return Err("`seq` lies outside of the session's".to_owned());
        }
        if message.role.is_instruction() {
            self.instruction_tokens = self.instruction_tokens.saturating_add(row.number("tokens"));
            return Ok(());
        }
        self.totals.positions += 1;
        self.totals.length += row.number("length");
        self.totals.tokens = self.totals.tokens.saturating_add(row.number("tokens"));
        self.totals.bytes += i64::try_from(message.stored_bytes()).unwrap_or(i64::MAX);
        if !message.shows_nothing() {
            self.last_role = Some(message.role);
            if !goes_on {
                self.run = Run {
                    open: message.is_part_of_answer(),
                    ..Run::default()
                };
            }
            self.run.calls |= !message.calls.is_empty();
        }
        self.cover(row, message)
    }

    /// Counts a message into the batch that it belongs to.
    fn cover(&mut self, row: Row<'_>, message: &Message) -> Result<(), String> {
        let seq = row.number("seq");
        let Some(end) = self.ends.as_ref().and_then(|ends| ends.front().copied()) else {
            return Ok(());
        };
        if seq > end {
            return Err("the last message that a summary covers is missing before it".to_owned());
        }
        self.batch.update(message.body_digest);
        if seq < end {
            return Ok(());
        }
        if let Some(ends) = &mut self.ends {
            ends.pop_front();
        }
        let digest = std::mem::take(&mut self.batch).finalize();
        if self.count("compact_seq") != seq {
            self.batch.update(digest);
            return Ok(());
        }
        let active = self.count("compaction_version");
        let version = self
            .versions
            .iter()
            .find(|version| version.number == active);
        if version.is_none_or(|version| version.digest != digest[..]) {
            return Err("what the active summary covers is not what it was made of".to_owned());
        }
        let session = self.session();
        session.expect("compact_size", self.totals.positions)?;
        session.expect("compact_length", self.totals.length)?;
        session.expect("compact_tokens", self.totals.tokens)?;
        session.expect("compact_bytes", self.totals.bytes)
    }

    /// Holds the session's numbers against what was counted.
    ///
    /// # Errors
    /// Which of them is another.
    pub(super) fn finish(&self) -> Result<(), String> {
        let ends = match &self.ends {
            Some(ends) => ends.clone(),
            None => self.find_ends()?,
        };
        if !ends.is_empty() {
            return Err("messages are missing that the active summary covers".to_owned());
        }
        let session = self.session();
        session.expect("message_count", self.messages)?;
        session.expect("position_count", self.totals.positions)?;
        session.expect("history_length", self.totals.length)?;
        session.expect("history_tokens", self.totals.tokens)?;
        session.expect("history_bytes", self.totals.bytes)?;
        session.expect("instruction_tokens", self.instruction_tokens)?;
        self.check_tail()
    }

    /// The end of the history as the session has it must be that of the messages: results are paired by it.
    fn check_tail(&self) -> Result<(), String> {
        let tail: Tail = self
            .session()
            .text("tail")
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let waits = tail.open_calls().next().is_some();
        let calls = tail.calls.iter().map(|one| (&one.call, one.answered));
        let same = calls.eq(self.calls.iter().map(|(call, answered)| (call, *answered)));
        if tail.last != self.last_role || tail.run.open != self.run.open || waits && !same {
            return Err("`tail` is not what the messages make it".to_owned());
        }
        Ok(())
    }
}

/// The message of a row: read from its body, or from the item that it shows.
fn read_row(row: Row<'_>) -> Result<Message, String> {
    let body = row.text("body").unwrap_or_default();
    let read = match row.text("item") {
        None => Message::read(body).map_err(|_| "`body` is no message"),
        // Erased: what it shows is all there is.
        Some("") => items::erased(body).map_err(|_| "`body` is no message"),
        Some(item) => items::read(item).map_err(|_| "`item` is no item"),
    };
    read.map_err(ToOwned::to_owned)
}

fn stored_calls(row: Row<'_>) -> Option<Vec<Call>> {
    match row.text("calls") {
        None => Some(Vec::new()),
        Some(text) => serde_json::from_str(text).ok(),
    }
}
