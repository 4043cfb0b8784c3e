//! What a tail's metadata says before any body is read: who called, what is protected, what is named.

use std::collections::{HashMap, HashSet};

use super::{Row, Rule};
use crate::domain::message::{Digest256, Role};

/// The rows of a tail and what follows from them. Messages are known by their index here.
#[derive(Debug)]
pub(super) struct History {
    /// By `seq`.
    rows: Vec<Row>,
    /// The message whose call a result answers, and which of its calls that is.
    callers: Vec<Option<(usize, usize)>>,
    /// From here on nothing is touched.
    window: usize,
    /// What `tool_choice` protects before the window.
    chosen: HashSet<usize>,
    /// Where the newest answer begins, all items of it counted in.
    newest_answer: Option<usize>,
    /// Content of all results.
    contents: HashSet<Digest256>,
}

impl History {
    pub fn new(mut rows: Vec<Row>, protect_recent: i64, tool_choice: Option<&str>) -> Self {
        rows.sort_by_key(|row| row.seq);
        let callers = callers(&rows);
        let chosen = tool_choice.map_or_else(HashSet::new, |tool| chosen(&rows, &callers, tool));
        let results = rows.iter().filter(|row| row.role == Role::Tool);
        Self {
            window: window(&rows, protect_recent),
            newest_answer: rows
                .iter()
                .rposition(|row| row.role == Role::Assistant && !row.joins),
            contents: results.map(|row| row.content_digest).collect(),
            callers,
            chosen,
            rows,
        }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn row(&self, index: usize) -> Option<&Row> {
        self.rows.get(index)
    }

    pub fn seq(&self, index: usize) -> i64 {
        self.row(index).map_or(0, |row| row.seq)
    }

    /// Index of the message whose call a result answers, and which of its calls that is.
    pub fn call(&self, result: usize) -> Option<(usize, usize)> {
        self.callers.get(result).copied().flatten()
    }

    /// The results of the calls of `caller`, the newest first.
    pub fn results(&self, caller: usize) -> Vec<usize> {
        let behind = self.rows.iter().enumerate().skip(caller + 1);
        let group = behind.take_while(|(_, row)| row.calls.is_empty() || row.joins);
        let mut results: Vec<_> = group
            .map(|(index, _)| index)
            .filter(|index| self.call(*index).is_some_and(|(its, _)| its == caller))
            .collect();
        results.reverse();
        results
    }

    /// Messages with calls of tools of which an editable result has a newer one behind it, the newest first.
    pub fn comparable_callers(&self) -> Vec<usize> {
        let mut newest: HashMap<&str, usize> = HashMap::new();
        let mut tools: HashSet<&str> = HashSet::new();
        for (index, row) in self.rows.iter().enumerate().rev() {
            let Some(tool) = row.tool_name.as_deref() else {
                continue;
            };
            if !self.is_verbatim_result(index) {
                continue;
            }
            let newest = *newest.entry(tool).or_insert(index);
            if newest > index && self.is_editable_result(index) {
                tools.insert(tool);
            }
        }
        let compared = |(index, row): (usize, &Row)| {
            let tool = row.tool_name.as_deref()?;
            let (caller, _) = self.call(index)?;
            let is_known = self.row(caller).is_some_and(|caller| !caller.erased);
            (tools.contains(tool) && is_known).then_some(caller)
        };
        let mut callers: Vec<_> = self
            .rows
            .iter()
            .enumerate()
            .rev()
            .filter_map(compared)
            .collect();
        callers.dedup();
        callers
    }

    fn is_protected(&self, index: usize) -> bool {
        index >= self.window || self.chosen.contains(&index)
    }

    /// Whether a result stands in the context as it was stored.
    pub fn is_verbatim_result(&self, index: usize) -> bool {
        self.row(index)
            .is_some_and(|row| row.role == Role::Tool && !row.erased && row.carried.is_none())
    }

    /// Whether the rules may look at a result.
    pub fn is_editable_result(&self, index: usize) -> bool {
        self.is_verbatim_result(index) && !self.is_protected(index)
    }

    /// Assistant messages whose reasoning may be dropped, oldest first. The newest is never among them,
    /// however small the window is: its provider may insist on what it signed.
    pub fn editable_thoughts(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|index| {
            self.newest_answer.is_none_or(|newest| *index < newest)
                && !self.is_protected(*index)
                && self.row(*index).is_some_and(|row| {
                    row.role == Role::Assistant && !row.erased && row.carried.is_none()
                })
        })
    }

    /// Messages that a carried breadcrumb names.
    pub fn named(&self) -> HashSet<usize> {
        let carried = self.rows.iter().filter_map(|row| row.carried);
        carried
            .filter_map(|carried| carried.names)
            .filter_map(|seq| self.rows.binary_search_by_key(&seq, |row| row.seq).ok())
            .collect()
    }

    /// The newest message that a carried edit shortened for its size.
    pub fn last_shortened(&self) -> Option<usize> {
        self.rows.iter().rposition(|row| {
            row.carried
                .is_some_and(|carried| carried.rule == Rule::Large)
        })
    }

    /// Each editable result that repeats an earlier one of the same tool, with the first such.
    pub fn duplicates(&self) -> Vec<(usize, usize)> {
        let mut first: HashMap<(&str, &Digest256), usize> = HashMap::new();
        let mut found = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            let Some(tool) = row
                .tool_name
                .as_deref()
                .filter(|_| self.is_verbatim_result(index))
            else {
                continue;
            };
            let original = *first.entry((tool, &row.content_digest)).or_insert(index);
            if original != index && self.is_editable_result(index) {
                found.push((index, original));
            }
        }
        found
    }

    /// Whether a result of that content stands in the tail.
    pub fn has_content(&self, digest: &Digest256) -> bool {
        self.contents.contains(digest)
    }
}

fn callers(rows: &[Row]) -> Vec<Option<(usize, usize)>> {
    // The calls of the newest answer that has any, in order, and where it begins.
    let mut calls: Vec<(usize, usize)> = Vec::new();
    let (mut answer, mut of_calls) = (0, 0);
    let caller = |(index, row): (usize, &Row)| {
        if !row.joins {
            answer = index;
        }
        if !row.calls.is_empty() {
            if of_calls != answer {
                calls.clear();
            }
            of_calls = answer;
            calls.extend((0..row.calls.len()).map(|call| (index, call)));
        }
        let at = usize::try_from(row.call_index?).ok()?;
        calls.get(at).copied().filter(|_| row.role == Role::Tool)
    };
    rows.iter().enumerate().map(caller).collect()
}

/// Where the newest `count` user and assistant messages begin; 0 if there are fewer.
fn window(rows: &[Row], count: i64) -> usize {
    let Ok(count) = usize::try_from(count) else {
        return rows.len();
    };
    if count == 0 {
        return rows.len();
    }
    let mut speaking = rows
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, row)| matches!(row.role, Role::User | Role::Assistant) && !row.joins);
    speaking.nth(count - 1).map_or(0, |(index, _)| index)
}

fn chosen(rows: &[Row], callers: &[Option<(usize, usize)>], tool: &str) -> HashSet<usize> {
    let calls_it = |row: &Row| {
        row.calls
            .iter()
            .any(|call| call.name.as_deref() == Some(tool))
    };
    let Some(caller) = rows.iter().rposition(calls_it) else {
        return HashSet::new();
    };
    let results = callers
        .iter()
        .enumerate()
        .filter(|(_, its)| its.is_some_and(|(its, _)| its == caller));
    results.map(|(index, _)| index).chain([caller]).collect()
}
