//! What use cases tell of themselves: to the metrics, and to the spans of a trace.
//!
//! It stands apart so that each of them says what it does and not how that is watched. Spans hold ids, names,
//! sizes and outcomes, never content.

use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::{MissedTickBehavior, interval};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::compaction::end_of;
use super::error::SummarizerFailure;
use super::summarizer::judge;
use super::turns::ModelRequest;
use super::{CompactOutcome, Metrics, ModelAt, Purpose, Service, ServiceError, StreamKind};
use crate::domain::event::CompactionEnd;
use crate::domain::summary::Replaced;
use crate::provider::{ChatRequest, Completion, ProviderError, TurnAnswer};
use crate::storage::Timestamp;
use crate::telemetry;

/// How often it is counted what is due, and how far.
const MEASURE: Duration = Duration::from_secs(5);
const MOST_COUNTED: i64 = 1_000;

impl Service {
    /// Counts how a compaction ended, and puts it into its span.
    pub(super) fn note_outcome(
        &self,
        outcome: &Result<CompactOutcome, ServiceError>,
        cause: &'static str,
        took: Duration,
    ) {
        let record = outcome
            .as_ref()
            .ok()
            .and_then(|done| done.compaction.as_ref());
        let name = match outcome {
            Ok(_) if record.is_some() => "compacted",
            Ok(_) => "nothing",
            Err(error) => match end_of(Some(error)) {
                CompactionEnd::Failed(_) => "failed",
                CompactionEnd::Cancelled(_) => "cancelled",
            },
        };
        let method = record.map_or("none", |record| record.method.as_str());
        let span = Span::current();
        span.record("outcome", name);
        if let Some(record) = record {
            span.record("method", method);
            span.record("version", record.version);
        }
        if let Err(error) = outcome {
            telemetry::mark_failed(&span, error.failure_code());
        }
        self.inner
            .metrics
            .count_compaction(name, method, cause, took);
    }

    /// Makes one call to the model of a turn, and counts it.
    pub(super) async fn ask_model(
        &self,
        at: &ModelAt,
        request: ModelRequest,
        on_delta: impl FnMut(&RawValue) + Send,
    ) -> Result<TurnAnswer, ProviderError> {
        let metrics = &self.inner.metrics;
        let (model, stream, bytes) = (&at.model, request.stream, request.messages.len());
        let span = tracing::debug_span!("model call", model, stream, bytes, outcome = Empty);
        let call = metrics.begin_call(Purpose::Turn, model);
        let server = at.server.clone();
        let server = server.counting_retries(metrics.retries(Purpose::Turn));
        let answered = server
            .turn(request, on_delta)
            .instrument(span.clone())
            .await;
        match &answered {
            Ok(answer) => {
                let outcome = if answer.incomplete {
                    "incomplete"
                } else {
                    "ok"
                };
                span.record("outcome", outcome);
                call.answered(outcome, answer.usage.as_deref().map(RawValue::get));
            }
            Err(error) => {
                span.record("outcome", error.kind());
                telemetry::mark_failed(&span, error.kind());
                call.failed(error);
            }
        }
        answered
    }

    /// Takes note of how long an event was on its way.
    pub(super) fn note_lag(&self, kind: StreamKind, created_at: Timestamp) {
        let micros = u64::try_from(self.now().0 - created_at.0).unwrap_or(0);
        let lag = Duration::from_micros(micros);
        self.inner.metrics.note_event_lag(kind, lag);
    }

    /// Counts now and then what is due, so that nobody who asks for the metrics waits for the database.
    pub(super) async fn count_due(self, (): ()) {
        let mut ticks = interval(MEASURE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.database().count_due(self.now(), MOST_COUNTED).await {
                Ok((sessions, oldest)) => {
                    let oldest = Duration::from_micros(u64::try_from(oldest).unwrap_or(0));
                    self.inner.metrics.note_due(sessions, oldest);
                }
                Err(error) => {
                    tracing::debug!(%error, "what is due could not be counted; it is tried again");
                }
            }
        }
    }
}

impl ModelAt {
    /// Asks for one summary, and judges it. The inner error is that of the call.
    pub(super) async fn ask_for_summary(
        &self,
        request: &ChatRequest,
        replaced: Replaced,
        metrics: &Metrics,
    ) -> Result<Result<(Completion, String), ProviderError>, SummarizerFailure> {
        let span = tracing::debug_span!("summarizer call", model = self.model, outcome = Empty);
        let call = metrics.begin_call(Purpose::Summary, &self.model);
        let server = self.server.clone();
        let server = server.counting_retries(metrics.retries(Purpose::Summary));
        let completion = match server.complete(request).instrument(span.clone()).await {
            Ok(completion) => completion,
            Err(error) => {
                call.failed(&error);
                span.record("outcome", error.kind());
                telemetry::mark_failed(&span, error.kind());
                return Ok(Err(error));
            }
        };
        let judged = judge(&completion, replaced);
        let outcome = if judged.is_ok() { "ok" } else { "unacceptable" };
        span.record("outcome", outcome);
        call.answered(outcome, completion.usage.as_deref().map(RawValue::get));
        Ok(Ok((completion, judged?)))
    }
}
