//! What a tenant may use, and what this process can bear: rates, bytes stored, streams of events.
//!
//! A tenant's own limits are read from its row and kept for a second, so that a change made elsewhere is soon in
//! force and a request costs no query. How many compactions and turns run is not known here: that is counted by
//! storage, in the transaction that begins one. Rates are kept in memory, each replica its share.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use governor::clock::Clock;
use governor::{DefaultDirectRateLimiter, Quota};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, interval};
use uuid::Uuid;

use super::compaction::OVERFLOW;
use super::{Service, ServiceError};
use crate::storage::{Beat, Leave, SessionKey, StorageError, TenantId, TenantLimits, Timestamp};

/// How long a tenant's limits are waited for.
const BRIEF: Duration = Duration::from_millis(250);
/// How long a tenant's limits are taken to be what they were.
const FRESH: Duration = Duration::from_secs(1);
/// How long it is enough to add up what was accepted here since a tenant's bytes were measured.
const MEASURED: Duration = Duration::from_secs(10);
/// They are measured anew before a refusal, unless they were this recently.
const JUST_MEASURED: Duration = Duration::from_secs(1);
/// Tenants that are remembered at most, and after how long one that asks nothing is forgotten to make room.
const REMEMBERED: usize = 10_000;
const IDLE: Duration = Duration::from_mins(1);
/// How often a replica says that it is there, and for how long that is believed.
const BEAT: Duration = Duration::from_secs(5);
const ALIVE: Duration = Duration::from_secs(15);
/// After how long its row is deleted.
const GONE: Duration = Duration::from_hours(24);
/// How long a client waits for a place that a running compaction or turn has to leave first.
const PLACE: Duration = Duration::from_secs(5);

/// What holds for tenants that have no limits of their own, and for the process as a whole. 0: no limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct LimitDefaults {
    /// Requests of a tenant in a second.
    pub requests_per_second: i64,
    /// Requests that may come at once after a pause; 0: those of a second.
    pub request_burst: i64,
    /// Sessions of a tenant that are compacted at once.
    pub concurrent_compactions: i64,
    /// Turns of a tenant that run at once.
    pub concurrent_turns: i64,
    /// Bytes that a tenant's sessions hold.
    pub stored_bytes: i64,
    /// Streams of events that are open in this process.
    pub event_streams: usize,
}

/// The limits in force for a tenant. `None`: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EffectiveLimits {
    /// Requests in a second.
    pub requests_per_second: Option<i64>,
    /// Requests that may come at once after a pause.
    pub request_burst: Option<i64>,
    /// Sessions that are compacted at once.
    pub concurrent_compactions: Option<i64>,
    /// Turns that run at once.
    pub concurrent_turns: Option<i64>,
    /// Bytes that its sessions hold.
    pub stored_bytes: Option<i64>,
}

impl EffectiveLimits {
    pub(super) fn of(own: &TenantLimits, defaults: &LimitDefaults) -> Self {
        let limit = |own: Option<i64>, default| Some(own.unwrap_or(default)).filter(|n| *n > 0);
        let rate = limit(own.requests_per_second, defaults.requests_per_second);
        Self {
            requests_per_second: rate,
            request_burst: rate
                .and_then(|_| limit(own.request_burst, defaults.request_burst).or(rate)),
            concurrent_compactions: limit(
                own.concurrent_compactions,
                defaults.concurrent_compactions,
            ),
            concurrent_turns: limit(own.concurrent_turns, defaults.concurrent_turns),
            stored_bytes: limit(own.stored_bytes, defaults.stored_bytes),
        }
    }
}

/// A rate as it was set up: requests per second, burst, replicas that share it.
type Terms = (i64, i64, u32);

/// What is remembered of a tenant.
struct Known {
    limits: EffectiveLimits,
    /// When the limits were last asked for.
    asked: Instant,
    /// When anything was.
    used: Instant,
    rate: Option<(Terms, Arc<DefaultDirectRateLimiter>)>,
    stored: Option<Stored>,
}

/// What a tenant stores: measured, and accepted here since then.
#[derive(Clone, Copy)]
struct Stored {
    bytes: i64,
    since: i64,
    at: Instant,
}

/// What a process remembers of limits.
pub(super) struct Limits {
    defaults: LimitDefaults,
    known: Mutex<HashMap<TenantId, Known>>,
    /// This replica.
    replica: Uuid,
    /// Replicas that share the rates.
    replicas: AtomicU32,
    streams: Arc<Semaphore>,
    /// Compactions of items that nobody stores, which run now and hold no lease.
    loose: Arc<Mutex<HashMap<TenantId, i64>>>,
    /// Whether the database knows of this replica.
    is_told: AtomicBool,
}

impl Limits {
    pub(super) fn new(defaults: LimitDefaults, replica: Uuid) -> Self {
        Self {
            defaults,
            known: Mutex::default(),
            replica,
            replicas: AtomicU32::new(1),
            streams: Arc::new(Semaphore::new(
                defaults.event_streams.min(Semaphore::MAX_PERMITS),
            )),
            loose: Arc::default(),
            is_told: AtomicBool::new(false),
        }
    }

    pub(super) fn defaults(&self) -> &LimitDefaults {
        &self.defaults
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits as they are remembered; `None` if it is time for the caller to ask. Others go on with what
    /// there is meanwhile.
    fn recall(&self, tenant: TenantId) -> Option<EffectiveLimits> {
        let mut known = self.lock();
        let known = known.get_mut(&tenant)?;
        known.used = Instant::now();
        if known.asked.elapsed() >= FRESH {
            known.asked = Instant::now();
            return None;
        }
        Some(known.limits)
    }

    /// The limits as they were, or those of a tenant that has none of its own.
    fn last_known(&self, tenant: TenantId) -> EffectiveLimits {
        let known = self.lock();
        known.get(&tenant).map_or_else(
            || EffectiveLimits::of(&TenantLimits::default(), &self.defaults),
            |known| known.limits,
        )
    }

    /// Remembers the limits that a tenant's row tells.
    pub(super) fn learn(&self, tenant: TenantId, own: &TenantLimits) -> EffectiveLimits {
        let limits = EffectiveLimits::of(own, &self.defaults);
        let mut all = self.lock();
        if all.len() >= REMEMBERED && !all.contains_key(&tenant) {
            all.retain(|_, known| known.used.elapsed() < IDLE);
            if all.len() >= REMEMBERED {
                all.clear();
            }
        }
        let now = Instant::now();
        let known = all.entry(tenant).or_insert_with(|| Known {
            limits,
            asked: now,
            used: now,
            rate: None,
            stored: None,
        });
        (known.limits, known.asked, known.used) = (limits, now, now);
        limits
    }

    /// The limiter of a tenant's rate, set up anew when the rate or the number of replicas is another.
    fn limiter(
        &self,
        tenant: TenantId,
        limits: &EffectiveLimits,
    ) -> Option<Arc<DefaultDirectRateLimiter>> {
        let rate = limits.requests_per_second?;
        let burst = limits.request_burst.unwrap_or(rate);
        let terms = (rate, burst, self.replicas.load(Ordering::Relaxed).max(1));
        let quota = share(terms)?;
        let mut all = self.lock();
        let known = all.get_mut(&tenant)?;
        match &known.rate {
            Some((now, limiter)) if *now == terms => Some(Arc::clone(limiter)),
            _ => {
                let limiter = Arc::new(DefaultDirectRateLimiter::direct(quota));
                known.rate = Some((terms, Arc::clone(&limiter)));
                Some(limiter)
            }
        }
    }

    /// What a tenant stores as it is remembered; `None` if it is time for the caller to measure.
    fn stored(&self, tenant: TenantId, fresh: Duration) -> Option<i64> {
        let mut all = self.lock();
        let stored = all.get_mut(&tenant)?.stored.as_mut()?;
        if stored.at.elapsed() >= fresh {
            stored.at = Instant::now();
            return None;
        }
        Some(stored.bytes.saturating_add(stored.since))
    }

    fn measured(&self, tenant: TenantId, bytes: i64) {
        if let Some(known) = self.lock().get_mut(&tenant) {
            known.stored = Some(Stored {
                bytes,
                since: 0,
                at: Instant::now(),
            });
        }
    }

    fn accepted(&self, tenant: TenantId, bytes: i64) {
        let mut all = self.lock();
        if let Some(stored) = all.get_mut(&tenant).and_then(|known| known.stored.as_mut()) {
            stored.since = stored.since.saturating_add(bytes);
        }
    }
}

/// A place among the compactions of a tenant that hold no lease; it is free again when this is dropped.
pub(super) struct LoosePlace {
    tenant: TenantId,
    all: Arc<Mutex<HashMap<TenantId, i64>>>,
}

impl Drop for LoosePlace {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.tenant);
            }
        }
    }
}

/// One replica's part of a rate: all parts together are the whole.
fn share((rate, burst, replicas): Terms) -> Option<Quota> {
    let rate = u32::try_from(rate).unwrap_or(u32::MAX);
    let burst = u32::try_from(burst).unwrap_or(u32::MAX) / replicas;
    let between = Duration::from_secs(1) * replicas / rate.max(1);
    let quota = Quota::with_period(between.max(Duration::from_nanos(1)))?;
    Some(quota.allow_burst(NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN)))
}

impl Service {
    /// The limits in force for a tenant. If the database gives no answer, those that were.
    pub(super) async fn limits_of(&self, tenant: TenantId) -> EffectiveLimits {
        let limits = &self.inner.limits;
        if let Some(known) = limits.recall(tenant) {
            return known;
        }
        // Whoever waits here waits for the database once more behind it.
        let asked = Box::pin(self.database().find_limits(tenant));
        let found = tokio::time::timeout(BRIEF, asked).await;
        match found.unwrap_or(Err(StorageError::Busy)) {
            Ok(own) => limits.learn(tenant, &own.unwrap_or_default()),
            Err(error) => {
                tracing::debug!(%error, "a tenant's limits could not be read; those before hold on");
                limits.last_known(tenant)
            }
        }
    }

    /// Lets a request of a tenant in, or says when the next one may come.
    ///
    /// # Errors
    /// The tenant's rate is used up.
    pub async fn admit_request(&self, tenant: TenantId) -> Result<(), ServiceError> {
        let limits = self.limits_of(tenant).await;
        let Some(limiter) = self.inner.limits.limiter(tenant, &limits) else {
            return Ok(());
        };
        limiter.check().map_err(|refused| {
            let wait = refused.wait_time_from(governor::clock::DefaultClock::default().now());
            let most = limits.requests_per_second.unwrap_or_default();
            self.limit_reached("requestsPerSecond", most, wait)
        })
    }

    /// Lets bytes of a tenant be stored. Soft: what other replicas accepted in the last seconds is not known here.
    ///
    /// # Errors
    /// They are more than the tenant may still store, or the database failed.
    pub(super) async fn admit_bytes(
        &self,
        tenant: TenantId,
        bytes: usize,
    ) -> Result<(), ServiceError> {
        let Some(most) = self.limits_of(tenant).await.stored_bytes else {
            return Ok(());
        };
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        for fresh in [MEASURED, JUST_MEASURED] {
            let stored = self.stored_bytes(tenant, fresh).await?;
            if stored.saturating_add(bytes) <= most {
                self.inner.limits.accepted(tenant, bytes);
                return Ok(());
            }
        }
        self.count_refusal("storedBytes");
        Err(ServiceError::StorageQuota { most })
    }

    /// Lets a copy of a session be stored, on the terms of [`Service::admit_bytes`]. Of one that is not there, whoever
    /// copies it finds out.
    pub(super) async fn admit_copy(&self, key: SessionKey) -> Result<(), ServiceError> {
        if self.limits_of(key.tenant).await.stored_bytes.is_none() {
            return Ok(());
        }
        let Some(session) = self.database().find_session(key).await? else {
            return Ok(());
        };
        let bytes = usize::try_from(session.history_bytes).unwrap_or(0);
        self.admit_bytes(key.tenant, bytes).await
    }

    async fn stored_bytes(&self, tenant: TenantId, fresh: Duration) -> Result<i64, StorageError> {
        if let Some(stored) = self.inner.limits.stored(tenant, fresh) {
            return Ok(stored);
        }
        let bytes = Box::pin(self.database().sum_stored_bytes(tenant)).await?;
        self.inner.limits.measured(tenant, bytes);
        Ok(bytes)
    }

    /// Takes a place for a compaction of items that nobody stores. Each process lets as many run as the tenant may
    /// compact sessions at once.
    ///
    /// # Errors
    /// That many run.
    pub(super) async fn admit_loose(&self, tenant: TenantId) -> Result<LoosePlace, ServiceError> {
        let most = self.limits_of(tenant).await.concurrent_compactions;
        let all = Arc::clone(&self.inner.limits.loose);
        {
            let mut counts = all.lock().unwrap_or_else(PoisonError::into_inner);
            let running = counts.get(&tenant).copied().unwrap_or(0);
            if let Some(most) = most
                && running >= most
            {
                return Err(self.limit_reached("concurrentCompactions", most, PLACE));
            }
            counts.insert(tenant, running + 1);
        }
        Ok(LoosePlace { tenant, all })
    }

    /// Takes a place among the streams of events that this process holds open.
    pub(super) fn admit_stream(&self) -> Result<OwnedSemaphorePermit, ServiceError> {
        let streams = Arc::clone(&self.inner.limits.streams);
        streams.try_acquire_owned().map_err(|_| {
            self.count_refusal("event_streams");
            ServiceError::Overloaded {
                limit: "limits.event_streams",
                what: "streams of events are open",
                most: self.inner.limits.defaults.event_streams,
                retry_after: PLACE,
            }
        })
    }

    /// How many sessions of a tenant may be compacted at once, for a compaction of this cause. One that a running
    /// turn needs is never refused: it counts, but the turn was let in already.
    pub(super) async fn most_compactions(&self, tenant: TenantId, cause: &str) -> Option<i64> {
        if cause == OVERFLOW {
            return None;
        }
        self.limits_of(tenant).await.concurrent_compactions
    }

    /// No more compactions of a tenant at once.
    pub(super) fn compactions_full(&self, most: Option<i64>) -> ServiceError {
        self.limit_reached("concurrentCompactions", most.unwrap_or_default(), PLACE)
    }

    /// No more turns of a tenant at once.
    pub(super) fn turns_full(&self, most: Option<i64>) -> ServiceError {
        self.limit_reached("concurrentTurns", most.unwrap_or_default(), PLACE)
    }

    fn limit_reached(&self, limit: &'static str, most: i64, retry_after: Duration) -> ServiceError {
        self.count_refusal(limit);
        ServiceError::LimitReached {
            limit,
            most,
            retry_after,
        }
    }

    /// Counts that something was refused because a limit was reached. Every such refusal comes through here.
    pub fn count_refusal(&self, limit: &'static str) {
        self.inner.metrics.count_refusal(limit);
        tracing::debug!(limit, "a limit was reached");
    }

    /// Says again and again that this replica is there, as long as there is a rate to share.
    pub(super) async fn share_rates(self, (): ()) {
        let started_at = self.now();
        let mut ticks = interval(BEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.beat(started_at).await {
                Ok(replicas) => {
                    let replicas = u32::try_from(replicas).unwrap_or(u32::MAX).max(1);
                    self.inner
                        .limits
                        .replicas
                        .store(replicas, Ordering::Relaxed);
                }
                Err(error) => {
                    tracing::debug!(%error, "replicas could not be counted; the last count holds on");
                }
            }
        }
    }

    async fn beat(&self, started_at: Timestamp) -> Result<i64, StorageError> {
        if self.inner.limits.defaults.requests_per_second == 0
            && !self.database().has_rates().await?
        {
            return Ok(1);
        }
        let now = self.now();
        let beat = Beat {
            id: self.inner.limits.replica,
            version: env!("CARGO_PKG_VERSION"),
            started_at,
            now,
            since: now.minus(ALIVE),
            forget: now.minus(GONE),
        };
        self.inner.limits.is_told.store(true, Ordering::Relaxed);
        self.database().write(beat).await
    }

    /// Says that this replica is gone, so that the others need not wait until they notice.
    pub(super) async fn stop_sharing(&self) {
        let limits = &self.inner.limits;
        if !limits.is_told.swap(false, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.database().write(Leave(limits.replica)).await {
            tracing::debug!(%error, "the others notice by themselves that this replica is gone");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_own_limits_win_and_zero_is_none() {
        let defaults = LimitDefaults {
            requests_per_second: 10,
            concurrent_turns: 3,
            stored_bytes: 1_000,
            ..LimitDefaults::default()
        };
        let own = TenantLimits {
            concurrent_turns: Some(0),
            concurrent_compactions: Some(2),
            ..TenantLimits::default()
        };
        let expected = EffectiveLimits {
            requests_per_second: Some(10),
            request_burst: Some(10),
            concurrent_compactions: Some(2),
            concurrent_turns: None,
            stored_bytes: Some(1_000),
        };
        assert_eq!(EffectiveLimits::of(&own, &defaults), expected);
        let without_rate = TenantLimits {
            requests_per_second: Some(0),
            request_burst: Some(5),
            ..own
        };
        let limits = EffectiveLimits::of(&without_rate, &defaults);
        assert_eq!(
            (limits.requests_per_second, limits.request_burst),
            (None, None)
        );
    }

    #[test]
    fn the_parts_of_a_rate_are_the_whole() {
        for (terms, between, burst) in [
            ((10, 40, 1), Duration::from_millis(100), 40),
            ((10, 40, 4), Duration::from_millis(400), 10),
            ((1, 1, 3), Duration::from_secs(3), 1),
            ((i64::MAX, i64::MAX, 1), Duration::from_nanos(1), u32::MAX),
        ] {
            let quota = share(terms).unwrap();
            assert_eq!(quota.replenish_interval(), between, "{terms:?}");
            assert_eq!(quota.burst_size().get(), burst, "{terms:?}");
        }
    }

    #[test]
    fn no_more_tenants_are_remembered_than_may_be() {
        let limits = Limits::new(LimitDefaults::default(), Uuid::nil());
        for id in 0..25_000 {
            limits.learn(TenantId(id), &TenantLimits::default());
            assert!(limits.lock().len() <= REMEMBERED);
        }
        assert!(limits.recall(TenantId(24_999)).is_some());
    }
}
