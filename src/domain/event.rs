//! Events: what is told of a change, by name and members, and the ids by which a reader goes on.
//!
//! The one place that knows every type. An event holds ids and numbers, never content: whoever wants
//! the content reads it, with the rights that this takes. How events are stored, numbered and handed
//! out is `storage`'s, `service`'s and `http`'s.

use serde::{Deserialize, Serialize, Serializer};
use uuid::Uuid;

use super::ids::{compaction_id, session_id, turn_id};

/// The type of the pieces of a message that is being written. They are never stored: only readers on
/// the replica that runs the turn are sent them.
pub const MESSAGE_DELTA: &str = "message.delta";

/// Tells a reader that events are missing and where it goes on. Never stored either.
pub const RESYNC: &str = "resync";

/// Something that happened to a session. Serialized, it is the event's members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub enum Event {
    /// A session was made.
    SessionCreated {
        /// The session that it is a copy of.
        #[serde(
            serialize_with = "optional_session",
            skip_serializing_if = "Option::is_none"
        )]
        forked_from: Option<Uuid>,
        /// How far it has come.
        #[serde(flatten)]
        totals: Totals,
    },
    /// Its settings or its history were changed, or it was opened again.
    SessionUpdated {
        /// What was done.
        reason: Change,
        /// The message that was changed, if it was one.
        #[serde(skip_serializing_if = "Option::is_none")]
        seq: Option<i64>,
        /// How far the session has come.
        #[serde(flatten)]
        totals: Totals,
    },
    /// It became read-only.
    SessionClosed {
        /// How far it has come.
        #[serde(flatten)]
        totals: Totals,
    },
    /// Messages were appended: one event an append.
    MessageAppended {
        /// `seq` of the first.
        first_seq: i64,
        /// `seq` of the last.
        last_seq: i64,
        /// How many.
        count: i64,
    },
    /// A context was handed out to be sent to a model.
    ContextDispatched {
        /// The number of the dispatch.
        n: i64,
        /// Estimated tokens before pruning.
        tokens_before: i64,
        /// Estimated tokens as it was handed out.
        tokens_after: i64,
        /// How many elisions were added to the plan.
        added: i64,
        /// The form of its messages.
        format: String,
    },
    /// A compaction found something to do and began.
    CompactionStarted {
        /// Which.
        #[serde(serialize_with = "compaction")]
        compaction_id: Uuid,
        /// `in_progress`.
        status: CompactionStatus,
        /// What it set out to do.
        #[serde(flatten)]
        run: CompactionRun,
    },
    /// A compaction was stored. One of the three ends that every started one has.
    ContextDefaultCompacted {
        /// Which.
        #[serde(serialize_with = "compaction")]
        compaction_id: Uuid,
        /// `completed`.
        status: CompactionStatus,
        /// The version that is active now.
        version: i64,
        /// What was done.
        #[serde(flatten)]
        run: CompactionRun,
        /// UTF-16 units of the new summary and what is still verbatim.
        length_after: i64,
        /// The same, in tokens.
        tokens_after: i64,
        /// Who wrote the summary.
        method: String,
        /// How long it took, in milliseconds.
        duration_ms: i64,
    },
    /// A compaction failed; the session is unchanged.
    CompactionFailed {
        /// Which.
        #[serde(serialize_with = "compaction")]
        compaction_id: Uuid,
        /// `failed`.
        status: CompactionStatus,
        /// What it had set out to do.
        #[serde(flatten)]
        run: CompactionRun,
        /// As `lengthBefore`.
        length_after: i64,
        /// As `tokensBefore`.
        tokens_after: i64,
        /// The error's code.
        code: String,
    },
    /// A compaction was given up; the session is unchanged by it.
    CompactionCancelled {
        /// Which.
        #[serde(serialize_with = "compaction")]
        compaction_id: Uuid,
        /// `cancelled`.
        status: CompactionStatus,
        /// What it had set out to do.
        #[serde(flatten)]
        run: CompactionRun,
        /// As `lengthBefore`.
        length_after: i64,
        /// As `tokensBefore`.
        tokens_after: i64,
        /// Why.
        reason: Cancelled,
    },
    /// A turn began.
    TurnStarted {
        /// Which.
        #[serde(serialize_with = "turn")]
        turn_id: Uuid,
    },
    /// A turn ended with an answer.
    TurnCompleted {
        /// Which.
        #[serde(serialize_with = "turn")]
        turn_id: Uuid,
        /// `completed` or `requires_tool_results`.
        status: String,
        /// `seq` of the answer.
        last_seq: i64,
    },
    /// A turn ended without one.
    TurnFailed {
        /// Which.
        #[serde(serialize_with = "turn")]
        turn_id: Uuid,
        /// The error's code.
        code: String,
    },
}

/// How far a session has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// The highest `seq` given out.
    pub last_seq: i64,
    /// Messages stored.
    pub message_count: i64,
    /// UTF-16 units of all messages that are no instructions.
    pub history_length: i64,
    /// How many positions the summary stands for.
    pub compact_size: i64,
    /// The active version; 0 without one.
    pub compaction_version: i64,
}

/// What changed a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Settings.
    Patch,
    /// It takes writes again.
    Reopen,
    /// All messages are forgotten.
    Reset,
    /// The newest messages are forgotten.
    Rewind,
    /// An old version of the summary is active again.
    Restore,
    /// A message was replaced.
    Edit,
    /// A message's content was taken away.
    Erase,
    /// A pointer that fitted no version was brought back.
    Heal,
}

/// How a compaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionStatus {
    /// It runs.
    InProgress,
    /// It is stored.
    Completed,
    /// It failed.
    Failed,
    /// It was given up.
    Cancelled,
}

/// Why a compaction was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cancelled {
    /// What it rested on changed: the history was rewritten, the session closed.
    Conflict,
    /// Its process died or lost its database, and its lease ran out.
    LeaseExpired,
}

/// What a compaction sets out to do. It is kept beside the lease, so that whoever finds the lease of a
/// dead process can tell of the end as the process itself would have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactionRun {
    /// What asked for it: `manual`, `auto` or `overflow`.
    pub trigger: String,
    /// The version it builds on; 0 for none.
    pub based_on: i64,
    /// The pointer before.
    pub from: i64,
    /// The pointer after.
    pub to: i64,
    /// How many positions it folds in.
    pub count: i64,
    /// UTF-16 units of the summary and what is verbatim, before.
    pub length_before: i64,
    /// The same, in tokens.
    pub tokens_before: i64,
}

/// How a compaction ended that was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactionEnd {
    /// It failed, with the code of its error.
    Failed(&'static str),
    /// It was given up.
    Cancelled(Cancelled),
}

impl Event {
    /// Its type on the wire.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::SessionCreated { .. } => "session.created",
            Self::SessionUpdated { .. } => "session.updated",
            Self::SessionClosed { .. } => "session.closed",
            Self::MessageAppended { .. } => "message.appended",
            Self::ContextDispatched { .. } => "context.dispatched",
            Self::CompactionStarted { .. } => "compaction.started",
            Self::ContextDefaultCompacted { .. } => "context.defaultCompacted",
            Self::CompactionFailed { .. } => "compaction.failed",
            Self::CompactionCancelled { .. } => "compaction.cancelled",
            Self::TurnStarted { .. } => "turn.started",
            Self::TurnCompleted { .. } => "turn.completed",
            Self::TurnFailed { .. } => "turn.failed",
        }
    }

    /// The beginning of a compaction.
    #[must_use]
    pub fn compaction_started(compaction_id: Uuid, run: CompactionRun) -> Self {
        Self::CompactionStarted {
            compaction_id,
            status: CompactionStatus::InProgress,
            run,
        }
    }

    /// The end of a compaction that was not stored: the sizes are what they were.
    #[must_use]
    pub fn compaction_ended(compaction_id: Uuid, run: CompactionRun, end: CompactionEnd) -> Self {
        let (length_after, tokens_after) = (run.length_before, run.tokens_before);
        match end {
            CompactionEnd::Failed(code) => Self::CompactionFailed {
                compaction_id,
                status: CompactionStatus::Failed,
                run,
                length_after,
                tokens_after,
                code: code.to_owned(),
            },
            CompactionEnd::Cancelled(reason) => Self::CompactionCancelled {
                compaction_id,
                status: CompactionStatus::Cancelled,
                run,
                length_after,
                tokens_after,
                reason,
            },
        }
    }
}

fn compaction<S: Serializer>(id: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&compaction_id(*id))
}

fn turn<S: Serializer>(id: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&turn_id(*id))
}

#[expect(clippy::ref_option, reason = "serde hands members over by reference")]
fn optional_session<S: Serializer>(id: &Option<Uuid>, serializer: S) -> Result<S::Ok, S::Error> {
    id.map(session_id).serialize(serializer)
}

const PREFIX: &str = "evt_";

/// The id of an event on the wire: `evt_`, the last eight hexadecimal digits of the session's id, `_`, and its
/// number in the session. The digits are there so that an id which is another session's is known as such.
#[must_use]
pub fn event_id(session: Uuid, number: i64) -> String {
    format!("{PREFIX}{}_{number}", tag(session))
}

/// The end of a session's id: its beginning is the time of its making, which sessions share.
fn tag(session: Uuid) -> String {
    let digits = session.simple().to_string();
    let skipped = digits.len() - 8;
    digits.chars().skip(skipped).collect()
}

/// Why a reader is told to read the session anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resync {
    /// The id is none.
    Malformed,
    /// It is another session's.
    OtherSession,
    /// No event of the session has had it.
    Unknown,
    /// Events behind it have been deleted.
    TooOld,
    /// The reader was away; what happened meanwhile is not replayed.
    Reconnected,
    /// The reader was too slow for what is not stored for it.
    Lagged,
}

impl Resync {
    /// Its name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::OtherSession => "other_session",
            Self::Unknown => "unknown",
            Self::TooOld => "too_old",
            Self::Reconnected => "reconnected",
            Self::Lagged => "lagged",
        }
    }
}

/// Reads where a reader of a session stands: an event's id, or its number alone.
///
/// # Errors
/// It is neither, or another session's.
pub fn parse_event_id(text: &str, session: Uuid) -> Result<i64, Resync> {
    let digits = match text.strip_prefix(PREFIX) {
        None => text,
        Some(rest) => {
            let (given, digits) = rest.split_once('_').ok_or(Resync::Malformed)?;
            let is_tag = given.len() == 8 && given.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !is_tag {
                return Err(Resync::Malformed);
            }
            if given != tag(session) {
                return Err(Resync::OtherSession);
            }
            digits
        }
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Resync::Malformed);
    }
    // More digits than a number has: no event can have it.
    digits.parse().map_err(|_| Resync::Unknown)
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the next event.
    Live,
    /// Behind this number. 0 is the beginning of what is kept.
    After(i64),
    /// It does not know where it stands.
    Lost(Resync),
}

impl Start {
    /// The number behind which it reads and, if events are missing before that, why. `newest` is the
    /// number of the session's newest event (0 before the first), `oldest` that of the oldest that is kept.
    #[must_use]
    pub fn place(self, newest: i64, oldest: Option<i64>) -> (i64, Option<Resync>) {
        let oldest = oldest.unwrap_or(newest.saturating_add(1));
        match self {
            Self::Live => (newest, None),
            Self::After(0) => (oldest - 1, None),
            Self::After(number) if number > newest => (newest, Some(Resync::Unknown)),
            Self::After(number) if number < oldest - 1 => (newest, Some(Resync::TooOld)),
            Self::After(number) => (number, None),
            Self::Lost(reason) => (newest, Some(reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SESSION: Uuid = Uuid::from_u128(0x019a_cf0b_2a7c_7d1e_9f00_aabb_ccdd_eeff);

    #[test]
    fn an_id_names_its_session() {
        let id = event_id(SESSION, 17);
        assert_eq!(id, "evt_ccddeeff_17");
        assert_eq!(parse_event_id(&id, SESSION), Ok(17));
        assert_eq!(parse_event_id("17", SESSION), Ok(17));
        assert_eq!(parse_event_id("0", SESSION), Ok(0));
        let other = Uuid::from_u128(SESSION.as_u128() + 1);
        assert_eq!(parse_event_id(&id, other), Err(Resync::OtherSession));
    }

    #[test]
    fn what_is_no_id_is_told_from_what_cannot_be_one() {
        for garbage in [
            "",
            "x",
            "-1",
            "+1",
            "1.0",
            " 1",
            "evt_",
            "evt_17",
            "evt_ccddeeff",
            "evt_ccddeeff_",
            "evt_ccddeeff_x",
            "evt_ccddeef_1",
            "evt_ccddeegg_1",
            "evt_ccddeeff_1_2",
            "\u{661}",
        ] {
            assert_eq!(
                parse_event_id(garbage, SESSION),
                Err(Resync::Malformed),
                "{garbage:?}"
            );
        }
        let long = "9".repeat(30);
        assert_eq!(parse_event_id(&long, SESSION), Err(Resync::Unknown));
    }

    #[test]
    fn a_reader_begins_behind_what_it_has_or_is_told_that_it_cannot() {
        // Events 1 to 9 were made, 4 to 9 are kept.
        for (start, placed) in [
            (Start::Live, (9, None)),
            (Start::After(0), (3, None)),
            (Start::After(2), (9, Some(Resync::TooOld))),
            (Start::After(3), (3, None)),
            (Start::After(8), (8, None)),
            (Start::After(9), (9, None)),
            (Start::After(10), (9, Some(Resync::Unknown))),
            (Start::Lost(Resync::Malformed), (9, Some(Resync::Malformed))),
        ] {
            assert_eq!(start.place(9, Some(4)), placed, "{start:?}");
        }
        // None is kept any more.
        assert_eq!(Start::After(0).place(9, None), (9, None));
        assert_eq!(Start::After(9).place(9, None), (9, None));
        assert_eq!(Start::After(8).place(9, None), (9, Some(Resync::TooOld)));
        // None was ever made.
        assert_eq!(Start::After(0).place(0, None), (0, None));
        assert_eq!(Start::After(1).place(0, None), (0, Some(Resync::Unknown)));
    }

    #[test]
    fn members_are_spelled_as_clients_read_them() {
        let run = CompactionRun {
            trigger: "manual".to_owned(),
            based_on: 0,
            from: 0,
            to: 6,
            count: 6,
            length_before: 1_000,
            tokens_before: 250,
        };
        let end = CompactionEnd::Cancelled(Cancelled::LeaseExpired);
        let event = Event::compaction_ended(SESSION, run, end);
        assert_eq!(event.kind(), "compaction.cancelled");
        assert_eq!(
            serde_json::to_value(&event).unwrap(),
            json!({
                "compactionId": "comp_019acf0b2a7c7d1e9f00aabbccddeeff", "status": "cancelled",
                "trigger": "manual", "basedOn": 0, "from": 0, "to": 6, "count": 6,
                "lengthBefore": 1000, "tokensBefore": 250, "lengthAfter": 1000, "tokensAfter": 250,
                "reason": "lease_expired",
            })
        );
        let event = Event::SessionUpdated {
            reason: Change::Erase,
            seq: Some(3),
            totals: Totals {
                last_seq: 9,
                message_count: 8,
                history_length: 70,
                compact_size: 2,
                compaction_version: 1,
            },
        };
        assert_eq!(
            serde_json::to_value(&event).unwrap(),
            json!({
                "reason": "erase", "seq": 3, "lastSeq": 9, "messageCount": 8, "historyLength": 70,
                "compactSize": 2, "compactionVersion": 1,
            })
        );
    }
}
