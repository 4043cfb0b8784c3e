//! What of a message can be searched, what a query means, and the place that it finds.
//!
//! A query is words, never an engine's syntax: each piece between white space is a phrase, and all of them must be
//! found. Messages are cut into chunks that every engine takes; a query is found in a chunk or not at all. The
//! same rule runs here on a text and in an engine on its index: what is shown is what was found. How an engine is
//! asked belongs to storage.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::json;
use super::message::{Part, read_material};
use super::terms::{Kind, Term, Terms, terms};

/// Longest query, in characters.
pub const QUERY_CHARS: usize = 1_000;
/// Most pieces of a query.
pub const QUERY_PIECES: usize = 32;

/// Most terms of a chunk. PostgreSQL knows places up to 16,383.
const CHUNK_TERMS: usize = 10_000;
/// Most bytes of a chunk's terms.
const CHUNK_BYTES: usize = 256 << 10;
/// Most places of one term in a chunk. PostgreSQL keeps 256.
const CHUNK_REPEATS: u8 = 255;
/// Terms with which a chunk repeats the one before, so that a phrase across the cut is found.
const OVERLAP: usize = 32;

/// Characters of a snippet.
const SNIPPET_CHARS: usize = 160;
/// How many of them stand before what was found.
const SNIPPET_BEFORE: usize = 50;

/// Why a text is no query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueryFault {
    /// It is too long.
    #[error("has at most {QUERY_CHARS} characters")]
    TooLong,
    /// It has too many pieces.
    #[error("has at most {QUERY_PIECES} words or phrases")]
    TooMany,
    /// Nothing of it can be looked for.
    #[error("must hold a word: letters or digits of any script")]
    NoTerms,
}

/// Terms that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phrase {
    /// At least one.
    pub terms: Vec<String>,
    /// The last term may be the beginning of a longer one.
    pub is_open: bool,
}

impl Phrase {
    fn read(piece: &str) -> Option<Self> {
        let mut found: Vec<Term> = terms(piece).collect();
        let mut kinds = found.iter().rev().map(|term| term.kind);
        // Where the piece ends within a run without spaces, the text's own run may go on.
        let mut is_open = kinds.next() == Some(Kind::Last);
        if is_open && kinds.next() == Some(Kind::Pair) {
            found.pop();
            is_open = false;
        }
        let terms: Vec<_> = found.into_iter().map(|term| term.text).collect();
        (!terms.is_empty()).then_some(Self { terms, is_open })
    }

    /// Where it stands first among terms that follow one another.
    fn find(&self, entries: &[Entry]) -> Option<(usize, Range<usize>)> {
        let last = self.terms.len().checked_sub(1)?;
        let fits = |window: &[Entry]| {
            let mut pairs = window.iter().zip(&self.terms).enumerate();
            pairs.all(|(index, (entry, wanted))| {
                entry.term.as_ref().is_some_and(|found| {
                    found.text == *wanted
                        || self.is_open && index == last && found.text.starts_with(wanted)
                })
            })
        };
        let window = entries
            .windows(self.terms.len())
            .find(|window| fits(window))?;
        let start = window.first()?.term.as_ref()?.range.start;
        let end = window.last()?.term.as_ref()?.range.end;
        Some((window.first()?.field, start..end))
    }
}

/// What is looked for: all of its phrases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchQuery {
    phrases: Vec<Phrase>,
}

impl SearchQuery {
    /// Reads a query as a person writes it.
    ///
    /// # Errors
    /// It is too long, or holds no word.
    pub fn read(text: &str) -> Result<Self, QueryFault> {
        if text.chars().nth(QUERY_CHARS).is_some() {
            return Err(QueryFault::TooLong);
        }
        let phrases: Vec<_> = text.split_whitespace().filter_map(Phrase::read).collect();
        match phrases.len() {
            0 => Err(QueryFault::NoTerms),
            count if count > QUERY_PIECES => Err(QueryFault::TooMany),
            _ => Ok(Self { phrases }),
        }
    }

    /// Its phrases; at least one.
    #[must_use]
    pub fn phrases(&self) -> &[Phrase] {
        &self.phrases
    }

    /// What a stored body says around the first place of the query in it; `None` if it is not found.
    #[must_use]
    pub fn snippet(&self, body: &str) -> Option<String> {
        let fields = fields(body);
        let (field, range) = self.find(&fields)?;
        fields.get(field).map(|text| cut_out(text, &range))
    }

    fn find(&self, fields: &[Cow<'_, str>]) -> Option<(usize, Range<usize>)> {
        chunks(fields).find_map(|chunk| {
            let places = self
                .phrases
                .iter()
                .map(|phrase| phrase.find(&chunk.entries));
            let places: Option<Vec<_>> = places.collect();
            let first = |place: &(usize, Range<usize>)| (place.0, place.1.start);
            places?.into_iter().min_by_key(first)
        })
    }
}

/// The text around a place.
fn cut_out(text: &str, range: &Range<usize>) -> String {
    let before = text.get(..range.start).unwrap_or_default();
    let behind = text.get(range.start..).unwrap_or_default();
    let start = before
        .char_indices()
        .rev()
        .take(SNIPPET_BEFORE)
        .last()
        .map_or(range.start, |(at, _)| at);
    let led = before.get(start..).unwrap_or_default();
    let room = SNIPPET_CHARS.saturating_sub(led.chars().count());
    let end = behind.char_indices().nth(room).map(|(at, _)| at);
    let shown = behind
        .get(..end.unwrap_or(behind.len()))
        .unwrap_or_default();
    let mut snippet = String::with_capacity(led.len() + shown.len() + 6);
    if start > 0 {
        snippet.push('…');
    }
    snippet.push_str(led);
    snippet.push_str(shown);
    if end.is_some() {
        snippet.push('…');
    }
    snippet
}

/// The texts of a stored body that can be searched: what was thought, said, refused and called. No data of pictures,
/// sounds and files.
#[must_use]
pub fn fields(body: &str) -> Vec<Cow<'_, str>> {
    const BESIDE: [&str; 3] = ["reasoning_content", "reasoning", "refusal"];
    let members = json::members(body);
    let beside = members
        .iter()
        .filter(|member| BESIDE.contains(&member.name.as_ref()))
        .filter_map(|member| json::decode_string(member.value));
    let material = read_material(body);
    let parts = material.parts.into_iter().filter_map(|part| match part {
        Part::Text(text) => Some(text),
        Part::Other(_) => None,
    });
    let calls = material.calls.into_iter();
    let calls = calls.flat_map(|(name, arguments)| [name, read_arguments(arguments)]);
    beside.chain(parts).chain(calls).collect()
}

/// The arguments of a call as they read. They are JSON as a rule, in which a line's end is spelled `\n`, and any
/// letter may be spelled by its number.
fn read_arguments(text: Cow<'_, str>) -> Cow<'_, str> {
    let is_json = || serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
    if !text.contains('\\') || !is_json() {
        return text;
    }
    let mut read = String::with_capacity(text.len());
    let mut rest = text.as_ref();
    while let Some((before, escape)) = rest.split_once('\\') {
        read.push_str(before);
        let (letter, behind) = unescape(escape);
        read.push(letter);
        rest = behind;
    }
    read.push_str(rest);
    Cow::Owned(read)
}

/// The character that an escape stands for, without its backslash, and what follows it.
fn unescape(text: &str) -> (char, &str) {
    let mut chars = text.chars();
    let letter = match chars.next() {
        Some('u') => return unescape_number(text),
        Some('n') => '\n',
        Some('t') => '\t',
        Some('r') => '\r',
        Some('b' | 'f') | None => ' ',
        Some(other) => other,
    };
    (letter, chars.as_str())
}

/// As [`unescape`], for the escape of a code unit, or two of them for one character.
fn unescape_number(text: &str) -> (char, &str) {
    let unit = |text: &str, mark: &str| {
        let digits = text.strip_prefix(mark)?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let units = [
        unit(text, "u"),
        text.get(5..).and_then(|text| unit(text, "\\u")),
    ];
    let decoded = char::decode_utf16(units.into_iter().flatten()).next();
    match decoded {
        Some(Ok(letter)) => {
            let length = if letter.len_utf16() == 1 { 5 } else { 11 };
            (letter, text.get(length..).unwrap_or_default())
        }
        _ => ('\u{fffd}', text.get(5..).unwrap_or_default()),
    }
}

/// A place among the terms of a chunk: a term, or the gap between two texts.
#[derive(Debug, Clone)]
struct Entry {
    field: usize,
    term: Option<Term>,
}

/// Terms that an engine takes as one document.
#[derive(Debug, Clone)]
pub struct Chunk {
    entries: Vec<Entry>,
}

impl Chunk {
    /// Its terms in order. `None` is a gap between two texts: no phrase goes over it.
    pub fn terms(&self) -> impl Iterator<Item = Option<&str>> {
        self.entries
            .iter()
            .map(|entry| entry.term.as_ref().map(|term| term.text.as_str()))
    }
}

/// Cuts the texts of a message into chunks, always the same.
pub fn chunks<'a>(fields: &'a [Cow<'a, str>]) -> impl Iterator<Item = Chunk> {
    Chunks {
        fields,
        field: 0,
        terms: fields.first().map(|text| terms(text)),
        pending: None,
        overlap: Vec::new(),
    }
}

struct Chunks<'a> {
    fields: &'a [Cow<'a, str>],
    field: usize,
    terms: Option<Terms<'a>>,
    /// The entry for which the chunk before had no room.
    pending: Option<Entry>,
    overlap: Vec<Entry>,
}

impl Chunks<'_> {
    fn next_entry(&mut self) -> Option<Entry> {
        if let Some(entry) = self.pending.take() {
            return Some(entry);
        }
        let field = self.field;
        if let Some(term) = self.terms.as_mut()?.next() {
            let term = Some(term);
            return Some(Entry { field, term });
        }
        self.field += 1;
        self.terms = self.fields.get(self.field).map(|text| terms(text));
        self.terms.is_some().then_some(Entry { field, term: None })
    }
}

impl Iterator for Chunks<'_> {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        let mut room = Room::default();
        let mut entries = std::mem::take(&mut self.overlap);
        for entry in &entries {
            room.take(entry);
        }
        let repeated = entries.len();
        while let Some(entry) = self.next_entry() {
            // One gap is as wide as many.
            let after_term = entries.last().is_some_and(|last| last.term.is_some());
            if entry.term.is_none() && !after_term {
                continue;
            }
            if !room.take(&entry) {
                self.pending = Some(entry);
                let from = entries.len().saturating_sub(OVERLAP);
                self.overlap = entries.get(from..).unwrap_or_default().to_vec();
                break;
            }
            entries.push(entry);
        }
        let is_new = |entry: &Entry| entry.term.is_some();
        entries
            .iter()
            .skip(repeated)
            .any(is_new)
            .then_some(Chunk { entries })
    }
}

/// What a chunk still takes.
#[derive(Default)]
struct Room {
    terms: usize,
    bytes: usize,
    repeats: HashMap<String, u8>,
}

impl Room {
    /// Takes an entry, if there is room for it.
    fn take(&mut self, entry: &Entry) -> bool {
        let text = entry.term.as_ref().map_or("", |term| term.text.as_str());
        let bytes = self.bytes + text.len() + 1;
        if self.terms == CHUNK_TERMS || bytes > CHUNK_BYTES {
            return false;
        }
        match self.repeats.get_mut(text) {
            _ if text.is_empty() => {}
            Some(count) if *count == CHUNK_REPEATS => return false,
            Some(count) => *count += 1,
            None => drop(self.repeats.insert(text.to_owned(), 1)),
        }
        self.terms += 1;
        self.bytes = bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn said(text: &str) -> String {
        json!({"role": "user", "content": text}).to_string()
    }

    fn finds(query: &str, body: &str) -> bool {
        SearchQuery::read(query).unwrap().snippet(body).is_some()
    }

    #[test]
    fn a_query_is_words_and_phrases() {
        let body = said("Read src/main.rs; the ferry on 青岚湖 leaves at 18:10, ask 𠮷田さん.");
        for query in [
            "ferry",
            "FERRY leaves",
            "leaves ferry",
            "main.rs",
            "src/main.rs",
            "(main.rs) OR-the",
            "青岚湖",
            "岚湖",
            "湖",
            "岚",
            "青",
            "青岚 18:10",
            "𠮷田",
            "田さん",
            "18:10",
            "\"ferry\"",
            "-ferry",
            "ferry*",
            "on青岚湖leaves",
        ] {
            assert_eq!(finds(query, &body), query != "(main.rs) OR-the", "{query}");
        }
        for query in [
            "ferr",
            "rs.main",
            "src/rs",
            "岚青",
            "18.11",
            "ferry boat",
            "湖青",
            "さ田",
        ] {
            assert!(!finds(query, &body), "{query}");
        }
        for (query, fault) in [
            ("", QueryFault::NoTerms),
            (" \t\u{3000}", QueryFault::NoTerms),
            ("\"'*():&|!-^{}", QueryFault::NoTerms),
            ("\u{0}", QueryFault::NoTerms),
            (&"a ".repeat(33), QueryFault::TooMany),
            (&"湖".repeat(1_001), QueryFault::TooLong),
        ] {
            assert_eq!(SearchQuery::read(query), Err(fault), "{query:?}");
        }
        assert!(SearchQuery::read(&"湖".repeat(1_000)).is_ok());
        assert!(SearchQuery::read(&"a - ".repeat(32)).is_ok());
    }

    #[test]
    fn everything_that_reads_as_text_is_found() {
        let body = json!({"role": "assistant", "reasoning_content": "pondered", "refusal": "declined",
            "content": [
                {"type": "text", "text": "spoken"}, {"type": "refusal", "refusal": "unwilling"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,pixels"}},
                {"type": "input_audio", "input_audio": {"data": "sounds", "format": "wav"}}],
            "tool_calls": [
                {"id": "identifier", "type": "function", "function": {"name": "read_file",
                    "arguments": "{\"path\": \"a\\nline\\u6e56\\ud83d\\ude00\\ud842\\udfb7 q\\\"uote\"}"}},
                {"id": "c2", "type": "custom", "custom": {"name": "shell", "input": "C:\\new"}}]});
        let body = body.to_string();
        for query in [
            "pondered",
            "declined",
            "spoken",
            "unwilling",
            "read_file",
            "path line",
            "湖",
            "𠮷",
            "shell",
            "c:\\new",
            "uote",
        ] {
            assert!(finds(query, &body), "{query}");
        }
        for query in [
            "pixels",
            "sounds",
            "identifier",
            "assistant",
            "nline",
            "spoken.unwilling",
        ] {
            assert!(!finds(query, &body), "{query}");
        }
    }

    #[test]
    fn a_snippet_shows_the_first_place() {
        let show = |query: &str, text: &str| {
            SearchQuery::read(query)
                .unwrap()
                .snippet(&said(text))
                .unwrap()
        };
        assert_eq!(show("words", "a few words"), "a few words");
        let long = format!("{}key{}", "é ".repeat(200), " ü".repeat(200));
        let shown = show("KEY", &long);
        assert_eq!(shown.chars().count(), SNIPPET_CHARS + 2);
        assert!(shown.starts_with("…é ") && shown.contains(" key ") && shown.ends_with('…'));
        assert!(show("a", &"a ".repeat(500)).starts_with("a a "));
        let end = show("end", &format!("{}end", "x ".repeat(500)));
        assert!(end.starts_with('…') && end.ends_with(" end"), "{end}");
    }

    #[test]
    fn chunks_are_within_every_limit_and_lose_no_phrase() {
        let numbers: Vec<_> = (0..30_000).map(|n| format!("n{n}")).collect();
        let same = "same ".repeat(1_000);
        let long = (0..6_000)
            .map(|n| format!("{n}{}", "x".repeat(60)))
            .collect::<Vec<_>>();
        for text in [
            numbers.join(" "),
            same,
            long.join(" "),
            "湖水".repeat(20_000),
        ] {
            let cut: Vec<_> = chunks(&[Cow::Borrowed(text.as_str())]).collect();
            assert!(cut.len() > 1);
            for chunk in &cut {
                let terms: Vec<_> = chunk.terms().flatten().collect();
                assert!(terms.len() <= CHUNK_TERMS);
                assert!(terms.iter().map(|term| term.len() + 1).sum::<usize>() <= CHUNK_BYTES);
                let mut counts = HashMap::new();
                for term in &terms {
                    *counts.entry(term).or_insert(0) += 1;
                }
                assert!(
                    counts
                        .values()
                        .all(|count| *count <= usize::from(CHUNK_REPEATS))
                );
            }
        }
        let body = said(&numbers.join(" "));
        for start in (9_900..10_100).step_by(7) {
            let phrase = numbers[start..start + 30].join("-");
            assert!(finds(&phrase, &body), "{phrase}");
        }
        let none = vec![Cow::Borrowed(""); 20_000];
        assert_eq!(chunks(&none).count(), 0);
        let mut last = none.clone();
        last.push(Cow::Borrowed("end"));
        assert_eq!(chunks(&last).count(), 1);
    }

    proptest! {
        #[test]
        fn any_piece_of_a_text_finds_it(
            text in "([a-zéß]{1,4}|[湖水青さ]{1,4}|[\\u{e01}\\u{e48}\\u{e33}\\u{e19}\\u{e35}]{1,4}|[\\u{ac00}\\u{11a8}\\u{1161}]{1,3}|[ .\"*-]|\\u{ff8a}\\u{ff9e}|\\u{337f}|a\\u{301}\\u{200d}){1,30}",
            from in any::<prop::sample::Index>(),
            to in any::<prop::sample::Index>(),
        ) {
            let found: Vec<_> = terms(&text).collect();
            prop_assume!(!found.is_empty());
            let (from, to) = (from.index(found.len()), to.index(found.len()));
            let (from, to) = (from.min(to), from.max(to));
            let piece = text.get(found[from].range.start..found[to].range.end).unwrap();
            let query = SearchQuery::read(piece);
            prop_assume!(query != Err(QueryFault::TooMany));
            prop_assert!(query.unwrap().snippet(&said(&text)).is_some(), "{piece:?} in {text:?}");
        }

        #[test]
        fn no_text_is_refused_for_its_characters(text in any::<String>()) {
            if let Ok(query) = SearchQuery::read(&text) {
                for phrase in query.phrases() {
                    prop_assert!(!phrase.terms.is_empty());
                }
            }
            let body = said(&text);
            prop_assert!(chunks(&fields(&body)).count() <= 2);
        }
    }
}
