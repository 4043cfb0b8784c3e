//! An append as one statement: one round trip, and nothing is read.
//!
//! It compares what is remembered of the session with its row, and writes if that is what it was. PostgreSQL does it in
//! one statement with parts. SQLite has none of these: there it is a text of three statements, which the driver runs in
//! one go, the later two only if the one before changed something; alone, with the bounds of its transaction around it.

use std::sync::LazyLock;

use super::events::Signal;
use super::heads::Head;
use super::messages::{ROW_VALUES, Step, appended, appended_columns, bind_row};
use super::{Conn, News, Result, SessionKey, StorageError, Timestamp};

/// Messages at most: for more of them what is read before weighs little.
const MOST: usize = 8;
/// Values of the statement that are not a row's.
const SHARED: usize = 17;

/// The update of the session's row. What else decides about an append is that it is plain: see `Head::is_plain`.
const UPDATE: &str = "UPDATE sessions SET last_seq = $7, message_count = $8, position_count = $9, \
    history_length = $10, history_tokens = $11, history_bytes = $12, instruction_tokens = $13, tail = $14, \
    due_at = $15, updated_at = $3, revision = revision + 1, event_seq = event_seq + 1 \
    WHERE tenant_id = $1 AND id = $2 AND revision = $4 AND event_seq = $5 AND updated_at = $6 \
    AND status = 'active' AND deleted_at IS NULL AND turn_until IS NULL AND due_at IS NULL \
    AND NOT due_waits AND stalled_tokens IS NULL RETURNING revision";
const MESSAGES: &str = concat!("INSERT INTO messages (", appended_columns!(), ") ");
const EVENT: &str = "INSERT INTO events (tenant_id, session_id, id, type, data, created_at) \
    SELECT $1, $2, $5 + 1, $16, $17, $3";

/// The rows that are inserted, each if `condition` holds.
fn selects(rows: usize, condition: &str) -> String {
    let row = |row: usize| {
        let own = SHARED + row * ROW_VALUES;
        let own: Vec<_> = (own + 1..=own + ROW_VALUES)
            .map(|number| format!("${number}"))
            .collect();
        format!("SELECT $1, $2, $3, {} {condition}", own.join(", "))
    };
    let rows: Vec<_> = (0..rows).map(row).collect();
    rows.join(" UNION ALL ")
}

fn sqlite_text(rows: usize, before: &str, behind: &str) -> String {
    const CHANGED: &str = "WHERE changes() > 0";
    let selects = selects(rows, CHANGED);
    format!("{before}{UPDATE}; {MESSAGES}{selects}; {EVENT} {CHANGED}{behind}")
}

fn postgres_text(rows: usize) -> String {
    let selects = selects(rows, "FROM head");
    format!(
        "WITH head AS ({UPDATE}), added AS ({MESSAGES}{selects}), told AS ({EVENT} FROM head) SELECT revision FROM head"
    )
}

type Texts = LazyLock<[String; MOST]>;

static WITHIN: Texts =
    LazyLock::new(|| std::array::from_fn(|index| sqlite_text(index + 1, "", "")));
static ALONE: Texts = LazyLock::new(|| {
    std::array::from_fn(|index| sqlite_text(index + 1, "BEGIN IMMEDIATE; ", "; COMMIT"))
});
static POSTGRES: Texts = LazyLock::new(|| std::array::from_fn(|index| postgres_text(index + 1)));

fn text(texts: &'static Texts, rows: usize) -> Result<&'static str> {
    let text = rows.checked_sub(1).and_then(|index| texts.get(index));
    text.map(String::as_str)
        .ok_or(StorageError::Corrupt("an append of no size"))
}

/// Whether so many messages are appended in one statement.
pub(super) fn fits(messages: usize) -> bool {
    (1..=MOST).contains(&messages)
}

/// Appends what was placed behind a head. False: the session is not as the head says, and nothing is written.
pub(super) async fn append(
    conn: &mut Conn<'_>,
    key: SessionKey,
    head: &Head,
    step: &Step,
    now: Timestamp,
) -> Result<bool> {
    let rows = &step.placement.rows;
    let counters = &step.placement.counters;
    let tail = serde_json::to_string(&step.placement.tail)
        .map_err(|_| StorageError::Corrupt("sessions.tail"))?;
    let event = appended(rows).ok_or(StorageError::Corrupt("an append of no size"))?;
    let data = serde_json::to_string(&event).map_err(|_| StorageError::Corrupt("an event"))?;
    // The two engines bind values of their own types.
    macro_rules! bound {
        ($text:expr) => {{
            let mut query = sqlx::query_scalar::<_, i64>($text)
                .bind(key.tenant.0)
                .bind(key.session)
                .bind(now)
                .bind(head.revision)
                .bind(head.event_seq)
                .bind(head.updated_at)
                .bind(counters.last_seq)
                .bind(counters.messages)
                .bind(counters.positions)
                .bind(counters.length)
                .bind(counters.tokens)
                .bind(counters.bytes)
                .bind(counters.instruction_tokens)
                .bind(&tail)
                .bind(step.marking.due_at)
                .bind(event.kind())
                .bind(&data);
            for row in rows {
                query = bind_row!(query, row);
            }
            query
        }};
    }
    let alone = !conn.is_within();
    let written = match &mut *conn {
        Conn::Sqlite(held) => {
            let text = text(if alone { &ALONE } else { &WITHIN }, rows.len())?;
            // Every statement has to run, so every row is asked for.
            bound!(text).fetch_all(&mut **held).await?
        }
        Conn::Postgres(held) => {
            let text = text(&POSTGRES, rows.len())?;
            bound!(text).fetch_all(&mut **held).await?
        }
    };
    if written.is_empty() {
        return Ok(false);
    }
    let number = head.event_seq + 1;
    conn.signal(Signal {
        key,
        news: News::Stored {
            first: number,
            last: number,
        },
    });
    Ok(true)
}
