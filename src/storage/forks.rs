//! Forking: a new session with the same history, copied within the database and visible when whole.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::changes::Edit;
use super::rewrites::{activate_newest, coverable, settle};
use super::sessions::{SessionRow, count_events, lock, store_labels};
use super::{Conn, Result, SessionKey, Timestamp, Write, events, on_both, spell};
use crate::domain::event::Event;

/// Copies a session up to a `seq`.
#[derive(Debug, Clone)]
pub struct Fork {
    /// What is copied.
    pub key: SessionKey,
    /// The id of the copy.
    pub new_id: Uuid,
    /// The last `seq` that is copied; all if it is larger than the session's.
    pub at_seq: i64,
    /// The copy's title, if it is another.
    pub title: Edit,
    /// The copy's metadata with what can be filtered by, if it is another.
    pub metadata: Option<(String, Vec<(String, String)>)>,
    /// When.
    pub now: Timestamp,
}

impl Write for Fork {
    /// `None` if there is no such session.
    type Output = Option<SessionRow>;

    fn run<'t>(&'t self, conn: &'t mut Conn<'_>) -> BoxFuture<'t, Result<Self::Output>> {
        Box::pin(async move {
            // The lock keeps appends away, so that the copy is of one moment.
            let Some(parent) = lock(conn, self.key).await? else {
                return Ok(None);
            };
            let key = SessionKey {
                session: self.new_id,
                ..self.key
            };
            let last_seq = parent.last_seq.min(self.at_seq);
            self.copy_session(conn, &parent).await?;
            self.copy_rows(conn).await?;
            if last_seq < parent.last_seq {
                settle(conn, key, last_seq, None, self.now).await?;
            }
            let limit = coverable(conn, key).await?.min(last_seq);
            if parent.compact_seq > limit {
                activate_newest(conn, key).await?;
            }
            let fork = count_events(conn, key, 1).await?;
            let event = Event::SessionCreated {
                forked_from: Some(self.key.session),
                totals: fork.totals(),
            };
            events::insert(conn, key, fork.event_seq, &[event], self.now).await?;
            Ok(Some(fork))
        })
    }
}

impl Fork {
    async fn copy_session(&self, conn: &mut Conn<'_>, parent: &SessionRow) -> Result<()> {
        let metadata = self
            .metadata
            .as_ref()
            .map_or(&parent.metadata, |(text, _)| text);
        let title = match &self.title {
            Edit::Keep => parent.title(),
            Edit::Set(title) => title.clone(),
        };
        on_both!(conn, c => sqlx::query(
            "INSERT INTO sessions (tenant_id, id, agent_name, agent, mode, status, title, model, \
             model_thinking, instance_folder, metadata, compaction, pruning, auto_compact, \
             compact_summary, compact_size, compact_count, compaction_version, compact_seq, \
             compact_length, compact_tokens, compact_bytes, last_seq, message_count, position_count, \
             history_length, history_tokens, history_bytes, instruction_tokens, tail, created_at, \
             updated_at, retention_days) SELECT tenant_id, $3, agent_name, agent, mode, 'active', $4, model, \
             model_thinking, instance_folder, $5, compaction, pruning, auto_compact, compact_summary, \
             compact_size, compact_count, compaction_version, compact_seq, compact_length, \
             compact_tokens, compact_bytes, last_seq, message_count, position_count, history_length, \
             history_tokens, history_bytes, instruction_tokens, tail, $6, $6, retention_days \
             FROM sessions WHERE tenant_id = $1 AND id = $2"
        )
        .bind(self.key.tenant.0)
        .bind(self.key.session)
        .bind(self.new_id)
        .bind(spell(title.as_deref()))
        .bind(metadata)
        .bind(self.now)
        .execute(c)
        .await
        .map(drop))?;
        let Some((_, labels)) = &self.metadata else {
            on_both!(conn, c => sqlx::query(
                "INSERT INTO session_metadata (tenant_id, digest, session_id) SELECT tenant_id, digest, \
                 $3 FROM session_metadata WHERE tenant_id = $1 AND session_id = $2"
            )
            .bind(self.key.tenant.0)
            .bind(self.key.session)
            .bind(self.new_id)
            .execute(c)
            .await
            .map(drop))?;
            return Ok(());
        };
        let key = SessionKey {
            session: self.new_id,
            ..self.key
        };
        store_labels(conn, key, labels).await
    }

    async fn copy_rows(&self, conn: &mut Conn<'_>) -> Result<()> {
        for statement in [
            "INSERT INTO messages (tenant_id, session_id, seq, position, id, role, starts_turn, \
             starts_group, erased, incomplete, length, tokens, length_before, tokens_before, \
             bytes_before, call_index, tool_name, created_at, body_digest, content_digest, calls, usage, \
             fill, item, body) SELECT tenant_id, $3, seq, position, id, role, starts_turn, starts_group, \
             erased, incomplete, length, tokens, length_before, tokens_before, bytes_before, call_index, \
             tool_name, created_at, body_digest, content_digest, calls, usage, fill, item, body \
             FROM messages WHERE tenant_id = $1 AND session_id = $2 AND seq <= $4",
            "INSERT INTO compactions (tenant_id, session_id, version, id, based_on, from_position, \
             to_position, to_seq, digest, batch_length, summary_length, summary_tokens, compact_count, \
             keep_tokens, keep_recent_turns, boundary, instructions, cause, method, model, usage, parts, \
             shortened, duration_ms, created_at, note, summary) SELECT tenant_id, $3, version, id, based_on, \
             from_position, to_position, to_seq, digest, batch_length, summary_length, summary_tokens, \
             compact_count, keep_tokens, keep_recent_turns, boundary, instructions, cause, method, \
             model, usage, parts, shortened, duration_ms, created_at, note, summary \
             FROM compactions WHERE tenant_id = $1 AND session_id = $2 AND to_seq <= $4",
            // The copy has dispatched nothing yet, so its plans are those that it came with.
            "INSERT INTO elisions (tenant_id, session_id, version, seq, dispatch, rule, names_seq, \
             body_length, body_digest, tokens, saved_tokens, arguments, replacement) SELECT tenant_id, \
             $3, version, seq, 0, rule, names_seq, body_length, body_digest, tokens, saved_tokens, \
             arguments, replacement FROM elisions WHERE tenant_id = $1 AND session_id = $2 \
             AND seq <= $4 AND coalesce(names_seq, 0) <= $4 AND (version = 0 OR version IN (SELECT \
             version FROM compactions WHERE tenant_id = $1 AND session_id = $2 AND to_seq <= $4))",
        ] {
            on_both!(conn, c => sqlx::query(statement)
                .bind(self.key.tenant.0)
                .bind(self.key.session)
                .bind(self.new_id)
                .bind(self.at_seq)
                .execute(c)
                .await
                .map(drop))?;
        }
        Ok(())
    }
}
