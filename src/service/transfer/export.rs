//! Writing sessions out, each as it is at one moment.

use std::io::Write;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{HEADER, TransferError, write_line};
use crate::domain::ids::session_id;
use crate::service::Service;
use crate::storage::{
    Database, SESSIONS, SessionKey, Snapshot, StoredAgent, TABLES, TenantDays, TenantId, Value,
};

/// Sessions and agents that are listed at once.
const LISTED: i64 = 500;

/// What is exported.
#[derive(Debug, Clone)]
pub enum Selection {
    /// These sessions of a tenant, without agents.
    Sessions {
        /// The tenant's name.
        tenant: String,
        /// The sessions, in this order.
        ids: Vec<Uuid>,
    },
    /// A tenant's agents and sessions.
    Tenant(String),
    /// Those of all tenants.
    All,
}

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exported {
    /// Agents.
    pub agents: u64,
    /// Sessions.
    pub sessions: u64,
    /// Rows of sessions, their messages among them.
    pub rows: u64,
}

impl Service {
    /// Writes what is selected. A session that is made or deleted meanwhile may be in the file or not.
    ///
    /// # Errors
    /// The database or the output failed, or something that was named is not there. What was written is no whole file
    /// then, and an import says so.
    pub async fn export(
        &self,
        selection: &Selection,
        out: &mut (dyn Write + Send),
    ) -> Result<Exported, TransferError> {
        let database = self.database();
        let tenants = database.list_tenant_days().await?;
        let named = |name: &String| {
            let found = tenants.iter().find(|tenant| tenant.name == *name);
            found.ok_or_else(|| TransferError::NoTenant(name.clone()))
        };
        let mut export = Export {
            database,
            out,
            done: Exported::default(),
        };
        export.put(format!("{HEADER}\n").as_bytes())?;
        match selection {
            Selection::Sessions { tenant, ids } => {
                let tenant = named(tenant)?;
                export.begin_tenant(tenant)?;
                for id in ids {
                    if !export.session(tenant.id(), *id).await? {
                        return Err(TransferError::NoSession(session_id(*id)));
                    }
                }
            }
            Selection::Tenant(name) => export.tenant(named(name)?).await?,
            Selection::All => {
                for tenant in &tenants {
                    export.tenant(tenant).await?;
                }
            }
        }
        export.end()
    }
}

struct Export<'a> {
    database: &'a Database,
    out: &'a mut (dyn Write + Send),
    done: Exported,
}

impl Export<'_> {
    fn put(&mut self, line: &[u8]) -> Result<(), TransferError> {
        self.out.write_all(line).map_err(TransferError::Write)
    }

    fn line(&mut self, kind: &str, own: &[(&str, serde_json::Value)]) -> Result<(), TransferError> {
        let mut line = Vec::new();
        write_line(&mut line, kind, own, None)?;
        self.put(&line)
    }

    fn begin_tenant(&mut self, tenant: &TenantDays) -> Result<(), TransferError> {
        self.line("tenant", &[("name", tenant.name.as_str().into())])
    }

    async fn tenant(&mut self, tenant: &TenantDays) -> Result<(), TransferError> {
        self.begin_tenant(tenant)?;
        self.agents(tenant.id()).await?;
        let mut after = Uuid::nil();
        loop {
            let database = self.database;
            let ids = database.list_session_ids(tenant.id(), after, LISTED);
            let ids = ids.await?;
            let Some(last) = ids.last() else {
                return Ok(());
            };
            after = *last;
            for id in ids {
                self.session(tenant.id(), id).await?;
            }
        }
    }

    async fn agents(&mut self, tenant: TenantId) -> Result<(), TransferError> {
        let mut after = String::new();
        loop {
            let limit = usize::try_from(LISTED).unwrap_or(1);
            let (agents, more) = self.database.list_agents(tenant, &after, limit).await?;
            for agent in agents {
                self.agent(&agent)?;
                after = agent.name;
            }
            if !more {
                return Ok(());
            }
        }
    }

    fn agent(&mut self, agent: &StoredAgent) -> Result<(), TransferError> {
        self.done.agents += 1;
        self.line(
            "agent",
            &[
                ("name", agent.name.as_str().into()),
                ("document", agent.document.as_str().into()),
                ("created_at", agent.created_at.to_string().into()),
                ("updated_at", agent.updated_at.to_string().into()),
            ],
        )
    }

    /// Writes a session; gives whether it is there.
    async fn session(&mut self, tenant: TenantId, id: Uuid) -> Result<bool, TransferError> {
        let mut snapshot = self.database.snapshot().await?;
        let written = self.session_of(&mut snapshot, tenant, id).await;
        snapshot.end().await?;
        written
    }

    async fn session_of(
        &mut self,
        snapshot: &mut Snapshot,
        tenant: TenantId,
        id: Uuid,
    ) -> Result<bool, TransferError> {
        let key = SessionKey {
            tenant,
            session: id,
        };
        let Some(row) = snapshot.find_session(key).await? else {
            return Ok(false);
        };
        let mut digest = Sha256::new();
        let mut line = Vec::new();
        let own = [("id", session_id(id).into())];
        write_line(&mut line, SESSIONS.line, &own, Some((&SESSIONS, &row)))?;
        digest.update(&line);
        self.put(&line)?;
        let mut rows = 0_u64;
        for table in &TABLES {
            let mut sink = |values: Vec<Value>| {
                line.clear();
                write_line(&mut line, table.line, &[], Some((table, &values)))?;
                digest.update(&line);
                rows += 1;
                self.out.write_all(&line).map_err(TransferError::Write)
            };
            snapshot.rows(table, key, &mut sink).await?;
        }
        self.done.sessions += 1;
        self.done.rows += rows;
        let digest = super::hex(&digest.finalize());
        self.line(
            "session_end",
            &[("rows", rows.into()), ("sha256", digest.into())],
        )?;
        Ok(true)
    }

    fn end(mut self) -> Result<Exported, TransferError> {
        let Exported {
            agents, sessions, ..
        } = self.done;
        self.line(
            "end",
            &[("agents", agents.into()), ("sessions", sessions.into())],
        )?;
        self.out.flush().map_err(TransferError::Write)?;
        Ok(self.done)
    }
}
