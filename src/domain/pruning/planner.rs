//! The planner: the four rules one after the other, until the target is met.
//!
//! It asks for bodies in rounds. A round asks for no more than what may be needed to meet the target,
//! which is seldom much, and twice as much each time that this was not enough. How reading is divided
//! changes nothing in the plan: within a rule, messages are edited one by one in their order, and the
//! first edit that meets the target is the last.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use sha2::{Digest, Sha256};

use super::arguments::{self, tail_calls};
use super::edit::ResultText;
use super::failure::is_failed;
use super::history::History;
use super::reads::Reads;
use super::thoughts::without_reasoning;
use super::{Aim, Elision, Row, Rule, Step};
use crate::domain::message::Message;
use crate::domain::policy::PruningPolicy;
use crate::domain::tokens::Counter;

/// Most messages of a round.
const MAX_MESSAGES: usize = 256;

/// Most bytes of a round, unless one message has more.
const MAX_BYTES: i64 = 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Duplicates,
    /// What the calls asked for.
    Calls,
    /// Whether newer calls worked.
    Newer,
    /// Results that newer ones cover.
    Older,
    /// Large results behind those that the plan has shortened already.
    LargeAhead,
    /// The others: only if nothing else meets the target, since they lie in the cached prefix.
    LargeBehind,
    Reasoning,
    /// What the calls of the edited results asked for, for the record.
    Origins,
    Done,
}

/// Plans the pruning of one tail. See the module for what it leaves to others.
#[derive(Debug)]
pub struct Planner {
    history: History,
    policy: PruningPolicy,
    counter: Counter,
    estimate: i64,
    target: i64,
    phase: Phase,
    /// What the phase has still to look at, in order.
    queue: VecDeque<usize>,
    /// Rounds of this phase.
    rounds: u32,
    /// Older results whose newer ones are being checked.
    window: Vec<usize>,
    asked: Vec<usize>,
    supplied: HashMap<i64, String>,
    /// For each duplicate the first of its kind.
    originals: HashMap<usize, usize>,
    reads: Reads,
    /// Callers whose calls are known.
    known: HashSet<usize>,
    /// Messages that a breadcrumb names.
    named: HashSet<usize>,
    edits: BTreeMap<usize, Elision>,
}

impl Planner {
    /// A planner for the rows of a tail, in any order.
    #[must_use]
    pub fn new(rows: Vec<Row>, aim: &Aim<'_>) -> Self {
        let history = History::new(rows, aim.policy.protect_recent_turns, aim.tool_choice);
        let mut planner = Self {
            named: history.named(),
            history,
            policy: aim.policy.clone(),
            counter: aim.counter,
            estimate: aim.estimate,
            target: aim.target,
            phase: Phase::Duplicates,
            queue: VecDeque::new(),
            rounds: 0,
            window: Vec::new(),
            asked: Vec::new(),
            supplied: HashMap::new(),
            originals: HashMap::new(),
            reads: Reads::default(),
            known: HashSet::new(),
            edits: BTreeMap::new(),
        };
        planner.begin(Phase::Duplicates);
        planner
    }

    /// Goes on with the bodies that were supplied since the last step.
    pub fn step(&mut self) -> Step {
        self.take_in();
        while self.phase != Phase::Done {
            let batch = self.batch();
            if !batch.is_empty() {
                let mut seqs: Vec<_> = batch.iter().map(|index| self.history.seq(*index)).collect();
                seqs.sort_unstable();
                self.asked = batch;
                return Step::Read(seqs);
            }
            self.begin(self.following());
        }
        let edits = std::mem::take(&mut self.edits).into_iter();
        let with_arguments = |(index, edit): (usize, Elision)| Elision {
            arguments: self.reads.arguments(index),
            ..edit
        };
        Step::Done(edits.map(with_arguments).collect())
    }

    /// Hands over the stored body of a message that the last step asked for.
    pub fn supply(&mut self, seq: i64, body: &str) {
        self.supplied.insert(seq, body.to_owned());
    }

    fn is_met(&self) -> bool {
        self.estimate <= self.target
    }

    fn following(&self) -> Phase {
        match self.phase {
            Phase::Origins | Phase::Done => Phase::Done,
            _ if self.is_met() => Phase::Origins,
            Phase::Duplicates => Phase::Calls,
            Phase::Calls => Phase::Older,
            Phase::Newer | Phase::Older => Phase::LargeAhead,
            Phase::LargeAhead => Phase::LargeBehind,
            Phase::LargeBehind => Phase::Reasoning,
            Phase::Reasoning => Phase::Origins,
        }
    }

    fn begin(&mut self, phase: Phase) {
        self.phase = phase;
        self.rounds = 0;
        self.queue = match phase {
            Phase::Duplicates if self.policy.collapse_duplicate_results => self.duplicates(),
            Phase::Calls if self.policy.elide_superseded_reads => {
                self.history.comparable_callers().into()
            }
            Phase::Older if self.policy.elide_superseded_reads => {
                self.editable_results(|planner, index| planner.reads.may_be_covered(index))
            }
            Phase::LargeAhead => self.large(|index, last| last.is_none_or(|last| index > last)),
            Phase::LargeBehind => self.large(|index, last| last.is_some_and(|last| index < last)),
            Phase::Reasoning if self.policy.drop_stale_reasoning => {
                self.history.editable_thoughts().collect()
            }
            Phase::Origins => self.origins(),
            _ => VecDeque::new(),
        };
    }

    fn duplicates(&mut self) -> VecDeque<usize> {
        self.originals = self.history.duplicates().into_iter().collect();
        self.editable_results(|planner, index| planner.originals.contains_key(&index))
    }

    fn large(&self, is_turn: impl Fn(usize, Option<usize>) -> bool) -> VecDeque<usize> {
        let last = self.history.last_shortened();
        let limit = self.policy.max_tool_result_bytes;
        self.editable_results(|planner, index| {
            // A text has at most the bytes of the JSON that spells it.
            let row = planner.history.row(index);
            row.is_some_and(|row| row.bytes > limit) && is_turn(index, last)
        })
    }

    fn origins(&self) -> VecDeque<usize> {
        let callers = self
            .edits
            .keys()
            .filter_map(|index| self.history.call(*index));
        let mut callers: VecDeque<_> = callers
            .map(|(caller, _)| caller)
            .filter(|caller| !self.known.contains(caller))
            .collect();
        callers.make_contiguous().sort_unstable();
        let mut seen = HashSet::new();
        callers.retain(|caller| seen.insert(*caller));
        callers
    }

    fn editable_results(&self, is_meant: impl Fn(&Self, usize) -> bool) -> VecDeque<usize> {
        (0..self.history.len())
            .filter(|index| {
                self.history.is_editable_result(*index)
                    && !self.edits.contains_key(index)
                    && is_meant(self, *index)
            })
            .collect()
    }

    /// What to ask for now; empty at the end of the phase.
    fn batch(&mut self) -> Vec<usize> {
        match self.phase {
            Phase::Done => Vec::new(),
            Phase::Calls | Phase::Origins => self.next_of_queue(i64::MAX),
            Phase::Newer | Phase::Older => self.next_reads(),
            Phase::Duplicates | Phase::LargeAhead | Phase::LargeBehind | Phase::Reasoning => {
                self.next_edits()
            }
        }
    }

    /// The next messages to edit: as many as may be needed.
    fn next_edits(&mut self) -> Vec<usize> {
        if self.is_met() {
            return Vec::new();
        }
        let excess = self.estimate.saturating_sub(self.target);
        let factor = 1_i64 << self.rounds.min(16);
        self.rounds += 1;
        self.next_of_queue(excess.saturating_mul(factor))
    }

    fn next_of_queue(&mut self, enough: i64) -> Vec<usize> {
        let mut batch = Vec::new();
        let mut bytes = 0_i64;
        let mut tokens = 0_i64;
        while let Some(index) = self.queue.front().copied() {
            let (its_bytes, its_tokens) = self
                .history
                .row(index)
                .map_or((0, 0), |row| (row.bytes, row.tokens));
            bytes = bytes.saturating_add(its_bytes);
            if !batch.is_empty()
                && (batch.len() == MAX_MESSAGES || bytes > MAX_BYTES || tokens >= enough)
            {
                break;
            }
            tokens = tokens.saturating_add(its_tokens);
            batch.push(index);
            self.queue.pop_front();
        }
        batch
    }

    /// First the newer results that decide about the next older ones, then those that are covered.
    fn next_reads(&mut self) -> Vec<usize> {
        loop {
            if self.window.is_empty() {
                self.window = self.next_edits();
            }
            if self.window.is_empty() {
                return Vec::new();
            }
            let newer = self.unknown();
            if !newer.is_empty() {
                self.phase = Phase::Newer;
                return newer;
            }
            self.phase = Phase::Older;
            let mut covered = std::mem::take(&mut self.window);
            covered.retain(|index| self.reads.cover(*index).is_some());
            if !covered.is_empty() {
                return covered;
            }
        }
    }

    fn unknown(&mut self) -> Vec<usize> {
        let mut unknown = Vec::new();
        let mut seen = HashSet::new();
        let mut bytes = 0_i64;
        for older in &self.window {
            for index in self.reads.unknown(*older) {
                if !seen.insert(index) {
                    continue;
                }
                bytes = bytes.saturating_add(self.history.row(index).map_or(0, |row| row.bytes));
                let is_full = unknown.len() == MAX_MESSAGES || bytes > MAX_BYTES;
                if is_full && !unknown.is_empty() {
                    return unknown;
                }
                unknown.push(index);
            }
        }
        unknown
    }

    /// Works on what was asked for, in order. A body that was not supplied is passed over.
    fn take_in(&mut self) {
        let supplied = std::mem::take(&mut self.supplied);
        for index in std::mem::take(&mut self.asked) {
            let body = supplied.get(&self.history.seq(index)).map(String::as_str);
            match (self.phase, body) {
                (Phase::Newer, body) => {
                    let worked = body.is_some_and(worked);
                    self.reads.check(index, worked);
                }
                (Phase::Calls | Phase::Origins, Some(body)) => self.note_calls(index, body),
                (_, Some(body)) if !self.is_met() => self.try_edit(index, body),
                _ => {}
            }
        }
    }

    fn note_calls(&mut self, caller: usize, body: &str) {
        self.known.insert(caller);
        let calls = tail_calls(body);
        for result in self.history.results(caller) {
            let call = self.history.call(result).and_then(|(_, at)| calls.get(at));
            let Some((tool, text)) = call else { continue };
            if let Some(arguments) = arguments::read(tool, text) {
                let is_verbatim =
                    self.history.is_verbatim_result(result) && !self.edits.contains_key(&result);
                self.reads.add(result, tool, arguments, is_verbatim);
            }
        }
    }

    fn try_edit(&mut self, index: usize, body: &str) {
        let edit = match self.phase {
            Phase::Duplicates => self.duplicate(index, body),
            Phase::Older => self.superseded(index, body),
            Phase::LargeAhead | Phase::LargeBehind => self.shortened(index, body),
            Phase::Reasoning => {
                without_reasoning(body).map(|replacement| (Rule::Reasoning, None, replacement))
            }
            Phase::Calls | Phase::Newer | Phase::Origins | Phase::Done => None,
        };
        if let Some((rule, names, replacement)) = edit {
            self.edit(index, body, rule, names, replacement);
        }
    }

    fn duplicate(&self, index: usize, body: &str) -> Option<(Rule, Option<usize>, String)> {
        let original = *self.originals.get(&index)?;
        let result = editable_text(body).filter(|_| !self.named.contains(&index))?;
        let text = result.duplicate(&self.history.row(original)?.id);
        let replacement = result.if_shorter(&text)?;
        Some((Rule::Duplicate, Some(original), replacement))
    }

    fn superseded(&mut self, index: usize, body: &str) -> Option<(Rule, Option<usize>, String)> {
        let newer = self.reads.cover(index)?;
        let own = &self.history.row(index)?.id;
        let result = editable_text(body).filter(|_| !self.named.contains(&index))?;
        // A breadcrumb may have come in with the history, then no plan knows whom it names. What a
        // duplicate of this result would have become is found by its digest.
        let crumb = result.content(&result.duplicate(own));
        if self.history.has_content(&Sha256::digest(crumb).into()) {
            return None;
        }
        let text = result.superseded(own, &self.history.row(newer)?.id);
        let replacement = result.if_shorter(&text)?;
        Some((Rule::Superseded, Some(newer), replacement))
    }

    fn shortened(&self, index: usize, body: &str) -> Option<(Rule, Option<usize>, String)> {
        let own = &self.history.row(index)?.id;
        let size = |bytes: i64| usize::try_from(bytes).unwrap_or(0);
        let result = editable_text(body)
            .filter(|result| result.bytes() > size(self.policy.max_tool_result_bytes))?;
        let (head, tail) = (self.policy.keep_head_bytes, self.policy.keep_tail_bytes);
        let text = result.shortened(own, size(head), size(tail))?;
        Some((Rule::Large, None, result.if_shorter(&text)?))
    }

    fn edit(
        &mut self,
        index: usize,
        body: &str,
        rule: Rule,
        names: Option<usize>,
        replacement: String,
    ) {
        let (Some(row), Some(tokens)) =
            (self.history.row(index), tokens(&replacement, self.counter))
        else {
            return;
        };
        let saved = row.tokens.saturating_sub(tokens);
        if saved <= 0 || replacement.len() >= body.len() {
            return;
        }
        let elision = Elision {
            seq: row.seq,
            rule,
            names: names.map(|index| self.history.seq(index)),
            replacement,
            tokens,
            saved,
            arguments: Vec::new(),
        };
        self.estimate = self.estimate.saturating_sub(saved);
        self.named.extend(names);
        self.reads.withdraw(index);
        self.edits.insert(index, elision);
    }
}

/// The text of a result, if a rule may change it.
fn editable_text(body: &str) -> Option<ResultText<'_>> {
    ResultText::of(body).filter(|result| !result.holds_breadcrumb())
}

/// Whether a result can stand for an older one.
fn worked(body: &str) -> bool {
    let is_whole = ResultText::of(body).is_none_or(|result| !result.holds_breadcrumb());
    is_whole && !is_failed(body)
}

fn tokens(body: &str, counter: Counter) -> Option<i64> {
    let mut message = Message::read(body).ok()?;
    counter.count(&mut message);
    i64::try_from(message.tokens).ok()
}
