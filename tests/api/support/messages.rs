//! Messages as texts: cut out of an array without being parsed, and built to a size.

use serde_json::Value;
use serde_json::json;
use serde_json::value::RawValue;

/// The elements of a JSON array, each exactly as it is written there.
pub fn split(array: &str) -> Vec<String> {
    let elements: Vec<Box<RawValue>> =
        serde_json::from_str(array).expect("the text is a JSON array");
    raws(&elements)
}

pub fn raws(elements: &[Box<RawValue>]) -> Vec<String> {
    elements.iter().map(|raw| raw.get().to_owned()).collect()
}

/// `tag` and then `x` up to `length` characters.
pub fn padded(tag: &str, length: usize) -> String {
    assert!(tag.len() <= length, "the tag `{tag}` fits into {length}");
    format!("{tag}{}", "x".repeat(length - tag.len()))
}

pub fn system(text: &str) -> String {
    json!({"role": "system", "content": text}).to_string()
}

pub fn user(text: &str) -> String {
    json!({"role": "user", "content": text}).to_string()
}

pub fn assistant(text: &str) -> String {
    json!({"role": "assistant", "content": text}).to_string()
}

/// A user message of this many characters.
pub fn u(length: usize) -> String {
    user(&padded("", length))
}

/// An assistant message of this many characters.
pub fn a(length: usize) -> String {
    assistant(&padded("", length))
}

/// An assistant message with calls of these ids and this many characters of content.
pub fn calls(ids: &[&str], length: usize) -> String {
    let calls: Vec<Value> = ids.iter().map(|id| call(id, "{}")).collect();
    json!({"role": "assistant", "content": padded("", length), "tool_calls": calls}).to_string()
}

/// One call without content, whose `tool_calls` value is `length` characters long.
pub fn call_of(id: &str, length: usize) -> String {
    let bare = json!([call(id, "")]).to_string().len();
    assert!(bare <= length, "a call is at least {bare} characters long");
    let calls = json!([call(id, &"x".repeat(length - bare))]);
    json!({"role": "assistant", "content": null, "tool_calls": calls}).to_string()
}

fn call(id: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "tool", "arguments": arguments}})
}

pub fn result(id: &str, text: &str) -> String {
    json!({"role": "tool", "tool_call_id": id, "content": text}).to_string()
}

/// A result of this many characters.
pub fn r(id: &str, length: usize) -> String {
    result(id, &padded("", length))
}

/// `count` turns of a user and an assistant message, each of this many characters.
pub fn turns(count: usize, length: usize) -> Vec<String> {
    (0..count).flat_map(|_| [u(length), a(length)]).collect()
}
