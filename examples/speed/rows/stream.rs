//! The memory that readers of a very large context take while they read it.

use std::time::Duration;

use crate::Outcome;
use crate::bench::{Bench, Place};
use crate::content::{Reader, Session, message};
use crate::load::{count, slice};
use crate::report::{Goal, Row};

/// Messages, and bytes of each.
const SHAPE: (usize, usize) = (1_000, 50_000);
/// Messages of one append.
const BATCH: usize = 200;
/// How long each reader rests behind the head of its answer, so that all of them are under way at once.
const PAUSE: Duration = Duration::from_millis(500);

/// The highest memory, less that of the idle service, for each reader. The service is started anew each time: its
/// caches are cold, and count.
pub fn stream(bench: &mut Bench, place: Place) -> Outcome<()> {
    let mut service = bench.service(place, &[])?;
    let messages = (0..SHAPE.0).map(|number| message(number, SHAPE.1));
    let session = Session::create_with(&service.server.target, "{}", messages, BATCH)?;
    for connections in [1, 4, 8] {
        let mut taken = Vec::new();
        for _ in 0..bench.options.rounds().min(3) {
            service = bench.restart(service)?;
            let before = service.server.memory()?.resident;
            let target = &service.server.target;
            let mut readers = Reader::several(target, &session, SHAPE.0, connections)?;
            slice(&mut readers, Duration::ZERO, |reader| {
                reader.step_slowly(PAUSE)
            })?;
            let peak = service.server.memory()?.peak;
            taken.push((peak - before) / 1e6 / count(connections));
        }
        let what = "memory more for each reader of 50 MB, caches cold";
        let heading = bench.heading("stream", what, place, connections)?;
        bench.push(Row::value(heading, "MB", &taken, Goal::AtMost(16.0)));
    }
    Ok(())
}
