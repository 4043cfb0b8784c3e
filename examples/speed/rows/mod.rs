//! The measurements, by the names under which they are chosen.

mod append;
mod beside;
mod context;
mod dispatch;
mod idle;
mod mixed;
mod pgbench;
mod stream;

use crate::Outcome;
use crate::bench::{Bench, Place};

/// Measures something with the service's store in that place.
type Measure = fn(&mut Bench, Place) -> Outcome<()>;

/// A measurement. Not all are made on both databases.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What is compared with what.
    pub what: &'static str,
    sqlite: Option<(Measure, Place)>,
    postgres: Option<Measure>,
}

/// All of them.
pub const ENTRIES: [Entry; 11] = [
    Entry {
        name: "context-length",
        what: "a context behind a long history, against one of a short session",
        sqlite: Some((context::length, Place::Disk)),
        postgres: Some(context::length),
    },
    Entry {
        name: "append",
        what: "one message an append, when a commit waits for no disk, against the floor (PostgreSQL: pgbench)",
        sqlite: Some((append::relaxed, Place::Relaxed)),
        postgres: Some(pgbench::append),
    },
    Entry {
        name: "append-full",
        what: "one message an append, each on the disk before its answer, against the floor",
        sqlite: Some((append::synced, Place::Disk)),
        postgres: None,
    },
    Entry {
        name: "append-length",
        what: "an append to a long session, against one to a short session",
        sqlite: Some((append::length, Place::Relaxed)),
        postgres: Some(append::length),
    },
    Entry {
        name: "context-large",
        what: "a context of 10,000 messages, against the floor (PostgreSQL: pgbench)",
        sqlite: Some((context::large, Place::Disk)),
        postgres: Some(pgbench::context),
    },
    Entry {
        name: "batch",
        what: "messages a second in appends of 100, against appends of one",
        sqlite: Some((append::batch, Place::Disk)),
        postgres: Some(append::batch),
    },
    Entry {
        name: "mixed",
        what: "four reads to one write over 1,000 sessions, against the floor; reads with writes, against reads alone",
        sqlite: Some((mixed::mixed, Place::Disk)),
        postgres: None,
    },
    Entry {
        name: "compaction-beside",
        what: "appends while a long session is compacted, against appends at other times",
        sqlite: Some((beside::beside, Place::Disk)),
        postgres: Some(beside::beside),
    },
    Entry {
        name: "idle",
        what: "memory of an idle service, and how long it takes to start",
        sqlite: Some((idle::idle, Place::Disk)),
        postgres: None,
    },
    Entry {
        name: "stream",
        what: "memory that each reader of a context of 50 MB takes",
        sqlite: Some((stream::stream, Place::Disk)),
        postgres: Some(stream::stream),
    },
    Entry {
        name: "dispatch",
        what: "a dispatch of 10,000 messages under a plan that holds, against the plain context",
        sqlite: Some((dispatch::dispatch, Place::Disk)),
        postgres: Some(dispatch::dispatch),
    },
];

impl Entry {
    /// Measures it on the database that was asked for.
    pub fn measure(&self, bench: &mut Bench) -> Outcome<()> {
        let found = if bench.postgres.is_some() {
            self.postgres.map(|measure| (measure, Place::Postgres))
        } else {
            self.sqlite
        };
        match found {
            Some((_, Place::Relaxed)) if !bench.can_relax() => {
                bench.note(format!(
                    "{}: not measured, for want of a directory in memory and of --normal",
                    self.name
                ));
                Ok(())
            }
            Some((measure, place)) => measure(bench, place),
            None => Ok(()),
        }
        .map_err(|error| format!("{}: {error}", self.name).into())
    }
}
