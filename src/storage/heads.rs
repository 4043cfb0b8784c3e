//! What is remembered of sessions behind a write, so that the next append need not read them first.
//!
//! A head is never believed: the one statement of an append compares it with the session's row, and writes nothing if
//! that has moved on, be it by another replica. So a head that is lost or old costs time and nothing else. It is
//! remembered only once its write is committed: no two contents of a row share a revision.

use std::sync::{Arc, Mutex, PoisonError};

use hashlink::LruCache;

use super::due::load;
use super::sessions::SessionRow;
use super::{Result, SessionKey, Timestamp};
use crate::domain::auto_compaction::{Load, Standing};
use crate::domain::pairing::{Counters, Tail};

/// Sessions that are remembered.
const REMEMBERED: usize = 4_096;
/// Bytes of a session's policy and end of history; larger ones are not remembered.
const LARGEST: usize = 4_096;
/// What is counted for each call beside its texts.
const EACH: usize = 64;

/// What an append needs to know of a session.
#[derive(Debug, Clone)]
pub struct Head {
    pub(super) revision: i64,
    pub(super) event_seq: i64,
    pub(super) updated_at: Timestamp,
    pub(super) compact_size: i64,
    pub(super) counters: Counters,
    pub(super) tail: Tail,
    pub(super) standing: Standing,
    /// Settings of automatic compaction, as they are stored.
    pub(super) policy: Arc<str>,
    /// Tokens of the summary, without those of what it stands for.
    summary_balance: i64,
    /// It takes appends as it is.
    is_open: bool,
}

impl Head {
    /// What a row tells.
    ///
    /// # Errors
    /// The end of the history is not readable.
    pub fn of(row: &SessionRow) -> Result<Self> {
        Ok(Self {
            revision: row.revision,
            event_seq: row.event_seq,
            updated_at: row.updated_at,
            compact_size: row.compact_size,
            counters: row.counters(),
            tail: row.tail()?,
            standing: row.standing(),
            policy: row.auto_compact.as_str().into(),
            summary_balance: row.summary_balance(),
            is_open: !row.is_closed() && row.turn_until.is_none(),
        })
    }

    /// How large its context is with these running numbers, about: edits of pruning and messages that are
    /// shown again are not looked at.
    pub(super) fn load(&self, counters: &Counters) -> Load {
        load(self.summary_balance, self.compact_size, counters)
    }

    /// The head behind an append that left these, and told of itself by one event.
    pub(super) fn behind(&self, counters: Counters, tail: Tail, due: bool, now: Timestamp) -> Self {
        Self {
            revision: self.revision + 1,
            event_seq: self.event_seq + 1,
            updated_at: now,
            counters,
            tail,
            standing: Standing {
                due: self.standing.due || due,
                ..self.standing
            },
            policy: Arc::clone(&self.policy),
            ..*self
        }
    }

    /// Whether one statement may append to it: nobody waits for anything in the session.
    pub(super) fn is_plain(&self) -> bool {
        self.is_open && self.standing == Standing::default()
    }

    fn is_small(&self) -> bool {
        let tail = &self.tail;
        let calls = tail.calls.iter();
        let calls = calls
            .map(|waits| waits.call.id.len() + waits.call.name.as_ref().map_or(0, String::len));
        let ended = tail.interrupted.iter();
        let ended = ended.map(|ended| ended.call.len() + ended.by.len());
        let by = tail.interrupted_by.as_ref().map_or(0, String::len);
        let texts = calls.chain(ended).map(|text| text + EACH).sum::<usize>();
        self.policy.len() + by + texts <= LARGEST
    }
}

/// The sessions that were written to last.
#[derive(Clone)]
pub struct Heads(Arc<Mutex<LruCache<SessionKey, Arc<Head>>>>);

impl std::fmt::Debug for Heads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Heads")
    }
}

impl Heads {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(LruCache::new(REMEMBERED))))
    }

    /// What is remembered of a session.
    #[must_use]
    pub fn find(&self, key: SessionKey) -> Option<Arc<Head>> {
        let mut heads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heads.get(&key).cloned()
    }

    /// Remembers a head whose write is committed.
    pub fn remember(&self, key: SessionKey, head: Head) {
        if !head.is_plain() || !head.is_small() {
            return;
        }
        let mut heads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heads.insert(key, Arc::new(head));
    }
}
