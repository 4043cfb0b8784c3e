//! Requests over HTTP: how many, how fast, how many at once, and which were turned away.

use std::borrow::Cow;
use std::time::Instant;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Histograms, InFlight, Labels, Metrics, short_times};

pub(super) struct Requests {
    answered: Family<Labels<3>, Counter>,
    duration: Histograms<2>,
    in_flight: Gauge,
    replays: Counter,
    refusals: Family<Labels<1>, Counter>,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            answered: Family::default(),
            duration: short_times(),
            in_flight: Gauge::default(),
            replays: Counter::default(),
            refusals: Family::default(),
        }
    }
}

impl Requests {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "http_requests",
            "Requests by route, method and status",
            self.answered.clone(),
        );
        registry.register_with_unit(
            "http_request_duration",
            "Time to the end of an answer's making; of a stream, to its head",
            Unit::Seconds,
            self.duration.clone(),
        );
        registry.register(
            "http_requests_in_flight",
            "Requests that are being answered; streams count until their head",
            self.in_flight.clone(),
        );
        registry.register(
            "idempotent_replays",
            "Requests that were answered with what was stored for their Idempotency-Key",
            self.replays.clone(),
        );
        registry.register(
            "limit_refusals",
            "Requests that were turned away by a limit of their tenant",
            self.refusals.clone(),
        );
    }
}

/// A request that is being answered.
pub struct WatchedRequest {
    answered: Family<Labels<3>, Counter>,
    duration: Histograms<2>,
    method: &'static str,
    route: String,
    began: Instant,
    ended: bool,
    _in_flight: InFlight,
}

impl WatchedRequest {
    /// It was answered with this status.
    pub fn end(mut self, status: u16) {
        self.ended = true;
        self.count(Cow::Owned(status.to_string()));
        let labels = [
            ("route", Cow::Owned(std::mem::take(&mut self.route))),
            ("method", Cow::Borrowed(self.method)),
        ];
        let seconds = self.began.elapsed().as_secs_f64();
        self.duration.get_or_create(&labels).observe(seconds);
    }

    fn count(&self, status: Cow<'static, str>) {
        let labels = [
            ("route", Cow::Owned(self.route.clone())),
            ("method", Cow::Borrowed(self.method)),
            ("status", status),
        ];
        self.answered.get_or_create(&labels).inc();
    }
}

impl Drop for WatchedRequest {
    fn drop(&mut self) {
        if !self.ended {
            // Its client went away.
            self.count(Cow::Borrowed("dropped"));
        }
    }
}

impl Metrics {
    /// Counts a request from now on. `route` and `method` are the server's own words: a pattern, never a path.
    #[must_use]
    pub fn begin_request(&self, route: String, method: &'static str) -> WatchedRequest {
        let requests = &self.requests;
        WatchedRequest {
            answered: requests.answered.clone(),
            duration: requests.duration.clone(),
            method,
            route,
            began: Instant::now(),
            ended: false,
            _in_flight: InFlight::begin(&requests.in_flight),
        }
    }

    /// Counts a request that was answered with what was stored for its `Idempotency-Key`.
    pub fn count_replay(&self) {
        self.requests.replays.inc();
    }

    /// Counts a request that was turned away by a limit of its tenant. `limit`: which, in the server's own word.
    pub fn count_refusal(&self, limit: &'static str) {
        let labels = [("limit", Cow::Borrowed(limit))];
        self.requests.refusals.get_or_create(&labels).inc();
    }
}
