//! What the service takes when nobody asks for anything, and how soon it answers behind its start.

use std::time::Duration;

use crate::Outcome;
use crate::bench::{Bench, Place};
use crate::content::Session;
use crate::report::{Goal, Row};

/// How long it is left alone before its memory is looked at.
const REST: Duration = Duration::from_millis(500);
const MILLION: usize = 1_000_000;

/// On a file that is not there yet, whose schema is made on the way; and on one of a million messages.
pub fn idle(bench: &mut Bench, place: Place) -> Outcome<()> {
    let (mut starts, mut resident, mut anonymous) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.options.rounds() {
        let service = bench.service(place, &[])?;
        std::thread::sleep(REST);
        starts.push(service.server.ready_in.as_secs_f64() * 1e3);
        let memory = service.server.memory()?;
        resident.push(memory.resident / 1e6);
        anonymous.push(memory.anonymous / 1e6);
    }
    let heading = bench.heading("idle", "resident memory, idle", place, 0)?;
    bench.push(Row::value(heading, "MB", &resident, Goal::AtMost(30.0)));
    let what = "that of it which is no part of the program's file";
    let heading = bench.heading("idle", what, place, 0)?;
    bench.push(Row::value(heading, "MB", &anonymous, Goal::None));
    let what = "start to ready, on a new database";
    let heading = bench.heading("idle", what, place, 0)?;
    bench.push(Row::value(heading, "ms", &starts, Goal::AtMost(100.0)));
    if !bench.options.million {
        return Ok(());
    }
    let mut service = bench.service(place, &[])?;
    Session::create(&service.server.target, MILLION)?;
    let mut starts = Vec::new();
    for _ in 0..bench.options.rounds() {
        service = bench.restart(service)?;
        starts.push(service.server.ready_in.as_secs_f64() * 1e3);
    }
    let what = format!("start to ready, on {MILLION} messages");
    let heading = bench.heading("idle", what, place, 0)?;
    bench.push(Row::value(heading, "ms", &starts, Goal::AtMost(300.0)));
    Ok(())
}
