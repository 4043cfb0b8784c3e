//! Agents: named documents that sessions copy their settings from.

use futures_util::future::BoxFuture;

use super::{
    Conn, Database, Result, TenantId, Timestamp, Write, on_both, one_more, reading, take_page,
};

/// An agent as it is stored.
#[derive(Debug, Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct StoredAgent {
    pub name: String,
    pub document: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Creates or replaces an agent.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct PutAgent {
    pub tenant: TenantId,
    pub name: String,
    pub document: String,
    pub now: Timestamp,
}

impl Write for PutAgent {
    type Output = StoredAgent;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<StoredAgent>> {
        Box::pin(async move {
            Ok(on_both!(conn, c => sqlx::query_as(
                "INSERT INTO agents (tenant_id, name, document, created_at, updated_at) \
                 VALUES ($1, $2, $3, $4, $4) ON CONFLICT (tenant_id, name) DO UPDATE SET \
                 document = excluded.document, updated_at = excluded.updated_at \
                 RETURNING name, document, created_at, updated_at"
            )
            .bind(self.tenant.0)
            .bind(&self.name)
            .bind(&self.document)
            .bind(self.now)
            .fetch_one(c)
            .await)?)
        })
    }
}

/// Deletes an agent; gives whether there was one. Its sessions live on.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct DeleteAgent {
    pub tenant: TenantId,
    pub name: String,
}

impl Write for DeleteAgent {
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            let deleted = on_both!(conn, c => sqlx::query(
                "DELETE FROM agents WHERE tenant_id = $1 AND name = $2"
            )
            .bind(self.tenant.0)
            .bind(&self.name)
            .execute(c)
            .await
            .map(|done| done.rows_affected()))?;
            Ok(deleted > 0)
        })
    }
}

impl Database {
    /// An agent, if there is one.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_agent(&self, tenant: TenantId, name: &str) -> Result<Option<StoredAgent>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT name, document, created_at, updated_at FROM agents WHERE tenant_id = $1 AND name = $2"
        )
        .bind(tenant.0)
        .bind(name)
        .fetch_optional(pool)
        .await)?)
    }

    /// Agents by name, those behind `after`, `limit` at most; the flag says whether more follow.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_agents(
        &self,
        tenant: TenantId,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<StoredAgent>, bool)> {
        reading!(self, pool => {
            let found = sqlx::query_as(
                "SELECT name, document, created_at, updated_at FROM agents \
                 WHERE tenant_id = $1 AND name > $2 ORDER BY name LIMIT $3"
            )
            .bind(tenant.0)
            .bind(after)
            .bind(one_more(limit))
            .fetch(pool);
            take_page(found, limit, |agent: &StoredAgent| agent.document.len()).await
        })
    }
}
