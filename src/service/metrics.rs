//! What a replica counts for those who watch it. The numbers are those that the sessions' statistics
//! count, at the moment they are committed.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use super::ServiceError;
use crate::storage::NewDispatch;

/// Labels of what ends one way or another.
type Outcome = [(&'static str, String); 1];

/// The counters of a replica, since its start.
pub struct Metrics {
    registry: Registry,
    dispatches: Counter,
    tokens_saved: Counter,
    elisions: Counter,
    plan_changes: Counter,
    previous_bytes: Counter,
    shared_bytes: Counter,
    refetches: Counter,
    restores: Counter,
    turns: Family<Outcome, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("precis"),
            dispatches: Counter::default(),
            tokens_saved: Counter::default(),
            elisions: Counter::default(),
            plan_changes: Counter::default(),
            previous_bytes: Counter::default(),
            shared_bytes: Counter::default(),
            refetches: Counter::default(),
            restores: Counter::default(),
            turns: Family::default(),
        };
        let counters = [
            (
                "dispatches",
                "Contexts that were handed out to be sent",
                &metrics.dispatches,
            ),
            (
                "tokens_saved",
                "Tokens that pruning kept from being sent",
                &metrics.tokens_saved,
            ),
            (
                "elisions",
                "Messages that pruning shortened",
                &metrics.elisions,
            ),
            (
                "plan_changes",
                "Dispatches that changed the plan of pruning",
                &metrics.plan_changes,
            ),
            (
                "refetches",
                "Calls made again for something that pruning had shortened",
                &metrics.refetches,
            ),
            (
                "restores",
                "Shortened messages that were read back",
                &metrics.restores,
            ),
        ];
        for (name, help, counter) in counters {
            metrics.registry.register(name, help, counter.clone());
        }
        let sizes = [
            (
                "previous_dispatch",
                "Length of dispatches that another one followed",
                &metrics.previous_bytes,
            ),
            (
                "shared_prefix",
                "How much of that the next dispatch began with",
                &metrics.shared_bytes,
            ),
        ];
        for (name, help, counter) in sizes {
            metrics
                .registry
                .register_with_unit(name, help, Unit::Bytes, counter.clone());
        }
        metrics
            .registry
            .register("turns", "Turns that ended here", metrics.turns.clone());
        metrics
    }
}

impl Metrics {
    /// Counts a dispatch that was recorded, with the edits that it added.
    pub fn count_dispatch(&self, dispatch: &NewDispatch, added: usize) {
        let number = |value: i64| u64::try_from(value).unwrap_or(0);
        self.dispatches.inc();
        self.tokens_saved
            .inc_by(number(dispatch.tokens_before - dispatch.tokens_after));
        self.elisions.inc_by(added as u64);
        self.plan_changes.inc_by(u64::from(added > 0));
        let (previous, shared) = dispatch.shared.unwrap_or((0, 0));
        self.previous_bytes.inc_by(number(previous));
        self.shared_bytes.inc_by(number(shared));
        self.refetches.inc_by(number(dispatch.refetches));
    }

    /// Counts that a shortened message was read back.
    pub fn count_restore(&self) {
        self.restores.inc();
    }

    /// Counts a turn that ended, by its status.
    pub fn count_turn(&self, status: &str) {
        self.turns
            .get_or_create(&[("status", status.to_owned())])
            .inc();
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
