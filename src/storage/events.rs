//! Events: stored in the transaction of the change they report, numbered by the session's row, read in
//! pages; and the signals that tell of them once they are committed.
//!
//! A [`Signal`] only wakes readers. What they are given is always read from the table, so that a signal
//! which is lost costs time, never an event.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::sessions::SessionRow;
use super::{
    Conn, Database, Result, SessionKey, StorageError, TenantId, Timestamp, Write, on_both, reading,
};
use crate::domain::event::{Change, Event, Totals};

/// What was committed to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Which session.
    pub key: SessionKey,
    /// What.
    pub news: News,
}

/// What a signal tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Events of these numbers, both included.
    Stored {
        /// The first.
        first: i64,
        /// The last.
        last: i64,
    },
    /// The session is gone.
    Deleted,
}

/// An event as it is stored.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct EventRow {
    /// Its number in the session.
    pub id: i64,
    /// Its type.
    #[sqlx(rename = "type")]
    pub kind: String,
    /// Its members, a JSON object.
    pub data: String,
    /// When it happened.
    pub created_at: Timestamp,
}

/// How far a session's events go.
#[derive(Debug, Clone, Copy, sqlx::FromRow)]
pub struct EventHead {
    /// The number of the newest; 0 before the first.
    pub newest: i64,
    /// The number of the oldest that is kept.
    pub oldest: Option<i64>,
}

/// The events of a session that are younger than some time.
#[derive(Debug, Clone, Copy, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct RecentEvents {
    pub tenant_id: i64,
    pub session_id: Uuid,
    /// The number of the oldest of them.
    pub first: i64,
    /// The number of the newest.
    pub last: i64,
}

/// Numbers events of a session, whose row it locks, and stores them. Nothing happens if the session is gone.
pub(super) async fn emit(
    conn: &mut Conn<'_>,
    key: SessionKey,
    events: &[Event],
    now: Timestamp,
) -> Result<()> {
    let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
    let last: Option<i64> = on_both!(conn, c => sqlx::query_scalar(
        "UPDATE sessions SET event_seq = event_seq + $3 WHERE tenant_id = $1 AND id = $2 \
         RETURNING event_seq"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(count)
    .fetch_optional(c)
    .await)?;
    match last {
        Some(last) => insert(conn, key, last - count + 1, events, now).await,
        None => Ok(()),
    }
}

/// Stores events whose numbers the session's row counts already. There are one or two of them.
pub(super) async fn insert(
    conn: &mut Conn<'_>,
    key: SessionKey,
    first: i64,
    events: &[Event],
    now: Timestamp,
) -> Result<()> {
    let mut last = first - 1;
    for event in events {
        last += 1;
        let data = serde_json::to_string(event).map_err(|_| StorageError::Corrupt("an event"))?;
        on_both!(conn, c => sqlx::query(
            "INSERT INTO events (tenant_id, session_id, id, type, data, created_at) \
             VALUES ($1, $2, $3, $4, $5, $6)"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(last)
        .bind(event.kind())
        .bind(data)
        .bind(now)
        .execute(c)
        .await
        .map(drop))?;
    }
    if last >= first {
        conn.signal(Signal {
            key,
            news: News::Stored { first, last },
        });
    }
    Ok(())
}

/// Tells of a change of a session that is written and whose row counts one event more than are stored.
pub(super) async fn insert_updated(
    conn: &mut Conn<'_>,
    key: SessionKey,
    row: &SessionRow,
    reason: Change,
    seq: Option<i64>,
    now: Timestamp,
) -> Result<()> {
    let event = Event::SessionUpdated {
        reason,
        seq,
        totals: row.totals(),
    };
    insert(conn, key, row.event_seq, &[event], now).await
}

impl SessionRow {
    /// The numbers that events tell.
    pub(super) fn totals(&self) -> Totals {
        Totals {
            last_seq: self.last_seq,
            message_count: self.message_count,
            history_length: self.history_length,
            compact_size: self.compact_size,
            compaction_version: self.compaction_version,
        }
    }
}

/// Deletes events that are older than some time, a bounded number at once; gives how many.
#[derive(Debug, Clone)]
pub struct DeleteOldEvents {
    /// Those that happened before this.
    pub before: Timestamp,
    /// How many at most.
    pub limit: i64,
}

impl Write for DeleteOldEvents {
    type Output = u64;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(async move {
            Ok(on_both!(conn, c => sqlx::query(
                "DELETE FROM events WHERE (tenant_id, session_id, id) IN (SELECT tenant_id, session_id, id \
                 FROM events WHERE created_at < $1 ORDER BY created_at, tenant_id, session_id, id LIMIT $2)"
            )
            .bind(self.before)
            .bind(self.limit)
            .execute(c)
            .await
            .map(|done| done.rows_affected()))?)
        })
    }
}

/// Sessions that [`Database::find_newest_events`] takes at once.
pub const MOST_SESSIONS: usize = 32;

impl Database {
    /// How far the events of a session go, if there is such a session.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_event_head(&self, key: SessionKey) -> Result<Option<EventHead>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT event_seq AS newest, (SELECT min(events.id) FROM events WHERE events.tenant_id = $1 \
             AND events.session_id = $2) AS oldest FROM sessions WHERE tenant_id = $1 AND id = $2 \
             AND deleted_at IS NULL"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .fetch_optional(pool)
        .await)?)
    }

    /// The events of a session behind one number up to another, in order, `limit` at most.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_events(
        &self,
        key: SessionKey,
        after: i64,
        up_to: i64,
        limit: i64,
    ) -> Result<Vec<EventRow>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT id, type, data, created_at FROM events WHERE tenant_id = $1 AND session_id = $2 \
             AND id > $3 AND id <= $4 ORDER BY id LIMIT $5"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(after)
        .bind(up_to)
        .bind(limit)
        .fetch_all(pool)
        .await)?)
    }

    /// The numbers of the newest events of these sessions, of which [`MOST_SESSIONS`] are looked at. Those that
    /// are gone are missing.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_newest_events(
        &self,
        tenant: TenantId,
        sessions: &[Uuid],
    ) -> Result<Vec<(Uuid, i64)>> {
        const TEXT: &str = "SELECT id, event_seq FROM sessions WHERE tenant_id = $1 AND deleted_at IS NULL AND id IN ($2, $3, $4, $5, \
             $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, \
             $26, $27, $28, $29, $30, $31, $32, $33)";
        Ok(reading!(self, pool => {
            let mut query = sqlx::query_as(TEXT).bind(tenant.0);
            for place in 0..MOST_SESSIONS {
                query = query.bind(sessions.get(place).copied());
            }
            query.fetch_all(pool).await
        })?)
    }

    /// Which sessions have events since some time, and which. All tenants: it is for the replica itself.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_recent_events(&self, since: Timestamp) -> Result<Vec<RecentEvents>> {
        Ok(reading!(self, pool => sqlx::query_as(
            // Found by age before they are grouped: SQLite would walk through all of them in the order of the groups.
            "WITH recent AS MATERIALIZED (SELECT tenant_id, session_id, id FROM events WHERE created_at >= $1) \
             SELECT tenant_id, session_id, min(id) AS first, max(id) AS last FROM recent \
             GROUP BY tenant_id, session_id"
        )
        .bind(since)
        .fetch_all(pool)
        .await)?)
    }
}
