//! Calls to models: how they ended, how long they took, what they cost, and since when a model fails.
//!
//! A call is what the service asked for once: the tries that it took are one call, and each try behind the
//! first is a retry.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use serde::Deserialize;
use time::OffsetDateTime;

use super::{Histograms, Labels, Metrics, long_times};
use crate::provider::ProviderError;
use crate::storage::Timestamp;

/// What a model is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The answer of a turn.
    Turn,
    /// A summary, or a part of one.
    Summary,
}

impl Purpose {
    const ALL: [Self; 2] = [Self::Turn, Self::Summary];

    /// Its name in labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Summary => "summary",
        }
    }
}

pub(super) struct Calls {
    models: Vec<String>,
    ended: Family<Labels<3>, Counter>,
    duration: Histograms<2>,
    tokens: Family<Labels<3>, Counter>,
    retries: Family<Labels<1>, Counter>,
    /// Since when calls for turns, and those for summaries, have failed.
    failing: [Mutex<Option<Timestamp>>; 2],
}

impl Calls {
    pub(super) fn new(models: Vec<String>) -> Self {
        let calls = Self {
            models,
            ended: Family::default(),
            duration: long_times(),
            tokens: Family::default(),
            retries: Family::default(),
            failing: Default::default(),
        };
        for purpose in Purpose::ALL {
            drop(calls.retries(purpose));
        }
        calls
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "model_calls",
            "Calls to models by purpose, model and outcome",
            self.ended.clone(),
        );
        registry.register_with_unit(
            "model_call_duration",
            "How long calls to models took, with all their tries",
            Unit::Seconds,
            self.duration.clone(),
        );
        registry.register_with_unit(
            "model",
            "What models said that their calls took",
            Unit::Other("tokens".to_owned()),
            self.tokens.clone(),
        );
        registry.register(
            "model_call_retries",
            "Tries of calls to models behind the first",
            self.retries.clone(),
        );
    }

    fn retries(&self, purpose: Purpose) -> Counter {
        let labels = [("purpose", Cow::Borrowed(purpose.as_str()))];
        self.retries.get_or_create_owned(&labels)
    }

    fn failing(&self, purpose: Purpose) -> std::sync::MutexGuard<'_, Option<Timestamp>> {
        let [turn, summary] = &self.failing;
        let failing = match purpose {
            Purpose::Turn => turn,
            Purpose::Summary => summary,
        };
        failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A model's name, if it is one of the configuration's.
    fn name(&self, model: &str) -> Cow<'static, str> {
        let known = self.models.iter().find(|known| *known == model);
        known.map_or(Cow::Borrowed("other"), |known| Cow::Owned(known.clone()))
    }
}

/// A call under way. One that is dropped before its end was cancelled.
pub struct ModelCall<'m> {
    calls: &'m Calls,
    purpose: Purpose,
    model: Cow<'static, str>,
    began: Instant,
    ended: bool,
}

impl ModelCall<'_> {
    /// It gave an answer. `outcome`: `ok`, or what there is to say against it. `usage`: the provider's count, as
    /// it came.
    pub fn answered(mut self, outcome: &'static str, usage: Option<&str>) {
        *self.calls.failing(self.purpose) = None;
        self.count(outcome);
        let Some(usage) = usage.and_then(|usage| serde_json::from_str::<Usage>(usage).ok()) else {
            return;
        };
        let cached = usage.details.and_then(|details| details.cached_tokens);
        for (kind, tokens) in [
            ("input", usage.prompt_tokens),
            ("output", usage.completion_tokens),
            ("cached_input", cached),
        ] {
            if let Some(tokens) = tokens {
                self.tokens(kind).inc_by(tokens);
            }
        }
    }

    /// It failed.
    pub fn failed(mut self, error: &ProviderError) {
        // A model that finds a prompt too long works.
        if !matches!(error, ProviderError::Overflow { .. }) {
            self.calls
                .failing(self.purpose)
                .get_or_insert_with(|| Timestamp::of(OffsetDateTime::now_utc()));
        }
        self.count(error.kind());
    }

    fn tokens(&self, kind: &'static str) -> Counter {
        let labels = [
            ("purpose", Cow::Borrowed(self.purpose.as_str())),
            ("model", self.model.clone()),
            ("kind", Cow::Borrowed(kind)),
        ];
        self.calls.tokens.get_or_create_owned(&labels)
    }

    fn count(&mut self, outcome: &'static str) {
        self.ended = true;
        let purpose = ("purpose", Cow::Borrowed(self.purpose.as_str()));
        let model = ("model", self.model.clone());
        let ended = [
            purpose.clone(),
            model.clone(),
            ("outcome", Cow::Borrowed(outcome)),
        ];
        self.calls.ended.get_or_create(&ended).inc();
        let seconds = self.began.elapsed().as_secs_f64();
        let duration = self.calls.duration.get_or_create_owned(&[purpose, model]);
        duration.observe(seconds);
    }
}

impl Drop for ModelCall<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.count("cancelled");
        }
    }
}

/// What is read of a provider's count. Members that are no whole numbers spoil all of it, which is then not counted.
#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    #[serde(rename = "prompt_tokens_details")]
    details: Option<UsageDetails>,
}

#[derive(Deserialize)]
struct UsageDetails {
    cached_tokens: Option<u64>,
}

impl Metrics {
    /// Counts a call to a model from now on.
    #[must_use]
    pub fn begin_call(&self, purpose: Purpose, model: &str) -> ModelCall<'_> {
        ModelCall {
            calls: &self.calls,
            purpose,
            model: self.calls.name(model),
            began: Instant::now(),
            ended: false,
        }
    }

    /// What counts the tries behind the first.
    #[must_use]
    pub fn retries(&self, purpose: Purpose) -> Counter {
        self.calls.retries(purpose)
    }

    /// Since when calls of that purpose have failed, if the last one did.
    #[must_use]
    pub fn failing_since(&self, purpose: Purpose) -> Option<Timestamp> {
        *self.calls.failing(purpose)
    }
}
