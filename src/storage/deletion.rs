//! Deleting a session with all that belongs to it, however much that is.
//!
//! It is hidden first: one small write after which nobody finds it (`deleted_at`), so that it is gone at once and
//! as a whole. What is left of it is deleted in pieces, each a short transaction, so that no other write waits
//! long. Whoever died in between is no loss: the rest is found by its `deleted_at`, by any replica.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::events::{News, Signal};
use super::sessions::{SessionRow, lock};
use super::{Conn, Database, Result, SessionKey, TenantId, Timestamp, Write, on_both, reading};

/// Rows that one piece deletes at most.
const PIECE_ROWS: i64 = 500;
/// Bytes of bodies after which a piece ends; the first message is always taken.
const PIECE_BYTES: i64 = 4 << 20;

/// Under which conditions a session is deleted for its age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aged {
    /// Its last write was before this.
    pub before: Timestamp,
    /// Its own days, as they were read.
    pub own_days: Option<i64>,
}

/// Hides a session for good; from then on [`DeletePiece`] may take it away. Its id is not free before that.
#[derive(Debug, Clone)]
pub struct HideSession {
    /// Which.
    pub key: SessionKey,
    /// Only if it is old, and nobody works on it; without this it is hidden in any case.
    pub aged: Option<Aged>,
    /// When.
    pub now: Timestamp,
}

impl Write for HideSession {
    /// Whether it did: there was such a session, and it was as old as demanded.
    type Output = bool;

    fn erases(&self) -> bool {
        true
    }

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            let Some(session) = lock(conn, self.key).await? else {
                return Ok(false);
            };
            if let Some(aged) = self.aged
                && (!aged.holds(&session) || self.is_worked_on(conn, &session).await?)
            {
                return Ok(false);
            }
            // A read that has begun sees by `rewrites` that it must not go on.
            on_both!(conn, c => sqlx::query(
                "UPDATE sessions SET deleted_at = $3, due_at = NULL, turn_id = NULL, turn_until = NULL, \
                 rewrites = rewrites + 1, revision = revision + 1 WHERE tenant_id = $1 AND id = $2"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(self.now)
            .execute(c)
            .await
            .map(drop))?;
            // Whoever holds one finds no session when it is done.
            delete_all(
                conn,
                self.key,
                "DELETE FROM leases WHERE tenant_id = $1 AND session_id = $2",
            )
            .await?;
            conn.signal(Signal {
                key: self.key,
                news: News::Deleted,
            });
            Ok(true)
        })
    }
}

impl Aged {
    fn holds(&self, session: &SessionRow) -> bool {
        session.updated_at < self.before && session.retention_days == self.own_days
    }
}

impl HideSession {
    /// Whether a turn or a compaction runs. The session's row is held, so none can begin.
    async fn is_worked_on(&self, conn: &mut Conn<'_>, session: &SessionRow) -> Result<bool> {
        if session.turn_until.is_some_and(|until| until > self.now) {
            return Ok(true);
        }
        let leases: i64 = on_both!(conn, c => sqlx::query_scalar(
            "SELECT count(*) FROM leases WHERE tenant_id = $1 AND session_id = $2 AND expires_at > $3"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(self.now)
        .fetch_one(c)
        .await)?;
        Ok(leases > 0)
    }
}

/// Deletes a piece of a hidden session; in the end the session's row, with which goes whatever else refers to it.
#[derive(Debug, Clone)]
pub struct DeletePiece {
    /// Which.
    pub key: SessionKey,
    /// Only if it is to be deleted by now.
    pub now: Timestamp,
}

impl Write for DeletePiece {
    /// Whether there is more of it.
    type Output = bool;

    fn erases(&self) -> bool {
        true
    }

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            // The session's row first, as in every write.
            let held: Option<i64> = on_both!(conn, c => sqlx::query_scalar(
                "UPDATE sessions SET revision = revision WHERE tenant_id = $1 AND id = $2 \
                 AND deleted_at <= $3 RETURNING revision"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(self.now)
            .fetch_optional(c)
            .await)?;
            if held.is_none() {
                return Ok(false);
            }
            if self.delete_messages(conn).await? {
                return Ok(true);
            }
            for statement in LARGE_TABLES {
                if delete_some(conn, self.key, statement).await? == PIECE_ROWS.unsigned_abs() {
                    return Ok(true);
                }
            }
            delete_all(
                conn,
                self.key,
                "DELETE FROM sessions WHERE tenant_id = $1 AND id = $2",
            )
            .await?;
            Ok(false)
        })
    }
}

/// A statement that deletes some rows of a table that may have many of a session, in the order of a column.
macro_rules! some_of {
    ($table:literal, $column:literal) => {
        concat!(
            "DELETE FROM ",
            $table,
            " WHERE tenant_id = $1 AND session_id = $2 AND ",
            $column,
            " IN (SELECT ",
            $column,
            " FROM ",
            $table,
            " WHERE tenant_id = $1 AND session_id = $2 ORDER BY ",
            $column,
            " LIMIT $3)"
        )
    };
}

/// What may be many rows. Messages, which may be large as well, are deleted before.
const LARGE_TABLES: [&str; 6] = [
    "DELETE FROM elisions WHERE tenant_id = $1 AND session_id = $2 AND (version, seq) IN (SELECT version, seq \
     FROM elisions WHERE tenant_id = $1 AND session_id = $2 ORDER BY version, seq LIMIT $3)",
    some_of!("dispatches", "n"),
    some_of!("events", "id"),
    some_of!("compactions", "version"),
    some_of!("turns", "id"),
    some_of!("rewrites", "counter"),
];

impl DeletePiece {
    /// Deletes some messages with their place in the index; gives whether there are more.
    async fn delete_messages(&self, conn: &mut Conn<'_>) -> Result<bool> {
        let sizes: Vec<(i64, i64)> = on_both!(conn, c => sqlx::query_as(
            "SELECT seq, CAST(octet_length(body) AS BIGINT) FROM messages \
             WHERE tenant_id = $1 AND session_id = $2 ORDER BY seq LIMIT $3"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(PIECE_ROWS)
        .fetch_all(c)
        .await)?;
        let mut bytes = 0;
        let fitting = sizes.iter().take_while(|(_, size)| {
            let fits = bytes < PIECE_BYTES;
            bytes += size;
            fits
        });
        let Some((count, (last, _))) = fitting.enumerate().last() else {
            return Ok(false);
        };
        for statement in [
            "DELETE FROM search_rows WHERE tenant_id = $1 AND session_id = $2 AND seq <= $3",
            "DELETE FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq <= $3",
        ] {
            on_both!(conn, c => sqlx::query(statement)
                .bind(self.key.tenant.0)
                .bind(self.key.session)
                .bind(last)
                .execute(c)
                .await
                .map(drop))?;
        }
        let all = count + 1 == sizes.len();
        Ok(!all || sizes.len() >= usize::try_from(PIECE_ROWS).unwrap_or(usize::MAX))
    }
}

async fn delete_some(conn: &mut Conn<'_>, key: SessionKey, statement: &'static str) -> Result<u64> {
    Ok(on_both!(conn, c => sqlx::query(statement)
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(PIECE_ROWS)
        .execute(c)
        .await
        .map(|done| done.rows_affected()))?)
}

async fn delete_all(conn: &mut Conn<'_>, key: SessionKey, statement: &'static str) -> Result<()> {
    on_both!(conn, c => sqlx::query(statement)
        .bind(key.tenant.0)
        .bind(key.session)
        .execute(c)
        .await
        .map(drop))?;
    Ok(())
}

impl Database {
    /// Hidden sessions of which something is to be deleted by now, `limit` at most. All tenants: it is for the
    /// replica itself.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_hidden(&self, now: Timestamp, limit: i64) -> Result<Vec<SessionKey>> {
        let found: Vec<(i64, Uuid)> = reading!(self, pool => sqlx::query_as(
            "SELECT tenant_id, id FROM sessions WHERE deleted_at <= $1 ORDER BY deleted_at LIMIT $2"
        )
        .bind(now)
        .bind(limit)
        .fetch_all(pool)
        .await)?;
        let key = |(tenant, session)| SessionKey {
            tenant: TenantId(tenant),
            session,
        };
        Ok(found.into_iter().map(key).collect())
    }
}
