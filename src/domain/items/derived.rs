//! How a chat message reads as items: one, or several if it reasons, speaks and calls at once.
//!
//! Their ids say which message they come from, so that each can be found again: `msg-of-ROW`, `rs-of-ROW`,
//! `fco-of-ROW`, `fc-0-of-ROW`, `ctc-0-of-ROW`. No item that a client sends may have an id of that form, so
//! none can be taken for one of these. Letters, digits, `-` and `_` are what model providers take.

use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::{Fields, shown};
use crate::domain::json;
use crate::domain::message::Role;
use crate::domain::reasoning;

/// An item that a chat message reads as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Derived {
    /// Its id.
    pub id: String,
    /// Its JSON text.
    pub text: String,
}

/// The items of a chat message, given the id of its row. At least one.
#[must_use]
pub fn derive(row: &str, body: &str) -> Vec<Derived> {
    let message = Fields::of(body);
    let role = message.text("role").and_then(|role| Role::parse(&role));
    match role {
        Some(Role::Tool) => vec![output(row, &message)],
        Some(Role::Assistant) => answer(row, &message),
        role => {
            let role = role.unwrap_or(Role::User);
            let parts = content_parts(role, message.raw("content").unwrap_or("[]"));
            vec![said(row, role, &parts)]
        }
    }
}

/// The id of the row that an item of this id comes from, if it is the id of one that a chat message reads as.
#[must_use]
pub fn row_of(id: &str) -> Option<&str> {
    let (kind, row) = id.split_once("-of-")?;
    let is_kind = match kind.split_once('-') {
        None => matches!(kind, "msg" | "rs" | "fco"),
        Some((kind, number)) => {
            matches!(kind, "fc" | "ctc")
                && !number.is_empty()
                && number.bytes().all(|byte| byte.is_ascii_digit())
        }
    };
    (is_kind && !row.is_empty()).then_some(row)
}

/// Whether an item of this id stands for its whole message: what it says.
#[must_use]
pub fn is_whole(id: &str) -> bool {
    id.starts_with("msg-of-")
}

/// An item with an id of its own in place of that of a chat message's part; any other stays as it is. The same item
/// gets the same id every time.
#[must_use]
pub fn renamed(item: &str) -> String {
    let mut renamed = item.to_owned();
    let fields = Fields::of(item);
    let member = fields.members.iter().find(|member| member.name == "id");
    let Some((member, id)) = member.and_then(|m| Some((m, json::decode_string(m.value)?))) else {
        return renamed;
    };
    if row_of(&id).is_none() {
        return renamed;
    }
    let mut own = shown::prefix(item).to_owned();
    for byte in Sha256::digest(id.as_bytes()).iter().take(16) {
        // Writing into a string does not fail.
        let _ = write!(own, "{byte:02x}");
    }
    let span = member.end - member.value.len()..member.end;
    renamed.replace_range(span, &json::encode_string(&own));
    renamed
}

fn said(row: &str, role: Role, parts: &[String]) -> Derived {
    let id = format!("msg-of-{row}");
    let content = parts.join(",");
    let text = format!(
        r#"{{"id":{},"type":"message","status":"completed","role":"{}","content":[{content}]}}"#,
        json::encode_string(&id),
        role.as_str()
    );
    Derived { id, text }
}

/// A chat message's content as parts of an item's.
fn content_parts(role: Role, content: &str) -> Vec<String> {
    if content.starts_with('"') {
        return vec![text_part(role, content)];
    }
    let parts = json::elements(content).into_iter();
    parts.map(|text| part(role, text)).collect()
}

/// The part that says a text, given as JSON.
fn text_part(role: Role, text: &str) -> String {
    let list = shown::content_list(Some(role.as_str()), text);
    let element = json::elements(&list).first().map(|part| (*part).to_owned());
    element.unwrap_or_default()
}

/// A part of a chat message's content as one of an item's; what has no other spelling stays as it is.
fn part(role: Role, text: &str) -> String {
    let part = Fields::of(text);
    let kind = part.text("type").unwrap_or_default();
    match (kind.as_ref(), part.raw(&kind)) {
        ("text", _) => text_part(role, part.raw_text("text").unwrap_or("\"\"")),
        ("image_url", Some(image)) => {
            let members = Fields::of(image);
            let detail = members.raw_text("detail").unwrap_or("\"auto\"");
            // Some clients give the address itself.
            let url = Some(image).filter(|image| image.starts_with('"'));
            let url = url.or(members.raw_text("url")).unwrap_or("\"\"");
            format!(r#"{{"type":"input_image","image_url":{url},"detail":{detail}}}"#)
        }
        ("file", Some(file)) if file.starts_with('{') => {
            let members = Fields::of(file).members.into_iter();
            let members: Vec<_> = members
                .filter(|member| member.name != "type")
                .map(|m| format!("{}:{}", json::encode_string(&m.name), m.value))
                .collect();
            let comma = if members.is_empty() { "" } else { "," };
            format!(r#"{{"type":"input_file"{comma}{}}}"#, members.join(","))
        }
        _ => text.to_owned(),
    }
}

fn output(row: &str, message: &Fields<'_>) -> Derived {
    let id = format!("fco-of-{row}");
    let content = message.raw("content").unwrap_or("\"\"");
    let output = if content.starts_with('[') {
        let parts = json::elements(content);
        let parts: Vec<_> = parts
            .into_iter()
            .map(|text| part(Role::User, text))
            .collect();
        format!("[{}]", parts.join(","))
    } else {
        content.to_owned()
    };
    let text = format!(
        r#"{{"id":{},"type":"function_call_output","status":"completed","call_id":{},"output":{output}}}"#,
        json::encode_string(&id),
        message.raw("tool_call_id").unwrap_or("\"\"")
    );
    Derived { id, text }
}

fn answer(row: &str, message: &Fields<'_>) -> Vec<Derived> {
    let mut items = Vec::new();
    let thoughts = reasoning::member_texts(&message.members);
    if !thoughts.is_empty() {
        let id = format!("rs-of-{row}");
        let parts: Vec<_> = thoughts
            .iter()
            .map(|text| {
                let text = json::encode_string(text);
                format!(r#"{{"type":"summary_text","text":{text}}}"#)
            })
            .collect();
        let text = format!(
            r#"{{"id":{},"type":"reasoning","summary":[{}]}}"#,
            json::encode_string(&id),
            parts.join(",")
        );
        items.push(Derived { id, text });
    }
    let parts = answer_parts(message);
    let mut calls: Vec<_> = json::elements(message.raw("tool_calls").unwrap_or_default())
        .into_iter()
        .enumerate()
        .map(|(index, text)| call(row, index, text))
        .collect();
    // The older spelling of a call, which has no id.
    if let Some(text) = message.raw("function_call") {
        calls.push(named_call(row, calls.len(), None, &Fields::of(text)));
    }
    if !parts.is_empty() || calls.is_empty() && items.is_empty() {
        items.push(said(row, Role::Assistant, &parts));
    }
    items.extend(calls);
    items
}

/// What an assistant's message says: its content, and what stands beside it.
fn answer_parts(message: &Fields<'_>) -> Vec<String> {
    let content = message.raw("content").unwrap_or("[]");
    let mut parts = match content {
        "\"\"" => Vec::new(),
        content => content_parts(Role::Assistant, content),
    };
    let refusal = message.raw_text("refusal").filter(|text| *text != "\"\"");
    parts.extend(refusal.map(|refusal| format!(r#"{{"type":"refusal","refusal":{refusal}}}"#)));
    let audio = message.raw("audio");
    parts.extend(audio.map(|_| text_part(Role::Assistant, "\"[audio]\"")));
    parts
}

fn call(row: &str, index: usize, text: &str) -> Derived {
    let call = Fields::of(text);
    let id = Some(call.raw("id").unwrap_or("\"\""));
    let custom = call.raw("custom").map(Fields::of);
    match (custom, call.raw("function").map(Fields::of)) {
        (Some(custom), None) => custom_call(row, index, id, &custom),
        (_, function) => {
            let none = Fields {
                members: Vec::new(),
            };
            named_call(row, index, id, function.as_ref().unwrap_or(&none))
        }
    }
}

/// A call of a function; under its own id if nothing else names it.
fn named_call(row: &str, index: usize, call_id: Option<&str>, function: &Fields<'_>) -> Derived {
    let id = format!("fc-{index}-of-{row}");
    derived_call(id, "function_call", "arguments", call_id, function)
}

fn custom_call(row: &str, index: usize, call_id: Option<&str>, custom: &Fields<'_>) -> Derived {
    let id = format!("ctc-{index}-of-{row}");
    derived_call(id, "custom_tool_call", "input", call_id, custom)
}

fn derived_call(
    id: String,
    kind: &str,
    with: &str,
    call_id: Option<&str>,
    inner: &Fields<'_>,
) -> Derived {
    let own = json::encode_string(&id);
    let call_id = call_id.unwrap_or(&own);
    let name = inner.raw_text("name").unwrap_or("\"\"");
    let given = match inner.raw(with) {
        None => Cow::Borrowed("\"\""),
        Some(text) if text.starts_with('"') => Cow::Borrowed(text),
        // Some clients give the arguments as they are read.
        Some(value) => Cow::Owned(json::encode_string(value)),
    };
    let text = format!(
        r#"{{"id":{own},"type":"{kind}","status":"completed","call_id":{call_id},"name":{name},"{with}":{given}}}"#
    );
    Derived { id, text }
}
