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
    /// Body bytes of everything that has a position.
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
        row.starts_turn = counters.positions == 0
            || row.message.role == Role::User && tail.last != Some(Role::User);
        row.starts_group = row.message.role != Role::Tool;
        counters.positions += 1;
        counters.length += signed(row.message.size.units);
        counters.tokens += tokens;
        counters.bytes += signed(row.message.body.len() as u64);
        match &row.message.answers {
            Some(call) => {
                let (at, answered) = answer(&mut tail, call).map_err(|fault| (index, fault))?;
                row.call_index = Some(signed(at as u64));
                row.tool_name.clone_from(&answered.call.name);
            }
            None => {
                row.fill = tail.interrupt(&row.id);
            }
        }
        if !row.message.calls.is_empty() {
            let waiting = |call: &Call| TailCall {
                call: call.clone(),
                answered: false,
            };
            tail.calls = row.message.calls.iter().map(waiting).collect();
            tail.interrupted_by = None;
        }
        tail.last = Some(row.message.role);
        tail.answered = row.message.says_something;
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
}

/// The end of a history, read from its newest messages (newest first, back to the first that is no
/// tool result) and the text of the newest.
#[must_use]
pub fn rebuild_tail(newest_first: &[End], newest_body: &str) -> Tail {
    let answered = |index: usize| {
        let index = i64::try_from(index).ok();
        newest_first
            .iter()
            .any(|end| index.is_some() && end.call_index == index)
    };
    let calls = newest_first.last().map(|caller| caller.calls.as_slice());
    Tail {
        last: newest_first.first().map(|end| end.role),
        calls: calls
            .into_iter()
            .flatten()
            .enumerate()
            .map(|(index, call)| TailCall {
                call: call.clone(),
                answered: answered(index),
            })
            .collect(),
        answered: Message::read(newest_body).is_ok_and(|message| message.says_something),
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
                });
                if row.message.role != Role::Tool {
                    break;
                }
            }
            let newest = placement.rows.iter().rfind(|row| row.position.is_some());
            let tail = rebuild_tail(&end, &newest.unwrap().message.body);
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
