//! What the program is asked for.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::floor::Durability;

/// How fast the service is: every figure a ratio taken in one run.
#[derive(Debug, Parser)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the switches of a command line"
)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Only these rows, with commas between them.
    #[arg(long, value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Names the rows and stops.
    #[arg(long)]
    pub list: bool,
    /// Prints one JSON document instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Fewer and shorter rounds, for a look.
    #[arg(long)]
    pub quick: bool,
    /// Measures the rows that there are on PostgreSQL; run it under `scripts/with-postgres`.
    #[arg(long)]
    pub postgres: bool,
    /// Measures also on a session of a million messages: minutes, and 2 GB of disk.
    #[arg(long)]
    pub million: bool,
    /// Where the databases are; the directory for temporary files unless given.
    #[arg(long)]
    pub directory: Option<PathBuf>,
    /// The setting with which the service commits as the floor does under `normal`, as NAME=VALUE. Without it both
    /// hold their files in memory for the rows that compare so, where a commit waits for no disk either.
    #[arg(long, value_parser = setting)]
    pub normal: Option<(String, String)>,
    /// A setting of the service in all rows, as NAME=VALUE; may be given several times.
    #[arg(long, value_parser = setting)]
    pub setting: Vec<(String, String)>,
    /// The service; the one beside this program unless given.
    #[arg(long)]
    pub binary: Option<PathBuf>,
}

/// What else this program is.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The floor: the least that a store over HTTP and SQLite does
    Floor {
        /// Its database.
        file: PathBuf,
        /// When it commits.
        durability: Durability,
    },
}

fn setting(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "a setting is NAME=VALUE".to_owned())
}

impl Options {
    /// Rounds that count.
    pub fn rounds(&self) -> usize {
        if self.quick { 3 } else { 7 }
    }

    /// How long each side is asked in a round.
    pub fn slice(&self) -> Duration {
        Duration::from_millis(if self.quick { 500 } else { 2_000 })
    }
}
