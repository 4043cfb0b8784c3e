//! Answers that are kept under a client's key, so that a request that is made again is done once.
//!
//! [`Once`] wraps a write: in its transaction the key is looked up, and what the answer is repeated from is
//! stored with what the request did. Two that come at once meet at the primary key; the later one is rolled
//! back and, run again, finds the earlier. Work that goes on behind its first write (a turn, a compaction)
//! is kept under its id: whether it still runs, and how it ended, is read from its own row or lease, so that
//! a key is free again when that work fails or its process dies. What an answer is made of is the caller's.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::sessions::{SessionRow, lock};
use super::turns::{BeginTurn, Begun, TurnRefusal};
use super::{
    Conn, Database, QuickAppend, Result, SessionKey, StorageError, TenantId, Timestamp, Write,
    on_both,
};
use crate::domain::message::Digest256;

/// A client's key for one request.
#[derive(Debug, Clone)]
pub struct OnceKey {
    /// Whose it is.
    pub tenant: TenantId,
    /// SHA-256 of method and path: the same key elsewhere is another.
    pub scope: Digest256,
    /// The key as the client chose it.
    pub key: String,
    /// SHA-256 of the body.
    pub digest: Digest256,
    /// The present.
    pub now: Timestamp,
    /// Until when the answer is kept.
    pub expires_at: Timestamp,
}

/// What an answer is kept as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptState {
    /// `answer` is what it is repeated from.
    Done,
    /// It is that of a turn.
    Turn,
    /// It is that of a compaction which has not ended.
    Compaction,
}

impl KeptState {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Turn => "turn",
            Self::Compaction => "compaction",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Done, Self::Turn, Self::Compaction]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}

/// What an answer is repeated from.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The session that it is about.
    pub session: Option<Uuid>,
    /// It is made of what an edit of that session may take away.
    pub shows_history: bool,
    /// What it is.
    pub state: KeptState,
    /// The work that it stands or falls with.
    pub token: Option<Uuid>,
    /// What it is made of; its form is the use case's.
    pub answer: String,
}

impl Kept {
    /// An answer about a session that is there.
    #[must_use]
    pub fn done(session: Option<Uuid>, answer: String) -> Self {
        Self {
            session,
            shows_history: true,
            state: KeptState::Done,
            token: None,
            answer,
        }
    }

    /// Work that goes on in a session.
    #[must_use]
    pub fn work(session: Uuid, state: KeptState, token: Uuid, answer: String) -> Self {
        Self {
            state,
            token: Some(token),
            ..Self::done(Some(session), answer)
        }
    }
}

/// What is known of a key.
#[derive(Debug, Clone)]
pub enum Seen {
    /// Nothing.
    New,
    /// What was kept until then is worth nothing any more; the same request's, if its work failed.
    Stale(Timestamp, Option<Kept>),
    /// The same request was answered.
    Answered(Kept),
    /// The same request is at work, until then unless that is renewed.
    AtWork(Timestamp),
    /// It was used for another request.
    Other,
}

#[derive(sqlx::FromRow)]
struct Row {
    request_digest: Vec<u8>,
    session_id: Option<Uuid>,
    shows_history: bool,
    state: String,
    token: Option<Uuid>,
    answer: String,
    expires_at: Timestamp,
}

/// How work stands whose answer is kept.
enum Standing {
    Answered,
    AtWork(Timestamp),
    Failed,
}

/// Looks a key up.
async fn look(conn: &mut Conn<'_>, key: &OnceKey) -> Result<Seen> {
    let found: Option<Row> = on_both!(conn, c => sqlx::query_as(
        "SELECT request_digest, session_id, shows_history, state, token, answer, expires_at \
         FROM idempotency WHERE tenant_id = $1 AND scope = $2 AND request_key = $3"
    )
    .bind(key.tenant.0)
    .bind(key.scope.as_slice())
    .bind(&key.key)
    .fetch_optional(c)
    .await)?;
    let Some(row) = found else {
        return Ok(Seen::New);
    };
    if row.expires_at <= key.now {
        return Ok(Seen::Stale(row.expires_at, None));
    }
    let same = row.request_digest == key.digest;
    let kept = Kept {
        session: row.session_id,
        shows_history: row.shows_history,
        state: KeptState::parse(&row.state).ok_or(StorageError::Corrupt("idempotency.state"))?,
        token: row.token,
        answer: row.answer,
    };
    let standing = match kept.state {
        KeptState::Done => Standing::Answered,
        KeptState::Turn => turn_standing(conn, key, &kept).await?,
        KeptState::Compaction => compaction_standing(conn, key, &kept).await?,
    };
    Ok(match standing {
        Standing::Failed => Seen::Stale(row.expires_at, Some(kept).filter(|_| same)),
        _ if !same => Seen::Other,
        Standing::Answered => Seen::Answered(kept),
        Standing::AtWork(until) => Seen::AtWork(until),
    })
}

async fn turn_standing(conn: &mut Conn<'_>, key: &OnceKey, kept: &Kept) -> Result<Standing> {
    let found: Option<(String, Option<Timestamp>)> = on_both!(conn, c => sqlx::query_as(
        "SELECT turns.status, sessions.turn_until FROM turns LEFT JOIN sessions \
         ON sessions.tenant_id = turns.tenant_id AND sessions.id = turns.session_id \
         AND sessions.turn_id = turns.id \
         WHERE turns.tenant_id = $1 AND turns.session_id = $2 AND turns.id = $3"
    )
    .bind(key.tenant.0)
    .bind(kept.session)
    .bind(kept.token)
    .fetch_optional(c)
    .await)?;
    Ok(match found {
        Some((status, until)) if status == "in_progress" => at_work(until, key.now),
        Some((status, _)) if status != "failed" => Standing::Answered,
        _ => Standing::Failed,
    })
}

async fn compaction_standing(conn: &mut Conn<'_>, key: &OnceKey, kept: &Kept) -> Result<Standing> {
    let until: Option<Timestamp> = on_both!(conn, c => sqlx::query_scalar(
        "SELECT expires_at FROM leases WHERE tenant_id = $1 AND session_id = $2 AND token = $3"
    )
    .bind(key.tenant.0)
    .bind(kept.session)
    .bind(kept.token)
    .fetch_optional(c)
    .await)?;
    Ok(at_work(until, key.now))
}

fn at_work(until: Option<Timestamp>, now: Timestamp) -> Standing {
    match until {
        Some(until) if until > now => Standing::AtWork(until),
        _ => Standing::Failed,
    }
}

/// A key under which something may be kept.
#[derive(Default)]
struct Free {
    /// Something is kept until then that is worth nothing any more.
    stale: Option<Timestamp>,
    /// What the same request, which failed, had left.
    left: Option<Kept>,
}

/// Looks a key up; `None` if it is taken.
async fn find_free(conn: &mut Conn<'_>, key: &OnceKey) -> Result<Option<Free>> {
    Ok(match look(conn, key).await? {
        Seen::New => Some(Free::default()),
        Seen::Stale(until, left) => Some(Free {
            stale: Some(until),
            left,
        }),
        Seen::Answered(_) | Seen::AtWork(_) | Seen::Other => None,
    })
}

/// Keeps an answer under a key that is free. What is stale gives way only now: a refusal leaves it. And only what was
/// seen: another's answer in its place stands in the way of this one, which is undone and finds it when it runs again.
async fn keep(
    conn: &mut Conn<'_>,
    key: &OnceKey,
    stale: Option<Timestamp>,
    kept: &Kept,
) -> Result<()> {
    if let Some(until) = stale {
        forget(conn, key, until).await?;
    }
    on_both!(conn, c => sqlx::query(
        "INSERT INTO idempotency (tenant_id, scope, request_key, request_digest, session_id, \
         shows_history, state, token, answer, created_at, expires_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
    )
    .bind(key.tenant.0)
    .bind(key.scope.as_slice())
    .bind(&key.key)
    .bind(key.digest.as_slice())
    .bind(kept.session)
    .bind(kept.shows_history)
    .bind(kept.state.as_str())
    .bind(kept.token)
    .bind(&kept.answer)
    .bind(key.now)
    .bind(key.expires_at)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

/// Keeps the answer of work that was kept before; nothing happens if that was taken away meanwhile.
async fn settle(conn: &mut Conn<'_>, key: &OnceKey, token: Uuid, answer: &str) -> Result<()> {
    on_both!(conn, c => sqlx::query(
        "UPDATE idempotency SET state = $5, answer = $6 \
         WHERE tenant_id = $1 AND scope = $2 AND request_key = $3 AND token = $4"
    )
    .bind(key.tenant.0)
    .bind(key.scope.as_slice())
    .bind(&key.key)
    .bind(token)
    .bind(KeptState::Done.as_str())
    .bind(answer)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

/// Forgets what is kept under a key until then.
async fn forget(conn: &mut Conn<'_>, key: &OnceKey, until: Timestamp) -> Result<()> {
    on_both!(conn, c => sqlx::query(
        "DELETE FROM idempotency WHERE tenant_id = $1 AND scope = $2 AND request_key = $3 AND expires_at = $4"
    )
    .bind(key.tenant.0)
    .bind(key.scope.as_slice())
    .bind(&key.key)
    .bind(until)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

/// Forgets the answers that show what an edit of a session may have taken away.
pub(super) async fn forget_answers(conn: &mut Conn<'_>, key: SessionKey) -> Result<()> {
    on_both!(conn, c => sqlx::query(
        "DELETE FROM idempotency WHERE tenant_id = $1 AND session_id = $2 AND shows_history"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

/// Tells what of a write's output its answer is repeated from; `None` for a refusal, which is not kept.
pub type Keep<O> = Arc<dyn Fn(&O) -> Result<Option<Kept>> + Send + Sync>;

/// A write that is done once under a client's key.
pub struct Once<W: Write> {
    /// The key.
    pub key: OnceKey,
    /// The work that this write is the end of and that was kept before; `None`: the key must be free.
    pub of: Option<Uuid>,
    /// What is done.
    pub write: W,
    /// What is kept of it.
    pub keep: Keep<W::Output>,
}

impl<W: Write> Write for Once<W> {
    /// `None`: the key is taken, and nothing was done.
    type Output = Option<W::Output>;

    fn erases(&self) -> bool {
        self.write.erases()
    }

    fn quick(&mut self) -> Result<Option<QuickAppend>> {
        if self.of.is_some() {
            return Ok(None);
        }
        let Some(quick) = self.write.quick()? else {
            return Ok(None);
        };
        let kept = match self.write.answer_quick(&quick) {
            Some(output) => (self.keep)(&output)?,
            None => None,
        };
        Ok(kept.and_then(|kept| quick.once(&self.key, kept)))
    }

    fn answer_quick(&self, done: &QuickAppend) -> Option<Self::Output> {
        self.write.answer_quick(done).map(Some)
    }

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            let free = match self.of {
                Some(_) => Some(Free::default()),
                None => find_free(conn, &self.key).await?,
            };
            let Some(free) = free else {
                return Ok(None);
            };
            let output = self.write.run(conn).await?;
            match ((self.keep)(&output)?, self.of) {
                (Some(kept), None) => keep(conn, &self.key, free.stale, &kept).await?,
                (Some(kept), Some(token)) => {
                    settle(conn, &self.key, token, &kept.answer).await?;
                }
                (None, _) => {}
            }
            Ok(Some(output))
        })
    }
}

/// Begins a turn once under a client's key. If the same request had failed, its messages are not stored again.
#[derive(Debug, Clone)]
pub struct BeginTurnOnce {
    /// The key.
    pub key: OnceKey,
    /// The turn.
    pub begin: BeginTurn,
}

impl Write for BeginTurnOnce {
    /// `None`: the key is taken, and nothing was done.
    type Output = Option<Result<Box<Begun>, TurnRefusal>>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            let Some(free) = find_free(conn, &self.key).await? else {
                return Ok(None);
            };
            let begin = self.again(free.left.as_ref());
            let outcome = begin.run(conn).await?;
            if outcome.is_ok() {
                let ids: Vec<_> = begin.append.messages.iter().map(|(id, _)| id).collect();
                let ids = serde_json::to_string(&ids)
                    .map_err(|_| StorageError::Corrupt("idempotency.answer"))?;
                let session = begin.append.key.session;
                let kept = Kept::work(session, KeptState::Turn, begin.id, ids);
                keep(conn, &self.key, free.stale, &kept).await?;
            }
            Ok(Some(outcome))
        })
    }
}

impl BeginTurnOnce {
    /// The turn with the ids under which the failed one's messages are stored.
    fn again(&self, left: Option<&Kept>) -> BeginTurn {
        let mut begin = self.begin.clone();
        let ids = left.map(|kept| serde_json::from_str::<Vec<String>>(&kept.answer));
        if let Some(Ok(ids)) = ids
            && ids.len() == begin.append.messages.len()
        {
            for ((id, _), stored) in begin.append.messages.iter_mut().zip(ids) {
                *id = stored;
            }
            begin.append.again = super::Again::SameIds;
        }
        begin
    }
}

/// Keeps an answer and does nothing else: that of a request that changes nothing, or that changes nothing
/// when it is made twice.
#[derive(Debug, Clone, Copy)]
pub struct NoWrite {
    /// The session that the answer is about, if it is about one.
    pub key: Option<SessionKey>,
    /// The `rewrites` counter that was read with what the answer shows; `None` if it shows nothing that can be
    /// taken away.
    pub rewrites: Option<i64>,
}

impl Write for NoWrite {
    /// Whether the session is there, and as it was read.
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            let Some(key) = self.key else {
                return Ok(true);
            };
            let session = lock(conn, key).await?;
            let is_same = |row: &SessionRow| {
                self.rewrites
                    .is_none_or(|rewrites| rewrites == row.rewrites)
            };
            Ok(session.is_some_and(|row| is_same(&row)))
        })
    }
}

/// Keeps the answer of a turn that has ended, as it was given.
#[derive(Debug, Clone)]
pub struct SettleTurn {
    /// The key.
    pub key: OnceKey,
    /// The turn.
    pub id: Uuid,
    /// What the answer is made of.
    pub answer: String,
}

impl Write for SettleTurn {
    type Output = ();

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move { settle(conn, &self.key, self.id, &self.answer).await })
    }
}

/// Deletes answers that have been kept long enough; gives how many.
#[derive(Debug, Clone)]
pub struct DeleteOldAnswers {
    /// The present.
    pub now: Timestamp,
    /// How many at most.
    pub limit: i64,
}

impl Write for DeleteOldAnswers {
    type Output = u64;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<u64>> {
        Box::pin(async move {
            Ok(on_both!(conn, c => sqlx::query(
                "DELETE FROM idempotency WHERE (tenant_id, scope, request_key) IN (SELECT tenant_id, scope, \
                 request_key FROM idempotency WHERE expires_at <= $1 \
                 ORDER BY expires_at, tenant_id, scope, request_key LIMIT $2)"
            )
            .bind(self.now)
            .bind(self.limit)
            .execute(c)
            .await
            .map(|done| done.rows_affected()))?)
        })
    }
}

impl Database {
    /// What is known of a client's key.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn look_up(&self, key: &OnceKey) -> Result<Seen> {
        match self {
            Self::Sqlite { readers, watch, .. } => {
                let mut held = watch.acquire(readers).await?;
                let seen = look(&mut Conn::sqlite(&mut held), key).await?;
                held.give_back();
                Ok(seen)
            }
            Self::Postgres { pool, watch, .. } => {
                let mut held = watch.acquire(pool).await?;
                let seen = look(&mut Conn::postgres(&mut held), key).await?;
                held.give_back();
                Ok(seen)
            }
        }
    }
}
