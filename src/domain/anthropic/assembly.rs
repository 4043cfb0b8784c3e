//! Who follows whom: messages that take turns, results that follow their calls, marks for the prompt cache.

use std::collections::{HashMap, HashSet};

use super::assistant;
use super::block::{self, Block, Fields, is_blank};
use super::call::{Call, Ids};
use super::part::{self, Speaker};
use super::{Fault, Rendered};
use crate::domain::message::Role;

/// Said by the user where a conversation begins with the assistant, which the API does not allow.
/// Part of a cached prefix, as the next is.
const GREETED: &str = r#""[The conversation begins with the assistant.]""#;

/// The result of a call that was interrupted. A stored context brings its own, in the same words.
const NO_RESULT: &str = r#""[no result was recorded for this call]""#;

/// A rendered message.
#[derive(Debug)]
struct Message {
    is_user: bool,
    blocks: Vec<Block>,
}

/// Where a breakpoint at a source message puts its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    /// On the last system block.
    System,
    /// On one block of one message.
    Block { message: usize, block: usize },
}

/// The calls of the newest message that has any, as long as results may come.
#[derive(Debug)]
struct Group {
    /// Ids as rendered, and results, in the order of the calls.
    calls: Vec<(String, Option<Block>)>,
    /// Calls without a result: id in the source, place among `calls`.
    open: HashMap<String, usize>,
    /// Source messages that brought a result, and the last call that had one by then.
    sources: Vec<(usize, usize)>,
}

/// A context as far as it is rendered.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    system: Vec<Block>,
    messages: Vec<Message>,
    /// For each source message, what [`Rendered::index`] will say.
    index: Vec<Option<usize>>,
    /// For each source message, where a breakpoint at it goes.
    places: Vec<Place>,
    /// The last block so far that may be marked.
    last: Option<Place>,
    ids: Ids,
    group: Option<Group>,
}

impl Assembly {
    /// Adds the next source message.
    pub(super) fn add(&mut self, source: &str) -> Result<(), Fault> {
        let fields = Fields::of(source);
        let role = fields
            .string("role")
            .and_then(|role| Role::parse(&role))
            .ok_or_else(|| Fault::new("/role", "a message of an unknown role"))?;
        if matches!(role, Role::User | Role::Assistant) {
            self.close_group(true);
        }
        let index = match role {
            Role::System | Role::Developer => {
                self.system.extend(content(&fields, Speaker::Instruction)?);
                self.index.push(None);
                self.places.push(Place::System);
                return Ok(());
            }
            Role::User => self.say(true, content(&fields, Speaker::User)?),
            Role::Assistant => self.add_assistant(&fields)?,
            Role::Tool => {
                self.add_result(&fields)?;
                None
            }
        };
        self.index.push(index);
        self.places.push(self.last.unwrap_or(Place::System));
        Ok(())
    }

    fn add_assistant(&mut self, fields: &Fields<'_>) -> Result<Option<usize>, Fault> {
        let spoken = assistant::spoken(fields, &mut self.ids)?;
        let mut blocks = spoken.blocks;
        blocks.extend(spoken.calls.iter().map(|call| call.block.clone()));
        if !spoken.calls.is_empty() {
            self.group = Some(Group::of(spoken.calls));
        }
        Ok(self.say(false, blocks))
    }

    /// Takes a result into its group; where it stands is known when the group is closed.
    fn add_result(&mut self, fields: &Fields<'_>) -> Result<(), Fault> {
        let fault = || Fault::new("/tool_call_id", "a result that answers no open call");
        let call = fields.string("tool_call_id").ok_or_else(fault)?;
        let group = self.group.as_mut().ok_or_else(fault)?;
        let at = group.open.remove(call.as_ref()).ok_or_else(fault)?;
        let (id, result) = group.calls.get_mut(at).ok_or_else(fault)?;
        *result = Some(tool_result(id, fields)?);
        let latest = group
            .sources
            .last()
            .map_or(at, |(_, before)| at.max(*before));
        group.sources.push((self.index.len(), latest));
        Ok(())
    }

    /// Appends blocks, to the last message if that is the same speaker's; gives its index.
    fn say(&mut self, is_user: bool, blocks: Vec<Block>) -> Option<usize> {
        if blocks.is_empty() {
            return None;
        }
        if self.messages.is_empty() && !is_user {
            self.say(true, Block::text(GREETED).into_iter().collect());
        }
        let markable = blocks.iter().rposition(|block| !block.is_thinking);
        let before = match self.messages.last_mut() {
            Some(message) if message.is_user == is_user => {
                let before = message.blocks.len();
                message.blocks.extend(blocks);
                before
            }
            _ => {
                self.messages.push(Message { is_user, blocks });
                0
            }
        };
        let message = self.messages.len().checked_sub(1)?;
        if let Some(block) = markable {
            self.last = Some(Place::Block {
                message,
                block: before + block,
            });
        }
        Some(message)
    }

    /// Puts the results of the newest calls in place: with all of them `interrupted`, else those there are.
    fn close_group(&mut self, interrupted: bool) {
        let Some(group) = self.group.take() else {
            return;
        };
        let mut results = Vec::with_capacity(group.calls.len());
        // For each call, the place of the last result up to its own.
        let mut ranks = Vec::with_capacity(group.calls.len());
        for (id, result) in group.calls {
            let missing = || Block::new(result_text(&id, &format!(r#","content":{NO_RESULT}"#)));
            results.extend(result.or_else(|| interrupted.then(missing)));
            ranks.push(results.len().saturating_sub(1));
        }
        let message = self.say(true, results);
        for (source, call) in group.sources {
            let place = message
                .zip(ranks.get(call))
                .map(|(message, block)| Place::Block {
                    message,
                    block: *block,
                });
            if let Some(index) = self.index.get_mut(source) {
                *index = message;
            }
            if let Some((old, new)) = self.places.get_mut(source).zip(place) {
                *old = new;
            }
        }
    }

    /// The whole, with marks for breakpoints at those source messages.
    pub(super) fn finish(mut self, breakpoints: &[usize]) -> Rendered {
        self.close_group(false);
        let places = breakpoints
            .iter()
            .filter_map(|source| self.places.get(*source).copied());
        let marks: HashSet<Place> = places.clone().collect();
        let breakpoints = places
            .filter_map(|place| match place {
                Place::System => None,
                Place::Block { message, .. } => Some(message),
            })
            .collect();
        let last = self.system.len().saturating_sub(1);
        let mut system = String::new();
        write(&self.system, &mut system, |block| {
            block == last && marks.contains(&Place::System)
        });
        let mut messages = String::new();
        for (message, Message { is_user, blocks }) in self.messages.iter().enumerate() {
            if message > 0 {
                messages.push(',');
            }
            let role = if *is_user { "user" } else { "assistant" };
            messages.push_str(r#"{"role":""#);
            messages.push_str(role);
            messages.push_str(r#"","content":["#);
            write(blocks, &mut messages, |block| {
                marks.contains(&Place::Block { message, block })
            });
            messages.push_str("]}");
        }
        Rendered {
            system,
            messages,
            breakpoints,
            index: self.index,
        }
    }
}

impl Group {
    fn of(calls: Vec<Call>) -> Self {
        let open = calls
            .iter()
            .enumerate()
            .map(|(index, call)| (call.source_id.clone(), index))
            .collect();
        Self {
            calls: calls.into_iter().map(|call| (call.id, None)).collect(),
            open,
            sources: Vec::new(),
        }
    }
}

/// The blocks of a message's content.
fn content(fields: &Fields<'_>, speaker: Speaker) -> Result<Vec<Block>, Fault> {
    match fields.get("content") {
        Some(value) => Ok(part::content(value, speaker)?.blocks),
        None => Ok(Vec::new()),
    }
}

/// A result: text stays a string, parts become blocks, and where there is nothing there is no `content`.
fn tool_result(id: &str, fields: &Fields<'_>) -> Result<Block, Fault> {
    let mut rest = match fields.get("content") {
        Some(literal) if literal.starts_with('"') && is_blank(literal) => String::new(),
        Some(literal) if literal.starts_with('"') => format!(r#","content":{literal}"#),
        _ => match content(fields, Speaker::User)? {
            blocks if blocks.is_empty() => String::new(),
            blocks => format!(r#","content":[{}]"#, block::join(&blocks)),
        },
    };
    if let Some(is_error @ ("true" | "false")) = fields.get("is_error") {
        rest.push_str(r#","is_error":"#);
        rest.push_str(is_error);
    }
    Ok(Block::new(result_text(id, &rest)))
}

/// `rest`: further members, each with the comma before it.
fn result_text(id: &str, rest: &str) -> String {
    format!(r#"{{"type":"tool_result","tool_use_id":"{id}"{rest}}}"#)
}

fn write(blocks: &[Block], out: &mut String, is_marked: impl Fn(usize) -> bool) {
    for (index, block) in blocks.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        block.write(out, is_marked(index));
    }
}
