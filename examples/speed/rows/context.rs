//! Contexts: behind a long history, and of many messages.

use std::time::Duration;

use crate::Outcome;
use crate::bench::{Bench, Place};
use crate::content::{Reader, Session};
use crate::floor::Durability;
use crate::load::{Rounds, slice};
use crate::report::Goal;

/// Messages that a compaction leaves.
const TAIL: usize = 50;
/// Messages of a context that is large.
const LARGE: usize = 10_000;

/// Readers of both.
pub struct Sides {
    /// Of what is measured.
    pub subject: Vec<Reader>,
    /// Of what it is measured against.
    pub floor: Vec<Reader>,
    /// How long each is asked.
    pub time: Duration,
}

impl Sides {
    /// The cost of a request, in microseconds.
    pub fn costs(mut self, bench: &Bench) -> Outcome<Rounds> {
        let connections = self.subject.len();
        let cost = |readers: &mut Vec<Reader>, time| {
            Ok(slice(readers, time, Reader::step)?.mean_cost(connections))
        };
        bench.alternate(
            &mut self,
            |sides| cost(&mut sides.subject, sides.time),
            |sides| cost(&mut sides.floor, sides.time),
        )
    }

    /// Requests a second.
    pub fn rates(mut self, bench: &Bench) -> Outcome<Rounds> {
        let rate = |readers: &mut Vec<Reader>, time| Ok(slice(readers, time, Reader::step)?.rate);
        bench.alternate(
            &mut self,
            |sides| rate(&mut sides.subject, sides.time),
            |sides| rate(&mut sides.floor, sides.time),
        )
    }
}

/// The same tail, behind much and behind nothing.
pub fn length(bench: &mut Bench, place: Place) -> Outcome<()> {
    let service = bench.service(place, &[("PRECIS_COMPACTION__MAX_SUMMARY_TOKENS", "100")])?;
    let target = &service.server.target;
    let short = Session::create(target, TAIL)?;
    let million = bench.options.million.then_some((1_000_000, 1.3));
    for (messages, goal) in std::iter::once((100_000, 1.2)).chain(million) {
        let long = Session::create(target, messages)?;
        long.compact_to(target, TAIL)?;
        let connections = 8;
        let rounds = Sides {
            subject: Reader::several(target, &long, TAIL, connections)?,
            floor: Reader::several(target, &short, TAIL, connections)?,
            time: bench.options.slice(),
        }
        .costs(bench)?;
        let what =
            format!("context with a tail of {TAIL} of {messages} messages, of a session of {TAIL}");
        let heading = bench.heading("context-length", what, place, connections)?;
        bench.keep(heading, "µs", &rounds, Goal::AtMost(goal));
    }
    Ok(())
}

/// Many messages of which none is summarised.
pub fn large(bench: &mut Bench, place: Place) -> Outcome<()> {
    let service = bench.service(place, &[])?;
    let floor = bench.floor(place, Durability::Full)?;
    let (subject, base) = (&service.server.target, &floor.server.target);
    let here = Session::create(subject, LARGE)?;
    let there = Session::create(base, LARGE)?;
    for connections in [1, 8] {
        let rounds = Sides {
            subject: Reader::several(subject, &here, LARGE, connections)?,
            floor: Reader::several(base, &there, LARGE, connections)?,
            time: bench.options.slice(),
        }
        .rates(bench)?;
        let what = format!("context of {LARGE} messages, floor");
        let heading = bench.heading("context-large", what, place, connections)?;
        bench.keep(heading, "/s", &rounds, Goal::AtLeast(0.6));
    }
    Ok(())
}
