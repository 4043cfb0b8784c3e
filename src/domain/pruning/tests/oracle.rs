//! The rules once more, as plainly as they can be written: every pair compared, every body at hand.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::edit::ResultText;
use super::super::failure::is_failed;
use super::super::thoughts::without_reasoning;
use super::super::{PruningPolicy, Row, Rule};
use super::support::{Session, text_of};
use crate::domain::message::{Message, Role};

/// `seq`, rule, named message, tokens saved.
pub type Made = (i64, Rule, Option<i64>, i64);

pub struct Oracle<'a> {
    session: &'a Session,
    policy: &'a PruningPolicy,
    rows: Vec<Row>,
    window: i64,
    named: BTreeSet<i64>,
    made: Vec<Made>,
}

impl<'a> Oracle<'a> {
    /// All that the rules may do, in the order in which they do it.
    pub fn run(session: &'a Session, policy: &'a PruningPolicy) -> Vec<Made> {
        let carried = session.carried.values();
        let mut oracle = Self {
            session,
            policy,
            rows: session.rows(),
            window: session.window(policy.protect_recent_turns),
            named: carried.filter_map(|edit| edit.names).collect(),
            made: Vec::new(),
        };
        if policy.collapse_duplicate_results {
            oracle.duplicates();
        }
        if policy.elide_superseded_reads {
            oracle.superseded();
        }
        oracle.large();
        if policy.drop_stale_reasoning {
            oracle.reasoning();
        }
        oracle.made
    }

    fn is_edited(&self, seq: i64) -> bool {
        self.session.carried.contains_key(&seq) || self.made.iter().any(|made| made.0 == seq)
    }

    fn is_text(&self, seq: i64) -> bool {
        let value: Value = serde_json::from_str(self.session.body(seq)).unwrap();
        match &value["content"] {
            Value::String(_) => true,
            Value::Array(parts) => parts.iter().all(|part| part["type"] == "text"),
            _ => false,
        }
    }

    fn has_crumb(&self, seq: i64) -> bool {
        self.is_text(seq) && text_of(self.session.body(seq)).contains("[precis: ")
    }

    fn results(&self, is_meant: impl Fn(&Row) -> bool) -> Vec<Row> {
        let results = self.rows.iter().filter(|row| row.role == Role::Tool);
        results.filter(|row| is_meant(row)).cloned().collect()
    }

    fn editable(&self) -> Vec<Row> {
        self.results(|row| {
            row.seq < self.window
                && !self.is_edited(row.seq)
                && self.is_text(row.seq)
                && !self.has_crumb(row.seq)
        })
    }

    fn make(&mut self, row: &Row, rule: Rule, names: Option<i64>, replacement: &str) {
        let old = self.session.body(row.seq);
        let mut message = Message::read(replacement).unwrap();
        self.session.counter.count(&mut message);
        let saved = row.tokens - i64::try_from(message.tokens).unwrap();
        let is_less_text =
            rule == Rule::Reasoning || text_of(replacement).len() < text_of(old).len();
        if saved > 0 && replacement.len() < old.len() && is_less_text {
            self.made.push((row.seq, rule, names, saved));
            self.named.extend(names);
        }
    }

    fn content(&self, seq: i64) -> Value {
        let value: Value = serde_json::from_str(self.session.body(seq)).unwrap();
        value["content"].clone()
    }

    fn duplicates(&mut self) {
        for row in self.editable() {
            if self.named.contains(&row.seq) {
                continue;
            }
            let same = self.results(|other| {
                other.seq < row.seq
                    && !self.session.carried.contains_key(&other.seq)
                    && other.tool_name == row.tool_name
                    && self.content(other.seq) == self.content(row.seq)
            });
            if let Some(first) = same.first() {
                let result = ResultText::of(self.session.body(row.seq)).unwrap();
                let body = result.replaced(&result.duplicate(self.session.id(first.seq)));
                self.make(&row, Rule::Duplicate, Some(first.seq), &body);
            }
        }
    }

    fn arguments(&self, row: &Row) -> Option<serde_json::Map<String, Value>> {
        let calls_before = |caller: &&Row| caller.seq < row.seq && !caller.calls.is_empty();
        let caller = self.rows.iter().rfind(calls_before)?;
        let body: Value = serde_json::from_str(self.session.body(caller.seq)).unwrap();
        let call = &body["tool_calls"][usize::try_from(row.call_index?).unwrap()];
        let text = call["function"]["arguments"].as_str()?;
        serde_json::from_str(text).ok()
    }

    fn covers(&self, newer: &Row, older: &Row) -> bool {
        let (Some(new), Some(old)) = (self.arguments(newer), self.arguments(older)) else {
            return false;
        };
        newer.seq > older.seq
            && newer.tool_name == older.tool_name
            && !self.is_edited(newer.seq)
            && !self.has_crumb(newer.seq)
            && !is_failed(self.session.body(newer.seq))
            && new.contains_key("file_path")
            && new.iter().all(|(name, value)| old.get(name) == Some(value))
    }

    /// Whether a breadcrumb that came in as text names it.
    fn is_named_by_text(&self, seq: i64) -> bool {
        let sign = format!("the same result as message {} above", self.session.id(seq));
        self.rows
            .iter()
            .any(|row| self.session.body(row.seq).contains(&sign))
    }

    fn superseded(&mut self) {
        for row in self.editable() {
            if self.named.contains(&row.seq) || self.is_named_by_text(row.seq) {
                continue;
            }
            let newer = self.results(|newer| self.covers(newer, &row));
            if let Some(newest) = newer.last() {
                let result = ResultText::of(self.session.body(row.seq)).unwrap();
                let text = result.superseded(&row.id, self.session.id(newest.seq));
                self.make(
                    &row,
                    Rule::Superseded,
                    Some(newest.seq),
                    &result.replaced(&text),
                );
            }
        }
    }

    fn large(&mut self) {
        let shortened = self.session.carried.values();
        let last = shortened
            .filter(|edit| edit.rule == Rule::Large)
            .map(|edit| edit.seq)
            .max();
        let (behind, ahead): (Vec<_>, Vec<_>) = self
            .editable()
            .into_iter()
            .partition(|row| Some(row.seq) < last);
        let size = |bytes: i64| usize::try_from(bytes).unwrap();
        for row in ahead.into_iter().chain(behind) {
            let result = ResultText::of(self.session.body(row.seq)).unwrap();
            let policy = self.policy;
            let (head, tail) = (size(policy.keep_head_bytes), size(policy.keep_tail_bytes));
            if result.bytes() > size(policy.max_tool_result_bytes)
                && let Some(text) = result.shortened(&row.id, head, tail)
            {
                self.make(&row, Rule::Large, None, &result.replaced(&text));
            }
        }
    }

    fn reasoning(&mut self) {
        let newest = self.rows.iter().rfind(|row| row.role == Role::Assistant);
        let newest = newest.map(|row| row.seq);
        for row in self.rows.clone() {
            let may = row.role == Role::Assistant
                && row.seq < self.window
                && Some(row.seq) != newest
                && !self.is_edited(row.seq);
            if let Some(body) = without_reasoning(self.session.body(row.seq)).filter(|_| may) {
                self.make(&row, Rule::Reasoning, None, &body);
            }
        }
    }
}
