//! Leases: who works on a session. Rows, so that they hold between replicas and end with a crash.
//!
//! A row of its own rather than columns of the session: a renewal must not wait for an append.
//!
//! The token is the id of the run. A run that was told of (`announced`) has exactly one end that is told
//! of as well, and whoever deletes its lease tells of it: the run itself when it commits or gives up, or
//! else, once the lease has run out, the next to take it or the sweep.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::events::emit;
use super::sessions::{WriteRefusal, lock, lock_open};
use super::tenants::lock_tenant;
use super::{
    Conn, Database, Result, SessionKey, StorageError, TenantId, Timestamp, Write, on_both, reading,
};
use crate::domain::event::{Cancelled, CompactionEnd, CompactionRun, Event};

/// The lease of compactions.
pub(super) const COMPACTION: &str = "compaction";

/// Takes the compaction lease of an open session.
#[derive(Debug, Clone)]
pub struct AcquireLease {
    /// Which session.
    pub key: SessionKey,
    /// Names this holder: the id of the run.
    pub token: Uuid,
    /// The present.
    pub now: Timestamp,
    /// Until when it holds unless it is renewed.
    pub expires_at: Timestamp,
    /// How many sessions of the tenant may be compacted at once; `None`: any number.
    pub most: Option<i64>,
}

/// Whether the lease was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// It was.
    Yes,
    /// Another holds it until then.
    HeldUntil(Timestamp),
    /// As many sessions of the tenant as may be are being compacted.
    Full,
}

impl Write for AcquireLease {
    type Output = Result<Acquired, WriteRefusal>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            // The tenant's row if it counts, then the session's, as in every write: one order of locks, no deadlock.
            lock_tenant(conn, self.key.tenant, self.most).await?;
            if let Err(refusal) = lock_open(conn, self.key).await? {
                return Ok(Err(refusal));
            }
            // Whoever died with the lease is told of before the next begins.
            end_expired(conn, self.key, self.now).await?;
            if self.is_full(conn).await? {
                return Ok(Ok(Acquired::Full));
            }
            let taken = on_both!(conn, c => sqlx::query(
                "INSERT INTO leases (tenant_id, session_id, kind, token, expires_at) \
                 VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(COMPACTION)
            .bind(self.token)
            .bind(self.expires_at)
            .execute(c)
            .await
            .map(|done| done.rows_affected()))?;
            if taken == 1 {
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

impl AcquireLease {
    /// Whether other sessions of the tenant leave no room for this one, which is not being compacted yet. The tenant's
    /// row is held.
    async fn is_full(&self, conn: &mut Conn<'_>) -> Result<bool> {
        let Some(most) = self.most else {
            return Ok(false);
        };
        let (others, own): (i64, i64) = on_both!(conn, c => sqlx::query_as(
            "SELECT COUNT(CASE WHEN session_id = $2 THEN NULL ELSE 1 END), \
             COUNT(CASE WHEN session_id = $2 THEN 1 ELSE NULL END) \
             FROM leases WHERE tenant_id = $1 AND kind = $3 AND expires_at > $4"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(COMPACTION)
        .bind(self.now)
        .fetch_one(c)
        .await)?;
        Ok(own == 0 && others >= most)
    }
}

/// Tells that a run has found something to do. From here on its end is told of too.
#[derive(Debug, Clone)]
pub struct AnnounceRun {
    /// Which session.
    pub key: SessionKey,
    /// The holder.
    pub token: Uuid,
    /// What it sets out to do.
    pub run: CompactionRun,
    /// When.
    pub now: Timestamp,
}

/// Whether a run was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// It was.
    Yes,
    /// It does not hold the lease any more.
    LeaseLost,
}

impl Write for AnnounceRun {
    type Output = Result<Announced, WriteRefusal>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            if let Err(refusal) = lock_open(conn, self.key).await? {
                return Ok(Err(refusal));
            }
            let text = serde_json::to_string(&self.run)
                .map_err(|_| StorageError::Corrupt("leases.announced"))?;
            let held = on_both!(conn, c => sqlx::query(
                "UPDATE leases SET announced = $5 \
                 WHERE tenant_id = $1 AND session_id = $2 AND kind = $3 AND token = $4"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(COMPACTION)
            .bind(self.token)
            .bind(&text)
            .execute(c)
            .await
            .map(|done| done.rows_affected()))?;
            if held == 0 {
                return Ok(Ok(Announced::LeaseLost));
            }
            let event = Event::compaction_started(self.token, self.run.clone());
            emit(conn, self.key, &[event], self.now).await?;
            Ok(Ok(Announced::Yes))
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

/// Gives a lease back and tells how an announced run ended; nothing happens if it is no longer held.
#[derive(Debug, Clone)]
pub struct ReleaseLease {
    /// Which session.
    pub key: SessionKey,
    /// The holder.
    pub token: Uuid,
    /// How the run ended.
    pub end: CompactionEnd,
    /// When.
    pub now: Timestamp,
}

impl Write for ReleaseLease {
    /// Whether it was still held.
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            if lock(conn, self.key).await?.is_none() {
                return Ok(false);
            }
            let released = release(conn, self.key, self.token).await?;
            let Some(lease) = released else {
                return Ok(false);
            };
            lease.tell(conn, self.key, self.end, self.now).await?;
            Ok(true)
        })
    }
}

/// A lease that was deleted.
#[derive(sqlx::FromRow)]
pub(super) struct Lease {
    token: Uuid,
    announced: Option<String>,
}

impl Lease {
    /// What its run set out to do, if it was announced.
    pub(super) fn run(&self) -> Result<Option<CompactionRun>> {
        let read = |text: &String| serde_json::from_str(text);
        let run = self.announced.as_ref().map(read).transpose();
        run.map_err(|_| StorageError::Corrupt("leases.announced"))
    }

    async fn tell(
        &self,
        conn: &mut Conn<'_>,
        key: SessionKey,
        end: CompactionEnd,
        now: Timestamp,
    ) -> Result<()> {
        match self.run()? {
            Some(run) => {
                let event = Event::compaction_ended(self.token, run, end);
                emit(conn, key, &[event], now).await
            }
            None => Ok(()),
        }
    }
}

/// Gives a lease back; gives what it was if it was held.
pub(super) async fn release(
    conn: &mut Conn<'_>,
    key: SessionKey,
    token: Uuid,
) -> Result<Option<Lease>> {
    Ok(on_both!(conn, c => sqlx::query_as(
        "DELETE FROM leases WHERE tenant_id = $1 AND session_id = $2 AND kind = $3 AND token = $4 \
         RETURNING token, announced"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(COMPACTION)
    .bind(token)
    .fetch_optional(c)
    .await)?)
}

/// Deletes a lease that has run out, and tells of the end of its run. The session's row is held.
async fn end_expired(conn: &mut Conn<'_>, key: SessionKey, now: Timestamp) -> Result<bool> {
    let lease: Option<Lease> = on_both!(conn, c => sqlx::query_as(
        "DELETE FROM leases WHERE tenant_id = $1 AND session_id = $2 AND kind = $3 \
         AND expires_at <= $4 RETURNING token, announced"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(COMPACTION)
    .bind(now)
    .fetch_optional(c)
    .await)?;
    let Some(lease) = lease else {
        return Ok(false);
    };
    let end = CompactionEnd::Cancelled(Cancelled::LeaseExpired);
    lease.tell(conn, key, end, now).await?;
    Ok(true)
}

/// Ends the lease of a session if it has run out; gives whether it had.
#[derive(Debug, Clone)]
pub struct EndExpired {
    /// Which session.
    pub key: SessionKey,
    /// The present.
    pub now: Timestamp,
}

impl Write for EndExpired {
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            if lock(conn, self.key).await?.is_none() {
                return Ok(false);
            }
            end_expired(conn, self.key, self.now).await
        })
    }
}

impl Database {
    /// Sessions whose compaction lease has run out, the oldest first, `limit` at most. All tenants: it is
    /// for the replica itself.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_expired_leases(&self, now: Timestamp, limit: i64) -> Result<Vec<SessionKey>> {
        let found: Vec<(i64, Uuid)> = reading!(self, pool => sqlx::query_as(
            "SELECT tenant_id, session_id FROM leases WHERE expires_at <= $1 AND kind = $2 \
             ORDER BY expires_at LIMIT $3"
        )
        .bind(now)
        .bind(COMPACTION)
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
