//! What goes wrong, and when: a plan made from the seed, so many kills of it, and the rest in proportion.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::Outcome;
use crate::findings::Findings;
use crate::postgres::Postgres;
use crate::random::Random;
use crate::server::Replica;

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    /// A replica is killed, and starts again a little later.
    Kill,
    /// It is killed, and killed again while it starts.
    KillTwice,
    /// All are killed at once.
    KillAll,
    /// A replica stands still for longer than its leases last, and goes on.
    Pause,
    /// The database's server ends its connections and starts again.
    RestartFast,
    /// It crashes and starts again.
    RestartImmediate,
}

/// Makes the plan: at least so many kills.
fn plan(random: &mut Random, kills: usize, replicas: usize, postgres: bool) -> Vec<Deed> {
    let mut deeds = Vec::new();
    let mut left = kills;
    while left > 0 {
        let (deed, killed) = match random.below(10) {
            0 | 1 if left > 1 => (Deed::KillTwice, 2),
            2 if left >= replicas && replicas > 1 => (Deed::KillAll, replicas),
            _ => (Deed::Kill, 1),
        };
        deeds.push(deed);
        left -= killed;
    }
    let few = kills.div_ceil(12).max(1);
    deeds.extend(std::iter::repeat_n(Deed::Pause, few));
    if postgres {
        deeds.extend(std::iter::repeat_n(Deed::RestartFast, few));
        deeds.extend(std::iter::repeat_n(Deed::RestartImmediate, few));
    }
    random.shuffle(&mut deeds);
    deeds
}

/// What it takes to do harm.
pub struct Chaos {
    pub replicas: Vec<Arc<Replica>>,
    pub postgres: Option<Arc<Postgres>>,
    pub findings: Arc<Findings>,
    /// How long a lease lasts.
    pub lease: Duration,
    pub random: Random,
}

impl Chaos {
    /// Does it all within about that time, and starts again whatever it ended.
    pub async fn rage(mut self, kills: usize, time: Duration) -> Outcome<()> {
        let deeds = plan(
            &mut self.random,
            kills,
            self.replicas.len(),
            self.postgres.is_some(),
        );
        let count = u32::try_from(deeds.len()).unwrap_or(u32::MAX).max(1);
        let gap = time / count;
        let began = Instant::now();
        for (deed, index) in deeds.into_iter().zip(1..) {
            self.commit(deed).await?;
            // Some a little earlier, some later.
            let due = gap * index;
            let ahead = due.saturating_sub(began.elapsed());
            sleep(ahead.mul_f64(0.5) + self.random.millis(0, 400)).await;
        }
        Ok(())
    }

    fn some(&mut self) -> Option<Arc<Replica>> {
        self.random.pick(&self.replicas).map(Arc::clone)
    }

    fn kill(&self, replica: &Replica) {
        if replica.kill() {
            self.findings.count("kills");
        }
    }

    async fn commit(&mut self, deed: Deed) -> Outcome<()> {
        let Some(replica) = self.some() else {
            return Ok(());
        };
        match deed {
            Deed::Kill => {
                self.kill(&replica);
                sleep(self.random.millis(0, 800)).await;
                replica.start().await?;
            }
            Deed::KillTwice => {
                self.kill(&replica);
                let after = self.random.millis(0, 500);
                replica.start_and_kill(after).await?;
                self.findings.count("kills");
                replica.start().await?;
            }
            Deed::KillAll => {
                for replica in &self.replicas {
                    self.kill(replica);
                }
                sleep(self.random.millis(0, 500)).await;
                for replica in &self.replicas {
                    replica.start().await?;
                }
            }
            Deed::Pause => {
                replica.signal("STOP")?;
                sleep(self.lease + self.random.millis(500, 1_500)).await;
                replica.signal("CONT")?;
                self.findings.count("pauses longer than a lease");
            }
            Deed::RestartFast => self.restart("fast").await?,
            Deed::RestartImmediate => self.restart("immediate").await?,
        }
        Ok(())
    }

    async fn restart(&self, mode: &'static str) -> Outcome<()> {
        let Some(postgres) = self.postgres.clone() else {
            return Ok(());
        };
        tokio::task::spawn_blocking(move || postgres.restart(mode)).await??;
        self.findings
            .count(format!("restarts of PostgreSQL: {mode}"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_kills_as_often_as_it_was_told_and_is_the_same_for_a_seed() {
        let made = |seed| plan(&mut Random::new(seed), 100, 2, true);
        let deeds = made(7);
        let kills: usize = deeds
            .iter()
            .map(|deed| match deed {
                Deed::Kill => 1,
                Deed::KillTwice | Deed::KillAll => 2,
                _ => 0,
            })
            .sum();
        assert_eq!(kills, 100);
        for deed in [
            Deed::Pause,
            Deed::RestartFast,
            Deed::RestartImmediate,
            Deed::KillAll,
        ] {
            assert!(deeds.contains(&deed), "{deed:?}");
        }
        assert_eq!(deeds, made(7));
        assert_ne!(deeds, made(8));
    }
}
