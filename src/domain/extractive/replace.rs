//! Newest value wins: finding the statements that a later one corrects, and the echoes that repeat one.
//!
//! A statement corrects an older one where both speak of the same subject and give a value of the same sort, and
//! where the later one says so ("correction", "moved", "not 14 June") or is the same statement with other figures.
//! What no longer holds is dropped, or stays only inside the phrase of [`REPLACED`]; that phrase never nests.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::cues::Cues;
use super::denial::{denials, mark};
use super::item::{Item, Origin, Section};
use super::tokens::{Map, Set};
use super::values::{self, Profile, REPLACED, Sort, Value};
use super::{cues, text};

/// A word that more than this many items share says nothing about a subject; it also bounds the work.
const COMMON: usize = 40;

/// Longest replaced value quoted, in UTF-16 units.
const MAX_QUOTE: usize = 60;

struct Case {
    item: Item,
    profile: Profile,
    /// Figures and words that the item itself denies: "not 14 June", "replacing 18,400".
    denied: BTreeSet<String>,
    /// Values of its own that hold, by position in the profile.
    holding: Vec<usize>,
    marks: Vec<(usize, usize)>,
    notes: Vec<String>,
    gone: bool,
}

/// Applies corrections and drops what says the same twice. `items` must be in the order they were said; each that is
/// left comes with its text as it was.
pub(super) fn settle(items: Vec<Item>) -> Vec<(Item, String)> {
    let mut cases: Vec<Case> = items.into_iter().map(Case::new).collect();
    let index = index_of(&cases);
    for later in 0..cases.len() {
        for earlier in neighbours(&cases, &index, later) {
            if earlier < later {
                correct(&mut cases, earlier, later);
            }
        }
    }
    for later in 0..cases.len() {
        for earlier in neighbours(&cases, &index, later) {
            if earlier < later {
                drop_echo(&mut cases, earlier, later);
            }
        }
    }
    cases
        .into_iter()
        .filter(|case| !case.gone)
        .map(Case::finish)
        .collect()
}

impl Case {
    fn new(item: Item) -> Self {
        let profile = values::profile(&item.text);
        let ranges = denials(&item.text);
        let denies = |value: &Value| {
            ranges
                .iter()
                .any(|&(from, to)| value.start >= from && value.start < to)
        };
        let holding = (0..profile.values.len())
            .filter(|&at| profile.values.get(at).is_some_and(|v| !denies(v)))
            .collect();
        let gone_figures = profile
            .values
            .iter()
            .filter(|v| denies(v))
            .map(|v| v.figure.clone())
            .collect();
        Self {
            item,
            profile,
            denied: gone_figures,
            holding,
            marks: Vec::new(),
            notes: Vec::new(),
            gone: false,
        }
    }

    /// Words, identifiers and units: by any of these two items may be about one thing.
    fn subjects(&self) -> BTreeSet<&str> {
        let units = self
            .profile
            .values
            .iter()
            .map(|value| value.unit.as_str())
            .filter(|unit| !unit.is_empty());
        self.profile
            .words
            .iter()
            .chain(&self.profile.ids)
            .map(String::as_str)
            .chain(units)
            .collect()
    }

    fn holding(&self) -> impl Iterator<Item = &Value> {
        self.holding
            .iter()
            .filter_map(|&at| self.profile.values.get(at))
    }

    fn finish(mut self) -> (Item, String) {
        let said = self.item.text.clone();
        self.marks.sort_unstable();
        self.marks.dedup();
        for &(start, end) in self.marks.iter().rev() {
            mark(&mut self.item.text, start, end);
        }
        let already = values::replaced_spans(&self.item.text);
        if let Some(note) = self.notes.last()
            && already.len() < 2
            && !self.item.text.contains(note.as_str())
        {
            // Only the newest correction is kept: the phrase of an older one gives way.
            if let Some(&(start, end)) = already
                .last()
                .filter(|&&(_, end)| end == self.item.text.len())
            {
                self.item.text.replace_range(start..end, "");
                self.item.text.truncate(self.item.text.trim_end().len());
            }
            _ = write!(self.item.text, " {REPLACED}{note})");
        }
        (self.item, said)
    }
}

type Index = Map<String, Vec<usize>>;

fn index_of(cases: &[Case]) -> Index {
    let mut index = Index::default();
    for (at, case) in cases.iter().enumerate() {
        for word in case.subjects() {
            index.entry(word.to_owned()).or_default().push(at);
        }
    }
    index
}

fn neighbours(cases: &[Case], index: &Index, of: usize) -> Vec<usize> {
    let mut seen = Set::default();
    let mut out = Vec::new();
    if let Some(case) = cases.get(of) {
        for word in case.subjects() {
            // Of a word that many share, the newest before it are looked at.
            let posts = index.get(word).map_or(&[][..], Vec::as_slice);
            let upto = posts.partition_point(|&at| at < of);
            for &at in posts.iter().take(upto).rev().take(COMMON) {
                if seen.insert(at) {
                    out.push(at);
                }
            }
        }
    }
    out.sort_unstable();
    out
}

/// Two different things named by numbers, or by months, are not one subject.
fn conflict(a: &Profile, b: &Profile) -> bool {
    let apart = |x: &BTreeSet<String>, y: &BTreeSet<String>| {
        !x.is_empty() && !y.is_empty() && x.is_disjoint(y)
    };
    let months = |p: &Profile| {
        p.words
            .iter()
            .filter(|w| cues::is_month(w))
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    apart(&a.labels, &b.labels) || apart(&months(a), &months(b))
}

fn same_slot(a: &Value, b: &Value) -> bool {
    a.sort == b.sort && (a.sort != Sort::Amount || a.unit == b.unit)
}

fn correct(cases: &mut [Case], earlier: usize, later: usize) {
    let Some((old, new)) = pair(cases, earlier, later) else {
        return;
    };
    let settled = old.item.origin == Origin::Previous && new.item.origin == Origin::Previous;
    // What the assistant reports does not change what was asked.
    let report = old.item.section == Section::Requests && new.item.origin == Origin::Assistant;
    if new.gone
        || settled
        || report
        || old.item.similar > 1
        || new.item.similar > 1
        || new.item.cues.has(Cues::QUESTION)
    {
        return;
    }
    if old.gone || conflict(&old.profile, &new.profile) {
        note_denied(cases, earlier, later);
        return;
    }
    let units: BTreeSet<&str> = new
        .holding()
        .chain(old.holding())
        .map(|v| v.unit.as_str())
        .collect();
    let shared = old
        .profile
        .words
        .intersection(&new.profile.words)
        .filter(|w| !units.contains(w.as_str()))
        .count();
    let shared_ids = old.profile.ids.intersection(&new.profile.ids).count();
    let shared_units = old
        .holding()
        .filter(|v| !v.unit.is_empty() && new.holding().any(|n| n.unit == v.unit))
        .count()
        .min(1);
    let smaller = old.profile.words.len().min(new.profile.words.len()).max(1);
    let ids_apart = !old.profile.ids.is_empty() && !new.profile.ids.is_empty() && shared_ids == 0;
    let repeats = |value: &Value| {
        new.holding()
            .any(|v| v.figure == value.figure && (same_slot(v, value) || v.unit.is_empty()))
    };

    let mut stale: Vec<usize> = Vec::new();
    let mut slots = 0;
    for &at in &old.holding {
        let Some(value) = old.profile.values.get(at) else {
            continue;
        };
        if repeats(value) {
            continue;
        }
        if denies(new, value) && shared + shared_ids + shared_units >= 1 {
            stale.push(at);
            continue;
        }
        let about = old.profile.by_sentence.get(value.sentence);
        if about.is_some_and(|about| about.is_disjoint(&new.profile.words)) && shared_ids == 0 {
            continue;
        }
        let rivals = new.holding().filter(|v| same_slot(v, value)).count();
        let own = old.holding().filter(|v| same_slot(v, value)).count();
        if rivals == 1 && own == 1 {
            slots += usize::from(!value.unit.is_empty());
            stale.push(at);
        }
    }
    let explicit = stale
        .iter()
        .any(|&at| old.profile.values.get(at).is_some_and(|v| denies(new, v)));
    let announced = new.item.cues.has(Cues::CORRECTION)
        && !ids_apart
        && shared + shared_ids >= 1
        && (shared + shared_ids + shared_units) * 3 >= smaller.min(6);
    let same_words = old.profile.words.len().abs_diff(new.profile.words.len()) <= 1
        && shared + shared_units >= smaller;
    let repeated = !ids_apart
        && ((same_words && shared >= 2) || (slots >= 2 && slots * 2 > old.holding.len()));
    if explicit {
        stale.retain(|&at| {
            announced || repeated || old.profile.values.get(at).is_some_and(|v| denies(new, v))
        });
    } else if !announced && !repeated {
        return;
    }
    replace(cases, earlier, later, &stale);
}

/// An old value that is gone already may be named once more ("…, not 14 June"): that too is marked as replaced.
fn note_denied(cases: &mut [Case], earlier: usize, later: usize) {
    let Some((old, new)) = pair(cases, earlier, later) else {
        return;
    };
    let named: Vec<(usize, usize)> = (0..new.profile.values.len())
        .filter(|at| !new.holding.contains(at))
        .filter_map(|at| new.profile.values.get(at))
        .filter(|v| {
            old.profile
                .values
                .iter()
                .any(|o| o.figure.contains(v.figure.as_str()))
        })
        .map(|v| (v.start, v.end))
        .collect();
    if let Some(case) = cases.get_mut(later) {
        case.marks.extend(named);
    }
}

/// The later item names this very value as one that does not hold.
fn denies(new: &Case, value: &Value) -> bool {
    if new.denied.contains(&value.figure) {
        return true;
    }
    // "14 June" denies "14 June 2031".
    value.sort == Sort::Date
        && new
            .denied
            .iter()
            .any(|d| d.len() > 3 && value.figure.contains(d.as_str()))
}

fn replace(cases: &mut [Case], earlier: usize, later: usize, stale: &[usize]) {
    let Some((old, new)) = pair(cases, earlier, later) else {
        return;
    };
    let stale_values: Vec<Value> = stale
        .iter()
        .filter_map(|&at| old.profile.values.get(at).cloned())
        .collect();
    let quoted: Vec<String> = stale_values
        .iter()
        .filter_map(|v| old.item.text.get(v.start..v.end))
        .map(str::to_owned)
        .collect();
    if quoted.is_empty() {
        return;
    }
    let others = old.holding.len() > stale.len()
        || old
            .profile
            .ids
            .difference(&new.profile.ids)
            .next()
            .is_some()
        || old.profile.names.difference(&new.profile.names).count() > 1
        || old.item.section == Section::Requests
        || old.profile.by_sentence.len() > 1
        || old.profile.words.difference(&new.profile.words).count() > 5
        || old
            .item
            .cues
            .has(Cues::RULE.with(Cues::DECISION).with(Cues::PROMISE));
    let repeated_names: Vec<(usize, usize)> = new
        .profile
        .values
        .iter()
        .enumerate()
        .filter(|(at, v)| {
            !new.holding.contains(at)
                && stale_values
                    .iter()
                    .any(|s| s.figure.contains(v.figure.as_str()))
        })
        .map(|(_, v)| (v.start, v.end))
        .collect();
    let note = text::clip(&quoted.join(", "), MAX_QUOTE).replace([')', '('], "");
    if let Some(case) = cases.get_mut(earlier) {
        if others {
            case.marks
                .extend(stale_values.iter().map(|v| (v.start, v.end)));
            case.holding.retain(|at| !stale.contains(at));
        } else {
            case.gone = true;
        }
    }
    echo_stale(cases, earlier, later, &stale_values);
    if let Some(case) = cases.get_mut(later) {
        case.item.score = case.item.score.max(50);
        if repeated_names.is_empty() {
            case.notes.push(note);
        } else {
            case.marks.extend(repeated_names);
        }
    }
}

/// Right beside the statement that was corrected, the bare figure is the same value ("ok, pool of 40").
fn echo_stale(cases: &mut [Case], earlier: usize, later: usize, stale: &[Value]) {
    let words = cases
        .get(earlier)
        .map(|case| case.profile.words.clone())
        .unwrap_or_default();
    for at in earlier.saturating_sub(3)..later.min(earlier + 4) {
        let Some(case) = cases.get_mut(at).filter(|_| at != earlier) else {
            continue;
        };
        if case.profile.words.is_disjoint(&words) {
            continue;
        }
        let same: Vec<(usize, usize, usize)> = case
            .holding
            .iter()
            .filter_map(|&n| case.profile.values.get(n).map(|v| (n, v)))
            .filter(|(_, v)| {
                v.unit.is_empty()
                    && stale
                        .iter()
                        .any(|s| s.sort == v.sort && s.figure == v.figure)
            })
            .map(|(n, v)| (n, v.start, v.end))
            .collect();
        case.holding
            .retain(|n| !same.iter().any(|(gone, _, _)| gone == n));
        case.marks
            .extend(same.iter().map(|&(_, start, end)| (start, end)));
    }
}

fn pair(cases: &[Case], earlier: usize, later: usize) -> Option<(&Case, &Case)> {
    Some((cases.get(earlier)?, cases.get(later)?))
}

/// Drops one of two items that say the same; the user's words win over the assistant's.
fn drop_echo(cases: &mut [Case], earlier: usize, later: usize) {
    let Some((old, new)) = pair(cases, earlier, later) else {
        return;
    };
    if old.gone || new.gone || old.item.similar > 1 || new.item.similar > 1 {
        return;
    }
    let same_turn = old.item.turn.is_some() && old.item.turn == new.item.turn;
    let answer =
        same_turn && old.item.origin == Origin::User && new.item.origin == Origin::Assistant;
    let settled = old.item.section == Section::Open
        && new.item.cues.has(Cues::DONE)
        && !new.item.cues.has(Cues::NEGATION)
        && closes(new, old)
        && !same_turn;
    let gone = if settled {
        Some(earlier)
    } else if says_less(new, old, if answer { 45 } else { 80 }) && agrees(old, new, answer) {
        Some(later)
    } else if says_less(old, new, 80)
        && agrees(old, new, false)
        && old.item.section != Section::Requests
    {
        Some(earlier)
    } else {
        None
    };
    let Some(gone) = gone else { return };
    let (stays, note) = if gone == earlier {
        (later, None)
    } else {
        (earlier, new_notes(new))
    };
    let (score, marks) = cases
        .get(gone)
        .map_or((0, 0), |case| (case.item.score, case.marks.len()));
    if let Some(case) = cases.get_mut(gone) {
        case.gone = true;
    }
    if let Some(case) = cases.get_mut(stays) {
        case.item.score = case.item.score.max(score);
        // An echo that named the old value takes it along, unless the statement already does.
        if let Some(note) = note.filter(|_| case.notes.is_empty() && marks == 0) {
            case.notes.push(note);
        }
    }
}

fn new_notes(case: &Case) -> Option<String> {
    case.notes.last().cloned()
}

/// A later statement settles an open point if it is about little else, or says in so many words that it settles it.
fn closes(new: &Case, old: &Case) -> bool {
    let shared = old.profile.words.intersection(&new.profile.words).count();
    let low = new.item.text.to_ascii_lowercase();
    overlap(&new.profile, &old.profile) >= 60
        || (shared >= 2
            && ["answered", "resolved", "closed", "solved", "settled"]
                .iter()
                .any(|word| low.contains(word))
            && !low.contains("unresolved"))
}

/// A "not" in only one of them makes two statements of it, unless one answers the other.
fn agrees(old: &Case, new: &Case, answer: bool) -> bool {
    answer || old.item.cues.has(Cues::NEGATION) == new.item.cues.has(Cues::NEGATION)
}

/// How many hundredths of `part`'s words `whole` has.
fn overlap(part: &Profile, whole: &Profile) -> usize {
    let words =
        part.words.intersection(&whole.words).count() + part.ids.intersection(&whole.ids).count();
    (words * 100)
        .checked_div(part.words.len() + part.ids.len())
        .unwrap_or(0)
}

fn says_less(part: &Case, whole: &Case, percent: usize) -> bool {
    // What the part denies is no news.
    let values: Vec<&str> = part.holding().map(|v| v.figure.as_str()).collect();
    let (part, whole) = (&part.profile, &whole.profile);
    let figures = whole.figures();
    let known = |figure: &str| {
        figures.contains(figure)
            || whole
                .values
                .iter()
                .any(|v| v.sort == Sort::Date && v.figure.contains(figure) && figure.len() > 3)
    };
    (part.words.len() + part.ids.len()) > 0
        && values.iter().all(|figure| known(figure))
        && part.ids.is_subset(&whole.ids)
        && part.labels.is_subset(&whole.labels)
        && overlap(part, whole) >= percent
}
