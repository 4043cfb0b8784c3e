//! What a turn does whose context its model finds too long: it is compacted, pruned, and built anew.

use std::time::Duration;

use super::super::compaction::OVERFLOW;
use super::super::dispatch::{DispatchRequest, Dispatched};
use super::super::error::Overflow;
use super::super::{CompactRequest, Service, ServiceError};
use super::{Done, Work};

/// How often it is looked whether a compaction that ran already has ended, and how long at most.
const LOOK: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_mins(2);

impl Service {
    /// Compacts, prunes as far as the rules go, and builds the context anew; `None` if it got no smaller than it
    /// was `before`, when it showed version `shown`.
    pub(super) async fn make_smaller(
        &self,
        work: &Work,
        (before, shown): (i64, i64),
        done: &mut Done,
        overflow: &mut Overflow,
    ) -> Result<Option<Dispatched>, ServiceError> {
        match self.compact_for(work, shown).await {
            Ok(version) => done.compaction = version,
            // Pruning alone may do.
            Err(error) => overflow.cause = Some(error.to_string()),
        }
        let request = DispatchRequest {
            force: true,
            below: Some(before),
            ..work.dispatch.clone()
        };
        match self
            .dispatch(work.caller, &work.session, &request, None)
            .await
        {
            Ok(smaller) => Ok(Some(smaller)),
            Err(ServiceError::NothingFreed) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Compacts the session of a turn, whose context showed this version; a compaction that was made meanwhile, or
    /// runs and is waited for, is used instead. Gives the version made.
    async fn compact_for(&self, work: &Work, shown: i64) -> Result<Option<i64>, ServiceError> {
        let deadline = tokio::time::Instant::now() + LONGEST_WAIT;
        loop {
            let head = self.load_head(work.key, &work.session).await?;
            if head.compaction_version > shown {
                return Ok(Some(head.compaction_version));
            }
            let request = CompactRequest {
                cause: OVERFLOW,
                seen_version: Some(shown),
                ..CompactRequest::default()
            };
            match self.compact_apart(work.key, &work.session, request).await {
                Ok(outcome) => return Ok(outcome.compaction.map(|made| made.version)),
                // Another one runs, or ended just before this one could begin.
                Err(
                    ServiceError::CompactionInProgress { .. } | ServiceError::CompactionConflict,
                ) if tokio::time::Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
