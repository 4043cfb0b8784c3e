//! The rule of stale reasoning: an assistant message without the thoughts that came with it.
//!
//! All or nothing: a provider that signs its blocks accepts none in place of some. What is reasoning is
//! decided in `reasoning`; which messages are stale, by the planner.

use std::ops::Range;

use crate::domain::{json, reasoning};

/// The body without its reasoning, every other byte as it is; `None` if it holds none, or if it would say
/// nothing without.
pub(super) fn without_reasoning(body: &str) -> Option<String> {
    let cut = match without_parts(body) {
        Parts::Only => return None,
        Parts::None => None,
        Parts::Some(body) => Some(body),
    };
    let members = json::members(cut.as_deref().unwrap_or(body));
    let is_dropped = |index: usize| {
        members
            .get(index)
            .is_some_and(|member| reasoning::is_member(&member.name))
    };
    if !(0..members.len()).any(is_dropped) {
        return cut;
    }
    let says = |name: &str, nothing: &[&str]| {
        members
            .iter()
            .any(|member| member.name == name && !nothing.contains(&member.value))
    };
    if !says("content", &["null", r#""""#, "[]"]) && !says("tool_calls", &["null", "[]"]) {
        return None;
    }
    let spans: Vec<_> = members
        .iter()
        .map(|member| member.start..member.end)
        .collect();
    let whole = cut.as_deref().unwrap_or(body);
    Some(json::without_items(whole, &spans, is_dropped))
}

enum Parts {
    /// No part is reasoning.
    None,
    /// Some are: the body without them.
    Some(String),
    /// All are, and there is nothing beside them.
    Only,
}

fn without_parts(body: &str) -> Parts {
    let members = json::members(body);
    let value = |name: &str| members.iter().find(|member| member.name == name);
    let Some(content) = value("content") else {
        return Parts::None;
    };
    let spans = json::element_spans(content.value);
    let dropped: Vec<_> = spans
        .iter()
        .map(|span| reasoning::is_part(content.value.get(Range::clone(span)).unwrap_or_default()))
        .collect();
    if !dropped.contains(&true) {
        return Parts::None;
    }
    let left = if dropped.contains(&false) {
        let is_dropped = |index: usize| dropped.get(index).is_some_and(|is_dropped| *is_dropped);
        json::without_items(content.value, &spans, is_dropped)
    } else if value("tool_calls").is_some_and(|calls| !json::elements(calls.value).is_empty()) {
        "null".to_owned()
    } else {
        return Parts::Only;
    };
    let before = body.get(..content.end - content.value.len());
    let after = body.get(content.end..);
    Parts::Some([before.unwrap_or_default(), &left, after.unwrap_or_default()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_members_and_parts_and_nothing_else() {
        let cut = |body: &str| without_reasoning(body).unwrap_or_else(|| "kept".to_owned());
        assert_eq!(
            cut(r#"{ "role":"assistant", "reasoning_content":"a" , "content":"b","x":1.0}"#),
            r#"{ "role":"assistant" , "content":"b","x":1.0}"#
        );
        assert_eq!(
            cut(r#"{"reasoning":"a","thinking_blocks":[{}],"content":"b","reasoning_details":[]}"#),
            r#"{"content":"b"}"#
        );
        assert_eq!(
            cut(
                r#"{"content":[ {"type":"thinking","thinking":"a"}, {"type":"text","text":"b"},{"type":"redacted_thinking","data":"c"}],"thinking":"d"}"#
            ),
            r#"{"content":[ {"type":"text","text":"b"}]}"#
        );
    }

    #[test]
    fn a_message_that_would_say_nothing_stays_whole() {
        let kept = [
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"a"}],"reasoning":"b"}"#,
            r#"{"role":"assistant","content":null,"reasoning":"b"}"#,
            r#"{"role":"assistant","content":"","tool_calls":[],"reasoning":"b"}"#,
            r#"{"role":"assistant","content":"reasoning"}"#,
        ];
        for body in kept {
            assert_eq!(without_reasoning(body), None, "{body}");
        }
        assert_eq!(
            without_reasoning(
                r#"{"content":[{"type":"thinking","thinking":"a"}],"tool_calls":[{"id":"c"}]}"#
            )
            .unwrap(),
            r#"{"content":null,"tool_calls":[{"id":"c"}]}"#
        );
    }
}
