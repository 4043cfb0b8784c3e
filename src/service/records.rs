//! Reading what work with a model left behind: the chain of compactions, and turns.

use uuid::Uuid;

use super::error::shorten;
use super::{Caller, Service, ServiceError, Turn, ids, key};
use crate::storage::{CompactionRow, TurnRow};

impl Service {
    /// One record of the chain.
    ///
    /// # Errors
    /// There is no such session or version, or the database failed.
    pub async fn load_compaction(
        &self,
        caller: Caller,
        id: &str,
        version: i64,
    ) -> Result<CompactionRow, ServiceError> {
        self.load_session(caller, id).await?;
        let key = key(caller, id)?;
        let found = self.database().find_compaction(key, version).await?;
        found.ok_or(ServiceError::CompactionNotFound { version })
    }

    /// The chain behind a version, oldest first; the flag says whether more follow.
    ///
    /// # Errors
    /// There is no such session, or the database failed.
    pub async fn list_compactions(
        &self,
        caller: Caller,
        id: &str,
        after_version: i64,
        limit: usize,
    ) -> Result<(Vec<CompactionRow>, bool), ServiceError> {
        self.load_session(caller, id).await?;
        let key = key(caller, id)?;
        let database = self.database();
        Ok(database.list_compactions(key, after_version, limit).await?)
    }

    /// One turn of a session.
    ///
    /// # Errors
    /// There is no such session or turn, or the database failed.
    pub async fn load_turn(
        &self,
        caller: Caller,
        session: &str,
        id: &str,
    ) -> Result<Turn, ServiceError> {
        let key = key(caller, session)?;
        self.load_head(key, session).await?;
        let not_found = || ServiceError::TurnNotFound { id: shorten(id) };
        let uuid = ids::parse_turn_id(id).ok_or_else(not_found)?;
        let row = self.database().find_turn(key, uuid).await?;
        self.show_turn(key, row.ok_or_else(not_found)?).await
    }

    /// The turns before one, newest first, without their messages; the flag says whether more follow.
    ///
    /// # Errors
    /// There is no such session, or the database failed.
    pub async fn list_turns(
        &self,
        caller: Caller,
        session: &str,
        before: Uuid,
        limit: usize,
    ) -> Result<(Vec<TurnRow>, bool), ServiceError> {
        let key = key(caller, session)?;
        self.load_head(key, session).await?;
        Ok(self.database().list_turns(key, before, limit).await?)
    }
}
