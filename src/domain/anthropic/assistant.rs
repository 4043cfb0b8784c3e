//! What the model says, in the order the API wants it: reasoning, then text, then calls.

use super::Fault;
use super::block::{Block, Fields};
use super::call::{self, Call, Ids};
use super::part::{self, Content, Speaker};
use super::thought;

/// An assistant message as the API takes it.
#[derive(Debug)]
pub(super) struct Spoken {
    /// Reasoning and text.
    pub(super) blocks: Vec<Block>,
    /// What follows them.
    pub(super) calls: Vec<Call>,
}

/// Maps an assistant message.
pub(super) fn spoken(message: &Fields<'_>, ids: &mut Ids) -> Result<Spoken, Fault> {
    let tool_calls = message.get("tool_calls");
    refuse_unmapped(message, tool_calls)?;
    let content = match message.get("content") {
        Some(value) => part::content(value, Speaker::Assistant)?,
        None => Content::default(),
    };
    let mut thoughts = thought::beside(message)?;
    thoughts.extend(content.thoughts);
    thoughts.extend(thought::plain(message, &thoughts)?);
    let mut blocks = thought::blocks(&thoughts);
    blocks.extend(content.blocks);
    blocks.extend(refusal(message)?);
    let calls = match tool_calls {
        Some(value) => call::calls(value, ids)?,
        None => Vec::new(),
    };
    Ok(Spoken { blocks, calls })
}

/// Members with content that the API has nothing like.
fn refuse_unmapped(message: &Fields<'_>, tool_calls: Option<&str>) -> Result<(), Fault> {
    if message.get("audio").is_some() {
        return Err(Fault::new("/audio", "an answer in audio"));
    }
    match message.get("function_call") {
        Some(legacy) if !call::repeats(legacy, tool_calls) => Err(Fault::new(
            "/function_call",
            "a call without an id (`function_call`)",
        )),
        _ => Ok(()),
    }
}

fn refusal(message: &Fields<'_>) -> Result<Option<Block>, Fault> {
    match message.get("refusal") {
        Some(literal) if literal.starts_with('"') => Ok(Block::text(literal)),
        Some(_) => Err(Fault::new("/refusal", "a refusal that is no text")),
        None => Ok(None),
    }
}
