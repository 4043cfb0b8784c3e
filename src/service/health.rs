//! How the service is: whether it takes requests, and what of that which it stands on is down.
//!
//! Being ready is about taking traffic. So it is refused only where every request would be: when the database
//! gives no answer, or the service is shutting down. A model that fails, other replicas that are not heard, or
//! a disk that is full leave something that still works (and that no other replica would do better), so they
//! are told of and not held against it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use time::OffsetDateTime;

use super::{Purpose, Service};
use crate::storage::{PoolState, StorageError, Timestamp, newest_migration};

/// How long the database may take to answer. Probes give up after a second or so themselves.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long no connection may have come free before a full pool counts as a database that does not answer.
const STUCK: Duration = Duration::from_secs(5);

/// How a thing is that the service stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// As it should be, as far as is known.
    Ok,
    /// Something that is not as it should be, in a word.
    Is(&'static str),
    /// It has failed since then.
    FailingSince(Timestamp),
    /// There is none, and need not be.
    NotConfigured,
}

impl Check {
    fn since(failing: Option<Timestamp>) -> Self {
        failing.map_or(Self::Ok, Self::FailingSince)
    }

    /// Whether it is as it should be.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        matches!(self, Self::Ok | Self::NotConfigured)
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ok => f.write_str("ok"),
            Self::Is(word) => f.write_str(word),
            Self::FailingSince(since) => write!(f, "failing since {since}"),
            Self::NotConfigured => f.write_str("not configured"),
        }
    }
}

/// How everything is.
#[derive(Debug, Clone)]
pub struct Health {
    /// Whether it takes requests; why not, in a sentence.
    pub refused: Option<&'static str>,
    /// `ok`; `busy`, if all connections are at work; `down`.
    pub database: Check,
    /// Whether the last write found a database that takes writes.
    pub writer: Check,
    /// `ok`; `older` or `newer` than this program knows; `unknown`.
    pub migrations: Check,
    /// `ok`; `polling`, if other replicas should be heard and are not: the database is asked instead.
    pub listener: Check,
    /// Who writes summaries.
    pub summarizer: Check,
    /// Who answers in turns.
    pub model: Check,
}

impl Health {
    /// All checks, by name.
    #[must_use]
    pub fn checks(&self) -> [(&'static str, &Check); 6] {
        [
            ("database", &self.database),
            ("writer", &self.writer),
            ("migrations", &self.migrations),
            ("listener", &self.listener),
            ("summarizer", &self.summarizer),
            ("model", &self.model),
        ]
    }

    /// Whether all is as it should be.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        let mut checks = self.checks().into_iter();
        self.refused.is_none() && checks.all(|(_, check)| check.is_fine())
    }
}

impl Service {
    /// How the service is. Takes little more than a second, however the database is.
    pub async fn health(&self) -> Health {
        let (database, migrations) = self.check_database().await;
        let refused = if self.inner.draining.is_cancelled() {
            Some("The server is shutting down.")
        } else if database == Check::Is("down") {
            Some("The database gave no answer in time.")
        } else {
            None
        };
        let summarizer = &self.inner.summarizer;
        Health {
            refused,
            database,
            migrations,
            writer: Check::since(self.writes_failing_since()),
            listener: self.check_listener(),
            summarizer: if summarizer.asks_models() {
                Check::since(self.metrics().failing_since(Purpose::Summary))
            } else {
                Check::NotConfigured
            },
            model: if summarizer.main.is_some() {
                Check::since(self.metrics().failing_since(Purpose::Turn))
            } else {
                Check::NotConfigured
            },
        }
    }

    async fn check_database(&self) -> (Check, Check) {
        let asked = self.database().find_schema_version();
        let unknown = Check::Is("unknown");
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(version)) => (Check::Ok, compare(version)),
            Ok(Err(StorageError::Busy)) | Err(_) if self.is_busy() => (Check::Is("busy"), unknown),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the database was asked how it is and gave no answer");
                (Check::Is("down"), unknown)
            }
            Err(_) => (Check::Is("down"), unknown),
        }
    }

    /// Whether connections are only hard to get: all are at work, and one came free lately.
    fn is_busy(&self) -> bool {
        let PoolState { in_use, most, .. } = self.database().pool_state();
        in_use >= most && self.database().watch().acquired_within(STUCK)
    }

    fn writes_failing_since(&self) -> Option<Timestamp> {
        let since = self.database().watch().failing_since()?;
        Some(Timestamp::of(OffsetDateTime::from(since)))
    }

    fn check_listener(&self) -> Check {
        if !self.inner.listens.load(Ordering::Relaxed) {
            return Check::NotConfigured;
        }
        if self.inner.hears.load(Ordering::Relaxed) {
            Check::Ok
        } else {
            Check::Is("polling")
        }
    }
}

fn compare(version: i64) -> Check {
    match version.cmp(&newest_migration()) {
        std::cmp::Ordering::Less => Check::Is("older"),
        std::cmp::Ordering::Equal => Check::Ok,
        std::cmp::Ordering::Greater => Check::Is("newer"),
    }
}
