//! The index of the search: what is put into it, what is taken out, and asking it.
//!
//! SQLite keeps terms in an FTS5 table beside the rows that name their places, PostgreSQL in a `tsvector`
//! of the row itself. Both hold terms that were cut by `domain::terms`, and are asked by quoted ones, so that
//! neither reads a text, or a query, its own way. Messages are indexed behind their append; whatever changes
//! or takes away a message changes the index in the same transaction.

use std::fmt::Write as _;

use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;

use super::{Conn, Database, Result, SessionKey, Write, on_both, one_more, reading, take_page};
use crate::domain::search::{Chunk, Phrase, SearchQuery};

/// Bytes of bodies that are read at once to be indexed. A larger message is read alone.
const SOURCE_BYTES: usize = 1 << 20;
/// Messages that are read at once to be indexed.
const SOURCE_MESSAGES: i64 = 200;
/// Characters of terms, and chunks, that one sweep takes out of SQLite's index: some 30 ms of work.
const SWEEP_LENGTH: i64 = 8 << 10;
const SWEEP_CHUNKS: i64 = 32;
/// Stands between two texts of a message. No term has it, so no phrase goes over it.
const GAP: &str = "\u{e000}";

/// How far the index of a session reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct IndexState {
    pub indexed_seq: i64,
    pub last_seq: i64,
    pub rewrites: i64,
}

/// A message that is to be indexed.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Unindexed {
    /// Its place.
    pub seq: i64,
    /// Its body; none if it was erased.
    pub body: Option<String>,
}

/// A chunk of a message, ready to be stored.
#[derive(Debug, Clone)]
pub struct IndexChunk {
    seq: i64,
    number: i64,
    /// Joined by spaces.
    terms: String,
}

impl IndexChunk {
    /// The chunks of the message with this `seq`.
    pub fn of(seq: i64, chunks: impl Iterator<Item = Chunk>) -> Vec<Self> {
        let number = |(number, chunk): (usize, Chunk)| {
            let terms: Vec<_> = chunk.terms().map(|term| term.unwrap_or(GAP)).collect();
            Self {
                seq,
                number: i64::try_from(number).unwrap_or(i64::MAX),
                terms: terms.join(" "),
            }
        };
        chunks.enumerate().map(number).collect()
    }

    /// The message that it is of.
    #[must_use]
    pub fn seq(&self) -> i64 {
        self.seq
    }

    /// Bytes that it is stored in, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.terms.len()
    }
}

/// The term that names a session. On SQLite in a column of its own, so letters and digits will do.
fn session_term(key: SessionKey) -> String {
    format!("t{}s{}", key.tenant.0, key.session.simple())
}

/// Puts messages into the index, if it still reaches exactly as far as was thought.
#[derive(Debug, Clone)]
pub struct IndexMessages {
    /// Which session.
    pub key: SessionKey,
    /// How far the index reached, and the session's counter, when the messages were read.
    pub before: IndexState,
    /// What is stored. What is stored already, by another process, is the same.
    pub chunks: Vec<IndexChunk>,
    /// How far it reaches then.
    pub indexed_seq: i64,
}

impl Write for IndexMessages {
    /// Whether it did.
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            let moved = on_both!(conn, c => sqlx::query(
                "UPDATE sessions SET indexed_seq = $5 WHERE tenant_id = $1 AND id = $2 \
                 AND indexed_seq = $3 AND rewrites = $4"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(self.before.indexed_seq)
            .bind(self.before.rewrites)
            .bind(self.indexed_seq)
            .execute(c)
            .await
            .map(|done| done.rows_affected()))?;
            if moved == 0 {
                return Ok(false);
            }
            for chunk in &self.chunks {
                insert(conn, self.key, chunk).await?;
            }
            Ok(true)
        })
    }
}

async fn insert(conn: &mut Conn<'_>, key: SessionKey, chunk: &IndexChunk) -> Result<()> {
    match conn {
        Conn::Sqlite(c) => {
            let id: Option<i64> = sqlx::query_scalar(
                "INSERT INTO search_rows (tenant_id, session_id, seq, chunk) VALUES ($1, $2, $3, $4) \
                 ON CONFLICT DO NOTHING RETURNING id",
            )
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(chunk.seq)
            .bind(chunk.number)
            .fetch_optional(&mut **c)
            .await?;
            let Some(id) = id else { return Ok(()) };
            sqlx::query("INSERT INTO search_terms (rowid, session, terms) VALUES ($1, $2, $3)")
                .bind(id)
                .bind(session_term(key))
                .bind(&chunk.terms)
                .execute(&mut **c)
                .await?;
        }
        Conn::Postgres(c) => {
            sqlx::query(
                "INSERT INTO search_rows (tenant_id, session_id, seq, chunk, terms) \
                 VALUES ($1, $2, $3, $4, CAST($5 AS tsvector)) ON CONFLICT DO NOTHING",
            )
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(chunk.seq)
            .bind(chunk.number)
            .bind(tsvector(key, &chunk.terms))
            .execute(&mut **c)
            .await?;
        }
    }
    Ok(())
}

/// Takes out whatever lies behind a `seq`.
pub(super) async fn unindex_after(conn: &mut Conn<'_>, key: SessionKey, seq: i64) -> Result<()> {
    for statement in [
        "DELETE FROM search_rows WHERE tenant_id = $1 AND session_id = $2 AND seq > $3",
        "UPDATE sessions SET indexed_seq = $3 WHERE tenant_id = $1 AND id = $2 AND indexed_seq > $3",
    ] {
        on_both!(conn, c => sqlx::query(statement)
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(seq)
            .execute(c)
            .await
            .map(drop))?;
    }
    Ok(())
}

/// Puts other chunks in the place of a message's own, as far as the index reaches.
pub(super) async fn reindex(
    conn: &mut Conn<'_>,
    key: SessionKey,
    seq: i64,
    chunks: &[IndexChunk],
) -> Result<()> {
    on_both!(conn, c => sqlx::query(
        "DELETE FROM search_rows WHERE tenant_id = $1 AND session_id = $2 AND seq = $3"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(seq)
    .execute(c)
    .await
    .map(drop))?;
    let indexed: Option<i64> = on_both!(conn, c => sqlx::query_scalar(
        "SELECT indexed_seq FROM sessions WHERE tenant_id = $1 AND id = $2"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .fetch_optional(c)
    .await)?;
    if indexed.is_some_and(|indexed| seq <= indexed) {
        for chunk in chunks {
            let chunk = IndexChunk {
                seq,
                ..chunk.clone()
            };
            insert(conn, key, &chunk).await?;
        }
    }
    Ok(())
}

/// Takes the terms of some chunks that are gone out of SQLite's index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sweep;

impl Write for Sweep {
    /// Whether there may be more.
    type Output = bool;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            // PostgreSQL's rows hold their terms themselves.
            let Conn::Sqlite(c) = conn else {
                return Ok(false);
            };
            let gone: Vec<(i64, Option<i64>)> = sqlx::query_as(
                "SELECT id, (SELECT length(terms) FROM search_terms WHERE rowid = id) \
                 FROM search_trash ORDER BY id LIMIT $1",
            )
            .bind(SWEEP_CHUNKS)
            .fetch_all(&mut **c)
            .await?;
            let mut length = 0;
            for (id, terms) in &gone {
                if length > SWEEP_LENGTH {
                    break;
                }
                length += terms.unwrap_or(0);
                for statement in [
                    "DELETE FROM search_terms WHERE rowid = $1",
                    "DELETE FROM search_trash WHERE id = $1",
                ] {
                    sqlx::query(statement).bind(id).execute(&mut **c).await?;
                }
            }
            Ok(!gone.is_empty())
        })
    }
}

/// A message that was found.
#[derive(Debug, Clone, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct FoundRow {
    pub id: String,
    pub seq: i64,
    pub position: Option<i64>,
    pub role: String,
    pub erased: bool,
    pub elided: bool,
    pub body: String,
}

impl Database {
    /// How far the index of a session reaches, if there is such a session.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_index_state(&self, key: SessionKey) -> Result<Option<IndexState>> {
        Ok(reading!(self, pool => sqlx::query_as(
            "SELECT indexed_seq, last_seq, rewrites FROM sessions WHERE tenant_id = $1 AND id = $2 \
             AND deleted_at IS NULL"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .fetch_optional(pool)
        .await)?)
    }

    /// The next messages behind `after`; none if there are no more.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn load_unindexed(&self, key: SessionKey, after: i64) -> Result<Vec<Unindexed>> {
        reading!(self, pool => {
            let mut rows = sqlx::query_as::<_, Unindexed>(
                "SELECT seq, CASE WHEN erased THEN NULL ELSE body END AS body FROM messages \
                 WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 ORDER BY seq LIMIT $4"
            )
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(after)
            .bind(SOURCE_MESSAGES)
            .fetch(pool);
            let mut page = Vec::new();
            let mut bytes = 0;
            while let Some(row) = rows.try_next().await? {
                bytes += row.body.as_ref().map_or(0, String::len);
                // The first is always taken.
                if bytes > SOURCE_BYTES && !page.is_empty() {
                    break;
                }
                page.push(row);
            }
            Ok(page)
        })
    }

    /// Messages in which a query is found, as the plan of a version shows them, newest first, `limit` at most and only before a `seq`; the flag says
    /// whether more follow.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn search_messages(
        &self,
        key: SessionKey,
        query: &SearchQuery,
        before_seq: i64,
        version: i64,
        limit: usize,
    ) -> Result<(Vec<FoundRow>, bool)> {
        let size = |row: &FoundRow| row.body.len();
        match self {
            Self::Sqlite { readers, watch, .. } => {
                let mut held = watch.acquire(readers).await?;
                // CROSS JOIN keeps the index first, and what it found before the messages: else all of the session's
                // are looked at.
                let found = sqlx::query_as(
                    "SELECT id, found.seq AS seq, position, role, erased, EXISTS (SELECT 1 FROM elisions \
                     WHERE elisions.tenant_id = $1 AND elisions.session_id = $2 \
                     AND elisions.version = $6 AND elisions.seq = found.seq) AS elided, body FROM \
                     (SELECT DISTINCT search_rows.seq AS seq FROM search_terms CROSS JOIN search_rows \
                      ON search_rows.id = search_terms.rowid WHERE search_terms MATCH $3 \
                      AND search_rows.tenant_id = $1 AND search_rows.session_id = $2 \
                      AND search_rows.seq < $4 ORDER BY search_rows.seq DESC LIMIT $5) AS found \
                     CROSS JOIN messages ON messages.tenant_id = $1 AND messages.session_id = $2 \
                     AND messages.seq = found.seq ORDER BY found.seq DESC",
                )
                .bind(key.tenant.0)
                .bind(key.session)
                .bind(fts5_query(key, query))
                .bind(before_seq)
                .bind(one_more(limit))
                .bind(version)
                .fetch(&mut *held);
                let page = take_page(found, limit, size).await?;
                held.give_back();
                Ok(page)
            }
            Self::Postgres { pool, watch, .. } => {
                let mut held = watch.acquire(pool).await?;
                // Materialised: hoping for an early end, the planner would read every row of the session.
                let found = sqlx::query_as(
                    "WITH hits AS MATERIALIZED (SELECT DISTINCT seq FROM search_rows \
                      WHERE tenant_id = $1 AND session_id = $2 AND seq < $4 \
                      AND terms @@ CAST($3 AS tsquery)), \
                     found AS MATERIALIZED (SELECT seq FROM hits ORDER BY seq DESC LIMIT $5) \
                     SELECT id, found.seq AS seq, position, role, erased, EXISTS (SELECT 1 \
                     FROM elisions WHERE elisions.tenant_id = $1 AND elisions.session_id = $2 \
                     AND elisions.version = $6 AND elisions.seq = found.seq) AS elided, body FROM found \
                     JOIN messages ON messages.tenant_id = $1 AND messages.session_id = $2 \
                     AND messages.seq = found.seq ORDER BY found.seq DESC",
                )
                .bind(key.tenant.0)
                .bind(key.session)
                .bind(tsquery(key, query))
                .bind(before_seq)
                .bind(one_more(limit))
                .bind(version)
                .fetch(&mut *held);
                let page = take_page(found, limit, size).await?;
                held.give_back();
                Ok(page)
            }
        }
    }
}

/// A query in FTS5's language: quoted phrases, all of them, in this session.
fn fts5_query(key: SessionKey, query: &SearchQuery) -> String {
    let phrase = |phrase: &Phrase| {
        let open = if phrase.is_open { " *" } else { "" };
        format!("\"{}\"{open}", phrase.terms.join(" "))
    };
    let phrases: Vec<_> = query.phrases().iter().map(phrase).collect();
    let phrases = phrases.join(" AND ");
    format!(
        "session : \"{}\" AND terms : ({phrases})",
        session_term(key)
    )
}

/// A term as PostgreSQL takes it. Terms hold no quotes and no backslashes, and no other term begins with `@`.
fn session_lexeme(key: SessionKey) -> String {
    format!("'@{}'", session_term(key))
}

/// Joined terms as PostgreSQL's value, each with its place.
fn tsvector(key: SessionKey, terms: &str) -> String {
    let mut text = session_lexeme(key);
    for (place, term) in terms.split(' ').enumerate() {
        if term != GAP {
            // Writing to a string does not fail.
            let _ = write!(text, " '{term}':{}", place + 1);
        }
    }
    text
}

/// A query as PostgreSQL's value.
fn tsquery(key: SessionKey, query: &SearchQuery) -> String {
    let phrase = |phrase: &Phrase| {
        let terms: Vec<_> = phrase
            .terms
            .iter()
            .map(|term| format!("'{term}'"))
            .collect();
        let open = if phrase.is_open { ":*" } else { "" };
        format!("({}{open})", terms.join(" <-> "))
    };
    let phrases: Vec<_> = query.phrases().iter().map(phrase).collect();
    format!("{} & {}", session_lexeme(key), phrases.join(" & "))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::domain::search::chunks;
    use crate::storage::TenantId;

    const KEY: SessionKey = SessionKey {
        tenant: TenantId(7),
        session: uuid::Uuid::nil(),
    };

    #[test]
    fn engines_are_asked_by_quoted_terms_only() {
        let query = SearchQuery::read("src/Main.rs NEAR(\"x\"*) 湖 a湖").unwrap();
        let session = "t7s00000000000000000000000000000000";
        assert_eq!(
            fts5_query(KEY, &query),
            format!(
                r#"session : "{session}" AND terms : ("src main rs" AND "near x" AND "湖" * AND "a 湖" *)"#
            )
        );
        assert_eq!(
            tsquery(KEY, &query),
            format!(
                "'@{session}' & ('src' <-> 'main' <-> 'rs') & ('near' <-> 'x') & ('湖':*) & ('a' <-> '湖':*)"
            )
        );
    }

    #[test]
    fn a_gap_takes_a_place() {
        let fields = [Cow::Borrowed("it's"), Cow::Borrowed("湖水")];
        let stored = IndexChunk::of(3, chunks(&fields));
        assert_eq!(stored.len(), 1);
        assert_eq!(stored[0].terms, "it s \u{e000} 湖水 水");
        assert_eq!(
            tsvector(KEY, &stored[0].terms),
            "'@t7s00000000000000000000000000000000' 'it':1 's':2 '湖水':4 '水':5"
        );
    }
}
