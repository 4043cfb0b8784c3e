//! `/agents`: named documents that sessions copy their settings from.

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, delete, get, put};
use serde::Serialize;
use utoipa::ToSchema;

use super::cursor;
use super::extract::{Body, name};
use super::problem::{Problem, ProblemDocument};
use super::respond::{Page, json};
use super::schema::{self, Schema};
use crate::service::{Agent, AgentDocument, Caller, Service};

const TAG: &str = "Agents";
const SCOPE: &str = "agents";

/// An agent's document with the times of its making and of its last change.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Agent)]
pub struct AgentBody {
    #[serde(flatten)]
    #[schema(value_type = Object)]
    document: AgentDocument,
    /// RFC 3339, UTC, microseconds.
    #[schema(example = "2026-11-29T21:21:28.000120Z")]
    created_at: String,
    /// RFC 3339, UTC, microseconds.
    #[schema(example = "2026-11-29T21:21:28.000120Z")]
    updated_at: String,
}

impl From<Agent> for AgentBody {
    fn from(agent: Agent) -> Self {
        Self {
            document: agent.document,
            created_at: agent.created_at.to_string(),
            updated_at: agent.updated_at.to_string(),
        }
    }
}

/// Create or replace an agent
///
/// The document replaces the one there was. Sessions made before keep what they copied.
#[utoipa::path(
    tag = TAG,
    params(("name" = String, Path, description = "1 to 128 letters, digits, `_` or `-`.", example = "coder")),
    request_body(
        content = ref("#/components/schemas/AgentDocument"),
        content_type = "application/json",
        example = json!({
            "description": "Writes and reviews code",
            "instructions": "You are a careful programmer.",
            "defaultCompaction": {"compactionCount": 40, "keepRecentTurns": 2},
        })
    ),
    responses(
        (status = 200, description = "Replaced.", body = AgentBody),
        (status = 201, description = "Created.", body = AgentBody),
        (status = 400, description = "The body is unreadable, or the name is none.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The document does not hold to its schema.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[put("/agents/{name}")]
pub async fn put_agent(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let name = name(&request, "name")?;
    let document: AgentDocument = body.read(Schema::Agent)?;
    if document.name.as_deref().is_some_and(|given| given != name) {
        let fault = super::problem::FieldError::new("/name", "is not the name in the path");
        schema::refuse(vec![fault])?;
    }
    let (agent, is_new) = service.put_agent(caller, name.to_owned(), document).await?;
    let status = if is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    json(status, &AgentBody::from(agent))
}

/// List agents
///
/// By name.
#[utoipa::path(
    tag = TAG,
    params(
        ("limit" = Option<i64>, Query, description = "How many at most, 1 to 1,000; 100 unless given.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before."),
    ),
    responses(
        (status = 200, description = "A page of agents.", body = Page<AgentBody>),
        (status = 400, description = "A parameter is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/agents")]
pub async fn list_agents(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let (after, limit) = cursor::page::<String>(&request, SCOPE)?;
    let after = after.unwrap_or_default();
    let (agents, more) = service.list_agents(caller, &after, limit).await?;
    let last = agents
        .last()
        .and_then(|agent| agent.document.name.as_deref());
    let next_cursor = last
        .filter(|_| more)
        .map(|name| cursor::encode(SCOPE, name));
    let data = agents.into_iter().map(AgentBody::from).collect();
    json(StatusCode::OK, &Page { data, next_cursor })
}

/// Read an agent
///
/// The document as it was put last.
#[utoipa::path(
    tag = TAG,
    params(("name" = String, Path, description = "The agent's name.", example = "coder")),
    responses(
        (status = 200, description = "The agent.", body = AgentBody),
        (status = 400, description = "The name is none.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such agent.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/agents/{name}")]
pub async fn get_agent(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let agent = service.load_agent(caller, name(&request, "name")?).await?;
    json(StatusCode::OK, &AgentBody::from(agent))
}

/// Delete an agent
///
/// Its sessions live on with what they copied.
#[utoipa::path(
    tag = TAG,
    params(("name" = String, Path, description = "The agent's name.", example = "coder")),
    responses(
        (status = 204, description = "Deleted."),
        (status = 400, description = "The name is none.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such agent.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[delete("/agents/{name}")]
pub async fn delete_agent(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    service
        .delete_agent(caller, name(&request, "name")?)
        .await?;
    Ok(HttpResponse::NoContent().finish())
}
