//! Cutting a sentence into words, numbers, times, dates, identifiers and paths, by their shape alone.
//!
//! Scripts written without spaces give one token per character. No dictionary lives here; what a word means to the
//! summary is in `cues`.

use std::hash::{BuildHasherDefault, Hasher};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    /// A character of a script written without spaces.
    Glyph,
    Number,
    Time,
    Date,
    Ident,
    Path,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'a> {
    pub kind: Kind,
    /// As written.
    pub text: &'a str,
    /// The same in small ASCII letters; other letters stay as they are, so that byte positions agree.
    pub low: &'a str,
    /// Byte position in the sentence.
    pub start: usize,
    /// What stands between this token and the one before.
    pub gap: &'a str,
}

impl Token<'_> {
    pub(super) fn end(&self) -> usize {
        self.start + self.text.len()
    }

    pub(super) fn is_capital(&self) -> bool {
        self.kind == Kind::Word && self.text.starts_with(char::is_uppercase)
    }

    pub(super) fn is_acronym(&self) -> bool {
        self.text.len() > 1 && self.text.bytes().all(|b| b.is_ascii_uppercase())
    }

    /// A clause or sentence ends between the token before and this one.
    pub(super) fn after_break(&self) -> bool {
        self.gap
            .contains(['.', '!', '?', ':', ';', '。', '，', '！', '？', '；', '：'])
    }
}

/// Scripts written without spaces between words: Thai to Myanmar, kana, Han. Korean has spaces.
pub(super) fn is_glyph(c: char) -> bool {
    matches!(u32::from(c), 0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x3040..=0x30FF | 0x3400..=0x4DBF
        | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0xFF66..=0xFF9F | 0x20000..=0x3FFFF)
}

/// `low` must be `text.to_ascii_lowercase()`.
pub(super) fn scan<'a>(text: &'a str, low: &'a str) -> Vec<Token<'a>> {
    let mut out: Vec<Token<'a>> = Vec::with_capacity(text.len() / 5 + 1);
    let mut chars = text.char_indices().peekable();
    let mut last_end = 0;
    while let Some((start, c)) = chars.next() {
        let mut end = start + c.len_utf8();
        let kind = if is_glyph(c) {
            Kind::Glyph
        } else if c.is_alphanumeric() || c == '_' || opens_path(text, start, c) {
            while let Some(&(at, next)) = chars.peek() {
                if is_glyph(next) || !(belongs(next) || joins(text, start, at, next)) {
                    break;
                }
                end = at + next.len_utf8();
                chars.next();
            }
            kind_of(text.get(start..end).unwrap_or(""))
        } else {
            continue;
        };
        out.push(Token {
            kind,
            text: text.get(start..end).unwrap_or(""),
            low: low.get(start..end).unwrap_or(""),
            start,
            gap: text.get(last_end..start).unwrap_or(""),
        });
        last_end = end;
    }
    out
}

/// Letters, digits, and the marks of scripts that combine (vowel signs, accents), which are no letters to Unicode.
fn belongs(c: char) -> bool {
    c.is_alphanumeric()
        || c == '_'
        || matches!(u32::from(c), 0x0300..=0x036F | 0x0591..=0x05C7 | 0x064B..=0x065F | 0x0900..=0x0DFF | 0x200C..=0x200D)
}

fn opens_path(text: &str, at: usize, c: char) -> bool {
    let rest = text.get(at..).unwrap_or("");
    match c {
        '/' => rest
            .get(1..)
            .is_some_and(|r| r.starts_with(|n: char| n.is_alphanumeric())),
        '~' => rest.starts_with("~/"),
        '.' => rest.starts_with("./") || rest.starts_with("../"),
        _ => false,
    }
}

/// A mark inside a token: it joins only where a letter or digit follows.
fn joins(text: &str, start: usize, at: usize, c: char) -> bool {
    let next = text
        .get(at + c.len_utf8()..)
        .and_then(|rest| rest.chars().next())
        .unwrap_or(' ');
    let before = text
        .get(start..at)
        .and_then(|part| part.chars().next_back())
        .unwrap_or(' ');
    match c {
        '/' | '\\' => next.is_alphanumeric() || matches!(next, '_' | '.'),
        ',' => before.is_ascii_digit() && next.is_ascii_digit(),
        '\'' | '’' => before.is_alphabetic() && next.is_alphabetic(),
        ':' => {
            (before.is_ascii_digit() && next.is_ascii_digit())
                || (before == ':' && next.is_alphanumeric())
                || next == ':'
        }
        '.' => next.is_alphanumeric() || (matches!(before, '/' | '.') && matches!(next, '/' | '.')),
        '-' | '−' | '@' | '+' => next.is_alphanumeric() && before != ' ',
        _ => false,
    }
}

fn kind_of(text: &str) -> Kind {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let letters = text.chars().filter(|c| c.is_alphabetic()).count();
    let other_digit = text.chars().any(char::is_numeric);
    if text.contains(['/', '\\']) && letters > 0 {
        return Kind::Path;
    }
    if digits == 0 {
        let ident =
            text.contains(['_', '@']) || text.contains("::") || inner_dot(text) || camel(text);
        return if ident {
            Kind::Ident
        } else if other_digit && letters == 0 {
            Kind::Number
        } else {
            Kind::Word
        };
    }
    if letters == 0 {
        let dashes = text.matches(['-', '/', '.']).count();
        return if text.contains(':') {
            Kind::Time
        } else if dashes == 2 && (6..=10).contains(&text.len()) || text.contains('/') {
            Kind::Date
        } else if text.contains(['-', '_', '+']) {
            Kind::Ident
        } else {
            Kind::Number
        };
    }
    if text.get(..10).is_some_and(is_iso_date) {
        return Kind::Date;
    }
    // "48h", "320g", "1.3kg", "2nd": a number with its unit grown on.
    let glued = text.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | ','));
    if glued.len() < text.len() && letters <= 3 && glued.chars().all(char::is_alphabetic) {
        return Kind::Number;
    }
    Kind::Ident
}

fn is_iso_date(text: &str) -> bool {
    text.bytes().enumerate().all(|(at, b)| {
        if at == 4 || at == 7 {
            b == b'-'
        } else {
            b.is_ascii_digit()
        }
    })
}

fn inner_dot(text: &str) -> bool {
    text.rsplit_once('.')
        .is_some_and(|(name, ext)| name.len() >= 2 && ext.len() >= 2 && ext.len() <= 5)
}

/// `flushBatch`, but not `McKay`, `PhD` or `ABC`.
fn camel(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().any(|b| b.is_ascii_uppercase())
}

/// FNV-1a: the same in every process, so that nothing in the output hangs on a random seed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

pub(super) type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Fnv>>;
pub(super) type Set<K> = std::collections::HashSet<K, BuildHasherDefault<Fnv>>;

/// The hash of a token with every run of digits made one digit: the same for sentences that differ in numbers only.
pub(super) fn shape_of(token: &Token<'_>) -> u64 {
    let mut hasher = Fnv::default();
    let mut in_digits = false;
    for byte in token.low.bytes() {
        let digit = byte.is_ascii_digit();
        if !(digit && in_digits) {
            hasher.write(&[if digit { b'0' } else { byte }]);
        }
        in_digits = digit;
    }
    hasher.finish()
}

/// The hashes of every three tokens in a row, digits masked.
pub(super) fn trigrams(tokens: &[Token<'_>]) -> Vec<u64> {
    let shapes: Vec<u64> = tokens.iter().map(shape_of).collect();
    shapes
        .windows(3)
        .map(|three| {
            let mut hasher = Fnv::default();
            for &shape in three {
                hasher.write_u64(shape);
            }
            hasher.finish()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(String, Kind)> {
        let low = text.to_ascii_lowercase();
        scan(text, &low)
            .iter()
            .map(|t| (t.text.to_owned(), t.kind))
            .collect()
    }

    #[test]
    fn shapes_are_told_apart() {
        let text =
            "TB-318 at 09:20 on 2031-05-14: 21,750 crowns, 0.6 via depth_lat in data/x/a.csv 48h";
        let found: Vec<Kind> = kinds(text)
            .into_iter()
            .map(|(_, k)| k)
            .filter(|k| *k != Kind::Word)
            .collect();
        assert_eq!(
            found,
            [
                Kind::Ident,
                Kind::Time,
                Kind::Date,
                Kind::Number,
                Kind::Number,
                Kind::Ident,
                Kind::Path,
                Kind::Number
            ]
        );
    }

    #[test]
    fn marks_at_the_end_stay_outside() {
        assert_eq!(
            kinds("see src/a.rs. Don't!"),
            [
                ("see".into(), Kind::Word),
                ("src/a.rs".into(), Kind::Path),
                ("Don't".into(), Kind::Word)
            ]
        );
    }

    #[test]
    fn scripts_without_spaces_give_characters() {
        assert_eq!(
            kinds("船18:10"),
            [("船".into(), Kind::Glyph), ("18:10".into(), Kind::Time)]
        );
    }
}
