//! Items: the units of the conversations API, and how they take part in a session.
//!
//! An item is stored as it came. Beside it stands what a context shows of it: a chat message of its
//! own (`chat`), or nothing for what only its maker can use (`Message::shows_nothing`). Pairing, sizes,
//! pruning, transcripts and the search read that chat message, so they know nothing of items. The
//! items of one answer of a model are several rows, which a context joins (`run`). `shown` is how an
//! item goes out, `derived` how a chat message reads as items.

mod chat;
mod derived;
mod run;
mod shown;

pub use derived::{Derived, derive, is_whole, renamed, row_of};
pub use run::join;
pub use shown::{compaction, own_summary, prefix, show, summary_message};

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use super::json::{self, JsonFault, Member};
use super::message::{Message, MessageFault, Role};

/// A chat message of an item whose content is gone, and that had no text to begin with.
pub const NOTHING_LEFT: &str = r#"{"role":"assistant","content":""}"#;

/// Bytes that an item's id may have.
const LONGEST_ID: usize = 512;

/// Names that are read of an item; none may be given twice.
const READ: [&str; 15] = [
    "type",
    "id",
    "role",
    "content",
    "status",
    "call_id",
    "name",
    "arguments",
    "input",
    "output",
    "summary",
    "encrypted_content",
    "action",
    "actions",
    "operation",
];

/// The members of an object, as slices of its text.
struct Fields<'a> {
    members: Vec<Member<'a>>,
}

impl<'a> Fields<'a> {
    fn of(text: &'a str) -> Self {
        Self {
            members: json::members(text),
        }
    }

    /// The value's JSON text; `null` counts as absent.
    fn raw(&self, name: &str) -> Option<&'a str> {
        let member = self.members.iter().find(|member| member.name == name)?;
        Some(member.value).filter(|value| *value != "null")
    }

    /// The JSON text of a value that is a string.
    fn raw_text(&self, name: &str) -> Option<&'a str> {
        self.raw(name).filter(|value| value.starts_with('"'))
    }

    /// The string, decoded.
    fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        self.raw(name).and_then(json::decode_string)
    }
}

fn fault(pointer: &str, problem: &str) -> MessageFault {
    MessageFault::Shape {
        pointer: pointer.to_owned(),
        problem: problem.to_owned(),
    }
}

/// Reads an item from its text, which must be well-formed JSON that passed [`json::check_text`].
///
/// # Errors
/// [`MessageFault`] says where and what; nothing of the content is quoted.
pub fn read(text: &str) -> Result<Message, MessageFault> {
    if !text.starts_with('{') {
        return Err(fault("", "an item is an object"));
    }
    let fields = Fields::of(text);
    for name in READ {
        if fields.members.iter().filter(|m| m.name == name).count() > 1 {
            let name = name.to_owned();
            return Err(JsonFault::DuplicateName { name }.into());
        }
    }
    let id = match fields.raw("id") {
        None => None,
        Some(id) => Some(read_id(id)?),
    };
    let kind = kind(&fields)?;
    let mut message = match chat::render(&kind, &fields)? {
        Some(chat) => Message::read(&chat)?,
        None => nothing(),
    };
    message.body_digest = Sha256::digest(text).into();
    message.item = Some(text.to_owned());
    message.annotations.id = id;
    Ok(message)
}

/// What is left of an item whose content is gone, read from what it shows.
///
/// # Errors
/// It shows something that is no message.
pub fn erased(shown: &str) -> Result<Message, MessageFault> {
    let text = if shown.is_empty() {
        NOTHING_LEFT
    } else {
        shown
    };
    let mut message = Message::read(text)?;
    shown.clone_into(&mut message.body);
    message.item = Some(String::new());
    Ok(message)
}

fn read_id(id: &str) -> Result<String, MessageFault> {
    json::decode_string(id)
        .filter(|id| is_id(id))
        .map(Cow::into_owned)
        .ok_or_else(|| fault("/id", "`id` is 1 to 512 visible ASCII characters"))
}

/// Whether an item can have this id.
#[must_use]
pub fn is_id(id: &str) -> bool {
    (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Refuses an item that is to be stored under an id that only parts of chat messages have.
///
/// # Errors
/// It is one.
pub fn check_own_id(item: &Message) -> Result<(), MessageFault> {
    match item.annotations.id.as_deref().and_then(row_of) {
        None => Ok(()),
        Some(_) => Err(fault(
            "/id",
            "this `id` names a part of a chat message; leave `id` out to have the item stored",
        )),
    }
}

/// The item's type; what has a role and no type is a message.
fn kind<'a>(fields: &Fields<'a>) -> Result<Cow<'a, str>, MessageFault> {
    match (fields.raw("type"), fields.text("type")) {
        (None, _) if fields.raw("role").is_some() => Ok(Cow::Borrowed("message")),
        (Some(_), Some(kind)) if !kind.is_empty() => Ok(kind),
        _ => Err(fault("/type", "an item has a `type`, a string")),
    }
}

/// A message that stands in the history and that no context shows.
fn nothing() -> Message {
    Message {
        body: String::new(),
        item: None,
        role: Role::Assistant,
        size: super::size::Size::default(),
        tokens: 0,
        calls: Vec::new(),
        answers: None,
        says_something: false,
        body_digest: Sha256::digest("").into(),
        content_digest: Sha256::digest("").into(),
        annotations: super::message::Annotations::default(),
    }
}

#[cfg(test)]
mod tests;
