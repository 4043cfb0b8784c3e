//! Who writes a summary: a model, then another, or the embedded summarizer.
//!
//! One place decides. A configured model that fails is never replaced by the embedded summarizer
//! unless the operator asked for that, and then the record says so. A batch that is too large for a
//! model is folded: part by part, each part's result being the next part's previous summary.

use super::error::SummarizerFailure;
use super::{CompactRequest, Metrics, Service, ServiceError, Session};
use crate::domain::extractive;
use crate::domain::fold::{Fold, Part};
use crate::domain::prompt;
use crate::domain::redact::redact;
use crate::domain::size;
use crate::domain::summary::{self, Answer, Replaced};
use crate::domain::transcript::Entry;
use crate::provider::{
    ChatModel, ChatRequest, Completion, OutputCap, OutputCapName, PromptMessage, ProviderError,
};

/// Calls that one part of a batch is tried with, each with less of it.
const TRIES: u32 = 4;

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
    /// The context window of the summarizer in tokens, if it is known.
    pub window: Option<u64>,
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
    /// Whether secrets are kept away from the summarizer and out of the summary.
    pub redact: bool,
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
    /// The provider's `usage` of the last call, as it came.
    pub usage: Option<String>,
    /// Calls whose results were folded into it.
    pub parts: i64,
    /// Messages that were too large for any call and were shown shortened.
    pub shortened: i64,
}

impl Summarizer {
    /// The names of the models that the configuration knows.
    #[must_use]
    pub fn models(&self) -> Vec<String> {
        let models = self.main.iter().chain(&self.compaction);
        models.map(|at| at.model.clone()).collect()
    }

    /// Whether there is a model that writes summaries.
    #[must_use]
    pub fn asks_models(&self) -> bool {
        self.ask_models && (self.compaction.is_some() || self.main.is_some())
    }

    /// Writes the summary of a job; calls to models are counted.
    ///
    /// # Errors
    /// [`ServiceError::SummarizerFailed`] with the last failure.
    pub async fn summarize(
        &self,
        mut job: Job,
        metrics: &Metrics,
    ) -> Result<Summary, ServiceError> {
        let redacts = job.redact;
        if redacts {
            // A large batch takes long, and what renews the lease must get on.
            job = tokio::task::spawn_blocking(move || {
                keep_secrets(&mut job);
                job
            })
            .await
            .map_err(|_| ServiceError::Internal("secrets could not be looked for"))?;
        }
        let mut summary = self.write(job, metrics).await?;
        if redacts {
            summary.text = redact(&summary.text).into_owned();
        }
        Ok(summary)
    }

    async fn write(&self, job: Job, metrics: &Metrics) -> Result<Summary, ServiceError> {
        let candidates = self.candidates(&job);
        if candidates.is_empty() {
            return extract(job).await;
        }
        let mut failure = None;
        for candidate in candidates {
            match self.fold(&candidate, &job, metrics).await {
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

    /// Asks one model for the whole batch, in as many parts as it needs.
    async fn fold(
        &self,
        at: &ModelAt,
        job: &Job,
        metrics: &Metrics,
    ) -> Result<Summary, SummarizerFailure> {
        let cap = self.output_cap(job.replaced.max_summary_tokens);
        let reserved = size::tokens(&job.prompt)
            + cap
                .as_ref()
                .map_or(job.replaced.max_summary_tokens, |cap| cap.tokens.into());
        let room = self.window.map(|window| window.saturating_sub(reserved));
        let mut fold = Fold::new(&job.entries, job.previous.clone(), room);
        let mut last: Option<Completion> = None;
        let mut tried = 1;
        while let Some(part) = fold.next_part() {
            let request = ChatRequest {
                model: at.model.clone(),
                messages: vec![
                    PromptMessage {
                        role: "system",
                        content: job.prompt.clone(),
                    },
                    PromptMessage {
                        role: "user",
                        content: prompt::material(fold.previous(), &part.entries),
                    },
                ],
                output_cap: cap,
            };
            let replaced = replaced_by(&fold, &part, job);
            match at.ask_for_summary(&request, replaced, metrics).await? {
                Ok((completion, text)) => {
                    fold.accept(&part, text);
                    last = Some(completion);
                    tried = 1;
                }
                Err(ProviderError::Overflow {
                    prompt_tokens,
                    window,
                    ..
                }) if tried < TRIES && fold.shrink(&part, tried, prompt_tokens.zip(window)) => {
                    tried += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let (parts, shortened) = fold.counts();
        let text = fold.into_summary().ok_or(summary::Unacceptable::Empty)?;
        let model = last
            .as_ref()
            .and_then(|completion| completion.model.clone());
        Ok(Summary {
            text,
            method: "llm",
            model: Some(
                model
                    .filter(|model| is_name(model))
                    .unwrap_or_else(|| at.model.clone()),
            ),
            usage: last
                .and_then(|completion| completion.usage)
                .map(|usage| usage.get().to_owned()),
            parts,
            shortened,
        })
    }

    fn output_cap(&self, max_summary_tokens: u64) -> Option<OutputCap> {
        let name = self.cap_name?;
        let summary = u32::try_from(max_summary_tokens).unwrap_or(u32::MAX);
        let tokens = match self.cap_tokens {
            0 => summary.saturating_mul(4),
            // A session may allow more than the operator's cap was made for.
            cap => cap.max(summary.saturating_add(1)),
        };
        // Half of a small window belongs to the transcript; a server refuses a cap that leaves it no room.
        let half = self.window.map_or(u64::MAX, |window| window / 2);
        let tokens = tokens.min(u32::try_from(half).unwrap_or(u32::MAX)).max(1);
        Some(OutputCap { name, tokens })
    }
}

/// What the answer to one part replaces; the whole job if there is but one part.
fn replaced_by(fold: &Fold<'_>, part: &Part, job: &Job) -> Replaced {
    if fold.is_whole(part) {
        return job.replaced;
    }
    Replaced {
        units: part.units + fold.previous().map_or(0, size::units),
        batch_units: part.units,
        max_summary_tokens: job.replaced.max_summary_tokens,
    }
}

pub(super) fn judge(
    completion: &Completion,
    replaced: Replaced,
) -> Result<String, SummarizerFailure> {
    let answer = Answer {
        text: &completion.text,
        finish: completion.finish.as_deref(),
        refused: completion.refusal.is_some(),
        called_tools: completion.has_tool_calls,
        only_reasoned: completion.reasoning_only,
    };
    Ok(summary::accept(answer, replaced)?)
}

/// Whether a provider's word for its model can be one: it may write anything there.
fn is_name(model: &str) -> bool {
    model.len() <= 128 && model.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Replaces the secrets in everything that goes to a summarizer.
fn keep_secrets(job: &mut Job) {
    let keep = |text: &mut String| {
        if let std::borrow::Cow::Owned(redacted) = redact(text) {
            *text = redacted;
        }
    };
    keep(&mut job.prompt);
    job.previous.iter_mut().for_each(keep);
    for entry in &mut job.entries {
        match entry {
            Entry::User { text } | Entry::ToolResult { text, .. } => keep(text),
            Entry::Assistant { text, calls } => {
                keep(text);
                for call in calls {
                    keep(&mut call.arguments);
                }
            }
        }
    }
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
        parts: 1,
        shortened: 0,
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

impl Service {
    /// What a compaction asks of its summarizer.
    pub(super) fn job(
        &self,
        session: &Session,
        entries: Vec<Entry>,
        batch_length: i64,
        request: &CompactRequest,
    ) -> Job {
        let agent = session.agent.as_ref();
        let own_prompt = agent.and_then(|agent| agent.compaction_prompt.as_deref());
        let previous = session.row.compact_summary.clone();
        Job {
            prompt: prompt::system(
                own_prompt.unwrap_or(&self.inner.defaults.compaction_prompt),
                session.compaction.max_summary_tokens,
                request.instructions.as_deref(),
            ),
            replaced: replaced(
                previous.as_deref(),
                batch_length,
                session.compaction.max_summary_tokens,
            ),
            previous,
            entries,
            redact: session.compaction.redact_secrets,
            requested_model: request.model.clone(),
            agent_model: agent.and_then(|agent| agent.compaction_model.clone()),
            session_model: session.row.model(),
        }
    }
}
