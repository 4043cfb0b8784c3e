//! Deleting an item: the newest is taken back, any other is erased.
//!
//! Which of the two it is gets decided where the session's row is held, so that an append which comes
//! meanwhile is never taken back with it.

use futures_util::future::BoxFuture;

use super::edits::{EditMessage, EditRefusal};
use super::rewrites::Rewind;
use super::sessions::lock_idle;
use super::{Conn, Result, SessionKey, Timestamp, Write, on_both};

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
            // What was erased before is no item any more: it goes with the newest that is.
            let newest: Option<i64> = on_both!(conn, c => sqlx::query_scalar(
                "SELECT seq FROM messages WHERE tenant_id = $1 AND session_id = $2 AND NOT erased \
                 ORDER BY seq DESC LIMIT 1"
            )
            .bind(key.tenant.0)
            .bind(key.session)
            .fetch_optional(c)
            .await)?;
            if newest == Some(seq) {
                let to_seq = seq - 1;
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
