//! `/v1/conversations`: creating, reading, changing, deleting one.

use actix_web::http::StatusCode;
use actix_web::web::{Data, Path};
use actix_web::{HttpResponse, delete, get, post};
use serde::Serialize;
use utoipa::ToSchema;

use super::super::extract::Body;
use super::super::once;
use super::super::problem::Problem;
use super::super::respond::{json, text, to_text};
use super::error::ErrorBody;
use super::read::{Fields, refuse};
use crate::service::{Answered, Caller, Conversation, RequestKey, Service, Session, Shown};

const TAG: &str = "Conversations";

/// A conversation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Conversation)]
pub struct ConversationBody {
    /// The session's id with another prefix.
    #[schema(example = "conv_019acf0b2a7c7d1e9f00aabbccddeeff")]
    id: String,
    /// Always `conversation`.
    #[schema(example = "conversation")]
    object: &'static str,
    /// Seconds since 1970.
    created_at: i64,
    /// Texts by name.
    #[schema(value_type = Object)]
    metadata: serde_json::Map<String, serde_json::Value>,
}

impl From<Conversation> for ConversationBody {
    fn from(conversation: Conversation) -> Self {
        let members = conversation.metadata.into_iter();
        Self {
            id: conversation.id,
            object: "conversation",
            created_at: conversation.created_at,
            metadata: members.map(|(name, text)| (name, text.into())).collect(),
        }
    }
}

/// A conversation as an answer.
///
/// # Errors
/// It cannot be written, which is a mistake of ours.
pub fn answer(conversation: Conversation) -> Result<HttpResponse, Problem> {
    json(StatusCode::OK, &ConversationBody::from(conversation))
}

/// The key of a request that answers with a conversation.
fn shown(key: Option<&RequestKey>) -> Option<Shown<'_, Session>> {
    let show = |session: Session| to_text(&ConversationBody::from(Conversation::of(&session))).ok();
    key.map(|key| (key, show as fn(Session) -> Option<String>))
}

/// A conversation as an answer that may have been given before.
fn answer_once(answered: Answered<Conversation>) -> Result<HttpResponse, Problem> {
    match answered {
        Answered::First(conversation) => answer(conversation),
        Answered::Again(kept) => Ok(once::again(text(StatusCode::OK, kept.answer))),
    }
}

/// What is left of a conversation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ConversationDeleted)]
pub struct DeletedBody {
    #[schema(example = "conv_019acf0b2a7c7d1e9f00aabbccddeeff")]
    id: String,
    /// Always `conversation.deleted`.
    object: &'static str,
    /// Always true.
    deleted: bool,
}

/// Create a conversation
///
/// It is a session: `/sessions/{id}` takes its id too, and its context is what a model should see.
#[utoipa::path(
    tag = TAG,
    request_body(
        content = ref("#/components/schemas/CreateConversation"),
        content_type = "application/json",
        example = json!({"items": [{"type": "message", "role": "user", "content": "What grows in shade?"}], "metadata": {"topic": "garden"}})
    ),
    responses(
        (status = 200, description = "The conversation.", body = ConversationBody),
        (status = 400, description = "The body is unreadable, or an item cannot be taken.", body = ErrorBody),
        (status = 409, description = "Two items have one id.", body = ErrorBody),
        (status = 413, description = "The body or an item is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 503, description = "The database gave no answer in time.", body = ErrorBody),
    )
)]
#[post("/v1/conversations")]
pub async fn create_conversation(
    service: Data<Service>,
    caller: Caller,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let fields = Fields::of(&body)?;
    let items = fields.list("items")?.unwrap_or_default();
    let metadata = fields.metadata()?;
    let key = body.key();
    let work = service.create_conversation(caller, &items, metadata, shown(key));
    answer_once(service.once(caller, key, work).await?)
}

/// Read a conversation
///
/// Any session of yours is one.
#[utoipa::path(
    tag = TAG,
    params(("conversation_id" = String, Path, description = "The conversation's id, or the session's.", example = "conv_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    responses(
        (status = 200, description = "The conversation.", body = ConversationBody),
        (status = 404, description = "There is no such conversation.", body = ErrorBody),
        (status = 503, description = "The database gave no answer in time.", body = ErrorBody),
    )
)]
#[get("/v1/conversations/{conversation_id}")]
pub async fn get_conversation(
    service: Data<Service>,
    caller: Caller,
    path: Path<String>,
) -> Result<HttpResponse, Problem> {
    answer(service.load_conversation(caller, &path).await?)
}

/// Change a conversation
///
/// Its metadata becomes what is sent; `null` empties it.
#[utoipa::path(
    tag = TAG,
    params(("conversation_id" = String, Path, description = "The conversation's id, or the session's.", example = "conv_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    request_body(
        content = ref("#/components/schemas/UpdateConversation"),
        content_type = "application/json",
        example = json!({"metadata": {"topic": "garden"}})
    ),
    responses(
        (status = 200, description = "The conversation.", body = ConversationBody),
        (status = 400, description = "The body is unreadable, `metadata` is not what it must be, or the session is closed.", body = ErrorBody),
        (status = 404, description = "There is no such conversation.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 503, description = "The database gave no answer in time.", body = ErrorBody),
    )
)]
#[post("/v1/conversations/{conversation_id}")]
pub async fn update_conversation(
    service: Data<Service>,
    caller: Caller,
    path: Path<String>,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let fields = Fields::of(&body)?;
    if !fields.has("metadata") {
        return Err(refuse("metadata", "`metadata` is missing."));
    }
    let empty = serde_json::value::to_raw_value(&serde_json::json!({}))
        .map_err(|_| refuse("metadata", "`metadata` must be an object."))?;
    let metadata = fields.metadata()?.unwrap_or(&empty);
    let key = body.key();
    let work = service.update_conversation(caller, &path, metadata, shown(key));
    answer_once(service.once(caller, key, work).await?)
}

/// Delete a conversation
///
/// The session and all that belongs to it: its items too.
#[utoipa::path(
    tag = TAG,
    params(("conversation_id" = String, Path, description = "The conversation's id, or the session's.", example = "conv_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    responses(
        (status = 200, description = "It is gone.", body = DeletedBody),
        (status = 404, description = "There is no such conversation.", body = ErrorBody),
        (status = 503, description = "The database gave no answer in time.", body = ErrorBody),
    )
)]
#[delete("/v1/conversations/{conversation_id}")]
pub async fn delete_conversation(
    service: Data<Service>,
    caller: Caller,
    path: Path<String>,
) -> Result<HttpResponse, Problem> {
    let deleted = DeletedBody {
        id: service.delete_conversation(caller, &path).await?,
        object: "conversation.deleted",
        deleted: true,
    };
    json(StatusCode::OK, &deleted)
}
