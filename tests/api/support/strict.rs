//! What a strict provider says to a context. This knows nothing of how contexts are made: it only
//! knows what such providers refuse, and what a user must never lose.

use super::http::Context;
use super::messages;
use super::oracle::{History, Message};

/// What the context was made from.
pub struct Expectation<'a> {
    pub history: &'a History,
    /// `compactSize` of the session.
    pub size: usize,
    /// `compactSummary` of the session.
    pub summary: Option<&'a str>,
}

/// Panics, with `what` in the message, on anything a strict provider would refuse.
#[track_caller]
pub fn check(context: &Context, expected: &Expectation<'_>, what: &str) {
    let raws = messages::raws(&context.messages);
    let shown: Vec<Message> = raws.iter().map(|raw| Message::read(raw)).collect();
    let instructions = expected.history.instructions.len();

    assert_eq!(
        raws.get(..instructions),
        Some(expected.history.instructions.as_slice()),
        "{what}: expected the instructions first, each with its bytes"
    );
    let rest = &shown[instructions..];
    assert!(
        rest.iter()
            .all(|m| !matches!(m.role.as_str(), "system" | "developer")),
        "{what}: expected no instruction after the first other message"
    );
    assert!(
        rest.is_empty() || rest.iter().any(|m| m.role == "user") || !has_user(expected),
        "{what}: expected at least one user message"
    );
    check_pairing(rest, context, what);
    check_summary(&shown, instructions, context, expected, what);
    check_alternation(rest, expected.history, what);
    check_newest_turn(&raws, expected, what);
}

fn has_user(expected: &Expectation<'_>) -> bool {
    expected.summary.is_some() || expected.history.messages.iter().any(|m| m.role == "user")
}

/// Every result right after its call, every call but trailing ones answered exactly once.
#[track_caller]
fn check_pairing(rest: &[Message], context: &Context, what: &str) {
    let mut waiting: Vec<&String> = Vec::new();
    for (index, message) in rest.iter().enumerate() {
        if message.role == "tool" {
            let id = message
                .answers
                .as_ref()
                .unwrap_or_else(|| panic!("{what}: the result {index} names no call"));
            let place = waiting.iter().position(|call| *call == id);
            let place = place.unwrap_or_else(|| {
                panic!("{what}: the result {index} for `{id}` has no open call right before it")
            });
            waiting.remove(place);
        } else {
            assert!(
                waiting.is_empty(),
                "{what}: message {index} ({}) comes while {waiting:?} wait for their results",
                message.role
            );
            waiting = message.calls.iter().collect();
        }
    }
    assert_eq!(
        waiting,
        context.open_calls.iter().collect::<Vec<_>>(),
        "{what}: expected `openCalls` to name the calls that are open at the end"
    );
}

#[track_caller]
fn check_summary(
    shown: &[Message],
    instructions: usize,
    context: &Context,
    expected: &Expectation<'_>,
    what: &str,
) {
    let Some(summary) = expected.summary else {
        assert_eq!(context.summary_at, None, "{what}: there is no summary");
        assert!(context.compaction.is_none(), "{what}: there is no summary");
        return;
    };
    assert_eq!(
        context.summary_at,
        Some(instructions),
        "{what}: expected the summary right after the instructions"
    );
    let size = context.compaction.as_ref().map(|c| c.size);
    assert_eq!(
        size,
        Some(expected.size),
        "{what}: expected the pointer in the context"
    );
    let message: serde_json::Value =
        serde_json::from_str(&shown[instructions].raw).expect("a message");
    assert_eq!(
        message,
        serde_json::json!({
            "role": "user",
            "content": format!("[Summary of previous conversation]\n\n{summary}"),
        }),
        "{what}: expected the active summary as a user message"
    );
}

/// Neighbours of one role only where they were neighbours in the history.
#[track_caller]
fn check_alternation(rest: &[Message], history: &History, what: &str) {
    for (index, pair) in rest.windows(2).enumerate() {
        let [first, second] = pair else { continue };
        if first.role != second.role || first.role == "tool" {
            continue;
        }
        let were_neighbours = history
            .messages
            .windows(2)
            .any(|stored| stored[0].raw == first.raw && stored[1].raw == second.raw);
        assert!(
            were_neighbours,
            "{what}: messages {index} and the next are both `{}` and were not neighbours before",
            first.role
        );
    }
}

/// What the user said last, and all that followed, is there word for word.
#[track_caller]
fn check_newest_turn(raws: &[String], expected: &Expectation<'_>, what: &str) {
    let Some(start) = expected.history.turn_starts().last().copied() else {
        return;
    };
    let stored = expected
        .history
        .messages
        .iter()
        .skip(start.max(expected.size));
    let mut shown = raws.iter();
    for message in stored {
        // In order, with nothing but results of interrupted calls between.
        assert!(
            shown.any(|raw| *raw == message.raw),
            "{what}: expected the newest turn verbatim, but this is missing or out of order: {:.200}",
            message.raw
        );
    }
}
