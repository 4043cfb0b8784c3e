//! Rewriting a history: rewind, fork, restore, edit, erase.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::{refused, shorten};
use super::once::{Shown, session_kept};
use super::search::index_chunks;
use super::sessions::labels;
use super::{Caller, ListedMessage, Service, ServiceError, Session, key};
use crate::domain::message::{Identity, Message};
use crate::storage::{
    Edit, EditMessage, EditRefusal, Fork, Restore, RestoreRefusal, Rewind, SessionRow, WriteRefusal,
};

/// How far to go back.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RewindRequest {
    /// The last `seq` that stays.
    #[serde(deserialize_with = "super::sessions::whole")]
    pub to_seq: Option<i64>,
}

/// What is copied, and what is other about the copy.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the schema describes the members")]
pub struct ForkRequest<'a> {
    #[serde(deserialize_with = "super::sessions::whole")]
    pub at_seq: Option<i64>,
    pub title: Edit,
    #[serde(borrow)]
    pub metadata: Option<&'a RawValue>,
}

impl Service {
    /// Forgets every message behind a `seq`.
    ///
    /// # Errors
    /// There is no such session, it is closed, or the database failed.
    pub async fn rewind(
        &self,
        caller: Caller,
        id: &str,
        request: RewindRequest,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Session, ServiceError> {
        let rewind = Rewind {
            key: key(caller, id)?,
            to_seq: request.to_seq.unwrap_or(i64::MAX),
            now: self.now(),
        };
        let row = self.write_shown(rewind.key, rewind, once).await?;
        Session::read(row.map_err(|refusal| refused(refusal, id))?)
    }

    /// Copies a session up to a `seq`, with its summaries and settings.
    ///
    /// # Errors
    /// There is no such session, or the database failed.
    pub async fn fork(
        &self,
        caller: Caller,
        id: &str,
        request: ForkRequest<'_>,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Session, ServiceError> {
        self.check_size("metadata", request.metadata)?;
        let key = key(caller, id)?;
        self.admit_copy(key).await?;
        let fork = Fork {
            key,
            new_id: self.new_id(),
            at_seq: request.at_seq.unwrap_or(i64::MAX),
            title: request.title,
            metadata: request
                .metadata
                .map(|raw| (raw.get().to_owned(), labels(raw.get()))),
            now: self.now(),
        };
        let (request, show) = once.unzip();
        let keep = move |row: &Option<SessionRow>| match (row, show) {
            (Some(row), Some(show)) => session_kept(row, show).map(Some),
            _ => Ok(None),
        };
        let row = self.write_once(caller.tenant, request, fork, keep).await?;
        Session::read(row.ok_or_else(|| refused(WriteRefusal::NotFound, id))?)
    }

    /// Makes an old version of the summary the active one; 0 for none.
    ///
    /// # Errors
    /// There is no such session or version, the session is closed, what the version covers has
    /// changed, or the database failed.
    pub async fn restore(
        &self,
        caller: Caller,
        id: &str,
        version: i64,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Session, ServiceError> {
        let restore = Restore {
            key: key(caller, id)?,
            version,
            now: self.now(),
        };
        let row = self.write_shown(restore.key, restore, once).await?;
        Session::read(row.map_err(|refusal| match refusal {
            RestoreRefusal::Session(refusal) => refused(refusal, id),
            RestoreRefusal::NotFound => ServiceError::CompactionNotFound { version },
            RestoreRefusal::Stale => ServiceError::VersionStale { version },
        })?)
    }

    /// Replaces a message by another of the same role and the same calls.
    ///
    /// # Errors
    /// There is no such session or message, the session is closed, the message cannot be taken, or
    /// the database failed.
    pub async fn replace_message(
        &self,
        caller: Caller,
        id: &str,
        message: &str,
        text: &str,
    ) -> Result<ListedMessage, ServiceError> {
        let bounds = self.bounds();
        if text.len() > bounds.message_bytes {
            return Err(ServiceError::MessageTooLarge {
                index: 0,
                bytes: text.len(),
                limit: bounds.message_bytes,
            });
        }
        let new = self.read_message(text, 0)?;
        if new
            .annotations
            .id
            .as_deref()
            .is_some_and(|given| given != message)
        {
            return Err(ServiceError::IdentityChanged(Identity::Id));
        }
        self.admit_bytes(caller.tenant, text.len()).await?;
        self.edit(caller, id, message, Some(new)).await
    }

    /// Erases a message: its place stays, its content is gone for good. Erasing it again changes nothing.
    ///
    /// # Errors
    /// There is no such session or message, the session is closed, or the database failed.
    pub async fn erase_message(
        &self,
        caller: Caller,
        id: &str,
        message: &str,
    ) -> Result<(), ServiceError> {
        self.edit(caller, id, message, None).await.map(drop)
    }

    async fn edit(
        &self,
        caller: Caller,
        id: &str,
        message: &str,
        new: Option<Message>,
    ) -> Result<ListedMessage, ServiceError> {
        let chunks = match &new {
            Some(new) => index_chunks(vec![(0, new.body.clone())]).await?,
            None => Vec::new(),
        };
        let edit = EditMessage {
            chunks,
            key: key(caller, id)?,
            id: message.to_owned(),
            message: new,
            now: self.now(),
        };
        let edited = self.database().write(edit).await?;
        let (row, compact_size) = edited.map_err(|refusal| match refusal {
            EditRefusal::Session(refusal) => refused(refusal, id),
            EditRefusal::NotFound => ServiceError::MessageNotFound {
                id: shorten(message),
            },
            EditRefusal::Identity(identity) => ServiceError::IdentityChanged(identity),
        })?;
        Ok(ListedMessage::of(row, compact_size))
    }
}
