//! An append as one statement: one round trip, and nothing is read.
//!
//! It compares what is remembered of the session with its row, and writes if that is what it was; if it is to be done
//! once under a client's key, that must be free, and keeps the answer. PostgreSQL does it in one statement with parts.
//! SQLite has none of these: there the writing connection has a view of its own whose trigger does the same for each
//! row that is inserted into it, so that the appends of many requests are one statement, and one transaction, too.

use std::sync::{Arc, LazyLock};

use sqlx::query::QueryScalar;
use sqlx::sqlite::SqliteArguments;
use sqlx::{PgConnection, Sqlite, SqliteConnection};

use super::events::Signal;
use super::heads::Head;
use super::messages::{ROW_VALUES, Step, appended, appended_columns, bind_row};
use super::once::{Kept, OnceKey};
use super::{Conn, News, Result, SessionKey, StorageError, Timestamp};
use crate::domain::pairing::Placed;

/// Messages at most: for more of them what is read before weighs little.
const MOST: usize = 8;
/// Values of an append that are not a row's.
const SHARED: usize = 17;
/// The first of them, which all rows need.
const IN_ALL_ROWS: usize = 3;
/// Values of an answer that is kept, behind those of its tenant, session and time.
const KEPT: usize = 8;
/// Rows that one statement on SQLite has room for: few sizes, so that few texts are prepared. Rows that are left over
/// do nothing.
const ROOMS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Rows of the largest of them.
pub(super) const MOST_ROWS: usize = 64;

/// Where the values of an append are found.
#[derive(Clone, Copy)]
enum Values {
    /// In a row that a trigger works on.
    OfTrigger,
    /// In placeholders, those of so many rows behind the shared ones.
    Numbered { rows: usize },
}

impl Values {
    fn shared(self, number: usize) -> String {
        match self {
            Self::OfTrigger => format!("new.v{number}"),
            Self::Numbered { .. } => format!("${number}"),
        }
    }

    fn of_row(self, row: usize, number: usize) -> String {
        match self {
            Self::OfTrigger => format!("new.r{number}"),
            Self::Numbered { .. } => format!("${}", SHARED + row * ROW_VALUES + number),
        }
    }

    fn kept(self, number: usize) -> String {
        match self {
            Self::OfTrigger => format!("new.k{number}"),
            Self::Numbered { rows } => format!("${}", SHARED + rows * ROW_VALUES + number),
        }
    }

    /// The update of the session's row. What else decides about an append is that it is plain: see `Head::is_plain`.
    fn update(self, condition: &str) -> String {
        let v = |number| self.shared(number);
        format!(
            "UPDATE sessions SET last_seq = {}, message_count = {}, position_count = {}, history_length = {}, \
             history_tokens = {}, history_bytes = {}, instruction_tokens = {}, tail = {}, due_at = {}, \
             updated_at = {}, revision = revision + 1, event_seq = event_seq + 1 \
             WHERE tenant_id = {} AND id = {} AND revision = {} AND event_seq = {} AND updated_at = {} \
             AND status = 'active' AND deleted_at IS NULL AND turn_until IS NULL AND due_at IS NULL \
             AND NOT due_waits AND stalled_tokens IS NULL {condition}",
            v(7),
            v(8),
            v(9),
            v(10),
            v(11),
            v(12),
            v(13),
            v(14),
            v(15),
            v(3),
            v(1),
            v(2),
            v(4),
            v(5),
            v(6),
        )
    }

    /// A message's values.
    fn message(self, row: usize) -> String {
        let shared = (1..=IN_ALL_ROWS).map(|number| self.shared(number));
        let own = (1..=ROW_VALUES).map(|number| self.of_row(row, number));
        shared.chain(own).collect::<Vec<_>>().join(", ")
    }

    fn event(self, source: &str) -> String {
        let v = |number| self.shared(number);
        format!(
            "INSERT INTO events (tenant_id, session_id, id, type, data, created_at) \
             SELECT {}, {}, {} + 1, {}, {}, {} {source}",
            v(1),
            v(2),
            v(5),
            v(16),
            v(17),
            v(3),
        )
    }

    /// The answer that is kept.
    fn answer(self, source: &str) -> String {
        let (v, k) = (|number| self.shared(number), |number| self.kept(number));
        format!(
            "INSERT INTO idempotency (tenant_id, session_id, created_at, scope, request_key, request_digest, \
             shows_history, state, token, answer, expires_at) \
             SELECT {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {} {source}",
            v(1),
            v(2),
            v(3),
            k(1),
            k(2),
            k(3),
            k(4),
            k(5),
            k(6),
            k(7),
            k(8),
        )
    }

    /// That nothing is kept under the client's key.
    fn is_free(self) -> String {
        format!(
            "NOT EXISTS (SELECT 1 FROM idempotency WHERE tenant_id = {} AND scope = {} AND request_key = {})",
            self.shared(1),
            self.kept(1),
            self.kept(2),
        )
    }
}

const MESSAGES: &str = concat!("INSERT INTO messages (", appended_columns!(), ") ");

/// What a connection of SQLite's needs to append: a view into which messages are inserted.
///
/// Each row is a message. `place` is that of its append in the statement, `follows` says that it is not the first of
/// it, and `more` that others follow; `v…` are the values that are not a row's, `k…` those of an answer, null without
/// one, and `r…` those of the row. If the session is not as its head says, a row does nothing and is not returned; one
/// whose place is negative fails, which saves whoever waits for it the returned row.
pub(super) static SETUP: LazyLock<String> = LazyLock::new(|| {
    let values = Values::OfTrigger;
    let named = |name: char, count: usize| (1..=count).map(move |n| format!("0 AS {name}{n}"));
    let columns = named('v', SHARED)
        .chain(named('k', KEPT))
        .chain(named('r', ROW_VALUES));
    format!(
        "CREATE TEMP TABLE begun (place INTEGER PRIMARY KEY); \
         CREATE TEMP VIEW appends AS SELECT 0 AS place, 0 AS follows, 0 AS more, {}; \
         CREATE TEMP TRIGGER append INSTEAD OF INSERT ON appends BEGIN \
         {}; \
         SELECT CASE WHEN new.place < 0 THEN raise(ABORT, 'not done') ELSE raise(IGNORE) END \
         WHERE changes() = 0 \
         AND NOT (new.follows AND EXISTS (SELECT 1 FROM begun WHERE place = new.place)); \
         {MESSAGES} VALUES ({}); \
         {}; \
         {}; \
         INSERT INTO begun (place) SELECT new.place WHERE new.more AND NOT new.follows; \
         DELETE FROM begun WHERE new.follows AND NOT new.more AND place = new.place; \
         END",
        columns.collect::<Vec<_>>().join(", "),
        values.update(&format!(
            "AND NOT new.follows AND (new.k1 IS NULL OR {})",
            values.is_free()
        )),
        values.message(0),
        values.event("WHERE NOT new.follows"),
        values.answer("WHERE NOT new.follows AND new.k1 IS NOT NULL"),
    )
});

/// The place of an append that is alone in its statement.
const ALONE: i64 = -1;
/// What the trigger fails with.
const RAISED: &str = "1811";

/// The statements for one append, and for several.
struct Inserts {
    alone: [String; ROOMS.len()],
    several: [String; ROOMS.len()],
}

static SQLITE: LazyLock<Inserts> = LazyLock::new(|| {
    const VALUES: usize = 3 + SHARED + KEPT + ROW_VALUES;
    let inserts = ROOMS.map(|rows| {
        // Without names: each would be looked up among all.
        let row = format!("({})", ["?"; VALUES].join(", "));
        let rows = vec![row; rows].join(", ");
        format!("INSERT INTO appends VALUES {rows}")
    });
    Inserts {
        several: inserts
            .each_ref()
            .map(|insert| format!("{insert} RETURNING place")),
        alone: inserts,
    }
});

/// The statements of one to so many messages, without an answer that is kept and with one.
struct Postgres {
    plain: [String; MOST],
    once: [String; MOST],
}

static POSTGRES: LazyLock<Postgres> = LazyLock::new(|| Postgres {
    plain: std::array::from_fn(|index| postgres(index + 1, false)),
    once: std::array::from_fn(|index| postgres(index + 1, true)),
});

fn postgres(rows: usize, once: bool) -> String {
    const FROM: &str = "FROM head";
    let values = Values::Numbered { rows };
    let message = |row| format!("SELECT {} {FROM}", values.message(row));
    let messages: Vec<_> = (0..rows).map(message).collect();
    let (condition, kept) = if once {
        let condition = format!("AND {} ", values.is_free());
        (condition, format!(", kept AS ({})", values.answer(FROM)))
    } else {
        (String::new(), String::new())
    };
    format!(
        "WITH head AS ({}), added AS ({MESSAGES}{}), told AS ({}){kept} SELECT done FROM head",
        values.update(&format!("{condition}RETURNING CAST(0 AS BIGINT) AS done")),
        messages.join(" UNION ALL "),
        values.event(FROM),
    )
}

/// An append that is one statement, with all its values.
#[derive(Debug)]
pub struct QuickAppend {
    key: SessionKey,
    head: Arc<Head>,
    pub(super) step: Step,
    now: Timestamp,
    tail: String,
    kind: &'static str,
    data: String,
    once: Option<(OnceKey, Kept)>,
}

/// Binds the first of the values of an append, which all its rows need. The two engines take values of their own types.
macro_rules! bind_in_all_rows {
    ($query:expr, $quick:expr) => {
        $query
            .bind($quick.key.tenant.0)
            .bind($quick.key.session)
            .bind($quick.now)
    };
}

/// Binds the others that are not a row's.
macro_rules! bind_shared {
    ($query:expr, $quick:expr) => {{
        let counters = &$quick.step.placement.counters;
        $query
            .bind($quick.head.revision)
            .bind($quick.head.event_seq)
            .bind($quick.head.updated_at)
            .bind(counters.last_seq)
            .bind(counters.messages)
            .bind(counters.positions)
            .bind(counters.length)
            .bind(counters.tokens)
            .bind(counters.bytes)
            .bind(counters.instruction_tokens)
            .bind(&$quick.tail)
            .bind($quick.step.marking.due_at)
            .bind($quick.kind)
            .bind(&$quick.data)
    }};
}

/// Binds an answer that is kept.
macro_rules! bind_kept {
    ($query:expr, $once:expr) => {{
        let (key, kept) = $once;
        $query
            .bind(key.scope.as_slice())
            .bind(&key.key)
            .bind(key.digest.as_slice())
            .bind(kept.shows_history)
            .bind(kept.state.as_str())
            .bind(kept.token)
            .bind(&kept.answer)
            .bind(key.expires_at)
    }};
}

type SqliteQuery<'q> = QueryScalar<'q, Sqlite, i64, SqliteArguments>;

fn bind_nothing(query: SqliteQuery<'_>, values: usize) -> SqliteQuery<'_> {
    (0..values).fold(query, |query, _| query.bind(None::<i64>))
}

impl QuickAppend {
    /// Whether so many messages are appended in one statement.
    pub(super) fn fits(messages: usize) -> bool {
        (1..=MOST).contains(&messages)
    }

    /// An append of what was placed behind a head.
    pub(super) fn new(
        key: SessionKey,
        head: Arc<Head>,
        step: Step,
        now: Timestamp,
    ) -> Result<Self> {
        let tail = serde_json::to_string(&step.placement.tail)
            .map_err(|_| StorageError::Corrupt("sessions.tail"))?;
        let event = appended(&step.placement.rows);
        let event = event.ok_or(StorageError::Corrupt("an append of nothing"))?;
        let data = serde_json::to_string(&event).map_err(|_| StorageError::Corrupt("an event"))?;
        Ok(Self {
            key,
            head,
            step,
            now,
            tail,
            kind: event.kind(),
            data,
            once: None,
        })
    }

    /// The same, done only if nothing is kept under a client's key, with the answer that is then. `None`: it is about
    /// something else than the session.
    pub(super) fn once(mut self, key: &OnceKey, kept: Kept) -> Option<Self> {
        let is_its_own = key.tenant == self.key.tenant && kept.session == Some(self.key.session);
        self.once = Some((key.clone(), kept));
        Some(self).filter(|_| is_its_own)
    }

    /// Rows that it inserts.
    pub(super) fn rows(&self) -> usize {
        self.step.placement.rows.len()
    }

    /// What is told of it once it is committed.
    pub(super) fn signal(&self) -> Signal {
        let number = self.head.event_seq + 1;
        Signal {
            key: self.key,
            news: News::Stored {
                first: number,
                last: number,
            },
        }
    }

    /// Appends where a transaction is open. False: the session is not as the head says, and nothing is written.
    pub(super) async fn run(&self, conn: &mut Conn<'_>) -> Result<bool> {
        let done = match &mut *conn {
            Conn::Sqlite(held) => Self::run_sqlite(held, &[self]).await?.contains(&true),
            Conn::Postgres(held) => self.run_postgres(held).await?,
        };
        if done {
            conn.signal(self.signal());
        }
        Ok(done)
    }

    /// Runs appends of several requests, of [`MOST_ROWS`] rows at most, as one statement; says of each whether that did
    /// it. It is a transaction of its own where none is open. The connection has run [`SETUP`].
    pub(super) async fn run_sqlite(
        conn: &mut SqliteConnection,
        quicks: &[&Self],
    ) -> Result<Vec<bool>> {
        let rows = quicks.iter().map(|quick| quick.rows()).sum();
        let is_alone = quicks.len() == 1;
        let texts = if is_alone {
            &SQLITE.alone
        } else {
            &SQLITE.several
        };
        let mut texts = ROOMS.iter().zip(texts);
        let Some((room, text)) = texts.find(|(room, _)| **room >= rows) else {
            return Err(StorageError::Corrupt("appends of too many rows"));
        };
        let mut query: SqliteQuery<'_> = sqlx::query_scalar(text.as_str());
        for (place, quick) in quicks.iter().enumerate() {
            let place = i64::try_from(place).unwrap_or(i64::MAX);
            let place = if is_alone { ALONE } else { place };
            for (index, row) in quick.step.placement.rows.iter().enumerate() {
                query = quick.bind_sqlite(query, place, index, row)?;
            }
        }
        // Rows that are left over follow an append that was not begun.
        for _ in rows..*room {
            query = query.bind(None::<i64>).bind(true).bind(false);
            query = bind_nothing(query, SHARED + KEPT + ROW_VALUES);
        }
        let returned = match query.fetch_all(conn).await {
            Ok(_) if is_alone => return Ok(vec![true]),
            Ok(returned) => returned,
            Err(sqlx::Error::Database(cause)) if cause.code().as_deref() == Some(RAISED) => {
                return Ok(vec![false]);
            }
            Err(error) => return Err(error.into()),
        };
        let mut done = vec![false; quicks.len()];
        for place in returned {
            let place = usize::try_from(place).unwrap_or(usize::MAX);
            if let Some(done) = done.get_mut(place) {
                *done = true;
            }
        }
        Ok(done)
    }

    fn bind_sqlite<'q>(
        &'q self,
        query: SqliteQuery<'q>,
        place: i64,
        index: usize,
        row: &'q Placed,
    ) -> Result<SqliteQuery<'q>> {
        let follows = index > 0;
        let query = query
            .bind(place)
            .bind(follows)
            .bind(index + 1 < self.rows());
        let query = bind_in_all_rows!(query, self);
        let query = match (follows, &self.once) {
            (true, _) => bind_nothing(query, SHARED - IN_ALL_ROWS + KEPT),
            (false, None) => bind_nothing(bind_shared!(query, self), KEPT),
            (false, Some(once)) => bind_kept!(bind_shared!(query, self), once),
        };
        Ok(bind_row!(query, row))
    }

    /// As [`QuickAppend::run`], where a transaction is open or none is: it is one statement.
    pub(super) async fn run_postgres(&self, conn: &mut PgConnection) -> Result<bool> {
        let texts = match self.once {
            Some(_) => &POSTGRES.once,
            None => &POSTGRES.plain,
        };
        let text = self
            .rows()
            .checked_sub(1)
            .and_then(|index| texts.get(index));
        let text = text.ok_or(StorageError::Corrupt("an append of no size"))?;
        let query = sqlx::query_scalar::<_, i64>(text.as_str());
        let mut query = bind_shared!(bind_in_all_rows!(query, self), self);
        for row in &self.step.placement.rows {
            query = bind_row!(query, row);
        }
        if let Some(once) = &self.once {
            query = bind_kept!(query, once);
        }
        Ok(!query.fetch_all(conn).await?.is_empty())
    }
}
