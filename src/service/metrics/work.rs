//! What is done with sessions: appends, compactions, turns, events, and what waits to be done.

use std::borrow::Cow;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Histograms, InFlight, Labels, Metrics, long_times, short_times};

/// Whose events a stream sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// Those of one session.
    Session,
    /// Those of all sessions of a tenant.
    Tenant,
}

impl StreamKind {
    const ALL: [Self; 2] = [Self::Session, Self::Tenant];

    fn labels(self) -> Labels<1> {
        let kind = match self {
            Self::Session => "session",
            Self::Tenant => "tenant",
        };
        [("kind", Cow::Borrowed(kind))]
    }
}

pub(super) struct Work {
    appends: Counter,
    messages: Counter,
    bytes: Counter,
    compactions: Family<Labels<3>, Counter>,
    compaction_duration: Histograms<1>,
    compactions_running: Gauge,
    compaction_tokens_saved: Counter,
    turns: Family<Labels<1>, Counter>,
    streams: Family<Labels<1>, Gauge>,
    event_lag: Histograms<1>,
    due: Gauge,
    due_age: Gauge,
}

impl Default for Work {
    fn default() -> Self {
        let work = Self {
            appends: Counter::default(),
            messages: Counter::default(),
            bytes: Counter::default(),
            compactions: Family::default(),
            compaction_duration: long_times(),
            compactions_running: Gauge::default(),
            compaction_tokens_saved: Counter::default(),
            turns: Family::default(),
            streams: Family::default(),
            event_lag: short_times(),
            due: Gauge::default(),
            due_age: Gauge::default(),
        };
        for kind in StreamKind::ALL {
            drop(work.streams.get_or_create_owned(&kind.labels()));
        }
        work
    }
}

impl Work {
    pub(super) fn register(&self, registry: &mut Registry) {
        let counters = [
            ("appends", "Appends that were stored", &self.appends),
            (
                "appended_messages",
                "Messages of those appends",
                &self.messages,
            ),
            (
                "compaction_tokens_saved",
                "Tokens by which summaries are smaller than what they replaced",
                &self.compaction_tokens_saved,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let bytes = "Length of those messages, as they came";
        registry.register_with_unit("appended", bytes, Unit::Bytes, self.bytes.clone());
        registry.register(
            "compactions",
            "Compactions that ended here, by outcome, method and cause",
            self.compactions.clone(),
        );
        registry.register_with_unit(
            "compaction_duration",
            "How long compactions took, from the lease to its end",
            Unit::Seconds,
            self.compaction_duration.clone(),
        );
        registry.register("turns", "Turns that ended here", self.turns.clone());
        registry.register_with_unit(
            "event_lag",
            "Time from an event's stamp, just before its commit, to its handing out to a stream",
            Unit::Seconds,
            self.event_lag.clone(),
        );
        self.register_gauges(registry);
    }

    fn register_gauges(&self, registry: &mut Registry) {
        registry.register(
            "compactions_running",
            "Compactions that run here",
            self.compactions_running.clone(),
        );
        registry.register(
            "event_streams",
            "Streams of events that are open here",
            self.streams.clone(),
        );
        registry.register(
            "due_sessions",
            "Sessions of the database that are due for an automatic compaction, 1000 at most",
            self.due.clone(),
        );
        registry.register_with_unit(
            "due_oldest_age",
            "How long the longest of them has been due",
            Unit::Seconds,
            self.due_age.clone(),
        );
    }
}

impl Metrics {
    /// Counts an append that was stored.
    pub fn count_append(&self, messages: usize, bytes: usize) {
        self.work.appends.inc();
        self.work.messages.inc_by(messages as u64);
        self.work.bytes.inc_by(bytes as u64);
    }

    /// Counts a compaction among those that run, for as long as what is given lives.
    #[must_use]
    pub fn begin_compaction(&self) -> InFlight {
        InFlight::begin(&self.work.compactions_running)
    }

    /// Counts a compaction that ended. `method`: `none` if there is no summary.
    pub fn count_compaction(
        &self,
        outcome: &'static str,
        method: &str,
        cause: &'static str,
        took: Duration,
    ) {
        // Words of ours, though this one comes from a record.
        let method = match method {
            "llm" => "llm",
            "extractive" => "extractive",
            _ => "none",
        };
        let outcome = ("outcome", Cow::Borrowed(outcome));
        let labels = [
            outcome.clone(),
            ("method", Cow::Borrowed(method)),
            ("cause", Cow::Borrowed(cause)),
        ];
        self.work.compactions.get_or_create(&labels).inc();
        let duration = self
            .work
            .compaction_duration
            .get_or_create_owned(&[outcome]);
        duration.observe(took.as_secs_f64());
    }

    /// Counts the tokens by which a summary is smaller than what it replaced.
    pub fn count_compacted(&self, tokens: i64) {
        let saved = u64::try_from(tokens).unwrap_or(0);
        self.work.compaction_tokens_saved.inc_by(saved);
    }

    /// Counts a turn that ended, by its status.
    pub fn count_turn(&self, status: &str) {
        let status = match status {
            "completed" => "completed",
            "requires_tool_results" => "requires_tool_results",
            "failed" => "failed",
            "cancelled" => "cancelled",
            _ => "other",
        };
        let labels = [("status", Cow::Borrowed(status))];
        self.work.turns.get_or_create(&labels).inc();
    }

    /// Counts a stream of events among those that are open, for as long as what is given lives.
    #[must_use]
    pub fn begin_stream(&self, kind: StreamKind) -> InFlight {
        InFlight::begin(&self.work.streams.get_or_create_owned(&kind.labels()))
    }

    /// Takes note of how long an event was on its way to a stream.
    pub fn note_event_lag(&self, kind: StreamKind, lag: Duration) {
        let histogram = self.work.event_lag.get_or_create_owned(&kind.labels());
        histogram.observe(lag.as_secs_f64());
    }

    /// Takes note of how many sessions are due, and how long the longest has been.
    pub fn note_due(&self, sessions: i64, oldest: Duration) {
        self.work.due.set(sessions);
        let age = i64::try_from(oldest.as_secs()).unwrap_or(i64::MAX);
        self.work.due_age.set(age);
    }
}
