//! Which sessions are due for an automatic compaction: marking them, finding them, taking one, and what
//! becomes of it.
//!
//! A mark is a time in the session's row, written with the change that made the session due, so that no
//! crash loses it. Whoever takes a session moves that time on: nobody else takes it meanwhile, and if its
//! taker dies it comes due again. That two never compact one session at once is the compaction lease's
//! work, not that of the mark. What makes a session due is decided by `domain::auto_compaction`.

use std::time::Duration;

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::sessions::{SessionRow, lock};
use super::{
    Conn, Database, Result, SessionKey, StorageError, TenantId, Timestamp, Write, on_both, reading,
    unspell,
};
use crate::domain::auto_compaction::{Load, Stall, Standing};
use crate::domain::context::summary_tokens;
use crate::domain::pairing::Counters;
use crate::domain::policy::AutoCompactPolicy;

/// The longest wait behind failures.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// What a change of a session does to its mark.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marking {
    /// It is due from then on; without, it stays as it is.
    pub(super) due_at: Option<Timestamp>,
    /// Whatever was counted before says nothing any more.
    pub(super) afresh: bool,
}

/// The part of an update that writes a [`Marking`]: `$13` is `due_at`, `$14` is `afresh`.
macro_rules! marking {
    () => {
        "due_at = coalesce($13, due_at), \
         due_waits = (CASE WHEN $13 IS NULL THEN due_waits ELSE FALSE END), \
         due_failures = (CASE WHEN $14 THEN 0 ELSE due_failures END), \
         stalls = (CASE WHEN $14 THEN 0 ELSE stalls END), \
         stalled_tokens = (CASE WHEN $14 THEN NULL ELSE stalled_tokens END)"
    };
}
pub(super) use marking;

impl Marking {
    /// The history was rewritten.
    pub(super) const REWRITTEN: Self = Self {
        due_at: None,
        afresh: true,
    };

    /// Behind messages that are added. `policy`: as it is stored. `load`: the size with them, asked for only
    /// if the policy is on.
    pub(super) fn of(
        policy: &str,
        standing: Standing,
        load: impl FnOnce() -> Load,
        now: Timestamp,
    ) -> Result<Self> {
        let Some(policy) = read(policy)? else {
            return Ok(Self::default());
        };
        let load = load();
        Ok(Self {
            due_at: policy.becomes_due(standing, load).then_some(now),
            afresh: standing.stalled_tokens.is_some() && !policy.is_reached(load),
        })
    }

    /// Behind a change of settings that decide about compactions: what was given up under the old ones may
    /// work under the new ones, and what waited may have no need to.
    pub(super) fn resettled(session: &SessionRow, policy: &str, now: Timestamp) -> Result<Self> {
        let standing = Standing {
            due: session.due_at.is_some() && !session.due_waits,
            ..Standing::default()
        };
        let load = || session.load(&session.counters());
        Ok(Self {
            afresh: true,
            ..Self::of(policy, standing, load, now)?
        })
    }
}

fn read(policy: &str) -> Result<Option<AutoCompactPolicy>> {
    AutoCompactPolicy::read_if_enabled(policy)
        .map_err(|_| StorageError::Corrupt("sessions.auto_compact"))
}

impl SessionRow {
    /// What decides whether it becomes due.
    pub(super) fn standing(&self) -> Standing {
        Standing {
            due: self.due_at.is_some(),
            waits: self.due_waits,
            stalled_tokens: self.stalled_tokens,
        }
    }

    /// How large its context is with these running numbers, about: edits of pruning and messages that are
    /// shown again are not looked at.
    pub(super) fn load(&self, counters: &Counters) -> Load {
        load(self.summary_balance(), self.compact_size, counters)
    }

    /// Tokens of the summary, without those of what it stands for.
    pub(super) fn summary_balance(&self) -> i64 {
        let summary = self.compact_summary.as_deref().map_or(0, summary_tokens);
        i64::try_from(summary).unwrap_or(i64::MAX) - self.compact_tokens
    }
}

/// How large a context is of a session with these running numbers, whose summary adds so many tokens.
pub(super) fn load(summary_balance: i64, compact_size: i64, counters: &Counters) -> Load {
    Load {
        tokens: counters.instruction_tokens + summary_balance + counters.tokens,
        messages: counters.positions - compact_size,
    }
}

/// Takes a due session; gives it if it was due.
#[derive(Debug, Clone)]
pub struct ClaimDue {
    /// Which.
    pub key: SessionKey,
    /// The present.
    pub now: Timestamp,
    /// When it comes due again unless it was settled by then.
    pub until: Timestamp,
}

impl Write for ClaimDue {
    type Output = Option<SessionRow>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            let due = |session: &SessionRow| session.due_at.is_some_and(|at| at <= self.now);
            let Some(mut session) = lock(conn, self.key).await?.filter(due) else {
                return Ok(None);
            };
            on_both!(conn, c => sqlx::query(
                "UPDATE sessions SET due_at = $3, due_waits = FALSE WHERE tenant_id = $1 AND id = $2"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(self.until)
            .execute(c)
            .await
            .map(drop))?;
            session.due_at = Some(self.until);
            session.due_waits = false;
            Ok(Some(session))
        })
    }
}

/// Says what becomes of a session that was taken.
#[derive(Debug, Clone)]
pub struct SettleDue {
    /// Which.
    pub key: SessionKey,
    /// Until when it was taken.
    pub claim: Timestamp,
    /// What becomes of it.
    pub settled: Settled,
    /// When.
    pub now: Timestamp,
}

/// What becomes of a session that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// It is looked at again then.
    Later(Timestamp),
    /// It waits for its prefix to become cold.
    Waits {
        /// When that is.
        until: Timestamp,
        /// When the session had last been changed as it was looked at: who changed it since could not call it back.
        seen: Timestamp,
    },
    /// A run failed: it is tried again after a wait that doubles each time, an hour at most.
    Failed {
        /// The first such wait.
        first_wait: Duration,
    },
    /// There is nothing left to do, unless messages were added behind this `seq`.
    Done {
        /// The last `seq` that was looked at.
        seen_seq: i64,
        /// Runs without progress.
        stall: Stall,
    },
}

/// The columns of a mark.
struct Mark {
    due_at: Option<Timestamp>,
    waits: bool,
    failures: i64,
    stall: Stall,
}

impl Write for SettleDue {
    type Output = ();

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move {
            let Some(session) = lock(conn, self.key).await? else {
                return Ok(());
            };
            let Some(mark) = self.mark(&session)? else {
                return Ok(());
            };
            on_both!(conn, c => sqlx::query(
                "UPDATE sessions SET due_at = $3, due_waits = $4, due_failures = $5, stalls = $6, \
                 stalled_tokens = $7 WHERE tenant_id = $1 AND id = $2"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(mark.due_at)
            .bind(mark.waits)
            .bind(mark.failures)
            .bind(mark.stall.runs)
            .bind(mark.stall.tokens)
            .execute(c)
            .await
            .map(drop))?;
            Ok(())
        })
    }
}

impl SettleDue {
    /// The mark as it becomes; `None` if it stays.
    fn mark(&self, session: &SessionRow) -> Result<Option<Mark>> {
        let mark = Mark {
            due_at: session.due_at,
            waits: false,
            failures: session.due_failures,
            stall: Stall {
                runs: session.stalls,
                tokens: session.stalled_tokens,
            },
        };
        Ok(match &self.settled {
            // Somebody else has taken it meanwhile, and decides.
            Settled::Later(_) | Settled::Waits { .. } if session.due_at != Some(self.claim) => None,
            Settled::Later(at) => Some(Mark {
                due_at: Some(*at),
                ..mark
            }),
            Settled::Waits { until, seen } => {
                let waits = session.updated_at == *seen;
                Some(Mark {
                    due_at: Some(if waits { *until } else { self.now }),
                    waits,
                    ..mark
                })
            }
            Settled::Failed { first_wait } => {
                let failures = session.due_failures.saturating_add(1);
                Some(Mark {
                    due_at: Some(self.now.plus(back_off(*first_wait, failures))),
                    failures,
                    ..mark
                })
            }
            Settled::Done { seen_seq, stall } => Some(Mark {
                due_at: self.due_again(session, *seen_seq, *stall)?,
                failures: 0,
                stall: *stall,
                ..mark
            }),
        })
    }

    /// Messages that were added while it was taken have not marked it.
    fn due_again(
        &self,
        session: &SessionRow,
        seen_seq: i64,
        stall: Stall,
    ) -> Result<Option<Timestamp>> {
        if session.last_seq <= seen_seq || session.is_closed() {
            return Ok(None);
        }
        let standing = Standing {
            stalled_tokens: stall.tokens,
            ..Standing::default()
        };
        let load = || session.load(&session.counters());
        Ok(Marking::of(&session.auto_compact, standing, load, self.now)?.due_at)
    }
}

/// The wait behind so many failures in a row.
fn back_off(first: Duration, failures: i64) -> Duration {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    let factor = 2_u32.checked_pow(doublings).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(LONGEST_WAIT)
}

/// What was last sent to a model.
#[derive(Debug, Clone)]
pub struct LastDispatch {
    /// The model.
    pub model: Option<String>,
    /// When.
    pub at: Timestamp,
}

impl Database {
    /// Sessions that are due, the longest due first, `limit` at most. All tenants: it is for the replica itself.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_due(&self, now: Timestamp, limit: i64) -> Result<Vec<SessionKey>> {
        let found: Vec<(i64, Uuid)> = reading!(self, pool => sqlx::query_as(
            "SELECT tenant_id, id FROM sessions WHERE due_at <= $1 ORDER BY due_at LIMIT $2"
        )
        .bind(now)
        .bind(limit)
        .fetch_all(pool)
        .await)?;
        let key = |(tenant, session)| SessionKey {
            tenant: TenantId(tenant),
            session,
        };
        Ok(found.into_iter().map(key).collect())
    }

    /// The newest dispatch of a session, if there is one.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn find_last_dispatch(&self, key: SessionKey) -> Result<Option<LastDispatch>> {
        let found: Option<(Option<String>, Timestamp)> = reading!(self, pool => sqlx::query_as(
            "SELECT model, created_at FROM dispatches WHERE tenant_id = $1 AND session_id = $2 \
             ORDER BY n DESC LIMIT 1"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .fetch_optional(pool)
        .await)?;
        Ok(found.map(|(model, at)| LastDispatch {
            model: unspell(model),
            at,
        }))
    }

    /// Whether the newest turn of a session failed.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn has_failed_turn(&self, key: SessionKey) -> Result<bool> {
        // Ids begin with the time of their making.
        let status: Option<String> = reading!(self, pool => sqlx::query_scalar(
            "SELECT status FROM turns WHERE tenant_id = $1 AND session_id = $2 ORDER BY id DESC LIMIT 1"
        )
        .bind(key.tenant.0)
        .bind(key.session)
        .fetch_optional(pool)
        .await)?;
        Ok(status.as_deref() == Some("failed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_an_hour() {
        let first = Duration::from_secs(30);
        let waits = [1, 2, 3, 7, 8, i64::MAX].map(|failures| back_off(first, failures).as_secs());
        assert_eq!(waits, [30, 60, 120, 1_920, 3_600, 3_600]);
    }
}
