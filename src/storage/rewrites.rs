//! Rewriting a history: rewind and restore, and what edits share with them; and healing a pointer that fits no version.
//!
//! Each of these raises the session's `rewrites`, so that whatever was read before is known to be
//! old. What a summary covers is never trusted by its numbers: positions are used again after a
//! rewind. A version may be active only if its last message is still there and the digest of all
//! that it covers is still the one it was made with.

use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};

use super::dispatches::note_rewrite;
use super::due::Marking;
use super::elisions;
use super::once;
use super::search;
use super::sessions::{
    SessionRow, WriteRefusal, count_events, lock, lock_idle, lock_open, store_counters,
};
use super::{Conn, Result, SessionKey, StorageError, Timestamp, Write, events, on_both};
use crate::domain::event::Change;
use crate::domain::message::Role;
use crate::domain::pairing::{Counters, End, Tail, rebuild_tail};

/// Forgets every message behind a `seq`.
#[derive(Debug, Clone)]
pub struct Rewind {
    /// Which session.
    pub key: SessionKey,
    /// The last `seq` that stays.
    pub to_seq: i64,
    /// When.
    pub now: Timestamp,
}

impl Write for Rewind {
    type Output = Result<SessionRow, WriteRefusal>;

    fn erases(&self) -> bool {
        true
    }

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            let before = match lock_idle(conn, self.key, self.now).await? {
                Ok(session) => session,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let first_gone: Option<i64> = on_both!(conn, c => sqlx::query_scalar(
                "SELECT min(seq) FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > $3"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(self.to_seq)
            .fetch_one(c)
            .await)?;
            let Some(first_gone) = first_gone else {
                return Ok(Ok(before));
            };
            on_both!(conn, c => sqlx::query(
                "DELETE FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > $3"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(self.to_seq)
            .execute(c)
            .await
            .map(drop))?;
            search::unindex_after(conn, self.key, self.to_seq).await?;
            // A summary tells of all that it covers, so also of what is forgotten here.
            forget_summaries(conn, self.key, first_gone).await?;
            elisions::forget(conn, self.key, first_gone, i64::MAX).await?;
            once::forget_answers(conn, self.key).await?;
            settle(conn, self.key, before.last_seq, None, self.now).await?;
            // What an earlier rewind took away was not there for any dispatch since.
            let last_kept = first_gone - 1;
            note_rewrite(conn, self.key, "rewound", last_kept, None, self.now).await?;
            let limit = coverable(conn, self.key).await?.min(self.to_seq);
            if before.compact_seq > limit {
                activate_newest(conn, self.key).await?;
            }
            let after = finish(conn, self.key, Change::Rewind, None, self.now).await?;
            Ok(Ok(after))
        })
    }
}

/// Makes an old version of the summary the active one.
#[derive(Debug, Clone)]
pub struct Restore {
    /// Which session.
    pub key: SessionKey,
    /// Which version; 0 for none.
    pub version: i64,
    /// When.
    pub now: Timestamp,
}

/// Why a version is not restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreRefusal {
    /// The session takes no writes.
    Session(WriteRefusal),
    /// There is no such version.
    NotFound,
    /// What it covers is gone or was changed.
    Stale,
}

impl Write for Restore {
    type Output = Result<SessionRow, RestoreRefusal>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            if let Err(refusal) = lock_open(conn, self.key).await? {
                return Ok(Err(RestoreRefusal::Session(refusal)));
            }
            let version = if self.version == 0 {
                None
            } else {
                let versions = load_versions(conn, self.key).await?;
                let Some(at) = versions.iter().position(|v| v.number == self.version) else {
                    return Ok(Err(RestoreRefusal::NotFound));
                };
                let limit = coverable(conn, self.key).await?;
                if !is_true(conn, self.key, &versions, at, limit).await? {
                    return Ok(Err(RestoreRefusal::Stale));
                }
                Some(self.version)
            };
            activate(conn, self.key, version).await?;
            touch(conn, self.key, self.now).await?;
            let after = finish(conn, self.key, Change::Restore, None, self.now).await?;
            Ok(Ok(after))
        })
    }
}

/// Brings a pointer back that fits no version of the chain.
#[derive(Debug, Clone)]
pub struct Heal {
    /// Which session.
    pub key: SessionKey,
    /// When.
    pub now: Timestamp,
}

impl Write for Heal {
    type Output = Option<SessionRow>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            let Some(before) = lock(conn, self.key).await? else {
                return Ok(None);
            };
            settle(conn, self.key, before.last_seq, None, self.now).await?;
            activate_newest(conn, self.key).await?;
            let after = finish(conn, self.key, Change::Heal, None, self.now).await?;
            Ok(Some(after))
        })
    }
}

pub(super) fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// Tells of the change that was written; gives the session as it stands now.
pub(super) async fn finish(
    conn: &mut Conn<'_>,
    key: SessionKey,
    reason: Change,
    seq: Option<i64>,
    now: Timestamp,
) -> Result<SessionRow> {
    let row = count_events(conn, key, 1).await?;
    events::insert_updated(conn, key, &row, reason, seq, now).await?;
    Ok(row)
}

async fn touch(conn: &mut Conn<'_>, key: SessionKey, now: Timestamp) -> Result<()> {
    on_both!(conn, c => sqlx::query(
        "UPDATE sessions SET rewrites = rewrites + 1, revision = revision + 1, updated_at = $3 \
         WHERE tenant_id = $1 AND id = $2"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(now)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

#[derive(sqlx::FromRow)]
struct Last {
    position: i64,
    length: i64,
    tokens: i64,
    length_before: i64,
    tokens_before: i64,
    bytes_before: i64,
    bytes: i64,
}

#[derive(sqlx::FromRow)]
struct EndRow {
    seq: i64,
    role: String,
    starts_group: bool,
    is_item: bool,
    length: i64,
    call_index: Option<i64>,
    calls: Option<String>,
}

/// Counts a history anew from its last rows, and says that it was rewritten. What `kept` remembers of
/// interrupted calls stays known, if the order of messages is what it was.
pub(super) async fn settle(
    conn: &mut Conn<'_>,
    key: SessionKey,
    last_seq: i64,
    kept: Option<&Tail>,
    now: Timestamp,
) -> Result<()> {
    let last: Option<Last> = on_both!(conn, c => sqlx::query_as(
        "SELECT position, length, tokens, length_before, tokens_before, bytes_before, \
         CAST(octet_length(body) + coalesce(octet_length(item), 0) AS BIGINT) AS bytes \
         FROM messages WHERE tenant_id = $1 AND session_id = $2 AND position IS NOT NULL \
         ORDER BY seq DESC LIMIT 1"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .fetch_optional(c)
    .await)?;
    let (instructions, instruction_tokens): (i64, Option<i64>) = on_both!(conn, c => sqlx::query_as(
        "SELECT count(*), CAST(sum(tokens) AS BIGINT) FROM messages \
         WHERE tenant_id = $1 AND session_id = $2 AND position IS NULL"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .fetch_one(c)
    .await)?;
    let mut counters = Counters {
        last_seq,
        messages: instructions,
        instruction_tokens: instruction_tokens.unwrap_or(0),
        ..Counters::default()
    };
    let mut tail = Tail::default();
    if let Some(last) = last {
        counters.positions = last.position + 1;
        counters.messages += counters.positions;
        counters.length = last.length_before + last.length;
        counters.tokens = last.tokens_before + last.tokens;
        counters.bytes = last.bytes_before + last.bytes;
        tail = rebuild_tail(&load_end(conn, key).await?);
    }
    if let Some(kept) = kept {
        tail.interrupted.clone_from(&kept.interrupted);
        if kept.interrupted_by.is_some() {
            tail.calls.clone_from(&kept.calls);
            tail.interrupted_by.clone_from(&kept.interrupted_by);
        }
    }
    store_counters(conn, key, &counters, &tail, 0, Marking::REWRITTEN, now).await?;
    touch(conn, key, now).await
}

/// The newest messages back to the first that is no tool result and no later part of an answer, newest first;
/// without those that show nothing.
async fn load_end(conn: &mut Conn<'_>, key: SessionKey) -> Result<Vec<End>> {
    let mut end = Vec::new();
    let mut before = i64::MAX;
    loop {
        let rows: Vec<EndRow> = on_both!(conn, c => sqlx::query_as(
            "SELECT seq, role, starts_group, item IS NOT NULL AS is_item, length, call_index, calls \
             FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq < $3 \
             AND position IS NOT NULL AND octet_length(body) > 0 ORDER BY seq DESC LIMIT 32"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(before)
        .fetch_all(c)
        .await)?;
        let Some(oldest) = rows.last() else {
            return Ok(end);
        };
        before = oldest.seq;
        for row in rows {
            let role = Role::parse(&row.role).ok_or(StorageError::Corrupt("messages.role"))?;
            let calls = row.calls.as_deref().map(serde_json::from_str).transpose();
            let is_answer = role == Role::Assistant;
            end.push(End {
                seq: row.seq,
                role,
                call_index: row.call_index,
                is_part_of_answer: is_answer && row.is_item,
                // Without calls, the length is that of what is said.
                says_something: is_answer && row.calls.is_none() && row.length > 0,
                calls: calls
                    .map_err(|_| StorageError::Corrupt("messages.calls"))?
                    .unwrap_or_default(),
            });
            if row.starts_group {
                return Ok(end);
            }
        }
    }
}

/// Takes the text from every version that covers a message: it may tell what is to be gone.
pub(super) async fn forget_summaries(conn: &mut Conn<'_>, key: SessionKey, seq: i64) -> Result<()> {
    on_both!(conn, c => sqlx::query(
        "UPDATE compactions SET summary = NULL WHERE tenant_id = $1 AND session_id = $2 AND to_seq >= $3"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(seq)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

#[derive(Debug, Clone, sqlx::FromRow)]
struct Version {
    #[sqlx(rename = "version")]
    number: i64,
    based_on: i64,
    to_position: i64,
    to_seq: i64,
    digest: Vec<u8>,
    has_summary: bool,
}

async fn load_versions(conn: &mut Conn<'_>, key: SessionKey) -> Result<Vec<Version>> {
    Ok(on_both!(conn, c => sqlx::query_as(
        "SELECT version, based_on, to_position, to_seq, digest, summary IS NOT NULL AS has_summary \
         FROM compactions WHERE tenant_id = $1 AND session_id = $2 ORDER BY version DESC"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .fetch_all(c)
    .await)?)
}

/// Makes the newest version active that covers only what is there, unchanged; none if there is none.
pub(super) async fn activate_newest(conn: &mut Conn<'_>, key: SessionKey) -> Result<()> {
    let versions = load_versions(conn, key).await?;
    let limit = coverable(conn, key).await?;
    for (at, version) in versions.iter().enumerate() {
        if is_true(conn, key, &versions, at, limit).await? {
            return activate(conn, key, Some(version.number)).await;
        }
    }
    activate(conn, key, None).await
}

/// The largest `seq` that a summary may cover. A call that waits for its result must stay visible: a
/// rewind can open one again that had been interrupted, and folded in, before.
pub(super) async fn coverable(conn: &mut Conn<'_>, key: SessionKey) -> Result<i64> {
    let end = load_end(conn, key).await?;
    let is_open = rebuild_tail(&end).open_calls().next().is_some();
    Ok(match end.last().filter(|_| is_open) {
        Some(caller) => caller.seq - 1,
        None => i64::MAX,
    })
}

/// Whether everything that a version covers is still what it was made of, and may be covered.
async fn is_true(
    conn: &mut Conn<'_>,
    key: SessionKey,
    versions: &[Version],
    at: usize,
    limit: i64,
) -> Result<bool> {
    let usable = |version: &&Version| version.has_summary && version.to_seq <= limit;
    let Some(version) = versions.get(at).filter(usable) else {
        return Ok(false);
    };
    let position: Option<Option<i64>> = on_both!(conn, c => sqlx::query_scalar(
        "SELECT position FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq = $3"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(version.to_seq)
    .fetch_optional(c)
    .await)?;
    if position.flatten() != Some(version.to_position - 1) {
        return Ok(false);
    }
    // Results that came after a rewind may have made its end the middle of a group.
    let next: Option<bool> = on_both!(conn, c => sqlx::query_scalar(
        "SELECT starts_group FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 \
         AND position IS NOT NULL AND octet_length(body) > 0 ORDER BY seq LIMIT 1"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(version.to_seq)
    .fetch_optional(c)
    .await)?;
    if next == Some(false) {
        return Ok(false);
    }
    // The ends of the batches that it was built from, oldest first.
    let mut ends = vec![version.to_seq];
    let mut based_on = version.based_on;
    while based_on != 0 {
        let Some(earlier) = versions.iter().find(|earlier| earlier.number == based_on) else {
            return Ok(false);
        };
        ends.push(earlier.to_seq);
        based_on = earlier.based_on;
    }
    ends.reverse();
    let rows: Vec<(i64, Vec<u8>)> = on_both!(conn, c => sqlx::query_as(
        "SELECT seq, body_digest FROM messages WHERE tenant_id = $1 AND session_id = $2 \
         AND seq <= $3 AND position IS NOT NULL ORDER BY seq"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(version.to_seq)
    .fetch_all(c)
    .await)?;
    let mut rows = rows.into_iter().peekable();
    let mut digest: Option<Vec<u8>> = None;
    for end in ends {
        let mut batch = Sha256::new().chain_update(digest.as_deref().unwrap_or_default());
        while let Some((_, body)) = rows.next_if(|(seq, _)| *seq <= end) {
            batch.update(body);
        }
        digest = Some(batch.finalize().to_vec());
    }
    Ok(digest.as_deref() == Some(version.digest.as_slice()))
}

/// Points the session at a version, or at none.
async fn activate(conn: &mut Conn<'_>, key: SessionKey, version: Option<i64>) -> Result<()> {
    let Some(version) = version else {
        on_both!(conn, c => sqlx::query(
            "UPDATE sessions SET compact_summary = NULL, compact_size = 0, compaction_version = 0, \
             compact_seq = 0, compact_length = 0, compact_tokens = 0, compact_bytes = 0 \
             WHERE tenant_id = $1 AND id = $2"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .execute(c)
        .await
        .map(drop))?;
        return Ok(());
    };
    on_both!(conn, c => sqlx::query(
        "UPDATE sessions SET compact_summary = made.summary, compact_size = made.to_position, \
         compaction_version = made.version, compact_seq = made.to_seq, \
         compact_length = last.length_before + last.length, \
         compact_tokens = last.tokens_before + last.tokens, \
         compact_bytes = last.bytes_before + octet_length(last.body) \
         + coalesce(octet_length(last.item), 0) \
         FROM compactions AS made, messages AS last WHERE sessions.tenant_id = $1 AND sessions.id = $2 \
         AND made.tenant_id = $1 AND made.session_id = $2 AND made.version = $3 \
         AND last.tenant_id = $1 AND last.session_id = $2 AND last.seq = made.to_seq"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(version)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}
