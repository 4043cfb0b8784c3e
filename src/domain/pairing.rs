//! Placing new messages behind a history: numbers, turns, groups, and which call a result answers.
//!
//! Everything an append needs to know of the history is a small [`Tail`] kept with the session, so
//! that appending costs what is appended. Calls pair with results only inside the newest assistant
//! message that has calls: providers reuse ids, so there is no session-wide map.

use serde::{Deserialize, Serialize};

use super::json::encode_string;
use super::message::{Call, Message, Role};

/// What a result says that was never recorded. Fixed by the contract: it is part of a cached prefix.
const NO_RESULT: &str = "[no result was recorded for this call]";

/// Running numbers of a session, all over its whole history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Highest `seq` given out.
    pub last_seq: i64,
    /// Messages stored, instructions included.
    pub messages: i64,
    /// Positions given out: messages that are no instructions.
    pub positions: i64,
    /// UTF-16 units of everything that has a position.
    pub length: i64,
    /// Estimated tokens of everything that has a position.
    pub tokens: i64,
    /// Stored bytes of everything that has a position.
    pub bytes: i64,
    /// Estimated tokens of the instructions.
    pub instruction_tokens: i64,
}

/// A call of the newest assistant message that has calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailCall {
    /// Id and name.
    #[serde(flatten)]
    pub call: Call,
    /// Whether its result is stored.
    #[serde(default)]
    pub answered: bool,
}

/// A call that waits for no result any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupted {
    /// The call's id.
    pub call: String,
    /// Id of the message that came instead.
    pub by: String,
}

/// Interrupted calls that are remembered.
const REMEMBERED: usize = 16;

/// The end of a history: what decides how the next message fits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tail {
    /// Role of the newest message that is no instruction.
    pub last: Option<Role>,
    /// Calls of the newest assistant message that has any.
    pub calls: Vec<TailCall>,
    /// Id of the message that ended the wait for their results.
    pub interrupted_by: Option<String>,
    /// Calls of earlier messages that were interrupted, newest last; only so that a late result can be told.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interrupted: Vec<Interrupted>,
    /// Whether the newest message is an assistant's that says something.
    pub answered: bool,
    /// The answer that the newest items are parts of.
    #[serde(skip_serializing_if = "Run::is_over")]
    pub run: Run,
}

/// Items of one answer of a model, which count as one assistant message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// The next item of a model goes on with it.
    pub open: bool,
    /// It has text.
    pub says: bool,
    /// It has calls.
    pub calls: bool,
}

impl Run {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde hands over")]
    fn is_over(&self) -> bool {
        !self.open
    }
}

impl Tail {
    /// Ids of the calls that still wait for a result, in the order of the calls.
    pub fn open_calls(&self) -> impl Iterator<Item = &str> {
        self.calls
            .iter()
            .filter(|call| self.interrupted_by.is_none() && !call.answered)
            .map(|call| call.call.id.as_str())
    }

    /// Ends the wait for results, because the message `by` comes; gives what is shown in their place.
    fn interrupt(&mut self, by: &str) -> Option<String> {
        let missing: Vec<_> = self.open_calls().map(ToOwned::to_owned).collect();
        if missing.is_empty() {
            return None;
        }
        let fill: Vec<_> = missing.iter().map(|call| missing_result(call)).collect();
        self.interrupted_by = Some(by.to_owned());
        self.interrupted
            .extend(missing.into_iter().map(|call| Interrupted {
                call,
                by: by.to_owned(),
            }));
        let surplus = self.interrupted.len().saturating_sub(REMEMBERED);
        self.interrupted.drain(..surplus);
        Some(fill.join(","))
    }

    /// Puts a message that fits behind the end.
    fn go_on(&mut self, message: &Message, goes_on: bool) -> Result<(), PairingFault> {
        if !goes_on {
            self.run = Run {
                open: message.is_part_of_answer(),
                ..Run::default()
            };
        }
        if !message.calls.is_empty() {
            if !(goes_on && self.run.calls) {
                self.calls.clear();
                self.interrupted_by = None;
            }
            for call in &message.calls {
                if self.calls.iter().any(|earlier| earlier.call.id == call.id) {
                    let call = call.id.clone();
                    return Err(PairingFault::Repeated { call });
                }
                self.calls.push(TailCall {
                    call: call.clone(),
                    answered: false,
                });
            }
        }
        self.run.says |= message.says_something;
        self.run.calls |= !message.calls.is_empty();
        self.last = Some(message.role);
        self.answered = self.run.says && !self.run.calls;
        if !self.run.open {
            self.run = Run::default();
        }
        Ok(())
    }

    /// The newest turn lacks an answer of the model (an empty history lacks nothing).
    #[must_use]
    pub fn turn_is_open(&self) -> bool {
        self.last.is_some() && !self.answered
    }

    /// Whether there is something for a model, or for whoever runs its tools, to answer.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.last.is_some_and(Role::asks) || !self.group_is_complete()
    }

    /// The newest message's group has all its results.
    #[must_use]
    pub fn group_is_complete(&self) -> bool {
        self.open_calls().next().is_none()
    }
}

/// A message with its place: one row of the history.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The id within the session.
    pub id: String,
    /// 1, 2, … over all messages of the session.
    pub seq: i64,
    /// 0, 1, … over those that are no instructions.
    pub position: Option<i64>,
    /// Running totals before this message.
    pub before: Counters,
    /// Whether a turn begins here.
    pub starts_turn: bool,
    /// Whether a group begins here.
    pub starts_group: bool,
    /// The tool that a result comes from.
    pub tool_name: Option<String>,
    /// Which of its message's calls a result answers, from 0.
    pub call_index: Option<i64>,
    /// Rendered results for calls that this message interrupts, joined by commas; shown before it.
    pub fill: Option<String>,
    /// The message itself.
    pub message: Message,
}

/// Why a tool result fits nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PairingFault {
    /// No call with that id is known.
    #[error(
        "no call `{call}` is open: the newest assistant message with calls has no call of that id"
    )]
    NoSuchCall {
        /// The id given.
        call: String,
    },
    /// An answer calls twice under one id.
    #[error("two calls of one answer have the id `{call}`; their results could not be told apart")]
    Repeated {
        /// The id given.
        call: String,
    },
    /// Its result is there already.
    #[error("the call `{call}` already has its result")]
    AlreadyAnswered {
        /// The id given.
        call: String,
    },
    /// Another message came before the result.
    #[error("the call `{call}` was interrupted by the message `{by}` and takes no result any more")]
    Interrupted {
        /// The id given.
        call: String,
        /// The message that came instead.
        by: String,
    },
}

/// The outcome of placing: the rows, and how the session stands behind them.
#[derive(Debug)]
pub struct Placement {
    /// The messages in order.
    pub rows: Vec<Placed>,
    /// The running numbers behind the last of them.
    pub counters: Counters,
    /// The end of the history behind the last of them.
    pub tail: Tail,
}

/// Places messages, each with its id, behind a history that stands at `counters` and `tail`.
///
/// # Errors
/// The index of the first tool result that fits nowhere, and why. Nothing is placed then.
pub fn place(
    mut counters: Counters,
    mut tail: Tail,
    messages: Vec<(String, Message)>,
) -> Result<Placement, (usize, PairingFault)> {
    let mut rows = Vec::with_capacity(messages.len());
    for (index, (id, message)) in messages.into_iter().enumerate() {
        let before = counters;
        counters.last_seq += 1;
        counters.messages += 1;
        let tokens = signed(message.tokens);
        let mut row = Placed {
            id,
            seq: counters.last_seq,
            position: None,
            before,
            starts_turn: false,
            starts_group: false,
            tool_name: None,
            call_index: None,
            fill: None,
            message,
        };
        if row.message.role.is_instruction() {
            counters.instruction_tokens += tokens;
            rows.push(row);
            continue;
        }
        row.position = Some(counters.positions);
        counters.positions += 1;
        counters.bytes += signed(row.message.stored_bytes() as u64);
        if row.message.shows_nothing() {
            // No model sees it, so nothing begins or ends with it.
            rows.push(row);
            continue;
        }
        let goes_on = tail.run.open && row.message.is_part_of_answer();
        row.starts_turn =
            tail.last.is_none() || row.message.role == Role::User && tail.last != Some(Role::User);
        row.starts_group = row.message.role != Role::Tool && !goes_on;
        counters.length += signed(row.message.size.units);
        counters.tokens += tokens;
        match &row.message.answers {
            Some(call) => {
                let (at, answered) = answer(&mut tail, call).map_err(|fault| (index, fault))?;
                row.call_index = Some(signed(at as u64));
                row.tool_name.clone_from(&answered.call.name);
            }
            None if goes_on => {}
            None => {
                row.fill = tail.interrupt(&row.id);
            }
        }
        tail.go_on(&row.message, goes_on)
            .map_err(|fault| (index, fault))?;
        rows.push(row);
    }
    Ok(Placement {
        rows,
        counters,
        tail,
    })
}

/// A message at the end of a history, for [`rebuild_tail`].
#[derive(Debug, Clone)]
pub struct End {
    /// Its `seq`.
    pub seq: i64,
    /// Who speaks.
    pub role: Role,
    /// Which call it answers.
    pub call_index: Option<i64>,
    /// Its calls.
    pub calls: Vec<Call>,
    /// It is an item of an answer.
    pub is_part_of_answer: bool,
    /// An assistant message without calls whose content is not empty.
    pub says_something: bool,
}

/// The end of a history, read from its newest messages: newest first, back to the first that is no
/// tool result, and from there to the beginning of its answer; without those that show nothing.
#[must_use]
pub fn rebuild_tail(newest_first: &[End]) -> Tail {
    let answered = |index: usize| {
        let index = i64::try_from(index).ok();
        newest_first
            .iter()
            .any(|end| index.is_some() && end.call_index == index)
    };
    let answer = || newest_first.iter().filter(|end| end.role != Role::Tool);
    let calls = answer().rev().flat_map(|end| &end.calls);
    let newest = newest_first.first();
    let is_answer = newest.is_some_and(|end| end.role == Role::Assistant);
    let run = Run {
        open: newest.is_some_and(|end| end.is_part_of_answer),
        says: is_answer && answer().any(|end| end.says_something),
        calls: is_answer && answer().any(|end| !end.calls.is_empty()),
    };
    Tail {
        last: newest.map(|end| end.role),
        calls: calls
            .enumerate()
            .map(|(index, call)| TailCall {
                call: call.clone(),
                answered: answered(index),
            })
            .collect(),
        answered: run.says && !run.calls,
        run: if run.open { run } else { Run::default() },
        ..Tail::default()
    }
}

fn answer<'t>(tail: &'t mut Tail, id: &str) -> Result<(usize, &'t TailCall), PairingFault> {
    let call = || id.to_owned();
    let interrupted_by = tail.interrupted_by.clone();
    let Some((at, found)) = tail
        .calls
        .iter_mut()
        .enumerate()
        .find(|(_, waiting)| waiting.call.id == id)
    else {
        let earlier = tail.interrupted.iter().rev();
        return Err(
            match earlier.into_iter().find(|earlier| earlier.call == id) {
                Some(earlier) => PairingFault::Interrupted {
                    call: call(),
                    by: earlier.by.clone(),
                },
                None => PairingFault::NoSuchCall { call: call() },
            },
        );
    };
    if found.answered {
        return Err(PairingFault::AlreadyAnswered { call: call() });
    }
    if let Some(by) = interrupted_by {
        return Err(PairingFault::Interrupted { call: call(), by });
    }
    found.answered = true;
    Ok((at, found))
}

/// The message shown for a call whose result never came.
fn missing_result(call: &str) -> String {
    format!(
        r#"{{"role":"tool","tool_call_id":{},"content":"{NO_RESULT}"}}"#,
        encode_string(call)
    )
}

/// Sizes of real texts are far below 2⁶³; a larger number could only come from a broken count.
fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(texts: &[&str]) -> Result<Placement, (usize, PairingFault)> {
        let messages = texts
            .iter()
            .enumerate()
            .map(|(index, text)| (format!("m{index}"), Message::read(text).unwrap()))
            .collect();
        place(Counters::default(), Tail::default(), messages)
    }

    const USER: &str = r#"{"role":"user","content":"q"}"#;
    const CALLS: &str = r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":""}},{"id":"b","function":{"name":"g","arguments":""}}]}"#;
    const RESULT_A: &str = r#"{"role":"tool","tool_call_id":"a","content":"1"}"#;
    const RESULT_B: &str = r#"{"role":"tool","tool_call_id":"b","content":"2"}"#;
    const ANSWER: &str = r#"{"role":"assistant","content":"done"}"#;
    const SYSTEM: &str = r#"{"role":"system","content":"rules"}"#;

    #[test]
    fn results_pair_with_the_newest_calls() {
        let placement = placed(&[
            USER, CALLS, RESULT_B, SYSTEM, RESULT_A, ANSWER, USER, CALLS, RESULT_A,
        ])
        .unwrap();
        let starts: Vec<_> = placement.rows.iter().map(|row| row.starts_turn).collect();
        assert_eq!(
            starts,
            [true, false, false, false, false, false, true, false, false]
        );
        assert_eq!(placement.tail.open_calls().collect::<Vec<_>>(), ["b"]);
        assert_eq!(placement.rows[2].tool_name.as_deref(), Some("g"));
        assert_eq!(placement.rows[2].call_index, Some(1));
        assert_eq!(placement.rows[4].position, Some(3));
        assert!(placement.rows.iter().all(|row| row.fill.is_none()));
    }

    #[test]
    fn an_interrupted_call_is_filled_and_closed() {
        let placement = placed(&[USER, CALLS, RESULT_A, USER]).unwrap();
        let fill = placement.rows[3].fill.as_deref().unwrap();
        assert_eq!(
            fill,
            r#"{"role":"tool","tool_call_id":"b","content":"[no result was recorded for this call]"}"#
        );
        assert!(placement.tail.group_is_complete());
        assert_eq!(
            placed(&[USER, CALLS, USER, RESULT_B]).unwrap_err().1,
            PairingFault::Interrupted {
                call: "b".into(),
                by: "m2".into()
            }
        );
    }

    #[test]
    fn refuses_results_that_answer_nothing() {
        let fault = |texts: &[&str]| placed(texts).unwrap_err();
        assert!(matches!(
            fault(&[USER, RESULT_A]),
            (1, PairingFault::NoSuchCall { .. })
        ));
        assert!(matches!(
            fault(&[USER, CALLS, RESULT_A, RESULT_A]),
            (3, PairingFault::AlreadyAnswered { .. })
        ));
    }

    #[test]
    fn the_end_is_rebuilt_from_the_newest_messages() {
        let histories: [&[&str]; 5] = [
            &[USER],
            &[USER, CALLS, RESULT_B],
            &[USER, CALLS, RESULT_B, SYSTEM, RESULT_A],
            &[USER, CALLS, RESULT_A, RESULT_B, ANSWER],
            &[USER, CALLS],
        ];
        for texts in histories {
            let placement = placed(texts).unwrap();
            let positioned = placement
                .rows
                .iter()
                .rev()
                .filter(|row| row.position.is_some());
            let mut end = Vec::new();
            for row in positioned {
                end.push(End {
                    seq: row.seq,
                    role: row.message.role,
                    call_index: row.call_index,
                    calls: row.message.calls.clone(),
                    is_part_of_answer: false,
                    says_something: row.message.says_something,
                });
                if row.message.role != Role::Tool {
                    break;
                }
            }
            let tail = rebuild_tail(&end);
            assert_eq!(tail.last, placement.tail.last, "{texts:?}");
            assert_eq!(tail.answered, placement.tail.answered, "{texts:?}");
            assert_eq!(
                tail.open_calls().collect::<Vec<_>>(),
                placement.tail.open_calls().collect::<Vec<_>>(),
                "{texts:?}"
            );
        }
    }

    #[test]
    fn a_turn_is_open_until_the_model_says_something() {
        let open = |texts: &[&str]| placed(texts).unwrap().tail.turn_is_open();
        assert!(!open(&[]));
        assert!(open(&[USER]));
        assert!(open(&[USER, CALLS, RESULT_A, RESULT_B]));
        assert!(open(&[USER, r#"{"role":"assistant","content":null}"#]));
        assert!(!open(&[USER, ANSWER]));
        assert!(!open(&[USER, ANSWER, SYSTEM]));
    }
}
