//! Sessions: the row that counts, points and orders everything else of a session.

use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::due::{Marking, marking};
use super::events;
use super::messages::{self, NewRow};
use super::{
    Conn, Database, Result, SessionKey, StorageError, TenantId, Timestamp, Write, dispatches,
    on_both, once, one_more, reading, search, spell, take_page, turns, unspell,
};
use crate::domain::auto_compaction::{Load, Standing};
use crate::domain::event::{Change, Event};
use crate::domain::message::Digest256;
use crate::domain::pairing::{Counters, Tail};

/// A session as it is stored.
#[derive(Debug, Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct SessionRow {
    pub id: Uuid,
    pub agent_name: Option<String>,
    pub agent: Option<String>,
    pub mode: String,
    pub status: String,
    pub(super) title: Option<String>,
    pub(super) model: Option<String>,
    pub model_thinking: Option<String>,
    instance_folder: Option<String>,
    pub metadata: String,
    pub compaction: String,
    pub pruning: String,
    pub auto_compact: String,
    pub compact_summary: Option<String>,
    pub compact_size: i64,
    pub compact_count: i64,
    pub compaction_version: i64,
    pub compact_seq: i64,
    pub compact_length: i64,
    pub compact_tokens: i64,
    pub compact_bytes: i64,
    pub last_seq: i64,
    pub message_count: i64,
    pub position_count: i64,
    pub history_length: i64,
    pub history_tokens: i64,
    pub history_bytes: i64,
    pub instruction_tokens: i64,
    tail: String,
    pub revision: i64,
    pub rewrites: i64,
    pub dispatch_count: i64,
    pub plan_dispatch: i64,
    pub tokens_saved: i64,
    pub elisions: i64,
    pub plan_changes: i64,
    pub previous_bytes: i64,
    pub shared_bytes: i64,
    pub refetches: i64,
    pub restores: i64,
    pub event_seq: i64,
    pub due_at: Option<Timestamp>,
    pub due_waits: bool,
    pub due_failures: i64,
    pub stalls: i64,
    pub stalled_tokens: Option<i64>,
    pub turn_id: Option<Uuid>,
    pub turn_until: Option<Timestamp>,
    pub retention_days: Option<i64>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub closed_at: Option<Timestamp>,
}

impl SessionRow {
    /// Whether it takes no writes.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.status == "closed"
    }

    /// The title, decoded.
    #[must_use]
    pub fn title(&self) -> Option<String> {
        unspell(self.title.clone())
    }

    /// The model's name, decoded.
    #[must_use]
    pub fn model(&self) -> Option<String> {
        unspell(self.model.clone())
    }

    /// The instance's folder, decoded.
    #[must_use]
    pub fn instance_folder(&self) -> Option<String> {
        unspell(self.instance_folder.clone())
    }

    /// Bytes of what may be large in it.
    fn bytes(&self) -> usize {
        let optional = [&self.agent, &self.compact_summary, &self.model_thinking];
        let optional = optional.into_iter().flatten().map(String::len);
        self.metadata.len() + optional.sum::<usize>()
    }

    /// The running numbers.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            last_seq: self.last_seq,
            messages: self.message_count,
            positions: self.position_count,
            length: self.history_length,
            tokens: self.history_tokens,
            bytes: self.history_bytes,
            instruction_tokens: self.instruction_tokens,
        }
    }

    /// The end of the history.
    ///
    /// # Errors
    /// The stored text is not readable.
    pub fn tail(&self) -> Result<Tail> {
        serde_json::from_str(&self.tail).map_err(|_| StorageError::Corrupt("sessions.tail"))
    }
}

/// Every column, in the order of no importance.
macro_rules! columns {
    () => {
        "id, agent_name, agent, mode, status, title, model, model_thinking, instance_folder, metadata, \
         compaction, pruning, auto_compact, compact_summary, compact_size, compact_count, \
         compaction_version, compact_seq, compact_length, compact_tokens, compact_bytes, last_seq, \
         message_count, position_count, history_length, history_tokens, history_bytes, \
         instruction_tokens, tail, revision, rewrites, dispatch_count, plan_dispatch, tokens_saved, \
         elisions, plan_changes, previous_bytes, shared_bytes, refetches, restores, event_seq, \
         due_at, due_waits, due_failures, stalls, stalled_tokens, turn_id, turn_until, retention_days, \
         created_at, updated_at, closed_at"
    };
}
pub(super) use columns;

/// Why a write to a session is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteRefusal {
    /// There is no such session.
    NotFound,
    /// It is closed.
    Closed,
    /// A turn runs in it, and holds it until then unless it ends before.
    TurnInProgress(Timestamp),
}

/// Locks the session's row for the rest of the transaction and gives it. Writes to one session line
/// up here; those to others do not wait. One that is being deleted is not there.
pub(super) async fn lock(conn: &mut Conn<'_>, key: SessionKey) -> Result<Option<SessionRow>> {
    Ok(on_both!(conn, c => sqlx::query_as(concat!(
        "UPDATE sessions SET revision = revision WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL \
         RETURNING ",
        columns!()
    ))
    .bind(key.tenant.0)
    .bind(key.session)
    .fetch_optional(c)
    .await)?)
}

/// As [`lock`], but only a session that may be written to.
pub(super) async fn lock_open(
    conn: &mut Conn<'_>,
    key: SessionKey,
) -> Result<Result<SessionRow, WriteRefusal>> {
    Ok(match lock(conn, key).await? {
        None => Err(WriteRefusal::NotFound),
        Some(session) if session.is_closed() => Err(WriteRefusal::Closed),
        Some(session) => Ok(session),
    })
}

/// As [`lock_open`], but only a session in which no turn runs: nothing may come between a turn's question and
/// its answer. A turn whose process died is ended on the way.
pub(super) async fn lock_idle(
    conn: &mut Conn<'_>,
    key: SessionKey,
    now: Timestamp,
) -> Result<Result<SessionRow, WriteRefusal>> {
    let session = match lock_open(conn, key).await? {
        Ok(session) => session,
        Err(refusal) => return Ok(Err(refusal)),
    };
    match session.turn_until {
        None => Ok(Ok(session)),
        Some(until) if until > now => Ok(Err(WriteRefusal::TurnInProgress(until))),
        Some(_) => {
            turns::end_dead(conn, key, &session, now).await?;
            lock_open(conn, key).await
        }
    }
}

/// As [`lock`], and counts events that are to be stored next, with the numbers up to its `event_seq`.
pub(super) async fn count_events(
    conn: &mut Conn<'_>,
    key: SessionKey,
    count: i64,
) -> Result<SessionRow> {
    let counted: Option<_> = on_both!(conn, c => sqlx::query_as(concat!(
        "UPDATE sessions SET event_seq = event_seq + $3 WHERE tenant_id = $1 AND id = $2 RETURNING ",
        columns!()
    ))
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(count)
    .fetch_optional(c)
    .await)?;
    counted.ok_or(StorageError::Corrupt(
        "a session vanished in its transaction",
    ))
}

/// Writes the running numbers and the end of the history behind an append, counts the events of it, and marks the
/// session if that makes it due.
pub(super) async fn store_counters(
    conn: &mut Conn<'_>,
    key: SessionKey,
    counters: &Counters,
    tail: &Tail,
    events: i64,
    marking: Marking,
    now: Timestamp,
) -> Result<()> {
    let tail = serde_json::to_string(tail).map_err(|_| StorageError::Corrupt("sessions.tail"))?;
    on_both!(conn, c => sqlx::query(concat!(
        "UPDATE sessions SET last_seq = $3, message_count = $4, position_count = $5, \
         history_length = $6, history_tokens = $7, history_bytes = $8, instruction_tokens = $9, \
         tail = $10, updated_at = $11, revision = revision + 1, event_seq = event_seq + $12, ",
        marking!(),
        " WHERE tenant_id = $1 AND id = $2"
    ))
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(counters.last_seq)
    .bind(counters.messages)
    .bind(counters.positions)
    .bind(counters.length)
    .bind(counters.tokens)
    .bind(counters.bytes)
    .bind(counters.instruction_tokens)
    .bind(&tail)
    .bind(now)
    .bind(events)
    .bind(marking.due_at)
    .bind(marking.afresh)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

/// A session to be created, with its first messages.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct NewSession {
    pub agent_name: Option<String>,
    pub agent: Option<String>,
    pub mode: String,
    pub title: Option<String>,
    pub model: Option<String>,
    pub model_thinking: Option<String>,
    pub instance_folder: Option<String>,
    pub metadata: String,
    pub compact_count: i64,
    pub compaction: String,
    pub pruning: String,
    pub auto_compact: String,
    pub retention_days: Option<i64>,
    /// What can be filtered by: member name and value's JSON text.
    pub labels: Vec<(String, String)>,
    /// Placed behind an empty history.
    pub rows: Vec<NewRow>,
    /// The numbers behind the rows.
    pub counters: Counters,
    /// The end of the history behind the rows.
    pub tail: Tail,
}

impl NewSession {
    fn marking(&self, now: Timestamp) -> Result<Marking> {
        let load = || Load {
            tokens: self.counters.instruction_tokens + self.counters.tokens,
            messages: self.counters.positions,
        };
        Marking::of(&self.auto_compact, Standing::default(), load, now)
    }
}

/// Creates a session.
#[derive(Debug, Clone)]
pub struct CreateSession {
    /// Its key; the id is new.
    pub key: SessionKey,
    /// What it holds.
    pub session: NewSession,
    /// When.
    pub now: Timestamp,
}

impl Write for CreateSession {
    type Output = SessionRow;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<SessionRow>> {
        Box::pin(async move {
            let new = &self.session;
            on_both!(conn, c => sqlx::query(
                "INSERT INTO sessions (tenant_id, id, agent_name, agent, mode, status, title, model, \
                 model_thinking, instance_folder, metadata, compact_count, compaction, pruning, \
                 auto_compact, tail, created_at, updated_at, retention_days) VALUES ($1, $2, $3, $4, $5, 'active', \
                 $6, $7, $8, $9, $10, $11, $12, $13, $14, '{}', $15, $15, $16)"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(&new.agent_name)
            .bind(&new.agent)
            .bind(&new.mode)
            .bind(spell(new.title.as_deref()))
            .bind(spell(new.model.as_deref()))
            .bind(&new.model_thinking)
            .bind(spell(new.instance_folder.as_deref()))
            .bind(&new.metadata)
            .bind(new.compact_count)
            .bind(&new.compaction)
            .bind(&new.pruning)
            .bind(&new.auto_compact)
            .bind(self.now)
            .bind(new.retention_days)
            .execute(c)
            .await
            .map(drop))?;
            store_labels(conn, self.key, &new.labels).await?;
            if !new.rows.is_empty() {
                messages::insert(conn, self.key, &new.rows, self.now).await?;
                let marking = new.marking(self.now)?;
                store_counters(
                    conn,
                    self.key,
                    &new.counters,
                    &new.tail,
                    0,
                    marking,
                    self.now,
                )
                .await?;
            }
            self.tell(conn).await
        })
    }
}

impl CreateSession {
    async fn tell(&self, conn: &mut Conn<'_>) -> Result<SessionRow> {
        let appended = messages::appended(&self.session.rows);
        let row = count_events(conn, self.key, if appended.is_some() { 2 } else { 1 }).await?;
        let created = Event::SessionCreated {
            forked_from: None,
            totals: row.totals(),
        };
        let events: Vec<_> = [created].into_iter().chain(appended).collect();
        events::insert(conn, self.key, 1, &events, self.now).await?;
        Ok(row)
    }
}

/// The digest under which a metadata member can be found. Of fixed size: index keys are bounded.
fn label_digest(name: &str, value: &str) -> Digest256 {
    Sha256::new()
        .chain_update(crate::domain::json::encode_string(name))
        .chain_update(value)
        .finalize()
        .into()
}

pub(super) async fn store_labels(
    conn: &mut Conn<'_>,
    key: SessionKey,
    labels: &[(String, String)],
) -> Result<()> {
    for (name, value) in labels {
        let digest = label_digest(name, value);
        on_both!(conn, c => sqlx::query(
            "INSERT INTO session_metadata (tenant_id, digest, session_id) VALUES ($1, $2, $3) \
             ON CONFLICT DO NOTHING"
        )
        .bind(key.tenant.0)
        .bind(digest.to_vec())
        .bind(key.session)
        .execute(c)
        .await
        .map(drop))?;
    }
    Ok(())
}

/// Forgets all messages and summaries of a session; the session and its settings stay.
#[derive(Debug, Clone)]
pub struct ResetSession {
    /// Which.
    pub key: SessionKey,
    /// When.
    pub now: Timestamp,
}

impl Write for ResetSession {
    type Output = Result<SessionRow, WriteRefusal>;

    fn erases(&self) -> bool {
        true
    }

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            if let Err(refusal) = lock_idle(conn, self.key, self.now).await? {
                return Ok(Err(refusal));
            }
            for statement in [
                "DELETE FROM messages WHERE tenant_id = $1 AND session_id = $2",
                "DELETE FROM compactions WHERE tenant_id = $1 AND session_id = $2",
                "DELETE FROM turns WHERE tenant_id = $1 AND session_id = $2",
            ] {
                on_both!(conn, c => sqlx::query(statement)
                    .bind(self.key.tenant.0)
                    .bind(self.key.session)
                    .execute(c)
                    .await
                    .map(drop))?;
            }
            dispatches::forget_all(conn, self.key).await?;
            once::forget_answers(conn, self.key).await?;
            search::unindex_after(conn, self.key, 0).await?;
            // last_seq stays: a seq is never used twice.
            let after: SessionRow = on_both!(conn, c => sqlx::query_as(concat!(
                "UPDATE sessions SET compact_summary = NULL, compact_size = 0, compaction_version = 0, \
                 compact_seq = 0, compact_length = 0, compact_tokens = 0, compact_bytes = 0, \
                 message_count = 0, position_count = 0, history_length = 0, history_tokens = 0, \
                 history_bytes = 0, instruction_tokens = 0, tail = '{}', revision = revision + 1, \
                 rewrites = rewrites + 1, event_seq = event_seq + 1, due_at = NULL, due_waits = FALSE, \
                 due_failures = 0, stalls = 0, stalled_tokens = NULL, updated_at = $3 \
                 WHERE tenant_id = $1 AND id = $2 RETURNING ",
                columns!()
            ))
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(self.now)
            .fetch_one(c)
            .await)?;
            let reason = Change::Reset;
            events::insert_updated(conn, self.key, &after, reason, None, self.now).await?;
            Ok(Ok(after))
        })
    }
}

/// Which way a list runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Oldest first.
    Asc,
    /// Newest first.
    Desc,
}

/// Which sessions a list shows.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// Exactly this status.
    pub status: Option<String>,
    /// Exactly this agent.
    pub agent_name: Option<String>,
    /// Exactly this mode.
    pub mode: Option<String>,
    /// All of these metadata members: each a name and the accepted spellings of its value.
    pub labels: Vec<(String, [String; 2])>,
    /// Only those created before this one.
    pub before: Option<Uuid>,
}

/// Most metadata members that one list can filter by.
pub const MOST_LABELS: usize = 4;

impl Database {
    /// A session, if there is one.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_session(&self, key: SessionKey) -> Result<Option<SessionRow>> {
        Ok(reading!(self, pool => sqlx::query_as(concat!(
            "SELECT ", columns!(), " FROM sessions WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL"
        ))
        .bind(key.tenant.0)
        .bind(key.session)
        .fetch_optional(pool)
        .await)?)
    }

    /// Sessions, newest first, `limit` at most; the flag says whether more follow.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_sessions(
        &self,
        tenant: TenantId,
        filter: &SessionFilter,
        limit: usize,
    ) -> Result<(Vec<SessionRow>, bool)> {
        // Ids begin with the time of their making, so their order is that of creation.
        let before = filter.before.unwrap_or(Uuid::max());
        let mut labels: Vec<Option<Vec<u8>>> = filter
            .labels
            .iter()
            .take(MOST_LABELS)
            .flat_map(|(name, values)| {
                values
                    .iter()
                    .map(|value| label_digest(name, value).to_vec())
            })
            .map(Some)
            .collect();
        labels.resize(2 * MOST_LABELS, None);
        let mut label = labels.into_iter();
        let mut next = || label.next().flatten();
        // Materialised: in the order of the groups, SQLite would walk through all labels of the tenant.
        reading!(self, pool => {
            let found = sqlx::query_as(concat!(
            "SELECT ", columns!(), " FROM sessions WHERE tenant_id = $1 AND id < $2 AND deleted_at IS NULL \
             AND ($3 IS NULL OR status = $3) AND ($4 IS NULL OR agent_name = $4) \
             AND ($5 IS NULL OR mode = $5) AND ($6 = 0 OR id IN (\
               WITH labelled AS MATERIALIZED (SELECT session_id FROM session_metadata WHERE tenant_id = $1 \
               AND digest IN ($7, $8, $9, $10, $11, $12, $13, $14)) \
               SELECT session_id FROM labelled GROUP BY session_id HAVING count(*) >= $6)) \
             ORDER BY id DESC LIMIT $15"
        ))
        .bind(tenant.0)
        .bind(before)
        .bind(&filter.status)
        .bind(&filter.agent_name)
        .bind(&filter.mode)
        .bind(i64::try_from(filter.labels.len()).unwrap_or(i64::MAX))
        .bind(next())
        .bind(next())
        .bind(next())
        .bind(next())
        .bind(next())
        .bind(next())
        .bind(next())
        .bind(next())
        .bind(one_more(limit))
        .fetch(pool);
            take_page(found, limit, SessionRow::bytes).await
        })
    }
}
