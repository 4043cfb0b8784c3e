//! Choosing what fits: boilerplate folded into one line, doubles dropped, and the room shared out by section.
//!
//! Each section has a share that only it may use, so that a flood in one (files, say) cannot push out the decisions;
//! what is left over goes to whatever is worth most, wherever it stands. Within a section the order is that of the talk.

use std::cmp::Reverse;

use super::cues::Cues;
use super::item::{Item, Origin, Section};
use super::text;
use super::tokens::{Fnv, Map, Set};
use std::hash::Hasher;

/// A run of three words in this many different sentences is part of a template.
const TEMPLATE: u32 = 3;

/// Templates shown among the requests, and in any other section.
const MAX_ASKED: usize = 6;
const MAX_TOLD: usize = 3;

/// A statement with less than this is not shown even where there is room.
const FLOOR: i32 = 18;

/// Letters and digits only, small: equal for texts that differ in dress alone.
pub(super) fn fingerprint(text: &str) -> u64 {
    let mut hasher = Fnv::default();
    let mut buffer = [0; 4];
    for c in text
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '.' | '+' | '-'))
        .flat_map(char::to_lowercase)
    {
        hasher.write(c.encode_utf8(&mut buffer).as_bytes());
    }
    hasher.finish()
}

/// Of identical items only the newest mention stays, at its place in time and with the best score.
pub(super) fn drop_doubles(items: Vec<Item>) -> Vec<Item> {
    let mut at: Map<u64, usize> = Map::default();
    let mut out: Vec<Item> = Vec::with_capacity(items.len());
    for item in items {
        let key = fingerprint(&item.text);
        if let Some(kept) = at.get(&key).and_then(|&n| out.get_mut(n)) {
            kept.order = item.order;
            kept.score = kept.score.max(item.score);
            kept.similar = kept.similar.max(item.similar);
            if item.origin == Origin::User && kept.origin == Origin::Assistant {
                kept.origin = Origin::User;
                kept.section = item.section;
            }
        } else {
            at.insert(key, out.len());
            out.push(item);
        }
    }
    out.sort_by_key(|item| item.order);
    out
}

/// Folds sentences cut from one template ("What do we know about … at station 4?") into their newest, with a count.
pub(super) fn fold_templates(items: Vec<Item>) -> Vec<Item> {
    let mut seen: Map<u64, u32> = Map::default();
    for item in &items {
        let mut once = item.grams.clone();
        once.sort_unstable();
        once.dedup();
        for gram in once {
            let count = seen.entry(gram).or_default();
            *count = count.saturating_add(item.similar);
        }
    }
    let mut groups: Map<(Section, u64), usize> = Map::default();
    let mut out: Vec<Item> = Vec::with_capacity(items.len());
    for mut item in items {
        let Some(template) = template_of(&item, &seen) else {
            out.push(item);
            continue;
        };
        item.score = if item.section == Section::Requests {
            34
        } else {
            FLOOR + 2
        };
        let key = (item.section, template);
        if let Some(kept) = groups.get(&key).and_then(|&n| out.get_mut(n)) {
            item.similar = item.similar.saturating_add(kept.similar);
            *kept = item;
        } else {
            groups.insert(key, out.len());
            out.push(item);
        }
    }
    // A template seen once in this batch stands for itself only, and is as dull as its shape.
    let mut shown: Map<Section, usize> = Map::default();
    let mut templates: Vec<(Reverse<u32>, usize)> = groups
        .values()
        .filter_map(|&n| out.get(n).map(|item| (Reverse(item.similar), n)))
        .collect();
    templates.sort_unstable();
    for (_, n) in templates {
        if let Some(item) = out.get_mut(n) {
            let count = shown.entry(item.section).or_default();
            *count += 1;
            let asked = item.section == Section::Requests;
            if *count > if asked { MAX_ASKED } else { MAX_TOLD } || (!asked && item.similar < 3) {
                item.score = i32::MIN;
            }
        }
    }
    out.retain(|item| item.score > i32::MIN);
    out.sort_by_key(|item| item.order);
    out
}

/// The template a sentence is cut from, if enough of it is.
fn template_of(item: &Item, seen: &Map<u64, u32>) -> Option<u64> {
    if item.grams.is_empty() {
        return None;
    }
    let common = |gram: &&u64| {
        seen.get(gram).copied().unwrap_or(0) >= TEMPLATE.max(item.similar.saturating_add(1))
    };
    let shared = item.grams.iter().filter(common).count();
    let telling = Cues::RULE
        .with(Cues::DECISION)
        .with(Cues::CORRECTION)
        .with(Cues::PROMISE)
        .with(Cues::OPEN);
    let careful = item.origin != Origin::Assistant && item.cues.has(telling);
    let enough = if careful {
        shared * 10 >= item.grams.len() * 8 && item.grams.len() > 3
    } else {
        shared * 2 >= item.grams.len()
    };
    let first = item
        .grams
        .iter()
        .find(common)
        .or_else(|| item.grams.first());
    if item.similar > 1 {
        first.copied()
    } else {
        first.copied().filter(|_| enough && shared > 0)
    }
}

/// Room, in the two measures that bound a summary.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Twelfths of a token; see [`text::weight`].
    pub weight: usize,
    /// UTF-16 units.
    pub units: usize,
}

impl Room {
    fn of(line: &str) -> Self {
        Self {
            weight: text::weight(line),
            units: text::units(line),
        }
    }

    fn holds(self, other: Self) -> bool {
        other.weight <= self.weight && other.units <= self.units
    }

    fn less(self, other: Self) -> Self {
        Self {
            weight: self.weight.saturating_sub(other.weight),
            units: self.units.saturating_sub(other.units),
        }
    }

    fn more(self, other: Self) -> Self {
        Self {
            weight: self.weight.saturating_add(other.weight),
            units: self.units.saturating_add(other.units),
        }
    }

    fn percent(self, part: usize) -> Self {
        let of = |whole: usize| whole / 100 * part + whole % 100 * part / 100;
        Self {
            weight: of(self.weight),
            units: of(self.units),
        }
    }

    /// Under this no headings are written: they would cost more than they tell.
    pub(super) fn is_tiny(self) -> bool {
        self.units < 420 || self.weight < 420 * 3
    }
}

/// A line that may be shown.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub section: Section,
    pub text: String,
    pub score: i32,
    pub order: usize,
}

/// Hundredths of the room that a section has for itself.
fn share(section: Section) -> usize {
    match section {
        Section::Requests => 17,
        Section::Decisions | Section::Facts => 23,
        Section::Files | Section::Open => 7,
        Section::Commands => 9,
        Section::State => 14,
    }
}

/// The summary: the best of `candidates` that `room` holds.
pub(super) fn render(candidates: &[Candidate], room: Room) -> String {
    let headless = room.is_tiny();
    let mut ranked: Vec<(&Candidate, Room)> = candidates
        .iter()
        .filter(|c| c.score >= FLOOR)
        .map(|c| (c, Room::of("- \n").more(Room::of(&c.text))))
        .collect();
    ranked.sort_by(|(a, _), (b, _)| {
        b.score
            .cmp(&a.score)
            .then(b.order.cmp(&a.order))
            .then(a.text.cmp(&b.text))
    });
    let mut left = room;
    let mut chosen: Vec<&Candidate> = Vec::new();
    let mut opened: Set<Section> = Set::default();
    let mut taken: Set<usize> = Set::default();
    let mut fill = |own: &mut Room, wanted: Option<Section>| {
        for (n, (candidate, cost)) in ranked.iter().enumerate() {
            if wanted.is_some_and(|section| section != candidate.section) || taken.contains(&n) {
                continue;
            }
            let mut cost = *cost;
            if !headless && !opened.contains(&candidate.section) {
                cost = cost
                    .more(Room::of(candidate.section.heading()))
                    .more(Room::of("\n\n"));
            }
            if own.holds(cost) && left.holds(cost) {
                *own = own.less(cost);
                left = left.less(cost);
                opened.insert(candidate.section);
                taken.insert(n);
                chosen.push(candidate);
            }
        }
    };
    if !headless {
        for section in Section::ALL {
            fill(&mut room.percent(share(section)), Some(section));
        }
    }
    fill(&mut room.clone(), None);
    write(&mut chosen, headless)
}

fn write(chosen: &mut [&Candidate], headless: bool) -> String {
    chosen.sort_by(|a, b| {
        (a.section, a.order)
            .cmp(&(b.section, b.order))
            .then(a.text.cmp(&b.text))
    });
    let mut out = String::new();
    let mut open = None;
    for candidate in chosen.iter() {
        if !headless && open != Some(candidate.section) {
            if open.is_some() {
                out.push('\n');
            }
            out.push_str(candidate.section.heading());
            out.push('\n');
            open = Some(candidate.section);
        }
        out.push_str("- ");
        out.push_str(&candidate.text);
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}
