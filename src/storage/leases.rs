//! Leases: who works on a session. Rows, so that they hold between replicas and end with a crash.
//!
//! A row of its own rather than columns of the session: a renewal must not wait for an append.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::sessions::{WriteRefusal, lock_open};
use super::{Conn, Result, SessionKey, Timestamp, Write, on_both};

/// The lease of compactions.
pub(super) const COMPACTION: &str = "compaction";

/// Takes the compaction lease of an open session.
#[derive(Debug, Clone)]
pub struct AcquireLease {
    /// Which session.
    pub key: SessionKey,
    /// Names this holder.
    pub token: Uuid,
    /// The present.
    pub now: Timestamp,
    /// Until when it holds unless it is renewed.
    pub expires_at: Timestamp,
}

/// Whether the lease was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// It was.
    Yes,
    /// Another holds it until then.
    HeldUntil(Timestamp),
}

impl Write for AcquireLease {
    type Output = Result<Acquired, WriteRefusal>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            // The session's row first, as in every write: one order of locks, no deadlock.
            if let Err(refusal) = lock_open(conn, self.key).await? {
                return Ok(Err(refusal));
            }
            let token: Uuid = on_both!(conn, c => sqlx::query_scalar(
                "INSERT INTO leases (tenant_id, session_id, kind, token, expires_at) \
                 VALUES ($1, $2, $3, $4, $6) ON CONFLICT (tenant_id, session_id, kind) DO UPDATE SET \
                 token = CASE WHEN leases.expires_at <= $5 THEN excluded.token ELSE leases.token END, \
                 expires_at = CASE WHEN leases.expires_at <= $5 THEN excluded.expires_at \
                 ELSE leases.expires_at END RETURNING token"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(COMPACTION)
            .bind(self.token)
            .bind(self.now)
            .bind(self.expires_at)
            .fetch_one(c)
            .await)?;
            if token == self.token {
                return Ok(Ok(Acquired::Yes));
            }
            let until = on_both!(conn, c => sqlx::query_scalar(
                "SELECT expires_at FROM leases WHERE tenant_id = $1 AND session_id = $2 AND kind = $3"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(COMPACTION)
            .fetch_one(c)
            .await)?;
            Ok(Ok(Acquired::HeldUntil(until)))
        })
    }
}

/// Prolongs a lease; gives whether it was still held.
#[derive(Debug, Clone)]
pub struct RenewLease {
    /// Which session.
    pub key: SessionKey,
    /// The holder.
    pub token: Uuid,
    /// Until when it holds now.
    pub expires_at: Timestamp,
}

impl Write for RenewLease {
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            let renewed = on_both!(conn, c => sqlx::query(
                "UPDATE leases SET expires_at = $5 \
                 WHERE tenant_id = $1 AND session_id = $2 AND kind = $3 AND token = $4"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(COMPACTION)
            .bind(self.token)
            .bind(self.expires_at)
            .execute(c)
            .await
            .map(|done| done.rows_affected()))?;
            Ok(renewed == 1)
        })
    }
}

/// Gives a lease back; nothing happens if it is no longer held.
#[derive(Debug, Clone)]
pub struct ReleaseLease {
    /// Which session.
    pub key: SessionKey,
    /// The holder.
    pub token: Uuid,
}

impl Write for ReleaseLease {
    /// Whether it was still held.
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(release(conn, self.key, self.token))
    }
}

/// Gives a lease back; says whether it was held.
pub(super) async fn release(conn: &mut Conn<'_>, key: SessionKey, token: Uuid) -> Result<bool> {
    let released = on_both!(conn, c => sqlx::query(
        "DELETE FROM leases WHERE tenant_id = $1 AND session_id = $2 AND kind = $3 AND token = $4"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(COMPACTION)
    .bind(token)
    .execute(c)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(released == 1)
}
