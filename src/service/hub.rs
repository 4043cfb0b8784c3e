//! The hub: who on this replica waits for events of which session, and how they are woken.
//!
//! It holds numbers, never events. A reader of a session has a position and is woken when the session
//! is known to have come further; it reads the stored events itself, page by page, as slowly as it
//! likes. A reader of a tenant is handed ranges of numbers through a bounded queue, which it may fall
//! out of. What is not stored, the pieces of a message that is being written, goes through a bounded
//! queue too.
//!
//! Signals may come late, twice, in the wrong order or not at all. So they are only ever taken as
//! "at least as far as", and what comes by polling is taken the same way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, broadcast, watch};
use uuid::Uuid;

use crate::storage::{News, RecentEvents, SessionKey, Signal, TenantId};

/// Ranges of events that a reader of a tenant may be behind before it misses some.
const TENANT_QUEUE: usize = 1_024;
/// Pieces of a message that a reader may be behind before it misses some.
const DELTA_QUEUE: usize = 256;
/// How far back events are looked for that no signal told of: a transaction that long is no more.
pub(super) const WINDOW: Duration = Duration::from_mins(1);

/// How far a session is known to have come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// Number of its newest event.
    pub last: i64,
    /// Whether it is gone.
    pub deleted: bool,
}

/// Events of a session that were committed: their numbers, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub session: Uuid,
    pub first: i64,
    pub last: i64,
}

/// Wakes readers. One a replica.
#[derive(Default)]
pub struct Hub {
    state: Mutex<State>,
    look: Notify,
    /// Held while a reader of a tenant finds out what was there before it: one after the other, so that
    /// none takes for old what another still waits for.
    pub(super) joining: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<SessionKey, Watched>,
    tenants: HashMap<TenantId, Followed>,
}

struct Watched {
    known: watch::Sender<Known>,
    deltas: broadcast::Sender<Arc<str>>,
}

struct Followed {
    ranges: broadcast::Sender<Range>,
    /// Whether what had happened before is known, so that polling tells only what is new.
    ready: bool,
    /// What was handed out of each session of late.
    recent: HashMap<Uuid, HandedOut>,
}

struct HandedOut {
    /// From this number on all is handed out or was there before.
    first: i64,
    last: i64,
    at: Instant,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the members of a `message.delta`, a JSON object, to those who read the session here. A reader
    /// that is too slow misses pieces, never events.
    pub fn publish_delta(&self, key: SessionKey, text: &str) {
        if let Some(watched) = self.lock().sessions.get(&key) {
            // An error says that nobody reads.
            drop(watched.deltas.send(text.into()));
        }
    }

    /// Has the database looked into soon, because something may have been missed.
    pub(super) fn look(&self) {
        self.look.notify_one();
    }

    /// Waits until it should be looked into the database.
    pub(super) async fn should_look(&self) {
        self.look.notified().await;
    }

    /// Wakes whoever waits for this.
    pub(super) fn apply(&self, signal: Signal) {
        let mut state = self.lock();
        match signal.news {
            News::Stored { first, last } => {
                state.advance(signal.key, last);
                if let Some(followed) = state.tenants.get_mut(&signal.key.tenant) {
                    followed.tell(signal.key.session, first, last);
                }
            }
            News::Deleted => state.delete(signal.key),
        }
    }

    /// The sessions that are read here, by tenant.
    pub(super) fn watched(&self) -> HashMap<TenantId, Vec<Uuid>> {
        let mut watched: HashMap<_, Vec<_>> = HashMap::new();
        for key in self.lock().sessions.keys() {
            watched.entry(key.tenant).or_default().push(key.session);
        }
        watched
    }

    /// Whether a tenant is read here.
    pub(super) fn is_followed(&self) -> bool {
        !self.lock().tenants.is_empty()
    }

    /// What a look into the database found of these sessions: those that are missing are gone.
    pub(super) fn found(&self, tenant: TenantId, asked: &[Uuid], found: &[(Uuid, i64)]) {
        let mut state = self.lock();
        for session in asked {
            let key = SessionKey {
                tenant,
                session: *session,
            };
            match found.iter().find(|(id, _)| id == session) {
                Some((_, last)) => state.advance(key, *last),
                None => state.delete(key),
            }
        }
    }

    /// What a look into the database found of the last [`WINDOW`].
    pub(super) fn found_recent(&self, rows: &[RecentEvents]) {
        let mut state = self.lock();
        for (tenant, followed) in &mut state.tenants {
            let own = rows.iter().filter(|row| row.tenant_id == tenant.0);
            if followed.ready {
                own.for_each(|row| followed.tell_polled(row));
                // Older ones are found by no look any more.
                let young = |_: &Uuid, out: &mut HandedOut| out.at.elapsed() < 2 * WINDOW;
                followed.recent.retain(young);
            }
        }
    }

    /// Begins to read a session.
    pub(super) fn watch(self: &Arc<Self>, key: SessionKey) -> SessionWatch {
        let mut state = self.lock();
        let watched = state.sessions.entry(key).or_insert_with(|| Watched {
            known: watch::Sender::default(),
            deltas: broadcast::Sender::new(DELTA_QUEUE),
        });
        SessionWatch {
            hub: Arc::clone(self),
            key,
            receivers: Some((watched.known.subscribe(), watched.deltas.subscribe())),
        }
    }

    /// Begins to read a tenant. The flag asks for [`Hub::ready`].
    pub(super) fn follow(self: &Arc<Self>, tenant: TenantId) -> (TenantWatch, bool) {
        let mut state = self.lock();
        let followed = state.tenants.entry(tenant).or_insert_with(|| Followed {
            ranges: broadcast::Sender::new(TENANT_QUEUE),
            ready: false,
            recent: HashMap::new(),
        });
        let follow = TenantWatch {
            hub: Arc::clone(self),
            tenant,
            ranges: Some(followed.ranges.subscribe()),
        };
        (follow, !followed.ready)
    }

    /// Tells what had happened when a tenant was begun to be read, which is not handed out.
    pub(super) fn ready(&self, tenant: TenantId, rows: &[RecentEvents]) {
        let mut state = self.lock();
        let Some(followed) = state.tenants.get_mut(&tenant) else {
            return;
        };
        followed.ready = true;
        for row in rows.iter().filter(|row| row.tenant_id == tenant.0) {
            let out = followed.recent.entry(row.session_id);
            let out = out.or_insert_with(|| HandedOut::up_to(row.last));
            (out.first, out.last) = (0, out.last.max(row.last));
        }
    }
}

impl State {
    fn advance(&mut self, key: SessionKey, last: i64) {
        if let Some(watched) = self.sessions.get(&key) {
            watched.known.send_if_modified(|known| {
                let further = last > known.last;
                known.last = known.last.max(last);
                further
            });
        }
    }

    fn delete(&mut self, key: SessionKey) {
        if let Some(watched) = self.sessions.get(&key) {
            watched.known.send_modify(|known| known.deleted = true);
        }
    }
}

impl HandedOut {
    fn up_to(last: i64) -> Self {
        Self {
            first: 0,
            last,
            at: Instant::now(),
        }
    }
}

impl Followed {
    fn send(&self, session: Uuid, first: i64, last: i64) {
        if first <= last {
            let range = Range {
                session,
                first,
                last,
            };
            // An error says that the last reader is just leaving.
            drop(self.ranges.send(range));
        }
    }

    /// Hands out what of a signal was not handed out before.
    fn tell(&mut self, session: Uuid, first: i64, last: i64) {
        let Some(out) = self.recent.get_mut(&session) else {
            let out = HandedOut {
                first,
                ..HandedOut::up_to(last)
            };
            self.recent.insert(session, out);
            self.send(session, first, last);
            return;
        };
        out.at = Instant::now();
        // Events of one session are committed in order: what lies between is there as well.
        let (from, to) = (out.last + 1, last);
        let (late_from, late_to) = (first, last.min(out.first - 1));
        out.last = out.last.max(last);
        out.first = out.first.min(first);
        self.send(session, late_from, late_to);
        self.send(session, from, to);
    }

    /// Hands out what a look found that no signal told of.
    fn tell_polled(&mut self, row: &RecentEvents) {
        match self.recent.get_mut(&row.session_id) {
            None => {
                let out = HandedOut::up_to(row.last);
                self.recent.insert(row.session_id, out);
                self.send(row.session_id, row.first, row.last);
            }
            Some(out) => {
                out.at = Instant::now();
                let from = out.last + 1;
                out.last = out.last.max(row.last);
                self.send(row.session_id, from, row.last);
            }
        }
    }
}

/// A reader's place in the hub. It leaves when it is dropped.
pub(super) struct SessionWatch {
    hub: Arc<Hub>,
    key: SessionKey,
    receivers: Option<(watch::Receiver<Known>, broadcast::Receiver<Arc<str>>)>,
}

/// What woke a reader of a session.
pub(super) enum Woken {
    /// It is known to have come further, or to be gone.
    Further,
    /// A piece of a message.
    Delta(Arc<str>),
    /// The hub is gone.
    Ended,
}

impl SessionWatch {
    /// How far the session is known to have come.
    pub fn known(&mut self) -> Known {
        match &mut self.receivers {
            Some((known, _)) => *known.borrow_and_update(),
            None => Known::default(),
        }
    }

    /// Waits for something that was not seen yet.
    pub async fn woken(&mut self) -> Woken {
        let Some((known, deltas)) = &mut self.receivers else {
            return Woken::Ended;
        };
        loop {
            tokio::select! {
                changed = known.changed() => {
                    return if changed.is_ok() { Woken::Further } else { Woken::Ended };
                }
                delta = deltas.recv() => match delta {
                    Ok(text) => return Woken::Delta(text),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return Woken::Ended,
                }
            }
        }
    }
}

impl Drop for SessionWatch {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        self.receivers = None;
        let watched = state.sessions.get(&self.key);
        if watched.is_some_and(|watched| watched.known.receiver_count() == 0) {
            state.sessions.remove(&self.key);
        }
    }
}

/// A place in the hub of a reader of a tenant. It leaves when it is dropped.
pub(super) struct TenantWatch {
    hub: Arc<Hub>,
    tenant: TenantId,
    ranges: Option<broadcast::Receiver<Range>>,
}

impl TenantWatch {
    /// The next events that were committed; `Err` if some were missed, and it goes on with what comes next.
    /// `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Range, ()>> {
        let ranges = self.ranges.as_mut()?;
        match ranges.recv().await {
            Ok(range) => Some(Ok(range)),
            Err(broadcast::error::RecvError::Lagged(_)) => {
                *ranges = ranges.resubscribe();
                Some(Err(()))
            }
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

impl Drop for TenantWatch {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        self.ranges = None;
        let followed = state.tenants.get(&self.tenant);
        if followed.is_some_and(|followed| followed.ranges.receiver_count() == 0) {
            state.tenants.remove(&self.tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId(1);

    fn key(n: u128) -> SessionKey {
        SessionKey {
            tenant: TENANT,
            session: Uuid::from_u128(n),
        }
    }

    fn stored(n: u128, first: i64, last: i64) -> Signal {
        Signal {
            key: key(n),
            news: News::Stored { first, last },
        }
    }

    fn row(n: u128, first: i64, last: i64) -> RecentEvents {
        RecentEvents {
            tenant_id: TENANT.0,
            session_id: Uuid::from_u128(n),
            first,
            last,
        }
    }

    /// What was handed out so far, as (session, first, last).
    fn taken(watch: &mut TenantWatch) -> Vec<(u128, i64, i64)> {
        let ranges = watch.ranges.as_mut().unwrap();
        std::iter::from_fn(|| ranges.try_recv().ok())
            .map(|range| (range.session.as_u128(), range.first, range.last))
            .collect()
    }

    #[test]
    fn a_session_only_ever_comes_further() {
        let hub = Arc::new(Hub::default());
        let mut watch = hub.watch(key(1));
        for (signal, last) in [
            (stored(1, 3, 4), 4),
            (stored(1, 2, 2), 4),
            (stored(2, 9, 9), 4),
        ] {
            hub.apply(signal);
            assert_eq!(watch.known().last, last);
        }
        hub.found(TENANT, &[Uuid::from_u128(1)], &[(Uuid::from_u128(1), 7)]);
        assert_eq!(watch.known().last, 7);
        assert!(!watch.known().deleted);
        hub.found(TENANT, &[Uuid::from_u128(1)], &[]);
        assert!(watch.known().deleted);
    }

    #[test]
    fn the_last_reader_leaves_nothing_behind() {
        let hub = Arc::new(Hub::default());
        let (one, two) = (hub.watch(key(1)), hub.watch(key(1)));
        let (follow, _) = hub.follow(TENANT);
        drop(one);
        assert_eq!(hub.watched().len(), 1);
        drop(two);
        assert!(hub.watched().is_empty());
        assert!(hub.is_followed());
        drop(follow);
        assert!(!hub.is_followed());
    }

    #[test]
    fn each_event_is_handed_out_once_whatever_tells_of_it() {
        let hub = Arc::new(Hub::default());
        let (mut watch, fresh) = hub.follow(TENANT);
        assert!(fresh, "nobody read the tenant before");
        // Not before it is known what is old.
        hub.found_recent(&[row(1, 1, 5)]);
        assert_eq!(taken(&mut watch), []);
        hub.ready(TENANT, &[row(1, 1, 5)]);
        assert!(!hub.follow(TENANT).1);

        hub.apply(stored(1, 6, 6));
        hub.apply(stored(1, 6, 6));
        hub.found_recent(&[row(1, 1, 6)]);
        assert_eq!(taken(&mut watch), [(1, 6, 6)]);
        // A signal that was lost is made up for by the next, or by a look.
        hub.apply(stored(1, 8, 8));
        assert_eq!(taken(&mut watch), [(1, 7, 8)]);
        hub.found_recent(&[row(1, 2, 10), row(2, 1, 2)]);
        assert_eq!(taken(&mut watch), [(1, 9, 10), (2, 1, 2)]);
        hub.apply(stored(1, 9, 10));
        hub.apply(stored(2, 1, 2));
        assert_eq!(taken(&mut watch), []);
        // Told of in the wrong order, of a session not seen before.
        hub.apply(stored(3, 5, 5));
        hub.apply(stored(3, 4, 4));
        hub.found_recent(&[row(3, 4, 5)]);
        assert_eq!(taken(&mut watch), [(3, 5, 5), (3, 4, 4)]);
    }

    #[tokio::test]
    async fn a_reader_that_falls_out_of_the_queue_is_told_and_goes_on() {
        let hub = Arc::new(Hub::default());
        let (mut watch, _) = hub.follow(TENANT);
        hub.ready(TENANT, &[]);
        for n in 1..=i64::try_from(TENANT_QUEUE).unwrap() + 1 {
            hub.apply(stored(1, n, n));
        }
        assert_eq!(watch.next().await, Some(Err(())));
        hub.apply(stored(2, 1, 1));
        let next = watch.next().await.unwrap().unwrap();
        assert_eq!((next.session, next.first), (Uuid::from_u128(2), 1));
    }

    #[tokio::test]
    async fn a_slow_reader_misses_pieces_never_the_news() {
        let hub = Arc::new(Hub::default());
        let mut watch = hub.watch(key(1));
        for n in 0..=DELTA_QUEUE {
            hub.publish_delta(key(1), &n.to_string());
        }
        let Woken::Delta(first) = watch.woken().await else {
            panic!("a piece was expected");
        };
        assert_eq!(&*first, "1", "the first piece was missed");
        hub.apply(stored(1, 1, 1));
        let mut pieces = 1;
        while let Woken::Delta(_) = watch.woken().await {
            pieces += 1;
        }
        assert!(pieces <= DELTA_QUEUE);
        assert_eq!(watch.known().last, 1);
    }
}
