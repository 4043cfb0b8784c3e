//! Contexts of made-up histories: whatever was appended, a strict provider takes what is rendered.

use precis::domain::anthropic;
use precis::domain::context::{Opening, TailMessage, join, join_tail};
use precis::domain::message::Role;
use precis::domain::pairing::Placed;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

use crate::generate::{accepted, history};
use crate::runner::{Verdict, fuzz};
use crate::strict_anthropic;

/// A rendered context and what it was made of.
struct Context<'a> {
    text: String,
    opening: usize,
    summary_at: Option<usize>,
    instructions: Vec<&'a str>,
    carried: Vec<&'a str>,
    tail: Vec<&'a Placed>,
}

fn bodies<'a>(rows: &[&'a Placed]) -> Vec<&'a str> {
    rows.iter().map(|row| row.message.body.as_str()).collect()
}

fn joined(bodies: &[&str]) -> Option<String> {
    (!bodies.is_empty()).then(|| bodies.join(","))
}

/// The context behind a pointer, which stands before `cut`.
fn render<'a>(rows: &'a [Placed], cut: usize, summary: Option<&str>) -> Context<'a> {
    let (instructions, positioned): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| row.position.is_none());
    let (behind, tail) = positioned.split_at(cut);
    let opens_turn = tail.first().is_none_or(|row| row.starts_turn);
    let turn = behind.iter().rposition(|row| row.starts_turn).unwrap_or(0);
    let carried: Vec<_> = behind[turn..]
        .iter()
        .take_while(|row| row.message.role == Role::User && !opens_turn)
        .copied()
        .collect();
    let (instructions, carried) = (bodies(&instructions), bodies(&carried));
    let (instructions_text, carried_text) = (joined(&instructions), joined(&carried));
    let opening = Opening {
        instructions: instructions_text.as_deref(),
        instruction_count: instructions.len(),
        summary,
        carried: carried_text.as_deref(),
        carried_count: carried.len(),
        tail_begins_with_assistant: tail
            .first()
            .is_some_and(|row| row.message.role == Role::Assistant),
    };
    let messages: Vec<_> = tail
        .iter()
        .map(|row| TailMessage {
            body: &row.message.body,
            fill: row.fill.as_deref(),
        })
        .collect();
    let tail_text = if cut == 0 {
        join(messages.iter().copied())
    } else {
        join_tail(&messages)
    };
    let pieces = [opening.render(), tail_text];
    let pieces: Vec<_> = pieces
        .into_iter()
        .filter(|piece| !piece.is_empty())
        .collect();
    Context {
        text: pieces.join(","),
        opening: opening.count(),
        summary_at: opening.summary_at(),
        instructions,
        carried,
        tail: tail.to_vec(),
    }
}

fn ids(message: &Value) -> Vec<&str> {
    let calls = message["tool_calls"]
        .as_array()
        .filter(|_| message["role"] == "assistant");
    calls
        .into_iter()
        .flatten()
        .filter_map(|call| call["id"].as_str())
        .collect()
}

/// What a provider of chat completions refuses.
fn check_pairs(messages: &[Value]) -> Verdict {
    let mut waiting: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if message["role"] == "tool" {
            let answered = message["tool_call_id"].as_str();
            let place = waiting.iter().position(|id| Some(*id) == answered);
            prop_assert!(place.is_some(), "the result {index} answers nothing");
            waiting.remove(place.expect("a place"));
        } else {
            prop_assert!(
                waiting.is_empty(),
                "message {index} comes before {waiting:?}"
            );
            waiting = ids(message);
        }
    }
    Ok(())
}

fn check(context: &Context<'_>, summary: Option<&str>) -> Verdict {
    let messages: Vec<Value> =
        serde_json::from_str(&format!("[{}]", context.text)).expect("a context is JSON");
    let is_instruction =
        |message: &Value| message["role"] == "system" || message["role"] == "developer";
    let count = context.instructions.len();
    prop_assert!(
        messages
            .iter()
            .skip(count)
            .all(|message| !is_instruction(message))
    );
    prop_assert!(context.opening <= messages.len());
    check_pairs(&messages[count..])?;
    prop_assert_eq!(context.summary_at, summary.map(|_| count));
    let value = |body: &&str| serde_json::from_str::<Value>(body).expect("JSON");
    let stored: Vec<_> = context.instructions.iter().map(value).collect();
    prop_assert_eq!(&messages[..count], &stored[..]);
    if let Some(summary) = summary {
        let shown = messages[count]["content"].as_str().unwrap_or_default();
        prop_assert_eq!(
            shown,
            format!("[Summary of previous conversation]\n\n{summary}")
        );
        // Behind the summary the roles take turns, and the pair stands for what is gone.
        let next = messages
            .get(count + 1)
            .map(|message| message["role"].clone());
        prop_assert!(next.is_none_or(|role| role == "assistant"));
        let carried: Vec<_> = context.carried.iter().map(value).collect();
        prop_assert_eq!(
            &messages[context.opening - carried.len()..context.opening],
            &carried[..]
        );
    }
    // The tail is there word for word, with nothing between but results that were never recorded.
    let mut shown = messages[context.opening..].iter();
    for row in &context.tail {
        let body = value(&row.message.body.as_str());
        let found = shown
            .by_ref()
            .find(|message| **message == body || message["role"] != "tool");
        prop_assert_eq!(found, Some(&body));
    }
    prop_assert!(shown.next().is_none());
    Ok(())
}

/// The same for Anthropic, unless something has no place there.
fn check_anthropic(context: &Context<'_>, breakpoints: &[usize]) -> Verdict {
    let Ok(rendered) = anthropic::render(&context.text, breakpoints) else {
        return Ok(());
    };
    prop_assert_eq!(
        &anthropic::render(&context.text, breakpoints).expect("as before"),
        &rendered
    );
    let array = |items: &str| {
        serde_json::from_str::<Value>(&format!("[{items}]")).expect("blocks are JSON")
    };
    strict_anthropic::check(
        &array(&rendered.system),
        &array(&rendered.messages),
        &context.text,
    );
    Ok(())
}

fn contexts_of(
    texts: Vec<String>,
    cut: Option<Index>,
    summary: &str,
    breakpoints: &[Index],
) -> Verdict {
    let rows = accepted(texts);
    let positioned: Vec<_> = rows.iter().filter(|row| row.position.is_some()).collect();
    let mut cuts: Vec<_> = (0..positioned.len())
        .filter(|at| positioned[*at].starts_group)
        .collect();
    cuts.push(positioned.len());
    // At the end everything is folded in, which asks for a group that is whole.
    let cut = cut.map_or(0, |cut| *cut.get(&cuts));
    let is_open = cut == positioned.len() && check_pairs_open(&positioned);
    if cut > 0 && is_open {
        return Ok(());
    }
    let summary = (cut > 0).then_some(summary);
    let context = render(&rows, cut, summary);
    prop_assert_eq!(&render(&rows, cut, summary).text, &context.text);
    check(&context, summary)?;
    let count = context.opening + context.tail.len();
    let breakpoints: Vec<_> = breakpoints.iter().map(|at| at.index(count + 1)).collect();
    check_anthropic(&context, &breakpoints)
}

/// Whether calls of the newest message with calls wait for their results.
fn check_pairs_open(rows: &[&Placed]) -> bool {
    let Some(caller) = rows.iter().rposition(|row| row.message.role != Role::Tool) else {
        return false;
    };
    rows[caller].message.calls.len() > rows.len() - caller - 1
}

#[test]
fn contexts() {
    let case = (
        history(4),
        prop::option::weighted(0.7, any::<Index>()),
        "\\PC{0,30}",
        prop::collection::vec(any::<Index>(), 0..4),
    );
    fuzz(
        "contexts",
        200,
        &case,
        |(texts, cut, summary, breakpoints)| contexts_of(texts, cut, &summary, &breakpoints),
    );
}
