//! The worked cases of the contract, and random histories through plan and rendering.

use proptest::prelude::*;

use super::*;
use crate::domain::context::{Opening, TailMessage, join_tail};
use crate::domain::json;
use crate::domain::message::{Message, Role};
use crate::domain::pairing::{Counters, Placement, Tail, place};

/// `u`, `a`, `r` have length 100; `c` is an assistant message with one call.
fn worked(history: &str) -> Vec<(char, i64)> {
    let letter = |word: &str| {
        let kind = word.chars().next().unwrap();
        (kind, word.get(1..).unwrap().parse().unwrap_or(100))
    };
    history.split(' ').map(letter).collect()
}

fn batch(
    history: &str,
    from: i64,
    summary: i64,
    request: (i64, i64, Boundary),
) -> Result<i64, Reason> {
    let history = worked(history);
    let mut before = ' ';
    let marks: Vec<Mark> = (0..)
        .zip(&history)
        .map(|(index, (kind, length))| {
            let starts_turn = index == 0 || *kind == 'u' && before != 'u';
            before = *kind;
            Mark {
                seq: index + 1,
                length: *length,
                starts_turn,
                starts_group: *kind != 'r',
                is_assistant: matches!(kind, 'a' | 'c'),
            }
        })
        .collect();
    let (compact_count, keep_recent_turns, boundary) = request;
    let request = PlanRequest {
        compact_count,
        keep_recent_turns,
        boundary,
    };
    let landmarks = Landmarks::of(
        &marks,
        from,
        summary,
        &request,
        before != 'a',
        before != 'c',
    );
    let before: i64 = history
        .iter()
        .take(usize::try_from(from).unwrap())
        .map(|(_, length)| length)
        .sum();
    plan_cut(&landmarks, keep_recent_turns, before).map(|cut| cut.position)
}

#[test]
fn the_worked_cases() {
    use Boundary::{Step, Turn};
    let five = "u a u a u a u a u a";
    let long = "u c r200 c r200 c r200 c r200 c r200 c r200 a";
    assert_eq!(batch(five, 0, 0, (50, 1, Turn)), Ok(6));
    assert_eq!(batch(five, 0, 0, (99, 1, Turn)), Ok(8));
    assert_eq!(batch(five, 0, 0, (50, 0, Step)), Ok(5));
    assert_eq!(batch(five, 0, 0, (99, 0, Turn)), Ok(10));
    assert_eq!(batch(five, 6, 50, (50, 1, Turn)), Ok(8));
    assert_eq!(batch(five, 0, 0, (50, 4, Turn)), Ok(2));
    assert_eq!(batch(long, 0, 0, (50, 1, Turn)), Ok(7));
    assert_eq!(batch("u a", 0, 0, (50, 1, Turn)), Err(Reason::Protected));
    assert_eq!(batch("u c", 0, 0, (50, 0, Turn)), Err(Reason::OpenTurn));
    assert_eq!(batch(five, 10, 50, (50, 0, Turn)), Err(Reason::UpToDate));
    assert_eq!(batch("u0 a0 u a", 0, 0, (50, 1, Turn)), Err(Reason::Empty));
}

#[test]
fn s07_the_newest_user_message_is_never_in_the_batch() {
    let a = ["u10 a10"; 10].join(" ") + " u10000";
    let b = ["u a"; 9].join(" ") + " u200";
    assert_eq!(batch(&a, 0, 0, (50, 1, Boundary::Turn)), Ok(20));
    assert_eq!(batch(&b, 0, 3_000, (50, 1, Boundary::Turn)), Ok(18));
}

#[derive(Debug, Clone)]
enum Kind {
    User,
    Assistant(bool),
    Calls(u8),
    Result(u8),
    Instruction,
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = prop_oneof![
        3 => Just(Kind::User),
        3 => any::<bool>().prop_map(Kind::Assistant),
        3 => (1..4_u8).prop_map(Kind::Calls),
        5 => (0..4_u8).prop_map(Kind::Result),
        1 => Just(Kind::Instruction),
    ];
    prop::collection::vec(kind, 1..60)
}

fn text(kind: &Kind, number: usize) -> String {
    match kind {
        Kind::User => format!(r#"{{"role":"user","content":"question {number}"}}"#),
        Kind::Assistant(true) => format!(r#"{{"role":"assistant","content":"answer {number}"}}"#),
        Kind::Assistant(false) => r#"{"role":"assistant","content":null}"#.to_owned(),
        Kind::Instruction => format!(r#"{{"role":"system","content":"rule {number}"}}"#),
        Kind::Calls(count) => {
            // The same ids in every message: providers reuse them.
            let call = |id| {
                format!(r#"{{"id":"call_{id}","function":{{"name":"f","arguments":"{number}"}}}}"#)
            };
            let calls: Vec<_> = (0..*count).map(call).collect();
            format!(
                r#"{{"role":"assistant","content":"","tool_calls":[{}]}}"#,
                calls.join(",")
            )
        }
        Kind::Result(id) => {
            format!(r#"{{"role":"tool","tool_call_id":"call_{id}","content":"result {number}"}}"#)
        }
    }
}

/// The history that is left when everything that does not fit is refused, as the service does.
fn history(kinds: &[Kind]) -> Placement {
    let mut rows = Vec::new();
    let (mut counters, mut tail) = (Counters::default(), Tail::default());
    for (number, kind) in kinds.iter().enumerate() {
        let message = Message::read(&text(kind, number)).unwrap();
        let one = vec![(format!("m{number}"), message)];
        if let Ok(placement) = place(counters, tail.clone(), one) {
            rows.extend(placement.rows);
            (counters, tail) = (placement.counters, placement.tail);
        }
    }
    Placement {
        rows,
        counters,
        tail,
    }
}

/// The context under a pointer, from the same pieces that the storage delivers.
fn render(history: &Placement, size: i64) -> Vec<String> {
    let bodies = |filter: &dyn Fn(&crate::domain::pairing::Placed) -> bool| {
        let found = history.rows.iter().filter(|row| filter(row));
        found
            .map(|row| row.message.body.as_str())
            .collect::<Vec<_>>()
            .join(",")
    };
    let behind = |row: &&crate::domain::pairing::Placed| row.position.is_some_and(|p| p < size);
    let tail: Vec<_> = history
        .rows
        .iter()
        .filter(|row| row.position.is_some_and(|position| position >= size))
        .collect();
    let reaches_over = size > 0
        && tail
            .first()
            .map_or(history.tail.turn_is_open(), |first| !first.starts_turn);
    let opened: Vec<_> = history.rows.iter().filter(behind).collect();
    let turn = opened.iter().rposition(|row| row.starts_turn).unwrap_or(0);
    let carried: Vec<_> = opened
        .iter()
        .skip(turn)
        .take_while(|row| row.message.role == Role::User)
        .map(|row| row.message.body.as_str())
        .collect();
    let carried = (reaches_over && !carried.is_empty()).then(|| carried.join(","));
    let instructions = bodies(&|row| row.position.is_none());
    let opening = Opening {
        instructions: (!instructions.is_empty()).then_some(instructions.as_str()),
        instruction_count: 0,
        summary: (size > 0).then_some("SUMMARY"),
        carried: carried.as_deref(),
        carried_count: 0,
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
    let pieces = [opening.render(), join_tail(&messages)];
    let pieces: Vec<_> = pieces
        .into_iter()
        .filter(|piece| !piece.is_empty())
        .collect();
    let context = format!("[{}]", pieces.join(","));
    json::elements(&context)
        .into_iter()
        .map(ToOwned::to_owned)
        .collect()
}

/// What a strict provider demands: each result right behind its call, each call but trailing ones answered.
fn check(context: &[String], open: &[String]) -> Result<(), TestCaseError> {
    let mut waiting: Vec<String> = Vec::new();
    let mut conversation_began = false;
    for text in context {
        let message =
            Message::read(text).map_err(|fault| TestCaseError::fail(fault.to_string()))?;
        if message.role.is_instruction() {
            prop_assert!(!conversation_began, "instructions stand first");
            continue;
        }
        conversation_began = true;
        match &message.answers {
            Some(call) => {
                let at = waiting.iter().position(|id| id == call);
                prop_assert!(at.is_some(), "a result without its call: {text}");
                waiting.remove(at.unwrap());
            }
            None => prop_assert!(waiting.is_empty(), "an unanswered call before {text}"),
        }
        waiting.extend(message.calls.iter().map(|call| call.id.clone()));
    }
    prop_assert_eq!(&waiting, open, "only trailing calls are open");
    Ok(())
}

proptest! {
    #[test]
    fn random_histories_hold_through_plan_and_rendering(
        kinds in kinds(),
        requests in prop::collection::vec((1..=99_i64, 0..4_i64, any::<bool>()), 1..6),
    ) {
        let history = history(&kinds);
        let marks: Vec<_> = history
            .rows
            .iter()
            .filter(|row| row.position.is_some())
            .map(|row| Mark {
                seq: row.seq,
                length: i64::try_from(row.message.size.units).unwrap(),
                starts_turn: row.starts_turn,
                starts_group: row.starts_group,
                is_assistant: row.message.role == Role::Assistant,
            })
            .collect();
        let tail = &history.tail;
        let open: Vec<_> = tail.open_calls().map(ToOwned::to_owned).collect();
        check(&render(&history, 0), &open)?;
        let (mut size, mut length) = (0, 0);
        for (compact_count, keep_recent_turns, step) in requests {
            let request = PlanRequest {
                compact_count,
                keep_recent_turns,
                boundary: if step { Boundary::Step } else { Boundary::Turn },
            };
            let landmarks = Landmarks::of(
                &marks, size, if size > 0 { 7 } else { 0 }, &request,
                tail.turn_is_open(), tail.group_is_complete(),
            );
            let Ok(cut) = plan_cut(&landmarks, keep_recent_turns, length) else { continue };
            prop_assert!(cut.position > size, "the pointer only moves forward");
            prop_assert!(cut.position <= history.counters.positions);
            (size, length) = (cut.position, cut.length);
            let context = render(&history, size);
            check(&context, &open)?;
            // Whoever owes an answer sees the question.
            if tail.turn_is_open() && history.rows.iter().any(|row| row.message.role == Role::User) {
                let newest = history.rows.iter().rev().find(|row| row.message.role == Role::User);
                prop_assert!(context.contains(&newest.unwrap().message.body), "the newest user message is verbatim");
            }
        }
    }
}
