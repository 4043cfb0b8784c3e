//! Tenants: what each may use, how much it stores, and the processes that share its rate.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::{
    Conn, Database, Result, TenantId, Timestamp, Write, on_both, one_more, reading, take_page,
};

/// What a tenant's row says of its limits. `None`: what the server's settings say; 0: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct TenantLimits {
    pub requests_per_second: Option<i64>,
    pub request_burst: Option<i64>,
    pub concurrent_compactions: Option<i64>,
    pub concurrent_turns: Option<i64>,
    pub stored_bytes: Option<i64>,
    pub retention_days: Option<i64>,
}

/// A tenant as it is stored.
#[derive(Debug, Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct TenantRow {
    pub id: i64,
    pub name: String,
    /// Unknown of the one that every database begins with.
    pub created_at: Option<Timestamp>,
    #[sqlx(flatten)]
    pub limits: TenantLimits,
}

macro_rules! limits {
    () => {
        "requests_per_second, request_burst, concurrent_compactions, concurrent_turns, stored_bytes, \
         retention_days"
    };
}

/// What is to change of a tenant's limits: the outer `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct LimitsChange {
    pub requests_per_second: Option<Option<i64>>,
    pub request_burst: Option<Option<i64>>,
    pub concurrent_compactions: Option<Option<i64>>,
    pub concurrent_turns: Option<Option<i64>>,
    pub stored_bytes: Option<Option<i64>>,
    pub retention_days: Option<Option<i64>>,
}

/// Changes a tenant's limits; gives the tenant as it stands then, if there is one.
#[derive(Debug, Clone)]
pub struct ChangeTenant {
    /// Its name.
    pub name: String,
    /// What changes.
    pub change: LimitsChange,
}

impl Write for ChangeTenant {
    type Output = Option<TenantRow>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            let change = &self.change;
            Ok(on_both!(conn, c => sqlx::query_as(concat!(
                "UPDATE tenants SET \
                 requests_per_second = (CASE WHEN $2 THEN $3 ELSE requests_per_second END), \
                 request_burst = (CASE WHEN $4 THEN $5 ELSE request_burst END), \
                 concurrent_compactions = (CASE WHEN $6 THEN $7 ELSE concurrent_compactions END), \
                 concurrent_turns = (CASE WHEN $8 THEN $9 ELSE concurrent_turns END), \
                 stored_bytes = (CASE WHEN $10 THEN $11 ELSE stored_bytes END), \
                 retention_days = (CASE WHEN $12 THEN $13 ELSE retention_days END) \
                 WHERE name = $1 RETURNING id, name, created_at, ",
                limits!()
            ))
            .bind(&self.name)
            .bind(change.requests_per_second.is_some())
            .bind(change.requests_per_second.flatten())
            .bind(change.request_burst.is_some())
            .bind(change.request_burst.flatten())
            .bind(change.concurrent_compactions.is_some())
            .bind(change.concurrent_compactions.flatten())
            .bind(change.concurrent_turns.is_some())
            .bind(change.concurrent_turns.flatten())
            .bind(change.stored_bytes.is_some())
            .bind(change.stored_bytes.flatten())
            .bind(change.retention_days.is_some())
            .bind(change.retention_days.flatten())
            .fetch_optional(c)
            .await)?)
        })
    }
}

/// Holds a tenant's row until the transaction ends, so that two that count its work do so one after the other.
/// Taken before a session's row, never behind it; not at all if there is no limit to count for.
pub(super) async fn lock_tenant(
    conn: &mut Conn<'_>,
    tenant: TenantId,
    most: Option<i64>,
) -> Result<()> {
    if most.is_none() {
        return Ok(());
    }
    on_both!(conn, c => sqlx::query("UPDATE tenants SET name = name WHERE id = $1")
        .bind(tenant.0)
        .execute(c)
        .await
        .map(drop))?;
    Ok(())
}

/// Whether the turns of a tenant that run leave no room for another. Its row is held.
pub(super) async fn turns_are_full(
    conn: &mut Conn<'_>,
    tenant: TenantId,
    most: Option<i64>,
    now: Timestamp,
) -> Result<bool> {
    let Some(most) = most else {
        return Ok(false);
    };
    let running: i64 = on_both!(conn, c => sqlx::query_scalar(
        // Those that run are few, whosever they are; SQLite would look at all sessions of the tenant.
        "WITH running AS MATERIALIZED (SELECT tenant_id FROM sessions \
         WHERE turn_until IS NOT NULL AND turn_until > $1) \
         SELECT COUNT(*) FROM running WHERE tenant_id = $2"
    )
    .bind(now)
    .bind(tenant.0)
    .fetch_one(c)
    .await)?;
    Ok(running >= most)
}

/// Says that a process serves the database; gives how many do, this one included.
#[derive(Debug, Clone)]
pub struct Beat {
    /// The process.
    pub id: Uuid,
    /// Its program's version.
    pub version: &'static str,
    /// When it began.
    pub started_at: Timestamp,
    /// The present.
    pub now: Timestamp,
    /// Whoever said nothing since then does not count.
    pub since: Timestamp,
    /// Whoever said nothing since then is forgotten.
    pub forget: Timestamp,
}

impl Write for Beat {
    type Output = i64;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<i64>> {
        Box::pin(async move {
            on_both!(conn, c => sqlx::query(
                "INSERT INTO replicas (id, version, started_at, seen_at) VALUES ($1, $2, $3, $4) \
                 ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at"
            )
            .bind(self.id)
            .bind(self.version)
            .bind(self.started_at)
            .bind(self.now)
            .execute(c)
            .await
            .map(drop))?;
            on_both!(conn, c => sqlx::query("DELETE FROM replicas WHERE seen_at < $1")
                .bind(self.forget)
                .execute(c)
                .await
                .map(drop))?;
            Ok(
                on_both!(conn, c => sqlx::query_scalar("SELECT COUNT(*) FROM replicas WHERE seen_at >= $1")
                .bind(self.since)
                .fetch_one(c)
                .await)?,
            )
        })
    }
}

/// Says that a process serves the database no longer.
#[derive(Debug, Clone)]
pub struct Leave(pub Uuid);

impl Write for Leave {
    type Output = ();

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move {
            on_both!(conn, c => sqlx::query("DELETE FROM replicas WHERE id = $1")
                .bind(self.0)
                .execute(c)
                .await
                .map(drop))?;
            Ok(())
        })
    }
}

impl Database {
    /// The limits that a tenant has of its own, if there is such a tenant.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_limits(&self, tenant: TenantId) -> Result<Option<TenantLimits>> {
        Ok(reading!(self, pool => sqlx::query_as(concat!(
            "SELECT ", limits!(), " FROM tenants WHERE id = $1"
        ))
        .bind(tenant.0)
        .fetch_optional(pool)
        .await)?)
    }

    /// A tenant by its name.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_tenant_row(&self, name: &str) -> Result<Option<TenantRow>> {
        Ok(reading!(self, pool => sqlx::query_as(concat!(
            "SELECT id, name, created_at, ", limits!(), " FROM tenants WHERE name = $1"
        ))
        .bind(name)
        .fetch_optional(pool)
        .await)?)
    }

    /// Tenants by id, those behind `after`, `limit` at most; the flag says whether more follow. `only`: that one
    /// and no other.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_tenants(
        &self,
        only: Option<TenantId>,
        after: i64,
        limit: usize,
    ) -> Result<(Vec<TenantRow>, bool)> {
        reading!(self, pool => {
            let found = sqlx::query_as(concat!(
                "SELECT id, name, created_at, ", limits!(), " FROM tenants \
                 WHERE id > $1 AND ($2 IS NULL OR id = $2) ORDER BY id LIMIT $3"
            ))
            .bind(after)
            .bind(only.map(|tenant| tenant.0))
            .bind(one_more(limit))
            .fetch(pool);
            take_page(found, limit, |row: &TenantRow| row.name.len() + 128).await
        })
    }

    /// Bytes that a tenant's sessions hold: messages, metadata, summaries in use. Read off the sessions' rows.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn sum_stored_bytes(&self, tenant: TenantId) -> Result<i64> {
        // Instructions are counted in tokens only, of which one is about four bytes.
        Ok(reading!(self, pool => sqlx::query_scalar(
            "SELECT CAST(coalesce(sum(history_bytes + 4 * instruction_tokens + octet_length(metadata) \
             + coalesce(octet_length(compact_summary), 0)), 0) AS BIGINT) FROM sessions WHERE tenant_id = $1"
        )
        .bind(tenant.0)
        .fetch_one(pool)
        .await)?)
    }

    /// Whether any tenant has a rate of its own.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn has_rates(&self) -> Result<bool> {
        let found: Option<i64> = reading!(self, pool => sqlx::query_scalar(
            "SELECT id FROM tenants WHERE requests_per_second > 0 LIMIT 1"
        )
        .fetch_optional(pool)
        .await)?;
        Ok(found.is_some())
    }
}
