//! A JSON value that arrives in pieces.
//!
//! The deltas of a stream are values with holes: a string is the next stretch of a longer one, a
//! list holds further elements, an object names only the members that go on. The rules, which
//! hold for members nobody here has heard of as well:
//!
//! - strings are joined, except under names that say what something *is* (`id`, `type`, …): there
//!   the last one that is not empty wins;
//! - a `name` that is sent again, or sent longer each time, replaces; other pieces of one are joined;
//! - `arguments` are text; a server that sends them as an object gets them written down as text;
//! - lists are appended to, their elements kept as the bytes that came;
//! - objects grow member by member, to a fixed depth;
//! - of anything else, and where the kind changes, the last one wins; `null` says nothing.
//!
//! What does not belong here: which members a message has.

use crate::domain::json;

/// Objects deeper than this are kept as they came instead of growing member by member.
const MAX_DEPTH: usize = 16;

/// Names whose strings identify instead of growing.
const FIXED: [&str; 8] = [
    "id", "type", "role", "object", "index", "format", "model", "status",
];

/// Text that arrives as JSON strings.
///
/// A character beyond the first 65,536 may be escaped as two halves, and a server that cuts its
/// text by UTF-16 units may send the halves in different strings.
#[derive(Debug, Clone, Default)]
pub(super) struct Text {
    text: String,
    /// The first half of a character whose second half is still to come.
    half: Option<u16>,
}

impl Text {
    /// What there is so far.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Appends the characters of a JSON string literal. A half of a character that finds no other
    /// half becomes U+FFFD.
    pub(super) fn push_literal(&mut self, literal: &str) {
        if self.half.is_none()
            && let Some(text) = json::decode_string(literal)
        {
            self.text.push_str(&text);
            return;
        }
        let inner = literal.strip_prefix('"').unwrap_or(literal);
        let inner = inner.strip_suffix('"').unwrap_or(inner);
        let mut chars = inner.chars();
        while let Some(c) = chars.next() {
            if c == '\\' {
                self.push_escape(&mut chars);
            } else {
                self.push_char(c);
            }
        }
    }

    fn push_escape(&mut self, chars: &mut std::str::Chars<'_>) {
        let escaped = match chars.next() {
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                let digits: String = chars.take(4).collect();
                self.push_unit(u16::from_str_radix(&digits, 16).unwrap_or(0xFFFD));
                return;
            }
            Some(other) => other,
            None => return,
        };
        self.push_char(escaped);
    }

    fn push_unit(&mut self, unit: u16) {
        let units = self.half.take().into_iter().chain([unit]);
        for unit in char::decode_utf16(units) {
            match unit {
                Ok(c) => self.text.push(c),
                Err(lone) if (0xD800..0xDC00).contains(&lone.unpaired_surrogate()) => {
                    // Two first halves in a row: the earlier one has lost its other half.
                    self.end();
                    self.half = Some(lone.unpaired_surrogate());
                }
                Err(_) => self.text.push(char::REPLACEMENT_CHARACTER),
            }
        }
    }

    fn push_char(&mut self, c: char) {
        self.end();
        self.text.push(c);
    }

    /// No other half will come.
    fn end(&mut self) {
        if self.half.take().is_some() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.half.is_none()
    }

    /// Writes the text as a JSON string.
    pub(super) fn write(&self, out: &mut String) {
        let mut whole = self.clone();
        whole.end();
        out.push_str(&json::encode_string(&whole.text));
    }
}

/// A value that grows.
#[derive(Debug, Clone)]
pub(super) enum Grown {
    /// Strings, joined.
    Text(Text),
    /// Elements, each as it came.
    List(Vec<String>),
    /// Members, in the order in which they first came.
    Members(Members),
    /// The last one, as it came.
    Other(String),
}

impl Grown {
    /// The beginning of a value, from the JSON text of its first piece; none for `null`.
    fn begin(name: &str, piece: &str, depth: usize) -> Option<Self> {
        Some(match piece.as_bytes().first()? {
            b'n' => return None,
            b'"' => {
                let mut text = Text::default();
                text.push_literal(piece);
                Self::Text(text)
            }
            b'[' => Self::List(
                json::elements(piece)
                    .into_iter()
                    .map(str::to_owned)
                    .collect(),
            ),
            b'{' if name == "arguments" => Self::Text(Text {
                text: piece.to_owned(),
                half: None,
            }),
            b'{' if depth < MAX_DEPTH => {
                let mut members = Members::default();
                members.grow_at(piece, depth + 1);
                Self::Members(members)
            }
            _ => Self::Other(piece.to_owned()),
        })
    }

    fn grow(&mut self, name: &str, piece: &str, depth: usize) {
        match (&mut *self, piece.as_bytes().first()) {
            (_, None | Some(b'n')) => {}
            (Self::Text(text), Some(b'"')) => grow_text(text, name, piece),
            (Self::List(list), Some(b'[')) => {
                list.extend(json::elements(piece).into_iter().map(str::to_owned));
            }
            (Self::Members(members), Some(b'{')) => members.grow_at(piece, depth + 1),
            _ => {
                if let Some(other) = Self::begin(name, piece, depth) {
                    *self = other;
                }
            }
        }
    }

    /// The text, if it is one.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// Whether nothing would be lost by leaving it out.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::List(list) => list.is_empty(),
            Self::Members(members) => members.is_empty(),
            Self::Other(_) => false,
        }
    }

    /// Writes the value as JSON.
    pub(super) fn write(&self, out: &mut String) {
        match self {
            Self::Text(text) => text.write(out),
            Self::List(list) => {
                out.push('[');
                out.push_str(&list.join(","));
                out.push(']');
            }
            Self::Members(members) => members.write(out),
            Self::Other(text) => out.push_str(text),
        }
    }
}

fn grow_text(text: &mut Text, name: &str, piece: &str) {
    let replaces = if FIXED.contains(&name) {
        true
    } else if name == "name" {
        json::decode_string(piece).is_some_and(|piece| piece.starts_with(text.as_str()))
    } else {
        false
    };
    if replaces && piece == "\"\"" {
        return;
    }
    if replaces {
        *text = Text::default();
    }
    text.push_literal(piece);
}

/// The members of an object that grows.
#[derive(Debug, Clone, Default)]
pub(super) struct Members(Vec<(String, Grown)>);

impl Members {
    /// Takes the members of the next piece, the JSON text of an object.
    fn grow_at(&mut self, piece: &str, depth: usize) {
        for member in json::members(piece) {
            self.grow_member_at(&member.name, member.value, depth);
        }
    }

    /// Takes the next piece of one member.
    pub(super) fn grow_member(&mut self, name: &str, piece: &str) {
        self.grow_member_at(name, piece, 0);
    }

    fn grow_member_at(&mut self, name: &str, piece: &str, depth: usize) {
        if let Some((_, value)) = self.0.iter_mut().find(|(known, _)| known == name) {
            value.grow(name, piece, depth);
        } else if let Some(value) = Grown::begin(name, piece, depth) {
            self.0.push((name.to_owned(), value));
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Grown> {
        self.iter()
            .find_map(|(known, value)| (known == name).then_some(value))
    }

    /// The text of a member, if it is there and is one.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.text()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Grown)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the object as JSON.
    pub(super) fn write(&self, out: &mut String) {
        let mut separator = '{';
        for (name, value) in self.iter() {
            out.push(separator);
            write_member(out, name, |out| value.write(out));
            separator = ',';
        }
        if separator == '{' {
            out.push('{');
        }
        out.push('}');
    }
}

/// Writes a name, a colon and what `value` writes.
pub(super) fn write_member(out: &mut String, name: &str, value: impl FnOnce(&mut String)) {
    out.push_str(&json::encode_string(name));
    out.push(':');
    value(out);
}
