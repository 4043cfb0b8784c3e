//! The smallest pieces: content blocks as texts, string literals, the members of an object.

use std::borrow::Cow;

use crate::domain::json::{self, Member};

/// A content block, as JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    text: String,
    /// Signed reasoning: stands first in its message and takes no `cache_control`.
    pub(super) is_thinking: bool,
}

impl Block {
    /// A block whose text is an object with at least one member.
    pub(super) fn new(text: String) -> Self {
        Self {
            text,
            is_thinking: false,
        }
    }

    /// A block of signed reasoning.
    pub(super) fn thinking(text: String) -> Self {
        Self {
            text,
            is_thinking: true,
        }
    }

    /// A text block of a string literal; none if the string is blank.
    pub(super) fn text(literal: &str) -> Option<Self> {
        (!is_blank(literal)).then(|| Self::new(format!(r#"{{"type":"text","text":{literal}}}"#)))
    }

    /// Appends the block to `out`, with `cache_control` as its last member where it is marked.
    pub(super) fn write(&self, out: &mut String, marked: bool) {
        match self.text.strip_suffix('}').filter(|_| marked) {
            Some(open) => {
                out.push_str(open);
                out.push_str(r#","cache_control":{"type":"ephemeral"}}"#);
            }
            None => out.push_str(&self.text),
        }
    }
}

/// The blocks joined by commas, none of them marked.
pub(super) fn join(blocks: &[Block]) -> String {
    let texts: Vec<_> = blocks.iter().map(|block| block.text.as_str()).collect();
    texts.join(",")
}

/// Whether a JSON string literal holds nothing but white space.
pub(super) fn is_blank(literal: &str) -> bool {
    let first = literal.bytes().skip(1).find(|byte| *byte != b' ');
    match first {
        Some(b'"') | None => true,
        Some(byte) if byte.is_ascii_graphic() && byte != b'\\' => false,
        // Escaped or beyond ASCII: only the characters themselves can tell.
        Some(_) => json::decode_string(literal).is_some_and(|text| text.chars().all(is_space)),
    }
}

/// White space as that API's server counts it: four separators of ASCII are among it.
fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// What stands between the quotes of a string literal, as it is spelled there.
pub(super) fn spelled(literal: &str) -> &str {
    literal
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .unwrap_or_default()
}

/// A name that a client gave to a kind of thing, fit to be shown: never long, never prose.
pub(super) fn shown(name: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./+".contains(&byte);
    if (1..=64).contains(&name.len()) && name.bytes().all(plain) {
        Cow::Owned(format!("of type `{name}`"))
    } else {
        Cow::Borrowed("of an unknown type")
    }
}

/// The members of an object; where a name is given twice the last holds, and `null` is as good as absent.
pub(super) struct Fields<'a>(Vec<Member<'a>>);

impl<'a> Fields<'a> {
    /// Reads the object that `text` is; a text that is none has no members.
    pub(super) fn of(text: &'a str) -> Self {
        Self(json::members(text))
    }

    /// The text of a value.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.0
            .iter()
            .rfind(|member| member.name == name)
            .map(|member| member.value)
            .filter(|value| *value != "null")
    }

    /// The literal of a value that is a string.
    pub(super) fn literal(&self, name: &str) -> Option<&'a str> {
        self.get(name).filter(|value| value.starts_with('"'))
    }

    /// The characters of a value that is a string.
    pub(super) fn string(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name).and_then(json::decode_string)
    }
}
