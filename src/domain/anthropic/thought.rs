//! Reasoning, in the many spellings it comes in.
//!
//! The API takes back only what it signed or sealed itself. Reasoning without a signature becomes a text
//! between `<thinking>` tags, and what several spellings of one message repeat stands once.

use std::collections::HashSet;

use super::Fault;
use super::block::{Block, Fields, is_blank, shown, spelled};
use crate::domain::json;

/// A piece of reasoning; the texts are spelled as between the quotes of a string literal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Thought<'a> {
    /// With the signature that makes it a `thinking` block. The text may be empty: some models withhold it.
    Signed { text: &'a str, signature: &'a str },
    /// Sealed: a `redacted_thinking` block.
    Sealed { data: &'a str },
    /// Anyone's: no block of its own. Never blank.
    Unsigned { text: &'a str },
}

/// Reads a `thinking` or `redacted_thinking` block; none if it says nothing.
pub(super) fn block(text: &str) -> Result<Option<Thought<'_>>, Fault> {
    let fields = Fields::of(text);
    let kind = fields.string("type").unwrap_or_default();
    match kind.as_ref() {
        "thinking" => thinking(&fields, "thinking", true),
        "redacted_thinking" => sealed(&fields).map(Some),
        other => Err(Fault::new(
            "",
            format!("a block of reasoning {}", shown(other)),
        )),
    }
}

/// Reads an entry of `reasoning_details`. One that names another vendor's format has a signature that means
/// nothing to the API.
fn detail(text: &str) -> Result<Option<Thought<'_>>, Fault> {
    let fields = Fields::of(text);
    let format = fields.string("format").unwrap_or_default();
    let ours = format.starts_with("anthropic") || matches!(format.as_ref(), "" | "unknown");
    let kind = fields.string("type").unwrap_or_default();
    match kind.as_ref() {
        "reasoning.text" => thinking(&fields, "text", ours),
        "reasoning.summary" => thinking(&fields, "summary", false),
        "reasoning.encrypted" if ours => sealed(&fields).map(Some),
        "reasoning.encrypted" => Err(Fault::new("", "reasoning that another vendor encrypted")),
        other => Err(Fault::new("", format!("reasoning {}", shown(other)))),
    }
}

/// Reasoning whose text is the member `name`.
fn thinking<'a>(
    fields: &Fields<'a>,
    name: &str,
    may_be_signed: bool,
) -> Result<Option<Thought<'a>>, Fault> {
    let literal = string_of(fields, name)?;
    let signature = fields
        .literal("signature")
        .filter(|signature| may_be_signed && !is_blank(signature));
    Ok(match signature {
        Some(signature) => Some(Thought::Signed {
            text: literal.map(spelled).unwrap_or_default(),
            signature: spelled(signature),
        }),
        None => unsigned(literal),
    })
}

fn unsigned(literal: Option<&str>) -> Option<Thought<'_>> {
    literal
        .filter(|literal| !is_blank(literal))
        .map(|literal| Thought::Unsigned {
            text: spelled(literal),
        })
}

fn sealed<'a>(fields: &Fields<'a>) -> Result<Thought<'a>, Fault> {
    fields
        .literal("data")
        .map(|data| Thought::Sealed {
            data: spelled(data),
        })
        .ok_or_else(|| Fault::new("", "encrypted reasoning without its data"))
}

/// The literal of a member that is a string, if it is there.
fn string_of<'a>(fields: &Fields<'a>, name: &str) -> Result<Option<&'a str>, Fault> {
    match fields.get(name) {
        Some(value) if !value.starts_with('"') => Err(Fault::new(
            format!("/{name}"),
            "reasoning of an unknown form",
        )),
        value => Ok(value),
    }
}

/// The reasoning that stands in members of the message beside its content.
pub(super) fn beside<'a>(message: &Fields<'a>) -> Result<Vec<Thought<'a>>, Fault> {
    let mut thoughts = Vec::new();
    listed(message, "thinking_blocks", block, &mut thoughts)?;
    listed(message, "reasoning_details", detail, &mut thoughts)?;
    Ok(thoughts)
}

fn listed<'a>(
    message: &Fields<'a>,
    name: &str,
    read: fn(&'a str) -> Result<Option<Thought<'a>>, Fault>,
    thoughts: &mut Vec<Thought<'a>>,
) -> Result<(), Fault> {
    let Some(value) = message.get(name) else {
        return Ok(());
    };
    if !value.starts_with('[') {
        return Err(Fault::new(
            format!("/{name}"),
            "reasoning of an unknown form",
        ));
    }
    for (index, text) in json::elements(value).into_iter().enumerate() {
        thoughts.extend(read(text).map_err(|fault| fault.inside(index).inside(name))?);
    }
    Ok(())
}

/// The reasoning that a message carries as plain text. Where `thoughts` holds reasoning that is signed or
/// sealed this repeats it, so there is none; nor is there where it is all of `thoughts` in one.
pub(super) fn plain<'a>(
    message: &Fields<'a>,
    thoughts: &[Thought<'a>],
) -> Result<Vec<Thought<'a>>, Fault> {
    let texts = thoughts.iter().map(|thought| match thought {
        Thought::Unsigned { text } => Some(*text),
        Thought::Signed { .. } | Thought::Sealed { .. } => None,
    });
    let whole = texts
        .collect::<Option<Vec<_>>>()
        .map(|texts| texts.concat());
    let mut plain = Vec::new();
    for name in ["reasoning_content", "reasoning"] {
        let thought = unsigned(string_of(message, name)?);
        plain.extend(thought.filter(|thought| {
            whole
                .as_ref()
                .is_some_and(|whole| *thought != Thought::Unsigned { text: whole })
        }));
    }
    Ok(plain)
}

/// The blocks of `thoughts`: those that are blocks of reasoning first, then texts; each once.
pub(super) fn blocks(thoughts: &[Thought<'_>]) -> Vec<Block> {
    let mut seen = HashSet::new();
    let mut blocks = Vec::new();
    for thought in thoughts {
        let text = match thought {
            Thought::Signed { text, signature } => {
                format!(r#"{{"type":"thinking","thinking":"{text}","signature":"{signature}"}}"#)
            }
            Thought::Sealed { data } => {
                format!(r#"{{"type":"redacted_thinking","data":"{data}"}}"#)
            }
            Thought::Unsigned { .. } => continue,
        };
        if seen.insert(*thought) {
            blocks.push(Block::thinking(text));
            if let Thought::Signed { text, .. } = thought {
                seen.insert(Thought::Unsigned { text });
            }
        }
    }
    for thought in thoughts {
        if let Thought::Unsigned { text } = thought
            && seen.insert(*thought)
        {
            let literal = format!(r#""<thinking>{text}</thinking>""#);
            blocks.extend(Block::text(&literal));
        }
    }
    blocks
}
