//! Keys, and the tenants that come with them. What is stored of a key's secret is its digest.

use futures_util::future::BoxFuture;

use super::{
    Conn, Database, Result, TenantId, Timestamp, Write, on_both, one_more, reading, take_page,
};

/// A key as it is stored.
#[derive(Debug, Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct StoredKey {
    pub tenant_id: i64,
    /// The tenant's name.
    pub tenant: String,
    pub id: String,
    pub name: String,
    pub scopes: String,
    pub digest: Vec<u8>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

macro_rules! select {
    () => {
        "SELECT tenant_id, tenants.name AS tenant, keys.id AS id, keys.name AS name, scopes, digest, \
         keys.created_at AS created_at, expires_at, revoked_at FROM keys JOIN tenants ON tenants.id = keys.tenant_id "
    };
}

/// Stores a key; its tenant too, if there is none of that name.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct CreateKey {
    /// The tenant's name.
    pub tenant: String,
    pub id: String,
    pub name: String,
    pub scopes: String,
    pub digest: [u8; 32],
    pub now: Timestamp,
    pub expires_at: Option<Timestamp>,
}

impl Write for CreateKey {
    type Output = ();

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move {
            // Two new tenants at once may want one number: the second is written again.
            on_both!(conn, c => sqlx::query(
                "INSERT INTO tenants (id, name, created_at) SELECT coalesce(max(id), 0) + 1, $1, $2 FROM tenants \
                 HAVING NOT EXISTS (SELECT 1 FROM tenants AS known WHERE known.name = $1)"
            )
            .bind(&self.tenant)
            .bind(self.now)
            .execute(c)
            .await
            .map(drop))?;
            on_both!(conn, c => sqlx::query(
                "INSERT INTO keys (tenant_id, id, name, scopes, digest, created_at, expires_at) \
                 SELECT id, $2, $3, $4, $5, $6, $7 FROM tenants WHERE name = $1"
            )
            .bind(&self.tenant)
            .bind(&self.id)
            .bind(&self.name)
            .bind(&self.scopes)
            .bind(&self.digest[..])
            .bind(self.now)
            .bind(self.expires_at)
            .execute(c)
            .await
            .map(drop))?;
            Ok(())
        })
    }
}

/// Revokes a key: from then on it opens nothing. Its row stays. Gives whether there is such a key.
#[derive(Debug, Clone)]
pub struct RevokeKey {
    /// Whose keys are looked at; `None`: everybody's.
    pub tenant: Option<TenantId>,
    /// Which.
    pub id: String,
    /// When. A key that was revoked before keeps its time.
    pub now: Timestamp,
}

impl Write for RevokeKey {
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            let found = on_both!(conn, c => sqlx::query(
                "UPDATE keys SET revoked_at = coalesce(revoked_at, $3) \
                 WHERE id = $2 AND (CAST($1 AS BIGINT) IS NULL OR tenant_id = $1)"
            )
            .bind(self.tenant.map(|tenant| tenant.0))
            .bind(&self.id)
            .bind(self.now)
            .execute(c)
            .await
            .map(|done| done.rows_affected()))?;
            Ok(found > 0)
        })
    }
}

impl Database {
    /// The key of this id, whosever it is: it is what tells the tenant.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_key(&self, id: &str) -> Result<Option<StoredKey>> {
        Ok(
            reading!(self, pool => sqlx::query_as(concat!(select!(), "WHERE keys.id = $1"))
                .bind(id)
                .fetch_optional(pool)
                .await)?,
        )
    }

    /// Whether there is a key, or ever was one.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn has_keys(&self) -> Result<bool> {
        Ok(
            reading!(self, pool => sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM keys)")
                .fetch_one(pool)
                .await)?,
        )
    }

    /// Keys of a tenant, or of all, oldest first, those behind `after`, `limit` at most; the flag says whether more
    /// follow.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_keys(
        &self,
        tenant: Option<TenantId>,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<StoredKey>, bool)> {
        reading!(self, pool => {
            let found = sqlx::query_as(concat!(
                select!(),
                "WHERE (CAST($1 AS BIGINT) IS NULL OR tenant_id = $1) AND keys.id > $2 ORDER BY keys.id LIMIT $3"
            ))
            .bind(tenant.map(|tenant| tenant.0))
            .bind(after)
            .bind(one_more(limit))
            .fetch(pool);
            take_page(found, limit, |key: &StoredKey| key.name.len()).await
        })
    }

    /// The tenant of this name, if there is one.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_tenant(&self, name: &str) -> Result<Option<TenantId>> {
        let id: Option<i64> = reading!(self, pool => sqlx::query_scalar(
            "SELECT id FROM tenants WHERE name = $1"
        )
        .bind(name)
        .fetch_optional(pool)
        .await)?;
        Ok(id.map(TenantId))
    }

    /// The name of a tenant, if there is one.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn tenant_name(&self, tenant: TenantId) -> Result<Option<String>> {
        Ok(reading!(self, pool => sqlx::query_scalar(
            "SELECT name FROM tenants WHERE id = $1"
        )
        .bind(tenant.0)
        .fetch_optional(pool)
        .await)?)
    }
}
