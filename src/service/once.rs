//! Requests that may be made again: under a client's key each is done once, and its first answer repeated.
//!
//! A use case hands its write over with what the answer is repeated from, and both are stored together. If
//! it then fails, for whatever reason, the key is looked up: a request that is made again must not be told
//! what stands in its way now, but what it was told first. What is kept is small: a text that holds no
//! messages, or a recipe by which the same bytes are made from the messages as they are stored.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::LONGEST_RETRY;
use super::rendering::hex;
use super::{
    Appended, Caller, DispatchTokens, Dispatched, Format, ListedMessage, MessageState, Rendered,
    Service, ServiceError, Session, key,
};
use crate::domain::message::Digest256;
use crate::storage::{
    AppendOutcome, DispatchRow, Kept, MessageFilter, NoWrite, Once, OnceKey, Order, Recorded, Seen,
    SessionKey, SessionRow, StorageError, TenantId, Timestamp, Write,
};

/// A client's key for one request.
#[derive(Debug, Clone)]
pub struct RequestKey {
    /// SHA-256 of method and path.
    pub scope: Digest256,
    /// The key as the client chose it.
    pub key: String,
    /// SHA-256 of the body.
    pub digest: Digest256,
}

/// A client's key, and how the answer is written that is kept under it.
pub type Shown<'a, A> = (&'a RequestKey, fn(A) -> Option<String>);

/// An answer.
#[derive(Debug)]
pub enum Answered<A> {
    /// To the first such request.
    First(A),
    /// To one that was made again: what it is repeated from.
    Again(Kept),
}

/// An answer that holds messages: what stands around each of them, and where each is stored.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Template {
    /// One more than there are messages.
    pub pieces: Vec<String>,
    /// The messages between them.
    pub seqs: Vec<i64>,
}

/// What the answer to an append is made of, beside its messages.
#[derive(Debug, Serialize, Deserialize)]
struct AppendRecipe {
    /// First and last of each run of numbers that follow one another.
    runs: Vec<(i64, i64)>,
    compact_size: i64,
    last_seq: i64,
}

impl AppendRecipe {
    fn of(outcome: &AppendOutcome) -> Self {
        let mut runs: Vec<(i64, i64)> = Vec::new();
        for stored in &outcome.stored {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == stored.seq => *last = stored.seq,
                _ => runs.push((stored.seq, stored.seq)),
            }
        }
        Self {
            runs,
            compact_size: outcome.compact_size,
            last_seq: outcome.last_seq,
        }
    }
}

/// What the answer to a dispatch is made of, beside its record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct DispatchRecipe {
    pub n: i64,
    pub compact_size: i64,
    pub summary_at: Option<usize>,
    pub open_calls: Vec<String>,
    pub tokens_by: String,
}

impl DispatchRecipe {
    /// What is kept of a dispatch once it has its number.
    pub(super) fn keep(
        self,
        key: SessionKey,
    ) -> impl Fn(&Recorded) -> Result<Option<Kept>, StorageError> + Send + Sync + 'static {
        move |recorded| match recorded {
            Recorded::Done(n) => {
                let recipe = to_recipe(&Self {
                    n: *n,
                    ..self.clone()
                })?;
                Ok(Some(Kept::done(Some(key.session), recipe)))
            }
            Recorded::Moved | Recorded::Refused(_) => Ok(None),
        }
    }

    /// The dispatch as it was made.
    fn dispatched(self, row: &DispatchRow, rendered: Rendered) -> Result<Dispatched, ServiceError> {
        let unreadable = |_| ServiceError::Storage(StorageError::Corrupt("dispatches"));
        Ok(Dispatched {
            n: row.n,
            format: Format::parse(&row.format).unwrap_or_default(),
            model: row.model(),
            last_seq: row.last_seq,
            compaction: (row.version > 0).then_some((row.version, self.compact_size)),
            summary_at: self.summary_at,
            open_calls: self.open_calls,
            tokens: DispatchTokens {
                before: row.tokens_before,
                after: row.tokens_after,
            },
            tokens_by: self.tokens_by,
            fits: row.fits,
            candidates: serde_json::from_str(&row.candidates).map_err(unreadable)?,
            reasons: serde_json::from_str(&row.reasons).map_err(unreadable)?,
            breakpoints: serde_json::from_str(&row.breakpoints).map_err(unreadable)?,
            digest: hex(&row.digest),
            rendered,
        })
    }
}

/// Writes down what an answer is repeated from.
pub(super) fn to_recipe(recipe: &impl Serialize) -> Result<String, StorageError> {
    serde_json::to_string(recipe).map_err(|_| StorageError::Corrupt("idempotency.answer"))
}

pub(super) fn read_recipe<R: for<'a> Deserialize<'a>>(kept: &Kept) -> Result<R, ServiceError> {
    serde_json::from_str(&kept.answer)
        .map_err(|_| ServiceError::Storage(StorageError::Corrupt("idempotency.answer")))
}

/// The answer that shows a session, as it is kept.
pub(super) fn session_kept(
    row: &SessionRow,
    show: fn(Session) -> Option<String>,
) -> Result<Kept, StorageError> {
    let session =
        Session::read(row.clone()).map_err(|_| StorageError::Corrupt("a session's answer"))?;
    let text = show(session).ok_or(StorageError::Corrupt("a session's answer"))?;
    Ok(Kept::done(Some(row.id), text))
}

impl Service {
    pub(super) fn once_key(&self, tenant: TenantId, key: &RequestKey) -> OnceKey {
        self.once_key_at(tenant, key, self.now())
    }

    /// A key as it is looked at by a write that has its own idea of the present: both must agree whether the
    /// time of other work has run out.
    pub(super) fn once_key_at(
        &self,
        tenant: TenantId,
        key: &RequestKey,
        now: Timestamp,
    ) -> OnceKey {
        OnceKey {
            tenant,
            scope: key.scope,
            key: key.key.clone(),
            digest: key.digest,
            now,
            expires_at: now.plus(self.bounds().answers),
        }
    }

    /// The answer that is kept under a key, if there is one.
    ///
    /// # Errors
    /// The key was used for another request, or its request is still at work; or the database failed.
    pub async fn find_answer(
        &self,
        caller: Caller,
        key: &RequestKey,
    ) -> Result<Option<Kept>, ServiceError> {
        let key = self.once_key(caller.tenant, key);
        match self.database().look_up(&key).await? {
            Seen::New | Seen::Stale(..) => Ok(None),
            Seen::Answered(kept) => Ok(Some(kept)),
            Seen::Other => Err(ServiceError::KeyTaken),
            Seen::AtWork(until) => {
                let left = u64::try_from(until.0 - key.now.0).unwrap_or(0);
                Err(ServiceError::RequestAtWork {
                    retry_after: Duration::from_micros(left).min(LONGEST_RETRY),
                })
            }
        }
    }

    /// Does a request whose write was handed over with its key; the answer is repeated if it was done before.
    ///
    /// # Errors
    /// As the work; or the key was used for another request, or its request is still at work.
    pub async fn once<A>(
        &self,
        caller: Caller,
        key: Option<&RequestKey>,
        work: impl Future<Output = Result<A, ServiceError>>,
    ) -> Result<Answered<A>, ServiceError> {
        let (error, key) = match (work.await, key) {
            (Ok(answer), _) => return Ok(Answered::First(answer)),
            (Err(error), Some(key)) if !matches!(error, ServiceError::Storage(_)) => (error, key),
            // A database that gives no answer is not asked a second time.
            (Err(error), _) => return Err(error),
        };
        match self.find_answer(caller, key).await {
            Ok(Some(kept)) => {
                self.inner.metrics.count_replay();
                Ok(Answered::Again(kept))
            }
            Ok(None) | Err(ServiceError::Storage(_)) => Err(error),
            Err(conflict) => Err(conflict),
        }
    }

    /// As [`Service::once`], for work that costs much before its write: the key is looked up first.
    ///
    /// # Errors
    /// As there.
    pub async fn once_costly<A>(
        &self,
        caller: Caller,
        key: Option<&RequestKey>,
        work: impl Future<Output = Result<A, ServiceError>>,
    ) -> Result<Answered<A>, ServiceError> {
        if let Some(key) = key
            && let Some(kept) = self.find_answer(caller, key).await?
        {
            self.inner.metrics.count_replay();
            return Ok(Answered::Again(kept));
        }
        self.once(caller, key, work).await
    }

    /// Writes once under a key; without one, as ever.
    pub(super) async fn write_once<W: Write>(
        &self,
        tenant: TenantId,
        key: Option<&RequestKey>,
        write: W,
        keep: impl Fn(&W::Output) -> Result<Option<Kept>, StorageError> + Send + Sync + 'static,
    ) -> Result<W::Output, ServiceError> {
        let Some(key) = key else {
            return Ok(self.database().write(write).await?);
        };
        let once = Once {
            key: self.once_key(tenant, key),
            of: None,
            write,
            keep: Arc::new(keep),
        };
        let output = self.database().write(once).await?;
        output.ok_or(ServiceError::AskedBefore)
    }

    /// As [`Service::write_once`], for a write of a session whose answer shows it.
    pub(super) async fn write_shown<W, R>(
        &self,
        key: SessionKey,
        write: W,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Result<SessionRow, R>, ServiceError>
    where
        W: Write<Output = Result<SessionRow, R>>,
        R: Send + 'static,
    {
        let (request, show) = once.unzip();
        let keep = move |outcome: &Result<SessionRow, R>| match (outcome, show) {
            (Ok(row), Some(show)) => session_kept(row, show).map(Some),
            _ => Ok(None),
        };
        self.write_once(key.tenant, request, write, keep).await
    }

    /// Keeps the answer to a request that does nothing more when it is made twice. It holds no content.
    ///
    /// # Errors
    /// The key is taken meanwhile, or the database failed.
    pub async fn keep_answer(
        &self,
        caller: Caller,
        session: &str,
        request: &RequestKey,
        answer: &impl Serialize,
    ) -> Result<(), ServiceError> {
        let key = key(caller, session)?;
        self.keep_text(caller.tenant, Some(key), request, to_recipe(answer)?, None)
            .await
    }

    pub(super) async fn keep_text(
        &self,
        tenant: TenantId,
        key: Option<SessionKey>,
        request: &RequestKey,
        text: String,
        rewrites: Option<i64>,
    ) -> Result<(), ServiceError> {
        let keep = move |there: &bool| {
            let kept = || Kept::done(key.map(|key| key.session), text.clone());
            Ok(there.then(kept))
        };
        let write = NoWrite { key, rewrites };
        self.write_once(tenant, Some(request), write, keep)
            .await
            .map(drop)
    }

    /// An answer with its messages put in.
    ///
    /// # Errors
    /// They are not there any more, or the database failed.
    pub async fn fill(
        &self,
        caller: Caller,
        session: &str,
        kept: &Kept,
    ) -> Result<String, ServiceError> {
        let key = key(caller, session)?;
        let Template { pieces, seqs } = read_recipe(kept)?;
        let mut bodies = self.database().load_bodies(key, &seqs).await?;
        bodies.sort_unstable_by_key(|(seq, _)| *seq);
        let mut text = String::new();
        for (index, piece) in pieces.iter().enumerate() {
            text.push_str(piece);
            if let Some(seq) = seqs.get(index) {
                let at = bodies.binary_search_by_key(seq, |(seq, _)| *seq);
                let body = at.ok().and_then(|at| bodies.get(at));
                text.push_str(&body.ok_or(ServiceError::AskedBefore)?.1);
            }
        }
        Ok(text)
    }

    /// What an append did when it was made first.
    ///
    /// # Errors
    /// Its messages are not there any more, or the database failed.
    pub async fn repeat_append(
        &self,
        caller: Caller,
        session: &str,
        kept: &Kept,
    ) -> Result<Appended, ServiceError> {
        let key = key(caller, session)?;
        let recipe: AppendRecipe = read_recipe(kept)?;
        let mut messages = Vec::new();
        for (first, last) in recipe.runs {
            self.read_run(key, (first, last), recipe.compact_size, &mut messages)
                .await?;
        }
        Ok(Appended {
            messages,
            last_seq: recipe.last_seq,
        })
    }

    async fn read_run(
        &self,
        key: SessionKey,
        (first, last): (i64, i64),
        compact_size: i64,
        messages: &mut Vec<ListedMessage>,
    ) -> Result<(), ServiceError> {
        let mut next = first;
        while next <= last {
            let filter = MessageFilter {
                after_seq: next - 1,
                before_seq: last + 1,
                role: None,
                order: Order::Asc,
            };
            let limit = usize::try_from(last - next + 1).unwrap_or(1);
            let (rows, _) = self
                .database()
                .list_messages(key, &filter, 0, limit)
                .await?;
            // No row of an append is ever gone alone: whatever takes one away takes the record too.
            let all_there = rows.iter().zip(next..).all(|(row, seq)| row.seq == seq);
            if rows.is_empty() || !all_there {
                return Err(ServiceError::AskedBefore);
            }
            for row in rows {
                next = row.seq + 1;
                let state = MessageState::of(false, false, row.position, compact_size);
                let listed = ListedMessage::of(row, compact_size);
                messages.push(ListedMessage { state, ..listed });
            }
        }
        Ok(())
    }

    /// A dispatch as it was made first, with the same number.
    ///
    /// # Errors
    /// It cannot be shown again, or the database failed.
    pub async fn repeat_dispatch(
        &self,
        caller: Caller,
        session: &str,
        kept: &Kept,
    ) -> Result<Dispatched, ServiceError> {
        let recipe: DispatchRecipe = read_recipe(kept)?;
        let replayed = self.replay(caller, session, recipe.n).await?;
        let rendered = replayed.outcome.map_err(|_| ServiceError::AskedBefore)?;
        recipe.dispatched(&replayed.record, rendered)
    }
}

/// Tells of an append what is kept of it.
pub(super) fn append_kept(
    key: SessionKey,
    outcome: &AppendOutcome,
) -> Result<Option<Kept>, StorageError> {
    let recipe = to_recipe(&AppendRecipe::of(outcome))?;
    Ok(Some(Kept::done(Some(key.session), recipe)))
}
