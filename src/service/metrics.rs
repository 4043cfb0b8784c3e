//! What a replica counts for those who watch it, since its start.
//!
//! Labels hold words of the program and names from its configuration, never a session, a tenant, a key or
//! anything else that a client may choose: their number has a bound. Numbers of pruning are those that the
//! sessions' statistics count, at the moment they are committed. What is only true now (connections, queues,
//! memory) is looked at when it is asked for, and nothing that is asked for then asks the database.

mod calls;
mod live;
mod process;
mod pruning;
mod requests;
mod work;

use std::borrow::Cow;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use calls::Purpose;
pub(super) use live::Live;
pub use requests::WatchedRequest;
pub use work::StreamKind;

use self::calls::Calls;
use self::process::Process;
use self::pruning::Pruning;
use self::requests::Requests;
use self::work::Work;
use super::ServiceError;
use crate::storage::StorageWatch;

/// Labels of a metric.
type Labels<const N: usize> = [(&'static str, Cow<'static, str>); N];

/// Histograms by label.
type Histograms<const N: usize> = Family<Labels<N>, Histogram>;

/// Histograms of things that take from a millisecond to a quarter of a minute.
fn short_times<const N: usize>() -> Histograms<N> {
    Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 15)))
}

/// Histograms of things that take from 50 milliseconds to a quarter of an hour.
fn long_times<const N: usize>() -> Histograms<N> {
    Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.05, 2.0, 15)))
}

/// The counters of a replica, since its start.
pub struct Metrics {
    registry: Registry,
    pruning: Pruning,
    requests: Requests,
    calls: Calls,
    work: Work,
}

/// One more of something, for as long as this lives.
pub struct InFlight(Gauge);

impl InFlight {
    fn begin(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Counters at zero. `models`: the names that the configuration knows; calls to any other are told of as
    /// `other`.
    pub(super) fn new(live: Live, models: Vec<String>) -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            pruning: Pruning::default(),
            requests: Requests::default(),
            calls: Calls::new(models),
            work: Work::default(),
        };
        // Named as every exporter names them.
        metrics
            .registry
            .register_collector(Box::new(Process::new()));
        let registry = metrics.registry.sub_registry_with_prefix("precis");
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "Version of the program", Info::new(version));
        metrics.pruning.register(registry);
        metrics.requests.register(registry);
        metrics.calls.register(registry);
        metrics.work.register(registry);
        if let Some(watch) = live.watch() {
            register_storage(registry, watch);
        }
        registry.register_collector(Box::new(live));
        metrics
    }

    /// All of it, in the text format of `OpenMetrics`.
    ///
    /// # Errors
    /// It cannot be written, which is a mistake of ours.
    pub fn render(&self) -> Result<String, ServiceError> {
        let mut text = String::new();
        encode(&mut text, &self.registry)
            .map_err(|_| ServiceError::Internal("the metrics could not be written"))?;
        Ok(text)
    }
}

fn register_storage(registry: &mut Registry, watch: &StorageWatch) {
    use prometheus_client::registry::Unit;
    let times = [
        (
            "database_acquire",
            "How long a connection to the database was waited for",
            &watch.acquire,
        ),
        ("database_commit", "How long commits took", &watch.commit),
    ];
    for (name, help, histogram) in times {
        registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
    }
    registry.register(
        "writer_group_writes",
        "SQLite: writes that shared a commit",
        watch.group.clone(),
    );
    registry.register(
        "database_acquire_timeouts",
        "Connections to the database that did not come free in time",
        watch.acquire_timeouts.clone(),
    );
    registry.register(
        "database_write_failures",
        "Transactions that failed because the database takes no writes",
        watch.write_failures.clone(),
    );
}

#[cfg(test)]
mod tests;
