//! Runs a law on made-up cases, for a number of them or for a time.

use std::time::{Duration, Instant};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// What a law says of a case.
pub type Verdict = Result<(), TestCaseError>;

/// Seconds that each target takes.
const SECONDS: &str = "PRECIS_FUZZ_SECONDS";
/// The seed to begin with: that of a finding, to see it again.
const SEED: &str = "PRECIS_FUZZ_SEED";

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a whole number")),
    )
}

/// Holds a law to the cases of one batch after the other; `batch` is how many a plain run takes.
pub fn fuzz<S: Strategy>(name: &str, batch: u32, cases: &S, law: impl Fn(S::Value) -> Verdict) {
    let started = Instant::now();
    let time = number(SECONDS).map(Duration::from_secs);
    // Not the same cases each time, where there is time for many.
    let first = number(SEED).unwrap_or_else(|| time.map_or(0, |_| rand_seed()));
    let mut batches: u64 = 0;
    loop {
        let seed = first.wrapping_add(batches);
        run_batch(name, seed, batch, cases, &law);
        batches += 1;
        if time.is_none_or(|time| started.elapsed() >= time) {
            break;
        }
    }
    println!(
        "fuzz {name}: {} cases in {} s from seed {first}, nothing found",
        batches * u64::from(batch),
        started.elapsed().as_secs()
    );
}

fn run_batch<S: Strategy>(
    name: &str,
    seed: u64,
    batch: u32,
    cases: &S,
    law: impl Fn(S::Value) -> Verdict,
) {
    let config = Config {
        cases: batch,
        failure_persistence: None,
        max_shrink_iters: 20_000,
        max_global_rejects: batch * 100,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    match TestRunner::new_with_rng(config, rng).run(cases, law) {
        Ok(()) => {}
        Err(TestError::Fail(reason, case)) => {
            panic!(
                "fuzz {name}: {reason}\nwith {SEED}={seed} and this case, made small:\n{case:#?}"
            )
        }
        Err(TestError::Abort(reason)) => panic!("fuzz {name}: {SEED}={seed}: {reason}"),
    }
}

/// From the clock: enough to be another one each time.
fn rand_seed() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_secs().wrapping_mul(1_000_000) % 1_000_000_007 * 1_000_000
}
