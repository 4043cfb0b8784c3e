//! The edits themselves: which text of a tool result may be replaced, and what stands in its place.
//!
//! A breadcrumb is a line for a model: how much of how much is gone, and how to get it back. It depends
//! on nothing but the messages it names, so it is the same on every turn and on every replica. Only the
//! `content` value of a body changes. Which results are edited is the planner's business.

use std::borrow::Cow;
use std::ops::Range;

use crate::domain::json;

/// How every breadcrumb begins, and how one is known. A text that happens to hold it is never edited.
const OPENING: &str = "[precis: ";

/// The text of a tool result, with where its content stands in its body.
#[derive(Debug)]
pub(super) struct ResultText<'a> {
    body: &'a str,
    content: Range<usize>,
    in_parts: bool,
    text: Cow<'a, str>,
}

impl<'a> ResultText<'a> {
    /// Reads a stored body; `None` if its content is not text and nothing else.
    pub fn of(body: &'a str) -> Option<Self> {
        let members = json::members(body);
        let content = members.iter().find(|member| member.name == "content")?;
        let in_parts = content.value.starts_with('[');
        let text = if in_parts {
            joined_text(content.value)?
        } else {
            json::decode_string(content.value)?
        };
        Some(Self {
            body,
            content: content.end - content.value.len()..content.end,
            in_parts,
            text,
        })
    }

    /// Whether it was shortened before, by this session or by another whose context was stored here.
    pub fn holds_breadcrumb(&self) -> bool {
        self.text.contains(OPENING)
    }

    /// Bytes of the text.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The content value that says `text`, in the shape that it has now.
    pub fn content(&self, text: &str) -> String {
        let text = json::encode_string(text);
        if self.in_parts {
            format!(r#"[{{"type":"text","text":{text}}}]"#)
        } else {
            text
        }
    }

    /// The body that says `text`, every other byte as it is.
    pub fn replaced(&self, text: &str) -> String {
        let before = self.body.get(..self.content.start);
        let after = self.body.get(self.content.end..);
        [
            before.unwrap_or_default(),
            &self.content(text),
            after.unwrap_or_default(),
        ]
        .concat()
    }

    /// The body that says `text` if that is less to say.
    pub fn if_shorter(&self, text: &str) -> Option<String> {
        (text.len() < self.text.len()).then(|| self.replaced(text))
    }

    /// What is left where the message `original` above holds the same result.
    pub fn duplicate(&self, original: &str) -> String {
        format!(
            "{OPENING}all {} left out: the same result as message {original} above (GET …/messages/{original} \
             shows it whole, or run the tool again)]",
            self.measure()
        )
    }

    /// What is left of the message `own` where the message `newer` below holds a newer result.
    pub fn superseded(&self, own: &str, newer: &str) -> String {
        format!(
            "{OPENING}all {} left out: message {newer} below holds a newer result for the same \
             (the old one: GET …/messages/{own})]",
            self.measure()
        )
    }

    /// Head, breadcrumb and tail of the message `own`; `None` if nothing lies between head and tail.
    pub fn shortened(&self, own: &str, keep_head: usize, keep_tail: usize) -> Option<String> {
        let head = head(&self.text, keep_head);
        let tail = tail(&self.text, keep_tail);
        let gone = self.text.get(head.len()..self.text.len() - tail.len())?;
        if gone.is_empty() {
            return None;
        }
        let breadcrumb = format!(
            "{OPENING}{} of {} lines ({} of {} bytes) left out here; the whole result: GET …/messages/{own} \
             of this session, or run the tool again]",
            gone.lines().count(),
            self.text.lines().count(),
            gone.len(),
            self.text.len()
        );
        let ends_line = head.is_empty() || head.ends_with('\n');
        let before = if ends_line { "" } else { "\n" };
        let after = if tail.is_empty() { "" } else { "\n" };
        Some([head, before, &breadcrumb, after, tail].concat())
    }

    fn measure(&self) -> String {
        let lines = self.text.lines().count();
        let word = if lines == 1 { "line" } else { "lines" };
        format!("{lines} {word} ({} bytes)", self.text.len())
    }
}

/// The text of an array of parts, one after the other; `None` if a part is not text.
fn joined_text(content: &str) -> Option<Cow<'_, str>> {
    let mut texts = Vec::new();
    for part in json::elements(content) {
        let members = json::members(part);
        let member = |name: &str| {
            let member = members.iter().rev().find(|member| member.name == name)?;
            json::decode_string(member.value)
        };
        if member("type")? != "text" {
            return None;
        }
        texts.push(member("text")?);
    }
    Some(Cow::Owned(texts.concat()))
}

/// At most `keep` bytes from the front, to the end of a line if one is near.
fn head(text: &str, keep: usize) -> &str {
    let head = text
        .get(..text.floor_char_boundary(keep))
        .unwrap_or_default();
    match head.rfind('\n') {
        Some(at) if head.len() < text.len() && at >= head.len() - head.len() / 4 => {
            head.get(..=at).unwrap_or(head)
        }
        _ => head,
    }
}

/// At most `keep` bytes from the back, from the front of a line if one is near.
fn tail(text: &str, keep: usize) -> &str {
    let from = text.ceil_char_boundary(text.len().saturating_sub(keep));
    let tail = text.get(from..).unwrap_or_default();
    match tail.find('\n') {
        Some(at) if from > 0 && at < tail.len() / 4 => tail.get(at + 1..).unwrap_or(tail),
        _ => tail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(content: &str) -> String {
        format!(r#"{{ "tool_call_id":"a", "content" : {content} ,"role":"tool","x":1.0}}"#)
    }

    #[test]
    fn only_the_content_changes() {
        let stored = body(r#""one\ntwo""#);
        let result = ResultText::of(&stored).unwrap();
        assert_eq!(result.replaced("ä\""), body(r#""ä\"""#));
        let stored =
            body(r#"[ {"type":"text","text":"one"},{"text":"\u0074wo","type":"text","n":1}]"#);
        let result = ResultText::of(&stored).unwrap();
        assert_eq!(result.text, "onetwo");
        assert_eq!(
            result.replaced("x"),
            body(r#"[{"type":"text","text":"x"}]"#)
        );
    }

    #[test]
    fn what_is_not_text_is_not_read() {
        for content in [
            "null",
            r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]"#,
            r#"[{"type":"refusal","refusal":"a"}]"#,
            r#"[{"type":"x","text":"a"}]"#,
            r#"["a"]"#,
        ] {
            assert!(ResultText::of(&body(content)).is_none(), "{content}");
        }
    }

    #[test]
    fn says_how_much_and_how_to_get_it_back() {
        let lines: Vec<_> = (0..140).map(|n| format!("line {n:03} 漢字")).collect();
        let stored = body(&json::encode_string(&lines.join("\n")));
        let result = ResultText::of(&stored).unwrap();
        let short = result.shortened("msg_7", 100, 100).unwrap();
        assert_eq!(
            short,
            "line 000 漢字\nline 001 漢字\nline 002 漢字\nline 003 漢字\nline 004 漢字\nline 005 漢字\n\
             [precis: 128 of 140 lines (2048 of 2239 bytes) left out here; the whole result: GET …/messages/msg_7 \
             of this session, or run the tool again]\n\
             line 134 漢字\nline 135 漢字\nline 136 漢字\nline 137 漢字\nline 138 漢字\nline 139 漢字"
        );
        assert!(!result.holds_breadcrumb());
        let again = result.replaced(&short);
        assert!(ResultText::of(&again).unwrap().holds_breadcrumb());
        assert!(
            result
                .duplicate("msg_1")
                .starts_with("[precis: all 140 lines (2239 bytes) left out: the same")
        );
    }

    #[test]
    fn keeps_no_more_than_it_may() {
        let texts = [
            "ab".repeat(50),
            "漢".repeat(40),
            "a\n".repeat(60),
            "👩‍👩‍👧\n".repeat(9),
        ];
        for text in texts {
            for keep in 0..40 {
                let (head, tail) = (head(&text, keep), tail(&text, keep));
                assert!(head.len() <= keep && tail.len() <= keep);
                assert!(text.starts_with(head) && text.ends_with(tail));
                assert!(head.len() + 3 + keep / 4 + 18 > keep, "{head:?} {keep}");
            }
        }
        let stored = body(r#""1234567890""#);
        let result = ResultText::of(&stored).unwrap();
        assert!(result.shortened("m", 5, 5).is_none());
        assert!(result.shortened("m", usize::MAX, 0).is_none());
        assert!(result.shortened("m", 0, usize::MAX).is_none());
        assert!(result.shortened("m", 0, 0).unwrap().starts_with(OPENING));
    }
}
