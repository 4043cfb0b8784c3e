//! What is true at the moment: looked at in memory, when the metrics are asked for.

use std::fmt;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::service::turns::Turns;
use crate::storage::{Database, StorageWatch};

/// Where it is looked.
#[derive(Clone, Default)]
pub(in crate::service) struct Live {
    pub(in crate::service) database: Option<Database>,
    pub(in crate::service) turns: Turns,
    /// Whether other replicas are heard.
    pub(in crate::service) hears: Arc<AtomicBool>,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

impl Live {
    pub(super) fn watch(&self) -> Option<&StorageWatch> {
        self.database.as_ref().map(Database::watch)
    }

    fn running_turns(&self) -> usize {
        let turns = self.turns.lock();
        turns.unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Collector for Live {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        gauge(
            &mut encoder,
            "turns_running",
            "Turns that run here",
            self.running_turns(),
        )?;
        let Some(database) = &self.database else {
            return Ok(());
        };
        connections(&mut encoder, database)?;
        if let Some(waiting) = database.waiting_writes() {
            gauge(
                &mut encoder,
                "writer_queue_length",
                "SQLite: writes that wait for the writer",
                waiting,
            )?;
        }
        let failing = database.watch().failing_since().is_some();
        gauge(
            &mut encoder,
            "writer_failing",
            "Whether the last write failed because the database takes none",
            usize::from(failing),
        )?;
        gauge(
            &mut encoder,
            "listener_connected",
            "Whether other replicas are heard at once; where they are not, the database is polled",
            usize::from(self.hears.load(Ordering::Relaxed)),
        )
    }
}

fn connections(encoder: &mut DescriptorEncoder, database: &Database) -> fmt::Result {
    let pool = database.pool_state();
    let mut family = encoder.encode_descriptor(
        "database_connections",
        "Connections to the database that are open (SQLite: those for reading)",
        None,
        MetricType::Gauge,
    )?;
    for (state, connections) in [("idle", pool.idle), ("in_use", pool.in_use)] {
        let labels = [("state", state)];
        ConstGauge::new(i64::from(connections)).encode(family.encode_family(&labels)?)?;
    }
    gauge(
        encoder,
        "database_connections_max",
        "Connections to the database that may be open",
        usize::try_from(pool.most).unwrap_or(usize::MAX),
    )
}

fn gauge(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: usize) -> fmt::Result {
    let value = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    value.encode(metric)
}
