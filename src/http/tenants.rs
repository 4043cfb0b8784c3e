//! `/admin/tenants`: what each tenant may use.

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, get, patch};
use serde::Serialize;
use utoipa::ToSchema;

use super::cursor;
use super::extract::Body;
use super::problem::{Problem, ProblemDocument};
use super::respond::{Page, json};
use super::schema::Schema;
use crate::service::{Caller, Service, Tenant, TenantPatch};

const TAG: &str = "Administration";
const SCOPE: &str = "tenants";

/// A tenant: the limits of its own, and those in force.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Tenant)]
pub struct TenantBody {
    /// Its name.
    #[schema(example = "default")]
    name: String,
    /// RFC 3339, UTC, microseconds; `null` for the tenant that every database begins with.
    #[schema(example = "2026-11-29T21:21:28.000120Z")]
    created_at: Option<String>,
    /// Requests in a second; `null`: the server's setting, 0: no limit. So are the next ones.
    requests_per_second: Option<i64>,
    /// Requests that may come at once after a pause.
    request_burst: Option<i64>,
    /// Sessions that are compacted at once.
    concurrent_compactions: Option<i64>,
    /// Turns that run at once.
    concurrent_turns: Option<i64>,
    /// Bytes that all its sessions hold.
    stored_bytes: Option<i64>,
    /// Days after which sessions that nothing is written to are deleted.
    retention_days: Option<i64>,
    /// What holds, the server's settings included.
    effective: EffectiveBody,
    /// Bytes that its sessions hold now; `null` in lists.
    used_bytes: Option<i64>,
}

/// Limits in force; `null`: no limit.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = EffectiveLimits)]
pub struct EffectiveBody {
    /// Requests in a second.
    requests_per_second: Option<i64>,
    /// Requests that may come at once after a pause.
    request_burst: Option<i64>,
    /// Sessions that are compacted at once.
    concurrent_compactions: Option<i64>,
    /// Turns that run at once.
    concurrent_turns: Option<i64>,
    /// Bytes that all its sessions hold.
    stored_bytes: Option<i64>,
}

impl From<Tenant> for TenantBody {
    fn from(tenant: Tenant) -> Self {
        let (own, effective) = (tenant.row.limits, tenant.effective);
        Self {
            name: tenant.row.name,
            created_at: tenant.row.created_at.map(|at| at.to_string()),
            requests_per_second: own.requests_per_second,
            request_burst: own.request_burst,
            concurrent_compactions: own.concurrent_compactions,
            concurrent_turns: own.concurrent_turns,
            stored_bytes: own.stored_bytes,
            retention_days: own.retention_days,
            effective: EffectiveBody {
                requests_per_second: effective.requests_per_second,
                request_burst: effective.request_burst,
                concurrent_compactions: effective.concurrent_compactions,
                concurrent_turns: effective.concurrent_turns,
                stored_bytes: effective.stored_bytes,
            },
            used_bytes: tenant.used_bytes,
        }
    }
}

/// A tenant's name in a path: letters, digits, `.`, `_` and `-`, 1 to 64 of them.
fn tenant_name(request: &HttpRequest) -> Result<&str, Problem> {
    let name = request.match_info().get("name").unwrap_or_default();
    let is_name = (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if is_name {
        return Ok(name);
    }
    Err(Problem::parameter(
        "name",
        "must be 1 to 64 letters, digits, `.`, `_` or `-`",
    ))
}

/// List tenants
///
/// The oldest first. A key with the scope `admin` sees its own tenant, the server's admin key all of them.
#[utoipa::path(
    tag = TAG,
    params(
        ("limit" = Option<i64>, Query, description = "How many at most, 1 to 1,000; 100 unless given.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before."),
    ),
    responses(
        (status = 200, description = "A page of tenants.", body = Page<TenantBody>),
        (status = 400, description = "A parameter is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/admin/tenants")]
pub async fn list_tenants(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let (after, limit) = cursor::page(&request, SCOPE)?;
    let after = after.unwrap_or(0);
    let (tenants, more) = service.list_tenants(caller, after, limit).await?;
    let next_cursor = tenants
        .last()
        .filter(|_| more)
        .map(|tenant| cursor::encode(SCOPE, &tenant.row.id.to_string()));
    let data = tenants.into_iter().map(TenantBody::from).collect();
    json(StatusCode::OK, &Page { data, next_cursor })
}

/// Read a tenant
///
/// Its limits, and what its sessions hold.
#[utoipa::path(
    tag = TAG,
    params(("name" = String, Path, description = "The tenant's name.", example = "default")),
    responses(
        (status = 200, description = "The tenant.", body = TenantBody),
        (status = 400, description = "The name is none.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such tenant, or it is not yours.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/admin/tenants/{name}")]
pub async fn get_tenant(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let tenant = service.load_tenant(caller, tenant_name(&request)?).await?;
    json(StatusCode::OK, &TenantBody::from(tenant))
}

/// Change a tenant's limits
///
/// What is absent stays; `null` goes back to the server's setting, 0 is no limit. The replica that is asked keeps to
/// them at once, others within two seconds. Only the server's admin key may.
#[utoipa::path(
    tag = TAG,
    params(("name" = String, Path, description = "The tenant's name.", example = "default")),
    request_body(
        content = ref("#/components/schemas/PatchTenant"),
        content_type = "application/json",
        example = json!({"requestsPerSecond": 50, "requestBurst": 100, "concurrentTurns": 8, "storedBytes": null})
    ),
    responses(
        (status = 200, description = "The tenant as it stands now.", body = TenantBody),
        (status = 400, description = "The body is unreadable, or the name is none.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such tenant, or it is not yours.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The body does not hold to its schema; `errors` names every fault.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[patch("/admin/tenants/{name}")]
pub async fn patch_tenant(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let name = tenant_name(&request)?;
    let patch: TenantPatch = body.read(Schema::PatchTenant)?;
    let tenant = service.patch_tenant(caller, name, patch).await?;
    json(StatusCode::OK, &TenantBody::from(tenant))
}
