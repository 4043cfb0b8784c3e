//! Rewriting a history: rewind, fork, restore, edit, erase.

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, delete, post, put};

use super::extract::{Body, name, number};
use super::messages::{MessageBody, render};
use super::once::{self, Unread};
use super::problem::{Problem, ProblemDocument};
use super::respond::text;
use super::schema::Schema;
use super::sessions::SessionBody;
use crate::service::{Caller, ForkRequest, RewindRequest, Service};

/// Rewind a session
///
/// Forgets every message behind `toSeq`, for good. If the summary covered one of them, the newest version that covers
/// only what is left becomes active. A `seq` is never used twice, positions are.
#[utoipa::path(
    tag = "Messages",
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    request_body(
        content = ref("#/components/schemas/RewindSession"),
        content_type = "application/json",
        example = json!({"toSeq": 12})
    ),
    responses(
        (status = 200, description = "The session as it stands now.", body = SessionBody),
        (status = 400, description = "The body is unreadable, the id is none, or the session is closed.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "A turn runs in the session (`TURN_IN_PROGRESS`).", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The body does not hold to its schema; `errors` names every fault.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions/{id}/rewind")]
pub async fn rewind_session(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let rewind: RewindRequest = body.read(Schema::Rewind)?;
    let key = body.key();
    let work = service.rewind(caller, id, rewind, once::session(key));
    once::show_session(service.once(caller, key, work).await?)
}

/// Fork a session
///
/// A new session with the same history (up to `atSeq`), summaries and settings; message ids stay. It is copied in one
/// transaction. What happens to one of the two later leaves the other alone.
#[utoipa::path(
    tag = "Sessions",
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    request_body(
        content = ref("#/components/schemas/ForkSession"),
        content_type = "application/json",
        example = json!({"atSeq": 12, "title": "Garden, the other way"})
    ),
    responses(
        (status = 201, description = "The copy; `Location` is its address.", body = SessionBody, headers(("Location" = String, description = "Path of the copy."))),
        (status = 400, description = "The body is unreadable, or the id is none.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The body does not hold to its schema; `errors` names every fault.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions/{id}/fork")]
pub async fn fork_session(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let fork: ForkRequest<'_> = body.read_optional(Schema::Fork)?;
    let key = body.key();
    let work = service.fork(caller, id, fork, once::session(key));
    once::show_created(service.once(caller, key, work).await?)
}

/// Restore a version
///
/// Makes an old version of the summary the active one; version 0 is no summary. The messages behind it are shown
/// verbatim again.
#[utoipa::path(
    tag = "Compaction",
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("version" = i64, Path, description = "The version; 0 for none.", example = 1, minimum = 0),
    ),
    responses(
        (status = 200, description = "The session as it stands now.", body = SessionBody),
        (status = 400, description = "The id is none, or the session is closed.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session or version.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "Messages that the version covers are gone or were changed (`COMPACTION_CONFLICT`).", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions/{id}/compactions/{version}/restore")]
pub async fn restore_compaction(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Unread,
) -> Result<HttpResponse, Problem> {
    let (id, key) = (name(&request, "id")?, body.key());
    let version = number(&request, "version")?;
    let work = service.restore(caller, id, version, once::session(key));
    once::show_session(service.once(caller, key, work).await?)
}

/// Replace a message
///
/// The body is the new message. Its role, call ids and `tool_call_id` may not change. Every version of the summary that
/// covers the message loses its text for good; the newest that ends before it becomes active.
#[utoipa::path(
    tag = "Messages",
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("messageId" = String, Path, description = "The message's id.", example = "msg_019acf0b2a7c7d1e9f00aabbccddeeff"),
    ),
    request_body(
        content = ref("#/components/schemas/ChatMessage"),
        content_type = "application/json",
        example = json!({"role": "user", "content": "What grows in deep shade?"})
    ),
    responses(
        (status = 200, description = "The message as it is stored now.", body = MessageBody),
        (status = 400, description = "The body is unreadable, the id is none, or the session is closed.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session or message.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "A turn runs in the session (`TURN_IN_PROGRESS`).", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The body is no message, or its role, calls or `tool_call_id` would change.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[put("/sessions/{id}/messages/{messageId}")]
pub async fn replace_message(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let (id, message) = (name(&request, "id")?, name(&request, "messageId")?);
    let new = body.read_message()?;
    let listed = service.replace_message(caller, id, message, new).await?;
    Ok(text(StatusCode::OK, render(&listed)?))
}

/// Erase a message
///
/// Its place stays, with its role, call ids and function names; the content is gone for good, from every summary too.
/// Erasing it again changes nothing.
#[utoipa::path(
    tag = "Messages",
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("messageId" = String, Path, description = "The message's id.", example = "msg_019acf0b2a7c7d1e9f00aabbccddeeff"),
    ),
    responses(
        (status = 204, description = "Erased."),
        (status = 400, description = "The id is none, or the session is closed.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session or message.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "A turn runs in the session (`TURN_IN_PROGRESS`).", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[delete("/sessions/{id}/messages/{messageId}")]
pub async fn erase_message(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let (id, message) = (name(&request, "id")?, name(&request, "messageId")?);
    service.erase_message(caller, id, message).await?;
    Ok(HttpResponse::NoContent().finish())
}
