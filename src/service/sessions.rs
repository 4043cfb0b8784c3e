//! Sessions: creating, reading, changing, closing, resetting, deleting them.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::error::refused;
use super::ids::session_id;
use super::once::{Shown, session_kept};
use super::{Agent, AgentDocument, Caller, Service, ServiceError, key};
use crate::domain::json;
use crate::domain::message::Message;
use crate::domain::pairing::{Counters, Placement, Tail, place};
use crate::domain::policy::{AutoCompactPolicy, CompactionPolicy, Part, PruningPolicy, lay_over};
use crate::storage::{
    ChangeSession, CreateSession, DaysEdit, Edit, Head, HideSession, Kept, NewSession,
    ResetSession, SessionChange, SessionFilter, SessionKey, SessionRow, StorageError, WriteRefusal,
};

/// Whole numbers up to here are exact as floats.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// A whole number, also when it is written `50.0`.
pub(crate) fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    use serde::de::Error;
    let Some(number) = Option::<serde_json::Number>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let float = number
        .as_f64()
        .filter(|f| f.fract() == 0.0 && f.abs() <= EXACT);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "whole and within the exact range"
    )]
    number
        .as_i64()
        .or(float.map(|f| f as i64))
        .map(Some)
        .ok_or_else(|| D::Error::custom("a whole number is expected"))
}

/// As [`whole`], but it must be there.
pub(crate) fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    use serde::de::Error;
    whole(deserializer)?.ok_or_else(|| D::Error::custom("a whole number is expected"))
}

/// Days as `PATCH` gives them, where `null` says something too.
fn days<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DaysEdit, D::Error> {
    whole(deserializer).map(DaysEdit::Set)
}

/// What a session is created with. All optional; the schema says what each member takes.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the schema describes the members")]
pub struct CreateRequest<'a> {
    pub agent_name: Option<String>,
    pub mode: Option<String>,
    pub title: Option<String>,
    pub model: Option<String>,
    #[serde(borrow)]
    pub model_thinking: Option<&'a RawValue>,
    pub instance_folder: Option<String>,
    #[serde(borrow)]
    pub metadata: Option<&'a RawValue>,
    #[serde(deserialize_with = "whole")]
    pub compact_count: Option<i64>,
    pub compaction: Option<Part>,
    pub pruning: Option<Part>,
    pub auto_compact: Option<Part>,
    #[serde(deserialize_with = "whole")]
    pub retention_days: Option<i64>,
    #[serde(borrow)]
    pub messages: Option<Vec<&'a RawValue>>,
}

/// What is changed in a session; what is absent stays.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the schema describes the members")]
pub struct PatchRequest<'a> {
    pub title: Edit,
    pub model: Edit,
    #[serde(borrow)]
    pub metadata: Option<&'a RawValue>,
    #[serde(deserialize_with = "whole")]
    pub compact_count: Option<i64>,
    pub compaction: Option<Part>,
    pub pruning: Option<Part>,
    pub auto_compact: Option<Part>,
    #[serde(deserialize_with = "days")]
    pub retention_days: DaysEdit,
}

/// A session as clients see it.
#[derive(Debug, Clone)]
pub struct Session {
    /// The stored row.
    pub row: SessionRow,
    /// Its id on the wire.
    pub id: String,
    /// How compactions are made.
    pub compaction: CompactionPolicy,
    /// How stale tool output is shortened.
    pub pruning: PruningPolicy,
    /// When compactions are made without being asked for.
    pub auto_compact: AutoCompactPolicy,
    /// What was copied from its agent.
    pub agent: Option<AgentDocument>,
}

impl Session {
    pub(super) fn read(row: SessionRow) -> Result<Self, ServiceError> {
        let unreadable = |_| ServiceError::Storage(StorageError::Corrupt("sessions"));
        Ok(Self {
            id: session_id(row.id),
            compaction: serde_json::from_str(&row.compaction).map_err(unreadable)?,
            pruning: serde_json::from_str(&row.pruning).map_err(unreadable)?,
            auto_compact: serde_json::from_str(&row.auto_compact).map_err(unreadable)?,
            agent: match &row.agent {
                Some(document) => Some(serde_json::from_str(document).map_err(unreadable)?),
                None => None,
            },
            row,
        })
    }
}

/// Which sessions to list.
#[derive(Debug, Clone, Default)]
pub struct ListSessions {
    /// What is shown.
    pub filter: SessionFilter,
    /// How many at most.
    pub limit: usize,
}

/// The members of a session's metadata that can be filtered by: texts, numbers, booleans.
pub(super) fn labels(metadata: &str) -> Vec<(String, String)> {
    json::members(metadata)
        .into_iter()
        .filter_map(|member| {
            let value = match json::decode_string(member.value) {
                // One spelling for each text, however the client escaped it.
                Some(text) => json::encode_string(&text),
                None if member.value.starts_with(['{', '[']) => return None,
                None => member.value.to_owned(),
            };
            Some((member.name.into_owned(), value))
        })
        .collect()
}

fn to_text(policy: &impl serde::Serialize) -> Result<String, ServiceError> {
    serde_json::to_string(policy).map_err(|_| ServiceError::Internal("a policy cannot be written"))
}

/// The first system message of an agent's sessions.
fn instructions_message(instructions: &str) -> String {
    format!(
        r#"{{"role":"system","content":{}}}"#,
        json::encode_string(instructions)
    )
}

impl Service {
    /// Creates a session, with the settings of its agent copied and its first messages appended.
    ///
    /// # Errors
    /// The agent is unknown, a message does not fit, or the database failed.
    pub async fn create_session(
        &self,
        caller: Caller,
        request: CreateRequest<'_>,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Session, ServiceError> {
        self.check_size("metadata", request.metadata)?;
        self.check_size("modelThinking", request.model_thinking)?;
        let agent = match &request.agent_name {
            Some(name) => Some(self.load_agent(caller, name).await?),
            None => None,
        };
        let placement = self.first_messages(agent.as_ref(), &request)?;
        let new = self.new_session(agent, request, placement)?;
        self.store_session(caller, new, once).await
    }

    /// Stores a session.
    pub(super) async fn store_session(
        &self,
        caller: Caller,
        new: NewSession,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Session, ServiceError> {
        let bodies = new.rows.iter().map(|row| row.message.stored_bytes());
        self.admit_bytes(caller.tenant, new.metadata.len() + bodies.sum::<usize>())
            .await?;
        let key = SessionKey {
            tenant: caller.tenant,
            session: self.new_id(),
        };
        let create = CreateSession {
            key,
            session: new,
            now: self.now(),
        };
        let (request, show) = once.unzip();
        let keep = move |row: &SessionRow| {
            let kept = show.map(|show| session_kept(row, show)).transpose()?;
            // It holds no messages, so no edit of them takes it away.
            Ok(kept.map(|kept| Kept {
                shows_history: false,
                ..kept
            }))
        };
        let row = self
            .write_once(caller.tenant, request, create, keep)
            .await?;
        self.database().heads().remember(key, Head::of(&row)?);
        self.read_marked(row)
    }

    /// Reads a session behind a write that may have made it due for a compaction.
    pub(super) fn read_marked(&self, row: SessionRow) -> Result<Session, ServiceError> {
        if row.due_at.is_some() {
            self.inner.due.notify_one();
        }
        Session::read(row)
    }

    fn first_messages(
        &self,
        agent: Option<&Agent>,
        request: &CreateRequest<'_>,
    ) -> Result<Placement, ServiceError> {
        let mut messages = Vec::new();
        if let Some(instructions) = agent.and_then(|agent| agent.document.instructions.as_ref()) {
            let message = Message::read(&instructions_message(instructions))
                .map_err(|_| ServiceError::Internal("an agent's instructions are no message"))?;
            messages.push((super::ids::message_id(self.new_id()), message));
        }
        let before = messages.len();
        messages.extend(self.read_messages(request.messages.as_deref().unwrap_or_default())?);
        place(Counters::default(), Tail::default(), messages).map_err(|(index, fault)| {
            ServiceError::ToolCallNotFound {
                index: index - before,
                fault,
            }
        })
    }

    /// The request wins over the agent, the agent over the server.
    pub(super) fn new_session(
        &self,
        agent: Option<Agent>,
        request: CreateRequest<'_>,
        placement: Placement,
    ) -> Result<NewSession, ServiceError> {
        let defaults = &self.inner.defaults;
        let mut document = agent.map(|agent| agent.document).unwrap_or_default();
        let by_agent = document.default_compaction.take().unwrap_or_default();
        let mut compaction = defaults.compaction.clone();
        compaction.keep_recent_turns = by_agent
            .keep_recent_turns
            .unwrap_or(compaction.keep_recent_turns);
        compaction.boundary = by_agent.boundary.unwrap_or(compaction.boundary);
        compaction.max_summary_tokens = by_agent
            .max_summary_tokens
            .unwrap_or(compaction.max_summary_tokens);
        compaction.redact_secrets = by_agent.redact_secrets.unwrap_or(compaction.redact_secrets);
        let compaction = lay_over(compaction, request.compaction.as_ref());
        let pruning = lay_over(defaults.pruning.clone(), document.pruning.take().as_ref());
        let pruning = lay_over(pruning, request.pruning.as_ref());
        let auto = lay_over(
            defaults.auto_compact.clone(),
            document.auto_compact.take().as_ref(),
        );
        let auto = lay_over(auto, request.auto_compact.as_ref());
        let text = |raw: &RawValue| raw.get().to_owned();
        let metadata = request
            .metadata
            .map(text)
            .or(document.metadata.take().map(|raw| text(&raw)))
            .unwrap_or_else(|| "{}".to_owned());
        let retention_days = request.retention_days.or(document.retention_days.take());
        // What became a setting of the session's own is not kept twice; the instructions are a message.
        document.instructions = None;
        document.name = None;
        let model = request
            .model
            .or(document.model.take())
            .or(defaults.model.clone());
        let thinking = request
            .model_thinking
            .map(text)
            .or(document.model_thinking.take().map(|raw| text(&raw)));
        let agent = match &request.agent_name {
            Some(_) => Some(to_text(&document)?).filter(|rest| rest != "{}"),
            None => None,
        };
        Ok(NewSession {
            agent_name: request.agent_name,
            agent,
            mode: request.mode.unwrap_or_else(|| "chat".to_owned()),
            title: request.title,
            model,
            model_thinking: thinking.filter(|text| text != "null"),
            instance_folder: request.instance_folder,
            labels: labels(&metadata),
            metadata,
            compact_count: request
                .compact_count
                .or(by_agent.compaction_count)
                .unwrap_or(defaults.compact_count),
            compaction: to_text(&compaction)?,
            pruning: to_text(&pruning)?,
            auto_compact: to_text(&auto)?,
            retention_days,
            rows: placement.rows,
            counters: placement.counters,
            tail: placement.tail,
        })
    }

    /// A session.
    ///
    /// # Errors
    /// There is no such session, or the database failed.
    pub async fn load_session(&self, caller: Caller, id: &str) -> Result<Session, ServiceError> {
        let key = key(caller, id)?;
        let row = self.database().find_session(key).await?;
        Session::read(row.ok_or_else(|| refused(WriteRefusal::NotFound, id))?)
    }

    /// Sessions, newest first; the flag says whether more follow.
    ///
    /// # Errors
    /// The database failed.
    pub async fn list_sessions(
        &self,
        caller: Caller,
        list: &ListSessions,
    ) -> Result<(Vec<Session>, bool), ServiceError> {
        let (rows, more) = self
            .database()
            .list_sessions(caller.tenant, &list.filter, list.limit)
            .await?;
        let sessions = rows.into_iter().map(Session::read);
        Ok((sessions.collect::<Result<_, _>>()?, more))
    }

    /// Changes a session's settings.
    ///
    /// # Errors
    /// There is no such session, it is closed, or the database failed.
    pub async fn patch_session(
        &self,
        caller: Caller,
        id: &str,
        request: PatchRequest<'_>,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Session, ServiceError> {
        let key = key(caller, id)?;
        self.check_size("metadata", request.metadata)?;
        let bytes = request.metadata.map_or(0, |metadata| metadata.get().len());
        if bytes > 0 {
            self.admit_bytes(key.tenant, bytes).await?;
        }
        let change = SessionChange {
            title: request.title,
            model: request.model,
            metadata: request
                .metadata
                .map(|raw| (raw.get().to_owned(), labels(raw.get()))),
            compact_count: request.compact_count,
            compaction: request.compaction,
            pruning: request.pruning,
            auto_compact: request.auto_compact,
            retention_days: request.retention_days,
            closed: None,
        };
        self.change_session(key, id, change, once).await
    }

    /// Makes a session read-only, or takes that back. Saying it twice changes nothing.
    ///
    /// # Errors
    /// There is no such session, or the database failed.
    pub async fn set_closed(
        &self,
        caller: Caller,
        id: &str,
        closed: bool,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Session, ServiceError> {
        let change = SessionChange {
            closed: Some(closed),
            ..SessionChange::default()
        };
        self.change_session(key(caller, id)?, id, change, once)
            .await
    }

    async fn change_session(
        &self,
        key: SessionKey,
        id: &str,
        change: SessionChange,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Session, ServiceError> {
        let now = self.now();
        let write = ChangeSession { key, change, now };
        let changed = self.write_shown(key, write, once).await?;
        self.read_marked(changed.map_err(|refusal| refused(refusal, id))?)
    }

    /// Forgets all messages and summaries of a session; its settings stay.
    ///
    /// # Errors
    /// There is no such session, it is closed, or the database failed.
    pub async fn reset_session(
        &self,
        caller: Caller,
        id: &str,
        once: Option<Shown<'_, Session>>,
    ) -> Result<Session, ServiceError> {
        let key = key(caller, id)?;
        let now = self.now();
        let reset = self
            .write_shown(key, ResetSession { key, now }, once)
            .await?;
        Session::read(reset.map_err(|refusal| refused(refusal, id))?)
    }

    /// Deletes a session with all that belongs to it. Nobody finds it from the first moment on; the answer comes when
    /// nothing is left of it.
    ///
    /// # Errors
    /// There is no such session, or the database failed.
    pub async fn delete_session(&self, caller: Caller, id: &str) -> Result<(), ServiceError> {
        let key = key(caller, id)?;
        let hide = HideSession {
            key,
            aged: None,
            now: self.now(),
        };
        if !self.database().write(hide).await? {
            return Err(refused(WriteRefusal::NotFound, id));
        }
        self.stop_turns(|_, session| session == key);
        self.delete_rest(key).await;
        Ok(())
    }
}
