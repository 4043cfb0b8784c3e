//! Writing a session row by row. It stays hidden until all of it is there, so that an import is all or nothing.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::AssertSqlSafe;

use super::{SESSIONS, Table, Value};
use crate::storage::sessions::store_labels;
use crate::storage::{
    CHUNKS, Conn, Result, SessionKey, StorageError, TenantId, Timestamp, Write, insert_text,
    on_both,
};

/// How long an import may pause before its session counts as left behind, and is deleted.
const PATIENCE: Duration = Duration::from_mins(10);

/// Binds the values of rows, in order.
macro_rules! bind_all {
    ($query:expr, $values:expr) => {{
        let mut query = $query;
        for value in $values {
            query = match value {
                Value::Int(value) => query.bind(*value),
                Value::Bool(value) => query.bind(*value),
                Value::Text(value) => query.bind(value.as_deref()),
                Value::Bytes(value) => query.bind(value.as_deref()),
                Value::Id(value) => query.bind(*value),
                Value::Time(value) => query.bind(*value),
            };
        }
        query
    }};
}

/// Begins to import a session: its row, hidden.
#[derive(Debug, Clone)]
pub struct BeginImport {
    /// Which; the id is to be free.
    pub key: SessionKey,
    /// Its row, by [`SESSIONS`].
    pub row: Vec<Value>,
    /// What it can be filtered by.
    pub labels: Vec<(String, String)>,
    /// When.
    pub now: Timestamp,
}

/// Whether an import was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportBegun {
    /// It was.
    Yes,
    /// There is such a session.
    Exists,
    /// There is one that nobody sees: it is being imported or deleted.
    Hidden,
}

impl Write for BeginImport {
    type Output = ImportBegun;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<ImportBegun>> {
        Box::pin(async move {
            let found: Option<bool> = on_both!(conn, c => sqlx::query_scalar(
                "SELECT deleted_at IS NOT NULL FROM sessions WHERE id = $2 AND tenant_id = $1"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .fetch_optional(c)
            .await)?;
            match found {
                Some(false) => return Ok(ImportBegun::Exists),
                Some(true) => return Ok(ImportBegun::Hidden),
                None => {}
            }
            let head = format!(
                "INSERT INTO sessions (tenant_id, id, deleted_at, {}) VALUES ",
                SESSIONS.column_list()
            );
            let text = insert_text(&head, 3, SESSIONS.columns.len(), 1);
            let until = self.now.plus(PATIENCE);
            let text = text.of(conn).clone();
            on_both!(conn, c => bind_all!(sqlx::query(AssertSqlSafe(text)), &self.row)
                .bind(self.key.tenant.0)
                .bind(self.key.session)
                .bind(until)
                .execute(c)
                .await
                .map(drop))?;
            store_labels(conn, self.key, &self.labels).await?;
            Ok(ImportBegun::Yes)
        })
    }
}

/// Stores rows of a session that is being imported.
#[derive(Debug, Clone)]
pub struct ImportRows {
    /// Which.
    pub key: SessionKey,
    /// Rows of one table.
    pub table: &'static Table,
    /// In its order.
    pub rows: Vec<Vec<Value>>,
    /// When.
    pub now: Timestamp,
}

impl Write for ImportRows {
    /// Whether the session is still being imported.
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            if !hold(conn, self.key, self.now).await? {
                return Ok(false);
            }
            let mut rest = self.rows.as_slice();
            while let Some(size) = CHUNKS.into_iter().find(|size| *size <= rest.len()) {
                let (chunk, behind) = rest
                    .split_at_checked(size)
                    .ok_or(StorageError::Corrupt("rows of an import"))?;
                self.insert(conn, chunk).await?;
                rest = behind;
            }
            Ok(true)
        })
    }
}

impl ImportRows {
    async fn insert(&self, conn: &mut Conn<'_>, rows: &[Vec<Value>]) -> Result<()> {
        let head = format!(
            "INSERT INTO {} (tenant_id, session_id, {}) VALUES ",
            self.table.name,
            self.table.column_list()
        );
        let text = insert_text(&head, 2, self.table.columns.len(), rows.len());
        let text = text.of(conn).clone();
        on_both!(conn, c => bind_all!(sqlx::query(AssertSqlSafe(text)), rows.iter().flatten())
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .execute(c)
            .await
            .map(drop))?;
        Ok(())
    }
}

/// Locks the row of a session that is being imported, and keeps it from being deleted meanwhile.
async fn hold(conn: &mut Conn<'_>, key: SessionKey, now: Timestamp) -> Result<bool> {
    let held = on_both!(conn, c => sqlx::query(
        "UPDATE sessions SET deleted_at = $4 WHERE tenant_id = $1 AND id = $2 AND deleted_at > $3"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(now)
    .bind(now.plus(PATIENCE))
    .execute(c)
    .await
    .map(|done| done.rows_affected()))?;
    Ok(held == 1)
}

/// Ends an import: the session is there for everybody, or is left to be deleted.
#[derive(Debug, Clone)]
pub struct FinishImport {
    /// Which.
    pub key: SessionKey,
    /// It is whole.
    pub whole: bool,
    /// When.
    pub now: Timestamp,
}

impl Write for FinishImport {
    /// Whether the session was still being imported.
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            let deleted_at = (!self.whole).then_some(self.now);
            let held = on_both!(conn, c => sqlx::query(
                "UPDATE sessions SET deleted_at = $4 WHERE tenant_id = $1 AND id = $2 AND deleted_at > $3"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(self.now)
            .bind(deleted_at)
            .execute(c)
            .await
            .map(|done| done.rows_affected()))?;
            Ok(held == 1)
        })
    }
}

/// Stores an agent unless there is one of its name.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct ImportAgent {
    pub tenant: TenantId,
    pub name: String,
    pub document: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Write for ImportAgent {
    /// The document that is stored under the name then.
    type Output = String;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<String>> {
        Box::pin(async move {
            on_both!(conn, c => sqlx::query(
                "INSERT INTO agents (tenant_id, name, document, created_at, updated_at) \
                 VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"
            )
            .bind(self.tenant.0)
            .bind(&self.name)
            .bind(&self.document)
            .bind(self.created_at)
            .bind(self.updated_at)
            .execute(c)
            .await
            .map(drop))?;
            Ok(on_both!(conn, c => sqlx::query_scalar(
                "SELECT document FROM agents WHERE tenant_id = $1 AND name = $2"
            )
            .bind(self.tenant.0)
            .bind(&self.name)
            .fetch_one(c)
            .await)?)
        })
    }
}
