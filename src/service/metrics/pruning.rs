//! What pruning saves and changes, and how stable prefixes are.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::{Registry, Unit};

use super::Metrics;
use crate::storage::NewDispatch;

#[derive(Default)]
pub(super) struct Pruning {
    dispatches: Counter,
    tokens_saved: Counter,
    elisions: Counter,
    plan_changes: Counter,
    previous_bytes: Counter,
    shared_bytes: Counter,
    refetches: Counter,
    restores: Counter,
}

impl Pruning {
    pub(super) fn register(&self, registry: &mut Registry) {
        let counters = [
            (
                "dispatches",
                "Contexts that were handed out to be sent",
                &self.dispatches,
            ),
            (
                "tokens_saved",
                "Tokens that pruning kept from being sent",
                &self.tokens_saved,
            ),
            (
                "elisions",
                "Messages that pruning shortened",
                &self.elisions,
            ),
            (
                "plan_changes",
                "Dispatches that changed the plan of pruning",
                &self.plan_changes,
            ),
            (
                "refetches",
                "Calls made again for something that pruning had shortened",
                &self.refetches,
            ),
            (
                "restores",
                "Shortened messages that were read back",
                &self.restores,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let sizes = [
            (
                "previous_dispatch",
                "Length of dispatches that another one followed",
                &self.previous_bytes,
            ),
            (
                "shared_prefix",
                "How much of that the next dispatch began with",
                &self.shared_bytes,
            ),
        ];
        for (name, help, counter) in sizes {
            registry.register_with_unit(name, help, Unit::Bytes, counter.clone());
        }
    }
}

impl Metrics {
    /// Counts a dispatch that was recorded, with the edits that it added.
    pub fn count_dispatch(&self, dispatch: &NewDispatch, added: usize) {
        let number = |value: i64| u64::try_from(value).unwrap_or(0);
        let counts = &self.pruning;
        counts.dispatches.inc();
        counts
            .tokens_saved
            .inc_by(number(dispatch.tokens_before - dispatch.tokens_after));
        counts.elisions.inc_by(added as u64);
        counts.plan_changes.inc_by(u64::from(added > 0));
        let (previous, shared) = dispatch.shared.unwrap_or((0, 0));
        counts.previous_bytes.inc_by(number(previous));
        counts.shared_bytes.inc_by(number(shared));
        counts.refetches.inc_by(number(dispatch.refetches));
    }

    /// Counts that a shortened message was read back.
    pub fn count_restore(&self) {
        self.pruning.restores.inc();
    }
}
