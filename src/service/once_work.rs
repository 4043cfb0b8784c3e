//! Work with a model, done once under a client's key.
//!
//! What such work begins with is kept under the key at once, and what it ends with takes its place. In
//! between whoever comes with the same key is told to come back.

use std::sync::Arc;

use uuid::Uuid;

use super::once::to_recipe;
use super::{
    Caller, CompactOutcome, Planned, RequestKey, Service, ServiceError, Session, Template, Turn,
    ids,
};
use crate::storage::{
    AcquireLease, Acquired, BeginTurn, BeginTurnOnce, Begun, CommitCompaction, Committed,
    CompactionRow, Kept, KeptState, Once, ReleaseLease, SessionKey, SessionRow, SettleTurn,
    StorageError, TurnRefusal, Write, WriteRefusal,
};

/// The turn of a request that was made again.
#[derive(Debug)]
pub enum TurnAgain {
    /// The answer as it was given.
    Text(String),
    /// The turn; its answer was never given.
    Turn(Box<Turn>),
}

impl Service {
    /// Begins a turn, once if there is a key.
    pub(super) async fn begin_once(
        &self,
        begin: BeginTurn,
        once: Option<RequestKey>,
    ) -> Result<Result<Box<Begun>, TurnRefusal>, ServiceError> {
        let Some(request) = once else {
            return Ok(self.database().write(begin).await?);
        };
        let write = BeginTurnOnce {
            key: self.once_key_at(begin.append.key.tenant, &request, begin.append.now),
            begin,
        };
        let outcome = self.database().write(write).await?;
        outcome.ok_or(ServiceError::AskedBefore)
    }

    /// The turn of a request that was made again.
    ///
    /// # Errors
    /// It is not there any more, or the database failed.
    pub async fn repeat_turn(
        &self,
        caller: Caller,
        session: &str,
        kept: &Kept,
    ) -> Result<TurnAgain, ServiceError> {
        match (kept.state, kept.token) {
            (KeptState::Turn, Some(id)) => {
                let turn = self.load_turn(caller, session, &ids::turn_id(id)).await?;
                Ok(TurnAgain::Turn(Box::new(turn)))
            }
            _ => Ok(TurnAgain::Text(self.fill(caller, session, kept).await?)),
        }
    }

    /// Keeps the answer of a turn that has ended, as it is given now. If that fails, it is written anew when
    /// the request is made again.
    pub async fn settle_turn(
        &self,
        caller: Caller,
        request: &RequestKey,
        turn: &Turn,
        template: &Template,
    ) {
        let Ok(answer) = to_recipe(template) else {
            return;
        };
        let settle = SettleTurn {
            key: self.once_key(caller.tenant, request),
            id: turn.row.id,
            answer,
        };
        if let Err(error) = self.database().write(settle).await {
            tracing::warn!(%error, "the answer of a turn could not be kept");
        }
    }
}

/// A client's key for a compaction, which outlives its request.
pub type CompactOnce = (RequestKey, fn(CompactOutcome) -> Option<String>);

impl Service {
    /// Takes the lease of a compaction, once if there is a key: until it ends the key stands for it.
    pub(super) async fn acquire_once(
        &self,
        acquire: AcquireLease,
        once: Option<&CompactOnce>,
    ) -> Result<Result<Acquired, WriteRefusal>, ServiceError> {
        let (tenant, session) = (acquire.key.tenant, acquire.key.session);
        let token = acquire.token;
        let keep = move |acquired: &Result<Acquired, WriteRefusal>| {
            let kept = || Kept::work(session, KeptState::Compaction, token, String::new());
            Ok(matches!(acquired, Ok(Acquired::Yes)).then(kept))
        };
        let Some((request, _)) = once else {
            return Ok(self.database().write(acquire).await?);
        };
        let write = Once {
            key: self.once_key_at(tenant, request, acquire.now),
            of: None,
            write: acquire,
            keep: Arc::new(keep),
        };
        let outcome = self.database().write(write).await?;
        outcome.ok_or(ServiceError::AskedBefore)
    }

    /// Gives the lease of a compaction back that stored nothing, together with its answer if it has one and
    /// there is a key. If it failed, the key is free with that.
    pub(super) async fn release_once(
        &self,
        release: ReleaseLease,
        outcome: Option<&CompactOutcome>,
        once: Option<&CompactOnce>,
    ) -> Result<bool, ServiceError> {
        let Some((outcome, (request, show))) = outcome.zip(once) else {
            return Ok(self.database().write(release).await?);
        };
        let (session, answer) = (release.key.session, show(outcome.clone()));
        let keep = move |_: &bool| {
            let answer = answer.clone();
            Ok(answer.map(|answer| Kept::done(Some(session), answer)))
        };
        let token = release.token;
        self.end_once(release.key.tenant, (request, token), release, keep)
            .await
    }

    /// Keeps the answer of a compaction that changed nothing.
    pub(super) async fn keep_dry_run(
        &self,
        key: SessionKey,
        outcome: CompactOutcome,
        once: Option<CompactOnce>,
    ) -> Result<CompactOutcome, ServiceError> {
        if let Some((request, show)) = once
            && let Some(text) = show(outcome.clone())
        {
            let rewrites = Some(outcome.session.row.rewrites);
            self.keep_text(key.tenant, Some(key), &request, text, rewrites)
                .await?;
        }
        Ok(outcome)
    }

    /// Commits a compaction, together with its answer if there is a key.
    pub(super) async fn commit_once(
        &self,
        commit: CommitCompaction,
        planned: Planned,
        once: Option<&CompactOnce>,
    ) -> Result<Committed, ServiceError> {
        let Some((request, show)) = once else {
            return Ok(self.database().write(commit).await?);
        };
        let show = *show;
        let keep = move |committed: &Committed| match committed {
            Committed::Done(done) => {
                let (record, row) = done.as_ref();
                compaction_kept(record, row, planned, show).map(Some)
            }
            Committed::Conflict | Committed::Refused(_) => Ok(None),
        };
        self.end_once(commit.key.tenant, (request, commit.token), commit, keep)
            .await
    }

    /// Writes the end of work that was kept under a key when it began.
    async fn end_once<W: Write>(
        &self,
        tenant: crate::storage::TenantId,
        (request, token): (&RequestKey, Uuid),
        write: W,
        keep: impl Fn(&W::Output) -> Result<Option<Kept>, StorageError> + Send + Sync + 'static,
    ) -> Result<W::Output, ServiceError> {
        let once = Once {
            key: self.once_key(tenant, request),
            of: Some(token),
            write,
            keep: Arc::new(keep),
        };
        let output = self.database().write(once).await?;
        output.ok_or(ServiceError::AskedBefore)
    }
}

fn compaction_kept(
    record: &CompactionRow,
    row: &SessionRow,
    planned: Planned,
    show: fn(CompactOutcome) -> Option<String>,
) -> Result<Kept, StorageError> {
    let unreadable = StorageError::Corrupt("a compaction's answer");
    let Ok(session) = Session::read(row.clone()) else {
        return Err(unreadable);
    };
    let outcome = CompactOutcome {
        reason: None,
        planned,
        compaction: Some(record.clone()),
        session,
        dry_run: false,
    };
    let text = show(outcome).ok_or(unreadable)?;
    Ok(Kept::done(Some(row.id), text))
}
