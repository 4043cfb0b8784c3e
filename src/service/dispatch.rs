//! The dispatch: what to send to the model, the plan of pruning that it extends, and the record of it.
//!
//! It is built from reads alone and written in one piece, on the condition that what it was built
//! from is still so; else it is built anew. An edit that has been dispatched stays as it is, so the
//! plan is only ever added to, and only when the context with all its edits is over the budget.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::context::{Carry, Format, Frame, Overlay, Rendered, TRIES, TailReader, read_some};
use super::error::refused;
use super::once::{DispatchRecipe, RequestKey};
use super::rendering::{Built, build, hex};
use super::{Caller, Service, ServiceError, key, session_id};
use crate::domain::context::RENDERER_VERSION;
use crate::domain::policy::PruningPolicy;
use crate::domain::pruning::{self, Aim, Elision, Planner, Step};
use crate::storage::{
    ContextHead, Marks, NewDispatch, NewElision, PlanRow, Previous, RecordDispatch, Recorded,
    SessionKey, TailRow,
};

/// A model that the context might be sent to.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// Its name.
    pub model: String,
    /// Its window, in tokens.
    #[serde(deserialize_with = "super::sessions::whole_number")]
    pub context_window: i64,
}

/// What a dispatch is asked for. All optional.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the schema describes the members")]
pub struct DispatchRequest {
    pub model: Option<String>,
    #[serde(deserialize_with = "super::sessions::whole")]
    pub context_window: Option<i64>,
    #[serde(deserialize_with = "super::sessions::whole")]
    pub max_output_tokens: Option<i64>,
    #[serde(deserialize_with = "super::sessions::whole")]
    pub reserved_tokens: Option<i64>,
    pub format: Option<String>,
    pub candidates: Vec<Candidate>,
    #[serde(rename = "tool_choice")]
    pub tool_choice: Option<Value>,
    /// Prune as far as the rules go, whatever the sizes say: the provider has refused what they let through.
    #[serde(skip)]
    pub force: bool,
    /// Only if it has fewer tokens than this.
    #[serde(skip)]
    pub below: Option<i64>,
}

impl DispatchRequest {
    /// The tool that the model must call, if one is named.
    fn forced_tool(&self) -> Option<&str> {
        let choice = self.tool_choice.as_ref()?;
        let named = ["/function/name", "/name"];
        named.iter().find_map(|at| choice.pointer(at)?.as_str())
    }
}

/// Whether a context fits a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fit {
    /// As it is stored.
    Raw,
    /// With edits that pruning has made or may make.
    Pruned,
    /// Not at all.
    No,
}

/// A candidate and what was found.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Judged {
    /// The candidate.
    #[serde(flatten)]
    pub candidate: Candidate,
    /// Whether the context fits it.
    pub fit: Fit,
}

/// Tokens of a dispatch, those reserved counted in.
#[derive(Debug, Clone, Copy)]
pub struct DispatchTokens {
    /// Without any edit.
    pub before: i64,
    /// As it is sent.
    pub after: i64,
}

/// What to send to a model.
pub struct Dispatched {
    /// Its number in the session.
    pub n: i64,
    /// The form of the messages.
    pub format: Format,
    /// The model it is for.
    pub model: Option<String>,
    /// The session's highest `seq`.
    pub last_seq: i64,
    /// Version and size of the active summary.
    pub compaction: Option<(i64, i64)>,
    /// Index of the summary among the chat-completions messages.
    pub summary_at: Option<usize>,
    /// Calls that still wait for a result.
    pub open_calls: Vec<String>,
    /// How large it is.
    pub tokens: DispatchTokens,
    /// What counted that.
    pub tokens_by: String,
    /// Whether it fits the window, if one was given.
    pub fits: Option<bool>,
    /// What was found of each candidate.
    pub candidates: Vec<Judged>,
    /// Lines for a person.
    pub reasons: Vec<String>,
    /// Indices of messages that the next turn will name again.
    pub breakpoints: Vec<usize>,
    /// SHA-256 of the messages as sent.
    pub digest: String,
    /// The messages.
    pub rendered: Rendered,
}

/// New edits and what they save.
#[derive(Default)]
struct Pruned {
    elisions: Vec<NewElision>,
    saved: i64,
}

/// What a dispatch is built from.
struct Ground<'a> {
    key: SessionKey,
    head: &'a ContextHead,
    frame: Frame,
    policy: PruningPolicy,
    plan: Vec<PlanRow>,
    request: &'a DispatchRequest,
    /// Tokens without any edit.
    raw: i64,
    /// Tokens with the plan's edits.
    estimate: i64,
}

/// What is said of a dispatch.
struct Verdict {
    tokens: DispatchTokens,
    candidates: Vec<Judged>,
    fits: Option<bool>,
    refetches: i64,
    reasons: Vec<String>,
}

impl Verdict {
    /// What of it is recorded.
    fn record(
        &self,
        ground: &Ground<'_>,
        built: &Built,
        previous: Option<&Previous>,
    ) -> NewDispatch {
        NewDispatch {
            renderer: i64::from(RENDERER_VERSION),
            last_seq: ground.head.last_seq,
            carries: ground.frame.carries,
            bytes: signed(built.bytes),
            digest: built.digest.clone(),
            openai_bytes: signed(built.digested.notes.length),
            shared: previous.map(|previous| {
                let same = previous.format == built.format.as_str();
                let shared = built.digested.shared.filter(|_| same).unwrap_or(0);
                (previous.openai_bytes, signed(shared))
            }),
            tokens_before: self.tokens.before,
            tokens_after: self.tokens.after,
            refetches: self.refetches,
            fits: self.fits,
            parameters: ground.request.parameters(),
            candidates: to_json(&self.candidates),
            reasons: to_json(&self.reasons),
            breakpoints: to_json(&built.breakpoints),
            ..NewDispatch::default()
        }
    }
}

impl Pruned {
    /// What is shown in place of stored texts.
    fn overlay(&self) -> HashMap<i64, String> {
        let shown = |new: &NewElision| (new.elision.seq, new.elision.replacement.clone());
        self.elisions.iter().map(shown).collect()
    }

    fn of(elisions: Vec<Elision>, rows: &[TailRow]) -> Self {
        let saved = elisions.iter().map(|elision| elision.saved).sum();
        let elisions = elisions.into_iter().filter_map(|elision| {
            let at = rows
                .binary_search_by_key(&elision.seq, |row| row.row.seq)
                .ok()?;
            let row = rows.get(at)?;
            Some(NewElision {
                elision,
                body_length: row.row.bytes,
                body_digest: row.body_digest.clone(),
            })
        });
        Self {
            elisions: elisions.collect(),
            saved,
        }
    }
}

impl Ground<'_> {
    /// What each edit saves, in the order of the messages.
    fn saved(&self, pruned: &Pruned) -> Vec<(i64, i64)> {
        let carried = self.plan.iter().map(|edit| (edit.seq, edit.saved));
        let added = pruned.elisions.iter();
        let added = added.map(|new| (new.elision.seq, new.elision.saved));
        let mut saved: Vec<_> = carried.chain(added).collect();
        saved.sort_unstable();
        saved
    }

    /// What may be sent to a window.
    fn limit(&self, window: i64) -> i64 {
        pruning::window_limit(&self.policy, window, self.request.max_output_tokens)
    }

    /// What to prune down to; `None` if the context may stay as it is.
    fn target(&self) -> Option<i64> {
        if !self.policy.enabled {
            return None;
        }
        if self.request.force {
            return Some(i64::MIN);
        }
        let window = self
            .request
            .context_window
            .filter(|_| self.policy.fit_to_window);
        pruning::target(
            &self.policy,
            self.estimate,
            window.map(|window| self.limit(window)),
        )
    }

    /// Why this dispatch looks as it does, a line each.
    fn reasons(&self, pruned: &Pruned, tokens: DispatchTokens) -> Vec<String> {
        let mut lines = Vec::new();
        let head = self.head;
        if head.compaction_version > 0 {
            lines.push(format!(
                "compaction: version {} stands for {} messages",
                head.compaction_version, head.compact_size
            ));
        }
        let (added, all) = (
            pruned.elisions.len(),
            self.plan.len() + pruned.elisions.len(),
        );
        if all > 0 {
            lines.push(format!(
                "pruning: {all} {} shortened ({added} of them now), about {} tokens saved, {} to {}",
                if all == 1 { "message" } else { "messages" },
                thousands(tokens.before - tokens.after),
                thousands(tokens.before),
                thousands(tokens.after)
            ));
        }
        if let Some(target) = self
            .target()
            .filter(|target| !self.request.force && tokens.after > *target)
        {
            lines.push(format!(
                "pruning: the rules could do no more; {} tokens are over what was aimed at ({})",
                thousands(tokens.after - target),
                thousands(target)
            ));
        }
        if let Some(window) = self.request.context_window {
            lines.push(format!(
                "window: about {} tokens for {} that may be used of {}",
                thousands(tokens.after),
                thousands(self.limit(window)),
                thousands(window)
            ));
        }
        lines
    }
}

impl DispatchRequest {
    /// What was asked for, as it is recorded.
    fn parameters(&self) -> String {
        to_json(&serde_json::json!({
            "contextWindow": self.context_window,
            "maxOutputTokens": self.max_output_tokens,
            "reservedTokens": self.reserved_tokens,
            "tool_choice": self.tool_choice,
            "forced": self.force,
        }))
    }
}

/// A number of tokens for a person.
fn thousands(tokens: i64) -> String {
    if tokens.abs() < 10_000 {
        return tokens.to_string();
    }
    format!("{}k", (tokens + 500) / 1_000)
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn count(items: usize) -> i64 {
    i64::try_from(items).unwrap_or(i64::MAX)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Service {
    /// Builds what to send to the model, extends the plan if it must, and records it.
    ///
    /// # Errors
    /// There is no such session, it is closed, a message has no place in the form that was asked for, or the
    /// database failed. The plan is unchanged then.
    #[tracing::instrument(level = "debug", skip_all, fields(session, n, tokens))]
    pub async fn dispatch(
        &self,
        caller: Caller,
        session: &str,
        request: &DispatchRequest,
        once: Option<&RequestKey>,
    ) -> Result<Dispatched, ServiceError> {
        let key = key(caller, session)?;
        let span = tracing::Span::current();
        span.record("session", session_id(key.session));
        let mut tried = 0;
        loop {
            tried += 1;
            let head = self.load_head(key, session).await?;
            if head.is_closed() {
                return Err(ServiceError::SessionClosed);
            }
            match self.try_dispatch(key, session, &head, request, once).await {
                // Each time that another dispatch extends the plan, so in a crowd that one gets on.
                Err(ServiceError::ContextMoved) if tried < 8 * TRIES => {}
                outcome => {
                    if let Ok(dispatched) = &outcome {
                        span.record("n", dispatched.n);
                        span.record("tokens", dispatched.tokens.after);
                    }
                    return outcome;
                }
            }
        }
    }

    async fn try_dispatch(
        &self,
        key: SessionKey,
        session: &str,
        head: &ContextHead,
        request: &DispatchRequest,
        once: Option<&RequestKey>,
    ) -> Result<Dispatched, ServiceError> {
        let tail = head.tail()?;
        let ground = self
            .load_ground(key, head, request, tail.turn_is_open())
            .await?;
        let mut rows = None;
        let pruned = self.prune(&ground, &mut rows).await?;
        let previous = self.database().find_previous_dispatch(key).await?;
        let verdict = self
            .judge(&ground, &pruned, previous.as_ref(), rows)
            .await?;
        if request
            .below
            .is_some_and(|below| verdict.tokens.after >= below)
        {
            return Err(ServiceError::NothingFreed);
        }
        let layout = self
            .load_layout(key, head, &ground.frame, ground.saved(&pruned))
            .await?;
        let format = request
            .format
            .as_deref()
            .and_then(Format::parse)
            .unwrap_or_default();
        let (view, overlay) = (&ground.frame.view, pruned.overlay());
        let reader = TailReader::new(self.database().clone(), key, view, Arc::new(overlay));
        let source_breakpoints = to_json(&layout.breakpoints);
        let built = build(
            &ground.frame,
            reader,
            format,
            layout.breakpoints,
            previous.as_ref(),
        )
        .await?;
        let model = request.model.clone().or_else(|| head.model());
        let record = RecordDispatch {
            key,
            view: view.clone(),
            plan_dispatch: head.plan_dispatch,
            dispatch: NewDispatch {
                model: model.clone(),
                format: format.as_str(),
                plan_length: count(ground.plan.len() + pruned.elisions.len()),
                messages: count(layout.count),
                source_breakpoints,
                ..verdict.record(&ground, &built, previous.as_ref())
            },
            elisions: pruned.elisions,
            marks: Marks {
                step: signed(built.digested.notes.step),
                marks: built.digested.notes.bytes,
            },
            now: self.now(),
        };
        let (counted, added) = (record.dispatch.clone(), record.elisions.len());
        let recipe = DispatchRecipe {
            n: 0,
            compact_size: head.compact_size,
            summary_at: ground.frame.summary_at,
            open_calls: tail.open_calls().map(ToOwned::to_owned).collect(),
            tokens_by: self.inner.counter.name().to_owned(),
        };
        let (shown, keep) = (recipe.clone(), recipe.keep(key));
        let n = match self.write_once(key.tenant, once, record, keep).await? {
            Recorded::Done(n) => {
                self.inner.metrics.count_dispatch(&counted, added);
                n
            }
            Recorded::Moved => return Err(ServiceError::ContextMoved),
            Recorded::Refused(refusal) => return Err(refused(refusal, session)),
        };
        let rendered = if let Some(rendered) = built.rendered {
            rendered
        } else {
            let mut view = ground.frame.view.clone();
            view.plan = Some(n);
            let reader = TailReader::new(self.database().clone(), key, &view, Overlay::default());
            read_some(&ground.frame, reader).await?
        };
        Ok(Dispatched {
            n,
            format,
            model,
            last_seq: head.last_seq,
            compaction: (head.compaction_version > 0)
                .then_some((head.compaction_version, head.compact_size)),
            summary_at: ground.frame.summary_at,
            open_calls: shown.open_calls,
            tokens: verdict.tokens,
            tokens_by: shown.tokens_by,
            fits: verdict.fits,
            candidates: verdict.candidates,
            reasons: verdict.reasons,
            breakpoints: built.breakpoints,
            digest: hex(&built.digest),
            rendered,
        })
    }

    async fn load_ground<'a>(
        &self,
        key: SessionKey,
        head: &'a ContextHead,
        request: &'a DispatchRequest,
        turn_is_open: bool,
    ) -> Result<Ground<'a>, ServiceError> {
        let frame = self
            .load_frame(key, head.view(), Carry::IfOpen(turn_is_open))
            .await?;
        let plan = match frame.view.plan {
            Some(plan) => {
                let version = frame.view.version;
                self.database().load_plan(key, version, plan).await?
            }
            None => Vec::new(),
        };
        let raw = frame.tokens(head) + request.reserved_tokens.unwrap_or(0);
        let saved: i64 = plan.iter().map(|edit| edit.saved).sum();
        Ok(Ground {
            key,
            head,
            policy: head.pruning_policy()?,
            plan,
            request,
            estimate: raw - saved,
            raw,
            frame,
        })
    }

    /// The edits that this dispatch adds to the plan.
    async fn prune(
        &self,
        ground: &Ground<'_>,
        rows: &mut Option<Vec<TailRow>>,
    ) -> Result<Pruned, ServiceError> {
        let Some(target) = ground.target() else {
            return Ok(Pruned::default());
        };
        self.plan_elisions(ground, target, rows).await
    }

    async fn plan_elisions(
        &self,
        ground: &Ground<'_>,
        target: i64,
        rows: &mut Option<Vec<TailRow>>,
    ) -> Result<Pruned, ServiceError> {
        let rows = if let Some(rows) = rows {
            rows
        } else {
            let view = &ground.frame.view;
            let read = self
                .database()
                .load_tail_rows(ground.key, view.compact_seq, view.last_seq, &ground.plan)
                .await?;
            rows.insert(read)
        };
        let aim = Aim {
            policy: &ground.policy,
            estimate: ground.estimate,
            target,
            tool_choice: ground.request.forced_tool(),
            counter: self.inner.counter,
        };
        let mut planner = Planner::new(rows.iter().map(|row| row.row.clone()).collect(), &aim);
        let elisions = loop {
            match planner.step() {
                Step::Done(elisions) => break elisions,
                Step::Read(seqs) => {
                    for (seq, body) in self.database().load_bodies(ground.key, &seqs).await? {
                        planner.supply(seq, &body);
                    }
                }
            }
        };
        Ok(Pruned::of(elisions, rows))
    }

    /// What is said of a dispatch.
    async fn judge(
        &self,
        ground: &Ground<'_>,
        pruned: &Pruned,
        previous: Option<&Previous>,
        mut rows: Option<Vec<TailRow>>,
    ) -> Result<Verdict, ServiceError> {
        let tokens = DispatchTokens {
            before: ground.raw,
            after: ground.estimate - pruned.saved,
        };
        Ok(Verdict {
            tokens,
            candidates: self.judge_candidates(ground, tokens, &mut rows).await?,
            fits: ground
                .request
                .context_window
                .map(|window| tokens.after <= ground.limit(window)),
            refetches: self.count_refetches(ground, previous).await?,
            reasons: ground.reasons(pruned, tokens),
        })
    }

    /// What of the candidates the context fits.
    async fn judge_candidates(
        &self,
        ground: &Ground<'_>,
        tokens: DispatchTokens,
        rows: &mut Option<Vec<TailRow>>,
    ) -> Result<Vec<Judged>, ServiceError> {
        let mut least = None;
        let mut judged = Vec::with_capacity(ground.request.candidates.len());
        for candidate in &ground.request.candidates {
            let limit = ground.limit(candidate.context_window);
            let fit = if tokens.before <= limit {
                Fit::Raw
            } else if tokens.after <= limit {
                Fit::Pruned
            } else if ground.policy.enabled && ground.policy.fit_to_window {
                let least = if let Some(least) = least {
                    least
                } else {
                    let all = self.plan_elisions(ground, i64::MIN, rows).await?;
                    *least.insert(ground.estimate - all.saved)
                };
                if least <= limit { Fit::Pruned } else { Fit::No }
            } else {
                Fit::No
            };
            judged.push(Judged {
                candidate: candidate.clone(),
                fit,
            });
        }
        Ok(judged)
    }

    /// Calls since the previous dispatch that ask again for what an edit had taken away.
    async fn count_refetches(
        &self,
        ground: &Ground<'_>,
        previous: Option<&Previous>,
    ) -> Result<i64, ServiceError> {
        let Some(previous) = previous.filter(|_| !ground.plan.is_empty()) else {
            return Ok(0);
        };
        let after = previous.last_seq.max(ground.frame.view.compact_seq);
        let callers = self
            .database()
            .load_callers(ground.key, after, ground.head.last_seq)
            .await?;
        let calls = callers.iter().flat_map(|body| pruning::tail_calls(body));
        let again =
            calls.filter_map(|(name, arguments)| pruning::call_arguments(&name, &arguments));
        let again = again.filter(|newer| {
            let elided = ground.plan.iter().filter(|edit| !edit.arguments.is_empty());
            elided
                .clone()
                .any(|edit| pruning::is_same_resource(newer, &edit.arguments))
        });
        Ok(count(again.count()))
    }
}
