//! Which sessions have been kept long enough, and which processes are gone.
//!
//! Sessions are walked by id, which is the order of their making: no index knows when a session was last written
//! to, since every append would have to move it there.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::{Conn, Database, Result, TenantId, Timestamp, Write, on_both, reading};

/// A tenant, and how long it keeps sessions that say nothing of their own.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct TenantDays {
    id: i64,
    /// Its name.
    pub name: String,
    /// Days; 0 is for ever, `None` what the server says.
    pub retention_days: Option<i64>,
}

impl TenantDays {
    /// Which tenant.
    #[must_use]
    pub fn id(&self) -> TenantId {
        TenantId(self.id)
    }
}

/// A session on a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct WalkedSession {
    /// Which.
    pub id: Uuid,
    /// Its own days.
    pub retention_days: Option<i64>,
    /// Its last write.
    pub updated_at: Timestamp,
}

/// Forgets processes that have not been heard of for long.
#[derive(Debug, Clone, Copy)]
pub struct ForgetReplicas {
    /// Not since this.
    pub before: Timestamp,
}

impl Write for ForgetReplicas {
    type Output = u64;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(async move {
            Ok(
                on_both!(conn, c => sqlx::query("DELETE FROM replicas WHERE seen_at < $1")
                .bind(self.before)
                .execute(c)
                .await
                .map(|done| done.rows_affected()))?,
            )
        })
    }
}

impl Database {
    /// All tenants, in the order of their ids.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_tenant_days(&self) -> Result<Vec<TenantDays>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT id, name, retention_days FROM tenants ORDER BY id"
        )
        .fetch_all(pool)
        .await)?)
    }

    /// Sessions of a tenant without days of their own, behind one and made before another, oldest first.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn walk_sessions(
        &self,
        tenant: TenantId,
        after: Uuid,
        before: Uuid,
        limit: i64,
    ) -> Result<Vec<WalkedSession>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT id, retention_days, updated_at FROM sessions WHERE tenant_id = $1 AND id > $2 AND id < $3 \
             AND retention_days IS NULL AND deleted_at IS NULL ORDER BY id LIMIT $4"
        )
        .bind(tenant.0)
        .bind(after)
        .bind(before)
        .bind(limit)
        .fetch_all(pool)
        .await)?)
    }

    /// As [`Database::walk_sessions`], those with days of their own.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn walk_sessions_with_days(
        &self,
        tenant: TenantId,
        after: Uuid,
        before: Uuid,
        limit: i64,
    ) -> Result<Vec<WalkedSession>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT id, retention_days, updated_at FROM sessions WHERE tenant_id = $1 AND id > $2 AND id < $3 \
             AND retention_days IS NOT NULL AND deleted_at IS NULL ORDER BY id LIMIT $4"
        )
        .bind(tenant.0)
        .bind(after)
        .bind(before)
        .bind(limit)
        .fetch_all(pool)
        .await)?)
    }
}
