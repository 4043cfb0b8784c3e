//! `/sessions`: creating, listing, reading, changing, closing, resetting, deleting.

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, delete, get, patch, post};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::cursor;
use super::extract::{Body, Query, name};
use super::once::{self, Unread};
use super::problem::{Problem, ProblemDocument};
use super::respond::{Page, json, raw};
use super::schema::Schema;
use crate::domain::json::encode_string;
use crate::domain::policy::{AutoCompactPolicy, CompactionPolicy, PruningPolicy};
use crate::service::{
    AgentDocument, Caller, CreateRequest, ListSessions, PatchRequest, Service, Session,
};
use crate::storage::{MOST_LABELS, SessionFilter};

const TAG: &str = "Sessions";
const SCOPE: &str = "sessions";

/// A session: its settings, its summary, and how far it has come.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Session)]
pub struct SessionBody {
    #[schema(example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff")]
    id: String,
    agent_name: Option<String>,
    /// `chat`, `task`, `subagent` or `daemon`.
    #[schema(example = "chat")]
    mode: String,
    /// `active` or `closed`; a closed session is read-only.
    #[schema(example = "active")]
    status: String,
    title: Option<String>,
    model: Option<String>,
    /// As it came.
    #[schema(value_type = Option<Object>)]
    model_thinking: Option<Box<RawValue>>,
    instance_folder: Option<String>,
    /// As it came.
    #[schema(value_type = Object)]
    metadata: Option<Box<RawValue>>,
    /// The active summary.
    compact_summary: Option<String>,
    /// How many positions, from 0, the summary stands for.
    compact_size: i64,
    /// Percentage that one compaction folds in.
    compact_count: i64,
    /// Version of the active summary; 0 without one.
    compaction_version: i64,
    #[schema(value_type = Object)]
    compaction: CompactionPolicy,
    #[schema(value_type = Object)]
    pruning: PruningPolicy,
    #[schema(value_type = Object)]
    auto_compact: AutoCompactPolicy,
    /// Days behind its last write (`updatedAt`) after which it is deleted; `null`: what the tenant says, or else the
    /// server; 0: never.
    #[schema(example = 90)]
    retention_days: Option<i64>,
    /// What else was copied from the agent when the session was created.
    #[schema(value_type = Option<Object>)]
    agent: Option<AgentDocument>,
    /// Messages stored, instructions included.
    message_count: i64,
    /// UTF-16 code units of all messages that are no instructions.
    history_length: i64,
    /// Highest `seq` given out.
    last_seq: i64,
    #[schema(example = "2026-11-29T21:21:28.000120Z")]
    created_at: String,
    #[schema(example = "2026-11-29T21:21:28.000120Z")]
    updated_at: String,
    closed_at: Option<String>,
}

impl SessionBody {
    /// A session as clients see it.
    ///
    /// # Errors
    /// A stored part is not readable.
    pub fn of(session: Session) -> Result<Self, Problem> {
        let row = session.row;
        Ok(Self {
            id: session.id,
            title: row.title(),
            model: row.model(),
            instance_folder: row.instance_folder(),
            model_thinking: raw(row.model_thinking.as_deref())?,
            metadata: raw(Some(&row.metadata))?,
            agent_name: row.agent_name,
            mode: row.mode,
            status: row.status,
            compact_summary: row.compact_summary,
            compact_size: row.compact_size,
            compact_count: row.compact_count,
            compaction_version: row.compaction_version,
            compaction: session.compaction,
            pruning: session.pruning,
            auto_compact: session.auto_compact,
            retention_days: row.retention_days,
            agent: session.agent,
            message_count: row.message_count,
            history_length: row.history_length,
            last_seq: row.last_seq,
            created_at: row.created_at.to_string(),
            updated_at: row.updated_at.to_string(),
            closed_at: row.closed_at.map(|time| time.to_string()),
        })
    }
}

/// Create a session
///
/// An empty object makes a session with the server's defaults. What an agent says is copied now, so later changes of
/// the agent leave the session alone; its `instructions` become the first message. First `messages` may come along.
#[utoipa::path(
    tag = TAG,
    request_body(
        content = ref("#/components/schemas/CreateSession"),
        content_type = "application/json",
        example = json!({
            "title": "Planning the garden",
            "metadata": {"customer": "42"},
            "messages": [{"role": "system", "content": "You are a gardener."}, {"role": "user", "content": "What grows in shade?"}],
        })
    ),
    responses(
        (status = 201, description = "Created; `Location` is its address.", body = SessionBody, headers(("Location" = String, description = "Path of the session."))),
        (status = 400, description = "The body is unreadable, the id is none, or the session is closed.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such agent.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "Two messages have one id (`IDEMPOTENCY_CONFLICT`).", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body or a message is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The body does not hold to its schema, or a tool result answers no open call.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions")]
pub async fn create_session(
    service: Data<Service>,
    caller: Caller,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let request: CreateRequest<'_> = body.read_optional(Schema::CreateSession)?;
    let key = body.key();
    let work = Box::pin(service.create_session(caller, request, once::session(key)));
    once::show_created(service.once(caller, key, work).await?)
}

/// List sessions
///
/// Newest first. `metadata.KEY=VALUE` shows those whose metadata has that member; a number or boolean is written as in
/// JSON.
#[utoipa::path(
    tag = TAG,
    params(
        ("status" = Option<String>, Query, description = "`active` or `closed`.", example = "active"),
        ("agentName" = Option<String>, Query, description = "Sessions of this agent.", example = "coder"),
        ("mode" = Option<String>, Query, description = "`chat`, `task`, `subagent` or `daemon`.", example = "chat"),
        ("metadata.KEY" = Option<String>, Query, description = "Sessions whose metadata has the member KEY with this value; up to four such filters."),
        ("limit" = Option<i64>, Query, description = "How many at most, 1 to 1,000; 100 unless given.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before."),
    ),
    responses(
        (status = 200, description = "A page of sessions.", body = Page<SessionBody>),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions")]
pub async fn list_sessions(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let list = read_list(Query::of(&request)?)?;
    let (sessions, more) = service.list_sessions(caller, &list).await?;
    let oldest = sessions.last().filter(|_| more);
    let next_cursor =
        oldest.map(|oldest| cursor::encode(SCOPE, &oldest.row.id.simple().to_string()));
    let data = sessions.into_iter().map(SessionBody::of);
    let data = data.collect::<Result<_, _>>()?;
    json(StatusCode::OK, &Page { data, next_cursor })
}

fn read_list(mut query: Query) -> Result<ListSessions, Problem> {
    let word = |word: Option<&str>| word.map(ToOwned::to_owned);
    let limit = query.take_limit()?;
    let before = cursor::take(&mut query, SCOPE)?;
    let filter = SessionFilter {
        status: word(query.take_word("status", &["active", "closed"])?),
        mode: word(query.take_word("mode", &["chat", "task", "subagent", "daemon"])?),
        agent_name: query
            .take("agentName")
            .map(|name| name.replace('\0', "\u{fffd}")),
        labels: query
            .take_prefixed("metadata.")
            .into_iter()
            // A text is stored in its JSON spelling, anything else as it is written in JSON.
            .map(|(name, value)| (name, [encode_string(&value), value]))
            .collect(),
        before,
    };
    query.finish()?;
    if filter.labels.len() > MOST_LABELS {
        let message = format!("at most {MOST_LABELS} metadata filters are taken");
        return Err(Problem::parameter("metadata", message));
    }
    Ok(ListSessions { filter, limit })
}

/// Read a session
///
/// Its settings, its active summary and its numbers; the messages are lists of their own.
#[utoipa::path(
    tag = TAG,
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    responses(
        (status = 200, description = "The session.", body = SessionBody),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}")]
pub async fn get_session(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let session = service.load_session(caller, name(&request, "id")?).await?;
    json(StatusCode::OK, &SessionBody::of(session)?)
}

/// Change a session's settings
///
/// What is absent stays. `null` clears a title or a model. Members of `compaction`, `pruning` and `autoCompact` are laid
/// over the policy as it stands.
#[utoipa::path(
    tag = TAG,
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    request_body(
        content = ref("#/components/schemas/PatchSession"),
        content_type = "application/json",
        example = json!({"title": "Garden, second year", "compactCount": 30})
    ),
    responses(
        (status = 200, description = "The session as it stands now.", body = SessionBody),
        (status = 400, description = "The body is unreadable, the id is none, or the session is closed.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body or a message is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The body does not hold to its schema; `errors` names every fault.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[patch("/sessions/{id}")]
pub async fn patch_session(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let change: PatchRequest<'_> = body.read(Schema::PatchSession)?;
    let session = service.patch_session(caller, id, change, None).await?;
    json(StatusCode::OK, &SessionBody::of(session)?)
}

/// Delete a session
///
/// With all that belongs to it. It cannot be undone.
#[utoipa::path(
    tag = TAG,
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    responses(
        (status = 204, description = "Deleted."),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[delete("/sessions/{id}")]
pub async fn delete_session(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    service
        .delete_session(caller, name(&request, "id")?)
        .await?;
    Ok(HttpResponse::NoContent().finish())
}

/// Close a session
///
/// A closed session is read-only. Closing it again changes nothing.
#[utoipa::path(
    tag = TAG,
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    responses(
        (status = 200, description = "The session, closed.", body = SessionBody),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions/{id}/close")]
pub async fn close_session(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Unread,
) -> Result<HttpResponse, Problem> {
    let (id, key) = (name(&request, "id")?, body.key());
    let work = service.set_closed(caller, id, true, once::session(key));
    once::show_session(service.once(caller, key, work).await?)
}

/// Reopen a session
///
/// The session takes writes again. Reopening an open one changes nothing.
#[utoipa::path(
    tag = TAG,
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    responses(
        (status = 200, description = "The session, open.", body = SessionBody),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions/{id}/reopen")]
pub async fn reopen_session(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Unread,
) -> Result<HttpResponse, Problem> {
    let (id, key) = (name(&request, "id")?, body.key());
    let work = service.set_closed(caller, id, false, once::session(key));
    once::show_session(service.once(caller, key, work).await?)
}

/// Reset a session
///
/// All messages and summaries are gone for good; the session and its settings stay. A `seq` is never used twice, so
/// `lastSeq` stays too.
#[utoipa::path(
    tag = TAG,
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    responses(
        (status = 200, description = "The session, empty.", body = SessionBody),
        (status = 400, description = "The id is none, or the session is closed.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "A turn runs in the session (`TURN_IN_PROGRESS`).", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions/{id}/reset")]
pub async fn reset_session(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Unread,
) -> Result<HttpResponse, Problem> {
    let (id, key) = (name(&request, "id")?, body.key());
    let work = service.reset_session(caller, id, once::session(key));
    once::show_session(service.once(caller, key, work).await?)
}
