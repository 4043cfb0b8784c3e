//! Compactions that nobody asked for: each replica takes sessions that are due and compacts them.
//!
//! Whoever adds messages marks the session, in the same transaction. A replica that takes it looks again,
//! more exactly, perhaps waits until rewriting the prefix costs nothing extra, and runs an ordinary
//! compaction, which holds the ordinary lease: so that never two run, whoever asked for them. What becomes of
//! the mark is written when the run is over. What is due when is decided by `domain::auto_compaction`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::compaction::Plan;
use super::context::Carry;
use super::ids::session_id;
use super::{Caller, CompactOutcome, CompactRequest, Service, ServiceError, Session};
use crate::domain::auto_compaction::{Load, Stall, Standing};
use crate::domain::context::summary_tokens;
use crate::domain::plan::{Cut, Reason};
use crate::domain::policy::{AutoCompactPolicy, CompactionPolicy, When};
use crate::storage::{
    ClaimDue, LastDispatch, SessionKey, SessionRow, SettleDue, Settled, StorageError, Timestamp,
    View,
};

/// What asked for a compaction: the size of the context.
pub(super) const AUTO: &str = "auto";

/// How often due sessions are looked for that nobody told of.
const LOOK: Duration = Duration::from_secs(1);
/// How long a session is left alone in which something else is going on.
const SOON: Duration = Duration::from_secs(1);

impl Service {
    /// Compacts sessions that are due, a few at once, until the service drains.
    pub(super) async fn attend_due(self, (): ()) {
        let places = Arc::new(Semaphore::new(self.bounds().auto_concurrency));
        loop {
            tokio::select! {
                () = sleep(LOOK) => {}
                () = self.inner.due.notified() => {}
                () = self.inner.draining.cancelled() => return,
            }
            if let Err(error) = self.take_due(&places).await {
                tracing::debug!(%error, "sessions that are due could not be looked for; it is tried again");
            }
        }
    }

    async fn take_due(&self, places: &Arc<Semaphore>) -> Result<(), StorageError> {
        let free = i64::try_from(places.available_permits()).unwrap_or(i64::MAX);
        if free == 0 {
            return Ok(());
        }
        for key in self.database().find_due(self.now(), free).await? {
            let Ok(place) = Arc::clone(places).try_acquire_owned() else {
                break;
            };
            let service = self.clone();
            let work = async move {
                let attended = service.attend(key).await;
                drop(place);
                match attended {
                    // There may be more than there were places for.
                    Ok(()) => service.inner.due.notify_one(),
                    // Its mark comes due again by itself.
                    Err(error) => tracing::warn!(
                        session = session_id(key.session),
                        %error,
                        "a session that is due could not be looked at"
                    ),
                }
            };
            let work = self.inner.tasks.track_future(work);
            self.inner.runtime.spawn(work);
        }
        Ok(())
    }

    /// Takes a session, unless another was faster, and sees to it.
    async fn attend(&self, key: SessionKey) -> Result<(), ServiceError> {
        let now = self.now();
        let claim = now.plus(self.bounds().lease);
        let take = ClaimDue {
            key,
            now,
            until: claim,
        };
        let Some(row) = self.database().write(take).await? else {
            return Ok(());
        };
        let settled = match self.see_to(key, &row).await {
            // The history was rewritten while it was read.
            Err(ServiceError::ContextMoved) => self.later(SOON),
            settled => settled?,
        };
        let settle = SettleDue {
            key,
            claim,
            settled,
            now: self.now(),
        };
        Ok(self.database().write(settle).await?)
    }

    fn later(&self, wait: Duration) -> Settled {
        Settled::Later(self.now().plus(wait))
    }

    /// Compacts a session if that is still called for.
    async fn see_to(&self, key: SessionKey, row: &SessionRow) -> Result<Settled, ServiceError> {
        let nothing = || done(row, Stall::default());
        let Some(policy) = read(row)?.filter(|_| !row.is_closed()) else {
            return Ok(nothing());
        };
        let load = self.measure(key, row).await?;
        let standing = Standing {
            stalled_tokens: row.stalled_tokens,
            ..Standing::default()
        };
        if !policy.becomes_due(standing, load) {
            let still = policy.is_reached(load).then_some(Stall {
                runs: row.stalls,
                tokens: row.stalled_tokens,
            });
            return Ok(done(row, still.unwrap_or_default()));
        }
        if let Some(until) = self.waits_until(key, row, &policy, load).await? {
            let seen = row.updated_at;
            return Ok(Settled::Waits { until, seen });
        }
        let id = session_id(key.session);
        let caller = Caller::itself(key.tenant);
        let request = CompactRequest {
            cause: AUTO,
            ..CompactRequest::default()
        };
        match self.compact(caller, &id, request).await {
            Ok(outcome) => self.judge_run(key, row, &policy, &outcome).await,
            Err(error) => Ok(self.settle_failure(row, &id, &error)),
        }
    }

    fn settle_failure(&self, row: &SessionRow, id: &str, error: &ServiceError) -> Settled {
        match error {
            // It waits its turn, which is no failure.
            ServiceError::CompactionInProgress { .. }
            | ServiceError::CompactionConflict
            | ServiceError::LimitReached { .. } => self.later(SOON),
            // Another replica may take it at once.
            ServiceError::ShuttingDown => self.later(Duration::ZERO),
            ServiceError::SessionClosed | ServiceError::SessionNotFound { .. } => {
                done(row, Stall::default())
            }
            error => {
                tracing::warn!(
                    session = id,
                    code = error.failure_code(),
                    failures = row.due_failures + 1,
                    "an automatic compaction failed; it is tried again later"
                );
                Settled::Failed {
                    first_wait: self.bounds().auto_first_wait,
                }
            }
        }
    }

    /// What a run has come to. What was added meanwhile is not held against it.
    async fn judge_run(
        &self,
        key: SessionKey,
        before: &SessionRow,
        policy: &AutoCompactPolicy,
        outcome: &CompactOutcome,
    ) -> Result<Settled, ServiceError> {
        let after = &outcome.session.row;
        let load = self.measure(key, after).await?;
        let (new, old) = (after.counters(), before.counters());
        let added = new.tokens - old.tokens + new.instruction_tokens - old.instruction_tokens;
        let without_added = Load {
            tokens: load.tokens - added,
            messages: load.messages - (new.positions - old.positions),
        };
        let stall = if policy.is_reached(without_added) {
            Stall::after(before.stalls, without_added.tokens)
        } else {
            Stall::default()
        };
        Ok(done(before, stall))
    }

    /// Until when a session waits; `None` if rewriting its prefix costs nothing extra, or may not be waited for.
    async fn waits_until(
        &self,
        key: SessionKey,
        row: &SessionRow,
        policy: &AutoCompactPolicy,
        load: Load,
    ) -> Result<Option<Timestamp>, ServiceError> {
        if policy.when == When::Now || policy.is_urgent(load) {
            return Ok(None);
        }
        let last = self.database().find_last_dispatch(key).await?;
        let model = row.model();
        let cold = last.and_then(|last| cold_at(policy, model.as_deref(), &last, self.now()));
        // A turn that failed is sent once more in whole anyway.
        Ok(match cold {
            Some(_) if self.database().has_failed_turn(key).await? => None,
            cold => cold,
        })
    }

    /// How large a context is, as `GET …/context` says it.
    async fn measure(&self, key: SessionKey, row: &SessionRow) -> Result<Load, ServiceError> {
        let summary = row.compact_summary.as_deref();
        let pointer = Cut {
            position: row.compact_size,
            last_seq: row.compact_seq,
            length: row.compact_length,
            tokens: row.compact_tokens,
            bytes: row.compact_bytes,
        };
        self.measure_behind(key, row, &pointer, summary.map_or(0, pair_tokens))
            .await
    }

    /// How large a context would be whose tail begins at a cut, behind a summary of so many tokens.
    async fn measure_behind(
        &self,
        key: SessionKey,
        row: &SessionRow,
        cut: &Cut,
        summary: i64,
    ) -> Result<Load, ServiceError> {
        let view = View {
            compact_size: cut.position,
            compact_seq: cut.last_seq,
            compact_bytes: cut.bytes,
            last_seq: row.last_seq,
            history_bytes: row.history_bytes,
            rewrites: row.rewrites,
            ..View::default()
        };
        let turn_is_open = row.tail()?.turn_is_open();
        let frame = self
            .load_frame(key, view, Carry::IfOpen(turn_is_open))
            .await?;
        let saved = self.saved_behind(key, row, cut).await?;
        let tail = row.history_tokens - cut.tokens - saved.values().sum::<i64>();
        Ok(Load {
            tokens: row.instruction_tokens + summary + frame.added_tokens + tail,
            messages: row.position_count - cut.position,
        })
    }

    /// What pruning saves of each message behind a cut, as far as its edits stay.
    async fn saved_behind(
        &self,
        key: SessionKey,
        row: &SessionRow,
        cut: &Cut,
    ) -> Result<HashMap<i64, i64>, ServiceError> {
        let plan = self
            .database()
            .load_plan(key, row.compaction_version, row.dispatch_count)
            .await?;
        let stays = |seq: i64| seq > cut.last_seq;
        let plan = plan
            .into_iter()
            .filter(|edit| stays(edit.seq) && edit.names.is_none_or(stays));
        Ok(plan.map(|edit| (edit.seq, edit.saved)).collect())
    }

    /// Plans a run, whoever asked for it.
    pub(super) async fn plan_run(
        &self,
        key: SessionKey,
        row: &SessionRow,
        request: CompactRequest,
    ) -> Result<(CompactRequest, Plan), ServiceError> {
        if request.cause == AUTO {
            return self.plan_auto(key, row, request).await;
        }
        let plan = self.plan(key, row, &request).await?;
        Ok((request, plan))
    }

    /// Plans a run that nobody asked for: with the session's percentage if that is enough, else with the budget
    /// that gets the context under its trigger at once. Looked at anew with the lease held: whoever had it
    /// before may have done the work.
    async fn plan_auto(
        &self,
        key: SessionKey,
        row: &SessionRow,
        mut request: CompactRequest,
    ) -> Result<(CompactRequest, Plan), ServiceError> {
        let plan = self.plan(key, row, &request).await?;
        let load = self.measure(key, row).await?;
        let Some(policy) = read(row)?.filter(|policy| policy.is_reached(load)) else {
            return Ok((request, plan.without_cut(Reason::WithinBudget)));
        };
        let Ok(cut) = plan.cut else {
            return Ok((request, plan));
        };
        let most = summary_bound(row)?;
        let replaced =
            row.compact_summary.as_deref().map_or(0, pair_tokens) + cut.tokens - row.compact_tokens;
        let after = self
            .measure_behind(key, row, &cut, most.min(replaced))
            .await?;
        if !policy.is_reached(after) {
            return Ok((request, plan));
        }
        let allowance = policy.allowance(row.compact_count, row.instruction_tokens + most);
        let pointer_seq = Cut {
            last_seq: row.compact_seq,
            ..cut
        };
        let saved = self.saved_behind(key, row, &pointer_seq).await?;
        let tail = self.database().load_sizes(key, row).await?;
        let budget = allowance.budget(&tail, |seq| saved.get(&seq).copied().unwrap_or(0));
        let by_percentage = request.clone();
        request.keep_tokens = Some(budget);
        let larger = self.plan(key, row, &request).await?;
        let is_larger = larger.cut.is_ok_and(|by| by.position > cut.position);
        Ok(if is_larger {
            (request, larger)
        } else {
            (by_percentage, plan)
        })
    }

    /// Why a context is still over its trigger behind a compaction that nobody asked for; `None` if it is not.
    pub(super) async fn note(
        &self,
        key: SessionKey,
        session: &Session,
        cut: Cut,
        summary: &str,
        cause: &str,
    ) -> Option<String> {
        if cause != AUTO {
            return None;
        }
        let summary = pair_tokens(summary);
        let load = self
            .measure_behind(key, &session.row, &cut, summary)
            .await
            // If the ground has moved, the commit finds out.
            .ok()?;
        let fixed = session.row.instruction_tokens + summary;
        session.auto_compact.explain(load, fixed)
    }
}

fn read(row: &SessionRow) -> Result<Option<AutoCompactPolicy>, ServiceError> {
    let read = AutoCompactPolicy::read_if_enabled(&row.auto_compact);
    Ok(read.map_err(|_| StorageError::Corrupt("sessions.auto_compact"))?)
}

/// The most tokens that the summary pair may take: a summary half as long again as it should be is accepted.
fn summary_bound(row: &SessionRow) -> Result<i64, ServiceError> {
    let policy: CompactionPolicy = serde_json::from_str(&row.compaction)
        .map_err(|_| StorageError::Corrupt("sessions.compaction"))?;
    Ok(policy.max_summary_tokens.saturating_mul(3) / 2 + pair_tokens(""))
}

fn pair_tokens(summary: &str) -> i64 {
    i64::try_from(summary_tokens(summary)).unwrap_or(i64::MAX)
}

fn done(seen: &SessionRow, stall: Stall) -> Settled {
    Settled::Done {
        seen_seq: seen.last_seq,
        stall,
    }
}

/// When the prefix that was last sent is no longer kept; `None` if it is not now already. Another model never
/// had it.
fn cold_at(
    policy: &AutoCompactPolicy,
    model: Option<&str>,
    last: &LastDispatch,
    now: Timestamp,
) -> Option<Timestamp> {
    if model.is_some() && model != last.model.as_deref() {
        return None;
    }
    let kept = u64::try_from(policy.cache_ttl_seconds).unwrap_or(0);
    let at = last.at.plus(Duration::from_secs(kept));
    (at > now).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_cold_behind_its_time_or_for_another_model() {
        let policy = AutoCompactPolicy {
            cache_ttl_seconds: 10,
            ..AutoCompactPolicy::default()
        };
        let last = |model: Option<&str>| LastDispatch {
            model: model.map(ToOwned::to_owned),
            at: Timestamp(5_000_000),
        };
        let until = Some(Timestamp(15_000_000));
        for (model, sent, now, expected) in [
            (Some("a"), Some("a"), 14_999_999, until),
            (Some("a"), Some("a"), 15_000_000, None),
            (Some("b"), Some("a"), 6_000_000, None),
            (Some("b"), None, 6_000_000, None),
            (None, None, 6_000_000, until),
            (None, Some("a"), 6_000_000, until),
        ] {
            let found = cold_at(&policy, model, &last(sent), Timestamp(now));
            assert_eq!(found, expected, "{model:?} behind {sent:?} at {now}");
        }
    }
}
