//! The tokenizer of the search: a text as terms, each with the place that it was read from.
//!
//! One tokenizer for both databases, so that a text is found by the same words on either, and so that
//! what an engine found can be found again here (to show the place). A term is a word: letters and digits,
//! in lower case, in compatibility form, Latin, Greek and Cyrillic without their accents. Scripts that
//! are written without spaces have no words to go by: their terms are pairs of neighbours, so that any
//! piece of a text is found whatever stands around it. How terms are stored, and what a query is, belongs
//! to `search`.

use std::collections::VecDeque;
use std::ops::Range;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// Longest term, in bytes; a longer one is known by its beginning.
pub const TERM_BYTES: usize = 64;
/// Longest half of a pair, in bytes.
const UNIT_BYTES: usize = TERM_BYTES / 2;

/// What a term is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A word.
    Word,
    /// Two neighbours of a script without spaces.
    Pair,
    /// The last character of such a run, alone. Every run ends with one.
    Last,
}

/// A term of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// Letters, digits and their marks; nothing that an engine could take for syntax.
    pub text: String,
    /// Where it stands in the text, in bytes, from one character's start to another's end.
    pub range: Range<usize>,
    /// What it is.
    pub kind: Kind,
}

/// The terms of a text, in order.
#[must_use]
pub fn terms(text: &str) -> Terms<'_> {
    Terms {
        text,
        at: 0,
        word: None,
        unit: None,
        before: None,
        ready: VecDeque::new(),
    }
}

/// A part of a term, with the place that it was read from.
type Piece = (String, Range<usize>);

/// Iterates over the terms of a text; see [`terms`].
#[derive(Debug, Clone)]
pub struct Terms<'a> {
    text: &'a str,
    /// Bytes that were read.
    at: usize,
    /// The word that is being read.
    word: Option<Piece>,
    /// The newest character of a run without spaces, to which marks may still come, and the one before it.
    unit: Option<Piece>,
    before: Option<Piece>,
    ready: VecDeque<Term>,
}

impl Iterator for Terms<'_> {
    type Item = Term;

    fn next(&mut self) -> Option<Term> {
        loop {
            if let Some(term) = self.ready.pop_front() {
                return Some(term);
            }
            if !self.read_cluster() {
                self.end_word();
                self.end_run();
                return self.ready.pop_front();
            }
        }
    }
}

impl Terms<'_> {
    /// Reads a character with all that changes it, or some plain ones; says whether there was one.
    fn read_cluster(&mut self) -> bool {
        let (start, rest) = (self.at, self.text.get(self.at..).unwrap_or_default());
        let mut chars = rest.chars();
        let Some(first) = chars.next() else {
            return false;
        };
        let plain = plain_start(rest.as_bytes());
        if plain > 0 {
            self.at += plain;
            self.feed_plain(rest.get(..plain).unwrap_or_default(), start);
            return true;
        }
        let mut before = first;
        self.at += first.len_utf8();
        for next in chars {
            if !joins(before, next) {
                break;
            }
            if !is_ignorable(next) && !is_combining_mark(next) {
                before = next;
            }
            self.at += next.len_utf8();
        }
        let range = start..self.at;
        let folded = fold(self.text.get(range.clone()).unwrap_or_default());
        // A mark without a character to stand on is none of its neighbour's.
        for c in folded.chars().skip_while(|c| is_combining_mark(*c)) {
            self.feed(c, &range);
        }
        true
    }

    /// As `feed`, for ASCII characters that are all letters and digits, or none of them.
    fn feed_plain(&mut self, piece: &str, start: usize) {
        self.end_run();
        if !piece.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            self.end_word();
            return;
        }
        let (text, range) = self
            .word
            .get_or_insert_with(|| (String::new(), start..start));
        range.end = start + piece.len();
        let room = TERM_BYTES.saturating_sub(text.len()).min(piece.len());
        let from = text.len();
        text.push_str(piece.get(..room).unwrap_or_default());
        if let Some(added) = text.get_mut(from..) {
            added.make_ascii_lowercase();
        }
    }

    fn feed(&mut self, c: char, range: &Range<usize>) {
        if is_combining_mark(c) {
            match (&mut self.word, &mut self.unit) {
                (Some(word), _) => push(word, c, range, TERM_BYTES),
                (None, Some(unit)) => push(unit, c, range, UNIT_BYTES),
                (None, None) => {}
            }
        } else if !c.is_alphanumeric() {
            self.end_word();
            self.end_run();
        } else if is_unspaced(c) {
            self.end_word();
            self.end_pair();
            self.before = self.unit.replace((c.to_string(), range.clone()));
        } else {
            self.end_run();
            let empty = || (String::new(), range.clone());
            let word = self.word.get_or_insert_with(empty);
            push(word, c, range, TERM_BYTES);
        }
    }

    fn end_word(&mut self) {
        if let Some((text, range)) = self.word.take() {
            self.give(text, range, Kind::Word);
        }
    }

    fn end_pair(&mut self) {
        if let (Some((first, from)), Some((second, to))) = (self.before.take(), &self.unit) {
            let (text, range) = (first + second, from.start..to.end);
            self.give(text, range, Kind::Pair);
        }
    }

    fn end_run(&mut self) {
        self.end_pair();
        if let Some((text, range)) = self.unit.take() {
            self.give(text, range, Kind::Last);
        }
    }

    fn give(&mut self, text: String, range: Range<usize>, kind: Kind) {
        self.ready.push_back(Term { text, range, kind });
    }
}

fn push(piece: &mut Piece, c: char, range: &Range<usize>, most: usize) {
    let (text, place) = piece;
    place.end = range.end;
    if text.len() + c.len_utf8() <= most {
        text.push(c);
    }
}

/// How many bytes at the start of a text are ASCII letters and digits, or are none of them and ASCII. A character
/// that a mark may follow is none of them.
fn plain_start(text: &[u8]) -> usize {
    let is_word = text.first().is_some_and(u8::is_ascii_alphanumeric);
    let fits = |byte: &&u8| byte.is_ascii() && byte.is_ascii_alphanumeric() == is_word;
    let count = text.iter().take_while(fits).count();
    match text.get(count) {
        Some(next) if !next.is_ascii() => count.saturating_sub(1),
        _ => count,
    }
}

/// A character with its marks as it is searched for: in compatibility form and lower case.
fn fold(cluster: &str) -> String {
    let mut plain = false;
    let seen = cluster.chars().filter(|c| !is_ignorable(*c));
    let lower = seen.nfkd().flat_map(char::to_lowercase).nfkd();
    let kept = lower.filter(|c| {
        let accent = matches!(c, '\u{300}'..='\u{36f}');
        if !accent {
            plain = loses_accents(*c);
        }
        !(accent && plain)
    });
    kept.map(|c| if c == 'ς' { 'σ' } else { c }).nfc().collect()
}

/// Whether a character changes the one before it.
fn joins(before: char, c: char) -> bool {
    match c {
        '\0'..='\u{7f}' => false,
        // Vowels and finals of Hangul.
        '\u{1160}'..='\u{11ff}' | '\u{d7b0}'..='\u{d7ff}' => {
            matches!(before, '\u{1100}'..='\u{11ff}' | '\u{a960}'..='\u{a97f}' | '\u{ac00}'..='\u{d7ff}')
        }
        // Vowels of Thai and Lao that begin with a mark.
        '\u{e33}' | '\u{eb3}' => matches!(before, '\u{e00}'..='\u{eff}'),
        // Marks of half-width Katakana.
        '\u{ff9e}' | '\u{ff9f}' => true,
        _ => is_combining_mark(c) || is_ignorable(c),
    }
}

/// What is never looked for and splits no word: soft hyphens, joiners, selectors of variants, frames.
fn is_ignorable(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{200c}' | '\u{200d}' | '\u{2060}' | '\u{feff}'
            | '\u{20d0}'..='\u{20ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}'
    )
}

/// Latin, Greek and Cyrillic: people leave the accents out when they search.
fn loses_accents(c: char) -> bool {
    c.is_ascii_alphabetic()
        || matches!(
            c,
            '\u{c0}'..='\u{24f}' | '\u{370}'..='\u{52f}' | '\u{1c80}'..='\u{1c8f}'
                | '\u{1e00}'..='\u{1fff}' | '\u{2c60}'..='\u{2c7f}' | '\u{a640}'..='\u{a69f}'
                | '\u{a720}'..='\u{a7ff}'
        )
}

/// Scripts without spaces between words, and Hangul, whose words carry their particles with them.
fn is_unspaced(c: char) -> bool {
    matches!(
        c,
        // Thai, Lao, Myanmar, Khmer.
        '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}'
            | '\u{a9e0}'..='\u{a9ff}' | '\u{aa60}'..='\u{aa7f}'
            // Hangul.
            | '\u{1100}'..='\u{11ff}' | '\u{3130}'..='\u{318f}' | '\u{a960}'..='\u{a97f}'
            | '\u{ac00}'..='\u{d7ff}'
            // Hiragana, Katakana, Bopomofo.
            | '\u{3040}'..='\u{312f}' | '\u{31a0}'..='\u{31bf}' | '\u{31f0}'..='\u{31ff}'
            | '\u{1aff0}'..='\u{1b16f}'
            // Han.
            | '\u{2e80}'..='\u{2fdf}' | '\u{3005}'..='\u{3007}' | '\u{3021}'..='\u{303b}'
            | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{3ffff}'
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Vec<String> {
        terms(text).map(|term| term.text).collect()
    }

    #[test]
    fn words_are_letters_and_digits_in_one_form() {
        for (text, expected) in [
            (
                "Read src/main_loop.rs, line 42!",
                "read src main loop rs line 42",
            ),
            (
                "résumé re\u{301}sume\u{301} Việt NAÏVE",
                "resume resume viet naive",
            ),
            ("Ёлка Άνθρωπος ΟΔΟΣ İstanbul", "елка ανθρωποσ οδοσ istanbul"),
            ("ﬁne ＦＵＬＬ ① ½", "fine full 1 1 2"),
            ("co\u{ad}operate a\u{200d}b", "cooperate ab"),
            ("Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚a̴̵̞̠͍l̷g̶o", "zalgo"),
            ("مرحبا 14/05 שלום", "مرحبا 14 05 שלום"),
            ("don't \u{0}NUL\u{0}", "don t nul"),
            ("👍🏽 -- \"'*():&|!", ""),
            ("", ""),
        ] {
            assert_eq!(read(text).join(" "), expected, "{text:?}");
        }
    }

    #[test]
    fn scripts_without_spaces_become_pairs() {
        for (text, expected) in [
            ("青岚湖", "青岚 岚湖 湖"),
            ("湖", "湖"),
            ("18:10，渡船", "18 10 渡船 船"),
            ("ﾊﾞｽ バス", "バス ス バス ス"),
            ("ㇰ か\u{3099}", "ㇰ が"),
            (
                "도착 \u{1103}\u{1169}\u{110e}\u{1161}\u{11a8}",
                "도착 착 도착 착",
            ),
            ("ที่นี่", "ที่นี่ นี่"),
            ("㍿", "株式 式会 会社 社"),
            ("AI模型v2", "ai 模型 型 v2"),
        ] {
            assert_eq!(read(text).join(" "), expected, "{text:?}");
        }
    }

    #[test]
    fn a_long_word_is_known_by_its_beginning() {
        let long = "é".repeat(1_000) + "x";
        let found: Vec<_> = terms(&long).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].text, "e".repeat(TERM_BYTES));
        assert_eq!(found[0].range, 0..long.len());
        let marks = format!("ก{}ก", "\u{e48}".repeat(1_000));
        assert!(terms(&marks).all(|term| term.text.len() <= TERM_BYTES));
    }

    proptest! {
        #[test]
        fn invisible_characters_change_nothing(text in "\\PC{0,40}|[a-zA-Z0-9é湖 .\u{301}]{0,80}") {
            // Each makes its neighbour be read the long way.
            let spread: String = text.chars().flat_map(|c| [c, '\u{2060}']).collect();
            prop_assert_eq!(read(&text), read(&spread));
        }

        #[test]
        fn terms_stand_where_they_say(text in "\\PC{0,40}|[a-zé湖水ก่ำ가ᅡ\u{301}\u{3099}\u{200d} .]{0,20}") {
            let found: Vec<_> = terms(&text).collect();
            prop_assert_eq!(&found, &terms(&text).collect::<Vec<_>>());
            let mut start = 0;
            for term in found {
                prop_assert!(!term.text.is_empty() && term.text.len() <= TERM_BYTES);
                prop_assert!(term.text.chars().all(|c| c.is_alphanumeric() || is_combining_mark(c)));
                prop_assert!(text.get(term.range.clone()).is_some_and(|piece| !piece.is_empty()));
                prop_assert!(start <= term.range.start, "in order");
                start = term.range.start;
            }
        }
    }
}
