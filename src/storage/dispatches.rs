//! The record of what was dispatched, and the plan that a dispatch extends.

use futures_util::future::BoxFuture;

use super::elisions::{self, NewElision};
use super::sessions::{WriteRefusal, lock_open};
use super::{
    Conn, Database, Result, SessionKey, Timestamp, View, Write, events, on_both, one_more, reading,
    spell, take_page, unspell,
};
use crate::domain::event::Event;

/// A dispatch as it is stored.
#[derive(Debug, Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct DispatchRow {
    pub n: i64,
    pub created_at: Timestamp,
    model: Option<String>,
    pub format: String,
    pub renderer: i64,
    pub last_seq: i64,
    pub rewrites: i64,
    pub version: i64,
    pub plan: i64,
    pub plan_length: i64,
    pub carries: bool,
    pub messages: i64,
    pub bytes: i64,
    pub digest: Vec<u8>,
    pub openai_bytes: i64,
    pub previous_bytes: Option<i64>,
    pub shared_bytes: Option<i64>,
    pub tokens_before: i64,
    pub tokens_after: i64,
    pub added: i64,
    pub refetches: i64,
    pub fits: Option<bool>,
    pub parameters: String,
    pub candidates: String,
    pub reasons: String,
    pub source_breakpoints: String,
    pub breakpoints: String,
}

impl DispatchRow {
    /// The model it was made for, decoded.
    #[must_use]
    pub fn model(&self) -> Option<String> {
        unspell(self.model.clone())
    }
}

macro_rules! columns {
    () => {
        "n, created_at, model, format, renderer, last_seq, rewrites, version, plan, plan_length, \
         carries, messages, bytes, digest, openai_bytes, previous_bytes, shared_bytes, tokens_before, \
         tokens_after, added, refetches, fits, parameters, candidates, reasons, source_breakpoints, breakpoints"
    };
}

/// A dispatch to be recorded.
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct NewDispatch {
    pub model: Option<String>,
    pub format: &'static str,
    pub renderer: i64,
    pub last_seq: i64,
    pub plan_length: i64,
    pub carries: bool,
    pub messages: i64,
    pub bytes: i64,
    pub digest: Vec<u8>,
    pub openai_bytes: i64,
    /// Length of the previous dispatch, and how much of it this one begins with.
    pub shared: Option<(i64, i64)>,
    pub tokens_before: i64,
    pub tokens_after: i64,
    pub refetches: i64,
    pub fits: Option<bool>,
    pub parameters: String,
    pub candidates: String,
    pub reasons: String,
    pub source_breakpoints: String,
    pub breakpoints: String,
}

/// Running digests over what was dispatched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// Bytes from one to the next.
    pub step: i64,
    /// Eight bytes each.
    pub marks: Vec<u8>,
}

/// What a dispatch needs to know of the one before it.
#[derive(Debug, Clone)]
pub struct Previous {
    /// Its number.
    pub n: i64,
    /// Its last `seq`.
    pub last_seq: i64,
    /// Its format.
    pub format: String,
    /// Bytes of its chat-completions form.
    pub openai_bytes: i64,
    /// Its marks.
    pub marks: Marks,
}

#[derive(sqlx::FromRow)]
struct StoredPrevious {
    n: i64,
    last_seq: i64,
    format: String,
    openai_bytes: i64,
    step: i64,
    marks: Vec<u8>,
}

/// Extends the plan and records a dispatch, if what it was built from is still so.
#[derive(Debug, Clone)]
pub struct RecordDispatch {
    /// Which session.
    pub key: SessionKey,
    /// What it was built from.
    pub view: View,
    /// The number of the dispatch that last extended the plan, as it was read.
    pub plan_dispatch: i64,
    /// New edits.
    pub elisions: Vec<NewElision>,
    /// The record.
    pub dispatch: NewDispatch,
    /// For the dispatch that comes next.
    pub marks: Marks,
    /// When.
    pub now: Timestamp,
}

/// What became of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It is stored under this number.
    Done(i64),
    /// The context or its plan has changed since it was read.
    Moved,
    /// The session takes no writes.
    Refused(WriteRefusal),
}

impl Write for RecordDispatch {
    type Output = Recorded;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Recorded>> {
        Box::pin(async move {
            let session = match lock_open(conn, self.key).await? {
                Ok(session) => session,
                Err(refusal) => return Ok(Recorded::Refused(refusal)),
            };
            let unchanged = session.rewrites == self.view.rewrites
                && session.compaction_version == self.view.version
                && session.plan_dispatch == self.plan_dispatch;
            if !unchanged {
                return Ok(Recorded::Moved);
            }
            let n = session.dispatch_count + 1;
            let version = self.view.version;
            elisions::insert(conn, self.key, version, n, &self.elisions).await?;
            self.insert(conn, n).await?;
            self.store_marks(conn, n).await?;
            let event_seq = self.count(conn, n).await?;
            let event = Event::ContextDispatched {
                n,
                tokens_before: self.dispatch.tokens_before,
                tokens_after: self.dispatch.tokens_after,
                added: self.added(),
                format: self.dispatch.format.to_owned(),
            };
            events::insert(conn, self.key, event_seq, &[event], self.now).await?;
            Ok(Recorded::Done(n))
        })
    }
}

impl RecordDispatch {
    fn added(&self) -> i64 {
        i64::try_from(self.elisions.len()).unwrap_or(i64::MAX)
    }

    async fn insert(&self, conn: &mut Conn<'_>, n: i64) -> Result<()> {
        let new = &self.dispatch;
        // New edits are those of this number; without any, the plan stands as it was read.
        let plan = if self.elisions.is_empty() {
            self.view.plan.unwrap_or(0)
        } else {
            n
        };
        on_both!(conn, c => sqlx::query(concat!(
            "INSERT INTO dispatches (tenant_id, session_id, ", columns!(), ") VALUES ($1, $2, $3, $4, \
             $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, \
             $24, $25, $26, $27, $28, $29)"
        ))
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(n)
        .bind(self.now)
        .bind(spell(new.model.as_deref()))
        .bind(new.format)
        .bind(new.renderer)
        .bind(new.last_seq)
        .bind(self.view.rewrites)
        .bind(self.view.version)
        .bind(plan)
        .bind(new.plan_length)
        .bind(new.carries)
        .bind(new.messages)
        .bind(new.bytes)
        .bind(new.digest.as_slice())
        .bind(new.openai_bytes)
        .bind(new.shared.map(|(previous, _)| previous))
        .bind(new.shared.map(|(_, shared)| shared))
        .bind(new.tokens_before)
        .bind(new.tokens_after)
        .bind(self.added())
        .bind(new.refetches)
        .bind(new.fits)
        .bind(new.parameters.as_str())
        .bind(new.candidates.as_str())
        .bind(new.reasons.as_str())
        .bind(new.source_breakpoints.as_str())
        .bind(new.breakpoints.as_str())
        .execute(c)
        .await
        .map(drop))?;
        Ok(())
    }

    async fn store_marks(&self, conn: &mut Conn<'_>, n: i64) -> Result<()> {
        on_both!(conn, c => sqlx::query(
            "INSERT INTO dispatch_marks (tenant_id, session_id, n, step, marks) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (tenant_id, session_id) DO UPDATE SET \
             n = excluded.n, step = excluded.step, marks = excluded.marks"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(n)
        .bind(self.marks.step)
        .bind(self.marks.marks.as_slice())
        .execute(c)
        .await
        .map(drop))?;
        Ok(())
    }

    /// The one place where dispatches are counted. Gives the number of the event that tells of this one.
    async fn count(&self, conn: &mut Conn<'_>, n: i64) -> Result<i64> {
        let new = &self.dispatch;
        let (previous, shared) = new.shared.unwrap_or((0, 0));
        let changed = i64::from(!self.elisions.is_empty());
        Ok(on_both!(conn, c => sqlx::query_scalar(
            "UPDATE sessions SET dispatch_count = $3, \
             plan_dispatch = CASE WHEN $4 > 0 THEN $3 ELSE plan_dispatch END, \
             revision = revision + $4, plan_changes = plan_changes + $4, elisions = elisions + $5, \
             tokens_saved = tokens_saved + $6, previous_bytes = previous_bytes + $7, \
             shared_bytes = shared_bytes + $8, refetches = refetches + $9, event_seq = event_seq + 1 \
             WHERE tenant_id = $1 AND id = $2 RETURNING event_seq"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(n)
        .bind(changed)
        .bind(self.added())
        .bind(new.tokens_before - new.tokens_after)
        .bind(previous)
        .bind(shared)
        .bind(new.refetches)
        .fetch_one(c)
        .await)?)
    }
}

/// Counts that somebody read back what the context no longer shows.
#[derive(Debug, Clone)]
pub struct CountRestore {
    /// In which session.
    pub key: SessionKey,
}

impl Write for CountRestore {
    type Output = ();

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move {
            on_both!(conn, c => sqlx::query(
                "UPDATE sessions SET restores = restores + 1 WHERE tenant_id = $1 AND id = $2"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .execute(c)
            .await
            .map(drop))?;
            Ok(())
        })
    }
}

/// The place of a version.
#[derive(sqlx::FromRow)]
struct Past {
    rewrites: i64,
    summary: Option<String>,
    to_position: Option<i64>,
    to_seq: Option<i64>,
    bytes: Option<i64>,
    joins: bool,
}

/// Something that was done to a history.
#[derive(Debug, Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct RewriteRow {
    pub kind: String,
    pub seq: i64,
    pub message_id: Option<String>,
    pub created_at: Timestamp,
}

/// Notes what was done to a history, under the counter that it was given.
pub(super) async fn note_rewrite(
    conn: &mut Conn<'_>,
    key: SessionKey,
    kind: &'static str,
    seq: i64,
    message_id: Option<&str>,
    now: Timestamp,
) -> Result<()> {
    on_both!(conn, c => sqlx::query(
        "INSERT INTO rewrites (tenant_id, session_id, counter, kind, seq, message_id, created_at) \
         SELECT tenant_id, id, rewrites, $3, $4, $5, $6 FROM sessions WHERE tenant_id = $1 AND id = $2"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(kind)
    .bind(seq)
    .bind(message_id)
    .bind(now)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

/// Forgets all dispatches, plans and notes of a session.
pub(super) async fn forget_all(conn: &mut Conn<'_>, key: SessionKey) -> Result<()> {
    for statement in [
        "DELETE FROM dispatches WHERE tenant_id = $1 AND session_id = $2",
        "DELETE FROM dispatch_marks WHERE tenant_id = $1 AND session_id = $2",
        "DELETE FROM elisions WHERE tenant_id = $1 AND session_id = $2",
        "DELETE FROM rewrites WHERE tenant_id = $1 AND session_id = $2",
    ] {
        on_both!(conn, c => sqlx::query(statement)
            .bind(key.tenant.0)
            .bind(key.session)
            .execute(c)
            .await
            .map(drop))?;
    }
    Ok(())
}

impl Database {
    /// One dispatch.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_dispatch(&self, key: SessionKey, n: i64) -> Result<Option<DispatchRow>> {
        Ok(reading!(self, pool => sqlx::query_as(concat!(
            "SELECT ", columns!(), " FROM dispatches \
             WHERE tenant_id = $1 AND session_id = $2 AND n = $3"
        ))
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(n)
        .fetch_optional(pool)
        .await)?)
    }

    /// The dispatches before a number, newest first, `limit` at most; the flag says whether more follow.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_dispatches(
        &self,
        key: SessionKey,
        before: i64,
        limit: usize,
    ) -> Result<(Vec<DispatchRow>, bool)> {
        reading!(self, pool => {
            let found = sqlx::query_as(concat!(
                "SELECT ", columns!(), " FROM dispatches \
                 WHERE tenant_id = $1 AND session_id = $2 AND n < $3 ORDER BY n DESC LIMIT $4"
            ))
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(before)
            .bind(one_more(limit))
            .fetch(pool);
            take_page(found, limit, |_: &DispatchRow| 512).await
        })
    }

    /// The newest dispatch, for the one that follows it.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_previous_dispatch(&self, key: SessionKey) -> Result<Option<Previous>> {
        let found: Option<StoredPrevious> = reading!(self, pool => sqlx::query_as(
            "SELECT dispatches.n, last_seq, format, openai_bytes, step, marks \
             FROM dispatch_marks JOIN dispatches ON dispatches.tenant_id = dispatch_marks.tenant_id \
             AND dispatches.session_id = dispatch_marks.session_id AND dispatches.n = dispatch_marks.n \
             WHERE dispatch_marks.tenant_id = $1 AND dispatch_marks.session_id = $2"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .fetch_optional(pool)
        .await)?;
        Ok(found.map(|stored| Previous {
            n: stored.n,
            last_seq: stored.last_seq,
            format: stored.format,
            openai_bytes: stored.openai_bytes,
            marks: Marks {
                step: stored.step,
                marks: stored.marks,
            },
        }))
    }

    /// What was done to a history since a value of its counter, as far as it concerns messages up to a `seq`.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_rewrites(
        &self,
        key: SessionKey,
        since: i64,
        last_seq: i64,
        limit: i64,
    ) -> Result<Vec<RewriteRow>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT kind, seq, message_id, created_at FROM rewrites WHERE tenant_id = $1 \
             AND session_id = $2 AND counter > $3 AND seq <= $4 AND NOT (kind = 'rewound' AND seq = $4) \
             ORDER BY counter LIMIT $5"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(since)
        .bind(last_seq)
        .bind(limit)
        .fetch_all(pool)
        .await)?)
    }

    /// Where the context of a past dispatch lies: its version's place, under the session's counter of now. The
    /// flag says whether the text of its summary is still there.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_past_view(
        &self,
        key: SessionKey,
        dispatch: &DispatchRow,
    ) -> Result<Option<(View, bool)>> {
        let found: Option<Past> = reading!(self, pool => sqlx::query_as(
                "SELECT rewrites, summary, to_position, to_seq, \
                 bytes_before + octet_length(body) + coalesce(octet_length(item), 0) AS bytes, \
                 EXISTS (SELECT 1 FROM messages AS joined WHERE joined.tenant_id = $1 AND joined.session_id = $2 \
                 AND joined.role = 'assistant' AND (NOT joined.starts_group OR joined.length = 0 \
                 AND joined.item IS NOT NULL)) AS joins \
                 FROM sessions LEFT JOIN compactions ON compactions.tenant_id = $1 \
                 AND compactions.session_id = $2 AND version = $3 \
                 LEFT JOIN messages ON messages.tenant_id = $1 AND messages.session_id = $2 \
                 AND seq = to_seq WHERE sessions.tenant_id = $1 AND sessions.id = $2"
            )
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(dispatch.version)
            .fetch_optional(pool)
            .await)?;
        Ok(found.map(|past| {
            let is_whole = dispatch.version == 0 || past.summary.is_some() && past.bytes.is_some();
            let view = View {
                summary: past.summary,
                version: dispatch.version,
                compact_size: past.to_position.unwrap_or(0),
                compact_seq: past.to_seq.unwrap_or(0),
                compact_bytes: past.bytes.unwrap_or(0),
                last_seq: dispatch.last_seq,
                history_bytes: i64::MAX,
                rewrites: past.rewrites,
                plan: Some(dispatch.plan),
                joins: past.joins,
            };
            (view, is_whole)
        }))
    }
}
