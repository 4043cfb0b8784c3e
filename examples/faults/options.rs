//! What the program is asked for, and the settings that it gives the service.

use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};

use crate::Outcome;
use crate::model::{MODEL, SUMMARIZER};

/// Faults against the service.
#[derive(Debug, Parser)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The database.
    #[arg(long, value_enum, default_value = "sqlite", global = true)]
    pub database: Database,
    /// Processes on one database; SQLite has one.
    #[arg(long, default_value_t = 2, global = true)]
    pub replicas: usize,
    /// Processes that are killed.
    #[arg(long, default_value_t = 6, global = true)]
    pub kills: usize,
    /// About how long that takes.
    #[arg(long, default_value_t = 25, global = true)]
    pub seconds: u64,
    /// Sessions that clients work with.
    #[arg(long, default_value_t = 8, global = true)]
    pub sessions: usize,
    /// Makes the same plan again.
    #[arg(long, default_value_t = seed(), global = true)]
    pub seed: u64,
    /// The service; the one beside this program unless given.
    #[arg(long, global = true)]
    pub binary: Option<PathBuf>,
    /// Whether servers are given a key and asked with it.
    #[arg(long, default_value_t = true, action = ArgAction::Set, global = true)]
    pub key: bool,
    /// Whether some appends are sent with an `Idempotency-Key`.
    #[arg(long, default_value_t = true, action = ArgAction::Set, global = true)]
    pub idempotency: bool,
    /// Prints one line of JSON instead of a table.
    #[arg(long, global = true)]
    pub json: bool,
    /// A command of the shell that is run before the check, with the database in `DATABASE_URL`: to see the check fail.
    #[arg(long, global = true)]
    pub meddle: Option<String>,
    /// Keeps the servers' logs here.
    #[arg(long, global = true)]
    pub logs: Option<PathBuf>,
}

/// Other runs than that of faults.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// A steady load: does anything grow?
    Soak {
        /// How long.
        #[arg(long, default_value_t = 10)]
        minutes: u64,
    },
    /// The memory that many readers and large appends take.
    Memory {
        /// Streams of events that are open at once.
        #[arg(long, default_value_t = 10_000)]
        streams: usize,
        /// Appends of 1 MiB that are under way at once.
        #[arg(long, default_value_t = 1_000)]
        appends: usize,
    },
}

/// Where the service keeps what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Database {
    /// A server of the run's own.
    Postgres,
    /// A file.
    Sqlite,
    /// A file on a disk that becomes full.
    SqliteFull,
}

fn seed() -> u64 {
    u64::from(uuid::Uuid::now_v7().as_fields().1) << 16 | u64::from(std::process::id())
}

/// How long a lease lasts in these runs, in seconds.
pub const LEASE: u64 = 4;

impl Options {
    /// Where the service is.
    pub fn service(&self) -> Outcome<PathBuf> {
        if let Some(binary) = &self.binary {
            return Ok(binary.clone());
        }
        let here = std::env::current_exe()?;
        here.parent()
            .and_then(|examples| examples.parent())
            .map(|target| target.join("precis"))
            .filter(|binary| binary.exists())
            .ok_or_else(|| "build the service first: cargo build".into())
    }

    /// A key that nobody else has, if there is to be one.
    pub fn make_key(&self) -> Option<String> {
        self.key.then(|| {
            let (one, two) = (uuid::Uuid::now_v7(), uuid::Uuid::now_v7());
            format!("admin-{}{}", one.simple(), two.simple())
        })
    }
}

/// The settings of a server: patience is short, so that every failure is seen to its end.
pub fn settings(url: &str, model: u16, key: Option<&str>) -> Vec<(String, String)> {
    let lease = LEASE.to_string();
    let base = format!("http://127.0.0.1:{model}/v1");
    let mut settings: Vec<(String, String)> = [
        ("PRECIS_LISTEN", "127.0.0.1:0"),
        ("PRECIS_DATABASE_URL", url),
        ("PRECIS_LOG", "info,precis=debug"),
        ("PRECIS_MODEL_BASE_URL", &base),
        ("PRECIS_MODEL_API_KEY", "key-of-the-model"),
        ("PRECIS_MODEL", MODEL),
        ("PRECIS_COMPACTION_MODEL", SUMMARIZER),
        ("PRECIS_COMPACTION__PROMPT_FILE", ""),
        ("PRECIS_COMPACTION__LEASE_SECONDS", &lease),
        ("PRECIS_COMPACTION__DEADLINE_SECONDS", "30"),
        ("PRECIS_AUTO_COMPACT__BACKOFF_INITIAL_MS", "500"),
        ("PRECIS_EVENTS__KEEP_ALIVE_SECONDS", "2"),
        ("PRECIS_PROVIDER__FIRST_BYTE_TIMEOUT_MS", "1500"),
        ("PRECIS_PROVIDER__IDLE_TIMEOUT_MS", "1000"),
        ("PRECIS_PROVIDER__CALL_TIMEOUT_MS", "5000"),
        ("PRECIS_PROVIDER__ATTEMPTS", "2"),
        ("PRECIS_PROVIDER__BACKOFF_INITIAL_MS", "50"),
        ("PRECIS_PROVIDER__BACKOFF_MAX_MS", "200"),
        ("PRECIS_PROVIDER__RETRY_AFTER_MAX_MS", "1000"),
        ("PRECIS_HTTP__SHUTDOWN_SECONDS", "5"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect();
    if let Some(key) = key {
        settings.push(("PRECIS_ADMIN_KEY".to_owned(), key.to_owned()));
    }
    settings
}
