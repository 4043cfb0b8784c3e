//! Opening the database, its pools and its migrations.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use log::LevelFilter;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Postgres, Sqlite};
use tokio::sync::broadcast;

use super::connections::{Connections, IDLE};
use super::transactions::write_postgres;
use super::writer::SqliteWriter;
use super::{
    Conn, Heads, Result, Signal, Signals, StorageError, StorageWatch, Write, on_both, reading,
};
use tracing::Instrument;

static SQLITE_MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");
static POSTGRES_MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// At which level a statement is logged: its text, which holds no values, and how many rows it gave.
const STATEMENTS: LevelFilter = LevelFilter::Trace;

/// What the writing connection of SQLite keeps of the file, in KiB, as SQLite spells it.
const WRITER_CACHE: &str = "-16000";
/// The same of each that reads: there are several, and the system keeps what they read as well.
const READER_CACHE: &str = "-8000";

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
    /// Whether SQLite has a write on the disk when it answers.
    pub synced: bool,
}

/// The database, whichever it is. Cheap to clone.
#[derive(Clone)]
pub enum Database {
    /// One writer, several readers.
    Sqlite {
        /// Reading connections.
        readers: Connections<Sqlite>,
        /// The queue of the writer, which owns its connection.
        writer: SqliteWriter,
        /// What is remembered of sessions.
        heads: Heads,
        /// What is watched.
        watch: StorageWatch,
    },
    /// One pool.
    Postgres {
        /// Its connections.
        pool: Connections<Postgres>,
        /// Told of what is committed.
        signals: Signals,
        /// What is remembered of sessions.
        heads: Heads,
        /// What is watched.
        watch: StorageWatch,
    },
}

fn sqlite_options(path: &Path, options: &Options) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // Acknowledged means stored, also after a power loss, unless somebody wishes otherwise: each commit is synced.
        .synchronous(if options.synced {
            SqliteSynchronous::Full
        } else {
            SqliteSynchronous::Normal
        })
        .foreign_keys(true)
        .busy_timeout(options.busy_timeout)
        .pragma("secure_delete", "ON")
        .pragma("cache_size", WRITER_CACHE)
        .pragma("journal_size_limit", "67108864")
        .log_statements(STATEMENTS)
        .log_slow_statements(LevelFilter::Off, Duration::MAX)
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
                    .connect_with(
                        connect
                            .pragma("query_only", "ON")
                            .pragma("cache_size", READER_CACHE),
                    )
                    .await?;
                Ok(Self::Sqlite {
                    readers: Connections::new(readers, false),
                    writer,
                    heads: Heads::new(),
                    watch,
                })
            }
            Url::Postgres(connect) => {
                let pool = PgPoolOptions::new()
                    .max_connections(options.max_connections)
                    .acquire_timeout(options.acquire_timeout)
                    .test_before_acquire(false)
                    .before_acquire(|conn, known| {
                        Box::pin(async move {
                            // One that was just used is there; asking it would be a round trip for each request.
                            if known.idle_for >= IDLE {
                                conn.ping().await?;
                            }
                            Ok(true)
                        })
                    })
                    .connect_with(
                        (**connect)
                            .clone()
                            .log_statements(STATEMENTS)
                            .log_slow_statements(LevelFilter::Off, Duration::MAX),
                    )
                    .await?;
                let signals = Signals::new();
                Ok(Self::Postgres {
                    pool: Connections::new(pool, true),
                    signals,
                    heads: Heads::new(),
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
                bring_up(SQLITE_MIGRATIONS.run(&mut conn).await)?;
                conn.close().await?;
                (&SQLITE_MIGRATIONS, before)
            }
            Url::Postgres(connect) => {
                let mut conn = connect.connect().await?;
                let before = applied(&mut Conn::postgres(&mut conn)).await;
                bring_up(POSTGRES_MIGRATIONS.run(&mut conn).await)?;
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

    /// The number of the newest migration that was applied.
    async fn applied(&self) -> Result<Option<i64>> {
        Ok(reading!(self, conn => sqlx::query_scalar(
            "SELECT max(version) FROM _sqlx_migrations WHERE success"
        )
        .fetch_one(conn)
        .await)?)
    }

    /// Refuses a database whose schema is not the one that this program works with.
    ///
    /// # Errors
    /// It is older or newer, or gave no answer.
    pub async fn check_schema(&self) -> Result<(), MigrateError> {
        let found = match self.applied().await {
            Ok(found) => found,
            // There is no such table.
            Err(StorageError::Driver(_)) => return Err(MigrateError::Older(0)),
            Err(StorageError::Unavailable(error) | StorageError::Contended(error)) => {
                return Err(MigrateError::Connect(error));
            }
            Err(_) => return Err(MigrateError::Connect(sqlx::Error::PoolTimedOut)),
        };
        match found.unwrap_or(0) {
            older if older < newest_migration() => Err(MigrateError::Older(older)),
            newer if newer > newest_migration() => Err(MigrateError::Newer(newer)),
            _ => Ok(()),
        }
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
                    ..
                } => {
                    let (pool, signals) = (pool.clone(), signals.clone());
                    let written = write_postgres(pool, signals, watch.clone(), write);
                    // A task of its own: a client that goes away must not leave a transaction open behind it. The driver
                    // takes one whose beginning was not waited for to be none.
                    let written = tokio::spawn(written.in_current_span()).await;
                    written.unwrap_or_else(|error| {
                        Err(if error.is_panic() {
                            StorageError::Corrupt("a write panicked")
                        } else {
                            StorageError::Stopped
                        })
                    })
                }
            }
        };
        // A write may be large; one future of it is enough.
        Box::pin(written.instrument(span)).await
    }

    /// What is remembered of sessions that were written to through this handle and its clones.
    #[must_use]
    pub fn heads(&self) -> &Heads {
        match self {
            Self::Sqlite { heads, .. } | Self::Postgres { heads, .. } => heads,
        }
    }

    /// Has a listener told of what is committed through this handle and its clones from now on, by whoever commits it:
    /// it has to be quick about it.
    pub fn tell(&self, listener: impl Fn(Signal) + Send + Sync + 'static) {
        self.told().tell(Box::new(listener));
    }

    /// What is committed through this handle and its clones from now on, for a listener who is not that quick.
    #[must_use]
    pub fn signals(&self) -> broadcast::Receiver<Signal> {
        self.told().subscribe()
    }

    fn told(&self) -> &Signals {
        match self {
            Self::Sqlite { writer, .. } => writer.signals(),
            Self::Postgres { signals, .. } => signals,
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
    /// A newer program was here.
    #[error(
        "the database was brought to schema {0} by a newer Precis, and this one ({version}) knows schemas up to {known}: \
         use the newer one, or restore the backup that was made before",
        version = env!("CARGO_PKG_VERSION"),
        known = newest_migration()
    )]
    Newer(i64),
    /// It is not up to date.
    #[error(
        "the database is at schema {0}, and this program works with {known}: run `precis migrate` first",
        known = newest_migration()
    )]
    Older(i64),
    /// A migration broke off in a way that may have left it half done.
    #[error(
        "migration {0} broke off and is half done: restore the backup that was made before, or finish or undo by hand \
         what the file of that number does, delete its row from _sqlx_migrations, and run `precis migrate` again"
    )]
    HalfDone(i64),
    /// A migration that was applied is another here.
    #[error(
        "migration {0} was applied in another wording than this program has: the two are of different builds"
    )]
    Changed(i64),
    /// A migration failed and was undone.
    #[error(
        "migration {number} failed, and nothing of it is left: mend the cause and run `precis migrate` again"
    )]
    Failed {
        /// Which.
        number: i64,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
    /// Anything else.
    #[error("{0}")]
    Migrate(#[source] sqlx::migrate::MigrateError),
}

fn bring_up(outcome: Result<(), sqlx::migrate::MigrateError>) -> Result<(), MigrateError> {
    use sqlx::migrate::MigrateError as Cause;
    outcome.map_err(|error| match error {
        Cause::VersionMissing(version) if version > newest_migration() => {
            MigrateError::Newer(version)
        }
        Cause::VersionMissing(version) | Cause::VersionMismatch(version) => {
            MigrateError::Changed(version)
        }
        Cause::Dirty(version) => MigrateError::HalfDone(version),
        Cause::ExecuteMigration(source, number) => MigrateError::Failed { number, source },
        other => MigrateError::Migrate(other),
    })
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
            _ => Self::Corrupt("the schema is not up to date"),
        }
    }
}
