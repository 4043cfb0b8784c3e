//! Which messages the next compaction folds in: the plan of the contract, as a pure function.
//!
//! The plan never sees a history. It sees [`Landmarks`]: a handful of places that are found by
//! indexed look-ups, whatever the length of the history. [`Landmarks::of`] finds the same places in
//! a list of marks; it is what tests hold the look-ups of the storage against.

use serde::{Deserialize, Serialize};

/// Where a batch may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Boundary {
    /// Before a turn.
    #[default]
    Turn,
    /// Before a group: an assistant message with calls and its results, or any other message.
    Step,
}

impl Boundary {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Step => "step",
        }
    }

    /// The boundary of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Turn, Self::Step]
            .into_iter()
            .find(|boundary| boundary.as_str() == name)
    }
}

/// What a compaction is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanRequest {
    /// Whole percentage of the tail and the summary to fold in, 1 to 99.
    pub compact_count: i64,
    /// Newest turns that stay verbatim.
    pub keep_recent_turns: i64,
    /// Where the batch may end.
    pub boundary: Boundary,
}

/// A place between two messages: everything before it may be folded in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Position of the first message behind the cut; the number of positions at the end.
    pub position: i64,
    /// `seq` of the last message before the cut that has a position; 0 at the front.
    pub last_seq: i64,
    /// UTF-16 units before the cut, from the front of the history.
    pub length: i64,
    /// Estimated tokens before the cut.
    pub tokens: i64,
    /// Body bytes before the cut.
    pub bytes: i64,
}

/// Cuts of one kind around the greedy point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Candidates {
    /// The smallest at or behind the greedy point (none without a greedy point).
    pub after: Option<Cut>,
    /// The largest that leaves the protected turns alone.
    pub before: Option<Cut>,
}

/// What the plan needs to know of a history. Every cut lies behind the pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landmarks {
    /// The pointer: `compact_size`.
    pub from: i64,
    /// The end of the history.
    pub end: Cut,
    /// First position of the protected turns; the end if none are; at most `from` if all of the tail is.
    pub protected_from: i64,
    /// The end may be a cut: nothing is protected and the newest turn (with `step`: group) is whole.
    pub end_is_allowed: bool,
    /// The newest turn still lacks an answer.
    pub turn_is_open: bool,
    /// Turn or group starts, as the boundary asks.
    pub regular: Candidates,
    /// Assistant messages before which the batch holds at least one whole assistant group.
    pub steps: Candidates,
}

/// Why there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No message stands behind the pointer.
    UpToDate,
    /// All that is left is a turn that still lacks its answer.
    OpenTurn,
    /// All that is left is kept by `keepRecentTurns`.
    Protected,
    /// The batch has no text to summarise.
    Empty,
    /// The tail fits the budget already.
    WithinBudget,
}

impl Reason {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UpToDate => "up_to_date",
            Self::OpenTurn => "open_turn",
            Self::Protected => "protected",
            Self::Empty => "empty",
            Self::WithinBudget => "within_budget",
        }
    }
}

/// How much text the batch should hold: `floor((summary + tail) × percentage / 100)`, in UTF-16 units.
#[must_use]
pub fn plan_target(summary_length: i64, tail_length: i64, compact_count: i64) -> i64 {
    // 128 bits, so that no product of real sizes overflows.
    let target = (i128::from(summary_length) + i128::from(tail_length)) * i128::from(compact_count);
    i64::try_from(target / 100).unwrap_or(i64::MAX)
}

/// The cut that a compaction makes, or why it makes none. `length_before` is the running length at the pointer.
///
/// # Errors
/// The reason why there is nothing to do.
pub fn plan_cut(
    landmarks: &Landmarks,
    keep_recent_turns: i64,
    length_before: i64,
) -> Result<Cut, Reason> {
    if landmarks.end.position <= landmarks.from {
        return Err(Reason::UpToDate);
    }
    let limit = landmarks.protected_from;
    let end = landmarks.end_is_allowed.then_some(landmarks.end);
    let regular = choose(landmarks.regular, limit, end);
    let cut = regular.or_else(|| {
        (keep_recent_turns <= 1)
            .then(|| choose(landmarks.steps, landmarks.end.position, None))
            .flatten()
    });
    match cut {
        Some(cut) if cut.length <= length_before => Err(Reason::Empty),
        Some(cut) => Ok(cut),
        None if landmarks.turn_is_open && keep_recent_turns <= 1 => Err(Reason::OpenTurn),
        None => Err(Reason::Protected),
    }
}

/// The smallest allowed cut at or behind the greedy point, else the largest before it.
fn choose(candidates: Candidates, limit: i64, end: Option<Cut>) -> Option<Cut> {
    let within = |cut: &Cut| cut.position <= limit;
    candidates
        .after
        .filter(within)
        .or(end)
        .or(candidates.before.filter(within))
}

/// One message as the plan sees it.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    /// Its `seq`.
    pub seq: i64,
    /// UTF-16 units.
    pub length: i64,
    /// Whether a turn begins here.
    pub starts_turn: bool,
    /// Whether a group begins here.
    pub starts_group: bool,
    /// Whether it is an assistant message.
    pub is_assistant: bool,
}

impl Landmarks {
    /// Finds the landmarks in the marks of a whole history (those with a position, in order).
    ///
    /// `turn_is_open` and `group_is_complete` say how the newest turn and group stand.
    #[must_use]
    pub fn of(
        marks: &[Mark],
        from: i64,
        summary_length: i64,
        request: &PlanRequest,
        turn_is_open: bool,
        group_is_complete: bool,
    ) -> Self {
        let mut cuts = Vec::with_capacity(marks.len() + 1);
        let (mut length, mut last_seq) = (0, 0);
        for (position, mark) in (0..).zip(marks) {
            cuts.push(Cut {
                position,
                last_seq,
                length,
                tokens: 0,
                bytes: 0,
            });
            length += mark.length;
            last_seq = mark.seq;
        }
        let end = Cut {
            position: i64::try_from(marks.len()).unwrap_or(i64::MAX),
            last_seq,
            length,
            tokens: 0,
            bytes: 0,
        };
        let before = cuts
            .iter()
            .find(|cut| cut.position == from)
            .map_or(end.length, |cut| cut.length);
        let target = plan_target(summary_length, end.length - before, request.compact_count);
        let reaches = |cut: &Cut| cut.position > from && cut.length - before >= target;
        let greedy = cuts
            .iter()
            .chain([&end])
            .find(|cut| reaches(cut))
            .map(|cut| cut.position);
        let starts = || cuts.iter().zip(marks);
        let keep = usize::try_from(request.keep_recent_turns).unwrap_or(usize::MAX);
        let protected_from = match keep.checked_sub(1) {
            None => end.position,
            Some(nth) => starts()
                .rev()
                .filter(|(_, mark)| mark.starts_turn)
                .nth(nth)
                .map_or(0, |(cut, _)| cut.position),
        };
        let first_assistant = starts()
            .find(|(cut, mark)| cut.position >= from && mark.is_assistant)
            .map_or(i64::MAX, |(cut, _)| cut.position);
        let around = |limit: i64, allowed: &dyn Fn(&Cut, &Mark) -> bool| Candidates {
            after: greedy.and_then(|greedy| {
                starts()
                    .find(|(cut, mark)| cut.position >= greedy && allowed(cut, mark))
                    .map(|(cut, _)| *cut)
            }),
            before: starts()
                .rev()
                .find(|(cut, mark)| {
                    cut.position > from && cut.position <= limit && allowed(cut, mark)
                })
                .map(|(cut, _)| *cut),
        };
        let step = request.boundary == Boundary::Step;
        Self {
            from,
            end,
            protected_from,
            end_is_allowed: request.keep_recent_turns == 0
                && if step {
                    group_is_complete
                } else {
                    !turn_is_open
                },
            turn_is_open,
            regular: around(protected_from, &|_, mark| {
                if step {
                    mark.starts_group
                } else {
                    mark.starts_turn
                }
            }),
            steps: around(end.position, &|cut, mark| {
                mark.is_assistant && cut.position > first_assistant
            }),
        }
    }
}

#[cfg(test)]
mod tests;
