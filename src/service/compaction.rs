//! Compaction: plan, summarise, commit; or say why there is nothing to do.
//!
//! The run holds the session's lease and no transaction while the summarizer works. What it read
//! before is checked again when it commits, so whatever happened meanwhile, either all of it is
//! written or nothing. It runs as a task of the service's own: a client that goes away changes nothing.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use serde::Deserialize;
use tracing::Instrument;
use uuid::Uuid;

use super::error::{LONGEST_RETRY, refused};
use super::once_work::CompactOnce;
use super::summarizer::Summary;
use super::{Caller, Service, ServiceError, Session, key};
use crate::domain::budget;
use crate::domain::event::{Cancelled, CompactionEnd, CompactionRun};
use crate::domain::ids::session_id;
use crate::domain::message::{Digest256, Role};
use crate::domain::plan::{Boundary, Cut, PlanRequest, Reason, plan_cut};
use crate::domain::size::Size;
use crate::domain::transcript::Entry;
use crate::storage::{
    AcquireLease, Acquired, Aim, AnnounceRun, Announced, BatchRow, CommitCompaction, Committed,
    CompactionRow, NewCompaction, ReleaseLease, RenewLease, SessionKey, SessionRow, StorageError,
    WriteRefusal, batch_digest_start,
};

/// What asks for a compaction unless something else says so: a request.
const MANUAL: &str = "manual";
/// What asks for one in a turn whose context did not fit.
pub(super) const OVERFLOW: &str = "overflow";

/// What a compaction is asked to do. All optional; the session's own settings stand in.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the schema describes the members")]
pub struct CompactRequest {
    #[serde(deserialize_with = "super::sessions::whole")]
    pub compact_count: Option<i64>,
    #[serde(deserialize_with = "super::sessions::whole")]
    pub keep_tokens: Option<i64>,
    #[serde(deserialize_with = "super::sessions::whole")]
    pub keep_recent_turns: Option<i64>,
    pub boundary: Option<Boundary>,
    pub instructions: Option<String>,
    pub model: Option<String>,
    pub dry_run: bool,
    /// A client's key, and how the answer is written that is kept under it.
    #[serde(skip)]
    pub once: Option<CompactOnce>,
    /// What asks for it: `manual`, `auto` or `overflow`. Never a client's to say.
    #[serde(skip)]
    pub cause: &'static str,
    /// The version that whoever asks has seen: behind a newer one there is no need for this compaction.
    #[serde(skip)]
    pub seen_version: Option<i64>,
}

impl Default for CompactRequest {
    fn default() -> Self {
        Self {
            compact_count: None,
            keep_tokens: None,
            keep_recent_turns: None,
            boundary: None,
            instructions: None,
            model: None,
            dry_run: false,
            once: None,
            cause: MANUAL,
            seen_version: None,
        }
    }
}

impl CompactRequest {
    /// Refuses if there is a newer version than whoever asks has seen.
    fn check_still_needed(&self, row: &SessionRow) -> Result<(), ServiceError> {
        match self.seen_version {
            Some(seen) if row.compaction_version > seen => Err(ServiceError::CompactionConflict),
            _ => Ok(()),
        }
    }
}

/// What a compaction did, or would do.
#[derive(Debug, Clone)]
pub struct CompactOutcome {
    /// Why nothing was done.
    pub reason: Option<Reason>,
    /// What the plan was.
    pub planned: Planned,
    /// The record, if one was made.
    pub compaction: Option<CompactionRow>,
    /// The session as it stands now.
    pub session: Session,
    /// Nothing was to be changed.
    pub dry_run: bool,
}

/// A plan in numbers.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    /// The pointer before.
    pub from: i64,
    /// The pointer after; equal to `from` if there is nothing to do.
    pub to: i64,
    /// UTF-16 units of the batch.
    pub batch_length: i64,
    /// UTF-16 units of the active summary.
    pub summary_length: i64,
    /// UTF-16 units of the tail before.
    pub tail_length: i64,
    /// What a budget of tokens was measured by.
    pub tokens_by: Option<&'static str>,
}

/// A plan with all that it rests on.
pub(super) struct Plan {
    request: PlanRequest,
    pub(super) cut: Result<Cut, Reason>,
    numbers: Planned,
}

impl Plan {
    /// The same ground, and nothing to do on it.
    pub(super) fn without_cut(self, reason: Reason) -> Self {
        let numbers = Planned {
            to: self.numbers.from,
            batch_length: 0,
            ..self.numbers
        };
        Self {
            cut: Err(reason),
            numbers,
            ..self
        }
    }
}

impl Service {
    /// Folds the oldest part of a session's tail into its summary.
    ///
    /// # Errors
    /// There is no such session, it is closed or being compacted, the summarizer failed, or the
    /// database did. The session is unchanged then.
    pub async fn compact(
        &self,
        caller: Caller,
        id: &str,
        request: CompactRequest,
    ) -> Result<CompactOutcome, ServiceError> {
        let key = key(caller, id)?;
        if request.dry_run {
            let outcome = self.dry_run(key, id, &request).await?;
            return self.keep_dry_run(key, outcome, request.once).await;
        }
        if self.inner.draining.is_cancelled() {
            return Err(ServiceError::ShuttingDown);
        }
        self.compact_apart(key, id, request).await
    }

    /// Compacts as a task of its own: whoever asked for it may be gone before it ends, and it gives its lease
    /// back all the same.
    pub(super) async fn compact_apart(
        &self,
        key: SessionKey,
        id: &str,
        request: CompactRequest,
    ) -> Result<CompactOutcome, ServiceError> {
        let (service, id) = (self.clone(), id.to_owned());
        let run = async move { Box::pin(service.run_with_lease(key, &id, request)).await };
        let run = self.inner.tasks.track_future(run.in_current_span());
        self.inner
            .runtime
            .spawn(run)
            .await
            .map_err(|_| ServiceError::Internal("a compaction ended without an outcome"))?
    }

    async fn dry_run(
        &self,
        key: SessionKey,
        id: &str,
        request: &CompactRequest,
    ) -> Result<CompactOutcome, ServiceError> {
        let session = self.load_open(key, id).await?;
        let plan = self.plan(key, &session, request).await?;
        Ok(CompactOutcome {
            reason: plan.cut.err(),
            planned: plan.numbers,
            compaction: None,
            session: Session::read(session)?,
            dry_run: true,
        })
    }

    fn count_saved(&self, row: &SessionRow, cut: Cut, record: &CompactionRow) {
        let replaced = tokens_replaced(row, cut);
        self.inner
            .metrics
            .count_compacted(replaced - record.summary_tokens);
    }

    async fn load_needed(
        &self,
        key: SessionKey,
        id: &str,
        request: &CompactRequest,
    ) -> Result<SessionRow, ServiceError> {
        let row = self.load_open(key, id).await?;
        request.check_still_needed(&row)?;
        Ok(row)
    }

    async fn load_open(&self, key: SessionKey, id: &str) -> Result<SessionRow, ServiceError> {
        self.load_head(key, id).await?;
        let session = self.database().find_session(key).await?;
        let session = session.ok_or_else(|| refused(WriteRefusal::NotFound, id))?;
        if session.is_closed() {
            return Err(ServiceError::SessionClosed);
        }
        Ok(session)
    }

    pub(super) async fn plan(
        &self,
        key: SessionKey,
        session: &SessionRow,
        request: &CompactRequest,
    ) -> Result<Plan, ServiceError> {
        let policy: crate::domain::policy::CompactionPolicy =
            serde_json::from_str(&session.compaction)
                .map_err(|_| StorageError::Corrupt("sessions.compaction"))?;
        let keep_tokens = request.keep_tokens;
        let waits = request.cause == OVERFLOW;
        let request = PlanRequest {
            compact_count: request.compact_count.unwrap_or(session.compact_count),
            keep_recent_turns: request
                .keep_recent_turns
                .unwrap_or(policy.keep_recent_turns),
            boundary: request.boundary.unwrap_or(policy.boundary),
        };
        let (aim, tokens_by) = match keep_tokens {
            Some(budget) => self.aim(key, session, budget).await?,
            None => (Ok(None), None),
        };
        let cut = match aim {
            Err(reason) => Err(reason),
            Ok(aim) => {
                let mut landmarks = self
                    .database()
                    .find_landmarks(key, session, &request, aim)
                    .await?;
                // A turn waits: what its model is to answer is not folded in with the rest.
                landmarks.end_is_allowed &= !waits;
                let (keep, length) = (request.keep_recent_turns, session.compact_length);
                plan_cut(&landmarks, keep, length)
            }
        };
        let summary = session
            .compact_summary
            .as_deref()
            .map_or(Size::default(), Size::of);
        Ok(Plan {
            request,
            cut,
            numbers: Planned {
                from: session.compact_size,
                to: cut.map_or(session.compact_size, |cut| cut.position),
                batch_length: cut.map_or(0, |cut| cut.length - session.compact_length),
                summary_length: i64::try_from(summary.units).unwrap_or(i64::MAX),
                tail_length: session.history_length - session.compact_length,
                tokens_by,
            },
        })
    }

    /// Where the tail would have to begin to fit a budget of tokens, and what that was measured by.
    async fn aim(
        &self,
        key: SessionKey,
        session: &SessionRow,
        budget: i64,
    ) -> Result<(Result<Option<Aim>, Reason>, Option<&'static str>), ServiceError> {
        let tail = self.database().load_sizes(key, session).await?;
        let (sizes, by_usage) = budget::sizes(&tail);
        let by = if by_usage {
            "usage"
        } else {
            self.inner.counter.name()
        };
        let aim = match budget::fitting_end(&sizes, budget) {
            0 if !tail.is_empty() => Err(Reason::WithinBudget),
            at => Ok(Some(Aim(tail.get(at).map(|first| first.seq)))),
        };
        Ok((aim, Some(by)))
    }

    #[tracing::instrument(level = "debug", name = "compaction", skip_all, fields(
        session = session_id(key.session), cause = request.cause, outcome, method, version
    ))]
    async fn run_with_lease(
        &self,
        key: SessionKey,
        id: &str,
        request: CompactRequest,
    ) -> Result<CompactOutcome, ServiceError> {
        let bounds = self.bounds();
        // The id of the compaction, if one is made.
        let token = self.new_id();
        let now = self.now();
        let acquire = AcquireLease {
            key,
            token,
            now,
            expires_at: now.plus(bounds.lease),
            most: self.most_compactions(key.tenant, request.cause).await,
        };
        let (once, most) = (request.once.clone(), acquire.most);
        match self.acquire_once(acquire, once.as_ref()).await? {
            Err(refusal) => return Err(refused(refusal, id)),
            Ok(Acquired::HeldUntil(until)) => {
                let left = u64::try_from(until.0 - now.0).unwrap_or(0);
                return Err(ServiceError::CompactionInProgress {
                    retry_after: Duration::from_micros(left).min(LONGEST_RETRY),
                });
            }
            Ok(Acquired::Full) => return Err(self.compactions_full(most)),
            Ok(Acquired::Yes) => {}
        }
        let (cause, started) = (request.cause, Instant::now());
        let running = self.inner.metrics.begin_compaction();
        let work = async {
            tokio::select! {
                outcome = self.run(key, id, token, request) => outcome,
                error = self.keep_lease(key, id, token) => Err(error),
                () = tokio::time::sleep(bounds.compaction_deadline) => {
                    Err(ServiceError::CompactionTimeout(bounds.compaction_deadline))
                }
            }
        };
        // A panic is a mistake of ours; the session must not stay locked for it.
        let outcome = AssertUnwindSafe(work)
            .catch_unwind()
            .await
            .unwrap_or(Err(ServiceError::Internal("a compaction panicked")));
        drop(running);
        self.note_outcome(&outcome, cause, started.elapsed());
        // A commit gave the lease back already; then this finds nothing to do.
        if !matches!(&outcome, Ok(outcome) if outcome.compaction.is_some()) {
            let release = ReleaseLease {
                key,
                token,
                end: end_of(outcome.as_ref().err()),
                now: self.now(),
            };
            let released = self.release_once(release, outcome.as_ref().ok(), once.as_ref());
            if let Err(error) = released.await {
                tracing::warn!(%error, "a lease could not be given back; it runs out by itself");
            }
        }
        outcome
    }

    /// Renews the lease for as long as it is held; ends with the error that it was lost.
    async fn keep_lease(&self, key: SessionKey, id: &str, token: Uuid) -> ServiceError {
        let lease = self.bounds().lease;
        loop {
            tokio::time::sleep(lease / 3).await;
            let expires_at = self.now().plus(lease);
            let renew = RenewLease {
                key,
                token,
                expires_at,
            };
            match self.database().write(renew).await {
                Ok(true) => {}
                Ok(false) => {
                    return match self.database().find_session(key).await {
                        Ok(None) => ServiceError::session_not_found(id),
                        _ => ServiceError::CompactionConflict,
                    };
                }
                // The lease may still hold; the commit decides.
                Err(error) => tracing::warn!(%error, "a lease could not be renewed"),
            }
        }
    }

    async fn run(
        &self,
        key: SessionKey,
        id: &str,
        token: Uuid,
        request: CompactRequest,
    ) -> Result<CompactOutcome, ServiceError> {
        let started = Instant::now();
        let row = self.load_needed(key, id, &request).await?;
        let (request, plan) = self.plan_run(key, &row, request).await?;
        let session = Session::read(row)?;
        let nothing = |reason, session| CompactOutcome {
            reason: Some(reason),
            planned: plan.numbers,
            compaction: None,
            session,
            dry_run: false,
        };
        let cut = match plan.cut {
            Ok(cut) => cut,
            Err(reason) => return Ok(nothing(reason, session)),
        };
        let (entries, digest) = self.load_material(key, &session.row, cut).await?;
        if entries.is_empty() {
            return Ok(nothing(Reason::Empty, session));
        }
        self.announce(key, id, token, &session.row, &plan.numbers, request.cause)
            .await?;
        let job = self.job(&session, entries, plan.numbers.batch_length, &request);
        let summary = self
            .inner
            .summarizer
            .summarize(job, &self.inner.metrics)
            .await?;
        let note = self.note(key, &session, cut, &summary.text, request.cause);
        let note = note.await;
        let size = Size::of(&summary.text);
        let Summary {
            text,
            method,
            model,
            usage,
            parts,
            shortened,
        } = summary;
        let commit = CommitCompaction {
            key,
            token,
            based_on: session.row.compaction_version,
            rewrites: session.row.rewrites,
            compaction: NewCompaction {
                id: token,
                cut,
                digest,
                batch_length: plan.numbers.batch_length,
                summary: text,
                summary_length: i64::try_from(size.units).unwrap_or(i64::MAX),
                summary_tokens: i64::try_from(size.tokens()).unwrap_or(i64::MAX),
                compact_count: request
                    .keep_tokens
                    .is_none()
                    .then_some(plan.request.compact_count),
                keep_tokens: request.keep_tokens,
                keep_recent_turns: plan.request.keep_recent_turns,
                boundary: plan.request.boundary.as_str(),
                instructions: request.instructions,
                cause: request.cause,
                method,
                model,
                usage,
                parts,
                shortened,
                note,
                duration_ms: i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX),
            },
            now: self.now(),
        };
        let once = request.once.as_ref();
        match self.commit_once(commit, plan.numbers, once).await? {
            // Closed meanwhile: what the run rested on has changed, like any other conflict.
            Committed::Conflict
            | Committed::Refused(WriteRefusal::Closed | WriteRefusal::TurnInProgress(_)) => {
                Err(ServiceError::CompactionConflict)
            }
            Committed::Refused(WriteRefusal::NotFound) => Err(ServiceError::session_not_found(id)),
            Committed::Done(done) => {
                let (record, row) = *done;
                self.count_saved(&session.row, cut, &record);
                tracing::info!(
                    session = id,
                    version = record.version,
                    messages = record.to_position - record.from_position,
                    method = record.method,
                    duration_ms = record.duration_ms,
                    "compacted"
                );
                Ok(CompactOutcome {
                    reason: None,
                    planned: plan.numbers,
                    compaction: Some(record),
                    session: Session::read(row)?,
                    dry_run: false,
                })
            }
        }
    }

    /// Tells that a compaction begins. One that finds nothing to do is not told of.
    async fn announce(
        &self,
        key: SessionKey,
        id: &str,
        token: Uuid,
        row: &SessionRow,
        planned: &Planned,
        cause: &str,
    ) -> Result<(), ServiceError> {
        let summary = row.compact_summary.as_deref().map(Size::of);
        let summary_tokens = summary.map_or(0, Size::tokens);
        let announce = AnnounceRun {
            key,
            token,
            run: CompactionRun {
                trigger: cause.to_owned(),
                based_on: row.compaction_version,
                from: planned.from,
                to: planned.to,
                count: planned.to - planned.from,
                length_before: planned.summary_length + planned.tail_length,
                tokens_before: i64::try_from(summary_tokens).unwrap_or(i64::MAX)
                    + row.history_tokens
                    - row.compact_tokens,
            },
            now: self.now(),
        };
        match self.database().write(announce).await? {
            Ok(Announced::Yes) => Ok(()),
            Ok(Announced::LeaseLost) => Err(ServiceError::CompactionConflict),
            Err(refusal) => Err(refused(refusal, id)),
        }
    }

    /// The batch as a transcript, and the digest of the version that it makes.
    async fn load_material(
        &self,
        key: SessionKey,
        session: &SessionRow,
        cut: Cut,
    ) -> Result<(Vec<Entry>, Digest256), ServiceError> {
        let based_on = match session.compaction_version {
            0 => None,
            version => self.database().find_compaction(key, version).await?,
        };
        let rows = self
            .database()
            .load_batch(key, session.compact_seq, &cut)
            .await?;
        let start = batch_digest_start(based_on.as_ref().map(|record| record.digest.as_slice()));
        // Reading megabytes of JSON is work; it must not hold up the tasks beside it.
        tokio::task::spawn_blocking(move || read_batch(&rows, start))
            .await
            .map_err(|_| ServiceError::Internal("a batch could not be read"))
    }
}

/// Tokens of what a summary replaces: the batch, and the summary before.
fn tokens_replaced(row: &SessionRow, cut: Cut) -> i64 {
    let before = row.compact_summary.as_deref().map(Size::of);
    let before = i64::try_from(before.map_or(0, Size::tokens)).unwrap_or(i64::MAX);
    before.saturating_add(cut.tokens - row.compact_tokens)
}

/// How a run ended that committed nothing.
pub(super) fn end_of(error: Option<&ServiceError>) -> CompactionEnd {
    match error {
        // It found nothing to do, and was not told of either.
        None
        | Some(
            ServiceError::CompactionConflict
            | ServiceError::SessionClosed
            | ServiceError::SessionNotFound { .. },
        ) => CompactionEnd::Cancelled(Cancelled::Conflict),
        Some(error) => CompactionEnd::Failed(error.failure_code()),
    }
}

fn read_batch(rows: &[BatchRow], start: sha2::Sha256) -> (Vec<Entry>, Digest256) {
    use sha2::Digest;
    let mut digest = start;
    let mut entries: Vec<Entry> = Vec::with_capacity(rows.len());
    for row in rows {
        digest.update(&row.body_digest);
        let role = Role::parse(&row.role).unwrap_or(Role::User);
        let entry = Entry::read(role, row.tool_name().as_deref(), row.call_index, &row.body);
        let Some(entry) = entry.filter(|entry| !entry.is_empty()) else {
            continue;
        };
        match entries.last_mut() {
            // An answer may be several items.
            Some(last @ Entry::Assistant { .. })
                if role == Role::Assistant && !row.starts_group =>
            {
                last.go_on(entry);
            }
            _ => entries.push(entry),
        }
    }
    (entries, digest.finalize().into())
}
