//! The assistant message that the deltas of a stream add up to.
//!
//! Written as role, content, the other members in the order in which they first came, tool
//! calls. `content` grows as text; if it comes as a list of parts, the parts are kept as they
//! came, except that stretches of text that follow one another become one part. Everything else
//! follows the rules of `grown` and `calls`.
//!
//! What does not belong here: how the stream ended.

use super::calls::Calls;
use super::grown::{Grown, Members, Text, write_member};
use crate::domain::json;

/// A message that is being received.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    content: Content,
    others: Members,
    calls: Calls,
}

impl Assembly {
    /// Takes one delta, the JSON text of an object.
    pub(super) fn grow(&mut self, delta: &str) {
        for member in json::members(delta) {
            match member.name.as_ref() {
                // Always the assistant, whatever a server calls it.
                "role" => {}
                "content" => self.content.grow(member.value),
                "tool_calls" => self.calls.grow(member.value),
                name => self.others.grow_member(name, member.value),
            }
        }
    }

    /// Whether there is text for a reader: content or a refusal.
    pub(super) fn has_text(&self) -> bool {
        self.content.has_text()
            || self
                .others
                .text("refusal")
                .is_some_and(|text| !text.is_empty())
    }

    /// Whether there is anything at all: text, thought, calls.
    pub(super) fn is_empty(&self) -> bool {
        !self.content.has_any()
            && self.calls.is_empty()
            && self.others.iter().all(|(_, value)| value.is_empty())
    }

    /// The whole message.
    pub(super) fn write(&self) -> String {
        self.written(&self.content, |_| true, !self.calls.is_empty())
    }

    /// What is worth keeping of a message that broke off: the texts. Not the calls, which nobody
    /// may run, nor blocks that may lack their signature.
    pub(super) fn write_texts(&self) -> String {
        let content = Content::Text(self.content.text_only());
        self.written(&content, |value| matches!(value, Grown::Text(_)), false)
    }

    fn written(
        &self,
        content: &Content,
        keep: impl Fn(&Grown) -> bool,
        with_calls: bool,
    ) -> String {
        let mut out = String::from("{\"role\":\"assistant\",");
        let is_replaced = with_calls || self.others.get("function_call").is_some_and(&keep);
        write_member(&mut out, "content", |out| {
            if is_replaced && !content.has_any() {
                out.push_str("null");
            } else {
                content.write(out);
            }
        });
        let others = self.others.iter();
        for (name, value) in others.filter(|(_, value)| !value.is_empty() && keep(value)) {
            out.push(',');
            write_member(&mut out, name, |out| value.write(out));
        }
        if with_calls {
            out.push(',');
            write_member(&mut out, "tool_calls", |out| self.calls.write(out));
        }
        out.push('}');
        out
    }
}

#[derive(Debug)]
enum Content {
    Text(Text),
    Parts(Vec<Part>),
}

#[derive(Debug)]
enum Part {
    Text(Text),
    /// As it came.
    Other(String),
}

impl Default for Content {
    fn default() -> Self {
        Self::Text(Text::default())
    }
}

impl Content {
    fn grow(&mut self, piece: &str) {
        match piece.as_bytes().first() {
            Some(b'"') => self.push_text(piece),
            Some(b'[') => {
                for part in json::elements(piece) {
                    self.push_part(part);
                }
            }
            // A part that somebody forgot to put into a list.
            Some(b'{') => self.push_part(piece),
            _ => {}
        }
    }

    fn push_text(&mut self, literal: &str) {
        match self {
            Self::Text(text) => text.push_literal(literal),
            Self::Parts(parts) => {
                if let Some(Part::Text(text)) = parts.last_mut() {
                    text.push_literal(literal);
                } else if literal != "\"\"" {
                    let mut text = Text::default();
                    text.push_literal(literal);
                    parts.push(Part::Text(text));
                }
            }
        }
    }

    fn push_part(&mut self, part: &str) {
        if let Self::Text(text) = self {
            let text = std::mem::take(text);
            let first = (!text.is_empty()).then_some(Part::Text(text));
            *self = Self::Parts(first.into_iter().collect());
        }
        if let Some(text) = plain_text(part) {
            self.push_text(text);
        } else if let Self::Parts(parts) = self {
            parts.push(Part::Other(part.to_owned()));
        }
    }

    fn has_any(&self) -> bool {
        match self {
            Self::Text(text) => !text.is_empty(),
            Self::Parts(parts) => !parts.is_empty(),
        }
    }

    fn has_text(&self) -> bool {
        match self {
            Self::Text(text) => !text.is_empty(),
            Self::Parts(parts) => parts
                .iter()
                .any(|part| matches!(part, Part::Text(text) if !text.is_empty())),
        }
    }

    /// The text parts, joined.
    fn text_only(&self) -> Text {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let mut all = Text::default();
                for part in parts {
                    if let Part::Text(text) = part {
                        all.push_literal(&json::encode_string(text.as_str()));
                    }
                }
                all
            }
        }
    }

    fn write(&self, out: &mut String) {
        let parts = match self {
            Self::Text(text) => return text.write(out),
            Self::Parts(parts) => parts,
        };
        let mut separator = '[';
        for part in parts {
            out.push(separator);
            separator = ',';
            match part {
                Part::Text(text) => {
                    out.push_str("{\"type\":\"text\",");
                    write_member(out, "text", |out| text.write(out));
                    out.push('}');
                }
                Part::Other(text) => out.push_str(text),
            }
        }
        if separator == '[' {
            out.push('[');
        }
        out.push(']');
    }
}

/// The literal of a part that is text and nothing else.
fn plain_text(part: &str) -> Option<&str> {
    if part.starts_with('"') {
        return Some(part);
    }
    let mut text = None;
    for member in json::members(part) {
        match (member.name.as_ref(), member.value) {
            ("type", "\"text\"") => {}
            ("text", value) if value.starts_with('"') => text = Some(value),
            _ => return None,
        }
    }
    text
}
