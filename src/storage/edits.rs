//! Editing one message: replacing it, or taking its content away.
//!
//! Its place stays. What told of the old content goes with it in the same transaction: summaries that
//! cover it, the plan's edits of it, its terms in the index.

use futures_util::future::BoxFuture;

use super::dispatches::note_rewrite;
use super::elisions;
use super::messages::{MessageRow, listed};
use super::once;
use super::rewrites::{activate_newest, finish, forget_summaries, settle, signed};
use super::search::{self, IndexChunk};
use super::sessions::{WriteRefusal, lock_idle};
use super::{Conn, Result, SessionKey, StorageError, Timestamp, Write, on_both, spell};
use crate::domain::event::Change;
use crate::domain::items;
use crate::domain::message::{Identity, Message, Role};

/// Replaces one message by another of the same role and the same calls.
#[derive(Debug, Clone)]
pub struct EditMessage {
    /// Which session.
    pub key: SessionKey,
    /// Which message.
    pub id: String,
    /// What it becomes; `None` erases its content.
    pub message: Option<Message>,
    /// What it is found by then.
    pub chunks: Vec<IndexChunk>,
    /// When.
    pub now: Timestamp,
}

/// Why a message is not replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EditRefusal {
    /// The session takes no writes.
    Session(WriteRefusal),
    /// There is no such message.
    NotFound,
    /// Its role, its calls or what it answers would change.
    Identity(Identity),
}

#[derive(sqlx::FromRow)]
struct Edited {
    seq: i64,
    position: Option<i64>,
    erased: bool,
    length: i64,
    tokens: i64,
    is_item: bool,
    bytes: i64,
    body: String,
}

impl Edited {
    /// The message as it is stored; one that shows nothing has no content and no calls.
    fn stored(&self) -> Result<Message> {
        let text = if self.body.is_empty() {
            items::NOTHING_LEFT
        } else {
            &self.body
        };
        Message::read(text).map_err(|_| StorageError::Corrupt("messages.body"))
    }

    /// What is left of it when it is erased. An item without text or call has nothing to be replaced by a word.
    fn erased(&self, stored: &Message) -> Result<Message> {
        let silent = self.is_item && stored.size.units == 0 && stored.answers.is_none();
        let text = if silent && stored.role == Role::Assistant {
            items::NOTHING_LEFT.to_owned()
        } else {
            stored.erased()
        };
        let shown = if self.body.is_empty() { "" } else { &text };
        let left = if self.is_item {
            items::erased(shown)
        } else {
            Message::read(&text)
        };
        left.map_err(|_| StorageError::Corrupt("an erased message"))
    }
}

impl Write for EditMessage {
    type Output = Result<(MessageRow, i64), EditRefusal>;

    fn erases(&self) -> bool {
        true
    }

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            let session = match lock_idle(conn, self.key, self.now).await? {
                Ok(session) => session,
                Err(refusal) => return Ok(Err(EditRefusal::Session(refusal))),
            };
            let found: Option<Edited> = on_both!(conn, c => sqlx::query_as(
                "SELECT seq, position, erased, length, tokens, item IS NOT NULL AS is_item, \
                 CAST(octet_length(body) + coalesce(octet_length(item), 0) AS BIGINT) AS bytes, body FROM messages \
                 WHERE tenant_id = $1 AND session_id = $2 AND id = $3"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(&self.id)
            .fetch_optional(c)
            .await)?;
            let Some(old) = found else {
                return Ok(Err(EditRefusal::NotFound));
            };
            if old.is_item && self.message.is_some() {
                return Ok(Err(EditRefusal::Identity(Identity::Form)));
            }
            let stored = old.stored()?;
            let new = match &self.message {
                Some(message) => message.clone(),
                None => old.erased(&stored)?,
            };
            if let Some(fault) = stored.changed_identity(&new) {
                return Ok(Err(EditRefusal::Identity(fault)));
            }
            let mut compact_size = session.compact_size;
            // Erased already: there is nothing left to take away.
            if !(self.message.is_none() && old.erased) {
                self.replace(conn, &old, &stored, &new).await?;
                if old.position.is_some() {
                    forget_summaries(conn, self.key, old.seq).await?;
                }
                elisions::forget(conn, self.key, old.seq, old.seq).await?;
                once::forget_answers(conn, self.key).await?;
                let kept = session.tail()?;
                settle(conn, self.key, session.last_seq, Some(&kept), self.now).await?;
                let kind = match self.message {
                    Some(_) => "replaced",
                    None => "erased",
                };
                note_rewrite(conn, self.key, kind, old.seq, Some(&self.id), self.now).await?;
                if old.position.is_some() && session.compact_seq >= old.seq {
                    activate_newest(conn, self.key).await?;
                }
                let reason = match self.message {
                    Some(_) => Change::Edit,
                    None => Change::Erase,
                };
                let after = finish(conn, self.key, reason, Some(old.seq), self.now).await?;
                compact_size = after.compact_size;
            }
            let row = on_both!(conn, c => sqlx::query_as(concat!(
                "SELECT ", listed!(), ", FALSE AS elided FROM messages \
                 WHERE tenant_id = $1 AND session_id = $2 AND seq = $3"
            ))
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(old.seq)
            .fetch_one(c)
            .await)?;
            Ok(Ok((row, compact_size)))
        })
    }
}

impl EditMessage {
    async fn replace(
        &self,
        conn: &mut Conn<'_>,
        old: &Edited,
        stored: &Message,
        new: &Message,
    ) -> Result<()> {
        let length = signed(new.size.units);
        let tokens = signed(new.tokens);
        let calls = super::messages::calls_text(new)?;
        on_both!(conn, c => sqlx::query(
            "UPDATE messages SET body = $4, length = $5, tokens = $6, body_digest = $7, \
             content_digest = $8, calls = $9, usage = $10, incomplete = $11, erased = $12, item = $13 \
             WHERE tenant_id = $1 AND session_id = $2 AND seq = $3"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(old.seq)
        .bind(&new.body)
        .bind(length)
        .bind(tokens)
        .bind(new.body_digest.to_vec())
        .bind(new.content_digest.to_vec())
        .bind(calls)
        .bind(super::messages::usage_text(new))
        .bind(new.annotations.incomplete)
        .bind(self.message.is_none())
        .bind(&new.item)
        .execute(c)
        .await
        .map(drop))?;
        if old.position.is_some() {
            on_both!(conn, c => sqlx::query(
                "UPDATE messages SET length_before = length_before + $4, \
                 tokens_before = tokens_before + $5, bytes_before = bytes_before + $6 \
                 WHERE tenant_id = $1 AND session_id = $2 AND seq > $3"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(old.seq)
            .bind(length - old.length)
            .bind(tokens - old.tokens)
            .bind(signed(new.stored_bytes() as u64) - old.bytes)
            .execute(c)
            .await
            .map(drop))?;
        }
        search::reindex(conn, self.key, old.seq, &self.chunks).await?;
        self.rename_results(conn, old.seq, stored, new).await
    }

    /// The results of a call carry its tool's name: those of calls that were renamed get the new one.
    async fn rename_results(
        &self,
        conn: &mut Conn<'_>,
        seq: i64,
        stored: &Message,
        new: &Message,
    ) -> Result<()> {
        if stored.calls == new.calls {
            return Ok(());
        }
        let results: Vec<(i64, i64)> = on_both!(conn, c => sqlx::query_as(
            "SELECT seq, call_index FROM messages WHERE tenant_id = $1 AND session_id = $2 \
             AND seq > $3 AND call_index IS NOT NULL AND seq < (SELECT coalesce(min(seq), $4) \
             FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq > $3 AND starts_group)"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(seq)
        .bind(i64::MAX)
        .fetch_all(c)
        .await)?;
        for (seq, index) in results {
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            let name = new.calls.get(index).and_then(|call| call.name.as_deref());
            on_both!(conn, c => sqlx::query(
                "UPDATE messages SET tool_name = $4 \
                 WHERE tenant_id = $1 AND session_id = $2 AND seq = $3"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(seq)
            .bind(spell(name))
            .execute(c)
            .await
            .map(drop))?;
        }
        Ok(())
    }
}
