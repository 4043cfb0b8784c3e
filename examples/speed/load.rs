//! Load: many connections at once for a slice of time, and two things measured in turns, so that the noise of the
//! machine meets both alike.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::{Outcome, stop};

/// Stack of a thread that asks.
const STACK: usize = 1 << 18;

/// What kind of request it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It changed something.
    Write,
    /// It did not.
    Read,
}

/// How much one slice of time held.
#[derive(Debug, Default)]
pub struct Slice {
    /// Requests a second, over all connections.
    pub rate: f64,
    /// How long each write took, in microseconds, in ascending order once the slice is over.
    pub writes: Vec<f64>,
    /// The same of reads.
    pub reads: Vec<f64>,
}

impl Slice {
    /// How long a request takes while all connections ask, in microseconds.
    pub fn mean_cost(&self, connections: usize) -> f64 {
        count(connections) * 1e6 / self.rate
    }
}

/// A number as a measure.
pub fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}

/// The value below which that share of them lies; they are in ascending order.
pub fn quantile(sorted: &[f64], per_cent: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last * per_cent).div_ceil(100))
        .copied()
        .unwrap_or(f64::NAN)
}

/// The middle one.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Lets every worker do its step over and over until the time is up; each does it at least once.
pub fn slice<W: Send>(
    workers: &mut [W],
    time: Duration,
    step: impl Fn(&mut W) -> Outcome<Kind> + Sync,
) -> Outcome<Slice> {
    run(workers, &step, &|started| started.elapsed() < time)
}

/// As [`slice()`], for as long as something else goes on.
pub fn slice_while<W: Send>(
    workers: &mut [W],
    goes_on: impl Fn() -> bool + Sync,
    step: impl Fn(&mut W) -> Outcome<Kind> + Sync,
) -> Outcome<Slice> {
    run(workers, &step, &|_| goes_on())
}

fn run<W: Send>(
    workers: &mut [W],
    step: &(impl Fn(&mut W) -> Outcome<Kind> + Sync),
    goes_on: &(impl Fn(Instant) -> bool + Sync),
) -> Outcome<Slice> {
    let barrier = Barrier::new(workers.len());
    let work = |worker: &mut W| {
        barrier.wait();
        let mut done = Slice::default();
        let started = Instant::now();
        loop {
            let asked = Instant::now();
            let kind = step(worker)?;
            let took = asked.elapsed().as_secs_f64() * 1e6;
            match kind {
                Kind::Write => done.writes.push(took),
                Kind::Read => done.reads.push(took),
            }
            stop::check()?;
            if !goes_on(started) {
                break;
            }
        }
        let asked = count(done.writes.len() + done.reads.len());
        done.rate = asked / started.elapsed().as_secs_f64();
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(done)
    };
    let mut all = Slice::default();
    std::thread::scope(|scope| -> Outcome<()> {
        let mut threads = Vec::with_capacity(workers.len());
        for worker in workers {
            let builder = std::thread::Builder::new().stack_size(STACK);
            threads.push(builder.spawn_scoped(scope, || work(worker))?);
        }
        for thread in threads {
            let done = thread
                .join()
                .unwrap_or_else(|_| Err("a connection broke".into()))?;
            all.rate += done.rate;
            all.writes.extend(done.writes);
            all.reads.extend(done.reads);
        }
        Ok(())
    })?;
    all.writes.sort_by(f64::total_cmp);
    all.reads.sort_by(f64::total_cmp);
    Ok(all)
}

/// The two values of each round: of what is measured, and of what it is measured against.
pub type Rounds = Vec<(f64, f64)>;

/// Measures two things in turns; who comes first changes from round to round. The first round warms both up and does
/// not count.
pub fn alternate<S>(
    rounds: usize,
    both: &mut S,
    subject: impl Fn(&mut S) -> Outcome<f64>,
    floor: impl Fn(&mut S) -> Outcome<f64>,
) -> Outcome<Rounds> {
    let mut measured = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        let pair = if round % 2 == 0 {
            let first = subject(both)?;
            (first, floor(both)?)
        } else {
            let first = floor(both)?;
            (subject(both)?, first)
        };
        if round > 0 {
            measured.push(pair);
        }
    }
    Ok(measured)
}
