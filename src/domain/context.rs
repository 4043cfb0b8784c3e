//! What the model is shown: instructions, the summary pair, carried messages, the tail.
//!
//! Rendering is joining stored texts with commas; no message is parsed or serialised on the way
//! out. Which rows belong where is decided by the session's pointer; this module knows how the
//! pieces go together and what the service itself adds. Reading the rows is storage's work.

use super::items;
use super::json::encode_string;
use super::size;

/// Version of the rendering. Part of the `ETag` and of a dispatch's record: raise it with every
/// change that alters a byte of what is rendered.
pub const RENDERER_VERSION: u32 = 1;

const SUMMARY_HEADING: &str = "[Summary of previous conversation]\n\n";
const ACKNOWLEDGEMENT: &str = r#"{"role":"assistant","content":"Understood. I have the context from our earlier conversation."}"#;

/// The messages that stand for what was folded in.
#[must_use]
pub fn summary_message(summary: &str) -> String {
    let content = encode_string(&[SUMMARY_HEADING, summary].concat());
    format!(r#"{{"role":"user","content":{content}}}"#)
}

/// The summary that a text shows, if it is the text of a summary message.
#[must_use]
pub fn shown_summary(text: &str) -> Option<&str> {
    text.strip_prefix(SUMMARY_HEADING)
}

/// Estimated tokens of the summary pair.
#[must_use]
pub fn summary_tokens(summary: &str) -> u64 {
    size::tokens(SUMMARY_HEADING) + size::tokens(summary) + size::tokens(ACKNOWLEDGEMENT)
}

/// Everything before the tail, in order: instructions, summary pair, carried messages.
#[derive(Debug, Default)]
pub struct Opening<'a> {
    /// Stored instructions, joined by commas; `None` if there are none.
    pub instructions: Option<&'a str>,
    /// How many instructions those are.
    pub instruction_count: usize,
    /// The active summary.
    pub summary: Option<&'a str>,
    /// Stored user messages that opened the newest turn and lie behind the pointer, joined by commas.
    pub carried: Option<&'a str>,
    /// How many those are.
    pub carried_count: usize,
    /// The first message of the tail is an assistant's.
    pub tail_begins_with_assistant: bool,
}

impl Opening<'_> {
    /// The messages before the tail, joined by commas; empty if there are none.
    #[must_use]
    pub fn render(&self) -> String {
        let summary = self.summary.map(summary_message);
        [
            self.instructions,
            summary.as_deref(),
            self.is_acknowledged().then_some(ACKNOWLEDGEMENT),
            self.carried,
        ]
        .into_iter()
        .flatten()
        .filter(|piece| !piece.is_empty())
        .collect::<Vec<_>>()
        .join(",")
    }

    /// Behind the summary message an assistant message needs no acknowledgement before it.
    fn is_acknowledged(&self) -> bool {
        self.summary.is_some() && (self.carried.is_some() || !self.tail_begins_with_assistant)
    }

    /// How many messages are rendered.
    #[must_use]
    pub fn count(&self) -> usize {
        self.instruction_count
            + usize::from(self.summary.is_some())
            + usize::from(self.is_acknowledged())
            + self.carried_count
    }

    /// Index of the summary message among the rendered messages.
    #[must_use]
    pub fn summary_at(&self) -> Option<usize> {
        self.summary.map(|_| self.instruction_count)
    }
}

/// One stored message of the tail.
#[derive(Debug, Clone, Copy)]
pub struct TailMessage<'a> {
    /// The stored text.
    pub body: &'a str,
    /// Results shown before it for calls it interrupted.
    pub fill: Option<&'a str>,
}

/// Joins the messages of a tail row by row, several of which may be one message.
#[derive(Debug, Default)]
pub struct Joiner {
    joined: String,
    /// The newest message: what it is made of.
    newest: Vec<String>,
    /// It has a text or a call, so it is a message that a provider takes.
    is_sent: bool,
}

/// A row of a tail.
#[derive(Debug, Clone, Copy)]
pub struct TailRow<'a> {
    /// Results shown before it for calls it interrupted.
    pub fill: Option<&'a str>,
    /// It goes on with the message of the row before it.
    pub joins: bool,
    /// It is an item of an answer without a text or a call of its own.
    pub silent: bool,
}

impl Joiner {
    /// Takes the next row with what is shown of it.
    pub fn push(&mut self, shown: String, row: TailRow<'_>) {
        if shown.is_empty() {
            return;
        }
        if !row.joins {
            self.close();
            if let Some(fill) = row.fill {
                self.put(fill);
            }
        }
        self.is_sent |= !row.silent;
        self.newest.push(shown);
    }

    /// Ends the newest message. An answer that is reasoning alone is left out: no provider takes it.
    fn close(&mut self) {
        let newest = std::mem::take(&mut self.newest);
        if std::mem::take(&mut self.is_sent) {
            self.put(&items::join(&newest));
        }
    }

    fn put(&mut self, message: &str) {
        if !self.joined.is_empty() {
            self.joined.push(',');
        }
        self.joined.push_str(message);
    }

    /// The messages so far, joined by commas. The newest is held back for as long as rows may go on with it.
    pub fn take(&mut self, is_last: bool) -> String {
        if is_last {
            self.close();
        }
        std::mem::take(&mut self.joined)
    }
}

/// Joins messages, each behind its fill.
#[must_use]
pub fn join<'a>(messages: impl Iterator<Item = TailMessage<'a>>) -> String {
    let mut joined = String::new();
    for message in messages {
        for piece in message.fill.into_iter().chain([message.body]) {
            if !joined.is_empty() {
                joined.push(',');
            }
            joined.push_str(piece);
        }
    }
    joined
}

/// Joins the messages of a tail. The storage does the same in SQL; tests hold the two together.
///
/// The fill of the first message belongs to a group that lies behind the pointer, so it is not shown
/// unless the tail is the whole history.
#[must_use]
pub fn join_tail(messages: &[TailMessage<'_>]) -> String {
    join(
        messages
            .iter()
            .enumerate()
            .map(|(index, message)| TailMessage {
                fill: message.fill.filter(|_| index > 0),
                ..*message
            }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_reasoning_alone_is_left_out() {
        let thinks = r#"{"role":"assistant","reasoning_content":"hm","content":""}"#;
        let row = |joins, silent| TailRow {
            fill: None,
            joins,
            silent,
        };
        let mut joiner = Joiner::default();
        joiner.push("1".to_owned(), row(false, false));
        joiner.push(thinks.to_owned(), row(false, true));
        joiner.push(thinks.to_owned(), row(true, true));
        let filled = TailRow {
            fill: Some("2"),
            ..row(false, true)
        };
        joiner.push(thinks.to_owned(), filled);
        joiner.push("3".to_owned(), row(false, false));
        joiner.push(thinks.to_owned(), row(false, true));
        assert_eq!(joiner.take(false), "1,2,3");
        let says = r#"{"role":"assistant","content":"a"}"#;
        joiner.push(says.to_owned(), row(true, false));
        assert_eq!(
            joiner.take(true),
            r#"{"role":"assistant","reasoning_content":"hm","content":"a"}"#
        );
        // A chat message that came so is shown so.
        joiner.push(thinks.to_owned(), row(false, false));
        assert_eq!(joiner.take(true), thinks);
    }
}
