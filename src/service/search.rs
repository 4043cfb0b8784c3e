//! Searching a session's history.
//!
//! Nothing is indexed when messages are appended. A search first brings the index of its session up to
//! date, in writes that are small enough not to hold up others. What that takes beyond a bound goes on
//! behind the answer, which says how far the index reached.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use super::error::refused;
use super::{Caller, MessageState, Service, ServiceError, key};
use crate::domain::search::{SearchQuery, chunks, fields};
use crate::storage::{FoundRow, IndexChunk, IndexMessages, IndexState, SessionKey, WriteRefusal};

/// How long a search waits for its index.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of terms that one write stores: some 50 ms of work on SQLite.
const WRITE_BYTES: usize = 256 << 10;
/// Chunks that one write stores.
const WRITE_CHUNKS: usize = 200;

/// What is looked for.
#[derive(Debug)]
pub struct SearchRequest {
    /// The words.
    pub query: SearchQuery,
    /// Only messages with a smaller `seq`.
    pub before_seq: i64,
    /// How many at most.
    pub limit: usize,
}

/// A message that was found.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the API's contract describes the members")]
pub struct Hit {
    pub message_id: String,
    pub seq: i64,
    pub position: Option<i64>,
    pub role: String,
    pub state: MessageState,
    pub snippet: String,
}

/// What was found.
#[derive(Debug)]
pub struct SearchPage {
    /// Newest first.
    pub hits: Vec<Hit>,
    /// Pass it as `before_seq` to go on.
    pub next: Option<i64>,
    /// How far the index reached.
    pub indexed_seq: i64,
    /// How far the history did.
    pub last_seq: i64,
}

/// The sessions that are being indexed in this process. Each entry ends when its task does.
pub(super) type Indexing = Arc<Mutex<HashMap<(i64, Uuid), watch::Receiver<()>>>>;

/// Takes a session off the list when its task ends, however it does.
struct Entry {
    list: Indexing,
    key: SessionKey,
    _done: watch::Sender<()>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.remove(&name(self.key));
    }
}

fn name(key: SessionKey) -> (i64, Uuid) {
    (key.tenant.0, key.session)
}

impl Service {
    /// Messages of a session in which words are found, newest first.
    ///
    /// # Errors
    /// There is no such session, or the database failed.
    pub async fn search(
        &self,
        caller: Caller,
        id: &str,
        request: SearchRequest,
    ) -> Result<SearchPage, ServiceError> {
        let key = key(caller, id)?;
        let not_found = || refused(WriteRefusal::NotFound, id);
        let state = self.catch_up(key).await?.ok_or_else(not_found)?;
        let head = self.load_head(key, id).await?;
        let SearchRequest {
            query,
            before_seq,
            limit,
        } = request;
        let (rows, more) = self
            .database()
            .search_messages(key, &query, before_seq, head.compaction_version, limit)
            .await?;
        let next = rows.last().map(|row| row.seq).filter(|_| more);
        let compact_size = head.compact_size;
        // Finding the places again is work for megabytes of text; it must not hold up the tasks beside it.
        let hits = tokio::task::spawn_blocking(move || show(rows, &query, compact_size))
            .await
            .map_err(|_| ServiceError::Internal("hits could not be shown"))?;
        Ok(SearchPage {
            hits,
            next,
            indexed_seq: state.indexed_seq,
            last_seq: state.last_seq,
        })
    }

    /// Waits until the index of a session reaches the end of its history, but not for long. Gives how far it
    /// does; `None` if there is no such session.
    async fn catch_up(&self, key: SessionKey) -> Result<Option<IndexState>, ServiceError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let Some(state) = self.database().find_index_state(key).await? else {
                return Ok(None);
            };
            let is_late = Instant::now() >= deadline || self.inner.draining.is_cancelled();
            if state.indexed_seq >= state.last_seq || is_late {
                return Ok(Some(state));
            }
            let mut done = self.start_indexing(key);
            // The sender says nothing: it goes away with its task.
            drop(tokio::time::timeout_at(deadline, done.changed()).await);
        }
    }

    /// Begins to index a session, unless this process is at it already; gives what ends when that does.
    fn start_indexing(&self, key: SessionKey) -> watch::Receiver<()> {
        let indexing = &self.inner.indexing;
        let mut list = indexing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(done) = list.get(&name(key)) {
            return done.clone();
        }
        let (sender, done) = watch::channel(());
        list.insert(name(key), done.clone());
        drop(list);
        let entry = Entry {
            list: Arc::clone(indexing),
            key,
            _done: sender,
        };
        let service = self.clone();
        let run = async move {
            if let Err(error) = service.index(key).await {
                tracing::warn!(%error, "a session could not be indexed; the next search tries again");
                // Whoever waits asks again at once: not too often.
                tokio::time::sleep(RETRY).await;
            }
            drop(entry);
        };
        self.inner.runtime.spawn(self.inner.tasks.track_future(run));
        done
    }

    /// Indexes a session up to the end of its history.
    async fn index(&self, key: SessionKey) -> Result<(), ServiceError> {
        let database = self.database();
        while let Some(state) = database.find_index_state(key).await? {
            if state.indexed_seq >= state.last_seq || self.inner.draining.is_cancelled() {
                break;
            }
            let messages = database.load_unindexed(key, state.indexed_seq).await?;
            // Behind the last message there may be places of messages that are gone.
            let end = messages.last().map_or(state.last_seq, |last| last.seq);
            let bodies = messages.into_iter();
            let bodies = bodies.filter_map(|message| Some((message.seq, message.body?)));
            let chunks = index_chunks(bodies.collect()).await?;
            self.store(key, state, chunks, end).await?;
        }
        Ok(())
    }

    /// Stores chunks in several writes. The index reaches over a message once all of it is stored. Ends early
    /// if the history was rewritten meanwhile, or somebody else indexes it, too.
    async fn store(
        &self,
        key: SessionKey,
        mut before: IndexState,
        chunks: Vec<IndexChunk>,
        end: i64,
    ) -> Result<(), ServiceError> {
        let mut rest = chunks.into_iter().peekable();
        loop {
            let mut taken = Vec::new();
            let mut bytes = 0;
            while taken.len() < WRITE_CHUNKS
                && let Some(chunk) =
                    rest.next_if(|chunk| taken.is_empty() || bytes + chunk.bytes() <= WRITE_BYTES)
            {
                bytes += chunk.bytes();
                taken.push(chunk);
            }
            let indexed_seq = rest.peek().map_or(end, |next| next.seq() - 1);
            let write = IndexMessages {
                key,
                before,
                chunks: taken,
                indexed_seq,
            };
            if !self.database().write(write).await? || rest.peek().is_none() {
                return Ok(());
            }
            before.indexed_seq = indexed_seq;
        }
    }
}

/// How long a session that could not be indexed is left alone.
const RETRY: Duration = Duration::from_millis(500);

/// Cuts bodies into chunks, each with the `seq` of its message.
pub(super) async fn index_chunks(
    bodies: Vec<(i64, String)>,
) -> Result<Vec<IndexChunk>, ServiceError> {
    let cut = |(seq, body): (i64, String)| IndexChunk::of(seq, chunks(&fields(&body)));
    tokio::task::spawn_blocking(move || bodies.into_iter().flat_map(cut).collect())
        .await
        .map_err(|_| ServiceError::Internal("messages could not be cut into terms"))
}

/// What is told of the rows that were found. One whose text does not have the words is left out.
fn show(rows: Vec<FoundRow>, query: &SearchQuery, compact_size: i64) -> Vec<Hit> {
    let hit = |row: FoundRow| {
        let snippet = query.snippet(&row.body).filter(|_| !row.erased)?;
        Some(Hit {
            state: MessageState::of(row.erased, row.elided, row.position, compact_size),
            message_id: row.id,
            seq: row.seq,
            position: row.position,
            role: row.role,
            snippet,
        })
    };
    rows.into_iter().filter_map(hit).collect()
}
