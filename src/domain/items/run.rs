//! The items of one answer of a model, joined into the one chat message that they are.

use crate::domain::json;

use super::Fields;

/// Joins the chat messages of a run in order; a single one stays as it is.
///
/// Texts become the content, calls the `tool_calls`, reasoning the `reasoning_content`.
#[must_use]
pub fn join(messages: &[String]) -> String {
    if let [only] = messages {
        return only.clone();
    }
    let mut reasoning = Vec::new();
    let mut content = Vec::new();
    let mut calls = Vec::new();
    for message in messages {
        let fields = Fields::of(message);
        reasoning.extend(fields.text("reasoning_content"));
        content.extend(fields.raw("content").filter(|text| !is_empty(text)));
        calls.extend(json::elements(fields.raw("tool_calls").unwrap_or_default()));
    }
    let mut joined = String::from(r#"{"role":"assistant""#);
    if !reasoning.is_empty() {
        joined.push_str(r#","reasoning_content":"#);
        joined.push_str(&json::encode_string(&reasoning.join("\n\n")));
    }
    joined.push_str(r#","content":"#);
    joined.push_str(&match content.as_slice() {
        [] if calls.is_empty() => "\"\"".to_owned(),
        [] => "null".to_owned(),
        [only] => (*only).to_owned(),
        several => join_content(several),
    });
    if !calls.is_empty() {
        joined.push_str(r#","tool_calls":["#);
        joined.push_str(&calls.join(","));
        joined.push(']');
    }
    joined.push('}');
    joined
}

fn is_empty(content: &str) -> bool {
    matches!(content, "\"\"" | "[]")
}

/// One string of strings; parts as soon as there are parts.
fn join_content(content: &[&str]) -> String {
    let texts: Option<Vec<_>> = content
        .iter()
        .map(|text| json::decode_string(text))
        .collect();
    if let Some(texts) = texts {
        return json::encode_string(&texts.join("\n\n"));
    }
    let mut parts = Vec::new();
    for value in content {
        if value.starts_with('"') {
            parts.push(format!(r#"{{"type":"text","text":{value}}}"#));
        } else {
            parts.extend(json::elements(value).into_iter().map(ToOwned::to_owned));
        }
    }
    format!("[{}]", parts.join(","))
}
