//! A steady load for minutes: neither memory nor open files nor connections to the database may grow.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::Outcome;
use crate::check;
use crate::findings::Findings;
use crate::options::Options;
use crate::run::{Stage, end, set_to_work};
use crate::server::{Sample, sample};

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(2);
/// How much more memory the second half may end with than it began: a part of what there is, or so many KiB.
const PART: f64 = 0.08;
const KIB: f64 = 8_192.0;
/// The same for files and connections, which come and go with requests.
const HANDLES: f64 = 12.0;

/// The run.
pub async fn soak(options: &Options, minutes: u64, findings: &Arc<Findings>) -> Outcome<()> {
    let stage = Stage::start(options, findings, None, &[]).await?;
    let world = &stage.world;
    world.model.set_healthy(true);
    let port = stage.postgres.as_ref().map(|postgres| postgres.port);
    let pids: Vec<u32> = world
        .replicas
        .iter()
        .filter_map(|replica| replica.pid())
        .collect();
    let tasks = set_to_work(world, options.sessions).await?;
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); pids.len()];
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(minutes * 60) {
        for (pid, samples) in pids.iter().zip(&mut samples) {
            samples.push(sample(*pid, port)?);
        }
        sleep(EVERY).await;
    }
    end(world, tasks).await;
    for (n, samples) in samples.iter().enumerate() {
        judge(findings, n, samples);
    }
    check::check(world).await;
    Ok(())
}

/// Fits a line to the second half of what was seen.
fn judge(findings: &Findings, n: usize, samples: &[Sample]) {
    let half = samples.get(samples.len() / 2..).unwrap_or_default();
    let of = |part: fn(&Sample) -> u64| -> Vec<f64> {
        half.iter()
            .map(|sample| f64::from(u32::try_from(part(sample)).unwrap_or(u32::MAX)))
            .collect()
    };
    let quantities = [
        ("resident KiB", of(|sample| sample.resident)),
        ("open files", of(|sample| sample.files)),
        ("database handles", of(|sample| sample.database)),
    ];
    for (name, values) in quantities {
        let (mean, growth) = fit(&values);
        let bound = if name == "resident KiB" {
            (mean * PART).max(KIB)
        } else {
            HANDLES
        };
        findings.figure(
            format!("replica {n}: {name}"),
            json!({"mean": mean.round(), "growthOverHalf": growth.round(), "bound": bound.round()}),
        );
        findings.check(growth <= bound, || {
            format!("replica {n}: {name} grew by {growth:.0} over the second half, from a mean of {mean:.0}")
        });
    }
}

/// The mean of values at even distances, and how far the line of least squares rises from the first to the last.
fn fit(values: &[f64]) -> (f64, f64) {
    let count = f64::from(u32::try_from(values.len()).unwrap_or(u32::MAX)).max(1.0);
    let mean = values.iter().sum::<f64>() / count;
    let middle = (count - 1.0) / 2.0;
    let places = std::iter::successors(Some(0.0), |place| Some(place + 1.0));
    let (mut products, mut squares) = (0.0, 0.0);
    for (value, place) in values.iter().zip(places) {
        let distance = place - middle;
        products += distance * (value - mean);
        squares += distance * distance;
    }
    if squares == 0.0 {
        return (mean, 0.0);
    }
    (mean, products / squares * (count - 1.0))
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn a_line_is_found_in_noise() {
        let rising: Vec<f64> = (0..100_u32)
            .map(|n| 500.0 + f64::from(n) * 2.0 + f64::from(n % 2))
            .collect();
        let (mean, growth) = fit(&rising);
        assert!((mean - 599.5).abs() < 0.1, "{mean}");
        assert!((growth - 198.0).abs() < 1.0, "{growth}");
        assert_eq!(fit(&[7.0; 50]), (7.0, 0.0));
        assert_eq!(fit(&[]), (0.0, 0.0));
    }
}
