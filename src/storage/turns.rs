//! Turns: how one begins, is kept, and ends, each in one transaction with what it stores and tells.
//!
//! The session's row says which turn runs and until when it holds the session. A turn that is no longer
//! named there is over, whatever its process believes: it was cancelled, or its time ran out and
//! somebody else went on.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::events::emit;
use super::messages::{AppendMessages, AppendOutcome, AppendRefusal, StoredRef};
use super::sessions::{SessionRow, lock, lock_idle};
use super::tenants::{lock_tenant, turns_are_full};
use super::{
    Conn, Database, Result, SessionKey, StorageError, TenantId, Timestamp, Write, on_both,
    one_more, reading, spell, take_page, unspell,
};
use crate::domain::event::Event;
use crate::domain::message::Message;

/// A turn as it is stored.
#[derive(Debug, Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct TurnRow {
    pub id: Uuid,
    pub status: String,
    model: Option<String>,
    pub first_seq: Option<i64>,
    pub last_seq: Option<i64>,
    pub dispatch: Option<i64>,
    pub compaction: Option<i64>,
    finish: Option<String>,
    pub usage: Option<String>,
    pub incomplete: bool,
    pub open_calls: Option<String>,
    pub error_code: Option<String>,
    error_detail: Option<String>,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

impl TurnRow {
    /// The model that was asked.
    #[must_use]
    pub fn model(&self) -> Option<String> {
        unspell(self.model.clone())
    }

    /// Why the model stopped, as its server spells it.
    #[must_use]
    pub fn finish(&self) -> Option<String> {
        unspell(self.finish.clone())
    }

    /// Why it failed.
    #[must_use]
    pub fn error_detail(&self) -> Option<String> {
        unspell(self.error_detail.clone())
    }
}

macro_rules! columns {
    () => {
        "id, status, model, first_seq, last_seq, dispatch, compaction, finish, usage, incomplete, \
         open_calls, error_code, error_detail, created_at, ended_at"
    };
}

/// The code of a turn whose process died, or was not heard of in time.
pub const INTERRUPTED: &str = "TURN_INTERRUPTED";
/// The code of a turn that was stopped on request.
const CANCELLED: &str = "TURN_CANCELLED";

/// Appends what is new and begins a turn, unless calls still wait for results.
#[derive(Debug, Clone)]
pub struct BeginTurn {
    /// The turn's id.
    pub id: Uuid,
    /// The new messages; none if the newest turn is to be answered again.
    pub append: AppendMessages,
    /// The model that will be asked.
    pub model: String,
    /// Until when it holds the session unless it is renewed.
    pub until: Timestamp,
    /// How many turns of the tenant may run at once; `None`: any number.
    pub most: Option<i64>,
}

/// What became of a turn's beginning.
#[derive(Debug)]
pub struct Begun {
    /// The turn.
    pub turn: TurnRow,
    /// The new messages.
    pub appended: AppendOutcome,
}

/// Why no turn begins; nothing is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnRefusal {
    /// The new messages cannot be appended.
    Append(AppendRefusal),
    /// The newest message is neither a user's nor a result.
    NothingToAnswer,
    /// As many turns of the tenant as may be are running.
    Full,
}

impl BeginTurn {
    /// Whether something waits for an answer once the messages are there.
    fn has_question(&self, session: &SessionRow) -> Result<bool> {
        let new = self.append.messages.iter().rev();
        let mut new = new.map(|(_, message)| message.role);
        Ok(match new.find(|role| !role.is_instruction()) {
            Some(role) => role.asks(),
            None => session.tail()?.asks(),
        })
    }
}

impl Write for BeginTurn {
    type Output = Result<Box<Begun>, TurnRefusal>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            let (key, now) = (self.append.key, self.append.now);
            lock_tenant(conn, key.tenant, self.most).await?;
            let session = match lock_idle(conn, key, now).await? {
                Ok(session) => session,
                Err(refusal) => {
                    return Ok(Err(TurnRefusal::Append(AppendRefusal::Session(refusal))));
                }
            };
            if !self.has_question(&session)? {
                return Ok(Err(TurnRefusal::NothingToAnswer));
            }
            if turns_are_full(conn, key.tenant, self.most, now).await? {
                return Ok(Err(TurnRefusal::Full));
            }
            let appended = match self.append.append(conn, &session).await? {
                Ok(appended) => appended,
                Err(refusal) => return Ok(Err(TurnRefusal::Append(refusal))),
            };
            // Sent again and stored before: it may be answered already.
            if appended.last_seq == session.last_seq && !appended.tail.asks() {
                return Ok(Err(TurnRefusal::NothingToAnswer));
            }
            let open: Vec<&str> = appended.tail.open_calls().collect();
            let turn = self.insert(conn, &appended, &open).await?;
            let mut events = vec![Event::TurnStarted { turn_id: self.id }];
            if open.is_empty() {
                on_both!(conn, c => sqlx::query(
                    "UPDATE sessions SET turn_id = $3, turn_until = $4 WHERE tenant_id = $1 AND id = $2"
                )
                .bind(key.tenant.0)
                .bind(key.session)
                .bind(self.id)
                .bind(self.until)
                .execute(c)
                .await
                .map(drop))?;
            } else {
                events.push(Event::TurnCompleted {
                    turn_id: self.id,
                    status: turn.status.clone(),
                    last_seq: appended.last_seq,
                });
            }
            emit(conn, key, &events, now).await?;
            Ok(Ok(Box::new(Begun { turn, appended })))
        })
    }
}

impl BeginTurn {
    async fn insert(
        &self,
        conn: &mut Conn<'_>,
        appended: &AppendOutcome,
        open: &[&str],
    ) -> Result<TurnRow> {
        let waits = !open.is_empty();
        let open = waits
            .then(|| serde_json::to_string(open))
            .transpose()
            .map_err(|_| StorageError::Corrupt("turns.open_calls"))?;
        Ok(on_both!(conn, c => sqlx::query_as(concat!(
            "INSERT INTO turns (tenant_id, session_id, id, status, model, first_seq, last_seq, open_calls, \
             created_at, ended_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING ",
            columns!()
        ))
        .bind(self.append.key.tenant.0)
        .bind(self.append.key.session)
        .bind(self.id)
        .bind(if waits { "requires_tool_results" } else { "in_progress" })
        .bind(spell(Some(&self.model)))
        .bind(appended.stored.iter().map(|stored| stored.seq).min())
        .bind(appended.stored.iter().map(|stored| stored.seq).max())
        .bind(&open)
        .bind(self.append.now)
        .bind(waits.then_some(self.append.now))
        .fetch_one(c)
        .await)?)
    }
}

/// Prolongs a turn; gives whether it still holds its session.
#[derive(Debug, Clone)]
pub struct RenewTurn {
    /// Which session.
    pub key: SessionKey,
    /// The turn.
    pub id: Uuid,
    /// Until when it holds now.
    pub until: Timestamp,
}

impl Write for RenewTurn {
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            let renewed = on_both!(conn, c => sqlx::query(
                "UPDATE sessions SET turn_until = $4 WHERE tenant_id = $1 AND id = $2 AND turn_id = $3"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(self.id)
            .bind(self.until)
            .execute(c)
            .await
            .map(|done| done.rows_affected()))?;
            Ok(renewed == 1)
        })
    }
}

/// What a model answered, ready to be stored.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The message, with its id.
    pub message: (String, Message),
    /// Why the model stopped.
    pub finish: Option<String>,
    /// What the provider counted.
    pub usage: Option<String>,
    /// The answer broke off.
    pub incomplete: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The error's code.
    pub code: &'static str,
    /// What a client is told.
    pub detail: String,
}

/// Ends a turn: stores the answer, or why there is none.
#[derive(Debug, Clone)]
pub struct EndTurn {
    /// Which session.
    pub key: SessionKey,
    /// The turn.
    pub id: Uuid,
    /// How it ends.
    pub outcome: Result<Answer, Failure>,
    /// The dispatch that was sent last.
    pub dispatch: Option<i64>,
    /// Version of the compaction made on the way.
    pub compaction: Option<i64>,
    /// When.
    pub now: Timestamp,
}

/// Whether a turn was ended.
#[derive(Debug)]
pub enum Ended {
    /// It was; with the stored answer if there is one, and the pointer.
    Yes(Box<(TurnRow, Option<StoredRef>, i64)>),
    /// It was over before.
    Over,
}

impl Write for EndTurn {
    type Output = Ended;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Ended>> {
        Box::pin(async move {
            let Some(session) = lock(conn, self.key).await? else {
                return Ok(Ended::Over);
            };
            if session.turn_id != Some(self.id) {
                self.complete_record(conn).await?;
                return Ok(Ended::Over);
            }
            let closed = || Failure {
                code: "SESSION_CLOSED",
                detail:
                    "The session was closed while the model answered; the answer is not stored."
                        .to_owned(),
            };
            let outcome = match &self.outcome {
                Ok(_) if session.is_closed() => Err(closed()),
                outcome => outcome.clone(),
            };
            let (mut stored, mut end) = (None, End::of(self));
            match outcome {
                Err(failure) => end.fail(failure.code, failure.detail),
                Ok(answer) => {
                    let append = AppendMessages {
                        key: self.key,
                        messages: vec![answer.message],
                        expected_last_seq: None,
                        again: super::Again::No,
                        head: None,
                        now: self.now,
                    };
                    match append.append(conn, &session).await? {
                        Err(_) => return Err(StorageError::Corrupt("an answer has no place")),
                        Ok(appended) => {
                            let open: Vec<_> = appended.tail.open_calls().collect();
                            end.status = if open.is_empty() {
                                "completed"
                            } else {
                                "requires_tool_results"
                            };
                            end.open_calls = (!open.is_empty())
                                .then(|| serde_json::to_string(&open).unwrap_or_default());
                            stored = appended.stored.into_iter().next();
                        }
                    }
                    end.last_seq = stored.as_ref().map(|stored| stored.seq);
                    (end.finish, end.usage, end.incomplete) =
                        (answer.finish, answer.usage, answer.incomplete);
                }
            }
            let turn = end.store(conn).await?;
            Ok(Ended::Yes(Box::new((turn, stored, session.compact_size))))
        })
    }
}

impl EndTurn {
    /// A turn that was ended by somebody else has its record; what was sent on the way belongs there too.
    async fn complete_record(&self, conn: &mut Conn<'_>) -> Result<()> {
        on_both!(conn, c => sqlx::query(
            "UPDATE turns SET dispatch = coalesce(dispatch, $4), compaction = coalesce(compaction, $5) \
             WHERE tenant_id = $1 AND session_id = $2 AND id = $3"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(self.id)
        .bind(self.dispatch)
        .bind(self.compaction)
        .execute(c)
        .await
        .map(drop))?;
        Ok(())
    }
}

/// How a turn ends.
struct End {
    key: SessionKey,
    id: Uuid,
    now: Timestamp,
    status: &'static str,
    dispatch: Option<i64>,
    compaction: Option<i64>,
    last_seq: Option<i64>,
    finish: Option<String>,
    usage: Option<String>,
    incomplete: bool,
    open_calls: Option<String>,
    error: Option<(&'static str, String)>,
}

impl End {
    fn of(end: &EndTurn) -> Self {
        Self {
            dispatch: end.dispatch,
            compaction: end.compaction,
            ..Self::failed(end.key, end.id, end.now)
        }
    }

    fn failed(key: SessionKey, id: Uuid, now: Timestamp) -> Self {
        Self {
            key,
            id,
            now,
            status: "failed",
            dispatch: None,
            compaction: None,
            last_seq: None,
            finish: None,
            usage: None,
            incomplete: false,
            open_calls: None,
            error: None,
        }
    }

    fn fail(&mut self, code: &'static str, detail: String) {
        self.error = Some((code, detail));
    }

    /// Writes the end, lets the session go, and tells of it.
    async fn store(self, conn: &mut Conn<'_>) -> Result<TurnRow> {
        let (code, detail) = self.error.unzip();
        let turn: TurnRow = on_both!(conn, c => sqlx::query_as(concat!(
            "UPDATE turns SET status = $4, dispatch = coalesce($5, dispatch), \
             compaction = coalesce($6, compaction), first_seq = coalesce(first_seq, $7), \
             last_seq = coalesce($7, last_seq), finish = $8, usage = $9, incomplete = $10, \
             open_calls = $11, error_code = $12, error_detail = $13, ended_at = $14 \
             WHERE tenant_id = $1 AND session_id = $2 AND id = $3 RETURNING ",
            columns!()
        ))
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(self.id)
        .bind(self.status)
        .bind(self.dispatch)
        .bind(self.compaction)
        .bind(self.last_seq)
        .bind(spell(self.finish.as_deref()))
        .bind(&self.usage)
        .bind(self.incomplete)
        .bind(&self.open_calls)
        .bind(code)
        .bind(spell(detail.as_deref()))
        .bind(self.now)
        .fetch_one(c)
        .await)?;
        // A turn that failed is sent again in whole: a compaction need not wait any longer.
        on_both!(conn, c => sqlx::query(
            "UPDATE sessions SET turn_id = NULL, turn_until = NULL, \
             due_at = (CASE WHEN due_waits AND $3 THEN $4 ELSE due_at END), \
             due_waits = (due_waits AND NOT $3) WHERE tenant_id = $1 AND id = $2"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(code.is_some())
        .bind(self.now)
        .execute(c)
        .await
        .map(drop))?;
        let event = match (code, self.last_seq) {
            (None, Some(last_seq)) => Event::TurnCompleted {
                turn_id: self.id,
                status: self.status.to_owned(),
                last_seq,
            },
            (code, _) => Event::TurnFailed {
                turn_id: self.id,
                code: code.unwrap_or("INTERNAL").to_owned(),
            },
        };
        emit(conn, self.key, &[event], self.now).await?;
        Ok(turn)
    }
}

/// Ends a turn whose process died. The session's row is held.
pub(super) async fn end_dead(
    conn: &mut Conn<'_>,
    key: SessionKey,
    session: &SessionRow,
    now: Timestamp,
) -> Result<()> {
    if let Some(id) = session.turn_id {
        let mut end = End::failed(key, id, now);
        end.fail(
            INTERRUPTED,
            "The server that ran this turn stopped before it ended; send a turn without messages to try again."
                .to_owned(),
        );
        end.store(conn).await?;
    }
    Ok(())
}

/// Ends the turn of a session if its time has run out; gives whether it had.
#[derive(Debug, Clone)]
pub struct EndDeadTurn {
    /// Which session.
    pub key: SessionKey,
    /// The present.
    pub now: Timestamp,
}

impl Write for EndDeadTurn {
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            match lock(conn, self.key).await? {
                Some(session) if session.turn_until.is_some_and(|until| until <= self.now) => {
                    end_dead(conn, self.key, &session, self.now).await?;
                    Ok(true)
                }
                _ => Ok(false),
            }
        })
    }
}

/// Stops a turn; nothing happens if it is over.
#[derive(Debug, Clone)]
pub struct CancelTurn {
    /// Which session.
    pub key: SessionKey,
    /// The turn.
    pub id: Uuid,
    /// When.
    pub now: Timestamp,
}

impl Write for CancelTurn {
    /// The turn as it stands then; `None` if there is none.
    type Output = Option<TurnRow>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            let Some(session) = lock(conn, self.key).await? else {
                return Ok(None);
            };
            if session.turn_id == Some(self.id) {
                let mut end = End::failed(self.key, self.id, self.now);
                end.fail(CANCELLED, "The turn was stopped on request.".to_owned());
                return end.store(conn).await.map(Some);
            }
            Ok(on_both!(conn, c => sqlx::query_as(concat!(
                "SELECT ", columns!(), " FROM turns WHERE tenant_id = $1 AND session_id = $2 AND id = $3"
            ))
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(self.id)
            .fetch_optional(c)
            .await)?)
        })
    }
}

impl Database {
    /// One turn of a session, if it is there.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_turn(&self, key: SessionKey, id: Uuid) -> Result<Option<TurnRow>> {
        Ok(reading!(self, pool => sqlx::query_as(concat!(
            "SELECT ", columns!(), " FROM turns WHERE tenant_id = $1 AND session_id = $2 AND id = $3"
        ))
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(id)
        .fetch_optional(pool)
        .await)?)
    }

    /// The turns before one, newest first, `limit` at most; the flag says whether more follow.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_turns(
        &self,
        key: SessionKey,
        before: Uuid,
        limit: usize,
    ) -> Result<(Vec<TurnRow>, bool)> {
        reading!(self, pool => {
            let found = sqlx::query_as(concat!(
                "SELECT ", columns!(), " FROM turns WHERE tenant_id = $1 AND session_id = $2 AND id < $3 \
                 ORDER BY id DESC LIMIT $4"
            ))
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(before)
            .bind(one_more(limit))
            .fetch(pool);
            let size = |row: &TurnRow| 256 + row.usage.as_ref().map_or(0, String::len);
            take_page(found, limit, size).await
        })
    }

    /// Sessions whose turn has run out of time, the oldest first, `limit` at most. All tenants: it is for the
    /// replica itself.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_dead_turns(&self, now: Timestamp, limit: i64) -> Result<Vec<SessionKey>> {
        let found: Vec<(i64, Uuid)> = reading!(self, pool => sqlx::query_as(
            "SELECT tenant_id, id FROM sessions WHERE turn_until IS NOT NULL AND turn_until <= $1 \
             ORDER BY turn_until LIMIT $2"
        )
        .bind(now)
        .bind(limit)
        .fetch_all(pool)
        .await)?;
        let key = |(tenant, session)| SessionKey {
            tenant: TenantId(tenant),
            session,
        };
        Ok(found.into_iter().map(key).collect())
    }
}
