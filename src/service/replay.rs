//! Looking back at dispatches: the list, one built again byte for byte, why it looked as it did.

use super::context::{Carry, Format, Overlay, Rendered, TRIES, TailReader, read_some};
use super::rendering::build;
use super::{Caller, Service, ServiceError, key};
use crate::domain::context::RENDERER_VERSION;
use crate::storage::{DispatchRow, RewriteRow, SessionKey};

/// Rewrites that an answer names at most.
const MOST_REWRITES: i64 = 20;

/// A past dispatch, built again.
pub struct Replayed {
    /// The record.
    pub record: DispatchRow,
    /// The messages; or why they cannot be shown, and what was done to the history since.
    pub outcome: Result<Rendered, (String, Vec<RewriteRow>)>,
}

impl Service {
    /// A past dispatch, built again byte for byte if its messages and its summary are still there.
    ///
    /// # Errors
    /// There is no such session or dispatch, or the database failed.
    pub async fn replay(
        &self,
        caller: Caller,
        session: &str,
        n: i64,
    ) -> Result<Replayed, ServiceError> {
        let key = key(caller, session)?;
        let mut tried = 0;
        loop {
            tried += 1;
            self.load_head(key, session).await?;
            let record = self.database().find_dispatch(key, n).await?;
            let record = record.ok_or(ServiceError::DispatchNotFound { n })?;
            match self.try_replay(key, &record).await {
                Err(ServiceError::ContextMoved) if tried < TRIES => {}
                Err(error) => return Err(error),
                Ok(outcome) => return Ok(Replayed { record, outcome }),
            }
        }
    }

    async fn try_replay(
        &self,
        key: SessionKey,
        record: &DispatchRow,
    ) -> Result<Result<Rendered, (String, Vec<RewriteRow>)>, ServiceError> {
        let found = self.database().find_past_view(key, record).await?;
        let Some((view, is_whole)) = found else {
            return Err(ServiceError::DispatchNotFound { n: record.n });
        };
        let rewrites = self
            .database()
            .list_rewrites(key, record.rewrites, record.last_seq, MOST_REWRITES)
            .await?;
        if !rewrites.is_empty() {
            let why =
                "The history was rewritten since: what `missing` names is gone or was changed.";
            return Ok(Err((why.to_owned(), rewrites)));
        }
        if !is_whole {
            let why = format!("The summary of version {} was erased.", record.version);
            return Ok(Err((why, rewrites)));
        }
        if record.renderer != i64::from(RENDERER_VERSION) {
            let why = format!(
                "It was rendered by version {} of the renderer; this server has version {RENDERER_VERSION}.",
                record.renderer
            );
            return Ok(Err((why, rewrites)));
        }
        let frame = self
            .load_frame(key, view, Carry::As(record.carries))
            .await?;
        let format = Format::parse(&record.format).unwrap_or_default();
        let reader = || {
            TailReader::new(
                self.database().clone(),
                key,
                &frame.view,
                Overlay::default(),
            )
        };
        let breakpoints = serde_json::from_str(&record.source_breakpoints).unwrap_or_default();
        let built = build(&frame, reader(), format, breakpoints, None).await?;
        if built.digest != record.digest {
            let why = "What is stored no longer gives the bytes that were sent.".to_owned();
            return Ok(Err((why, rewrites)));
        }
        Ok(Ok(match built.rendered {
            Some(rendered) => rendered,
            None => read_some(&frame, reader()).await?,
        }))
    }

    /// The dispatches before a number, newest first; the flag says whether more follow.
    ///
    /// # Errors
    /// There is no such session, or the database failed.
    pub async fn list_dispatches(
        &self,
        caller: Caller,
        session: &str,
        before: i64,
        limit: usize,
    ) -> Result<(Vec<DispatchRow>, bool), ServiceError> {
        let key = key(caller, session)?;
        self.load_head(key, session).await?;
        Ok(self.database().list_dispatches(key, before, limit).await?)
    }
}
