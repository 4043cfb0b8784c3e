//! How a chat message reads as items: one, or several if it reasons, speaks and calls at once.
//!
//! Their ids say which message they come from, so that each can be found again.

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
            vec![said(row, role, message.raw("content").unwrap_or("[]"))]
        }
    }
}

/// Ids of rows that an item of this id may come from, the likeliest first.
#[must_use]
pub fn rows_named(id: &str) -> Vec<&str> {
    let mut rows = vec![id];
    for prefix in ["msg_", "rs_", "fco_"] {
        rows.extend(id.strip_prefix(prefix));
    }
    let call = id.strip_prefix("fc_").and_then(|rest| rest.split_once('_'));
    rows.extend(call.map(|(_, row)| row));
    rows.retain(|row| !row.is_empty());
    rows
}

/// Model providers know a message by the first letters of its id.
fn message_id(row: &str) -> String {
    if row.starts_with("msg_") {
        row.to_owned()
    } else {
        format!("msg_{row}")
    }
}

fn said(row: &str, role: Role, content: &str) -> Derived {
    let id = message_id(row);
    let content = if content.starts_with('"') {
        shown::content_list(Some(role.as_str()), content)
    } else {
        let parts = json::elements(content);
        let parts: Vec<_> = parts.into_iter().map(|text| part(role, text)).collect();
        format!("[{}]", parts.join(","))
    };
    let text = format!(
        r#"{{"id":{},"type":"message","status":"completed","role":"{}","content":{content}}}"#,
        json::encode_string(&id),
        role.as_str()
    );
    Derived { id, text }
}

/// A part of a chat message's content as one of an item's; what has no other spelling stays as it is.
fn part(role: Role, text: &str) -> String {
    let part = Fields::of(text);
    let kind = part.text("type").unwrap_or_default();
    let inner = part.raw(&kind).map(Fields::of);
    match (kind.as_ref(), inner) {
        ("text", _) => {
            let text = part.raw_text("text").unwrap_or("\"\"");
            let list = shown::content_list(Some(role.as_str()), text);
            let element = json::elements(&list).first().map(|part| (*part).to_owned());
            element.unwrap_or_default()
        }
        ("image_url", Some(image)) => {
            let detail = image.raw_text("detail").unwrap_or("\"auto\"");
            let url = image.raw_text("url").unwrap_or("\"\"");
            format!(r#"{{"type":"input_image","image_url":{url},"detail":{detail}}}"#)
        }
        ("file", Some(file)) => {
            let members = file.members.iter();
            let members: Vec<_> = members
                .map(|m| format!("{}:{}", json::encode_string(&m.name), m.value))
                .collect();
            let comma = if members.is_empty() { "" } else { "," };
            format!(r#"{{"type":"input_file"{comma}{}}}"#, members.join(","))
        }
        _ => text.to_owned(),
    }
}

fn output(row: &str, message: &Fields<'_>) -> Derived {
    let id = format!("fco_{row}");
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
        let id = format!("rs_{row}");
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
    let calls = json::elements(message.raw("tool_calls").unwrap_or_default());
    let content = message.raw("content").unwrap_or("[]");
    if !matches!(content, "\"\"" | "[]") || calls.is_empty() && items.is_empty() {
        items.push(said(row, Role::Assistant, content));
    }
    let calls = calls.into_iter().enumerate();
    items.extend(calls.map(|(index, text)| call(row, index, text)));
    items
}

fn call(row: &str, index: usize, text: &str) -> Derived {
    let id = format!("fc_{index}_{row}");
    let call = Fields::of(text);
    let custom = call.raw("custom").map(Fields::of);
    let inner = call.raw("function").map(Fields::of);
    let (kind, with, inner) = match (custom, inner) {
        (Some(custom), None) => ("custom_tool_call", "input", Some(custom)),
        (_, inner) => ("function_call", "arguments", inner),
    };
    let member = |name: &str| {
        let value = inner.as_ref().and_then(|inner| inner.raw_text(name));
        value.unwrap_or("\"\"")
    };
    let text = format!(
        r#"{{"id":{},"type":"{kind}","status":"completed","call_id":{},"name":{},"{with}":{}}}"#,
        json::encode_string(&id),
        call.raw("id").unwrap_or("\"\""),
        member("name"),
        member(with)
    );
    Derived { id, text }
}
