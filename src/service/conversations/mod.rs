//! Conversations: sessions as the conversations API sees them.
//!
//! A conversation is a session by another name, its items are the session's messages. What an item
//! shows in a context, and how one goes out, is `domain::items`'; errors in that API's shape are HTTP's.

mod compact;
mod list;

pub use compact::{CompactItems, CompactedItems, CompactionForm};
pub use list::{ItemPage, ListItems, ShownItem};

use std::time::Duration;

use serde_json::value::RawValue;

use super::error::{refused, shorten};
use super::messages::ReadAppend;
use super::once::Shown;
use super::{
    Appended, Caller, CreateRequest, PatchRequest, RequestKey, Service, ServiceError, Session, key,
};
use crate::domain::ids::conversation_id;
use crate::domain::items;
use crate::domain::json;
use crate::domain::message::Message;
use crate::domain::pairing::{Counters, Tail, place};
use crate::storage::{Again, DeleteItem, EditRefusal, Kept, MessageRow, SessionKey};

/// For how long an append may be made again without a key. Clients whose answer was lost come back within seconds.
const RETRIED_WITHIN: Duration = Duration::from_mins(1);

/// A conversation.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// Its id.
    pub id: String,
    /// When it was made, in seconds since 1970.
    pub created_at: i64,
    /// Names and values, both texts.
    pub metadata: Vec<(String, String)>,
}

impl Conversation {
    /// A session as a conversation.
    #[must_use]
    pub fn of(session: &Session) -> Self {
        let member = |member: json::Member<'_>| {
            // A session may hold more than texts there; a conversation does not.
            let value = json::decode_string(member.value);
            let value = value.map_or_else(|| member.value.to_owned(), Into::into);
            (member.name.into_owned(), value)
        };
        let metadata = json::members(&session.row.metadata);
        Self {
            id: conversation_id(session.row.id),
            created_at: session.row.created_at.0.div_euclid(1_000_000),
            metadata: metadata.into_iter().map(member).collect(),
        }
    }
}

impl Service {
    /// Reads items and gives an id to each that brings none.
    fn read_items(&self, texts: &[&RawValue]) -> Result<Vec<(String, Message)>, ServiceError> {
        let read = self.read_each(texts, |text, index| {
            let (id, message) = self.read_item(text, index)?;
            items::check_own_id(&message)
                .map_err(|fault| ServiceError::InvalidMessage { index, fault })?;
            Ok((id, message))
        });
        read.map_err(of_items)
    }

    /// Reads an item within its bounds and gives an id to one that brings none.
    fn read_item(&self, text: &str, index: usize) -> Result<(String, Message), ServiceError> {
        let limit = self.bounds().message_bytes;
        let check = |bytes: usize| {
            if bytes <= limit {
                return Ok(());
            }
            Err(ServiceError::MessageTooLarge {
                index,
                bytes,
                limit,
            })
        };
        check(text.len())?;
        let mut message =
            items::read(text).map_err(|fault| ServiceError::InvalidMessage { index, fault })?;
        // What a context shows of it may be longer.
        check(message.body.len())?;
        self.inner.counter.count(&mut message);
        let id = match &message.annotations.id {
            Some(id) => id.clone(),
            None => self.item_id(text),
        };
        Ok((id, message))
    }

    fn item_id(&self, item: &str) -> String {
        format!("{}{}", items::prefix(item), self.new_id().simple())
    }

    /// Creates a conversation with its first items.
    ///
    /// # Errors
    /// An item does not fit, or the database failed.
    pub async fn create_conversation(
        &self,
        caller: Caller,
        items: &[&RawValue],
        metadata: Option<&RawValue>,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Conversation, ServiceError> {
        self.check_size("metadata", metadata)?;
        let items = self.read_items(items)?;
        let placement = place(Counters::default(), Tail::default(), items)
            .map_err(|(index, fault)| ServiceError::ToolCallNotFound { index, fault })?;
        let request = CreateRequest {
            metadata,
            ..CreateRequest::default()
        };
        let new = self.new_session(None, request, placement)?;
        let session = self.store_session(caller, new, once).await?;
        Ok(Conversation::of(&session))
    }

    /// A conversation.
    ///
    /// # Errors
    /// There is none of this id, or the database failed.
    pub async fn load_conversation(
        &self,
        caller: Caller,
        id: &str,
    ) -> Result<Conversation, ServiceError> {
        Ok(Conversation::of(&self.load_session(caller, id).await?))
    }

    /// Gives a conversation other metadata.
    ///
    /// # Errors
    /// There is none of this id, it is closed, or the database failed.
    pub async fn update_conversation(
        &self,
        caller: Caller,
        id: &str,
        metadata: &RawValue,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Conversation, ServiceError> {
        let request = PatchRequest {
            metadata: Some(metadata),
            ..PatchRequest::default()
        };
        let session = self.patch_session(caller, id, request, once).await?;
        Ok(Conversation::of(&session))
    }

    /// Deletes a conversation with its items; gives its id.
    ///
    /// # Errors
    /// There is none of this id, or the database failed.
    pub async fn delete_conversation(
        &self,
        caller: Caller,
        id: &str,
    ) -> Result<String, ServiceError> {
        let session = key(caller, id)?.session;
        self.delete_session(caller, id).await?;
        Ok(conversation_id(session))
    }

    /// Appends items: all, or none. Those of a request that a client has `retried`, for want of an answer, are not
    /// stored again if they are the newest there are.
    ///
    /// # Errors
    /// What of the request does not fit; or the database failed.
    pub async fn append_items(
        &self,
        caller: Caller,
        conversation: &str,
        texts: &[&RawValue],
        retried: bool,
        once: Option<&RequestKey>,
    ) -> Result<Vec<ShownItem>, ServiceError> {
        let since = self.now().minus(RETRIED_WITHIN);
        let append = ReadAppend {
            messages: self.read_items(texts)?,
            expected_last_seq: None,
            again: if retried {
                Again::IfNewest { since }
            } else {
                Again::No
            },
        };
        let appended = self.append_read(caller, conversation, append, once).await;
        Ok(show_appended(appended.map_err(of_items)?))
    }

    /// The items of an append as they were shown when it was made first.
    ///
    /// # Errors
    /// They are not there any more, or the database failed.
    pub async fn repeat_append_items(
        &self,
        caller: Caller,
        conversation: &str,
        kept: &Kept,
    ) -> Result<Vec<ShownItem>, ServiceError> {
        let appended = self.repeat_append(caller, conversation, kept).await?;
        Ok(show_appended(appended))
    }

    /// Deletes an item: the newest is taken back as a rewind does it, any other is erased.
    ///
    /// # Errors
    /// There is no such conversation or item, the item is a part of a message, or the database failed.
    pub async fn delete_item(
        &self,
        caller: Caller,
        conversation: &str,
        item: &str,
    ) -> Result<Conversation, ServiceError> {
        let key = key(caller, conversation)?;
        let row = self.find_item(key, conversation, item).await?;
        let parts = list::items_of(&row);
        if row.id != item && parts.len() > 1 && !items::is_whole(item) {
            return Err(ServiceError::PartOfMessage { message: row.id });
        }
        let delete = DeleteItem {
            key,
            id: row.id,
            now: self.now(),
        };
        let deleted = self.database().write(delete).await?;
        deleted.map_err(|refusal| match refusal {
            EditRefusal::Session(refusal) => refused(refusal, conversation),
            EditRefusal::NotFound | EditRefusal::Identity(_) => item_not_found(item),
        })?;
        self.load_conversation(caller, conversation).await
    }

    /// The row that an item comes from, or came from before it was erased.
    async fn find_item(
        &self,
        key: SessionKey,
        conversation: &str,
        item: &str,
    ) -> Result<MessageRow, ServiceError> {
        let head = self.load_head(key, conversation).await?;
        if !items::is_id(item) {
            return Err(item_not_found(item));
        }
        let part_of = items::row_of(item);
        let row = self
            .database()
            .find_message(key, part_of.unwrap_or(item), head.compaction_version)
            .await?;
        let is_its = |row: &MessageRow| {
            let is_part = || list::items_of(row).iter().any(|shown| shown.id == item);
            part_of.is_none() || !row.is_item && (row.erased || is_part())
        };
        row.filter(is_its).ok_or_else(|| item_not_found(item))
    }
}

fn show_appended(appended: Appended) -> Vec<ShownItem> {
    let shown = appended.messages.into_iter().map(|row| ShownItem {
        text: items::show(&row.message, &row.id),
        id: row.id,
    });
    shown.collect()
}

/// The same in the words of items.
fn of_items(error: ServiceError) -> ServiceError {
    match error {
        ServiceError::MessageIdTaken { index } => ServiceError::ItemIdTaken { index },
        error => error,
    }
}

fn item_not_found(item: &str) -> ServiceError {
    ServiceError::ItemNotFound { id: shorten(item) }
}
