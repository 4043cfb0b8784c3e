//! Time and allocations of pruning and rendering, over the length of the tail.

use std::alloc::System;
use std::hint::black_box;
use std::time::{Duration, Instant};

use precis::domain::policy::PruningPolicy;
use precis::domain::pruning::{Aim, Elision};
use precis::domain::tokens::Counter;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use super::history::{Plan, Session};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LENGTHS: [usize; 3] = [1_000, 10_000, 100_000];

/// The most that allocations for each message may grow from the shortest tail to the longest.
const GROWTH: f64 = 1.25;

struct Measured {
    time: Duration,
    allocations: usize,
    bytes: usize,
}

fn measure<T>(work: impl FnOnce() -> T) -> (T, Measured) {
    let region = Region::new(ALLOCATOR);
    let start = Instant::now();
    let outcome = black_box(work());
    let time = start.elapsed();
    let change = region.change();
    let measured = Measured {
        time,
        allocations: change.allocations + change.reallocations,
        bytes: change.bytes_allocated,
    };
    (outcome, measured)
}

/// Prints the tables; says whether allocations for each message stay what they are.
pub fn print() -> bool {
    println!("## Pruning and rendering a long tail\n");
    println!(
        "| messages | target | edits | prune | per message | allocations per message | bytes per message | render | per message | allocations |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut all = Vec::new();
    for length in LENGTHS {
        let session = Session::long(length);
        for (name, share) in [
            ("nine tenths", Some(9)),
            ("all that the rules may do", None),
        ] {
            all.push((name, length, row(&session, name, share)));
        }
    }
    println!();
    let mut is_linear = true;
    for name in ["nine tenths", "all that the rules may do"] {
        let those: Vec<_> = all.iter().filter(|one| one.0 == name).collect();
        let (Some(short), Some(long)) = (those.first(), those.last()) else {
            continue;
        };
        let per_message = |one: &(&str, usize, Measured)| {
            (ratio(one.2.allocations, one.1), nanoseconds(&one.2, one.1))
        };
        let (few, many) = (per_message(short), per_message(long));
        let growth = many.0 / few.0;
        is_linear &= growth <= GROWTH;
        println!(
            "{name}: {} times the messages take {growth:.2} times the allocations and {:.2} times the time for each message.",
            long.1 / short.1,
            many.1 / few.1
        );
    }
    is_linear
}

fn row(session: &Session, name: &str, tenths: Option<i64>) -> Measured {
    let policy = PruningPolicy::default();
    let estimate = session.tokens(&Plan::new());
    let aim = Aim {
        policy: &policy,
        estimate,
        target: tenths.map_or(i64::MIN, |tenths| estimate / 10 * tenths),
        tool_choice: None,
        counter: Counter::Estimate,
    };
    let rows = session.rows(&Plan::new());
    let (edits, pruned) = measure(|| session.plan(rows, &aim));
    let plan: Plan = edits
        .into_iter()
        .map(|edit: Elision| (edit.seq, edit))
        .collect();
    let (_, rendered) = measure(|| session.render(&plan));
    let length = session.len();
    println!(
        "| {length} | {name} | {} | {:.1} ms | {:.0} ns | {:.1} | {:.0} | {:.1} ms | {:.0} ns | {} |",
        plan.len(),
        pruned.time.as_secs_f64() * 1e3,
        nanoseconds(&pruned, length),
        ratio(pruned.allocations, length),
        ratio(pruned.bytes, length),
        rendered.time.as_secs_f64() * 1e3,
        nanoseconds(&rendered, length),
        rendered.allocations,
    );
    pruned
}

fn nanoseconds(measured: &Measured, messages: usize) -> f64 {
    measured.time.as_secs_f64() * 1e9 / ratio(messages, 1)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn ratio(amount: usize, messages: usize) -> f64 {
    amount as f64 / messages as f64
}
