//! `/admin/keys`: making, listing and revoking keys.

use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, delete, get, post};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::cursor;
use super::extract::{Body, name};
use super::problem::{Problem, ProblemDocument};
use super::respond::{Page, json};
use super::schema::Schema;
use crate::service::{Caller, Key, KeyRequest, Scope, Scopes, Service, whole};

const TAG: &str = "Keys";
const SCOPE: &str = "keys";

/// A key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Key)]
pub struct KeyBody {
    /// The part of the key that is no secret.
    #[schema(example = "01a2299c5f5575a4841aeaa303529d23")]
    id: String,
    /// The tenant whose data it opens.
    #[schema(example = "default")]
    tenant: String,
    /// What it is called.
    #[schema(example = "ci")]
    name: String,
    /// What it allows: `read`, `write`, `admin`.
    #[schema(example = json!(["read", "write"]))]
    scopes: Vec<&'static str>,
    /// RFC 3339, UTC, microseconds.
    #[schema(example = "2026-11-29T21:21:28.000120Z")]
    created_at: String,
    /// From when on it opens nothing; `null`: never.
    expires_at: Option<String>,
    /// When it was revoked; `null`: it was not.
    revoked_at: Option<String>,
}

/// A key that was just made, with its text: this once.
#[derive(Serialize, ToSchema)]
#[schema(as = NewKey)]
pub struct NewKeyBody {
    #[serde(flatten)]
    about: KeyBody,
    /// The key itself, for `Authorization: Bearer`. It is not stored, and cannot be shown again.
    #[schema(
        example = "precis_01a2299c5f5575a4841aeaa303529d23_5f0c3d1b2a4958677685948372615f4e3d2c1b0a99887766554433221100ffee"
    )]
    key: String,
}

impl From<Key> for KeyBody {
    fn from(key: Key) -> Self {
        Self {
            id: key.id,
            tenant: key.tenant,
            name: key.name,
            scopes: key.scopes.names().collect(),
            created_at: key.created_at.to_string(),
            expires_at: key.expires_at.map(|time| time.to_string()),
            revoked_at: key.revoked_at.map(|time| time.to_string()),
        }
    }
}

/// The schema says what each member takes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewKey {
    #[serde(default)]
    tenant: Option<String>,
    name: String,
    scopes: Vec<String>,
    #[serde(default, deserialize_with = "whole")]
    expires_in_seconds: Option<i64>,
}

impl From<NewKey> for KeyRequest {
    fn from(body: NewKey) -> Self {
        let scopes = body.scopes.iter().filter_map(|name| Scope::parse(name));
        let seconds = body
            .expires_in_seconds
            .map(|seconds| u64::try_from(seconds).unwrap_or(0));
        Self {
            tenant: body.tenant,
            name: body.name,
            scopes: scopes.fold(Scopes::NONE, Scopes::with),
            expires_in: seconds.map(Duration::from_secs),
        }
    }
}

/// Make a key
///
/// Its text is in this answer and nowhere else. With the server's own key (`PRECIS_ADMIN_KEY`) it may be of any tenant,
/// which is made if it is new; with another, of the same tenant.
#[utoipa::path(
    tag = TAG,
    request_body(
        content = ref("#/components/schemas/CreateKey"),
        content_type = "application/json",
        example = json!({"tenant": "default", "name": "ci", "scopes": ["read", "write"], "expiresInSeconds": 7_776_000})
    ),
    responses(
        (status = 201, description = "Made. Keep the key: it is not shown again.", body = NewKeyBody),
        (status = 400, description = "The body is unreadable.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The body does not hold to its schema.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/admin/keys")]
pub async fn create_key(
    service: Data<Service>,
    caller: Caller,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let request: NewKey = body.read(Schema::CreateKey)?;
    let (key, text) = service.create_key(caller, request.into()).await?;
    let body = NewKeyBody {
        about: KeyBody::from(key),
        key: text.expose_secret().to_owned(),
    };
    let mut response = json(StatusCode::CREATED, &body)?;
    response.headers_mut().insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("no-store"),
    );
    Ok(response)
}

/// List keys
///
/// Oldest first, those that expired or were revoked among them; never the text of one. With the server's own key, those
/// of all tenants.
#[utoipa::path(
    tag = TAG,
    params(
        ("limit" = Option<i64>, Query, description = "How many at most, 1 to 1,000; 100 unless given.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before."),
    ),
    responses(
        (status = 200, description = "A page of keys.", body = Page<KeyBody>),
        (status = 400, description = "A parameter is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/admin/keys")]
pub async fn list_keys(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let (after, limit) = cursor::page::<String>(&request, SCOPE)?;
    let after = after.unwrap_or_default();
    let (keys, more) = service.list_keys(caller, &after, limit).await?;
    let next_cursor = keys
        .last()
        .filter(|_| more)
        .map(|key| cursor::encode(SCOPE, &key.id));
    let data = keys.into_iter().map(KeyBody::from).collect();
    json(StatusCode::OK, &Page { data, next_cursor })
}

/// Revoke a key
///
/// At once on this replica, within a second on others. It stays in the list; revoked again, nothing changes.
#[utoipa::path(
    tag = TAG,
    params(("id" = String, Path, description = "The key's id: what stands between the two `_` of its text.", example = "01a2299c5f5575a4841aeaa303529d23")),
    responses(
        (status = 204, description = "It opens nothing any more."),
        (status = 400, description = "The id is none.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such key, or it is another tenant's.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[delete("/admin/keys/{id}")]
pub async fn revoke_key(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    service.revoke_key(caller, name(&request, "id")?).await?;
    Ok(HttpResponse::NoContent().finish())
}
