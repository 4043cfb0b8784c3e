//! The mapping, case by case, and what all contexts have in common.

mod checker;
mod content;
mod fixtures;
mod laws;
mod reasoning;
mod sequence;
#[path = "../../../../tests/api/support/strict_anthropic.rs"]
mod strict;

use serde_json::Value;

use super::{Rendered, Unmappable, render};

/// The array whose items are in `items`.
fn array(items: &str) -> Value {
    serde_json::from_str(&format!("[{items}]")).unwrap()
}

/// Renders and checks; the messages as an array.
#[track_caller]
fn rendered(sources: &[&str], breakpoints: &[usize]) -> Rendered {
    let rendered = render(&sources.join(","), breakpoints).unwrap();
    strict::check(
        &array(&rendered.system),
        &array(&rendered.messages),
        &sources.join("\n"),
    );
    rendered
}

/// The content of the only message that `source` becomes, as text without its brackets.
#[track_caller]
fn one(source: &str) -> String {
    let rendered = rendered(&[source], &[]);
    let role = if source.contains(r#""role":"assistant""#) {
        r#"{"role":"user","content":[{"type":"text","text":"[The conversation begins with the assistant.]"}]},{"role":"assistant","content":["#
    } else {
        r#"{"role":"user","content":["#
    };
    if rendered.messages.is_empty() {
        return String::new();
    }
    rendered
        .messages
        .strip_prefix(role)
        .and_then(|rest| rest.strip_suffix("]}"))
        .unwrap_or_else(|| panic!("{}", rendered.messages))
        .to_owned()
}

/// What of the only source message cannot be mapped: the pointer and the words.
#[track_caller]
fn refused(source: &str) -> (String, String) {
    let Unmappable {
        index,
        pointer,
        what,
    } = render(source, &[]).unwrap_err();
    assert_eq!(index, 0);
    (pointer, what)
}
