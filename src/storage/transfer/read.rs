//! Reading a session row by row, all of one moment.

use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Postgres, Row, Sqlite};
use uuid::Uuid;

use super::{Column, Kind, SESSIONS, Table, Value};
use crate::storage::connections::InUse;
use crate::storage::{Database, Result, SessionKey, StorageError, TenantId, Timestamp, reading};

/// A connection that sees the database as it was at one moment, for a program that reads to the end. While it lives,
/// no other reader has the connection.
pub enum Snapshot {
    /// In WAL mode a read transaction keeps no writer waiting.
    Sqlite(InUse<Sqlite>),
    /// `REPEATABLE READ`.
    Postgres(InUse<Postgres>),
}

/// Takes the rows of a table, one after the other.
pub type Sink<'s, E> = &'s mut (dyn FnMut(Vec<Value>) -> Result<(), E> + Send);

impl Database {
    /// Begins to read at one moment.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        match self {
            Self::Sqlite { readers, watch, .. } => {
                let mut conn = watch.acquire(readers).await?;
                conn.close_when_dropped();
                // The first read fixes the moment.
                sqlx::raw_sql("BEGIN; SELECT count(*) FROM tenants")
                    .execute(&mut *conn)
                    .await?;
                Ok(Snapshot::Sqlite(conn))
            }
            Self::Postgres { pool, watch, .. } => {
                let mut conn = watch.acquire(pool).await?;
                conn.close_when_dropped();
                sqlx::raw_sql("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    .execute(&mut *conn)
                    .await?;
                Ok(Snapshot::Postgres(conn))
            }
        }
    }

    /// Sessions of a tenant behind one, oldest first.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_session_ids(
        &self,
        tenant: TenantId,
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<Uuid>> {
        Ok(reading!(self, pool => sqlx::query_scalar(
            "SELECT id FROM sessions WHERE tenant_id = $1 AND id > $2 AND deleted_at IS NULL ORDER BY id LIMIT $3"
        )
        .bind(tenant.0)
        .bind(after)
        .bind(limit)
        .fetch_all(pool)
        .await)?)
    }
}

impl Snapshot {
    /// The session's own row, if there is such a session.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_session(&mut self, key: SessionKey) -> Result<Option<Vec<Value>>> {
        let text = format!(
            "SELECT {} FROM sessions WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL",
            SESSIONS.column_list()
        );
        let mut found = None;
        let sink = &mut |row| {
            found = Some(row);
            Ok::<_, StorageError>(())
        };
        self.stream(&SESSIONS, text, key, sink).await?;
        Ok(found)
    }

    /// Gives the rows of a table that belong to a session, in order. Holds one at a time.
    ///
    /// # Errors
    /// The database gave no answer, or the sink failed.
    pub async fn rows<E: From<StorageError>>(
        &mut self,
        table: &'static Table,
        key: SessionKey,
        sink: Sink<'_, E>,
    ) -> Result<(), E> {
        let text = format!(
            "SELECT {} FROM {} WHERE tenant_id = $1 AND session_id = $2 ORDER BY {}",
            table.column_list(),
            table.name,
            table.order.join(", ")
        );
        self.stream(table, text, key, sink).await
    }

    fn stream<'a, E: From<StorageError>>(
        &'a mut self,
        table: &'static Table,
        text: String,
        key: SessionKey,
        sink: Sink<'a, E>,
    ) -> BoxFuture<'a, Result<(), E>> {
        Box::pin(async move {
            match self {
                Self::Sqlite(conn) => {
                    let mut rows = sqlx::query(AssertSqlSafe(text))
                        .bind(key.tenant.0)
                        .bind(key.session)
                        .fetch(&mut **conn);
                    while let Some(row) = rows.try_next().await.map_err(StorageError::from)? {
                        sink(of_sqlite(table, &row)?)?;
                    }
                }
                Self::Postgres(conn) => {
                    let mut rows = sqlx::query(AssertSqlSafe(text))
                        .bind(key.tenant.0)
                        .bind(key.session)
                        .fetch(&mut **conn);
                    while let Some(row) = rows.try_next().await.map_err(StorageError::from)? {
                        sink(of_postgres(table, &row)?)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Gives the connection back.
    ///
    /// # Errors
    /// The database gave no answer; the connection is closed then.
    pub async fn end(self) -> Result<()> {
        match self {
            Self::Sqlite(mut conn) => sqlx::raw_sql("ROLLBACK")
                .execute(&mut *conn)
                .await
                .map(drop)?,
            Self::Postgres(mut conn) => sqlx::raw_sql("ROLLBACK")
                .execute(&mut *conn)
                .await
                .map(drop)?,
        }
        Ok(())
    }
}

/// A row's values by the table's list, natively typed.
macro_rules! values {
    ($table:expr, $row:expr) => {{
        let read = |(at, column): (usize, &Column)| {
            Ok(match column.kind {
                Kind::Int => Value::Int($row.try_get::<Option<i64>, _>(at)?),
                Kind::Bool => Value::Bool($row.try_get::<Option<bool>, _>(at)?),
                Kind::Text => Value::Text($row.try_get::<Option<String>, _>(at)?),
                Kind::Bytes => Value::Bytes($row.try_get::<Option<Vec<u8>>, _>(at)?),
                Kind::Id => Value::Id($row.try_get::<Option<Uuid>, _>(at)?),
                Kind::Time => Value::Time($row.try_get::<Option<Timestamp>, _>(at)?),
            })
        };
        $table
            .columns
            .iter()
            .enumerate()
            .map(read)
            .collect::<Result<Vec<_>>>()
    }};
}

fn of_sqlite(table: &Table, row: &SqliteRow) -> Result<Vec<Value>> {
    values!(table, row)
}

fn of_postgres(table: &Table, row: &PgRow) -> Result<Vec<Value>> {
    values!(table, row)
}
