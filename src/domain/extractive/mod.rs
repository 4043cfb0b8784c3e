//! A summary without a model: what can be kept exactly is kept exactly, what can be left out is left out.
//!
//! For installations with no model configured, and as the fallback an operator may ask for. It is extractive on
//! purpose: it quotes, counts and sorts, it never words anything anew, so it cannot invent. The same input gives the
//! same bytes: no clock, no randomness, no network.
//!
//! The way through: the previous summary is read back into items ([`item::parse`]); messages are parted into pieces
//! (`talk`) and calls entered into a ledger (`ledger`); doubles and boilerplate are folded (`select`); later
//! statements correct earlier ones (`replace`); what is worth most is written, by section, within the limits.
//!
//! Invariants: the text is trimmed, holds no NUL, is within both limits, and every line of it is a heading of
//! [`item::Section`] or starts with `- `. The written summary is the only state a chain of runs has.
//!
//! What does not belong here: prompts, models, tokenizers, or rules about which messages are compacted.

mod arguments;
mod cues;
mod denial;
mod item;
mod ledger;
mod lexicon;
mod outcome;
mod replace;
mod select;
mod talk;
mod text;
mod tokens;
mod values;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::VecDeque;

use crate::domain::transcript::Entry;
use item::{Item, LAST_ACTION, LAST_ANSWER, LAST_REQUEST, Older, Origin, Section};
use ledger::Ledger;
use select::{Candidate, Room};

/// What a summary may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// By the estimate of [`estimate_tokens`].
    pub max_tokens: usize,
    /// The summary is strictly shorter than this many UTF-16 units, where given.
    pub max_units: Option<usize>,
}

/// ASCII bytes / 4 + other UTF-8 bytes / 3, rounded up.
#[must_use]
pub fn estimate_tokens(text: &str) -> usize {
    text::weight(text).div_ceil(12)
}

/// Bytes looked at: of all messages together, and at least and at most of one. Results of tools give little.
const LOOKED_AT: usize = 6 * 1024 * 1024;
const LEAST: usize = 160;
const MOST: usize = 48 * 1024;

/// Items that go into the comparison of each with its neighbours; the rest scored less.
const COMPARED: usize = 700;

/// Writes the summary that stands for `previous` and `entries` together.
///
/// Results of tools should stand in the order of the calls they answer: they are matched by name and order.
/// Limits too small for any text at all give `…`, which is the one case where a limit can be missed.
///
/// A summary that is merged with nothing comes to rest: where two stand for each other it stays at the longer one.
#[must_use]
pub fn summarize(previous: Option<&str>, entries: &[Entry], limits: &Limits) -> String {
    let summary = merge(previous, entries, limits);
    match previous {
        Some(previous) if entries.is_empty() && summary.len() < previous.len() => {
            let back = merge(Some(&summary), &[], limits);
            if back == previous { back } else { summary }
        }
        _ => summary,
    }
}

fn merge(previous: Option<&str>, entries: &[Entry], limits: &Limits) -> String {
    let mut draft = Draft::default();
    let mut last_request = String::new();
    let mut last_answer = String::new();
    if let Some(previous) = previous {
        draft.absorb(previous, &mut last_request, &mut last_answer);
    }
    draft.read(entries, &mut last_request, &mut last_answer);
    let units = limits
        .max_units
        .map_or(usize::MAX, |max| max.saturating_sub(1))
        .max(1);
    let room = Room {
        weight: limits.max_tokens.max(1).saturating_mul(12),
        units,
    };
    draft.finish(entries, room, &last_request, &last_answer)
}

#[derive(Default)]
struct Draft {
    items: Vec<Item>,
    ledger: Ledger,
    order: usize,
    turn: usize,
}

impl Draft {
    fn push(&mut self, mut item: Item, turn: Option<usize>) {
        self.order += 1;
        item.order = self.order;
        item.turn = turn;
        self.items.push(item);
    }

    fn absorb(&mut self, previous: &str, last_request: &mut String, last_answer: &mut String) {
        for older in item::parse(previous) {
            match older {
                Older::Item(item) => self.push(item, None),
                Older::Ledger(section, line) => {
                    if !self.ledger.absorb(section, &line) {
                        self.push(
                            Item::read(&line, Origin::Previous, Some(Section::Facts)),
                            None,
                        );
                    }
                }
                Older::LastRequest(line) => *last_request = line,
                Older::LastAnswer(line) => *last_answer = line,
            }
        }
        // The talk that went on when the older summary was written is read like any other talk.
        self.turn += 1;
        let tasked = self
            .items
            .iter()
            .any(|item| item.section == Section::Requests);
        for mut item in talk::user(last_request, MOST) {
            if !tasked && item.section == Section::Facts {
                item.section = Section::Requests;
            }
            self.push(item, Some(self.turn));
        }
        for item in talk::assistant(last_answer, MOST) {
            self.push(item, Some(self.turn));
        }
    }

    fn read(&mut self, entries: &[Entry], last_request: &mut String, last_answer: &mut String) {
        let cap = (LOOKED_AT / entries.len().max(1)).clamp(LEAST, MOST);
        let mut parsed = 0;
        let mut open: VecDeque<(i64, String, arguments::Deed)> = VecDeque::new();
        let (mut newest_request, mut newest_answer) = (None, None);
        let mut first = self.items.is_empty();
        for entry in entries {
            match entry {
                Entry::User { text } => {
                    open.clear();
                    self.turn += 1;
                    let before = self.items.len();
                    for mut item in talk::user(text, cap) {
                        if first && item.section == Section::Facts {
                            // What a session opens with is its task, however it is put.
                            item.section = Section::Requests;
                        }
                        first = false;
                        self.push(item, Some(self.turn));
                    }
                    // Thanks are no request.
                    if self.items.len() > before
                        || (last_request.is_empty() && newest_request.is_none())
                    {
                        newest_request = Some(text);
                    }
                    self.ledger.last_action = None;
                }
                Entry::Assistant { text, calls } => {
                    open.clear();
                    let before = self.items.len();
                    for item in talk::assistant(text, cap.min(MOST / 2)) {
                        self.push(item, Some(self.turn));
                    }
                    if self.items.len() > before
                        || (last_answer.is_empty() && newest_answer.is_none())
                    {
                        newest_answer = Some(text);
                    }
                    if !text.trim().is_empty() {
                        self.ledger.last_action = None;
                    }
                    for (index, call) in (0_i64..).zip(calls) {
                        parsed += call.arguments.len();
                        let deed =
                            arguments::deed_of(&call.name, &call.arguments, parsed < LOOKED_AT);
                        self.ledger.call(&deed);
                        open.push_back((index, call.name.clone(), deed));
                    }
                }
                Entry::ToolResult { tool, call, text } => {
                    // Results come in any order; the call's number tells, else its tool's name.
                    let by_number = open.iter().position(|(index, ..)| Some(*index) == *call);
                    let by_name = || {
                        let name = tool.as_ref()?;
                        open.iter().position(|(_, open, _)| open == name)
                    };
                    let at = by_number.or_else(by_name).unwrap_or(0);
                    if let Some((.., deed)) = open.remove(at) {
                        self.ledger.result(&deed, text);
                    }
                }
            }
        }
        if let Some(request) = newest_request {
            *last_request = text::one_line(&first_and_last(request));
            // What was answered before it was asked is no answer.
            if newest_answer.is_none() {
                last_answer.clear();
            }
        }
        if let Some(answer) = newest_answer {
            *last_answer = talk::last_words(answer, 420);
        }
    }

    fn finish(
        self,
        entries: &[Entry],
        room: Room,
        last_request: &str,
        last_answer: &str,
    ) -> String {
        let line_units = (room.units.min(room.weight / 3) / 3).clamp(20, 400);
        let mut state = Vec::new();
        for (label, body, score) in [
            (LAST_REQUEST, last_request, 1000),
            (LAST_ANSWER, last_answer, 900),
            (
                LAST_ACTION,
                self.ledger.last_action.as_deref().unwrap_or(""),
                800,
            ),
        ] {
            let body = text::strip_marks(body);
            if !body.is_empty() {
                state.push((score, text::clip(&format!("{label}{body}"), line_units)));
            }
        }
        let mut candidates = candidates(self.items, &mut state, line_units);
        for line in self.ledger.lines() {
            let text = text::clip(&line.text, line_units);
            candidates.push(Candidate {
                section: line.section,
                text,
                score: line.score,
                order: line.order,
            });
        }
        for (n, (score, text)) in state.into_iter().enumerate() {
            candidates.push(Candidate {
                section: Section::State,
                text,
                score,
                order: n,
            });
        }
        let out = select::render(&candidates, room);
        if text::units(&out) >= 60 || entries.is_empty() {
            return out;
        }
        scanty(&out, entries, room)
    }
}

/// A little of both ends of a long request, as one text.
fn first_and_last(request: &str) -> String {
    let (front, back) = text::window(request, 1200, 300);
    let mut seen = tokens::Set::default();
    let front = without_repeats(front, &mut seen);
    let back = without_repeats(back, &mut seen);
    if back.is_empty() {
        text::clip(&front, 380)
    } else {
        format!("{} … {}", text::clip(&front, 280), text::clip(&back, 100))
    }
}

fn without_repeats(text: &str, seen: &mut tokens::Set<u64>) -> String {
    text::sentences(text, 40)
        .iter()
        .map(|line| item::unsplit(line))
        .filter(|line| seen.insert(select::fingerprint(line)))
        .fold(String::new(), |mut all, line| {
            text::join(&mut all, line);
            all
        })
}

/// From all items to the lines that may be shown.
fn candidates(items: Vec<Item>, state: &mut [(i32, String)], line_units: usize) -> Vec<Candidate> {
    let mut items = select::fold_templates(select::drop_doubles(items));
    items.retain(|item| {
        item.origin != Origin::Assistant || item.similar > 1 || item.score >= item::ASSISTANT_FLOOR
    });
    // The first request is the task: whatever else goes, it stays. The newest ones are being worked on.
    if let Some(task) = items
        .iter_mut()
        .find(|item| item.section == Section::Requests)
    {
        task.score += 60;
    }
    for item in items
        .iter_mut()
        .rev()
        .filter(|item| item.section == Section::Requests)
        .take(3)
    {
        item.score += 15;
    }
    if items.len() > COMPARED {
        items.sort_by_key(|item| (Reverse(item.score), Reverse(item.order)));
        items.truncate(COMPARED);
        items.sort_by_key(|item| item.order);
    }
    let mut out = Vec::new();
    for (item, said) in replace::settle(items) {
        // What the state says word for word is not said twice, but it learns what was replaced.
        if let Some((_, line)) = state
            .iter_mut()
            .find(|(_, line)| line.contains(&said))
            .filter(|_| item.similar == 1)
        {
            if item.text != said {
                *line = text::clip(&line.replace(&said, &item.text), line_units);
            }
            continue;
        }
        out.push(Candidate {
            section: item.section,
            text: text::clip(&item.line(), line_units),
            score: item.score,
            // What merely recurs comes after what was said once.
            order: if item.similar > 1 && item.section != Section::Requests {
                usize::MAX
            } else {
                item.order
            },
        });
    }
    out
}

/// For a batch that holds next to nothing: at least what it was.
fn scanty(out: &str, entries: &[Entry], room: Room) -> String {
    let count = |wanted: fn(&Entry) -> bool| entries.iter().filter(|entry| wanted(entry)).count();
    let note = format!(
        "- {} user, {} assistant and {} tool messages with little text to keep.",
        count(|entry| matches!(entry, Entry::User { .. })),
        count(|entry| matches!(entry, Entry::Assistant { .. })),
        count(|entry| matches!(entry, Entry::ToolResult { .. })),
    );
    let joined = if out.is_empty() {
        note
    } else {
        format!("{out}\n{note}")
    };
    if text::units(&joined) <= room.units && text::weight(&joined) <= room.weight {
        return joined;
    }
    if out.is_empty() {
        "…".to_owned()
    } else {
        out.to_owned()
    }
}
