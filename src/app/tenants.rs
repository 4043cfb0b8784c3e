//! What `precis tenants` does: it shows and changes tenants' limits, also beside a running server.

use super::{StartError, open_beside};
use crate::config::Settings;
use crate::service::{Caller, Service, ServiceError, Tenant, TenantPatch};

/// Tenants that are read at once.
const PAGE: usize = 1_000;

/// All tenants, the oldest first.
///
/// # Errors
/// There is no database, it cannot be opened, or it gave no answer.
pub async fn list_tenants(settings: &Settings) -> Result<Vec<Tenant>, StartError> {
    let (service, database) = open_beside(settings).await?;
    let found = all(&service).await;
    database.close().await;
    found.map_err(StartError::Tenants)
}

async fn all(service: &Service) -> Result<Vec<Tenant>, ServiceError> {
    let mut tenants: Vec<Tenant> = Vec::new();
    loop {
        let after = tenants.last().map_or(0, |tenant| tenant.row.id);
        let (page, more) = service.list_tenants(Caller::DEFAULT, after, PAGE).await?;
        tenants.extend(page);
        if !more {
            return Ok(tenants);
        }
    }
}

/// Changes a tenant's limits and gives the tenant. A running server takes them up within a second or two.
///
/// # Errors
/// There is no database or no such tenant, the database cannot be opened, or it gave no answer.
pub async fn set_tenant(
    settings: &Settings,
    name: &str,
    patch: TenantPatch,
) -> Result<Tenant, StartError> {
    let (service, database) = open_beside(settings).await?;
    let changed = service.patch_tenant(Caller::DEFAULT, name, patch).await;
    database.close().await;
    changed.map_err(StartError::Tenants)
}
