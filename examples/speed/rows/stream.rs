//! The memory that readers of a very large context take while they read it.

use std::time::Duration;

use crate::Outcome;
use crate::bench::{Bench, Place};
use crate::content::{Reader, Session, message};
use crate::load::{count, slice};
use crate::process::Server;
use crate::report::{Goal, Row};

/// Messages, and bytes of each.
const SHAPE: (usize, usize) = (1_000, 50_000);
/// Messages of one append.
const BATCH: usize = 200;
/// How long each reader rests behind the head of its answer, so that all of them are under way at once.
const PAUSE: Duration = Duration::from_millis(500);

/// The highest memory, less that of the idle service, for each reader: behind a start, when caches are cold and count,
/// and once more behind that.
pub fn stream(bench: &mut Bench, place: Place) -> Outcome<()> {
    let mut service = bench.service(place, &[])?;
    let messages = (0..SHAPE.0).map(|number| message(number, SHAPE.1));
    let session = Session::create_with(&service.server.target, "{}", messages, BATCH)?;
    for connections in [1, 4, 8] {
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for _ in 0..bench.options.rounds().min(3) {
            service = bench.restart(service)?;
            cold.push(taken(&service.server, &session, connections)?);
            warm.push(taken(&service.server, &session, connections)?);
        }
        for (values, caches) in [(cold, "cold"), (warm, "warm")] {
            let what = format!("memory more for each reader of 50 MB, caches {caches}");
            let heading = bench.heading("stream", what, place, connections)?;
            bench.push(Row::value(heading, "MB", &values, Goal::AtMost(16.0)));
        }
    }
    Ok(())
}

/// How much more memory there was at most for each of so many readers at once, in megabytes.
fn taken(server: &Server, session: &Session, connections: usize) -> Outcome<f64> {
    server.forget_peak()?;
    let before = server.memory()?.resident;
    let mut readers = Reader::several(&server.target, session, SHAPE.0, connections)?;
    slice(&mut readers, Duration::ZERO, |reader| {
        reader.step_slowly(PAUSE)
    })?;
    let more = server.memory()?.peak - before;
    Ok(more / 1e6 / count(connections))
}
