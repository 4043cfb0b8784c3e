//! Tool calls: `tool_use` blocks, their ids and names, and what becomes of arguments.
//!
//! Who answers a call is settled in `assembly`.

use std::collections::{HashMap, HashSet};

use super::Fault;
use super::block::{Block, Fields, is_blank, shown};
use crate::domain::json;

/// Longest name of a tool, in characters.
const NAME_CHARS: usize = 128;

/// The ids given out in one context.
#[derive(Debug, Default)]
pub(super) struct Ids {
    used: HashSet<String>,
    /// For each id, the number to try next.
    next: HashMap<String, usize>,
}

impl Ids {
    /// The id that stands for `id`: itself where the API takes it and it is new. Else characters that the API
    /// refuses become `_`, and a number is put behind it that makes it new.
    pub(super) fn take(&mut self, id: &str) -> String {
        let base = match plain(id) {
            base if base.is_empty() => "call".to_owned(),
            base => base,
        };
        if self.used.insert(base.clone()) {
            return base;
        }
        let next = self.next.entry(base.clone()).or_insert(2);
        loop {
            let candidate = format!("{base}_{next}");
            *next += 1;
            if self.used.insert(candidate.clone()) {
                return candidate;
            }
        }
    }
}

/// `text` in the characters that the API takes in ids and names.
fn plain(text: &str) -> String {
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' => character,
        _ => '_',
    };
    text.chars().map(plain).collect()
}

/// A call as the API takes it.
#[derive(Debug)]
pub(super) struct Call {
    /// The id in the source, which its result names.
    pub(super) source_id: String,
    /// The id in the rendered context.
    pub(super) id: String,
    /// The `tool_use` block.
    pub(super) block: Block,
}

/// The calls of a `tool_calls` value; pointers begin inside the message.
pub(super) fn calls(value: &str, ids: &mut Ids) -> Result<Vec<Call>, Fault> {
    json::elements(value)
        .into_iter()
        .enumerate()
        .map(|(index, text)| {
            call(text, ids).map_err(|fault| fault.inside(index).inside("tool_calls"))
        })
        .collect()
}

fn call(text: &str, ids: &mut Ids) -> Result<Call, Fault> {
    let fields = Fields::of(text);
    let (inner, input) = if let Some(function) = fields.get("function") {
        let inner = Fields::of(function);
        let input = function_input(inner.get("arguments"));
        (inner, input)
    } else if let Some(custom) = fields.get("custom") {
        let inner = Fields::of(custom);
        let input = format!(r#"{{"input":{}}}"#, inner.get("input").unwrap_or(r#""""#));
        (inner, input)
    } else {
        let kind = fields.string("type").unwrap_or_default();
        return Err(Fault::new("", format!("a tool call {}", shown(&kind))));
    };
    let source_id = fields.string("id").unwrap_or_default().into_owned();
    let id = ids.take(&source_id);
    let name = tool_name(&inner.string("name").unwrap_or_default());
    let block = Block::new(format!(
        r#"{{"type":"tool_use","id":"{id}","name":"{name}","input":{input}}}"#
    ));
    Ok(Call {
        source_id,
        id,
        block,
    })
}

/// The name in characters that the API takes, cut to what it takes; `_` for none at all.
fn tool_name(name: &str) -> String {
    let name: String = plain(name).chars().take(NAME_CHARS).collect();
    if name.is_empty() {
        "_".to_owned()
    } else {
        name
    }
}

/// Arguments as an object: their own text where they are one, `{}` for none or a blank string. Anything else
/// (a model's broken JSON, a number) stands as a string in a member `_unparsed`, so that nothing is lost.
fn function_input(arguments: Option<&str>) -> String {
    let Some(arguments) = arguments else {
        return "{}".to_owned();
    };
    if arguments.starts_with('{') {
        return arguments.to_owned();
    }
    let Some(text) = json::decode_string(arguments) else {
        return unparsed(&json::encode_string(arguments));
    };
    if is_blank(arguments) {
        return "{}".to_owned();
    }
    object(&text).map_or_else(|| unparsed(arguments), ToOwned::to_owned)
}

fn unparsed(literal: &str) -> String {
    format!(r#"{{"_unparsed":{literal}}}"#)
}

/// `text` without the white space around it, if it is a JSON object that a strict parser takes.
fn object(text: &str) -> Option<&str> {
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    let is_object = text.starts_with('{')
        && json::check_text(text.as_bytes()).is_ok()
        && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    is_object.then_some(text)
}

/// Whether a `function_call` of the older kind is repeated by one of `tool_calls`: the same name, the same
/// arguments.
pub(super) fn repeats(function_call: &str, tool_calls: Option<&str>) -> bool {
    let said = |text| {
        let function = Fields::of(text);
        (function.string("name"), function.string("arguments"))
    };
    let legacy = said(function_call);
    json::elements(tool_calls.unwrap_or_default())
        .into_iter()
        .filter_map(|call| Fields::of(call).get("function"))
        .any(|function| said(function) == legacy)
}
