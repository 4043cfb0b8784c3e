//! Reading a context: the head, what stands before the tail, and the tail in pages.
//!
//! The head is read first and says where everything lies; the pages that follow are short queries of
//! their own, each carrying the `rewrites` counter. Appends and compactions after the head change
//! nothing that it points at; whatever does is seen by that counter. Bodies are joined by the
//! database, so that a context of ten thousand messages is a handful of values here.

use sqlx::Row;

use super::{Database, Result, SessionKey, StorageError, reading};
use crate::domain::pairing::Tail;

/// Bytes of bodies that a page aims at. A single larger message is a page of its own.
pub const PAGE_BYTES: i64 = 1 << 20;
/// Messages that a page holds at most, if the tail is larger than a page.
const PAGE_MESSAGES: i64 = 4_096;

/// Where a context lies in the stored history, and under which plan it is shown.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// The summary.
    pub summary: Option<String>,
    /// Its version; 0 without one.
    pub version: i64,
    /// How many positions it stands for.
    pub compact_size: i64,
    /// `seq` of the last of them; 0 without a summary.
    pub compact_seq: i64,
    /// Body bytes of them.
    pub compact_bytes: i64,
    /// The last `seq` that is shown.
    pub last_seq: i64,
    /// Body bytes of all positions up to there, or more.
    pub history_bytes: i64,
    /// The session's counter that everything read must carry.
    pub rewrites: i64,
    /// Edits of the dispatches up to this number are applied; `None`: there are none.
    pub plan: Option<i64>,
    /// Rows of the tail are joined: several items are one message, or none.
    pub joins: bool,
}

/// What a context is built from, in one row.
#[derive(Debug, Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct ContextHead {
    pub compact_summary: Option<String>,
    pub compact_size: i64,
    pub compaction_version: i64,
    pub compact_seq: i64,
    pub compact_tokens: i64,
    pub compact_bytes: i64,
    pub last_seq: i64,
    pub position_count: i64,
    pub history_tokens: i64,
    pub history_bytes: i64,
    pub instruction_tokens: i64,
    tail: String,
    pub revision: i64,
    pub rewrites: i64,
    made_size: Option<i64>,
    status: String,
    model: Option<String>,
    pub pruning: String,
    pub dispatch_count: i64,
    pub plan_dispatch: i64,
    has_plan: bool,
    has_joins: bool,
}

impl ContextHead {
    /// Whether the pointer is where its version put it. It is, unless somebody wrote past the service.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.compact_size == self.made_size.unwrap_or(0) && self.compact_size <= self.position_count
    }

    /// Whether the session takes no writes.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.status == "closed"
    }

    /// The session's model, decoded.
    #[must_use]
    pub fn model(&self) -> Option<String> {
        super::unspell(self.model.clone())
    }

    /// Where the context lies.
    #[must_use]
    pub fn view(&self) -> View {
        View {
            summary: self.compact_summary.clone(),
            version: self.compaction_version,
            compact_size: self.compact_size,
            compact_seq: self.compact_seq,
            compact_bytes: self.compact_bytes,
            last_seq: self.last_seq,
            history_bytes: self.history_bytes,
            rewrites: self.rewrites,
            plan: self.has_plan.then_some(self.dispatch_count),
            joins: self.has_joins,
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

/// What stands before the tail, and how the tail begins.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct OpeningRow {
    pub instructions: Option<String>,
    pub instruction_count: i64,
    pub first_role: Option<String>,
    pub first_starts_turn: Option<bool>,
    pub rewrites: Option<i64>,
}

/// A context as far as one read gives it.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct ContextStart {
    /// Its head.
    #[sqlx(flatten)]
    pub head: ContextHead,
    /// What stands before the tail.
    #[sqlx(flatten)]
    pub opening: OpeningRow,
    /// The tail's messages, joined by commas, unless they are many.
    bodies: Option<String>,
}

impl ContextStart {
    /// The tail, if that is all of it and shown as it is stored.
    #[must_use]
    pub fn tail(&mut self) -> Option<String> {
        let head = &self.head;
        let is_whole = head.history_bytes - head.compact_bytes <= PAGE_BYTES;
        let is_plain = is_whole && !head.has_plan && !head.has_joins;
        is_plain.then(|| self.bodies.take().unwrap_or_default())
    }
}

/// The user messages that opened a turn and lie behind the pointer.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct CarriedRow {
    /// Their bodies, joined by commas.
    pub bodies: Option<String>,
    /// Their tokens, together.
    pub tokens: Option<i64>,
    /// How many they are.
    pub count: i64,
    /// The session's counter when they were read.
    pub rewrites: Option<i64>,
}

/// What is known of a page of the tail beside its messages.
#[derive(Debug, Clone, Copy)]
pub struct TailPage {
    /// Bytes of all positions before the first one behind it, as `bytes_before` counts them; `None` at the end.
    pub behind: Option<i64>,
    /// The session's counter when it was read.
    pub rewrites: Option<i64>,
}

/// Puts the first column of a page's row behind a text, without a copy of its own: it may be large.
macro_rules! take_page_row {
    ($row:expr, $into:expr) => {{
        let row = $row;
        $into.push_str(row.try_get::<Option<&str>, _>(0)?.unwrap_or_default());
        TailPage {
            behind: row.try_get(1)?,
            rewrites: row.try_get(2)?,
        }
    }};
}

/// A message of the tail as the plan shows it.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct ShownMessage {
    /// Its place.
    pub seq: i64,
    /// It adds no message of its own: it goes on with the one before it, or shows nothing.
    pub joins: bool,
    /// It is an item of an answer without a text or a call of its own.
    pub silent: bool,
    /// Results shown before it.
    pub fill: Option<String>,
    /// What is shown: the stored text, or what the plan puts in its place.
    pub shown: String,
    /// Bytes that it takes, as `bytes_before` counts them.
    pub bytes: i64,
    /// The session's counter when it was read.
    pub rewrites: Option<i64>,
}

/// The tail's messages with what the plan makes of them: $3 < seq <= $4, version $6, plan up to $7. An edit
/// whose text is no longer what it was made for is not applied.
macro_rules! shown {
    () => {
        "SELECT messages.seq, position, role = 'assistant' AND NOT starts_group AS joins, \
         role = 'assistant' AND length = 0 AND item IS NOT NULL AS silent, fill, \
         CAST(octet_length(body) + coalesce(octet_length(item), 0) AS BIGINT) AS bytes, \
         coalesce(replacement, body) AS shown FROM messages LEFT JOIN elisions \
         ON elisions.tenant_id = $1 AND elisions.session_id = $2 AND elisions.version = $6 \
         AND elisions.seq = messages.seq AND elisions.dispatch <= $7 \
         AND elisions.body_digest = messages.body_digest \
         WHERE messages.tenant_id = $1 AND messages.session_id = $2 AND messages.seq > $3 \
         AND messages.seq <= $4 AND position IS NOT NULL"
    };
}

/// What is known of a page of the tail beside its messages: where the next one begins in bytes, and the counter.
macro_rules! behind {
    () => {
        "(SELECT bytes_before FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > $4 \
         AND position IS NOT NULL ORDER BY seq LIMIT 1) AS behind, \
         (SELECT rewrites FROM sessions WHERE tenant_id = $1 AND id = $2) AS rewrites"
    };
}

/// What a head is read from: the session's row, and what else decides how its context is read.
macro_rules! head {
    () => {
        concat!(
            "compact_summary, compact_size, compaction_version, compact_seq, compact_tokens, \
         compact_bytes, last_seq, position_count, history_tokens, history_bytes, \
         instruction_tokens, tail, revision, rewrites, (SELECT to_position FROM compactions \
         WHERE tenant_id = $1 AND session_id = $2 AND version = compaction_version) AS made_size, \
         status, model, pruning, dispatch_count, plan_dispatch, ",
            has_plan!(),
            " AS has_plan, ",
            has_joins!(),
            " AS has_joins"
        )
    };
}

/// Whether a plan shows anything of the tail otherwise than it is stored.
macro_rules! has_plan {
    () => {
        "EXISTS (SELECT 1 FROM elisions \
         WHERE tenant_id = $1 AND session_id = $2 AND version = compaction_version)"
    };
}

/// Whether rows of the tail are joined, or left out.
macro_rules! has_joins {
    () => {
        "EXISTS (SELECT 1 FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > compact_seq \
         AND role = 'assistant' AND (NOT starts_group OR length = 0 AND item IS NOT NULL))"
    };
}

impl Database {
    /// The head of a session's context, what stands before its tail, and the tail itself if it is small and shown as it
    /// is stored: all that most contexts need, in one round trip and as it was at one time.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_context_start(&self, key: SessionKey) -> Result<Option<ContextStart>> {
        // The fill of the first message belongs to a group behind the pointer.
        Ok(reading!(self, pool => sqlx::query_as(concat!(
            "SELECT ", head!(), ", (SELECT string_agg(body, ',') FROM (SELECT body FROM messages \
              WHERE tenant_id = $1 AND session_id = $2 AND position IS NULL AND NOT erased ORDER BY seq) AS shown) \
              AS instructions, \
             (SELECT count(*) FROM messages WHERE tenant_id = $1 AND session_id = $2 AND position IS NULL \
              AND NOT erased) AS instruction_count, \
             (SELECT role FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > compact_seq \
              AND position IS NOT NULL AND NOT (role = 'assistant' AND length = 0 AND item IS NOT NULL) \
              ORDER BY seq LIMIT 1) AS first_role, \
             (SELECT starts_turn FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > compact_seq \
              AND position IS NOT NULL AND NOT (role = 'assistant' AND length = 0 AND item IS NOT NULL) \
              ORDER BY seq LIMIT 1) AS first_starts_turn, \
             CASE WHEN history_bytes - compact_bytes <= $3 AND NOT ", has_plan!(), " AND NOT ", has_joins!(), " \
             THEN (SELECT string_agg(shown, ',') FROM \
              (SELECT CASE WHEN fill IS NULL OR position = compact_size THEN body ELSE fill || ',' || body END AS shown \
              FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > compact_seq \
              AND position IS NOT NULL ORDER BY seq) AS page) END AS bodies \
             FROM sessions WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL"
        ))
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(PAGE_BYTES)
        .fetch_optional(pool)
        .await)?)
    }

    /// The head of a session's context, if there is such a session.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_context_head(&self, key: SessionKey) -> Result<Option<ContextHead>> {
        Ok(reading!(self, pool => sqlx::query_as(
            concat!("SELECT ", head!(), " FROM sessions WHERE tenant_id = $1 AND id = $2 AND deleted_at IS NULL")
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .fetch_optional(pool)
        .await)?)
    }

    /// Instructions, and the first message of the tail but for items without a text or a call, which may be left out.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_opening(&self, key: SessionKey, view: &View) -> Result<OpeningRow> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT instructions, instruction_count, first_role, first_starts_turn, \
             (SELECT rewrites FROM sessions WHERE tenant_id = $1 AND id = $2) AS rewrites FROM \
             (SELECT string_agg(body, ',' ORDER BY seq) AS instructions, count(*) AS instruction_count \
              FROM messages WHERE tenant_id = $1 AND session_id = $2 AND position IS NULL \
              AND NOT erased AND seq <= $4) AS shown LEFT JOIN \
             (SELECT role AS first_role, starts_turn AS first_starts_turn FROM messages \
              WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 AND seq <= $4 \
              AND position IS NOT NULL AND NOT (role = 'assistant' AND length = 0 AND item IS NOT NULL) \
              ORDER BY seq LIMIT 1) AS first ON TRUE"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(view.compact_seq)
        .bind(view.last_seq)
        .fetch_one(pool)
        .await)?)
    }

    /// The user messages that opened the turn which reaches over the pointer, as far as they lie behind it.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_carried(&self, key: SessionKey, compact_seq: i64) -> Result<CarriedRow> {
        // From the newest turn's start up to the first message that is not a user's.
        Ok(reading!(self, pool => sqlx::query_as(
            "WITH turn AS (SELECT max(seq) AS seq FROM messages WHERE tenant_id = $1 \
              AND session_id = $2 AND starts_turn AND seq <= $3), \
             behind AS (SELECT coalesce(min(seq), $3 + 1) AS seq FROM messages WHERE tenant_id = $1 \
              AND session_id = $2 AND seq > (SELECT seq FROM turn) AND seq <= $3 \
              AND position IS NOT NULL AND role <> 'user') \
             SELECT string_agg(body, ',' ORDER BY seq) AS bodies, \
             CAST(sum(tokens) AS BIGINT) AS tokens, count(*) AS count, \
             (SELECT rewrites FROM sessions WHERE tenant_id = $1 AND id = $2) AS rewrites \
             FROM messages WHERE tenant_id = $1 \
             AND session_id = $2 AND seq >= (SELECT seq FROM turn) AND seq < (SELECT seq FROM behind) \
             AND position IS NOT NULL AND role = 'user'"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(compact_seq)
        .fetch_one(pool)
        .await)?)
    }

    /// Where the page behind `after` ends: the `seq` of its last message. `bytes` are those of all positions before it,
    /// `in_all` those of the whole history, `i64::MAX` if that is not known. It is guessed from how large messages are on the whole, and looked up in
    /// one row, so that no message is read to find its end.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_page_end(
        &self,
        key: SessionKey,
        (after, up_to): (i64, i64),
        (bytes, in_all): (i64, i64),
    ) -> Result<i64> {
        let left = (up_to - after).max(1);
        let mut span = if in_all == i64::MAX {
            PAGE_MESSAGES
        } else {
            left.saturating_mul(PAGE_BYTES) / in_all.saturating_sub(bytes).max(1)
        };
        loop {
            span = span.clamp(1, PAGE_MESSAGES.min(left));
            let end = after + span;
            let behind: Option<i64> = reading!(self, pool => sqlx::query_scalar(
                "SELECT bytes_before FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 \
                 AND position IS NOT NULL ORDER BY seq LIMIT 1"
            )
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(end)
            .fetch_optional(pool)
            .await)?;
            match behind {
                Some(behind) if behind - bytes > 2 * PAGE_BYTES && span > 1 => span /= 4,
                // The last message is in it: how large that makes it is not known from a row behind.
                None if span > 64 => span /= 4,
                _ => return Ok(end),
            }
        }
    }

    /// Puts the messages of the tail behind `after`, up to and with `up_to`, as the plan shows them, behind a text: joined
    /// by commas, with the results shown between them.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_tail_page(
        &self,
        key: SessionKey,
        view: &View,
        (after, up_to): (i64, i64),
        into: &mut String,
    ) -> Result<TailPage> {
        // The fill of the first message belongs to a group behind the pointer.
        Ok(match view.plan {
            None => reading!(self, pool => {
                let row = sqlx::query(concat!(
                    "SELECT string_agg(shown, ','), ", behind!(), " FROM \
                     (SELECT CASE WHEN fill IS NULL OR position = $5 THEN body ELSE fill || ',' || body END AS shown \
                     FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 AND seq <= $4 \
                     AND position IS NOT NULL ORDER BY seq) AS page"
                ))
                .bind(key.tenant.0)
                .bind(key.session)
                .bind(after)
                .bind(up_to)
                .bind(view.compact_size)
                .fetch_one(pool)
                .await;
                row.and_then(|row| Ok(take_page_row!(row, into)))
            })?,
            Some(plan) => reading!(self, pool => {
                let row = sqlx::query(concat!(
                    "SELECT string_agg(CASE WHEN fill IS NULL OR position = $5 THEN shown \
                     ELSE fill || ',' || shown END, ','), ",
                    behind!(),
                    " FROM (",
                    shown!(),
                    " ORDER BY messages.seq) AS page"
                ))
                .bind(key.tenant.0)
                .bind(key.session)
                .bind(after)
                .bind(up_to)
                .bind(view.compact_size)
                .bind(view.version)
                .bind(plan)
                .fetch_one(pool)
                .await;
                row.and_then(|row| Ok(take_page_row!(row, into)))
            })?,
        })
    }

    /// As [`Database::load_tail_page`], message by message.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_tail_messages(
        &self,
        key: SessionKey,
        view: &View,
        after: i64,
        up_to: i64,
    ) -> Result<Vec<ShownMessage>> {
        Ok(reading!(self, pool => sqlx::query_as(concat!(
            "SELECT seq, joins, silent, CASE WHEN position = $5 THEN NULL ELSE fill END AS fill, shown, bytes, \
             (SELECT rewrites FROM sessions WHERE tenant_id = $1 AND id = $2) AS rewrites FROM (",
            shown!(),
            ") AS page ORDER BY seq"
        ))
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(after)
        .bind(up_to)
        .bind(view.compact_size)
        .bind(view.version)
        .bind(view.plan.unwrap_or(-1))
        .fetch_all(pool)
        .await)?)
    }
}
