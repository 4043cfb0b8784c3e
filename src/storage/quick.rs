//! An append as one statement: one round trip, and nothing is read.
//!
//! It compares what is remembered of the session with its row, and writes if that is what it was. PostgreSQL does it in
//! one statement with parts. SQLite has none of these: there it is a text of three statements, which the driver runs in
//! one go, the later two only if the one before changed something; alone, with the bounds of its transaction around it,
//! or many together, those of several requests, in a transaction that is open.

use std::sync::{Arc, LazyLock};

use sqlx::{PgConnection, SqliteConnection};

use super::events::Signal;
use super::heads::Head;
use super::messages::{ROW_VALUES, Step, appended, appended_columns, bind_row};
use super::{Conn, News, Result, SessionKey, StorageError, Timestamp};

/// Messages at most: for more of them what is read before weighs little.
const MOST: usize = 8;
/// Values of the statement that are not a row's.
const SHARED: usize = 17;
/// Appends of one message that one text holds: few sizes, so that few texts are prepared.
const TOGETHER: [usize; 2] = [16, 4];

/// The statements of one append whose values begin behind so many others.
struct Texts {
    before: usize,
}

impl Texts {
    fn value(&self, number: usize) -> String {
        format!("${}", self.before + number)
    }

    /// The update of the session's row. What else decides about an append is that it is plain: see `Head::is_plain`.
    fn update(&self, returning: &str) -> String {
        let v = |number| self.value(number);
        format!(
            "UPDATE sessions SET last_seq = {}, message_count = {}, position_count = {}, history_length = {}, \
             history_tokens = {}, history_bytes = {}, instruction_tokens = {}, tail = {}, due_at = {}, \
             updated_at = {}, revision = revision + 1, event_seq = event_seq + 1 \
             WHERE tenant_id = {} AND id = {} AND revision = {} AND event_seq = {} AND updated_at = {} \
             AND status = 'active' AND deleted_at IS NULL AND turn_until IS NULL AND due_at IS NULL \
             AND NOT due_waits AND stalled_tokens IS NULL RETURNING {returning}",
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

    /// The rows that are inserted, each if `condition` holds.
    fn messages(&self, rows: usize, condition: &str) -> String {
        let shared = (1..=3).map(|number| self.value(number));
        let shared = shared.collect::<Vec<_>>().join(", ");
        let row = |row: usize| {
            let own = SHARED + row * ROW_VALUES;
            let own = (own + 1..=own + ROW_VALUES).map(|number| self.value(number));
            let own = own.collect::<Vec<_>>().join(", ");
            format!("SELECT {shared}, {own} {condition}")
        };
        let rows: Vec<_> = (0..rows).map(row).collect();
        format!("{MESSAGES}{}", rows.join(" UNION ALL "))
    }

    fn event(&self, condition: &str) -> String {
        let v = |number| self.value(number);
        format!(
            "INSERT INTO events (tenant_id, session_id, id, type, data, created_at) \
             SELECT {}, {}, {} + 1, {}, {}, {} {condition}",
            v(1),
            v(2),
            v(5),
            v(16),
            v(17),
            v(3),
        )
    }

    fn sqlite(&self, rows: usize, returning: &str) -> String {
        const CHANGED: &str = "WHERE changes() > 0";
        let update = self.update(returning);
        let (messages, event) = (self.messages(rows, CHANGED), self.event(CHANGED));
        format!("{update}; {messages}; {event}")
    }

    fn postgres(&self, rows: usize) -> String {
        const FROM: &str = "FROM head";
        let update = self.update("CAST(0 AS BIGINT) AS done");
        let (messages, event) = (self.messages(rows, FROM), self.event(FROM));
        format!(
            "WITH head AS ({update}), added AS ({messages}), told AS ({event}) SELECT done FROM head"
        )
    }
}

const MESSAGES: &str = concat!("INSERT INTO messages (", appended_columns!(), ") ");
const FIRST: Texts = Texts { before: 0 };

type Sizes = LazyLock<[String; MOST]>;

static WITHIN: Sizes = LazyLock::new(|| std::array::from_fn(|index| FIRST.sqlite(index + 1, "0")));
static ALONE: Sizes = LazyLock::new(|| {
    std::array::from_fn(|index| {
        format!("BEGIN IMMEDIATE; {}; COMMIT", FIRST.sqlite(index + 1, "0"))
    })
});
static POSTGRES: Sizes = LazyLock::new(|| std::array::from_fn(|index| FIRST.postgres(index + 1)));
static MANY: LazyLock<[String; 2]> = LazyLock::new(|| {
    TOGETHER.map(|size| {
        let one = |index: usize| {
            let before = index * (SHARED + ROW_VALUES);
            Texts { before }.sqlite(1, &index.to_string())
        };
        (0..size).map(one).collect::<Vec<_>>().join("; ")
    })
});

/// Which text an append is run by.
enum Form {
    Alone,
    Within,
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
}

/// Binds the values of an append. The two engines take values of their own types.
macro_rules! bind {
    ($query:expr, $quick:expr) => {{
        let quick: &QuickAppend = $quick;
        let counters = &quick.step.placement.counters;
        let mut query = $query
            .bind(quick.key.tenant.0)
            .bind(quick.key.session)
            .bind(quick.now)
            .bind(quick.head.revision)
            .bind(quick.head.event_seq)
            .bind(quick.head.updated_at)
            .bind(counters.last_seq)
            .bind(counters.messages)
            .bind(counters.positions)
            .bind(counters.length)
            .bind(counters.tokens)
            .bind(counters.bytes)
            .bind(counters.instruction_tokens)
            .bind(&quick.tail)
            .bind(quick.step.marking.due_at)
            .bind(quick.kind)
            .bind(&quick.data);
        for row in &quick.step.placement.rows {
            query = bind_row!(query, row);
        }
        query
    }};
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
        })
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
            Conn::Sqlite(held) => self.run_sqlite(held, Form::Within).await?,
            Conn::Postgres(held) => self.run_postgres(held).await?,
        };
        if done {
            conn.signal(self.signal());
        }
        Ok(done)
    }

    /// As [`QuickAppend::run`], as a transaction of its own.
    pub(super) async fn run_alone(&self, conn: &mut SqliteConnection) -> Result<bool> {
        self.run_sqlite(conn, Form::Alone).await
    }

    async fn run_sqlite(&self, conn: &mut SqliteConnection, form: Form) -> Result<bool> {
        let texts: &'static Sizes = match form {
            Form::Alone => &ALONE,
            Form::Within => &WITHIN,
        };
        let query = sqlx::query_scalar::<_, i64>(self.text(texts)?);
        // Every statement has to run, so every row is asked for.
        Ok(!bind!(query, self).fetch_all(conn).await?.is_empty())
    }

    /// As [`QuickAppend::run`], where a transaction is open or none is: it is one statement.
    pub(super) async fn run_postgres(&self, conn: &mut PgConnection) -> Result<bool> {
        let query = sqlx::query_scalar::<_, i64>(self.text(&POSTGRES)?);
        Ok(!bind!(query, self).fetch_all(conn).await?.is_empty())
    }

    fn text(&self, texts: &'static Sizes) -> Result<&'static str> {
        let size = self.step.placement.rows.len();
        let text = size.checked_sub(1).and_then(|index| texts.get(index));
        text.map(String::as_str)
            .ok_or(StorageError::Corrupt("an append of no size"))
    }

    /// Runs appends of several requests where a transaction is open; says of each whether that did it.
    pub(super) async fn run_many(
        conn: &mut SqliteConnection,
        quicks: &[&Self],
    ) -> Result<Vec<bool>> {
        let mut done = vec![false; quicks.len()];
        let is_single = |index: &usize| {
            let quick = quicks.get(*index);
            quick.is_some_and(|quick| quick.step.placement.rows.len() == 1)
        };
        let (singles, others): (Vec<_>, Vec<_>) = (0..quicks.len()).partition(is_single);
        let mut rest = singles.as_slice();
        while let Some((size, text)) = TOGETHER
            .iter()
            .zip(MANY.iter())
            .find(|(size, _)| **size <= rest.len())
        {
            let (chunk, behind) = rest.split_at(*size);
            rest = behind;
            let mut query = sqlx::query_scalar::<_, i64>(text.as_str());
            for quick in chunk.iter().filter_map(|index| quicks.get(*index)) {
                query = bind!(query, quick);
            }
            for place in query.fetch_all(&mut *conn).await? {
                let place = usize::try_from(place).unwrap_or(usize::MAX);
                let index = chunk.get(place).copied().unwrap_or(usize::MAX);
                if let Some(done) = done.get_mut(index) {
                    *done = true;
                }
            }
        }
        for index in rest.iter().chain(&others) {
            if let (Some(quick), Some(done)) = (quicks.get(*index), done.get_mut(*index)) {
                *done = quick.run_sqlite(conn, Form::Within).await?;
            }
        }
        Ok(done)
    }
}
