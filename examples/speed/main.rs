//! How fast is the service? Every figure is a ratio taken in one run: what is measured and what it is measured against
//! are asked in turns, in short slices, over the same number of connections.
//!
//! ```text
//! cargo build --release && cargo run --release --example speed                 # SQLite: about ten minutes
//! cargo run --release --example speed -- --quick                               # a look, in two or three
//! cargo run --release --example speed -- --rows append,append-full --json      # some rows; --list names them
//! cargo run --release --example speed -- --million                             # also behind a million messages
//! scripts/with-postgres cargo run --release --example speed -- --postgres      # against pgbench
//! ```
//!
//! The service is the binary beside this program, as a process of its own, with a key, validation and events as it
//! ships. Most clients send no `Idempotency-Key`; rows with one say so. The floor is this program once more
//! (`floor.rs`): a server that stores the same rows and does nothing else. Every answer is checked for its status and
//! its exact number of messages, and at the end what was acknowledged is read back; whatever is not as it should be ends
//! the run with a failure. A goal that is missed does not: it depends on the machine.
//!
//! SQLite commits in two ways here. `full` is how the service ships: synced before the answer. For the rows that compare
//! with a floor whose commits wait for no disk, both hold their files in memory (`/dev/shm`), unless `--normal` names the
//! setting with which the service commits so by itself. On PostgreSQL both sides have whatever that server does.
//!
//! Only addresses on this machine are asked.

mod bench;
mod content;
mod floor;
mod load;
mod machine;
mod options;
mod postgres;
mod process;
mod report;
mod rows;
mod stop;
mod wire;

use std::error::Error;

use clap::Parser;

use bench::Bench;
use machine::Machine;
use options::{Command, Options};
use report::Report;
use rows::ENTRIES;

/// A result of this program, which stops at the first thing that is not as it should be.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let options = Options::parse();
    if let Some(Command::Floor { file, durability }) = &options.command {
        return floor::serve(file, *durability);
    }
    if options.list {
        for entry in &ENTRIES {
            println!("{:18} {}", entry.name, entry.what);
        }
        return Ok(());
    }
    let is_known = |name: &&String| ENTRIES.iter().any(|entry| entry.name == **name);
    if let Some(unknown) = options.rows.iter().find(|name| !is_known(name)) {
        return Err(format!("there is no row {unknown}; --list names them").into());
    }
    stop::listen()?;
    let mut bench = Bench::new(options)?;
    let machine = Machine::here(bench.disk(), bench.memory());
    for entry in &ENTRIES {
        let rows = &bench.options.rows;
        if rows.is_empty() || rows.iter().any(|row| row == entry.name) {
            entry.measure(&mut bench)?;
        }
    }
    let report = Report {
        machine,
        rounds: bench.options.rounds(),
        slice_ms: bench.options.slice().as_millis(),
        rows: bench.rows,
        notes: bench.notes,
    };
    if bench.options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(())
}
