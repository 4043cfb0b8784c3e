//! The chain of compactions: the batch to fold in, the commit, the records.

use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::sessions::{SessionRow, WriteRefusal, count_events, lock_open};
use super::{
    Conn, Database, Result, SessionKey, Timestamp, Write, elisions, events, leases, on_both,
    one_more, reading, spell, take_page, unspell,
};
use crate::domain::event::{CompactionRun, CompactionStatus, Event};
use crate::domain::message::Digest256;
use crate::domain::plan::Cut;

/// One message of a batch.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct BatchRow {
    /// Who speaks.
    pub role: String,
    /// Whether a group begins here.
    pub starts_group: bool,
    tool_name: Option<String>,
    /// Which of its message's calls a result answers.
    pub call_index: Option<i64>,
    /// SHA-256 of what came.
    pub body_digest: Vec<u8>,
    /// The chat message; empty if it shows nothing.
    pub body: String,
}

impl BatchRow {
    /// The tool that a result comes from.
    #[must_use]
    pub fn tool_name(&self) -> Option<String> {
        unspell(self.tool_name.clone())
    }
}

/// Begins the digest of a version: with the digest of the version it builds on, if any.
#[must_use]
pub fn batch_digest_start(based_on: Option<&[u8]>) -> Sha256 {
    Sha256::new().chain_update(based_on.unwrap_or_default())
}

/// A compaction as it is stored.
#[derive(Debug, Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct CompactionRow {
    pub version: i64,
    pub id: Uuid,
    pub based_on: i64,
    pub from_position: i64,
    pub to_position: i64,
    pub digest: Vec<u8>,
    pub batch_length: i64,
    pub summary_length: i64,
    pub summary_tokens: i64,
    pub compact_count: Option<i64>,
    pub keep_tokens: Option<i64>,
    pub keep_recent_turns: i64,
    pub boundary: String,
    instructions: Option<String>,
    pub cause: String,
    pub method: String,
    model: Option<String>,
    pub usage: Option<String>,
    pub parts: i64,
    pub shortened: i64,
    pub duration_ms: i64,
    pub created_at: Timestamp,
    pub note: Option<String>,
    pub summary: Option<String>,
}

impl CompactionRow {
    /// What this run was told beside the prompt.
    #[must_use]
    pub fn instructions(&self) -> Option<String> {
        unspell(self.instructions.clone())
    }

    /// The model that wrote the summary.
    #[must_use]
    pub fn model(&self) -> Option<String> {
        unspell(self.model.clone())
    }
}

macro_rules! columns {
    () => {
        "version, id, based_on, from_position, to_position, digest, batch_length, summary_length, \
         summary_tokens, compact_count, keep_tokens, keep_recent_turns, boundary, instructions, cause, \
         method, model, usage, parts, shortened, duration_ms, created_at, note, summary"
    };
}

/// A compaction that was made and waits to be committed.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct NewCompaction {
    pub id: Uuid,
    pub cut: Cut,
    pub digest: Digest256,
    pub batch_length: i64,
    pub summary: String,
    pub summary_length: i64,
    pub summary_tokens: i64,
    pub compact_count: Option<i64>,
    pub keep_tokens: Option<i64>,
    pub keep_recent_turns: i64,
    pub boundary: &'static str,
    pub instructions: Option<String>,
    pub cause: &'static str,
    pub method: &'static str,
    pub model: Option<String>,
    pub usage: Option<String>,
    pub parts: i64,
    pub shortened: i64,
    pub note: Option<String>,
    pub duration_ms: i64,
}

/// Commits a compaction if nothing it rests on has changed: inserts the record, moves the pointer,
/// replaces the summary, gives the lease back. Or does none of it.
#[derive(Debug, Clone)]
pub struct CommitCompaction {
    /// Which session.
    pub key: SessionKey,
    /// The holder of the lease.
    pub token: Uuid,
    /// The version it built on.
    pub based_on: i64,
    /// The `rewrites` counter that was read with the plan.
    pub rewrites: i64,
    /// What to store.
    pub compaction: NewCompaction,
    /// When.
    pub now: Timestamp,
}

/// What a commit did.
#[derive(Debug)]
pub enum Committed {
    /// It is stored.
    Done(Box<(CompactionRow, SessionRow)>),
    /// What it rested on has changed.
    Conflict,
    /// The session takes no writes.
    Refused(WriteRefusal),
}

impl Write for CommitCompaction {
    type Output = Committed;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Committed>> {
        Box::pin(async move {
            let session = match lock_open(conn, self.key).await? {
                Ok(session) => session,
                Err(refusal) => return Ok(Committed::Refused(refusal)),
            };
            if session.compaction_version != self.based_on || session.rewrites != self.rewrites {
                return Ok(Committed::Conflict);
            }
            let released = leases::release(conn, self.key, self.token).await?;
            let Some(lease) = released else {
                return Ok(Committed::Conflict);
            };
            let newest: Option<i64> = on_both!(conn, c => sqlx::query_scalar(
                "SELECT max(version) FROM compactions WHERE tenant_id = $1 AND session_id = $2"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .fetch_one(c)
            .await)?;
            let version = newest.unwrap_or(0) + 1;
            let record = self.insert(conn, version, session.compact_size).await?;
            self.move_pointer(conn, version).await?;
            let compact_seq = self.compaction.cut.last_seq;
            elisions::carry_over(conn, self.key, self.based_on, version, compact_seq).await?;
            let run = lease.run()?;
            let session = count_events(conn, self.key, i64::from(run.is_some())).await?;
            if let Some(run) = run {
                let event = self.completed(run, version, &session);
                events::insert(conn, self.key, session.event_seq, &[event], self.now).await?;
            }
            Ok(Committed::Done(Box::new((record, session))))
        })
    }
}

impl CommitCompaction {
    /// What is told of it. The sizes after are those of now: messages may have been appended meanwhile.
    fn completed(&self, run: CompactionRun, version: i64, session: &SessionRow) -> Event {
        let (cut, new) = (&self.compaction.cut, &self.compaction);
        Event::ContextDefaultCompacted {
            compaction_id: self.token,
            status: CompactionStatus::Completed,
            version,
            run,
            length_after: new.summary_length + session.history_length - cut.length,
            tokens_after: new.summary_tokens + session.history_tokens - cut.tokens,
            method: new.method.to_owned(),
            duration_ms: new.duration_ms,
        }
    }

    async fn insert(
        &self,
        conn: &mut Conn<'_>,
        version: i64,
        from_position: i64,
    ) -> Result<CompactionRow> {
        let new = &self.compaction;
        Ok(on_both!(conn, c => sqlx::query_as(concat!(
            "INSERT INTO compactions (tenant_id, session_id, version, id, based_on, from_position, \
             to_position, to_seq, digest, batch_length, summary_length, summary_tokens, compact_count, \
             keep_tokens, keep_recent_turns, boundary, instructions, cause, method, model, usage, parts, \
             shortened, duration_ms, created_at, note, summary) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, \
             $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27) \
             RETURNING ",
            columns!()
        ))
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(version)
        .bind(new.id)
        .bind(self.based_on)
        .bind(from_position)
        .bind(new.cut.position)
        .bind(new.cut.last_seq)
        .bind(new.digest.to_vec())
        .bind(new.batch_length)
        .bind(new.summary_length)
        .bind(new.summary_tokens)
        .bind(new.compact_count)
        .bind(new.keep_tokens)
        .bind(new.keep_recent_turns)
        .bind(new.boundary)
        .bind(spell(new.instructions.as_deref()))
        .bind(new.cause)
        .bind(new.method)
        .bind(spell(new.model.as_deref()))
        .bind(&new.usage)
        .bind(new.parts)
        .bind(new.shortened)
        .bind(new.duration_ms)
        .bind(self.now)
        .bind(&new.note)
        .bind(&new.summary)
        .fetch_one(c)
        .await)?)
    }

    async fn move_pointer(&self, conn: &mut Conn<'_>, version: i64) -> Result<()> {
        let cut = &self.compaction.cut;
        on_both!(conn, c => sqlx::query(
            "UPDATE sessions SET compact_summary = $3, compact_size = $4, compaction_version = $5, \
             compact_seq = $6, compact_length = $7, compact_tokens = $8, compact_bytes = $9, \
             revision = revision + 1, updated_at = $10, due_failures = 0, stalls = 0, \
             stalled_tokens = NULL WHERE tenant_id = $1 AND id = $2"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(&self.compaction.summary)
        .bind(cut.position)
        .bind(version)
        .bind(cut.last_seq)
        .bind(cut.length)
        .bind(cut.tokens)
        .bind(cut.bytes)
        .bind(self.now)
        .execute(c)
        .await
        .map(drop))?;
        Ok(())
    }
}

impl Database {
    /// The messages behind the pointer up to a cut.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_batch(
        &self,
        key: SessionKey,
        after_seq: i64,
        cut: &Cut,
    ) -> Result<Vec<BatchRow>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT role, starts_group, tool_name, call_index, body_digest, body FROM messages \
             WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 AND seq <= $4 AND position IS NOT NULL ORDER BY seq"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(after_seq)
        .bind(cut.last_seq)
        .fetch_all(pool)
        .await)?)
    }

    /// One record of the chain.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_compaction(
        &self,
        key: SessionKey,
        version: i64,
    ) -> Result<Option<CompactionRow>> {
        Ok(reading!(self, pool => sqlx::query_as(concat!(
            "SELECT ", columns!(), " FROM compactions \
             WHERE tenant_id = $1 AND session_id = $2 AND version = $3"
        ))
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(version)
        .fetch_optional(pool)
        .await)?)
    }

    /// How many compactions a session has had since it was last reset.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn count_compactions(&self, key: SessionKey) -> Result<i64> {
        Ok(reading!(self, pool => sqlx::query_scalar(
            "SELECT coalesce(max(version), 0) FROM compactions WHERE tenant_id = $1 AND session_id = $2"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .fetch_one(pool)
        .await)?)
    }

    /// The records of the chain behind a version, oldest first, `limit` at most; the flag says whether
    /// more follow.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_compactions(
        &self,
        key: SessionKey,
        after_version: i64,
        limit: usize,
    ) -> Result<(Vec<CompactionRow>, bool)> {
        reading!(self, pool => {
            let found = sqlx::query_as(concat!(
                "SELECT ", columns!(), " FROM compactions \
                 WHERE tenant_id = $1 AND session_id = $2 AND version > $3 ORDER BY version LIMIT $4"
            ))
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(after_version)
            .bind(one_more(limit))
            .fetch(pool);
            let size = |row: &CompactionRow| row.summary.as_ref().map_or(0, String::len);
            take_page(found, limit, size).await
        })
    }
}
