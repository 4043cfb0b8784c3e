//! Appends: against the floor, against themselves at another length, and many messages at once.

use std::time::Duration;

use crate::Outcome;
use crate::bench::{Bench, Place};
use crate::content::{Session, Writer};
use crate::floor::Durability;
use crate::load::{Rounds, Slice, count, quantile, slice};
use crate::report::Goal;
use crate::wire::Target;

/// Length of a long session, and of a short one.
const LENGTHS: (usize, usize) = (100_000, 50);
/// Messages of a large append.
const LARGE: usize = 100;

/// Writers to both, and what is taken of a slice of their time.
struct Sides {
    subject: Vec<Writer>,
    floor: Vec<Writer>,
    time: Duration,
    take: fn(&Slice) -> f64,
}

impl Sides {
    fn measure(mut self, bench: &Bench) -> Outcome<Rounds> {
        let rounds = bench.alternate(
            &mut self,
            |sides| sides.ask(|sides| &mut sides.subject),
            |sides| sides.ask(|sides| &mut sides.floor),
        )?;
        self.subject
            .iter()
            .chain(&self.floor)
            .try_for_each(Writer::check)?;
        Ok(rounds)
    }

    fn ask(&mut self, side: impl Fn(&mut Self) -> &mut Vec<Writer>) -> Outcome<f64> {
        let time = self.time;
        let slice = slice(side(self), time, Writer::step)?;
        Ok((self.take)(&slice))
    }
}

/// The service's writers may be keyed; those of the floor never are.
fn sides(bench: &Bench, targets: [&Target; 2], connections: usize, keyed: bool) -> Outcome<Sides> {
    let [service, floor] = targets;
    Ok(Sides {
        subject: Writer::several(service, connections, keyed)?,
        floor: Writer::several(floor, connections, false)?,
        time: bench.options.slice(),
        take: |slice| slice.rate,
    })
}

/// A commit waits for no disk, on both sides.
pub fn relaxed(bench: &mut Bench, place: Place) -> Outcome<()> {
    let service = bench.service(place, &[])?;
    let floor = bench.floor(place, Durability::Normal)?;
    let targets = [&service.server.target, &floor.server.target];
    let plan = [
        (1, false, Goal::AtLeast(0.6)),
        (8, false, Goal::MoreThan(1.0)),
        (64, false, Goal::MoreThan(1.0)),
        (64, true, Goal::None),
    ];
    for (connections, keyed, goal) in plan {
        let rounds = sides(bench, targets, connections, keyed)?.measure(bench)?;
        let what = format!("append{}, floor that commits each request", with(keyed));
        let heading = bench.heading("append", what, place, connections)?;
        bench.keep(heading, "/s", &rounds, goal);
    }
    Ok(())
}

fn with(keyed: bool) -> &'static str {
    if keyed {
        " with an Idempotency-Key"
    } else {
        ""
    }
}

/// Each is on the disk before its answer, on both sides.
pub fn synced(bench: &mut Bench, place: Place) -> Outcome<()> {
    let service = bench.service(place, &[])?;
    let floor = bench.floor(place, Durability::Full)?;
    let group = bench.floor(place, Durability::Group)?;
    let each = [&service.server.target, &floor.server.target];
    let grouped = [&service.server.target, &group.server.target];

    let mut alone = sides(bench, each, 1, false)?;
    alone.take = |slice| quantile(&slice.writes, 50);
    let rounds = alone.measure(bench)?;
    let what = "p50 of an append, floor that commits each request";
    let heading = bench.heading("append-full", what, place, 1)?;
    bench.keep(heading, "µs", &rounds, Goal::AtMost(1.3));

    let plan = [
        (each, 8, false, "commits each request", Goal::None),
        (each, 64, false, "commits each request", Goal::AtLeast(3.0)),
        (each, 64, true, "commits each request", Goal::AtLeast(3.0)),
        (grouped, 64, false, "commits what waits", Goal::None),
    ];
    for (targets, connections, keyed, commits, goal) in plan {
        let rounds = sides(bench, targets, connections, keyed)?.measure(bench)?;
        let what = format!("append{}, floor that {commits}", with(keyed));
        let heading = bench.heading("append-full", what, place, connections)?;
        bench.keep(heading, "/s", &rounds, goal);
    }
    Ok(())
}

/// A long session against a short one.
pub fn length(bench: &mut Bench, place: Place) -> Outcome<()> {
    let service = bench.service(place, &[])?;
    let target = &service.server.target;
    let writer = |length: usize| -> Outcome<Vec<Writer>> {
        let session = Session::create(target, length)?;
        Ok(vec![Writer::new(target, session, 1)?])
    };
    let rounds = Sides {
        subject: writer(LENGTHS.0)?,
        floor: writer(LENGTHS.1)?,
        time: bench.options.slice(),
        take: |slice| quantile(&slice.writes, 50),
    }
    .measure(bench)?;
    let what = format!(
        "p50 of an append at {} messages, at {}",
        LENGTHS.0, LENGTHS.1
    );
    let heading = bench.heading("append-length", what, place, 1)?;
    bench.keep(heading, "µs", &rounds, Goal::AtMost(1.2));
    Ok(())
}

/// A hundred at a time against one at a time.
pub fn batch(bench: &mut Bench, place: Place) -> Outcome<()> {
    let service = bench.service(place, &[])?;
    let target = &service.server.target;
    let writer = |batch: usize| -> Outcome<Vec<Writer>> {
        let session = Session::create(target, 0)?;
        Ok(vec![Writer::new(target, session, batch)?])
    };
    let mut rounds = Sides {
        subject: writer(LARGE)?,
        floor: writer(1)?,
        time: bench.options.slice(),
        take: |slice| slice.rate,
    }
    .measure(bench)?;
    for (large, _) in &mut rounds {
        *large *= count(LARGE);
    }
    let what = format!("messages in appends of {LARGE}, in appends of one");
    let heading = bench.heading("batch", what, place, 1)?;
    bench.keep(heading, "msg/s", &rounds, Goal::AtLeast(10.0));
    Ok(())
}
