//! Changing a session's settings.

use futures_util::future::BoxFuture;
use serde::{Deserialize, Deserializer};

use super::due::{Marking, marking};
use super::sessions::{SessionRow, WriteRefusal, columns, lock, store_labels};
use super::{Conn, Result, SessionKey, StorageError, Timestamp, Write, events, on_both, spell};
use crate::domain::event::{Change, Event};
use crate::domain::policy::{
    AutoCompactPolicy, CompactionPolicy, Part, PruningPolicy, lay_over_text,
};

/// What becomes of a text that may be absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Edit {
    /// It stays.
    #[default]
    Keep,
    /// It becomes this, or nothing.
    Set(Option<String>),
}

/// A member that is there, `null` included, is set; one that is absent is kept by its default.
impl<'de> Deserialize<'de> for Edit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Option::deserialize(deserializer).map(Self::Set)
    }
}

impl Edit {
    /// The stored text behind the edit.
    fn laid_over(&self, stored: Option<&String>) -> Option<String> {
        match self {
            Self::Keep => stored.cloned(),
            Self::Set(text) => spell(text.as_deref()),
        }
    }
}

/// What becomes of the days that a session is kept behind its last write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DaysEdit {
    /// They stay.
    #[default]
    Keep,
    /// So many, 0 for ever; `None`: what the tenant or the server says.
    Set(Option<i64>),
}

impl DaysEdit {
    fn laid_over(self, stored: Option<i64>) -> Option<i64> {
        match self {
            Self::Keep => stored,
            Self::Set(days) => days,
        }
    }
}

/// What `PATCH` changes; what is absent stays.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct SessionChange {
    pub title: Edit,
    pub model: Edit,
    /// The text and what can be filtered by.
    pub metadata: Option<(String, Vec<(String, String)>)>,
    pub compact_count: Option<i64>,
    /// Laid over what is stored, in the transaction.
    pub compaction: Option<Part>,
    pub pruning: Option<Part>,
    pub auto_compact: Option<Part>,
    pub retention_days: DaysEdit,
    /// `true` closes, `false` reopens.
    pub closed: Option<bool>,
}

impl SessionChange {
    /// Whether it may be made to a closed session.
    fn is_allowed_when_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Whether it says anew when the session is compacted, or how.
    fn settles_compactions(&self) -> bool {
        self.auto_compact.is_some()
            || self.compaction.is_some()
            || self.compact_count.is_some()
            || self.model != Edit::Keep
    }
}

fn laid<P: serde::Serialize + serde::de::DeserializeOwned>(
    stored: &str,
    part: Option<&Part>,
) -> Result<String> {
    match part {
        None => Ok(stored.to_owned()),
        Some(part) => lay_over_text::<P>(stored, part)
            .map_err(|_| StorageError::Corrupt("a policy of a session")),
    }
}

/// Changes a session's settings.
#[derive(Debug, Clone)]
pub struct ChangeSession {
    /// Which.
    pub key: SessionKey,
    /// What.
    pub change: SessionChange,
    /// When.
    pub now: Timestamp,
}

impl Write for ChangeSession {
    type Output = Result<SessionRow, WriteRefusal>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            let change = &self.change;
            let before = match lock(conn, self.key).await? {
                None => return Ok(Err(WriteRefusal::NotFound)),
                Some(session) if session.is_closed() && !change.is_allowed_when_closed() => {
                    return Ok(Err(WriteRefusal::Closed));
                }
                Some(session) => session,
            };
            if change.closed == Some(before.is_closed()) {
                return Ok(Ok(before));
            }
            if let Some((_, labels)) = &change.metadata {
                on_both!(conn, c => sqlx::query(
                    "DELETE FROM session_metadata WHERE tenant_id = $1 AND session_id = $2"
                )
                .bind(self.key.tenant.0)
                .bind(self.key.session)
                .execute(c)
                .await
                .map(drop))?;
                store_labels(conn, self.key, labels).await?;
            }
            let status = match change.closed {
                None => before.status.as_str(),
                Some(true) => "closed",
                Some(false) => "active",
            };
            let closed_at = match change.closed {
                None => before.closed_at,
                Some(true) => Some(self.now),
                Some(false) => None,
            };
            let metadata = change.metadata.as_ref().map(|(text, _)| text);
            let auto_compact =
                laid::<AutoCompactPolicy>(&before.auto_compact, change.auto_compact.as_ref())?;
            let marking = if change.settles_compactions() {
                Marking::resettled(&before, &auto_compact, self.now)?
            } else {
                Marking::default()
            };
            let after: SessionRow = on_both!(conn, c => sqlx::query_as(concat!(
                "UPDATE sessions SET title = $3, model = $4, metadata = $5, compact_count = $6, \
                 compaction = $7, pruning = $8, auto_compact = $9, status = $10, closed_at = $11, \
                 updated_at = $12, retention_days = $15, event_seq = event_seq + 1, ",
                marking!(),
                " WHERE tenant_id = $1 AND id = $2 RETURNING ",
                columns!()
            ))
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(change.title.laid_over(before.title.as_ref()))
            .bind(change.model.laid_over(before.model.as_ref()))
            .bind(metadata.unwrap_or(&before.metadata))
            .bind(change.compact_count.unwrap_or(before.compact_count))
            .bind(laid::<CompactionPolicy>(&before.compaction, change.compaction.as_ref())?)
            .bind(laid::<PruningPolicy>(&before.pruning, change.pruning.as_ref())?)
            .bind(&auto_compact)
            .bind(status)
            .bind(closed_at)
            .bind(self.now)
            .bind(marking.due_at)
            .bind(marking.afresh)
            .bind(change.retention_days.laid_over(before.retention_days))
            .fetch_one(c)
            .await)?;
            let (totals, seq) = (after.totals(), None);
            let event = match change.closed {
                Some(true) => Event::SessionClosed { totals },
                Some(false) => Event::SessionUpdated {
                    reason: Change::Reopen,
                    seq,
                    totals,
                },
                None => Event::SessionUpdated {
                    reason: Change::Patch,
                    seq,
                    totals,
                },
            };
            events::insert(conn, self.key, after.event_seq, &[event], self.now).await?;
            Ok(Ok(after))
        })
    }
}
