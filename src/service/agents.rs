//! Agents: the documents that sessions take their settings from.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::error::shorten;
use super::{Caller, Service, ServiceError};
use crate::domain::plan::Boundary;
use crate::domain::policy::Part;
use crate::storage::{DeleteAgent, PutAgent, StorageError, StoredAgent, Timestamp};

/// An agent's document. `schemas/agent.json` says what each member takes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the schema describes the members")]
pub struct AgentDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction_model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_thinking: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction_prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_compaction: Option<DefaultCompaction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruning: Option<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_compact: Option<Part>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        default,
        deserialize_with = "super::sessions::whole"
    )]
    pub retention_days: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Box<RawValue>>,
}

/// How an agent's sessions are compacted unless they say otherwise.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the schema describes the members")]
pub struct DefaultCompaction {
    #[serde(
        skip_serializing_if = "Option::is_none",
        default,
        deserialize_with = "super::sessions::whole"
    )]
    pub compaction_count: Option<i64>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        default,
        deserialize_with = "super::sessions::whole"
    )]
    pub keep_recent_turns: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boundary: Option<Boundary>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        default,
        deserialize_with = "super::sessions::whole"
    )]
    pub max_summary_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redact_secrets: Option<bool>,
}

/// An agent as clients see it.
#[derive(Debug, Clone)]
pub struct Agent {
    /// Its document.
    pub document: AgentDocument,
    /// When it was put first.
    pub created_at: Timestamp,
    /// When it was put last.
    pub updated_at: Timestamp,
}

impl Agent {
    fn read(stored: &StoredAgent) -> Result<Self, ServiceError> {
        let mut document: AgentDocument = serde_json::from_str(&stored.document)
            .map_err(|_| StorageError::Corrupt("agents.document"))?;
        document.name = Some(stored.name.clone());
        Ok(Self {
            document,
            created_at: stored.created_at,
            updated_at: stored.updated_at,
        })
    }
}

impl Service {
    /// Creates or replaces an agent. Says whether it is new.
    ///
    /// # Errors
    /// The database failed.
    pub async fn put_agent(
        &self,
        caller: Caller,
        name: String,
        mut document: AgentDocument,
    ) -> Result<(Agent, bool), ServiceError> {
        self.check_size("metadata", document.metadata.as_deref())?;
        self.check_size("modelThinking", document.model_thinking.as_deref())?;
        document.name = None;
        let text = serde_json::to_string(&document)
            .map_err(|_| ServiceError::Internal("an agent's document cannot be written"))?;
        let now = self.now();
        let put = PutAgent {
            tenant: caller.tenant,
            name,
            document: text,
            now,
        };
        let agent = Agent::read(&self.database().write(put).await?)?;
        let is_new = agent.created_at == now;
        Ok((agent, is_new))
    }

    /// An agent.
    ///
    /// # Errors
    /// There is none of that name, or the database failed.
    pub async fn load_agent(&self, caller: Caller, name: &str) -> Result<Agent, ServiceError> {
        let stored = self.database().find_agent(caller.tenant, name).await?;
        Agent::read(&stored.ok_or_else(|| no_agent(name))?)
    }

    /// Agents by name, those behind `after`; the flag says whether more follow.
    ///
    /// # Errors
    /// The database failed.
    pub async fn list_agents(
        &self,
        caller: Caller,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<Agent>, bool), ServiceError> {
        let (stored, more) = self
            .database()
            .list_agents(caller.tenant, after, limit)
            .await?;
        let agents = stored.iter().map(Agent::read);
        Ok((agents.collect::<Result<_, _>>()?, more))
    }

    /// Deletes an agent; its sessions live on.
    ///
    /// # Errors
    /// There is none of that name, or the database failed.
    pub async fn delete_agent(&self, caller: Caller, name: &str) -> Result<(), ServiceError> {
        let delete = DeleteAgent {
            tenant: caller.tenant,
            name: name.to_owned(),
        };
        if self.database().write(delete).await? {
            Ok(())
        } else {
            Err(no_agent(name))
        }
    }
}

fn no_agent(name: &str) -> ServiceError {
    ServiceError::AgentNotFound {
        name: shorten(name),
    }
}
