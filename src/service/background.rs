//! What a replica does without being asked: it passes signals on, looks into the database for what no
//! signal told of, ends the leases of dead processes, and deletes old events. Automatic compactions and
//! the deletion of old sessions, which are begun here as well, have modules of their own.
//!
//! Every replica does all of it. Nothing here needs to be the only one: a lease is ended and an event
//! deleted by whoever comes first.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use uuid::Uuid;

use super::Service;
use super::hub::WINDOW;
use crate::storage::{
    DeleteOldAnswers, DeleteOldEvents, EndDeadTurn, EndExpired, ListenUrl, Listener, MOST_SESSIONS,
    News, SessionKey, Signal, StorageError, TenantId,
};

/// How often leases are looked at that have run out.
const SWEEP: Duration = Duration::from_secs(2);
/// Leases that are ended at once.
const SWEPT: i64 = 100;
/// How often old events and answers are deleted, and how many at once.
const TIDY: Duration = Duration::from_hours(1);
const TIDIED: i64 = 500;
/// How often other replicas are told at most.
const NOTIFY: Duration = Duration::from_millis(20);
/// The longest notification that PostgreSQL takes is 7,999 bytes.
const LONGEST_NOTIFICATION: usize = 7_999;
/// Says that there is more to tell than fits.
const LOOK: &str = "look";
/// How often it is looked at most when that is said.
const LOOKS: Duration = Duration::from_millis(200);
/// Waits between tries to listen.
const FIRST_RETRY: Duration = Duration::from_millis(250);
const LAST_RETRY: Duration = Duration::from_secs(30);

impl Service {
    /// Begins with all of it, on the runtime that was passed in. `listen` is where other replicas are heard.
    pub fn start(&self, listen: Option<ListenUrl>) {
        // What this process commits wakes its own readers at once.
        let hub = Arc::clone(&self.inner.hub);
        self.database().tell(move |signal| hub.apply(signal));
        self.spawn(Self::poll, ());
        self.spawn(Self::sweep, ());
        self.spawn(Self::tidy, ());
        self.spawn(Self::retain, ());
        self.spawn(Self::attend_due, ());
        self.spawn(Self::count_due, ());
        if self.database().can_notify() {
            let signals = self.database().signals();
            self.spawn(Self::notify, signals);
            self.spawn(Self::share_rates, ());
            if let Some(url) = listen {
                self.inner.listens.store(true, Ordering::Relaxed);
                self.spawn(Self::listen, url);
            }
        }
    }

    /// Ends all of it. Called when no request is running any more.
    pub async fn close(&self) {
        self.inner.closing.cancel();
        self.inner.background.close();
        self.inner.background.wait().await;
        self.stop_sharing().await;
    }

    pub(super) fn spawn<A: Send + 'static, F: Future<Output = ()> + Send + 'static>(
        &self,
        work: fn(Self, A) -> F,
        argument: A,
    ) {
        let closing = self.inner.closing.clone();
        let work = closing.run_until_cancelled_owned(work(self.clone(), argument));
        let work = self.inner.background.track_future(work);
        self.inner.runtime.spawn(work);
    }

    /// Looks into the database for what no signal told of. Without readers it asks nothing.
    async fn poll(self, (): ()) {
        loop {
            tokio::select! {
                () = sleep(self.inner.times.poll) => {}
                () = self.inner.hub.should_look() => {}
            }
            if let Err(error) = self.look().await {
                tracing::debug!(%error, "events could not be looked for; it is tried again");
            }
            sleep(LOOKS.min(self.inner.times.poll)).await;
        }
    }

    async fn look(&self) -> Result<(), StorageError> {
        for (tenant, sessions) in self.inner.hub.watched() {
            for asked in sessions.chunks(MOST_SESSIONS) {
                let found = self.database().find_newest_events(tenant, asked).await?;
                self.inner.hub.found(tenant, asked, &found);
            }
        }
        if self.inner.hub.is_followed() {
            let since = self.now().minus(WINDOW);
            let recent = self.database().find_recent_events(since).await?;
            self.inner.hub.found_recent(&recent);
        }
        Ok(())
    }

    /// Ends the leases and turns of processes that died, so that whatever was told of has an end.
    async fn sweep(self, (): ()) {
        let mut ticks = interval(SWEEP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.end_expired_leases().await {
                tracing::debug!(%error, "leases that ran out could not be ended; it is tried again");
            }
        }
    }

    async fn end_expired_leases(&self) -> Result<(), StorageError> {
        let now = self.now();
        for key in self.database().find_expired_leases(now, SWEPT).await? {
            self.database().write(EndExpired { key, now }).await?;
        }
        for key in self.database().find_dead_turns(now, SWEPT).await? {
            self.database().write(EndDeadTurn { key, now }).await?;
        }
        Ok(())
    }

    /// Deletes events and answers that have been kept long enough.
    async fn tidy(self, (): ()) {
        let mut ticks = interval(TIDY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.delete_old_events().await {
                tracing::warn!(%error, "old events could not be deleted; it is tried again in an hour");
            }
            if let Err(error) = self.delete_old_answers().await {
                tracing::warn!(%error, "old answers could not be deleted; it is tried again in an hour");
            }
        }
    }

    async fn delete_old_events(&self) -> Result<(), StorageError> {
        let before = self.now().minus(self.inner.times.retention);
        loop {
            let delete = DeleteOldEvents {
                before,
                limit: TIDIED,
            };
            if self.database().write(delete).await? < TIDIED.unsigned_abs() {
                return Ok(());
            }
            // Others write too.
            sleep(NOTIFY).await;
        }
    }

    async fn delete_old_answers(&self) -> Result<(), StorageError> {
        loop {
            let delete = DeleteOldAnswers {
                now: self.now(),
                limit: TIDIED,
            };
            if self.database().write(delete).await? < TIDIED.unsigned_abs() {
                return Ok(());
            }
            sleep(NOTIFY).await;
        }
    }

    /// Tells other replicas what this one commits, in few notifications.
    async fn notify(self, mut signals: broadcast::Receiver<Signal>) {
        let mut due = Instant::now();
        loop {
            let mut gathered = Gathered::default();
            match signals.recv().await {
                Ok(signal) => gathered.take(signal),
                Err(broadcast::error::RecvError::Lagged(_)) => gathered.missed = true,
                Err(broadcast::error::RecvError::Closed) => return,
            }
            sleep_until(due).await;
            gathered.take_waiting(&mut signals);
            due = Instant::now() + NOTIFY;
            if let Err(error) = self.database().notify(&gathered.text()).await {
                tracing::debug!(%error, "other replicas could not be told; they look by themselves");
            }
        }
    }

    /// Hears what other replicas commit.
    async fn listen(self, url: ListenUrl) {
        let mut wait = FIRST_RETRY;
        loop {
            let error = match Listener::connect(&url).await {
                Ok(mut listener) => {
                    wait = FIRST_RETRY;
                    self.inner.hears.store(true, Ordering::Relaxed);
                    let error = self.hear(&mut listener).await;
                    self.inner.hears.store(false, Ordering::Relaxed);
                    error
                }
                Err(error) => error,
            };
            // Once for each time that it is lost, not for each try to have it back.
            if wait == FIRST_RETRY {
                tracing::warn!(%error, "other replicas are not heard; what they do is polled for until they are");
            }
            sleep(wait).await;
            wait = (wait * 2).min(LAST_RETRY);
        }
    }

    async fn hear(&self, listener: &mut Listener) -> StorageError {
        loop {
            // What was sent before, or while the connection was lost, is looked for.
            self.inner.hub.look();
            loop {
                match listener.hear().await {
                    Ok(Some(text)) => self.heard(&text),
                    Ok(None) => break,
                    Err(error) => return error,
                }
            }
        }
    }

    fn heard(&self, text: &str) {
        match read_notification(text) {
            Some(signals) => signals
                .into_iter()
                .for_each(|signal| self.inner.hub.apply(signal)),
            None => self.inner.hub.look(),
        }
    }
}

/// What is told in one notification.
#[derive(Default)]
struct Gathered {
    news: HashMap<SessionKey, News>,
    missed: bool,
}

impl Gathered {
    fn take(&mut self, signal: Signal) {
        let known = self.news.entry(signal.key).or_insert(signal.news);
        *known = match (*known, signal.news) {
            (
                News::Stored { first, last },
                News::Stored {
                    first: other_first,
                    last: other_last,
                },
            ) => News::Stored {
                first: first.min(other_first),
                last: last.max(other_last),
            },
            _ => News::Deleted,
        };
    }

    /// Takes in what is there already.
    fn take_waiting(&mut self, signals: &mut broadcast::Receiver<Signal>) {
        loop {
            match signals.try_recv() {
                Ok(signal) => self.take(signal),
                Err(broadcast::error::TryRecvError::Lagged(_)) => self.missed = true,
                Err(_) => return,
            }
        }
    }

    /// A JSON array of tenant, session, first and last number; both 0 for a session that is gone.
    fn text(&self) -> String {
        let entries = self.news.iter().map(|(key, news)| {
            let (first, last) = match *news {
                News::Stored { first, last } => (first, last),
                News::Deleted => (0, 0),
            };
            (key.tenant.0, key.session.simple().to_string(), first, last)
        });
        let entries: Vec<_> = entries.collect();
        serde_json::to_string(&entries)
            .ok()
            .filter(|text| !self.missed && text.len() <= LONGEST_NOTIFICATION)
            .unwrap_or_else(|| LOOK.to_owned())
    }
}

/// What a notification tells; `None` if it only asks for a look, or is none of ours.
fn read_notification(text: &str) -> Option<Vec<Signal>> {
    let entries: Vec<(i64, String, i64, i64)> = serde_json::from_str(text).ok()?;
    let signal = |(tenant, session, first, last): (_, String, _, _)| {
        Some(Signal {
            key: SessionKey {
                tenant: TenantId(tenant),
                session: Uuid::try_parse(&session).ok()?,
            },
            news: match (first, last) {
                (0, 0) => News::Deleted,
                _ => News::Stored { first, last },
            },
        })
    };
    entries.into_iter().map(signal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(session: u128, news: News) -> Signal {
        Signal {
            key: SessionKey {
                tenant: TenantId(1),
                session: Uuid::from_u128(session),
            },
            news,
        }
    }

    #[test]
    fn a_notification_tells_of_each_session_once() {
        let mut gathered = Gathered::default();
        for (session, first, last) in [(1, 4, 4), (2, 1, 2), (1, 5, 6)] {
            let news = News::Stored { first, last };
            gathered.take(signal(session, news));
        }
        gathered.take(signal(3, News::Stored { first: 1, last: 1 }));
        gathered.take(signal(3, News::Deleted));
        let mut heard = read_notification(&gathered.text()).unwrap();
        heard.sort_by_key(|signal| signal.key.session);
        let expected = [
            signal(1, News::Stored { first: 4, last: 6 }),
            signal(2, News::Stored { first: 1, last: 2 }),
            signal(3, News::Deleted),
        ];
        assert_eq!(heard, expected);
    }

    #[test]
    fn what_does_not_fit_or_was_missed_asks_for_a_look() {
        let mut gathered = Gathered::default();
        let news = News::Stored {
            first: 1,
            last: i64::MAX,
        };
        let mut session = 0;
        while gathered.text() != LOOK {
            session += 1;
            gathered.take(signal(session, news));
            assert!(gathered.text().len() < 8_000);
        }
        assert!(session > 50, "{session} sessions do not fit");
        assert_eq!(read_notification(LOOK), None);

        let mut gathered = Gathered::default();
        let (sender, mut signals) = broadcast::channel(1);
        for session in 1..3 {
            sender.send(signal(session, news)).unwrap();
        }
        gathered.take_waiting(&mut signals);
        assert_eq!(gathered.text(), LOOK, "one signal was missed");
    }
}
