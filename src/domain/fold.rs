//! Folding a batch that is too large for one call: which entries go into the next call, and how large
//! it may be.
//!
//! Parts end where groups end, so a call is never shown without its results. A group that is too large
//! alone is shown with its longest texts shortened in the middle. How a part is summarised is the
//! service's; here is only the arithmetic.

use std::borrow::Cow;

use super::size::{self, Size};
use super::transcript::Entry;

/// Tokens that frame and tags around a transcript take, generously.
const FRAME_TOKENS: u64 = 100;
/// Tokens that a role's mark and its line breaks take.
const MARK_TOKENS: u64 = 4;
/// The smallest part worth a call, in tokens.
const SMALLEST_PART: u64 = 64;

/// A batch that is being folded.
pub struct Fold<'a> {
    entries: &'a [Entry],
    /// Index of the first entry of each group.
    groups: Vec<usize>,
    /// Groups that are in the summary already.
    done: usize,
    previous: Option<String>,
    /// Tokens that previous summary and transcript may take together; unknown if `None`.
    room: Option<u64>,
    /// The smallest size that overflowed and the largest that did not, in tokens, once one did.
    too_large: Option<u64>,
    fitted: Option<u64>,
    parts: i64,
    shortened: i64,
}

/// The entries of one call.
pub struct Part {
    /// What is shown.
    pub entries: Vec<Entry>,
    /// UTF-16 units of the messages it stands for, before anything was shortened.
    pub units: u64,
    /// Tokens of what is shown.
    tokens: u64,
    /// Groups up to its end.
    end: usize,
    shortened: i64,
}

fn texts(entry: &Entry) -> Vec<&str> {
    match entry {
        Entry::User { text } | Entry::ToolResult { text, .. } => vec![text],
        Entry::Assistant { text, calls } => {
            let calls = calls
                .iter()
                .flat_map(|call| [call.name.as_str(), &call.arguments]);
            std::iter::once(text.as_str()).chain(calls).collect()
        }
    }
}

fn entry_size(entry: &Entry) -> Size {
    texts(entry).into_iter().map(Size::of).sum()
}

fn entry_tokens(entry: &Entry) -> u64 {
    entry_size(entry).tokens() + MARK_TOKENS
}

impl<'a> Fold<'a> {
    /// Begins with nothing folded. `room` is what a call has for the previous summary and the transcript, in tokens.
    #[must_use]
    pub fn new(entries: &'a [Entry], previous: Option<String>, room: Option<u64>) -> Self {
        let starts = |(index, entry): (usize, &Entry)| {
            let is_result = matches!(entry, Entry::ToolResult { .. });
            (index == 0 || !is_result).then_some(index)
        };
        Self {
            entries,
            groups: entries.iter().enumerate().filter_map(starts).collect(),
            done: 0,
            previous,
            room,
            too_large: None,
            fitted: None,
            parts: 0,
            shortened: 0,
        }
    }

    /// The summary of what is folded so far.
    #[must_use]
    pub fn previous(&self) -> Option<&str> {
        self.previous.as_deref()
    }

    /// Whether a part is the whole batch.
    #[must_use]
    pub fn is_whole(&self, part: &Part) -> bool {
        self.done == 0 && part.end == self.groups.len()
    }

    /// Successful calls, and messages that were shown shortened.
    #[must_use]
    pub fn counts(&self) -> (i64, i64) {
        (self.parts, self.shortened)
    }

    /// The summary, once every part is in it.
    #[must_use]
    pub fn into_summary(self) -> Option<String> {
        self.previous
    }

    fn group(&self, index: usize) -> &'a [Entry] {
        let from = self
            .groups
            .get(index)
            .copied()
            .unwrap_or(self.entries.len());
        let to = self
            .groups
            .get(index + 1)
            .copied()
            .unwrap_or(self.entries.len());
        self.entries.get(from..to).unwrap_or_default()
    }

    /// Tokens that the next transcript may take.
    fn room_for_entries(&self) -> u64 {
        let summary = self.previous().map_or(0, size::tokens);
        self.room
            .map_or(u64::MAX, |room| room.saturating_sub(summary + FRAME_TOKENS))
            .max(SMALLEST_PART)
    }

    /// What the next call is shown; `None` when everything is folded.
    #[must_use]
    pub fn next_part(&self) -> Option<Part> {
        if self.done >= self.groups.len() {
            return None;
        }
        let room = self.room_for_entries();
        let mut part = Part {
            entries: Vec::new(),
            units: 0,
            tokens: 0,
            end: self.done,
            shortened: 0,
        };
        for index in self.done..self.groups.len() {
            let group = self.group(index);
            let tokens: u64 = group.iter().map(entry_tokens).sum();
            let is_first = index == self.done;
            if part.tokens.saturating_add(tokens) > room && !is_first {
                break;
            }
            part.units += group
                .iter()
                .map(|entry| entry_size(entry).units)
                .sum::<u64>();
            part.end = index + 1;
            if tokens <= room {
                part.entries.extend_from_slice(group);
                part.tokens += tokens;
                continue;
            }
            let (entries, shortened) = shorten_group(group, room);
            part.tokens += entries.iter().map(entry_tokens).sum::<u64>();
            part.entries.extend(entries);
            part.shortened = shortened;
            break;
        }
        Some(part)
    }

    /// Takes the summary of a part for that of everything up to its end.
    pub fn accept(&mut self, part: &Part, summary: String) {
        if let Some(too_large) = self.too_large {
            // Feel the way back up: a window that is unknown may be larger than what just fitted.
            let fitted = self.whole(part).max(self.fitted.unwrap_or(0));
            self.fitted = Some(fitted);
            self.room = Some((2 * fitted).min(too_large / 4 * 3).max(fitted));
        }
        self.previous = Some(summary);
        self.done = part.end;
        self.parts += 1;
        self.shortened += part.shortened;
    }

    /// Tokens of a call for a part.
    fn whole(&self, part: &Part) -> u64 {
        part.tokens + self.previous().map_or(0, size::tokens) + FRAME_TOKENS
    }

    /// Makes the next part smaller, because this one overflowed: to what the provider said it has room
    /// for (tokens of the prompt and of the window, by its own count), or ever more steeply. Says
    /// whether there is anything left to take away.
    pub fn shrink(&mut self, part: &Part, tried: u32, said: Option<(u64, u64)>) -> bool {
        if part.tokens <= SMALLEST_PART {
            return false;
        }
        let whole = self.whole(part);
        self.too_large = Some(self.too_large.unwrap_or(u64::MAX).min(whole));
        // A half, an eighth of that, a thirty-second of that: few calls, however far off the first was.
        let halved = match self.fitted.filter(|fitted| *fitted < whole) {
            Some(fitted) => fitted,
            None => whole >> (2 * tried - 1).min(32),
        };
        let room = match said.filter(|(prompt, window)| *prompt > *window && tried == 1) {
            // Four fifths of it: the provider counts other tokens than we do, and the answer needs room.
            Some((prompt, window)) => {
                let share = u128::from(whole) * u128::from(window) * 4 / (u128::from(prompt) * 5);
                u64::try_from(share).unwrap_or(halved)
            }
            None => halved,
        };
        self.room = Some(room);
        true
    }
}

/// A group with its longest texts shortened so that it fits; and how many messages that were.
fn shorten_group(group: &[Entry], room: u64) -> (Vec<Entry>, i64) {
    let sizes: Vec<u64> = group.iter().map(entry_tokens).collect();
    // The largest size that every message may have at most: found by halving, like a water level.
    let fits = |level: u64| sizes.iter().map(|size| (*size).min(level)).sum::<u64>() <= room;
    let (mut low, mut high) = (0, room);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let level = low.max(2 * MARK_TOKENS);
    let mut shortened = 0;
    let entries = group
        .iter()
        .zip(&sizes)
        .map(|(entry, size)| {
            if *size <= level {
                return entry.clone();
            }
            shortened += 1;
            shorten_entry(entry, level - MARK_TOKENS, size - MARK_TOKENS)
        })
        .collect();
    (entries, shortened)
}

/// Shortens the texts of an entry, each in proportion, from `size` tokens to `level`.
fn shorten_entry(entry: &Entry, level: u64, size: u64) -> Entry {
    let mut entry = entry.clone();
    let cut = |text: &mut String| {
        let tokens = size::tokens(text);
        let share = u128::from(tokens) * u128::from(level) / u128::from(size.max(1));
        if let Cow::Owned(short) = shorten(text, u64::try_from(share).unwrap_or(0)) {
            *text = short;
        }
    };
    match &mut entry {
        Entry::User { text } | Entry::ToolResult { text, .. } => cut(text),
        Entry::Assistant { text, calls } => {
            cut(text);
            for call in calls {
                cut(&mut call.arguments);
            }
        }
    }
    entry
}

/// A text cut in the middle to about `tokens`, with a marker that says how much is gone.
#[must_use]
pub fn shorten(text: &str, tokens: u64) -> Cow<'_, str> {
    /// Tokens of the marker.
    const MARKER: u64 = 16;
    let size = size::tokens(text);
    if size <= tokens || size <= 2 * MARKER {
        return Cow::Borrowed(text);
    }
    let characters = text.chars().count() as u64;
    let kept = tokens.saturating_sub(MARKER).max(MARKER);
    let kept = u128::from(characters) * u128::from(kept) / u128::from(size);
    let half = usize::try_from(kept / 2).unwrap_or(usize::MAX);
    let gone = characters.saturating_sub(2 * half as u64);
    let head: String = text.chars().take(half).collect();
    let skip = usize::try_from(characters)
        .unwrap_or(usize::MAX)
        .saturating_sub(half);
    let tail: String = text.chars().skip(skip).collect();
    Cow::Owned(format!(
        "{head}\n[… {gone} characters left out here …]\n{tail}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::transcript::EntryCall;

    fn user(size: usize) -> Entry {
        Entry::User {
            text: "x".repeat(size),
        }
    }

    fn group(size: usize) -> [Entry; 3] {
        let call = |name: &str| EntryCall {
            name: name.into(),
            arguments: "{}".into(),
        };
        let result = |text: String| Entry::ToolResult {
            tool: None,
            call: None,
            text,
        };
        [
            Entry::Assistant {
                text: String::new(),
                calls: vec![call("a"), call("b")],
            },
            result("short".into()),
            result("y".repeat(size)),
        ]
    }

    #[test]
    fn parts_end_where_groups_end() {
        let mut entries = Vec::new();
        for _ in 0..10 {
            entries.push(user(400));
            entries.extend(group(400));
        }
        let mut fold = Fold::new(&entries, None, Some(600));
        let mut seen = Vec::new();
        while let Some(part) = fold.next_part() {
            assert!(part.tokens <= 500, "{}", part.tokens);
            assert!(!matches!(
                part.entries.first(),
                Some(Entry::ToolResult { .. })
            ));
            seen.extend(part.entries.clone());
            fold.accept(&part, "so far".into());
        }
        assert_eq!(seen, entries, "everything is shown once, in order");
        assert!(fold.counts().0 > 3);
        assert_eq!(fold.counts().1, 0);
    }

    #[test]
    fn s15_a_group_that_is_too_large_alone_is_shortened() {
        let entries = group(100_000);
        let mut fold = Fold::new(&entries, None, Some(1_100));
        let part = fold.next_part().unwrap();
        assert!(part.tokens <= 1_000, "{}", part.tokens);
        assert_eq!(
            part.entries.get(1),
            entries.get(1),
            "what fits is left alone"
        );
        let Some(Entry::ToolResult { text, .. }) = part.entries.get(2) else {
            panic!("a result");
        };
        assert!(text.contains("characters left out here"), "{text}");
        fold.accept(&part, "short".into());
        assert_eq!(fold.counts(), (1, 1));
        assert!(fold.next_part().is_none());
    }

    #[test]
    fn an_overflow_makes_the_next_part_smaller() {
        let entries: Vec<_> = (0..40).map(|_| user(20_000)).collect();
        let mut fold = Fold::new(&entries, None, None);
        let whole = fold.next_part().unwrap();
        assert!(fold.is_whole(&whole));
        let mut size = whole.tokens;
        for tried in 1..4 {
            let part = fold.next_part().unwrap();
            assert!(fold.shrink(&part, tried, None));
            let smaller = fold.next_part().unwrap().tokens;
            assert!(smaller * 2 <= size + 4, "{smaller} of {size}");
            size = smaller;
        }
        let part = fold.next_part().unwrap();
        assert!(fold.shrink(&part, 1, Some((10_000, 2_000))));
    }

    #[test]
    fn shortening_keeps_both_ends() {
        let text = format!("BEGIN{}END", "漢".repeat(5_000));
        let short = shorten(&text, 200);
        assert!(short.starts_with("BEGIN") && short.ends_with("END"));
        assert!(size::tokens(&short) <= 220, "{}", size::tokens(&short));
        assert_eq!(shorten("short", 2), "short");
    }
}
