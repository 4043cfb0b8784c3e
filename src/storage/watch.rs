//! What is watched of the database: how long connections are waited for, how writes are committed, and
//! whether they are.
//!
//! Every connection for reading is taken here, and every one that writes on PostgreSQL, so that none is
//! waited for unseen. What the numbers are called, and what is made of them, is the service's.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use sqlx::Database as Engine;

use super::connections::{Connections, InUse};
use super::{Database, Result, StorageError, Timestamp, reading};

/// The instruments of a database. Cheap to clone; clones count together.
#[derive(Clone)]
pub struct StorageWatch {
    /// Seconds that a connection was waited for.
    pub acquire: Histogram,
    /// Connections that did not come free in time.
    pub acquire_timeouts: Counter,
    /// Seconds that a commit took.
    pub commit: Histogram,
    /// SQLite: writes that shared a commit.
    pub group: Histogram,
    /// Transactions that failed for the database's sake: it cannot be reached, is full, or takes no writes.
    pub write_failures: Counter,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// When a connection was last handed out.
    acquired: Option<Instant>,
    /// Since when no write has succeeded, if the last one failed.
    failing: Option<SystemTime>,
}

impl Default for StorageWatch {
    fn default() -> Self {
        Self {
            // 0.1 ms to 6.5 s.
            acquire: Histogram::new(exponential_buckets(0.0001, 4.0, 9)),
            acquire_timeouts: Counter::default(),
            commit: Histogram::new(exponential_buckets(0.0001, 4.0, 9)),
            group: Histogram::new(exponential_buckets(1.0, 2.0, 8)),
            write_failures: Counter::default(),
            state: Arc::default(),
        }
    }
}

impl StorageWatch {
    /// Takes a connection.
    pub(super) async fn acquire<D: Engine>(
        &self,
        connections: &Connections<D>,
    ) -> Result<InUse<D>> {
        let began = Instant::now();
        let acquired = connections.acquire().await;
        self.acquire.observe(began.elapsed().as_secs_f64());
        match acquired {
            Ok(connection) => {
                self.lock().acquired = Some(Instant::now());
                Ok(connection)
            }
            Err(error) => {
                if matches!(error, sqlx::Error::PoolTimedOut) {
                    self.acquire_timeouts.inc();
                }
                Err(error.into())
            }
        }
    }

    /// Whether a connection was handed out within that time.
    #[must_use]
    pub fn acquired_within(&self, time: Duration) -> bool {
        self.lock().acquired.is_some_and(|at| at.elapsed() < time)
    }

    /// Since when writes have failed, if the last one did.
    #[must_use]
    pub fn failing_since(&self) -> Option<SystemTime> {
        self.lock().failing
    }

    /// Takes note of how a transaction ended.
    pub(super) fn note(&self, failure: Option<&StorageError>) {
        match failure {
            None => self.lock().failing = None,
            Some(StorageError::Unavailable(_) | StorageError::Full(_)) => self.note_failure(),
            // A statement that was refused, or met another, or a full pool: the database works.
            Some(_) => {}
        }
    }

    /// Takes note that a transaction could not even begin, or found the database unable to write.
    pub(super) fn note_failure(&self) {
        self.write_failures.inc();
        self.lock().failing.get_or_insert_with(SystemTime::now);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many connections there are. On SQLite those for reading; the one that writes is always there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolState {
    /// Open and given back.
    pub idle: u32,
    /// At work.
    pub in_use: u32,
    /// As many as there may be.
    pub most: u32,
}

fn state_of<D: Engine>(connections: &Connections<D>) -> PoolState {
    let (open, idle) = connections.count();
    PoolState {
        idle,
        in_use: open - idle,
        most: connections.most(),
    }
}

impl Database {
    /// What is watched of it.
    #[must_use]
    pub fn watch(&self) -> &StorageWatch {
        match self {
            Self::Sqlite { watch, .. } | Self::Postgres { watch, .. } => watch,
        }
    }

    /// Its connections.
    #[must_use]
    pub fn pool_state(&self) -> PoolState {
        match self {
            Self::Sqlite { readers, .. } => state_of(readers),
            Self::Postgres { pool, .. } => state_of(pool),
        }
    }

    /// SQLite: writes that wait for the one that writes. `None` on PostgreSQL, where each has a connection.
    #[must_use]
    pub fn waiting_writes(&self) -> Option<usize> {
        match self {
            Self::Sqlite { writer, .. } => Some(writer.waiting()),
            Self::Postgres { .. } => None,
        }
    }

    /// The number of the newest migration that was applied, whoever applied it.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_schema_version(&self) -> Result<i64> {
        Ok(reading!(self, pool => sqlx::query_scalar(
            "SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success"
        )
        .fetch_one(pool)
        .await)?)
    }

    /// How many sessions are due, `most` at most, and how long the longest has been, in microseconds. All
    /// tenants: it is for the replica itself.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn count_due(&self, now: Timestamp, most: i64) -> Result<(i64, i64)> {
        let (count, oldest): (i64, Option<Timestamp>) = reading!(self, pool => sqlx::query_as(
            "SELECT count(*), min(due_at) FROM (SELECT due_at FROM sessions WHERE due_at <= $1 \
             ORDER BY due_at LIMIT $2) AS due"
        )
        .bind(now)
        .bind(most)
        .fetch_one(pool)
        .await)?;
        Ok((count, oldest.map_or(0, |at| (now.0 - at.0).max(0))))
    }
}
