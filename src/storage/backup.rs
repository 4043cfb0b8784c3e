//! A copy of the SQLite database while it is in use.
//!
//! `VACUUM INTO` reads one snapshot, which in WAL mode keeps no writer waiting, and writes a file that is whole by
//! itself. It is written under another name, checked, synced, and only then gets the name it was asked for.

use std::path::{Path, PathBuf};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::connect::newest_migration;
use super::{StorageError, Url};
use crate::new_file::{NewFile, NewFileError};

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The database is none that is copied this way.
    #[error("this is for SQLite; a PostgreSQL database is backed up with its own tools")]
    NotSqlite,
    /// There is nothing to copy.
    #[error("there is no database file {0}")]
    NoDatabase(PathBuf),
    /// The copy cannot be written where it should be.
    #[error(transparent)]
    File(#[from] NewFileError),
    /// Its name is not one that SQLite takes.
    #[error("the name {0} is not UTF-8")]
    Name(PathBuf),
    /// The database cannot be copied.
    #[error("the database cannot be copied")]
    Copy(#[source] StorageError),
    /// The copy is not what it should be.
    #[error("the copy was checked and is not sound: {0}")]
    Unsound(String),
}

/// What was written.
#[derive(Debug, Clone)]
pub struct Backup {
    /// Bytes of the file.
    pub bytes: u64,
    /// The newest migration in it.
    pub schema: i64,
}

/// Copies the database into a new file, which is made for its owner alone.
///
/// # Errors
/// Nothing is left at `target` then.
pub async fn back_up(url: &Url, target: &Path) -> Result<Backup, BackupError> {
    let Url::Sqlite(source) = url else {
        return Err(BackupError::NotSqlite);
    };
    if !source.is_file() {
        return Err(BackupError::NoDatabase(source.clone()));
    }
    let file = NewFile::make(target)?;
    copy(source, file.path()).await?;
    let schema = check(file.path()).await?;
    let bytes = file.publish()?;
    Ok(Backup { bytes, schema })
}

async fn copy(source: &Path, partial: &Path) -> Result<(), BackupError> {
    let copying = |error: sqlx::Error| BackupError::Copy(error.into());
    let mut conn = SqliteConnectOptions::new()
        .filename(source)
        .create_if_missing(false)
        .disable_statement_logging()
        .connect()
        .await
        .map_err(copying)?;
    let Some(name) = partial.to_str() else {
        return Err(BackupError::Name(partial.to_owned()));
    };
    let copied = sqlx::query("VACUUM INTO $1")
        .bind(name)
        .execute(&mut conn)
        .await;
    drop(conn.close().await);
    copied.map(drop).map_err(copying)
}

/// Reads the whole copy; gives its newest migration.
async fn check(partial: &Path) -> Result<i64, BackupError> {
    let copying = |error: sqlx::Error| BackupError::Copy(error.into());
    let mut conn = SqliteConnectOptions::new()
        .filename(partial)
        .create_if_missing(false)
        .disable_statement_logging()
        .connect()
        .await
        .map_err(copying)?;
    let outcome = check_open(&mut conn).await;
    conn.close().await.map_err(copying)?;
    outcome
}

async fn check_open(conn: &mut SqliteConnection) -> Result<i64, BackupError> {
    let copying = |error: sqlx::Error| BackupError::Copy(error.into());
    let found: String = sqlx::query_scalar("PRAGMA integrity_check(1)")
        .fetch_one(&mut *conn)
        .await
        .map_err(copying)?;
    if found != "ok" {
        return Err(BackupError::Unsound(found));
    }
    let schema: Option<i64> =
        sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations WHERE success")
            .fetch_one(conn)
            .await
            .map_err(copying)?;
    let schema =
        schema.ok_or_else(|| BackupError::Unsound("it has no schema of Precis".to_owned()))?;
    if schema > newest_migration() {
        return Err(BackupError::Unsound(format!(
            "its schema ({schema}) is newer than this program ({})",
            newest_migration()
        )));
    }
    Ok(schema)
}
