//! What of an assistant message is reasoning: thoughts that travel beside what it says.
//!
//! Providers spell it in several ways, as members of the message and as parts of its content. The
//! spellings stand here and nowhere else: counting tokens and dropping stale reasoning read the same
//! list. Neither a `length` nor a transcript knows of reasoning.

use std::borrow::Cow;

use super::json::{self, Member};

/// Members that hold text.
const TEXTS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Members that hold blocks, often what a text beside them says once more.
const BLOCKS: [&str; 2] = ["reasoning_details", "thinking_blocks"];

/// Types of content parts.
const PARTS: [&str; 3] = ["thinking", "redacted_thinking", "reasoning"];

/// Where a block or a part keeps its text.
const BLOCK_TEXTS: [&str; 4] = ["thinking", "text", "reasoning", "summary"];

/// Whether a member of that name is reasoning.
#[must_use]
pub fn is_member(name: &str) -> bool {
    TEXTS.contains(&name) || BLOCKS.contains(&name)
}

/// Whether a content part, given as its JSON text, is reasoning.
#[must_use]
pub fn is_part(part: &str) -> bool {
    let members = json::members(part);
    let kind = members.iter().rev().find(|member| member.name == "type");
    kind.and_then(|kind| json::decode_string(kind.value))
        .is_some_and(|kind| PARTS.contains(&kind.as_ref()))
}

/// The text of a content part that is reasoning; `None` if it is none or does not show its text.
#[must_use]
pub fn part_text(part: &str) -> Option<Cow<'_, str>> {
    is_part(part).then(|| block_text(part)).flatten()
}

/// The texts of a message's reasoning members. Blocks count only where no text says the same.
#[must_use]
pub fn member_texts<'a>(members: &[Member<'a>]) -> Vec<Cow<'a, str>> {
    let named = |names: &'static [&str]| {
        members
            .iter()
            .filter(|member| names.contains(&member.name.as_ref()))
    };
    let texts: Vec<_> = named(&TEXTS)
        .filter_map(|member| json::decode_string(member.value))
        .filter(|text| !text.is_empty())
        .collect();
    if !texts.is_empty() {
        return texts;
    }
    named(&BLOCKS)
        .flat_map(|member| json::elements(member.value))
        .filter_map(block_text)
        .collect()
}

fn block_text(block: &str) -> Option<Cow<'_, str>> {
    let members = json::members(block);
    BLOCK_TEXTS.iter().find_map(|name| {
        let text = members.iter().rev().find(|member| member.name == *name)?;
        json::decode_string(text.value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(message: &str) -> Vec<String> {
        let texts = member_texts(&json::members(message));
        texts.into_iter().map(Cow::into_owned).collect()
    }

    #[test]
    fn reads_every_spelling() {
        assert_eq!(texts(r#"{"reasoning_content":"a\n"}"#), ["a\n"]);
        assert_eq!(texts(r#"{"reasoning":"a","x":"b"}"#), ["a"]);
        let blocks = r#"{"thinking_blocks":[{"type":"thinking","thinking":"a"},{"data":"b"}],"reasoning_details":[{"text":"c"},{"summary":"d"}]}"#;
        assert_eq!(texts(blocks), ["a", "c", "d"]);
        let twice = r#"{"reasoning_content":"a","thinking_blocks":[{"thinking":"a"}]}"#;
        assert_eq!(texts(twice), ["a"]);
        assert!(texts(r#"{"reasoning_content":null,"reasoning":{"effort":"low"}}"#).is_empty());
    }

    #[test]
    fn tells_parts_apart() {
        let thinking = r#"{"type":"thinking","thinking":"hm","signature":"c2ln"}"#;
        assert_eq!(part_text(thinking).as_deref(), Some("hm"));
        let hidden = r#"{"type":"redacted_thinking","data":"AAAA"}"#;
        assert!(is_part(hidden) && part_text(hidden).is_none());
        assert!(!is_part(r#"{"type":"text","text":"thinking"}"#));
        assert!(!is_part(r#""thinking""#));
    }
}
