//! A context in the form that Anthropic's Messages API takes.
//!
//! Chat-completions messages go in, `system` blocks and `messages` come out, as texts: a JSON string that
//! can stand as it is is copied, never decoded and spelled anew. The output keeps that API's rules (roles
//! take turns beginning with `user`, each `tool_use` is answered in the next message, no text is blank);
//! what has no place there is named, never dropped. The rules for one piece each live below: `part` for
//! content, `assistant` for what a model says, `thought` for its reasoning, `call` for its calls, `assembly`
//! for who follows whom.
//! Which messages a context holds, and where its breakpoints are, belongs to others.
//!
//! Members that carry no content (`name`, `annotations`, `detail` of an image, fields of providers) are
//! left out, as are pieces that say nothing: blank texts, and messages that consist of nothing else.

mod assembly;
mod assistant;
mod block;
mod call;
mod data;
mod part;
#[cfg(test)]
mod tests;
mod thought;

use super::json;
use assembly::Assembly;

/// A context in Anthropic's form. Items are JSON texts joined by commas, without brackets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The `system` blocks; empty if there are none.
    pub system: String,
    /// The `messages`; empty if there are none.
    pub messages: String,
    /// For each requested breakpoint, in that order, the index among `messages` of the one that carries it.
    /// A breakpoint in the instructions is not listed: it marks the last `system` block.
    pub breakpoints: Vec<usize>,
    /// For each source message the index of the message that holds it; `None` for instructions and for
    /// messages with nothing to say.
    pub index: Vec<Option<usize>>,
}

/// Something that Anthropic's form has no place for. Quotes no content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Anthropic's form has no place for {what}")]
pub struct Unmappable {
    /// Index of the source message.
    pub index: usize,
    /// JSON pointer inside that message.
    pub pointer: String,
    /// What stands there, such as "a content part of type `input_audio`".
    pub what: String,
}

/// Renders chat-completions messages, given as stored texts joined by commas.
///
/// `breakpoints` are indices of source messages; those beyond the last are ignored. Each puts
/// `cache_control` on the last block that stands once the messages up to it are rendered and that may
/// carry one (reasoning may not), so a message with nothing to say marks what is before it. That API takes
/// at most four; keeping to that is up to the caller.
///
/// The same input gives the same bytes, and more messages behind it change no message but the last.
///
/// # Errors
/// The first thing that cannot be mapped.
pub fn render(messages: &str, breakpoints: &[usize]) -> Result<Rendered, Unmappable> {
    let list = format!("[{messages}]");
    let sources = json::elements(&list);
    if sources.is_empty() && !messages.trim().is_empty() {
        return Err(Fault::new("", "what is no list of messages").of_message(0));
    }
    let mut assembly = Assembly::default();
    for (index, source) in sources.into_iter().enumerate() {
        assembly
            .add(source)
            .map_err(|fault| fault.of_message(index))?;
    }
    Ok(assembly.finish(breakpoints))
}

/// An [`Unmappable`] on its way up: the pointer grows by what it passes.
#[derive(Debug)]
struct Fault {
    pointer: String,
    what: String,
}

impl Fault {
    fn new(pointer: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            what: what.into(),
        }
    }

    /// The same, seen from outside of the value at `place`.
    fn inside(mut self, place: impl std::fmt::Display) -> Self {
        self.pointer = format!("/{place}{}", self.pointer);
        self
    }

    fn of_message(self, index: usize) -> Unmappable {
        Unmappable {
            index,
            pointer: self.pointer,
            what: self.what,
        }
    }
}
