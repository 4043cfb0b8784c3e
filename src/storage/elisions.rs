//! The plan of pruning: which message of a tail is shown how, for each version of the summary.
//!
//! A compaction takes along what still stands in its context; going back to an older version finds
//! that version's plan as it was. What an edit may be is `domain::pruning`'s.

use std::sync::LazyLock;

use super::{
    ByEngine, CHUNKS, Conn, Database, Result, SessionKey, StorageError, chunks, insert_texts,
    on_both, reading, unspell,
};
use crate::domain::message::{Call, Digest256, Role};
use crate::domain::pruning::{Carried, Elision, Row, Rule};

/// An edit as the plan holds it, without what it shows.
#[derive(Debug, Clone)]
pub struct PlanRow {
    /// The edited message.
    pub seq: i64,
    /// By which rule.
    pub rule: Rule,
    /// The message that its breadcrumb names.
    pub names: Option<i64>,
    /// Tokens that it keeps from being sent.
    pub saved: i64,
    /// Digests of the arguments of the call whose result it is.
    pub arguments: Vec<i64>,
}

#[derive(sqlx::FromRow)]
struct StoredElision {
    seq: i64,
    rule: String,
    names_seq: Option<i64>,
    saved_tokens: i64,
    arguments: Option<String>,
}

/// A message of the tail as the planner sees it, with what identifies its text.
#[derive(Debug, Clone)]
pub struct TailRow {
    /// What the planner sees.
    pub row: Row,
    /// SHA-256 of the stored text.
    pub body_digest: Vec<u8>,
}

#[derive(sqlx::FromRow)]
struct StoredRow {
    seq: i64,
    id: String,
    role: String,
    joins: bool,
    tokens: i64,
    bytes: i64,
    call_index: Option<i64>,
    tool_name: Option<String>,
    calls: Option<String>,
    content_digest: Vec<u8>,
    body_digest: Vec<u8>,
    erased: bool,
}

/// An edit to be stored.
#[derive(Debug, Clone)]
pub struct NewElision {
    /// The edit.
    pub elision: Elision,
    /// Bytes of the text that it edits.
    pub body_length: i64,
    /// SHA-256 of it.
    pub body_digest: Vec<u8>,
}

impl StoredRow {
    fn read(self, carried: Option<Carried>) -> Result<TailRow> {
        let calls: Option<Vec<Call>> = self
            .calls
            .as_deref()
            .map(serde_json::from_str)
            .transpose()
            .map_err(|_| StorageError::Corrupt("messages.calls"))?;
        Ok(TailRow {
            row: Row {
                seq: self.seq,
                id: self.id,
                role: Role::parse(&self.role).ok_or(StorageError::Corrupt("messages.role"))?,
                joins: self.joins,
                tokens: self.tokens,
                bytes: self.bytes,
                call_index: self.call_index,
                tool_name: unspell(self.tool_name),
                calls: calls.unwrap_or_default(),
                content_digest: Digest256::try_from(self.content_digest.as_slice())
                    .map_err(|_| StorageError::Corrupt("messages.content_digest"))?,
                erased: self.erased,
                carried,
            },
            body_digest: self.body_digest,
        })
    }
}

/// Values of an edit that differ from row to row.
const ROW_VALUES: usize = 9;

static INSERTS: LazyLock<ByEngine<[String; CHUNKS.len()]>> = LazyLock::new(|| {
    insert_texts(
        "INSERT INTO elisions (tenant_id, session_id, version, dispatch, seq, rule, names_seq, \
         body_length, body_digest, tokens, saved_tokens, arguments, replacement) VALUES ",
        4,
        ROW_VALUES,
    )
});

static BODIES: LazyLock<[String; CHUNKS.len()]> = LazyLock::new(|| {
    CHUNKS.map(|rows| {
        let places: Vec<_> = (3..3 + rows).map(|number| format!("${number}")).collect();
        format!(
            "SELECT seq, body FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq IN ({})",
            places.join(", ")
        )
    })
});

/// Adds edits to the plan of a version.
pub(super) async fn insert(
    conn: &mut Conn<'_>,
    key: SessionKey,
    version: i64,
    dispatch: i64,
    elisions: &[NewElision],
) -> Result<()> {
    for (chunk, text) in chunks(elisions, INSERTS.of(conn)) {
        on_both!(conn, c => {
            let mut query = sqlx::query(text);
            for new in chunk {
                let elision = &new.elision;
                let arguments = (!elision.arguments.is_empty())
                    .then(|| serde_json::to_string(&elision.arguments))
                    .transpose()
                    .map_err(|_| StorageError::Corrupt("elisions.arguments"))?;
                query = query
                    .bind(elision.seq)
                    .bind(elision.rule.as_str())
                    .bind(elision.names)
                    .bind(new.body_length)
                    .bind(new.body_digest.as_slice())
                    .bind(elision.tokens)
                    .bind(elision.saved)
                    .bind(arguments)
                    .bind(elision.replacement.as_str());
            }
            query
                .bind(key.tenant.0)
                .bind(key.session)
                .bind(version)
                .bind(dispatch)
                .execute(c)
                .await
                .map(drop)
        })?;
    }
    Ok(())
}

/// Takes into the plan of a new version what of the old one's still stands in its context.
pub(super) async fn carry_over(
    conn: &mut Conn<'_>,
    key: SessionKey,
    from_version: i64,
    to_version: i64,
    compact_seq: i64,
) -> Result<()> {
    on_both!(conn, c => sqlx::query(
        "INSERT INTO elisions (tenant_id, session_id, version, seq, dispatch, rule, names_seq, \
         body_length, body_digest, tokens, saved_tokens, arguments, replacement) \
         SELECT tenant_id, session_id, $4, seq, dispatch, rule, names_seq, body_length, body_digest, \
         tokens, saved_tokens, arguments, replacement FROM elisions \
         WHERE tenant_id = $1 AND session_id = $2 AND version = $3 AND seq > $5 \
         AND (names_seq IS NULL OR names_seq > $5)"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(from_version)
    .bind(to_version)
    .bind(compact_seq)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

/// Forgets every edit of messages from `from` to `to`, and every one whose breadcrumb names one of them.
pub(super) async fn forget(conn: &mut Conn<'_>, key: SessionKey, from: i64, to: i64) -> Result<()> {
    on_both!(conn, c => sqlx::query(
        "DELETE FROM elisions WHERE tenant_id = $1 AND session_id = $2 \
         AND ((seq >= $3 AND seq <= $4) OR (names_seq >= $3 AND names_seq <= $4))"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(from)
    .bind(to)
    .execute(c)
    .await
    .map(drop))?;
    Ok(())
}

impl Database {
    /// The plan of a version, in the order of the messages: what the dispatches up to a number added.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_plan(
        &self,
        key: SessionKey,
        version: i64,
        up_to: i64,
    ) -> Result<Vec<PlanRow>> {
        let rows: Vec<StoredElision> = reading!(self, pool => sqlx::query_as(
            "SELECT seq, rule, names_seq, saved_tokens, arguments FROM elisions \
             WHERE tenant_id = $1 AND session_id = $2 AND version = $3 AND dispatch <= $4 ORDER BY seq"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(version)
        .bind(up_to)
        .fetch_all(pool)
        .await)?;
        let read = |row: StoredElision| {
            let arguments = row.arguments.as_deref().map(serde_json::from_str);
            Ok(PlanRow {
                seq: row.seq,
                rule: Rule::parse(&row.rule).ok_or(StorageError::Corrupt("elisions.rule"))?,
                names: row.names_seq,
                saved: row.saved_tokens,
                arguments: arguments
                    .transpose()
                    .map_err(|_| StorageError::Corrupt("elisions.arguments"))?
                    .unwrap_or_default(),
            })
        };
        rows.into_iter().map(read).collect()
    }

    /// The messages of a tail without their bodies, each with what the plan holds for it.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_tail_rows(
        &self,
        key: SessionKey,
        compact_seq: i64,
        last_seq: i64,
        plan: &[PlanRow],
    ) -> Result<Vec<TailRow>> {
        let rows: Vec<StoredRow> = reading!(self, pool => sqlx::query_as(
            "SELECT seq, id, role, role = 'assistant' AND NOT starts_group AS joins, tokens, CAST(octet_length(body) AS BIGINT) AS bytes, call_index, \
             tool_name, calls, content_digest, body_digest, erased FROM messages \
             WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 AND seq <= $4 \
             AND position IS NOT NULL ORDER BY seq"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(compact_seq)
        .bind(last_seq)
        .fetch_all(pool)
        .await)?;
        let carried = |seq| {
            let at = plan.binary_search_by_key(&seq, |edit| edit.seq).ok()?;
            let edit = plan.get(at)?;
            Some(Carried {
                rule: edit.rule,
                names: edit.names,
            })
        };
        rows.into_iter()
            .map(|row| {
                let carried = carried(row.seq);
                row.read(carried)
            })
            .collect()
    }

    /// The bodies of some messages, in no order.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_bodies(&self, key: SessionKey, seqs: &[i64]) -> Result<Vec<(i64, String)>> {
        let mut bodies = Vec::with_capacity(seqs.len());
        for (chunk, text) in chunks(seqs, &BODIES) {
            let found: Vec<(i64, String)> = reading!(self, pool => {
                let mut query = sqlx::query_as(text).bind(key.tenant.0).bind(key.session);
                for seq in chunk {
                    query = query.bind(*seq);
                }
                query.fetch_all(pool).await
            })?;
            bodies.extend(found);
        }
        Ok(bodies)
    }

    /// Assistant messages with calls behind a `seq`: their bodies.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_callers(
        &self,
        key: SessionKey,
        after: i64,
        up_to: i64,
    ) -> Result<Vec<String>> {
        Ok(reading!(self, pool => sqlx::query_scalar(
            "SELECT body FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 \
             AND seq <= $4 AND calls IS NOT NULL ORDER BY seq"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(after)
        .bind(up_to)
        .fetch_all(pool)
        .await)?)
    }

    /// Results shown for interrupted calls, with the `seq` of the message that they stand before.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_fills(
        &self,
        key: SessionKey,
        after: i64,
        up_to: i64,
        compact_size: i64,
    ) -> Result<Vec<(i64, String)>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT seq, fill FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 \
             AND seq <= $4 AND fill IS NOT NULL AND position <> $5 ORDER BY seq"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(after)
        .bind(up_to)
        .bind(compact_size)
        .fetch_all(pool)
        .await)?)
    }

    /// Messages that add none of their own to a context, by `seq`.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_joined(&self, key: SessionKey, after: i64, up_to: i64) -> Result<Vec<i64>> {
        let rows: Vec<(i64, bool, bool)> = reading!(self, pool => sqlx::query_as(
            "SELECT seq, starts_group, length = 0 AND item IS NOT NULL FROM messages WHERE tenant_id = $1 \
             AND session_id = $2 AND seq > $3 AND seq <= $4 AND role = 'assistant' ORDER BY seq"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(after)
        .bind(up_to)
        .fetch_all(pool)
        .await)?;
        // The first item of an answer with a text or a call adds the message of all of them.
        let mut is_added = true;
        let adds_none = |(seq, starts_group, silent): (i64, bool, bool)| {
            is_added &= !starts_group;
            let adds = !silent && !is_added;
            is_added |= adds;
            (!adds).then_some(seq)
        };
        Ok(rows.into_iter().filter_map(adds_none).collect())
    }

    /// The message at or before a `seq` with a position: its `seq`, position, and tokens of all up to and with it.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_tokens_at(
        &self,
        key: SessionKey,
        after: i64,
        up_to: i64,
    ) -> Result<Option<(i64, i64, i64)>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT seq, position, tokens_before + tokens FROM messages WHERE tenant_id = $1 \
             AND session_id = $2 AND seq > $3 AND seq <= $4 AND position IS NOT NULL \
             ORDER BY seq DESC LIMIT 1"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(after)
        .bind(up_to)
        .fetch_optional(pool)
        .await)?)
    }
}

/// An edit as a person is told of it.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct ElisionRow {
    /// The edited message's place.
    pub seq: i64,
    /// Its id.
    pub message_id: String,
    /// The tool whose result it is, in its JSON spelling.
    tool_name: Option<String>,
    /// By which rule.
    pub rule: String,
    /// The message that its breadcrumb names.
    pub names: Option<String>,
    /// The dispatch that made it.
    pub dispatch: i64,
    /// Bytes of the stored text.
    pub bytes: i64,
    /// Bytes of what is shown.
    pub shown_bytes: i64,
    /// Tokens that it keeps from being sent.
    pub saved_tokens: i64,
}

impl ElisionRow {
    /// The tool whose result it is.
    #[must_use]
    pub fn tool(&self) -> Option<String> {
        unspell(self.tool_name.clone())
    }
}

impl Database {
    /// The edits of a version up to a dispatch, in the order of the messages.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_elisions(
        &self,
        key: SessionKey,
        version: i64,
        plan: i64,
        last_seq: i64,
    ) -> Result<Vec<ElisionRow>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT elisions.seq, edited.id AS message_id, edited.tool_name, rule, named.id AS names, \
             dispatch, elisions.body_length AS bytes, \
             CAST(octet_length(replacement) AS BIGINT) AS shown_bytes, saved_tokens \
             FROM elisions JOIN messages AS edited ON edited.tenant_id = $1 AND edited.session_id = $2 \
             AND edited.seq = elisions.seq LEFT JOIN messages AS named ON named.tenant_id = $1 \
             AND named.session_id = $2 AND named.seq = names_seq WHERE elisions.tenant_id = $1 \
             AND elisions.session_id = $2 AND version = $3 AND dispatch <= $4 AND elisions.seq <= $5 \
             ORDER BY elisions.seq"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(version)
        .bind(plan)
        .bind(last_seq)
        .fetch_all(pool)
        .await)?)
    }

    /// How many edits of each rule a version's plan holds, and what they save: rule, edits, tokens.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn count_elisions(
        &self,
        key: SessionKey,
        version: i64,
    ) -> Result<Vec<(String, i64, i64)>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT rule, count(*), CAST(sum(saved_tokens) AS BIGINT) FROM elisions \
             WHERE tenant_id = $1 AND session_id = $2 AND version = $3 GROUP BY rule ORDER BY rule"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(version)
        .fetch_all(pool)
        .await)?)
    }
}
