//! Who writes a summary: a model, then another, or the embedded summarizer.
//!
//! One place decides. A configured model that fails is never replaced by the embedded summarizer
//! unless the operator asked for that, and then the record says so.

use crate::domain::extractive;
use crate::domain::prompt;
use crate::domain::size;
use crate::domain::summary::{self, Answer, Replaced};
use crate::domain::transcript::Entry;
use crate::provider::{ChatModel, ChatRequest, OutputCap, OutputCapName, PromptMessage};

use super::ServiceError;
use super::error::SummarizerFailure;

/// A model server with the model to ask there.
#[derive(Clone)]
pub struct ModelAt {
    /// The server.
    pub server: ChatModel,
    /// Its address, to tell whether two are the same.
    pub base_url: String,
    /// The model's name there.
    pub model: String,
}

/// Who writes summaries, as the operator configured it.
#[derive(Clone)]
pub struct Summarizer {
    /// Whether models are asked at all.
    pub ask_models: bool,
    /// Whether the embedded summarizer stands in for models that fail.
    pub fall_back: bool,
    /// The server of the compaction model.
    pub compaction: Option<ModelAt>,
    /// A compaction model is configured, not only inherited.
    pub compaction_is_own: bool,
    /// The server of the sessions' models.
    pub main: Option<ModelAt>,
    /// Name of the output cap; none is sent without one.
    pub cap_name: Option<OutputCapName>,
    /// The cap in tokens; 0: four times the summary's bound.
    pub cap_tokens: u32,
}

/// What is to be summarised, and by what rules.
pub struct Job {
    /// The system prompt.
    pub prompt: String,
    /// The active summary.
    pub previous: Option<String>,
    /// The batch.
    pub entries: Vec<Entry>,
    /// What the result replaces.
    pub replaced: Replaced,
    /// The model that this run asks for.
    pub requested_model: Option<String>,
    /// The agent's compaction model.
    pub agent_model: Option<String>,
    /// The session's own model.
    pub session_model: Option<String>,
}

/// A summary and where it came from.
#[derive(Debug)]
pub struct Summary {
    /// The text.
    pub text: String,
    /// `llm` or `extractive`.
    pub method: &'static str,
    /// The model that wrote it.
    pub model: Option<String>,
    /// The provider's `usage`, as it came.
    pub usage: Option<String>,
}

impl Summarizer {
    /// Writes the summary of a job.
    ///
    /// # Errors
    /// [`ServiceError::SummarizerFailed`] with the last failure.
    pub async fn summarize(&self, job: Job) -> Result<Summary, ServiceError> {
        let candidates = self.candidates(&job);
        if candidates.is_empty() {
            return extract(job).await;
        }
        let request = |model: &str| ChatRequest {
            model: model.to_owned(),
            messages: vec![
                PromptMessage {
                    role: "system",
                    content: job.prompt.clone(),
                },
                PromptMessage {
                    role: "user",
                    content: prompt::material(job.previous.as_deref(), &job.entries),
                },
            ],
            output_cap: self.output_cap(job.replaced.max_summary_tokens),
        };
        let mut failure = None;
        for candidate in candidates {
            match ask(&candidate, &request(&candidate.model), job.replaced).await {
                Ok(summary) => return Ok(summary),
                Err(error) => {
                    tracing::warn!(model = candidate.model, %error, "a summarizer failed");
                    failure = Some(error);
                }
            }
        }
        if self.fall_back {
            return extract(job).await;
        }
        let failure = failure.ok_or(ServiceError::Internal("no summarizer was asked"))?;
        Err(ServiceError::SummarizerFailed(failure))
    }

    /// The models to ask, in order: the compaction model, then the session's own. Each once.
    fn candidates(&self, job: &Job) -> Vec<ModelAt> {
        let mut candidates = Vec::new();
        if !self.ask_models {
            return candidates;
        }
        let chosen = job.requested_model.as_ref().or(job.agent_model.as_ref());
        if let Some(at) = &self.compaction
            && (chosen.is_some() || self.compaction_is_own || self.main.is_none())
        {
            candidates.push(ModelAt {
                model: chosen.unwrap_or(&at.model).clone(),
                ..at.clone()
            });
        }
        if let Some(at) = &self.main {
            let own = ModelAt {
                model: job.session_model.as_ref().unwrap_or(&at.model).clone(),
                ..at.clone()
            };
            let is_new =
                |first: &ModelAt| first.model != own.model || first.base_url != own.base_url;
            if candidates.iter().all(is_new) {
                candidates.push(own);
            }
        }
        candidates
    }

    fn output_cap(&self, max_summary_tokens: u64) -> Option<OutputCap> {
        let name = self.cap_name?;
        let summary = u32::try_from(max_summary_tokens).unwrap_or(u32::MAX);
        let tokens = match self.cap_tokens {
            0 => summary.saturating_mul(4),
            // A session may allow more than the operator's cap was made for.
            cap => cap.max(summary.saturating_add(1)),
        };
        Some(OutputCap { name, tokens })
    }
}

async fn ask(
    at: &ModelAt,
    request: &ChatRequest,
    replaced: Replaced,
) -> Result<Summary, SummarizerFailure> {
    let completion = at.server.complete(request).await?;
    let answer = Answer {
        text: &completion.text,
        finish: completion.finish.as_deref(),
        refused: completion.refusal.is_some(),
        called_tools: completion.has_tool_calls,
    };
    Ok(Summary {
        text: summary::accept(answer, replaced)?,
        method: "llm",
        model: Some(completion.model.unwrap_or_else(|| at.model.clone())),
        usage: completion.usage.map(|usage| usage.get().to_owned()),
    })
}

/// The embedded summarizer, on a thread where it holds nobody up.
async fn extract(job: Job) -> Result<Summary, ServiceError> {
    /// Below this many UTF-16 units a summary need not be shorter than what it replaces.
    const ALWAYS_SHORTER_ABOVE: u64 = 200;
    let text = tokio::task::spawn_blocking(move || {
        let limit = |units| usize::try_from(units).unwrap_or(usize::MAX);
        let limits = extractive::Limits {
            max_tokens: limit(job.replaced.max_summary_tokens),
            max_units: (job.replaced.units > ALWAYS_SHORTER_ABOVE)
                .then(|| limit(job.replaced.units)),
        };
        extractive::summarize(job.previous.as_deref(), &job.entries, &limits)
    })
    .await
    .map_err(|_| ServiceError::Internal("the embedded summarizer stopped"))?;
    if text.trim().is_empty() {
        return Err(ServiceError::SummarizerFailed(
            summary::Unacceptable::Empty.into(),
        ));
    }
    Ok(Summary {
        text,
        method: "extractive",
        model: None,
        usage: None,
    })
}

/// What a plan folds in, as sizes: the batch, and with the previous summary.
#[must_use]
pub(super) fn replaced(
    previous: Option<&str>,
    batch_units: i64,
    max_summary_tokens: i64,
) -> Replaced {
    let batch_units = u64::try_from(batch_units).unwrap_or(0);
    Replaced {
        units: batch_units + previous.map_or(0, size::units),
        batch_units,
        max_summary_tokens: u64::try_from(max_summary_tokens).unwrap_or(0),
    }
}
