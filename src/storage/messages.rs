//! Messages: appending them, listing them, finding one.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use futures_util::future::BoxFuture;

use super::due::Marking;
use super::events;
use super::heads::Head;
use super::items;
use super::quick::QuickAppend;
use super::sessions::{Order, SessionRow, WriteRefusal, lock_idle, store_counters};
use super::{
    ByEngine, CHUNKS, Conn, Database, Result, SessionKey, StorageError, Timestamp, Write, chunks,
    insert_texts, on_both, one_more, reading, take_page,
};
use crate::domain::event::Event;
use crate::domain::message::Message;
use crate::domain::pairing::{PairingFault, Placed, Placement, Tail, place};

/// A message with its place, as it is inserted.
pub type NewRow = Placed;

/// Appends messages: all, or none.
#[derive(Debug, Clone)]
pub struct AppendMessages {
    /// To which session.
    pub key: SessionKey,
    /// Each with its id; where the client chose the id, the message says so.
    pub messages: Vec<(String, Message)>,
    /// The `lastSeq` that the client believes in.
    pub expected_last_seq: Option<i64>,
    /// How messages are known that are there already.
    pub again: Again,
    /// What is remembered of the session.
    pub head: Option<Arc<Head>>,
    /// When.
    pub now: Timestamp,
}

/// How messages of a request are known that are there already. Those whose id the client chose always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Not at all.
    No,
    /// By the ids that they are stored under.
    SameIds,
    /// By being the newest of the session, all of them, stored in one append: whoever sends them never heard what came
    /// of it, so has sent nothing else since.
    IfNewest {
        /// Not before this.
        since: Timestamp,
    },
}

/// Where a message is stored.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
#[expect(missing_docs, reason = "the columns are described in the migration")]
pub struct StoredRef {
    pub id: String,
    pub seq: i64,
    pub position: Option<i64>,
    pub length: i64,
    pub created_at: Timestamp,
    pub usage: Option<String>,
    pub incomplete: bool,
    body_digest: Vec<u8>,
}

/// What an append did.
#[derive(Debug)]
pub struct AppendOutcome {
    /// One a message of the request, in its order; those that were there already included.
    pub stored: Vec<StoredRef>,
    /// The session's highest `seq` now.
    pub last_seq: i64,
    /// The pointer, which decides whether a message that was there already is summarised.
    pub compact_size: i64,
    /// It made the session due for an automatic compaction.
    pub made_due: bool,
    /// The end of the history now.
    pub tail: Tail,
    /// What to remember of the session, if anything was stored.
    pub head: Option<Head>,
}

/// Why an append is refused; nothing of it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendRefusal {
    /// The session takes no writes.
    Session(WriteRefusal),
    /// The history has moved on.
    Sequence {
        /// The session's `lastSeq`.
        last_seq: i64,
    },
    /// A tool result fits nowhere.
    Pairing {
        /// Which message of the request.
        index: usize,
        /// Why.
        fault: PairingFault,
    },
    /// Another message has that id.
    IdTaken {
        /// Which message of the request.
        index: usize,
    },
}

impl Write for AppendMessages {
    type Output = Result<AppendOutcome, AppendRefusal>;

    fn quick(&mut self) -> Result<Option<QuickAppend>> {
        let head = self.head.take();
        head.map_or(Ok(None), |head| self.plan_quick(&head))
    }

    fn answer_quick(&self, done: &QuickAppend) -> Option<Self::Output> {
        Some(Ok(self.outcome_of(done)))
    }

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            if let Some(head) = &self.head
                && let Some(quick) = self.plan_quick(head)?
                && quick.run(conn).await?
            {
                return Ok(Ok(self.outcome_of(&quick)));
            }
            match lock_idle(conn, self.key, self.now).await? {
                Ok(session) => self.append(conn, &session).await,
                Err(refusal) => Ok(Err(AppendRefusal::Session(refusal))),
            }
        })
    }
}

/// What an append writes.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) placement: Placement,
    pub(super) marking: Marking,
    /// The session behind it.
    pub(super) head: Head,
}

impl Step {
    /// Places messages behind a head; `Err`: which of them has no place, and why.
    pub(super) fn plan(
        head: &Head,
        messages: Vec<(String, Message)>,
        now: Timestamp,
    ) -> Result<Result<Self, (usize, PairingFault)>> {
        let placement = match place(head.counters, head.tail.clone(), messages) {
            Ok(placement) => placement,
            Err(fault) => return Ok(Err(fault)),
        };
        let load = || head.load(&placement.counters);
        let marking = Marking::of(&head.policy, head.standing, load, now)?;
        let due = marking.due_at.is_some();
        let head = head.behind(placement.counters, placement.tail.clone(), due, now);
        Ok(Ok(Self {
            placement,
            marking,
            head,
        }))
    }
}

impl AppendMessages {
    /// The append as one statement behind a head. `None`: a message may be there already, or it would be refused, which
    /// is for the session's row to say.
    fn plan_quick(&self, head: &Arc<Head>) -> Result<Option<QuickAppend>> {
        let expected = self.expected_last_seq;
        let is_expected = expected.is_none_or(|expected| expected == head.counters.last_seq);
        let named = |(_, message): &(String, Message)| message.annotations.id.is_some();
        let is_new = self.again == Again::No && !self.messages.iter().any(named);
        let fits = QuickAppend::fits(self.messages.len());
        if !(head.is_plain() && is_expected && is_new && fits) {
            return Ok(None);
        }
        let Ok(step) = Step::plan(head, self.messages.clone(), self.now)? else {
            return Ok(None);
        };
        QuickAppend::new(self.key, Arc::clone(head), step, self.now).map(Some)
    }

    fn outcome_of(&self, done: &QuickAppend) -> AppendOutcome {
        let step = &done.step;
        let rows = step.placement.rows.iter();
        AppendOutcome {
            stored: rows.map(|row| StoredRef::new(row, self.now)).collect(),
            last_seq: step.placement.counters.last_seq,
            compact_size: step.head.compact_size,
            made_due: step.marking.due_at.is_some(),
            tail: step.placement.tail.clone(),
            head: Some(step.head.clone()),
        }
    }

    /// Appends to a session whose row is held. A refusal is decided before anything is written.
    pub(super) async fn append(
        &self,
        conn: &mut Conn<'_>,
        session: &SessionRow,
    ) -> Result<Result<AppendOutcome, AppendRefusal>> {
        let known = self.find_known(conn, session).await?;
        let mut fresh = Vec::with_capacity(self.messages.len());
        // Index in the request of each message that is not there yet.
        let mut origins = Vec::with_capacity(self.messages.len());
        for (index, (id, message)) in self.messages.iter().enumerate() {
            match known.get(id) {
                Some(stored) if stored.body_digest == message.body_digest => {}
                Some(_) if items::is_same(conn, self.key, id, message).await? => {}
                Some(_) => return Ok(Err(AppendRefusal::IdTaken { index })),
                None => {
                    fresh.push((id.clone(), message.clone()));
                    origins.push(index);
                }
            }
        }
        let before = Head::of(session)?;
        let mut outcome = AppendOutcome {
            stored: Vec::new(),
            last_seq: session.last_seq,
            compact_size: session.compact_size,
            made_due: false,
            tail: before.tail.clone(),
            head: None,
        };
        let mut stored = known;
        if !fresh.is_empty() {
            let last_seq = session.last_seq;
            if self
                .expected_last_seq
                .is_some_and(|expected| expected != last_seq)
            {
                return Ok(Err(AppendRefusal::Sequence { last_seq }));
            }
            let step = match Step::plan(&before, fresh, self.now)? {
                Ok(step) => step,
                Err((at, fault)) => {
                    let index = origins.get(at).copied().unwrap_or(at);
                    return Ok(Err(AppendRefusal::Pairing { index, fault }));
                }
            };
            self.store(conn, session, &step).await?;
            outcome.made_due = step.marking.due_at.is_some();
            outcome.last_seq = step.placement.counters.last_seq;
            outcome.tail = step.placement.tail;
            outcome.head = Some(step.head);
            for row in step.placement.rows {
                stored.insert(row.id.clone(), StoredRef::new(&row, self.now));
            }
        }
        let in_order = self.messages.iter().map(|(id, _)| stored.get(id).cloned());
        outcome.stored = in_order
            .collect::<Option<_>>()
            .ok_or(StorageError::Corrupt("an appended message has no row"))?;
        Ok(Ok(outcome))
    }

    async fn store(&self, conn: &mut Conn<'_>, session: &SessionRow, step: &Step) -> Result<()> {
        let placement = &step.placement;
        insert(conn, self.key, &placement.rows, self.now).await?;
        store_counters(
            conn,
            self.key,
            &placement.counters,
            &placement.tail,
            1,
            step.marking,
            self.now,
        )
        .await?;
        // The session's row, which this write holds, says what number is next.
        if let Some(event) = appended(&placement.rows) {
            let number = session.event_seq + 1;
            events::insert(conn, self.key, number, &[event], self.now).await?;
        }
        Ok(())
    }

    /// The messages of this request that were stored before, by id. Unless they are sent again, only a client's ids can be.
    async fn find_known(
        &self,
        conn: &mut Conn<'_>,
        session: &SessionRow,
    ) -> Result<HashMap<String, StoredRef>> {
        if let Again::IfNewest { since } = self.again
            && let Some(newest) = self.find_newest(conn, session, since).await?
        {
            let ids = self.messages.iter().map(|(id, _)| id.clone());
            return Ok(ids.zip(newest).collect());
        }
        let mut known = HashMap::new();
        for (id, message) in &self.messages {
            if message.annotations.id.is_none() && self.again != Again::SameIds {
                continue;
            }
            let stored: Option<StoredRef> = on_both!(conn, c => sqlx::query_as(
                "SELECT id, seq, position, length, created_at, usage, incomplete, body_digest FROM messages \
                 WHERE tenant_id = $1 AND session_id = $2 AND id = $3"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(id)
            .fetch_optional(c)
            .await)?;
            known.extend(stored.map(|stored| (id.clone(), stored)));
        }
        Ok(known)
    }

    /// The newest messages of the session, if they are those of this request, and of one append since then.
    async fn find_newest(
        &self,
        conn: &mut Conn<'_>,
        session: &SessionRow,
        since: Timestamp,
    ) -> Result<Option<Vec<StoredRef>>> {
        let count = i64::try_from(self.messages.len()).unwrap_or(i64::MAX);
        let found: Vec<StoredRef> = on_both!(conn, c => sqlx::query_as(
            "SELECT id, seq, position, length, created_at, usage, incomplete, body_digest FROM messages \
             WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 ORDER BY seq"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(session.last_seq.saturating_sub(count))
        .fetch_all(c)
        .await)?;
        let stored_at = found.first().map(|first| first.created_at);
        let is_one_append = stored_at.is_some_and(|at| at >= since)
            && found.iter().all(|row| Some(row.created_at) == stored_at);
        let is_this = found.len() == self.messages.len()
            && found
                .iter()
                .zip(&self.messages)
                .all(|(row, (_, message))| row.body_digest == message.body_digest);
        Ok(Some(found).filter(|_| is_one_append && is_this))
    }
}

impl StoredRef {
    /// What a client is told of a row that was just placed.
    #[must_use]
    pub fn new(row: &Placed, now: Timestamp) -> Self {
        Self {
            id: row.id.clone(),
            seq: row.seq,
            position: row.position,
            length: units(row),
            created_at: now,
            usage: usage_text(&row.message),
            incomplete: row.message.annotations.incomplete,
            body_digest: row.message.body_digest.to_vec(),
        }
    }
}

pub(super) fn units(row: &Placed) -> i64 {
    i64::try_from(row.message.size.units).unwrap_or(i64::MAX)
}

pub(super) fn tokens(row: &Placed) -> i64 {
    i64::try_from(row.message.tokens).unwrap_or(i64::MAX)
}

/// What the provider said of a message's call, as it is stored.
pub(super) fn usage_text(message: &Message) -> Option<String> {
    let usage = message.annotations.usage.as_ref();
    usage.map(|usage| usage.get().to_owned())
}

/// The calls of a message as they are stored; `None` without any.
pub(super) fn calls_text(message: &Message) -> Result<Option<String>> {
    if message.calls.is_empty() {
        return Ok(None);
    }
    serde_json::to_string(&message.calls)
        .map(Some)
        .map_err(|_| StorageError::Corrupt("messages.calls"))
}

/// Values that differ from row to row.
pub(super) const ROW_VALUES: usize = 21;

/// The columns of a row that is appended: those that are the same in every row, then the others.
macro_rules! appended_columns {
    () => {
        "tenant_id, session_id, created_at, seq, position, id, role, starts_turn, starts_group, incomplete, length, \
         tokens, length_before, tokens_before, bytes_before, call_index, tool_name, body_digest, content_digest, \
         calls, usage, fill, item, body"
    };
}
pub(super) use appended_columns;

static INSERTS: LazyLock<ByEngine<[String; CHUNKS.len()]>> = LazyLock::new(|| {
    insert_texts(
        concat!("INSERT INTO messages (", appended_columns!(), ") VALUES "),
        3,
        ROW_VALUES,
    )
});

/// What is told of rows that are appended; nothing without any.
pub(super) fn appended(rows: &[Placed]) -> Option<Event> {
    let (first, last) = (rows.first()?, rows.last()?);
    Some(Event::MessageAppended {
        first_seq: first.seq,
        last_seq: last.seq,
        count: i64::try_from(rows.len()).unwrap_or(i64::MAX),
    })
}

/// Inserts rows that were placed.
pub(super) async fn insert(
    conn: &mut Conn<'_>,
    key: SessionKey,
    rows: &[Placed],
    now: Timestamp,
) -> Result<()> {
    for (chunk, text) in chunks(rows, INSERTS.of(conn)) {
        insert_chunk(conn, key, chunk, now, text).await?;
    }
    Ok(())
}

/// Binds the values of a row that differ from row to row.
macro_rules! bind_row {
    ($query:expr, $row:expr) => {{
        let row: &crate::domain::pairing::Placed = $row;
        let calls = $crate::storage::messages::calls_text(&row.message)?;
        $query
            .bind(row.seq)
            .bind(row.position)
            .bind(&row.id)
            .bind(row.message.role.as_str())
            .bind(row.starts_turn)
            .bind(row.starts_group)
            .bind(row.message.annotations.incomplete)
            .bind($crate::storage::messages::units(row))
            .bind($crate::storage::messages::tokens(row))
            .bind(row.before.length)
            .bind(row.before.tokens)
            .bind(row.before.bytes)
            .bind(row.call_index)
            .bind($crate::storage::spell(row.tool_name.as_deref()))
            .bind(row.message.body_digest.to_vec())
            .bind(row.message.content_digest.to_vec())
            .bind(calls)
            .bind($crate::storage::messages::usage_text(&row.message))
            .bind(&row.fill)
            .bind(&row.message.item)
            .bind(&row.message.body)
    }};
}
pub(super) use bind_row;

async fn insert_chunk(
    conn: &mut Conn<'_>,
    key: SessionKey,
    rows: &[Placed],
    now: Timestamp,
    text: &'static str,
) -> Result<()> {
    on_both!(conn, c => {
        let mut query = sqlx::query(text);
        for row in rows {
            query = bind_row!(query, row);
        }
        query
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(now)
            .execute(c)
            .await
            .map(drop)
    })?;
    Ok(())
}

/// A message as it is listed.
#[derive(Debug, Clone, sqlx::FromRow)]
#[expect(
    missing_docs,
    clippy::struct_excessive_bools,
    reason = "the columns, which are described in the migration"
)]
pub struct MessageRow {
    pub id: String,
    pub seq: i64,
    pub position: Option<i64>,
    pub length: i64,
    pub erased: bool,
    /// Whether the plan shows it otherwise than it is stored.
    pub elided: bool,
    pub incomplete: bool,
    pub usage: Option<String>,
    pub created_at: Timestamp,
    /// Whether it came as an item.
    pub is_item: bool,
    /// The text as it came; of what was erased, what is left.
    pub body: String,
}

/// The columns of a [`MessageRow`] but `elided`.
macro_rules! listed {
    () => {
        "id, seq, position, length, erased, incomplete, usage, created_at, item IS NOT NULL AS is_item, \
         coalesce(nullif(item, ''), nullif(body, ''), '{\"role\":\"assistant\",\"content\":\"\"}') AS body"
    };
}
pub(super) use listed;

/// Which messages a list shows.
#[derive(Debug, Clone)]
pub struct MessageFilter {
    /// Only those with a larger `seq`.
    pub after_seq: i64,
    /// Only those with a smaller `seq`.
    pub before_seq: i64,
    /// Only this role.
    pub role: Option<&'static str>,
    /// Which way.
    pub order: Order,
}

macro_rules! list {
    ($where:literal, $order:literal) => {
        concat!(
            "SELECT ",
            listed!(),
            ", EXISTS (SELECT 1 FROM elisions WHERE elisions.tenant_id = $1 AND elisions.session_id = $2 \
             AND elisions.version = $7 AND elisions.seq = messages.seq) AS elided FROM messages \
             WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 AND seq < $4 ",
            $where,
            " ORDER BY seq ",
            $order,
            " LIMIT $6"
        )
    };
}

impl Database {
    /// Messages of a session under the plan of a version, at most `limit`; the flag says whether more follow.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn list_messages(
        &self,
        key: SessionKey,
        filter: &MessageFilter,
        version: i64,
        limit: usize,
    ) -> Result<(Vec<MessageRow>, bool)> {
        // Instructions are few and have an index of their own; other roles are found on the way.
        let instruction = matches!(filter.role, Some("system" | "developer"));
        let text = match (instruction, filter.order) {
            (true, Order::Asc) => list!("AND position IS NULL AND role = $5", "ASC"),
            (true, Order::Desc) => list!("AND position IS NULL AND role = $5", "DESC"),
            (false, Order::Asc) => list!("AND ($5 IS NULL OR role = $5)", "ASC"),
            (false, Order::Desc) => list!("AND ($5 IS NULL OR role = $5)", "DESC"),
        };
        reading!(self, pool => {
            let found = sqlx::query_as(text)
                .bind(key.tenant.0)
                .bind(key.session)
                .bind(filter.after_seq)
                .bind(filter.before_seq)
                .bind(filter.role)
                .bind(one_more(limit))
                .bind(version)
                .fetch(pool);
            take_page(found, limit, |row: &MessageRow| row.body.len()).await
        })
    }

    /// One message of a session under the plan of a version, if it is there.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_message(
        &self,
        key: SessionKey,
        id: &str,
        version: i64,
    ) -> Result<Option<MessageRow>> {
        Ok(reading!(self, pool => sqlx::query_as(concat!(
            "SELECT ", listed!(), ", EXISTS (SELECT 1 FROM elisions WHERE elisions.tenant_id = $1 AND elisions.session_id = $2 \
             AND elisions.version = $4 AND elisions.seq = messages.seq) AS elided FROM messages \
             WHERE tenant_id = $1 AND session_id = $2 AND id = $3"
        ))
        .bind(key.tenant.0)
        .bind(key.session)
        .bind(id)
        .bind(version)
        .fetch_optional(pool)
        .await)?)
    }
}
