//! The chat message that a context shows for an item.
//!
//! What an item cannot say in a chat message (a hosted tool's own call, encrypted reasoning, a list of
//! tools) is not shown: the item itself is kept as it came.

use std::borrow::Cow;

use super::{Fields, fault, shown};
use crate::domain::json;
use crate::domain::message::{MessageFault, Role};

/// What is shown for a compaction that another service made and only it can read.
const UNREADABLE: &str =
    "[A summary of the earlier conversation stood here that only its maker can read.]";

/// The chat message of an item of this kind; `None` if there is nothing to show.
pub(super) fn render(kind: &str, item: &Fields<'_>) -> Result<Option<String>, MessageFault> {
    match kind {
        "message" => message(item),
        "reasoning" => Ok(reasoning(item)),
        "compaction" => Ok(Some(compaction(item))),
        "function_call" | "custom_tool_call" => named_call(kind, item).map(Some),
        "local_shell_call" | "shell_call" | "apply_patch_call" | "computer_call" => {
            Ok(built_in_call(kind, item))
        }
        "function_call_output" | "custom_tool_call_output" => match item.raw_text("call_id") {
            Some(call) => Ok(Some(output(call, item))),
            None => Err(fault("/call_id", "an output names the call it answers")),
        },
        "local_shell_call_output" => {
            let call = item.raw_text("call_id").or_else(|| item.raw_text("id"));
            Ok(call.map(|call| output(call, item)))
        }
        "shell_call_output" | "apply_patch_call_output" | "computer_call_output" => {
            Ok(item.raw_text("call_id").map(|call| output(call, item)))
        }
        _ => Ok(None),
    }
}

fn message(item: &Fields<'_>) -> Result<Option<String>, MessageFault> {
    let Some(role) = item.text("role") else {
        return Err(fault("/role", "a message has a `role`, a string"));
    };
    let content = item.raw("content").unwrap_or("\"\"");
    if !content.starts_with(['"', '[']) {
        return Err(fault("/content", "`content` is a string or an array"));
    }
    // A chat message of role `tool` answers a call, which this does not.
    let Some(role) = Role::parse(&role).filter(|role| *role != Role::Tool) else {
        return Ok(None);
    };
    let content = match (content.starts_with('"'), role) {
        (true, Role::Assistant) if content == "\"\"" => return Ok(None),
        (true, _) => content.to_owned(),
        (false, Role::Assistant) => match said(content) {
            Some(said) => said,
            None => return Ok(None),
        },
        (false, _) => parts(content, part),
    };
    let role = role.as_str();
    Ok(Some(format!(r#"{{"role":"{role}","content":{content}}}"#)))
}

/// A text part with this text, given as JSON.
fn text_part(raw: &str) -> String {
    format!(r#"{{"type":"text","text":{raw}}}"#)
}

/// A part of a chat message's content.
enum Piece {
    /// The part's JSON text.
    Part(String),
    /// What stands for parts of this kind that a chat message has no place for. Several in a row are shown as one.
    Marker(String),
}

impl Piece {
    fn text(value: &str) -> Self {
        Self::Part(text_part(value))
    }

    /// What stands for a part that a chat message has no place for: its kind, and how it is named.
    fn marker(kind: &str, name: Option<Cow<'_, str>>) -> Self {
        match name {
            Some(name) => Self::Part(text_part(&json::encode_string(&format!(
                "[{kind}: {name}]"
            )))),
            None if kind.is_empty() => Self::Marker("part".to_owned()),
            None => Self::Marker(kind.to_owned()),
        }
    }

    fn into_json(self) -> String {
        match self {
            Self::Part(part) => part,
            Self::Marker(kind) => text_part(&json::encode_string(&format!("[{kind}]"))),
        }
    }
}

/// A content value of these parts. A single text is a plain string, which every provider takes.
fn parts(content: &str, part: fn(&str) -> Piece) -> String {
    let elements = json::elements(content);
    if elements.is_empty() {
        return "\"\"".to_owned();
    }
    if let [only] = elements.as_slice() {
        let only = Fields::of(only);
        if let (Some(text), true) = (only.raw_text("text"), is_text(&only)) {
            return text.to_owned();
        }
    }
    list(elements.into_iter().map(part))
}

/// A list of parts, in which a marker stands for all that follow one another and read the same.
fn list(pieces: impl Iterator<Item = Piece>) -> String {
    let mut shown = String::from("[");
    let mut marked: Option<String> = None;
    for piece in pieces {
        let kind = match &piece {
            Piece::Marker(kind) if marked.as_ref() == Some(kind) => continue,
            Piece::Marker(kind) => Some(kind.clone()),
            Piece::Part(_) => None,
        };
        marked = kind;
        if shown.len() > 1 {
            shown.push(',');
        }
        shown.push_str(&piece.into_json());
    }
    shown.push(']');
    shown
}

fn is_text(part: &Fields<'_>) -> bool {
    part.text("type").is_some_and(|kind| {
        matches!(
            kind.as_ref(),
            "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text"
        )
    })
}

/// A part of what a user or a developer says.
fn part(text: &str) -> Piece {
    let part = Fields::of(text);
    let kind = part.text("type").unwrap_or_default();
    match kind.as_ref() {
        _ if is_text(&part) => Piece::text(part.raw_text("text").unwrap_or("\"\"")),
        "input_image" | "computer_screenshot" => match part.raw_text("image_url") {
            Some(url) => {
                let detail = part.raw_text("detail");
                let detail = detail.map(|detail| format!(r#","detail":{detail}"#));
                let detail = detail.unwrap_or_default();
                Piece::Part(format!(
                    r#"{{"type":"image_url","image_url":{{"url":{url}{detail}}}}}"#
                ))
            }
            None => Piece::marker(&kind, part.text("file_id")),
        },
        "input_file" if part.raw("file_data").or(part.raw("file_id")).is_some() => {
            let members = ["file_data", "file_id", "filename"];
            let members: Vec<_> = members
                .into_iter()
                .filter_map(|name| Some(format!(r#""{name}":{}"#, part.raw_text(name)?)))
                .collect();
            Piece::Part(format!(
                r#"{{"type":"file","file":{{{}}}}}"#,
                members.join(",")
            ))
        }
        "input_file" => Piece::marker(&kind, part.text("file_url").or(part.text("filename"))),
        "input_audio" if part.raw("input_audio").is_some() => Piece::Part(text.to_owned()),
        _ => Piece::marker(&kind, None),
    }
}

/// What the model said: its texts as one string; as parts where something else is among them. `None`: nothing.
fn said(content: &str) -> Option<String> {
    let elements = json::elements(content);
    let mut pieces = Vec::new();
    let mut texts = Some(String::new());
    let mut says = false;
    for element in elements {
        let part = Fields::of(element);
        let (text, refusal) = (part.text("text"), part.raw_text("refusal"));
        let piece = match (refusal, text) {
            (Some(refusal), _) => {
                says |= refusal != "\"\"";
                texts = None;
                Piece::Part(format!(r#"{{"type":"refusal","refusal":{refusal}}}"#))
            }
            (None, Some(text)) => {
                says |= !text.is_empty();
                if let Some(texts) = &mut texts {
                    texts.push_str(&text);
                }
                Piece::text(part.raw_text("text").unwrap_or("\"\""))
            }
            (None, None) if is_text(&part) => continue,
            (None, None) => {
                says = true;
                texts = None;
                Piece::marker(&part.text("type").unwrap_or_default(), None)
            }
        };
        pieces.push(piece);
    }
    if !says {
        return None;
    }
    let texts = texts.map(|texts| json::encode_string(&texts));
    Some(texts.unwrap_or_else(|| list(pieces.into_iter())))
}

/// The texts of reasoning that shows itself. What is encrypted is its maker's alone.
fn reasoning(item: &Fields<'_>) -> Option<String> {
    let texts = |name: &str| {
        let parts = item.raw(name).map(json::elements).unwrap_or_default();
        let texts = parts
            .into_iter()
            .filter_map(|part| Fields::of(part).text("text"));
        texts.collect::<Vec<_>>().join("\n\n")
    };
    let text = Some(texts("summary"))
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| texts("content"));
    (!text.is_empty()).then(|| {
        let text = json::encode_string(&text);
        format!(r#"{{"role":"assistant","reasoning_content":{text},"content":""}}"#)
    })
}

fn compaction(item: &Fields<'_>) -> String {
    let encrypted = item.text("encrypted_content").unwrap_or_default();
    match shown::own_summary(&encrypted) {
        Some(summary) => crate::domain::context::summary_message(&summary),
        None => format!(
            r#"{{"role":"user","content":{}}}"#,
            json::encode_string(UNREADABLE)
        ),
    }
}

fn named_call(kind: &str, item: &Fields<'_>) -> Result<String, MessageFault> {
    let member = |name: &'static str, pointer| {
        let problem = "a call has `call_id`, `name` and what it is called with, all strings";
        item.raw_text(name).ok_or_else(|| fault(pointer, problem))
    };
    let (call, name) = (member("call_id", "/call_id")?, member("name", "/name")?);
    Ok(if kind == "function_call" {
        call_message(call, name, member("arguments", "/arguments")?)
    } else {
        let input = member("input", "/input")?;
        format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":{call},"type":"custom","custom":{{"name":{name},"input":{input}}}}}]}}"#
        )
    })
}

fn call_message(call: &str, name: &str, arguments: &str) -> String {
    format!(
        r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":{call},"type":"function","function":{{"name":{name},"arguments":{arguments}}}}}]}}"#
    )
}

/// A call of a tool that has no name of its own.
fn built_in_call(kind: &str, item: &Fields<'_>) -> Option<String> {
    let call = item.raw_text("call_id")?;
    let name = json::encode_string(kind.strip_suffix("_call").unwrap_or(kind));
    let action = ["action", "operation", "actions"]
        .into_iter()
        .find_map(|name| item.raw(name));
    let arguments = json::encode_string(action.unwrap_or("{}"));
    Some(call_message(call, &name, &arguments))
}

/// A result: text, or a marker for what a tool message has no place for.
fn output(call: &str, item: &Fields<'_>) -> String {
    let output = item.raw("output").or_else(|| item.raw("status"));
    let content = match output {
        None => "\"\"".to_owned(),
        Some(text) if text.starts_with('"') => text.to_owned(),
        Some(list) if list.starts_with('[') && is_parts(list) => parts(list, result_part),
        Some(object) if object.starts_with('{') && is_part(object) => {
            list(std::iter::once(result_part(object)))
        }
        Some(other) => json::encode_string(other),
    };
    format!(r#"{{"role":"tool","tool_call_id":{call},"content":{content}}}"#)
}

fn is_part(element: &str) -> bool {
    Fields::of(element).raw_text("type").is_some()
}

fn is_parts(list: &str) -> bool {
    json::elements(list).into_iter().all(is_part)
}

fn result_part(text: &str) -> Piece {
    let part = Fields::of(text);
    if is_text(&part) {
        return Piece::text(part.raw_text("text").unwrap_or("\"\""));
    }
    let kind = part.text("type").unwrap_or_default();
    let name = ["file_id", "filename"]
        .into_iter()
        .find_map(|name| part.text(name));
    Piece::marker(&kind, name)
}
