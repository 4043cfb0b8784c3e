//! Deleting an item: the newest is taken back, any other is erased. And knowing one that is sent again.
//!
//! Which of the two it is gets decided where the session's row is held, so that an append which comes
//! meanwhile is never taken back with it.

use futures_util::future::BoxFuture;
use serde_json::Value;

use super::edits::{EditMessage, EditRefusal};
use super::rewrites::Rewind;
use super::sessions::lock_idle;
use super::{Conn, Result, SessionKey, Timestamp, Write, on_both};
use crate::domain::items;
use crate::domain::message::Message;

/// Deletes the row of an item.
#[derive(Debug, Clone)]
pub struct DeleteItem {
    /// Which session.
    pub key: SessionKey,
    /// The row's id.
    pub id: String,
    /// When.
    pub now: Timestamp,
}

impl Write for DeleteItem {
    type Output = Result<(), EditRefusal>;

    fn erases(&self) -> bool {
        true
    }

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            let (key, now) = (self.key, self.now);
            if let Err(refusal) = lock_idle(conn, key, now).await? {
                return Ok(Err(EditRefusal::Session(refusal)));
            }
            let found: Option<(i64, bool)> = on_both!(conn, c => sqlx::query_as(
                "SELECT seq, erased FROM messages WHERE tenant_id = $1 AND session_id = $2 AND id = $3"
            )
            .bind(key.tenant.0)
            .bind(key.session)
            .bind(&self.id)
            .fetch_optional(c)
            .await)?;
            let Some((seq, false)) = found else {
                return Ok(Err(EditRefusal::NotFound));
            };
            // What was erased before is no item any more: it goes with the newest that is, on either side of it.
            let newest: Vec<i64> = on_both!(conn, c => sqlx::query_scalar(
                "SELECT seq FROM messages WHERE tenant_id = $1 AND session_id = $2 AND NOT erased \
                 ORDER BY seq DESC LIMIT 2"
            )
            .bind(key.tenant.0)
            .bind(key.session)
            .fetch_all(c)
            .await)?;
            if newest.first() == Some(&seq) {
                let to_seq = newest.get(1).copied().unwrap_or(0);
                let rewound = Rewind { key, to_seq, now }.run(conn).await?;
                return Ok(rewound.map(drop).map_err(EditRefusal::Session));
            }
            let erase = EditMessage {
                key,
                id: self.id.clone(),
                message: None,
                chunks: Vec::new(),
                now,
            };
            Ok(erase.run(conn).await?.map(drop))
        })
    }
}

/// Whether an item is the stored one of that id, spelled otherwise or with what the service adds when it shows it.
pub(super) async fn is_same(
    conn: &mut Conn<'_>,
    key: SessionKey,
    id: &str,
    message: &Message,
) -> Result<bool> {
    let Some(sent) = &message.item else {
        return Ok(false);
    };
    let stored: Option<Option<String>> = on_both!(conn, c => sqlx::query_scalar(
        "SELECT item FROM messages WHERE tenant_id = $1 AND session_id = $2 AND id = $3"
    )
    .bind(key.tenant.0)
    .bind(key.session)
    .bind(id)
    .fetch_optional(c)
    .await)?;
    let Some(stored) = stored.flatten().filter(|item| !item.is_empty()) else {
        return Ok(false);
    };
    let read = |item: &str| serde_json::from_str::<Value>(&items::show(item, id)).ok();
    let (stored, sent) = (read(&stored), read(sent));
    Ok(stored
        .zip(sent)
        .is_some_and(|(stored, sent)| says_same(&stored, &sent)))
}

/// Whether two values are the same, also if one spells a number as `1` and the other as `1.0`.
fn says_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || (a.is_f64() || b.is_f64()) && a.as_f64() == b.as_f64()
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| says_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let same = |(name, a): (&String, &Value)| b.get(name).is_some_and(|b| says_same(a, b));
            a.len() == b.len() && a.iter().all(same)
        }
        (one, other) => one == other,
    }
}
