//! Connections at hand.
//!
//! The driver's pool opens connections, looks after their age, and mends those that somebody left in the middle of
//! something; for that it asks each whether it is still there when it is given back, which costs a round trip (on
//! SQLite: two changes of threads) a request. So what was used to the end is not given back to it at once: it is kept
//! at hand for the next, the last one first, preferably by the runtime that its socket belongs to.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Connection, Database as Engine};
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// How long a connection that may be gone is not used before it is asked whether it is still there.
pub(super) const IDLE: Duration = Duration::from_secs(1);
/// How long an unused one is kept at hand; the driver's pool has it then, and closes it in the end.
const UNUSED: Duration = Duration::from_secs(30);
/// How long one is kept from the driver's pool, which looks after its age.
const KEPT: Duration = Duration::from_mins(5);

/// Connections of which so many are in use at most. Cheap to clone.
pub struct Connections<D: Engine>(Arc<Shared<D>>);

struct Shared<D: Engine> {
    pool: sqlx::Pool<D>,
    most: u32,
    patience: Duration,
    /// Whether one may be gone without our doing.
    may_break: bool,
    places: Arc<Semaphore>,
    hand: Mutex<Vec<AtHand<D>>>,
    /// Something was put at hand.
    put: Notify,
}

/// One that nobody uses.
struct AtHand<D: Engine> {
    conn: PoolConnection<D>,
    home: Option<Id>,
    /// Since when it is kept from the driver's pool.
    taken: Instant,
    /// Since when it is not used.
    since: Instant,
}

/// A connection that is in use. Dropped, it goes to the driver's pool, which mends what was left undone.
pub struct InUse<D: Engine> {
    conn: PoolConnection<D>,
    home: Option<Id>,
    taken: Instant,
    shared: Arc<Shared<D>>,
    _place: OwnedSemaphorePermit,
}

impl<D: Engine> Clone for Connections<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

fn here() -> Option<Id> {
    Handle::try_current().ok().map(|handle| handle.id())
}

impl<D: Engine> Connections<D> {
    /// Hands out those of a pool of the driver's. `may_break`: they reach a server.
    pub(super) fn new(pool: sqlx::Pool<D>, may_break: bool) -> Self {
        let most = pool.options().get_max_connections();
        let places = usize::try_from(most).unwrap_or(Semaphore::MAX_PERMITS);
        let shared = Arc::new(Shared {
            most,
            patience: pool.options().get_acquire_timeout(),
            pool,
            may_break,
            places: Arc::new(Semaphore::new(places)),
            hand: Mutex::new(Vec::new()),
            put: Notify::new(),
        });
        tokio::spawn(give_unused_back(Arc::downgrade(&shared)));
        Self(shared)
    }

    /// Takes one.
    ///
    /// # Errors
    /// None came free in time, or none can be opened.
    pub(super) async fn acquire(&self) -> Result<InUse<D>, sqlx::Error> {
        tokio::time::timeout(self.0.patience, self.wait())
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    async fn wait(&self) -> Result<InUse<D>, sqlx::Error> {
        let place = Arc::clone(&self.0.places).acquire_owned().await;
        let place = place.map_err(|_| sqlx::Error::PoolClosed)?;
        let at_hand = loop {
            if let Some(at_hand) = self.0.take() {
                match self.ask(at_hand).await {
                    Some(at_hand) => break at_hand,
                    None => continue,
                }
            }
            // Only where no more can be opened: opening one is not given up because another is put at hand meanwhile.
            let is_full = self.0.pool.size() >= self.0.most;
            tokio::select! {
                biased;
                conn = self.0.pool.acquire() => {
                    let now = Instant::now();
                    break AtHand { conn: conn?, home: here(), taken: now, since: now };
                }
                // One whose user went away has no place any more, but may keep the driver's pool waiting.
                () = self.0.put.notified(), if is_full => {}
            }
        };
        Ok(InUse {
            conn: at_hand.conn,
            home: at_hand.home,
            taken: at_hand.taken,
            shared: Arc::clone(&self.0),
            _place: place,
        })
    }

    /// Asks a connection that may be gone whether it is still there; `None` if it is not.
    async fn ask(&self, mut at_hand: AtHand<D>) -> Option<AtHand<D>> {
        if self.0.may_break && at_hand.since.elapsed() >= IDLE && at_hand.conn.ping().await.is_err()
        {
            // Nothing to say good-bye to.
            drop(at_hand.conn.detach());
            return None;
        }
        Some(at_hand)
    }

    /// Those that are open, and those of them that nobody uses.
    pub(super) fn count(&self) -> (u32, u32) {
        let open = self.0.pool.size();
        let idle = self.0.pool.num_idle() + self.0.lock().len();
        (open, u32::try_from(idle).unwrap_or(open).min(open))
    }

    /// As many as there may be.
    pub(super) fn most(&self) -> u32 {
        self.0.most
    }

    /// Closes them, once those in use are given back.
    pub(super) async fn close(&self) {
        self.0.places.close();
        let at_hand = std::mem::take(&mut *self.0.lock());
        for AtHand { conn, .. } in at_hand {
            // How it ended changes nothing any more.
            drop(conn.close().await);
        }
        self.0.pool.close().await;
    }
}

impl<D: Engine> Shared<D> {
    /// The one that was used last of those that belong here, else of all.
    fn take(&self) -> Option<AtHand<D>> {
        let here = here();
        let mut hand = self.lock();
        let near = hand.iter().rposition(|at_hand| at_hand.home == here);
        match near {
            Some(index) => Some(hand.remove(index)),
            None => hand.pop(),
        }
    }

    fn put(&self, at_hand: AtHand<D>) {
        let mut hand = self.lock();
        // Looked at under the lock: what is put behind the end would be closed by nobody.
        if !self.places.is_closed() {
            hand.push(at_hand);
            self.put.notify_one();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<AtHand<D>>> {
        self.hand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the driver's pool what is not used any more.
async fn give_unused_back<D: Engine>(shared: Weak<Shared<D>>) {
    loop {
        tokio::time::sleep(UNUSED).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if shared.places.is_closed() {
            return;
        }
        let is_unused = |at_hand: &mut AtHand<D>| at_hand.since.elapsed() >= UNUSED;
        let unused: Vec<_> = shared.lock().extract_if(.., is_unused).collect();
        // Dropped here, not under the lock.
        drop(unused);
    }
}

impl<D: Engine> Drop for Shared<D> {
    fn drop(&mut self) {
        let hand = self.hand.get_mut().unwrap_or_else(PoisonError::into_inner);
        for AtHand { conn, .. } in hand.drain(..) {
            // There may be no runtime any more in which the driver could say good-bye.
            drop(conn.detach());
        }
    }
}

impl<D: Engine> InUse<D> {
    /// Has it closed instead of given back: a transaction is begun in it that may not be ended.
    pub(super) fn close_when_dropped(&mut self) {
        self.conn.close_on_drop();
    }

    /// Keeps it at hand for the next: whatever it was asked it has answered.
    pub(super) fn give_back(self) {
        if self.taken.elapsed() < KEPT {
            self.shared.put(AtHand {
                conn: self.conn,
                home: self.home,
                taken: self.taken,
                since: Instant::now(),
            });
        }
    }
}

impl<D: Engine> Deref for InUse<D> {
    type Target = D::Connection;

    fn deref(&self) -> &Self::Target {
        &self.conn
    }
}

impl<D: Engine> DerefMut for InUse<D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.conn
    }
}
