//! Opening the database, its pools and its migrations.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, PgPool, SqlitePool};
use tokio::sync::broadcast;

use super::writer::{SqliteWriter, write_postgres};
use super::{Conn, Result, Signal, Signals, StorageError, StorageWatch, Write, on_both};
use tracing::Instrument;

static SQLITE_MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");
static POSTGRES_MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// Which database, read from its URL.
#[derive(Clone)]
pub enum Url {
    /// A file.
    Sqlite(PathBuf),
    /// A server, with everything needed to reach it.
    Postgres(Box<PgConnectOptions>),
}

impl Url {
    /// Reads `sqlite://PATH` or `postgres://…`.
    ///
    /// # Errors
    /// What is wrong, without the URL itself (it may hold a password).
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        if let Some(path) = url.strip_prefix("sqlite://") {
            let path = path.split('?').next().unwrap_or_default();
            return match path {
                "" | ":memory:" => Err("a sqlite:// URL names a file, such as sqlite://precis.db"),
                path => Ok(Self::Sqlite(PathBuf::from(path))),
            };
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return PgConnectOptions::from_str(url)
                .map(|options| Self::Postgres(Box::new(options)))
                .map_err(
                    |_| "this is no PostgreSQL URL: postgres://USER:PASSWORD@HOST:PORT/DATABASE",
                );
        }
        Err("the database URL begins with sqlite:// or postgres://")
    }

    /// The database for a person: the file's path, or host and name of the server's database.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Sqlite(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                format!("{} (SQLite)", path.display())
            }
            Self::Postgres(options) => format!(
                "{} on {}:{} (PostgreSQL)",
                options.get_database().unwrap_or("the default database"),
                options.get_host(),
                options.get_port()
            ),
        }
    }
}

/// Sizes and patience of the pools.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// PostgreSQL connections.
    pub max_connections: u32,
    /// SQLite reading connections.
    pub readers: u32,
    /// How long to wait for a connection.
    pub acquire_timeout: Duration,
    /// How long SQLite waits for another process's lock.
    pub busy_timeout: Duration,
}

/// The database, whichever it is. Cheap to clone.
#[derive(Clone)]
pub enum Database {
    /// One writer, several readers.
    Sqlite {
        /// Reading connections.
        readers: SqlitePool,
        /// The queue of the writer, which owns its connection.
        writer: SqliteWriter,
        /// What is watched.
        watch: StorageWatch,
    },
    /// One pool.
    Postgres {
        /// Its connections.
        pool: PgPool,
        /// Told of what is committed.
        signals: Signals,
        /// What is watched.
        watch: StorageWatch,
    },
}

fn sqlite_options(path: &Path, options: &Options) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // Acknowledged means stored, also after a power loss: each commit is synced.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(options.busy_timeout)
        .pragma("secure_delete", "ON")
        .pragma("cache_size", "-16000")
        .pragma("journal_size_limit", "67108864")
        .disable_statement_logging()
}

/// Makes the file for its owner alone: it holds conversations. SQLite gives its companions the same mode.
fn create_private(path: &Path) {
    use std::os::unix::fs::OpenOptionsExt;
    let made = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    // It exists already, or cannot be made: SQLite, which opens it next, says what is wrong.
    drop(made);
}

impl Database {
    /// Opens the database; the SQLite file is made if it is missing. Runs no migration.
    ///
    /// # Errors
    /// The database cannot be reached or opened.
    pub async fn open(url: &Url, options: &Options) -> Result<Self> {
        let watch = StorageWatch::default();
        match url {
            Url::Sqlite(path) => {
                let connect = sqlite_options(path, options);
                let writer = SqliteWriter::start(connect.clone(), options.acquire_timeout, &watch);
                let readers = SqlitePoolOptions::new()
                    .max_connections(options.readers)
                    .acquire_timeout(options.acquire_timeout)
                    .test_before_acquire(false)
                    .connect_with(connect.pragma("query_only", "ON"))
                    .await?;
                Ok(Self::Sqlite {
                    readers,
                    writer,
                    watch,
                })
            }
            Url::Postgres(connect) => {
                let pool = PgPoolOptions::new()
                    .max_connections(options.max_connections)
                    .acquire_timeout(options.acquire_timeout)
                    .connect_with((**connect).clone().disable_statement_logging())
                    .await?;
                let signals = Signals::new();
                Ok(Self::Postgres {
                    pool,
                    signals,
                    watch,
                })
            }
        }
    }

    /// Brings the schema up to date and gives the names of the migrations that were applied.
    ///
    /// # Errors
    /// The database cannot be reached, or was made by a newer version.
    pub async fn migrate(url: &Url, options: &Options) -> Result<Vec<String>, MigrateError> {
        let (migrator, before) = match url {
            Url::Sqlite(path) => {
                create_private(path);
                let mut conn = sqlite_options(path, options).connect().await?;
                let before = applied(&mut Conn::sqlite(&mut conn)).await;
                SQLITE_MIGRATIONS.run(&mut conn).await?;
                conn.close().await?;
                (&SQLITE_MIGRATIONS, before)
            }
            Url::Postgres(connect) => {
                let mut conn = connect.connect().await?;
                let before = applied(&mut Conn::postgres(&mut conn)).await;
                POSTGRES_MIGRATIONS.run(&mut conn).await?;
                conn.close().await?;
                (&POSTGRES_MIGRATIONS, before)
            }
        };
        Ok(migrator
            .iter()
            .filter(|migration| !before.contains(&migration.version))
            .map(|migration| format!("{:04} {}", migration.version, migration.description))
            .collect())
    }

    /// Runs a write and answers once it is committed.
    ///
    /// # Errors
    /// Nothing was written, unless the connection broke during the commit itself.
    pub async fn write<W: Write>(&self, write: W) -> Result<W::Output> {
        let span = tracing::debug_span!("write", what = name_of::<W>());
        let written = async move {
            match self {
                Self::Sqlite { writer, .. } => writer.write(write).await,
                Self::Postgres {
                    pool,
                    signals,
                    watch,
                } => write_postgres(pool, signals, watch, write).await,
            }
        };
        // A write may be large; one future of it is enough.
        Box::pin(written.instrument(span)).await
    }

    /// What is committed through this handle and its clones from now on.
    #[must_use]
    pub fn signals(&self) -> broadcast::Receiver<Signal> {
        match self {
            Self::Sqlite { writer, .. } => writer.signals().subscribe(),
            Self::Postgres { signals, .. } => signals.subscribe(),
        }
    }

    /// Closes all connections, once those in use are given back.
    pub async fn close(&self) {
        match self {
            Self::Sqlite {
                readers, writer, ..
            } => {
                readers.close().await;
                writer.close().await;
            }
            Self::Postgres { pool, .. } => pool.close().await,
        }
    }
}

/// The name of a write, without the module that it is from.
fn name_of<W>() -> &'static str {
    let name = std::any::type_name::<W>();
    name.rsplit("::").next().unwrap_or(name)
}

/// The number of the newest migration that this program knows.
#[must_use]
pub fn newest_migration() -> i64 {
    let numbers = SQLITE_MIGRATIONS.iter().map(|migration| migration.version);
    numbers.max().unwrap_or(0)
}

/// Why the schema could not be brought up to date.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The database cannot be reached.
    #[error("the database cannot be reached")]
    Connect(#[from] sqlx::Error),
    /// A migration failed, or the database is newer than this program.
    #[error("{0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
}

async fn applied(conn: &mut Conn<'_>) -> Vec<i64> {
    // Fails before the first migration, when there is no such table: then nothing is applied.
    on_both!(conn, c => sqlx::query_scalar::<_, i64>("SELECT version FROM _sqlx_migrations WHERE success")
        .fetch_all(c)
        .await)
    .unwrap_or_default()
}

impl From<MigrateError> for StorageError {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Connect(error) => error.into(),
            MigrateError::Migrate(_) => Self::Corrupt("the schema is not up to date"),
        }
    }
}
