//! How an item goes out: as it came, with what the service adds where it was missing.
//!
//! An `id`, the type `message`, a `status` and a content list in place of a plain string: what the
//! conversations API promises of every item, always the same for the same item. Every other byte is
//! the client's.

use std::borrow::Cow;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Fields;
use crate::domain::json;

/// How the `encrypted_content` of a compaction begins that this service made.
const OWN: &str = "precis.1:";

/// What ids of items of a type begin with. Model providers look at the first letters.
#[must_use]
pub fn prefix(item: &str) -> &'static str {
    let fields = Fields::of(item);
    let kind = fields.text("type").unwrap_or(Cow::Borrowed("message"));
    match kind.as_ref() {
        "message" => "msg_",
        "function_call" => "fc_",
        "function_call_output" => "fco_",
        "custom_tool_call" => "ctc_",
        "custom_tool_call_output" => "ctco_",
        "reasoning" => "rs_",
        "compaction" => "cmp_",
        "computer_call" => "cu_",
        "computer_call_output" => "cuo_",
        "local_shell_call" => "lsh_",
        "local_shell_call_output" => "lsho_",
        "shell_call" => "sh_",
        "shell_call_output" => "sho_",
        "apply_patch_call" => "apc_",
        "apply_patch_call_output" => "apco_",
        "mcp_approval_response" => "mcpa_",
        _ => "item_",
    }
}

/// A stored item, given the id of its row.
#[must_use]
pub fn show(item: &str, id: &str) -> String {
    let fields = Fields::of(item);
    let kind = fields.text("type").unwrap_or(Cow::Borrowed("message"));
    let is_message = kind == "message";
    let mut added = Vec::new();
    let mut replaced: Vec<(Range<usize>, String)> = Vec::new();
    let mut default = |name: &str, value: String| match fields
        .members
        .iter()
        .find(|member| member.name == name)
    {
        None => added.push(format!(r#""{name}":{value}"#)),
        Some(member) if member.value == "null" => {
            replaced.push((member.end - member.value.len()..member.end, value));
        }
        Some(_) => {}
    };
    default("id", json::encode_string(id));
    if is_message {
        default("type", "\"message\"".to_owned());
        default("content", "[]".to_owned());
    }
    if is_message || matches!(kind.as_ref(), "function_call" | "function_call_output") {
        default("status", "\"completed\"".to_owned());
    }
    if is_message {
        let content = fields.members.iter().find(|m| m.name == "content");
        if let Some(content) = content.filter(|content| content.value.starts_with('"')) {
            let list = content_list(fields.text("role").as_deref(), content.value);
            replaced.push((content.end - content.value.len()..content.end, list));
        }
    }
    replaced.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
    let mut shown = item.to_owned();
    for (span, value) in replaced {
        shown.replace_range(span, &value);
    }
    if !added.is_empty() {
        let comma = if fields.members.is_empty() { "" } else { "," };
        // The text of an item begins with its brace.
        shown.insert_str(1, &(added.join(",") + comma));
    }
    shown
}

/// The content list that says a text, given as JSON.
pub(super) fn content_list(role: Option<&str>, text: &str) -> String {
    if role == Some("assistant") {
        format!(r#"[{{"type":"output_text","text":{text},"annotations":[]}}]"#)
    } else {
        format!(r#"[{{"type":"input_text","text":{text}}}]"#)
    }
}

/// A `compaction` item that holds a summary, readable to this service alone.
#[must_use]
pub fn compaction(id: &str, summary: &str) -> String {
    let content = format!("{OWN}{}", STANDARD.encode(summary));
    format!(
        r#"{{"id":{},"type":"compaction","encrypted_content":{}}}"#,
        json::encode_string(id),
        json::encode_string(&content)
    )
}

/// The summary in the `encrypted_content` of a compaction that this service made.
#[must_use]
pub fn own_summary(encrypted: &str) -> Option<String> {
    let bytes = STANDARD.decode(encrypted.strip_prefix(OWN)?).ok()?;
    String::from_utf8(bytes).ok()
}

/// A message item that holds a summary, for any model.
#[must_use]
pub fn summary_message(id: &str, summary: &str) -> String {
    let chat = crate::domain::context::summary_message(summary);
    let text = Fields::of(&chat)
        .raw("content")
        .unwrap_or("\"\"")
        .to_owned();
    format!(
        r#"{{"id":{},"type":"message","status":"completed","role":"user","content":{}}}"#,
        json::encode_string(id),
        content_list(Some("user"), &text)
    )
}
