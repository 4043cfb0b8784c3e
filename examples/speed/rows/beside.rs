//! Appends while a long session is compacted: to that session, and elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::Outcome;
use crate::bench::{Bench, Place};
use crate::content::{Session, Writer};
use crate::load::{Kind, Rounds, Slice, quantile, slice, slice_while};
use crate::report::Goal;
use crate::wire::Target;

const MESSAGES: usize = 100_000;
/// All but the newest turn.
const COMPACT: &str = r#"{"compactCount":99,"keepRecentTurns":1}"#;

/// Two writers at once. Those to the session that is compacted are told apart as writes from those elsewhere, as reads.
fn step((writer, kind): &mut (Writer, Kind)) -> Outcome<Kind> {
    writer.step()?;
    Ok(*kind)
}

fn compact(target: &Target, session: &Session) -> Outcome<()> {
    let answer = target.ask("POST", &session.path("compact"), COMPACT)?;
    match answer.get("compactedCount").and_then(Value::as_u64) {
        None | Some(0) => Err("nothing was compacted".into()),
        Some(_) => Ok(()),
    }
}

/// Appends for as long as the compaction takes.
fn append_meanwhile(
    target: &Target,
    session: &Session,
    writers: &mut [(Writer, Kind)],
) -> Outcome<Slice> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let compaction = scope.spawn(|| {
            let outcome = compact(target, session);
            is_done.store(true, Ordering::Release);
            outcome
        });
        let slice = slice_while(writers, || !is_done.load(Ordering::Acquire), step);
        compaction
            .join()
            .unwrap_or_else(|_| Err("the compaction broke".into()))?;
        slice
    })
}

/// The 99th percentile with a compaction under way, against the same without.
pub fn beside(bench: &mut Bench, place: Place) -> Outcome<()> {
    let service = bench.service(place, &[])?;
    let target = &service.server.target;
    let session = Session::create(target, MESSAGES)?;
    let mut writers = [
        (Writer::new(target, session.clone(), 1)?, Kind::Write),
        (Writer::several(target, 1, false)?.remove(0), Kind::Read),
    ];
    let time = bench.options.slice();
    let (mut inside, mut elsewhere) = (Rounds::new(), Rounds::new());
    for round in 0..=bench.options.rounds() {
        let usual = slice(&mut writers, time, step)?;
        let meanwhile = append_meanwhile(target, &session, &mut writers)?;
        target.ask("POST", &session.path("compactions/0/restore"), "{}")?;
        if round > 0 {
            let p99 = |times: &[f64]| quantile(times, 99);
            inside.push((p99(&meanwhile.writes), p99(&usual.writes)));
            elsewhere.push((p99(&meanwhile.reads), p99(&usual.reads)));
        }
    }
    for (writer, _) in &writers {
        writer.check()?;
    }
    let rows = [
        (elsewhere, "elsewhere", 2.0),
        (inside, "in that session", 5.0),
    ];
    for (rounds, which, goal) in rows {
        let what =
            format!("p99 of appends {which} while {MESSAGES} messages are compacted, otherwise");
        let heading = bench.heading("compaction-beside", what, place, 2)?;
        bench.keep(heading, "µs", &rounds, Goal::AtMost(goal));
    }
    Ok(())
}
