//! The database: one SQL text for two engines, and the way writes reach them.
//!
//! [`Database`] is an enum over the connections of the two. A statement is written once, with `$1` placeholders,
//! and [`on_both`] expands it once per engine, natively typed. Not `sqlx::Any` (it fails at run time
//! on native types), not a trait with two implementations (they drift). The few texts that do differ
//! stand behind one function each.
//!
//! All that one request writes is one [`Write`], handed over in one call; its conditions are checked
//! inside its transaction. On SQLite a single writer puts waiting writes into one transaction, so
//! that many requests share a commit; each is answered after the commit that holds it. No rule about
//! sessions lives here: a write asks `domain` what may be placed where.

mod agents;
mod backup;
mod changes;
mod compactions;
mod connect;
mod connections;
mod contexts;
mod deletion;
mod dispatches;
mod due;
mod edits;
mod elisions;
mod events;
mod forks;
mod heads;
mod items;
mod keys;
mod landmarks;
mod leases;
mod listen;
mod messages;
mod once;
mod quick;
mod retention;
mod rewrites;
mod search;
mod sessions;
mod tenants;
mod timestamp;
mod transactions;
mod transfer;
mod turns;
mod watch;
mod writer;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use sqlx::{PgConnection, SqliteConnection};
use tokio::sync::broadcast;

pub use agents::{DeleteAgent, PutAgent, StoredAgent};
pub use backup::{Backup, BackupError, back_up};
pub use changes::{ChangeSession, DaysEdit, Edit, SessionChange};
pub use compactions::{
    BatchRow, CommitCompaction, Committed, CompactionRow, NewCompaction, batch_digest_start,
};
pub use connect::{Database, MigrateError, Options, Url, newest_migration};
pub use contexts::{ContextHead, ContextStart, OpeningRow, PAGE_BYTES, TailPage, View};
pub use deletion::{Aged, DeletePiece, HideSession};
pub use dispatches::{
    CountRestore, DispatchRow, Marks, NewDispatch, Previous, RecordDispatch, Recorded, RewriteRow,
};
pub use due::{ClaimDue, LastDispatch, SettleDue, Settled};
pub use edits::{EditMessage, EditRefusal};
pub use elisions::{ElisionRow, NewElision, PlanRow, TailRow};
pub use events::{DeleteOldEvents, EventHead, EventRow, MOST_SESSIONS, News, RecentEvents, Signal};
pub use forks::Fork;
pub use heads::{Head, Heads};
pub use items::DeleteItem;
pub use keys::{CreateKey, RevokeKey, StoredKey};
pub use landmarks::Aim;
pub use leases::{
    AcquireLease, Acquired, AnnounceRun, Announced, EndExpired, ReleaseLease, RenewLease,
};
pub use listen::{ListenUrl, Listener};
pub use messages::{
    Again, AppendMessages, AppendOutcome, AppendRefusal, MessageFilter, MessageRow, NewRow,
    StoredRef,
};
pub use once::{
    BeginTurnOnce, DeleteOldAnswers, Keep, Kept, KeptState, NoWrite, Once, OnceKey, Seen,
    SettleTurn,
};
pub use quick::QuickAppend;
pub use retention::{ForgetReplicas, TenantDays, WalkedSession};
pub use rewrites::{Heal, Restore, RestoreRefusal, Rewind};
pub use search::{FoundRow, IndexChunk, IndexMessages, IndexState, Unindexed};
pub use sessions::{
    CreateSession, MOST_LABELS, NewSession, Order, ResetSession, SessionFilter, SessionRow,
    WriteRefusal,
};
pub use tenants::{Beat, ChangeTenant, Leave, LimitsChange, TenantLimits, TenantRow};
pub use timestamp::Timestamp;
pub use transfer::{
    BeginImport, Column, FinishImport, ImportAgent, ImportBegun, ImportRows, Kind, SESSIONS,
    Snapshot, TABLES, Table, Value, table_of_line,
};
pub use turns::{
    Answer, BeginTurn, Begun, CancelTurn, EndDeadTurn, EndTurn, Ended, Failure, INTERRUPTED,
    RenewTurn, TurnRefusal, TurnRow,
};
pub use watch::{PoolState, StorageWatch};

/// Why the database did not do what it was asked. The display text names no value and no statement.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// No connection, or no place in the queue, came free in time.
    #[error("the database is busy: no connection came free in time")]
    Busy,
    /// The database cannot be reached, is full, or is shutting down.
    #[error("the database is unavailable")]
    Unavailable(#[source] sqlx::Error),
    /// There is no room left for what was to be written.
    #[error("the disk of the database is full")]
    Full(#[source] sqlx::Error),
    /// A write met a concurrent one again and again.
    #[error("the write met concurrent ones in every try")]
    Contended(#[source] sqlx::Error),
    /// Two rows claim one key. Never shown: whoever can meet it asks again.
    #[error("a row with this key exists")]
    Duplicate(#[source] sqlx::Error),
    /// A stored value cannot be read back.
    #[error("a stored value is not readable: {0}")]
    Corrupt(&'static str),
    /// Anything else.
    #[error("the database refused a statement")]
    Driver(#[source] sqlx::Error),
    /// The writer stopped while the write waited.
    #[error("the writer has stopped")]
    Stopped,
}

impl StorageError {
    /// Whether asking again can help.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Busy | Self::Unavailable(_) | Self::Full(_) | Self::Contended(_) | Self::Stopped
        )
    }
}

impl From<sqlx::Error> for StorageError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::PoolTimedOut => Self::Busy,
            sqlx::Error::PoolClosed | sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => {
                Self::Unavailable(error)
            }
            sqlx::Error::Database(cause) => {
                let code = cause.code().unwrap_or_default();
                match (cause.is_unique_violation(), code.as_ref()) {
                    (true, _) => Self::Duplicate(error),
                    // PostgreSQL: serialization failure, deadlock. SQLite: busy and its kinds.
                    (_, "40001" | "40P01" | "5" | "261" | "517" | "773" | "6") => {
                        Self::Contended(error)
                    }
                    (_, "53100" | "13") => Self::Full(error),
                    // PostgreSQL: connection, resources, shutdown, no such database. SQLite: I/O, cannot open, read-only.
                    (_, "14" | "8" | "10") => Self::Unavailable(error),
                    (_, code)
                        if code.len() == 5
                            && (code.starts_with("08")
                                || code.starts_with("53")
                                || code.starts_with("57P")
                                || code == "3D000"
                                || code == "25006") =>
                    {
                        Self::Unavailable(error)
                    }
                    // Extended SQLite I/O errors are 10 in the low byte.
                    (_, code)
                        if code.len() < 5
                            && code.parse::<u32>().is_ok_and(|code| code & 0xFF == 10) =>
                    {
                        Self::Unavailable(error)
                    }
                    _ => Self::Driver(error),
                }
            }
            _ => Self::Driver(error),
        }
    }
}

/// A result of the storage.
pub type Result<T, E = StorageError> = std::result::Result<T, E>;

/// A connection of either engine.
pub enum Conn<'c> {
    /// An SQLite connection.
    Sqlite(Held<'c, SqliteConnection>),
    /// A PostgreSQL connection.
    Postgres(Held<'c, PgConnection>),
}

/// A connection in use, with what is to be told once its transaction is committed.
pub struct Held<'c, C> {
    conn: &'c mut C,
    signals: Vec<Signal>,
}

impl<'c, C> Held<'c, C> {
    fn new(conn: &'c mut C) -> Self {
        Self {
            conn,
            signals: Vec::new(),
        }
    }
}

impl<C> Deref for Held<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.conn
    }
}

impl<C> DerefMut for Held<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.conn
    }
}

impl<'c> Conn<'c> {
    fn sqlite(conn: &'c mut SqliteConnection) -> Self {
        Self::Sqlite(Held::new(conn))
    }

    fn postgres(conn: &'c mut PgConnection) -> Self {
        Self::Postgres(Held::new(conn))
    }

    /// Tells of something once it is committed.
    fn signal(&mut self, signal: Signal) {
        match self {
            Self::Sqlite(held) => held.signals.push(signal),
            Self::Postgres(held) => held.signals.push(signal),
        }
    }

    /// What is to be told.
    fn into_signals(self) -> Vec<Signal> {
        match self {
            Self::Sqlite(held) => held.signals,
            Self::Postgres(held) => held.signals,
        }
    }
}

/// Signals that a slow listener may fall behind before it misses some.
const SIGNALS: usize = 4_096;

/// Passes signals on to whoever listens in this process.
#[derive(Clone)]
pub struct Signals(Arc<Listeners>);

struct Listeners {
    /// Told at once, by whoever committed.
    told: RwLock<Vec<Told>>,
    queue: broadcast::Sender<Signal>,
}

type Told = Box<dyn Fn(Signal) + Send + Sync>;

impl Signals {
    fn new() -> Self {
        Self(Arc::new(Listeners {
            told: RwLock::default(),
            queue: broadcast::Sender::new(SIGNALS),
        }))
    }

    fn subscribe(&self) -> broadcast::Receiver<Signal> {
        self.0.queue.subscribe()
    }

    fn tell(&self, listener: Told) {
        let mut told = self.0.told.write().unwrap_or_else(PoisonError::into_inner);
        told.push(listener);
    }

    fn send(&self, signals: Vec<Signal>) {
        let told = self.0.told.read().unwrap_or_else(PoisonError::into_inner);
        for signal in signals {
            told.iter().for_each(|listener| listener(signal));
            // An error says that nobody listens.
            drop(self.0.queue.send(signal));
        }
    }
}

/// Expands an expression once per engine; in it the name stands for a connection of that engine.
macro_rules! on_both {
    ($conn:expr, $name:ident => $body:expr) => {
        match $conn {
            $crate::storage::Conn::Sqlite($name) => {
                let $name = &mut **$name;
                $body
            }
            $crate::storage::Conn::Postgres($name) => {
                let $name = &mut **$name;
                $body
            }
        }
    };
}
use on_both;

/// Expands a read once per engine; in it the name stands for a connection of the engine's readers. It
/// goes back as soon as the rows are there, so none is held while a client waits. A function that gives
/// this module's [`Result`] is left if no connection comes free.
macro_rules! reading {
    ($database:expr, $name:ident => $body:expr) => {
        match $database {
            $crate::storage::Database::Sqlite { readers, watch, .. } => {
                let mut held = watch.acquire(readers).await?;
                let $name = &mut *held;
                let outcome = $body;
                if outcome.is_ok() {
                    held.give_back();
                }
                outcome
            }
            $crate::storage::Database::Postgres { pool, watch, .. } => {
                let mut held = watch.acquire(pool).await?;
                let $name = &mut *held;
                let outcome = $body;
                if outcome.is_ok() {
                    held.give_back();
                }
                outcome
            }
        }
    };
}
use reading;

/// All that one request writes, with the conditions under which it does.
///
/// A write may run more than once (after a conflict, or when a transaction shared with others fails),
/// always from the start and never after it was committed. A refusal is an output, decided before
/// anything is written.
pub trait Write: Send + Sync + 'static {
    /// What the request is answered with.
    type Output: Send + 'static;

    /// Whether it takes content away for good, which must then not linger in SQLite's log either.
    fn erases(&self) -> bool {
        false
    }

    /// What it is as one statement, if it can be that: whoever is told so once tries it first, and runs it if that did
    /// nothing.
    ///
    /// # Errors
    /// Something that is stored is not readable.
    fn quick(&mut self) -> Result<Option<QuickAppend>> {
        Ok(None)
    }

    /// What the request is answered with once that statement did it.
    fn answer_quick(&self, _done: &QuickAppend) -> Option<Self::Output> {
        None
    }

    /// Runs in a transaction that is committed if this gives `Ok`.
    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>>;
}

/// Bytes of large values after which a page of a list ends early.
const PAGE_BUDGET: usize = 8 << 20;

/// Takes a page from rows of which one more than `limit` was asked for: at most `limit`, and no more
/// once what they hold passes the budget (the first is always given). The flag says whether more follow.
async fn take_page<T>(
    rows: impl futures_util::Stream<Item = Result<T, sqlx::Error>>,
    limit: usize,
    size: impl Fn(&T) -> usize,
) -> Result<(Vec<T>, bool)> {
    let mut rows = std::pin::pin!(rows);
    let mut page = Vec::new();
    let mut bytes = 0;
    while let Some(row) = rows.try_next().await? {
        if page.len() == limit || bytes > PAGE_BUDGET {
            return Ok((page, true));
        }
        bytes += size(&row);
        page.push(row);
    }
    Ok((page, false))
}

/// One more than a limit, to see whether more follows.
fn one_more(limit: usize) -> i64 {
    i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX)
}

/// Rows that one statement inserts or looks up. Few sizes, so that few texts are prepared.
const CHUNKS: [usize; 7] = [64, 32, 16, 8, 4, 2, 1];

/// Texts of which each engine has its own.
struct ByEngine<T> {
    sqlite: T,
    postgres: T,
}

impl<T> ByEngine<T> {
    fn of(&self, conn: &Conn<'_>) -> &T {
        match conn {
            Conn::Sqlite(_) => &self.sqlite,
            Conn::Postgres(_) => &self.postgres,
        }
    }
}

/// An insert of `rows` rows, whose values are bound first; `shared` values behind them are the same in every row, where
/// they stand first. SQLite looks up the name of each value among all names, so there only the shared ones have one.
fn insert_text(head: &str, shared: usize, own: usize, rows: usize) -> ByEngine<String> {
    let text = |value: fn(usize) -> String| {
        let row = |row: usize| {
            let shared = (rows * own + 1..=rows * own + shared).map(|number| format!("${number}"));
            let own = (row * own + 1..=(row + 1) * own).map(value);
            format!("({})", shared.chain(own).collect::<Vec<_>>().join(", "))
        };
        let rows: Vec<_> = (0..rows).map(row).collect();
        format!("{head}{}", rows.join(", "))
    };
    ByEngine {
        sqlite: text(|_| "?".to_owned()),
        postgres: text(|number| format!("${number}")),
    }
}

/// As [`insert_text`], of each of [`CHUNKS`] rows.
fn insert_texts(head: &str, shared: usize, own: usize) -> ByEngine<[String; CHUNKS.len()]> {
    ByEngine {
        sqlite: CHUNKS.map(|rows| insert_text(head, shared, own, rows).sqlite),
        postgres: CHUNKS.map(|rows| insert_text(head, shared, own, rows).postgres),
    }
}

/// Cuts rows into chunks of the sizes there are texts for, each with its text.
fn chunks<'r, R>(
    rows: &'r [R],
    texts: &'static [String; CHUNKS.len()],
) -> impl Iterator<Item = (&'r [R], &'static str)> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let (size, text) = CHUNKS
            .iter()
            .zip(texts)
            .find(|(size, _)| **size <= rest.len())?;
        let (chunk, behind) = rest.split_at_checked(*size)?;
        rest = behind;
        Some((chunk, text.as_str()))
    })
}

/// How long a caller should wait before it tries again after a temporary failure.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// One tenant; every key begins with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TenantId(pub i64);

/// A session of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionKey {
    /// Whose it is.
    pub tenant: TenantId,
    /// Which one.
    pub session: uuid::Uuid,
}

/// A string in its JSON spelling, which holds no U+0000 whatever the string holds.
fn spell(text: Option<&str>) -> Option<String> {
    text.map(crate::domain::json::encode_string)
}

fn unspell(text: Option<String>) -> Option<String> {
    text.and_then(|text| {
        crate::domain::json::decode_string(&text).map(std::borrow::Cow::into_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insert_numbers_every_value_of_every_row() {
        let one = insert_text("", 2, 2, 1);
        assert_eq!(one.postgres, "($3, $4, $1, $2)");
        assert_eq!(one.sqlite, "($3, $4, ?, ?)");
        let two = insert_text("", 1, 2, 2);
        assert_eq!(two.postgres, "($5, $1, $2), ($5, $3, $4)");
        assert_eq!(two.sqlite, "($5, ?, ?), ($5, ?, ?)");
    }

    #[test]
    fn chunks_are_all_rows_in_order() {
        static TEXTS: std::sync::LazyLock<[String; CHUNKS.len()]> =
            std::sync::LazyLock::new(|| CHUNKS.map(|size| size.to_string()));
        for count in [0, 1, 7, 8, 9, 64, 65, 147] {
            let rows: Vec<_> = (0..count).collect();
            let mut seen = Vec::new();
            for (chunk, text) in chunks(&rows, &TEXTS) {
                assert_eq!(chunk.len().to_string(), text);
                seen.extend_from_slice(chunk);
            }
            assert_eq!(seen, rows);
        }
    }
}
