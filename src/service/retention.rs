//! Deleting sessions that have been kept long enough: by a replica in the background, and by hand.
//!
//! How long is said by the session itself (its agent's days unless it has its own), else by its tenant, else by
//! the server. Every replica looks; a session is hidden by whoever comes first, under conditions that are checked
//! in the transaction, and its rest may be deleted by any.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use uuid::Uuid;

use super::Service;
use crate::domain::ids::session_id;
use crate::storage::{
    Aged, DeletePiece, ForgetReplicas, HideSession, SessionKey, StorageError, TenantDays,
    Timestamp, WalkedSession,
};

/// Sessions that are looked at, or found hidden, at once.
const WALKED: i64 = 500;
/// Others write too: a pause from one piece to the next.
const PAUSE: Duration = Duration::from_millis(5);
/// Tries of a piece while the database is busy, each after a longer wait.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// How long a process is remembered that is not heard of any more.
const REPLICA: Duration = Duration::from_hours(24);
const DAY: Duration = Duration::from_hours(24);

/// How long sessions are kept, by the server's settings.
#[derive(Debug, Clone, Copy)]
pub struct RetentionTimes {
    /// Days behind the last write; 0 is for ever.
    pub days: i64,
    /// From one look for old sessions to the next.
    pub interval: Duration,
}

/// What is pruned by hand.
#[derive(Debug, Clone, Default)]
pub struct PruneRequest {
    /// Sessions that say nothing of their own are kept this long behind their last write; without it, as long as
    /// their tenant or the server says.
    pub older_than: Option<Duration>,
    /// Only this tenant's, by name.
    pub tenant: Option<String>,
    /// Nothing is deleted.
    pub dry_run: bool,
}

/// A session that was deleted, or would be.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PrunedSession {
    /// Whose it was.
    pub tenant: String,
    /// Which.
    pub id: String,
    /// Its last write.
    pub updated_at: Timestamp,
}

/// What was pruned.
#[derive(Debug, Clone, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PruneReport {
    /// Sessions that were deleted for their age.
    pub sessions: Vec<PrunedSession>,
    /// Sessions that had been deleted before, and of which the rest was.
    pub finished: u64,
    /// Processes that were forgotten.
    pub replicas: u64,
    /// Nothing was deleted.
    pub dry_run: bool,
}

impl PruneReport {
    /// As JSON, sessions with their ids.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// What a walk goes by.
struct Walk<'a> {
    tenant: &'a TenantDays,
    /// How long sessions are kept that say nothing of their own; `None` is for ever.
    keep: Option<Duration>,
    dry_run: bool,
}

impl Service {
    /// Looks for sessions that have been kept long enough, again and again.
    pub(super) async fn retain(self, (): ()) {
        let mut ticks = interval(self.inner.retention.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.prune_store(&PruneRequest::default()).await {
                Ok(report) if report.sessions.is_empty() => {}
                Ok(report) => tracing::info!(
                    sessions = report.sessions.len(),
                    "sessions were deleted that had been kept long enough"
                ),
                Err(error) => {
                    tracing::warn!(%error, "old sessions could not be deleted; it is tried again");
                }
            }
        }
    }

    /// Deletes what has been kept long enough. A tenant that is named and unknown has nothing.
    ///
    /// # Errors
    /// The database failed; what was deleted before stays deleted.
    pub async fn prune_store(&self, request: &PruneRequest) -> Result<PruneReport, StorageError> {
        let mut report = PruneReport {
            dry_run: request.dry_run,
            ..PruneReport::default()
        };
        if !request.dry_run {
            report.finished = self.finish_deletions().await?;
            let before = self.now().minus(REPLICA);
            report.replicas = self.database().write(ForgetReplicas { before }).await?;
        }
        for tenant in self.database().list_tenant_days().await? {
            if request
                .tenant
                .as_ref()
                .is_some_and(|name| *name != tenant.name)
            {
                continue;
            }
            let days = tenant.retention_days.unwrap_or(self.inner.retention.days);
            let walk = Walk {
                tenant: &tenant,
                keep: request.older_than.or(span(days)),
                dry_run: request.dry_run,
            };
            self.walk(&walk, &mut report).await?;
        }
        Ok(report)
    }

    async fn walk(&self, walk: &Walk<'_>, report: &mut PruneReport) -> Result<(), StorageError> {
        let tenant = walk.tenant.id();
        if let Some(keep) = walk.keep {
            let (mut after, before) = (Uuid::nil(), first_id_of(self.now().minus(keep)));
            loop {
                let database = self.database();
                let found = database.walk_sessions(tenant, after, before, WALKED);
                let found = found.await?;
                let Some(last) = found.last() else { break };
                after = last.id;
                self.prune_walked(walk, &found, report).await?;
            }
        }
        // Own days are a day at least.
        let (mut after, before) = (Uuid::nil(), first_id_of(self.now().minus(DAY)));
        loop {
            let database = self.database();
            let found = database.walk_sessions_with_days(tenant, after, before, WALKED);
            let found = found.await?;
            let Some(last) = found.last() else {
                return Ok(());
            };
            after = last.id;
            self.prune_walked(walk, &found, report).await?;
        }
    }

    async fn prune_walked(
        &self,
        walk: &Walk<'_>,
        found: &[WalkedSession],
        report: &mut PruneReport,
    ) -> Result<(), StorageError> {
        for session in found {
            let keep = match session.retention_days {
                Some(days) => span(days),
                None => walk.keep,
            };
            let Some(before) = keep.map(|keep| self.now().minus(keep)) else {
                continue;
            };
            if session.updated_at >= before {
                continue;
            }
            let key = SessionKey {
                tenant: walk.tenant.id(),
                session: session.id,
            };
            let aged = Aged {
                before,
                own_days: session.retention_days,
            };
            if walk.dry_run || self.prune_session(key, aged).await? {
                report.sessions.push(PrunedSession {
                    tenant: walk.tenant.name.clone(),
                    id: session_id(session.id),
                    updated_at: session.updated_at,
                });
            }
        }
        Ok(())
    }

    async fn prune_session(&self, key: SessionKey, aged: Aged) -> Result<bool, StorageError> {
        let hide = HideSession {
            key,
            aged: Some(aged),
            now: self.now(),
        };
        let hidden = self.database().write(hide).await?;
        if hidden {
            self.delete_pieces(key).await?;
        }
        Ok(hidden)
    }

    /// Deletes what is left of a session that is hidden, also when its caller goes away. What cannot be deleted now
    /// will be by the next look for old sessions.
    pub(super) async fn delete_rest(&self, key: SessionKey) {
        let service = self.clone();
        let work = async move {
            if let Err(error) = service.delete_pieces(key).await {
                tracing::warn!(%error, "a deleted session is hidden, and its rest is deleted later");
            }
        };
        let work = self.inner.tasks.track_future(work);
        // An error says that the task was ended with the process.
        drop(self.inner.runtime.spawn(work).await);
    }

    async fn delete_pieces(&self, key: SessionKey) -> Result<(), StorageError> {
        let mut tried = 0;
        loop {
            let now = self.now();
            match self.database().write(DeletePiece { key, now }).await {
                Ok(true) => {
                    tried = 0;
                    sleep(PAUSE).await;
                }
                Ok(false) => return Ok(()),
                Err(error) if error.is_temporary() && tried < TRIES => {
                    sleep(FIRST_WAIT * 2_u32.pow(tried)).await;
                    tried += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes what is left of sessions whose deletion, or import, was broken off; gives how many.
    async fn finish_deletions(&self) -> Result<u64, StorageError> {
        let mut finished = 0;
        loop {
            let found = self.database().find_hidden(self.now(), WALKED).await?;
            if found.is_empty() {
                return Ok(finished);
            }
            for key in found {
                self.delete_pieces(key).await?;
                finished += 1;
            }
        }
    }
}

/// Days as a span; none for ever.
fn span(days: i64) -> Option<Duration> {
    let days = u64::try_from(days).ok().filter(|days| *days > 0)?;
    Some(Duration::from_secs(days.saturating_mul(DAY.as_secs())))
}

/// No session that was made before this time has a larger id than this, as far as milliseconds tell.
fn first_id_of(time: Timestamp) -> Uuid {
    let millis = u64::try_from(time.0 / 1_000).unwrap_or(0);
    Uuid::from_u128(u128::from(millis.min((1 << 48) - 1)) << 80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_id_of_a_time_parts_earlier_from_later_ones() {
        let made = |millis: u64| {
            let (seconds, nanos) = (millis / 1_000, u32::try_from(millis % 1_000).unwrap());
            let time = uuid::Timestamp::from_unix(uuid::NoContext, seconds, nanos * 1_000_000);
            Uuid::new_v7(time)
        };
        let millis = 1_796_000_000_123;
        let bound = first_id_of(Timestamp(millis * 1_000));
        let millis = u64::try_from(millis).unwrap();
        assert!(made(millis - 1) < bound, "one made before");
        assert!(made(millis) > bound, "one made at that time");
    }

    #[test]
    fn no_days_are_for_ever() {
        assert_eq!(span(0), None);
        assert_eq!(span(-1), None);
        assert_eq!(span(2), Some(Duration::from_hours(48)));
    }
}
