//! Events: reading those of a session from any point on, and those of a tenant as they happen.
//!
//! A reader holds a position and at most one page. It reads the stored events as fast as its client
//! takes them, so a slow client slows nobody and misses nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use super::error::refused;
use super::hub::{Range, SessionWatch, TenantWatch, WINDOW, Woken};
use super::metrics::{InFlight, StreamKind};
use super::{Caller, Service, ServiceError, key};
use crate::domain::event::{Resync, Start, event_id, parse_event_id};
use crate::domain::ids::session_id;
use crate::storage::{EventRow, SessionKey, StorageError, TenantId, Timestamp, WriteRefusal};

/// Events that a reader holds at most.
const PAGE: i64 = 100;

/// Times of events.
#[derive(Debug, Clone, Copy)]
pub struct EventTimes {
    /// How long a stream is silent at most.
    pub keep_alive: Duration,
    /// How often the database is looked into for what no signal told of.
    pub poll: Duration,
    /// How long events are kept.
    pub retention: Duration,
}

/// An event as it is sent.
#[derive(Debug, Clone)]
pub struct SentEvent {
    /// Its id on the wire.
    pub id: String,
    /// Its session's id on the wire.
    pub session_id: String,
    /// Its type.
    pub kind: String,
    /// When it happened.
    pub created_at: Timestamp,
    /// Its other members, a JSON object.
    pub data: String,
}

/// What a stream sends.
#[derive(Debug, Clone)]
pub enum StreamItem {
    /// An event.
    Event(SentEvent),
    /// A piece of a message that is being written.
    Delta {
        /// The session's id on the wire.
        session_id: String,
        /// When it came.
        created_at: Timestamp,
        /// The piece.
        text: Arc<str>,
    },
    /// Events are missing before what comes next.
    Resync {
        /// Why.
        reason: Resync,
        /// The session's id on the wire; none in a tenant's stream.
        session_id: Option<String>,
        /// Behind which event it goes on; none in a tenant's stream.
        last_event_id: Option<String>,
    },
    /// Nothing happened for a while.
    KeepAlive,
}

impl SentEvent {
    fn of(session: Uuid, row: EventRow) -> Self {
        Self {
            id: event_id(session, row.id),
            session_id: session_id(session),
            kind: row.kind,
            created_at: row.created_at,
            data: row.data,
        }
    }
}

impl Service {
    /// Opens the stream of a session's events, behind the event of this id; without one, with the next.
    ///
    /// # Errors
    /// There is no such session, the server is shutting down, or the database failed.
    pub async fn read_events(
        &self,
        caller: Caller,
        id: &str,
        last_event_id: Option<&str>,
    ) -> Result<SessionEvents, ServiceError> {
        let key = key(caller, id)?;
        self.refuse_while_draining()?;
        let place = self.admit_stream()?;
        let start = match last_event_id.map(|given| parse_event_id(given, key.session)) {
            None => Start::Live,
            Some(Ok(number)) => Start::After(number),
            Some(Err(reason)) => Start::Lost(reason),
        };
        // Before the head is read, so that nothing happens unseen in between.
        let watch = self.inner.hub.watch(key);
        let head = self.database().find_event_head(key).await?;
        let head = head.ok_or_else(|| refused(WriteRefusal::NotFound, id))?;
        let (position, resync) = start.place(head.newest, head.oldest);
        Ok(SessionEvents {
            service: self.clone(),
            key,
            watch,
            position,
            newest: head.newest,
            live_after: head.newest,
            page: VecDeque::new(),
            resync,
            _open: self.inner.metrics.begin_stream(StreamKind::Session),
            _place: place,
        })
    }

    /// Opens the stream of a tenant's events, with those that happen from now on.
    ///
    /// # Errors
    /// The server is shutting down, or the database failed.
    pub async fn follow_events(
        &self,
        caller: Caller,
        reconnected: bool,
    ) -> Result<TenantEvents, ServiceError> {
        self.refuse_while_draining()?;
        let place = self.admit_stream()?;
        let joining = self.inner.hub.joining.lock().await;
        let (watch, is_first) = self.inner.hub.follow(caller.tenant);
        let since = self.now().minus(WINDOW);
        let recent = self.database().find_recent_events(since).await?;
        if is_first {
            self.inner.hub.ready(caller.tenant, &recent);
        }
        drop(joining);
        let own = recent.iter().filter(|row| row.tenant_id == caller.tenant.0);
        Ok(TenantEvents {
            service: self.clone(),
            tenant: caller.tenant,
            watch,
            before: own.map(|row| (row.session_id, row.last)).collect(),
            joined: Instant::now(),
            range: None,
            page: VecDeque::new(),
            resync: reconnected.then_some(Resync::Reconnected),
            _open: self.inner.metrics.begin_stream(StreamKind::Tenant),
            _place: place,
        })
    }

    fn refuse_while_draining(&self) -> Result<(), ServiceError> {
        if self.inner.draining.is_cancelled() {
            return Err(ServiceError::ShuttingDown);
        }
        Ok(())
    }
}

/// A reader of one session.
pub struct SessionEvents {
    service: Service,
    key: SessionKey,
    watch: SessionWatch,
    /// Number of the last event that was handed out, or of the one behind which it goes on.
    position: i64,
    /// Number of the newest event there is known to be.
    newest: i64,
    /// Number of the last event that had happened before it was opened.
    live_after: i64,
    page: VecDeque<EventRow>,
    resync: Option<Resync>,
    _open: InFlight,
    _place: OwnedSemaphorePermit,
}

impl SessionEvents {
    /// What is to be sent next, once there is something. `None`: the session is gone, the server shuts
    /// down, or the database failed; the client comes again with the id of the last event it got.
    pub async fn next(&mut self) -> Option<StreamItem> {
        loop {
            if self.service.inner.draining.is_cancelled() {
                return None;
            }
            if let Some(reason) = self.resync.take() {
                return Some(self.resync_item(reason));
            }
            if let Some(row) = self.page.pop_front() {
                if row.id == self.position + 1 {
                    self.position = row.id;
                    if row.id > self.live_after {
                        self.service.note_lag(StreamKind::Session, row.created_at);
                    }
                    return Some(StreamItem::Event(SentEvent::of(self.key.session, row)));
                }
                // Deleted before they were read: this reader has been slow for days.
                self.skip().await.ok()?;
                continue;
            }
            let known = self.watch.known();
            if known.deleted {
                return None;
            }
            self.newest = self.newest.max(known.last);
            if self.newest > self.position {
                self.turn_page().await.ok()?;
                continue;
            }
            if let Some(item) = self.wait().await? {
                return Some(item);
            }
        }
    }

    /// Waits for news. The inner `None`: there may be some.
    async fn wait(&mut self) -> Option<Option<StreamItem>> {
        let keep_alive = self.service.inner.times.keep_alive;
        tokio::select! {
            woken = self.watch.woken() => match woken {
                Woken::Further => Some(None),
                Woken::Delta(text) => Some(Some(StreamItem::Delta {
                    session_id: session_id(self.key.session),
                    created_at: self.service.now(),
                    text,
                })),
                Woken::Ended => None,
            },
            () = tokio::time::sleep(keep_alive) => Some(Some(StreamItem::KeepAlive)),
            () = self.service.inner.draining.cancelled() => None,
        }
    }

    async fn turn_page(&mut self) -> Result<(), StorageError> {
        let database = self.service.database();
        let page = database.load_events(self.key, self.position, i64::MAX, PAGE);
        self.page = page.await?.into();
        if self.page.is_empty() {
            self.skip().await?;
        }
        Ok(())
    }

    /// Goes on behind the newest event, since those before it are gone; ends if the session is.
    async fn skip(&mut self) -> Result<(), StorageError> {
        let head = self.service.database().find_event_head(self.key).await?;
        let head = head.ok_or(StorageError::Corrupt("the session is gone"))?;
        self.page.clear();
        (self.position, self.newest) = (head.newest, head.newest);
        self.resync = Some(Resync::TooOld);
        Ok(())
    }

    fn resync_item(&self, reason: Resync) -> StreamItem {
        StreamItem::Resync {
            reason,
            session_id: Some(session_id(self.key.session)),
            last_event_id: Some(event_id(self.key.session, self.position)),
        }
    }
}

/// A reader of all sessions of a tenant.
pub struct TenantEvents {
    service: Service,
    tenant: TenantId,
    watch: TenantWatch,
    /// What was there when it joined, since a signal of it may still be on its way.
    before: HashMap<Uuid, i64>,
    joined: Instant,
    /// What of the events that were committed last is not read yet.
    range: Option<Range>,
    page: VecDeque<SentEvent>,
    resync: Option<Resync>,
    _open: InFlight,
    _place: OwnedSemaphorePermit,
}

impl TenantEvents {
    /// What is to be sent next, once there is something. `None`: the server shuts down, or the database
    /// failed.
    pub async fn next(&mut self) -> Option<StreamItem> {
        loop {
            if self.service.inner.draining.is_cancelled() {
                return None;
            }
            if let Some(reason) = self.resync.take() {
                return Some(StreamItem::Resync {
                    reason,
                    session_id: None,
                    last_event_id: None,
                });
            }
            if let Some(event) = self.page.pop_front() {
                self.service.note_lag(StreamKind::Tenant, event.created_at);
                return Some(StreamItem::Event(event));
            }
            if let Some(range) = self.range.take() {
                self.turn_page(range).await.ok()?;
                continue;
            }
            let keep_alive = self.service.inner.times.keep_alive;
            tokio::select! {
                next = self.watch.next() => match next? {
                    Ok(range) => self.range = self.new_part(range),
                    Err(()) => self.resync = Some(Resync::Lagged),
                },
                () = tokio::time::sleep(keep_alive) => return Some(StreamItem::KeepAlive),
                () = self.service.inner.draining.cancelled() => return None,
            }
        }
    }

    /// What of a range happened after the reader had joined.
    fn new_part(&mut self, range: Range) -> Option<Range> {
        if !self.before.is_empty() && self.joined.elapsed() > WINDOW {
            self.before = HashMap::new();
        }
        let before = self.before.get(&range.session);
        let first = before.map_or(range.first, |last| range.first.max(last + 1));
        (first <= range.last).then_some(Range { first, ..range })
    }

    /// Reads a page of a range. It is empty if the session has been deleted meanwhile.
    async fn turn_page(&mut self, range: Range) -> Result<(), StorageError> {
        let key = SessionKey {
            tenant: self.tenant,
            session: range.session,
        };
        let database = self.service.database();
        let rows = database.load_events(key, range.first - 1, range.last, PAGE);
        let rows = rows.await?;
        let read = rows.last().map_or(range.last, |row| row.id);
        if read < range.last {
            self.range = Some(Range {
                first: read + 1,
                ..range
            });
        }
        let sent = rows
            .into_iter()
            .map(|row| SentEvent::of(range.session, row));
        self.page = sent.collect();
        Ok(())
    }
}
