//! Statistics of a session, and why one of its dispatches looked as it did.
//!
//! Nothing is counted here: the numbers are those that the dispatches left in the session's row and
//! in their records.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::rendering::hex;
use super::{Caller, Service, ServiceError, key};
use crate::storage::{DispatchRow, ElisionRow, StorageError};

/// Edits of one rule.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuleCount {
    /// How many the plan holds.
    pub messages: i64,
    /// Tokens that they keep from being sent each time.
    pub tokens: i64,
}

/// How much of what was sent a provider's prompt cache could have known.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrefixStability {
    /// Bytes of all dispatches that another one followed.
    pub previous_bytes: i64,
    /// How many of them the next one began with.
    pub shared_bytes: i64,
    /// One by the other, 0 to 1; `null` before the second dispatch.
    pub share: Option<f64>,
}

impl PrefixStability {
    fn of(previous_bytes: i64, shared_bytes: i64) -> Self {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a share needs no more than a float has"
        )]
        let share = (previous_bytes > 0).then(|| shared_bytes as f64 / previous_bytes as f64);
        Self {
            previous_bytes,
            shared_bytes,
            share,
        }
    }
}

/// What is known of a session in numbers.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SessionStats)]
pub struct Stats {
    /// The session.
    pub session_id: String,
    /// Messages that are stored.
    pub messages: i64,
    /// Tokens of all of them.
    pub stored_tokens: i64,
    /// Tokens of the context as it is shown now.
    pub context_tokens: i64,
    /// How tokens were counted: `estimate` or `tokenizer`.
    pub tokens_by: &'static str,
    /// Active version of the summary; 0 without one.
    pub compaction_version: i64,
    /// Compactions that were made.
    pub compactions: i64,
    /// Messages that the summary stands for.
    pub summarised_messages: i64,
    /// Dispatches that were made.
    pub dispatches: i64,
    /// Dispatches that changed the plan.
    pub plan_changes: i64,
    /// Edits that were made, those that are gone counted in.
    pub elisions: i64,
    /// Edits of the plan as it stands, by rule.
    pub plan: BTreeMap<String, RuleCount>,
    /// Tokens that edits kept from being sent, over all dispatches.
    pub tokens_saved: i64,
    /// How stable the prefix was.
    pub prefix: PrefixStability,
    /// Calls made again for something elided: a sign that pruning is too eager.
    pub refetches: i64,
    /// Elided messages that were read back.
    pub restores: i64,
}

/// An edit of a dispatch.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedEdit {
    /// The edited message.
    pub message_id: String,
    /// Its place.
    pub seq: i64,
    /// The tool whose result it is.
    pub tool: Option<String>,
    /// By which rule.
    pub rule: String,
    /// The message that its breadcrumb names.
    pub names: Option<String>,
    /// The dispatch that made it.
    pub since_dispatch: i64,
    /// Bytes that are stored.
    pub bytes: i64,
    /// Bytes that were sent.
    pub sent_bytes: i64,
    /// Tokens that were saved.
    pub saved_tokens: i64,
}

/// The record of a dispatch, as it is told.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Dispatch)]
pub struct DispatchRecord {
    /// Its number in the session, from 1.
    pub n: i64,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: crate::storage::Timestamp,
    /// The model it was made for.
    pub model: Option<String>,
    /// The form of the messages: `openai` or `anthropic`.
    pub format: String,
    /// Version of the renderer.
    pub renderer_version: i64,
    /// The session's highest `seq` then.
    pub last_seq: i64,
    /// The active version of the summary then; 0 without one.
    pub compaction_version: i64,
    /// The session's counter of rewrites then.
    pub rewrites: i64,
    /// Edits of the plan, the new ones counted in.
    pub plan_length: i64,
    /// Edits that it added to the plan.
    pub added: i64,
    /// Messages in the chat-completions form.
    pub message_count: i64,
    /// Tokens without any edit.
    pub tokens_before: i64,
    /// Tokens as it was sent.
    pub tokens_after: i64,
    /// Bytes of the messages as sent, joined by commas.
    pub bytes: i64,
    /// SHA-256 of those bytes.
    pub sha256: String,
    /// Bytes of the dispatch before, in the chat-completions form; `null` if there was none.
    pub previous_bytes: Option<i64>,
    /// How many of those it begins with.
    pub shared_bytes: Option<i64>,
    /// Calls since the dispatch before that asked again for something elided.
    pub refetches: i64,
    /// Whether it fitted the window, if one was given.
    pub fits: Option<bool>,
    /// What was asked for.
    #[schema(value_type = Object)]
    pub parameters: Box<RawValue>,
    /// What was found of each candidate.
    #[schema(value_type = Vec<Object>)]
    pub candidates: Box<RawValue>,
    /// Why it looked as it did, a line each.
    #[schema(value_type = Vec<String>)]
    pub reasons: Box<RawValue>,
    /// Indices of messages that a provider was to keep.
    #[schema(value_type = Vec<usize>)]
    pub cache_breakpoints: Box<RawValue>,
}

impl DispatchRecord {
    /// The record as it is told.
    ///
    /// # Errors
    /// A stored part is not readable.
    pub fn of(row: &DispatchRow) -> Result<Self, ServiceError> {
        let raw = |text: &String| {
            RawValue::from_string(text.clone())
                .map_err(|_| StorageError::Corrupt("a part of dispatches"))
        };
        Ok(Self {
            n: row.n,
            created_at: row.created_at,
            model: row.model(),
            format: row.format.clone(),
            renderer_version: row.renderer,
            last_seq: row.last_seq,
            compaction_version: row.version,
            rewrites: row.rewrites,
            plan_length: row.plan_length,
            added: row.added,
            message_count: row.messages,
            tokens_before: row.tokens_before,
            tokens_after: row.tokens_after,
            bytes: row.bytes,
            sha256: hex(&row.digest),
            previous_bytes: row.previous_bytes,
            shared_bytes: row.shared_bytes,
            refetches: row.refetches,
            fits: row.fits,
            parameters: raw(&row.parameters)?,
            candidates: raw(&row.candidates)?,
            reasons: raw(&row.reasons)?,
            cache_breakpoints: raw(&row.breakpoints)?,
        })
    }
}

/// Why a dispatch looked as it did.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The session.
    pub session_id: String,
    /// The record.
    pub dispatch: DispatchRecord,
    /// Messages that stood as a summary.
    pub summarised_messages: i64,
    /// What was shown otherwise than it is stored.
    pub edits: Vec<ExplainedEdit>,
    /// How much of the dispatch before it began with.
    pub prefix: PrefixStability,
    /// Whether it can be built again; if not, why.
    #[serde(serialize_with = "told")]
    pub replay: Result<(), String>,
}

/// `possible`, and if not, why.
fn told<S: serde::Serializer>(
    replay: &Result<(), String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let why = replay.as_ref().err();
    serde_json::json!({"possible": why.is_none(), "reason": why}).serialize(serializer)
}

impl Explanation {
    /// As one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// For a person.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dispatch = &self.dispatch;
        writeln!(
            f,
            "Dispatch {} of {}, {}, {} form{}",
            dispatch.n,
            self.session_id,
            dispatch.created_at,
            dispatch.format,
            dispatch
                .model
                .as_ref()
                .map_or_else(String::new, |model| format!(", for {model}")),
        )?;
        writeln!(
            f,
            "  {} messages, {} bytes; about {} tokens as stored, {} as sent ({} saved)",
            dispatch.message_count,
            dispatch.bytes,
            dispatch.tokens_before,
            dispatch.tokens_after,
            dispatch.tokens_before - dispatch.tokens_after,
        )?;
        if dispatch.compaction_version > 0 {
            writeln!(
                f,
                "  Summary: version {} stands for {} messages",
                dispatch.compaction_version, self.summarised_messages
            )?;
        } else {
            writeln!(f, "  Summary: none")?;
        }
        self.write_prefix(f)?;
        match &self.replay {
            Ok(()) => writeln!(f, "  Replay: the same bytes, SHA-256 {}", dispatch.sha256)?,
            Err(why) => writeln!(f, "  Replay: not possible. {why}")?,
        }
        if self.edits.is_empty() {
            return write!(f, "  Edits: none");
        }
        write!(
            f,
            "  Edits: {} ({} of them new with this dispatch){}",
            dispatch.plan_length,
            dispatch.added,
            match self.replay {
                Ok(()) => "",
                Err(_) => "; those whose messages are still as they were:",
            }
        )?;
        for edit in &self.edits {
            write!(
                f,
                "\n    seq {:<6} {:<10} {:>8} -> {:<6} bytes, {:>6} tokens saved, since dispatch {}, {} {}",
                edit.seq,
                edit.rule,
                edit.bytes,
                edit.sent_bytes,
                edit.saved_tokens,
                edit.since_dispatch,
                edit.tool.as_deref().unwrap_or("-"),
                edit.message_id,
            )?;
            if let Some(named) = &edit.names {
                write!(f, " (see {named})")?;
            }
        }
        Ok(())
    }
}

impl Explanation {
    fn write_prefix(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix.share {
            Some(share) => writeln!(
                f,
                "  Prompt cache: begins with {} of the {} bytes of the dispatch before ({:.1} %)",
                self.prefix.shared_bytes,
                self.prefix.previous_bytes,
                share * 100.0
            ),
            None => writeln!(f, "  Prompt cache: nothing was sent before"),
        }
    }
}

impl ExplainedEdit {
    fn of(row: ElisionRow) -> Self {
        Self {
            tool: row.tool(),
            message_id: row.message_id,
            seq: row.seq,
            rule: row.rule,
            names: row.names,
            since_dispatch: row.dispatch,
            bytes: row.bytes,
            sent_bytes: row.shown_bytes,
            saved_tokens: row.saved_tokens,
        }
    }
}

impl Service {
    /// A session in numbers.
    ///
    /// # Errors
    /// There is no such session, or the database failed.
    pub async fn stats(&self, caller: Caller, session: &str) -> Result<Stats, ServiceError> {
        let key = key(caller, session)?;
        let context = self
            .load_context(caller, session, super::Format::OpenAi, |_| false)
            .await?;
        let row = self.database().find_session(key).await?;
        let row = row.ok_or_else(|| ServiceError::session_not_found(session))?;
        let plan = self
            .database()
            .count_elisions(key, row.compaction_version)
            .await?;
        let compactions = self.database().count_compactions(key).await?;
        let count = |(rule, messages, tokens)| (rule, RuleCount { messages, tokens });
        Ok(Stats {
            session_id: session.to_owned(),
            messages: row.message_count,
            stored_tokens: row.history_tokens + row.instruction_tokens,
            context_tokens: context.map_or(0, |context| context.meta.tokens),
            tokens_by: self.inner.counter.name(),
            compaction_version: row.compaction_version,
            compactions,
            summarised_messages: row.compact_size,
            dispatches: row.dispatch_count,
            plan_changes: row.plan_changes,
            elisions: row.elisions,
            plan: plan.into_iter().map(count).collect(),
            tokens_saved: row.tokens_saved,
            prefix: PrefixStability::of(row.previous_bytes, row.shared_bytes),
            refetches: row.refetches,
            restores: row.restores,
        })
    }

    /// Why a dispatch looked as it did: the one of this number, else the newest.
    ///
    /// # Errors
    /// There is no such session or dispatch, or the database failed.
    pub async fn explain(
        &self,
        caller: Caller,
        session: &str,
        n: Option<i64>,
    ) -> Result<Explanation, ServiceError> {
        let key = key(caller, session)?;
        let head = self.load_head(key, session).await?;
        let n = n.unwrap_or(head.dispatch_count);
        let replayed = self.replay(caller, session, n).await?;
        let record = replayed.record;
        let edits = self
            .database()
            .list_elisions(key, record.version, record.plan, record.last_seq)
            .await?;
        let summarised = match record.version {
            0 => None,
            version => self.database().find_compaction(key, version).await?,
        };
        Ok(Explanation {
            session_id: session.to_owned(),
            summarised_messages: summarised.map_or(0, |made| made.to_position),
            edits: edits.into_iter().map(ExplainedEdit::of).collect(),
            prefix: PrefixStability::of(
                record.previous_bytes.unwrap_or(0),
                record.shared_bytes.unwrap_or(0),
            ),
            replay: replayed.outcome.map(drop).map_err(|(why, done)| {
                let done = done.iter().map(|done| match &done.message_id {
                    Some(id) => format!(" {} was {} (seq {}).", id, done.kind, done.seq),
                    None => format!(" It was {} to seq {}.", done.kind, done.seq),
                });
                done.fold(why, |text, line| text + &line)
            }),
            dispatch: DispatchRecord::of(&record)?,
        })
    }
}
