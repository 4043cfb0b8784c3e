//! Tenants as those who manage them see them: what each may use, and what it stores.

use serde::{Deserialize, Deserializer};

use super::error::shorten;
use super::limits::EffectiveLimits;
use super::sessions::whole;
use super::{Authority, Caller, Scope, Service, ServiceError};
use crate::storage::{ChangeTenant, LimitsChange, TenantId, TenantRow};

/// What is to change of a tenant; `null` goes back to what the server's settings say.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the schema describes the members")]
pub struct TenantPatch {
    #[serde(deserialize_with = "given")]
    pub requests_per_second: Option<Option<i64>>,
    #[serde(deserialize_with = "given")]
    pub request_burst: Option<Option<i64>>,
    #[serde(deserialize_with = "given")]
    pub concurrent_compactions: Option<Option<i64>>,
    #[serde(deserialize_with = "given")]
    pub concurrent_turns: Option<Option<i64>>,
    #[serde(deserialize_with = "given")]
    pub stored_bytes: Option<Option<i64>>,
    #[serde(deserialize_with = "given")]
    pub retention_days: Option<Option<i64>>,
}

/// A member that is there, also if it is `null`.
#[expect(
    clippy::option_option,
    reason = "absent, `null` and a number mean three things"
)]
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<i64>>, D::Error> {
    whole(deserializer).map(Some)
}

impl From<TenantPatch> for LimitsChange {
    fn from(patch: TenantPatch) -> Self {
        Self {
            requests_per_second: patch.requests_per_second,
            request_burst: patch.request_burst,
            concurrent_compactions: patch.concurrent_compactions,
            concurrent_turns: patch.concurrent_turns,
            stored_bytes: patch.stored_bytes,
            retention_days: patch.retention_days,
        }
    }
}

/// A tenant with the limits in force.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// The row, with the limits of its own.
    pub row: TenantRow,
    /// What holds, the server's settings included.
    pub effective: EffectiveLimits,
    /// Bytes that its sessions hold; known only where one tenant is shown.
    pub used_bytes: Option<i64>,
}

/// A line for people: the name, and the limits of its own.
impl std::fmt::Display for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let own = &self.row.limits;
        f.write_str(&self.row.name)?;
        for (name, limit) in [
            ("requests-per-second", own.requests_per_second),
            ("request-burst", own.request_burst),
            ("concurrent-compactions", own.concurrent_compactions),
            ("concurrent-turns", own.concurrent_turns),
            ("stored-bytes", own.stored_bytes),
            ("retention-days", own.retention_days),
        ] {
            match limit {
                Some(limit) => write!(f, "  {name}={limit}")?,
                None => write!(f, "  {name}=default")?,
            }
        }
        Ok(())
    }
}

impl Service {
    fn tenant(&self, row: TenantRow) -> Tenant {
        Tenant {
            effective: EffectiveLimits::of(&row.limits, self.inner.limits.defaults()),
            row,
            used_bytes: None,
        }
    }

    /// Tenants by age, those behind an id; the flag says whether more follow. A tenant's key sees its own.
    ///
    /// # Errors
    /// The caller may not manage anything, or the database failed.
    pub async fn list_tenants(
        &self,
        caller: Caller,
        after: i64,
        limit: usize,
    ) -> Result<(Vec<Tenant>, bool), ServiceError> {
        caller.require(Scope::Admin)?;
        let only = (caller.authority == Authority::Tenant).then_some(caller.tenant);
        let (rows, more) = self.database().list_tenants(only, after, limit).await?;
        let tenants = rows.into_iter().map(|row| self.tenant(row)).collect();
        Ok((tenants, more))
    }

    /// A tenant, with what it stores.
    ///
    /// # Errors
    /// The caller may not manage it, there is no such tenant, or the database failed.
    pub async fn load_tenant(&self, caller: Caller, name: &str) -> Result<Tenant, ServiceError> {
        caller.require(Scope::Admin)?;
        let row = self.database().find_tenant_row(name).await?;
        let row = row.filter(|row| {
            caller.authority == Authority::Server || caller.tenant == TenantId(row.id)
        });
        let row = row.ok_or_else(|| no_tenant(name))?;
        let used = self.database().sum_stored_bytes(TenantId(row.id)).await?;
        Ok(Tenant {
            used_bytes: Some(used),
            ..self.tenant(row)
        })
    }

    /// Changes what a tenant may use. In force here at once, elsewhere within seconds.
    ///
    /// # Errors
    /// The caller may not, there is no such tenant, or the database failed.
    pub async fn patch_tenant(
        &self,
        caller: Caller,
        name: &str,
        patch: TenantPatch,
    ) -> Result<Tenant, ServiceError> {
        // Another tenant's is the 404 of an unknown one, its own is not for it to change.
        let before = self.load_tenant(caller, name).await?;
        if caller.authority != Authority::Server {
            return Err(ServiceError::LimitsAreTheServers);
        }
        let change = ChangeTenant {
            name: name.to_owned(),
            change: patch.into(),
        };
        let row = self.database().write(change).await?;
        let row = row.ok_or_else(|| no_tenant(name))?;
        self.inner.limits.learn(TenantId(row.id), &row.limits);
        Ok(Tenant {
            used_bytes: before.used_bytes,
            ..self.tenant(row)
        })
    }
}

fn no_tenant(name: &str) -> ServiceError {
    ServiceError::TenantNotFound {
        name: shorten(name),
    }
}
