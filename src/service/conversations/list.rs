//! Listing items, and finding one. The list is faithful: it shows every item that was not deleted,
//! whatever a summary stands for.

use super::super::{Caller, Service, ServiceError, key};
use super::item_not_found;
use crate::domain::items;
use crate::storage::{MessageFilter, MessageRow, Order};

/// Which items to list.
#[derive(Debug, Clone)]
pub struct ListItems {
    /// Only what comes behind this item.
    pub after: Option<String>,
    /// How many at most.
    pub limit: usize,
    /// Which way.
    pub order: Order,
}

/// An item as it goes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownItem {
    /// Its id.
    pub id: String,
    /// Its JSON text.
    pub text: String,
}

/// Some items, in the order that was asked for.
#[derive(Debug)]
pub struct ItemPage {
    /// The items.
    pub items: Vec<ShownItem>,
    /// More follow.
    pub has_more: bool,
}

/// What a row reads as: an item as it came, a chat message as one or several, an erased one as none.
pub(super) fn items_of(row: &MessageRow) -> Vec<ShownItem> {
    if row.erased {
        return Vec::new();
    }
    if row.is_item {
        return vec![ShownItem {
            id: row.id.clone(),
            text: items::show(&row.body, &row.id),
        }];
    }
    let derived = items::derive(&row.id, &row.body).into_iter();
    let shown = derived.map(|item| ShownItem {
        id: item.id,
        text: item.text,
    });
    shown.collect()
}

impl Service {
    /// Items of a conversation.
    ///
    /// # Errors
    /// There is no such conversation, no item to begin behind, or the database failed.
    pub async fn list_items(
        &self,
        caller: Caller,
        conversation: &str,
        list: &ListItems,
    ) -> Result<ItemPage, ServiceError> {
        let key = key(caller, conversation)?;
        let head = self.load_head(key, conversation).await?;
        let mut filter = MessageFilter {
            after_seq: 0,
            before_seq: i64::MAX,
            role: None,
            order: list.order,
        };
        // A message may be several items, so the one of the item itself is read again.
        if let Some(after) = &list.after {
            let row = self.find_item(key, conversation, after).await?;
            move_on(&mut filter, row.seq, true);
        }
        let mut page = ItemPage {
            items: Vec::new(),
            has_more: false,
        };
        let mut behind = list.after.as_deref();
        loop {
            let wanted = list.limit + 2 - page.items.len().min(list.limit);
            let (rows, more) = self
                .database()
                .list_messages(key, &filter, head.compaction_version, wanted)
                .await?;
            let is_full = rows.len() == wanted;
            let newest = rows.last().map(|row| row.seq);
            for row in &rows {
                let mut items = items_of(row);
                if list.order == Order::Desc {
                    items.reverse();
                }
                if let Some(after) = behind.take() {
                    let at = items.iter().position(|item| item.id == after);
                    // Named by its message, it stands for all that the message reads as.
                    items.drain(..at.map_or(items.len(), |at| at + 1));
                }
                page.items.extend(items);
            }
            if page.items.len() > list.limit {
                page.items.truncate(list.limit);
                page.has_more = true;
                return Ok(page);
            }
            match newest.filter(|_| more) {
                None => return Ok(page),
                // Large items make a small page.
                Some(_) if !is_full && !page.items.is_empty() => {
                    page.has_more = true;
                    return Ok(page);
                }
                Some(seq) => move_on(&mut filter, seq, false),
            }
        }
    }

    /// One item of a conversation.
    ///
    /// # Errors
    /// There is no such conversation or item, or the database failed.
    pub async fn load_item(
        &self,
        caller: Caller,
        conversation: &str,
        item: &str,
    ) -> Result<ShownItem, ServiceError> {
        let key = key(caller, conversation)?;
        let row = self.find_item(key, conversation, item).await?;
        let mut items = items_of(&row);
        let at = items.iter().position(|shown| shown.id == item).unwrap_or(0);
        if at < items.len() {
            return Ok(items.swap_remove(at));
        }
        Err(item_not_found(item))
    }
}

fn move_on(filter: &mut MessageFilter, seq: i64, with_it: bool) {
    let step = i64::from(with_it);
    match filter.order {
        Order::Asc => filter.after_seq = seq - step,
        Order::Desc => filter.before_seq = seq + step,
    }
}
