//! Does the service keep what it promises while everything around it fails? Kills, restarts, a full disk, many readers.
//!
//! ```text
//! cargo build && cargo run --example faults -- --database postgres --replicas 2 --kills 100 --seconds 300
//! cargo run --example faults -- --database sqlite --kills 20 --seconds 60
//! cargo run --example faults -- --database sqlite-full
//! cargo run --example faults -- soak --minutes 10
//! cargo run --example faults -- memory
//! ```
//!
//! It starts the service that it finds beside itself as processes of its own, plays the model's server, and speaks to
//! nothing but addresses of this machine. It ends by itself, prints what it did and what it found, and fails if that is
//! anything which `docs/reliability.md` says cannot be. `--seed` repeats the plan of a run, though never its timing.

mod asker;
mod chain;
mod chaos;
mod check;
mod context;
mod findings;
mod full;
mod ledger;
mod memory;
mod model;
mod options;
mod postgres;
mod random;
mod readers;
mod run;
mod server;
mod soak;
mod sse;
mod web;
mod writers;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use findings::Findings;
use options::{Command, Database, Options};

/// A result of this program, which stops at the first thing that keeps it from testing.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<ExitCode> {
    // The client wants one to be named. An error says that one is.
    drop(rustls::crypto::ring::default_provider().install_default());
    let options = Options::parse();
    let findings = Arc::new(Findings::default());
    eprintln!("seed {}", options.seed);
    findings.figure("seed", options.seed.to_string());
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        done = work(&options, &findings) => done?,
        // What was started ends with what is dropped here.
        _ = tokio::signal::ctrl_c() => return Err("interrupted".into()),
        _ = terminate.recv() => return Err("terminated".into()),
    }
    findings.print(options.json);
    Ok(if findings.violations() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn work(options: &Options, findings: &Arc<Findings>) -> Outcome<()> {
    match (&options.command, options.database) {
        (Some(Command::Soak { minutes }), _) => soak::soak(options, *minutes, findings).await,
        (Some(Command::Memory { streams, appends }), _) => {
            memory::measure(options, *streams, *appends, findings).await
        }
        (None, Database::SqliteFull) => full::fill(options, findings).await,
        (None, _) => run::run(options, findings).await,
    }
}
