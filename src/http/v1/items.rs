//! `/v1/conversations/{conversation_id}/items`: appending, listing, reading, deleting items.

use actix_web::http::StatusCode;
use actix_web::web::{Data, Path};
use actix_web::{HttpRequest, HttpResponse, delete, get, post};
use utoipa::ToSchema;

use super::super::extract::{Body, Query};
use super::super::once;
use super::super::problem::Problem;
use super::super::respond::{text, to_text};
use super::conversations::{ConversationBody, answer};
use super::error::ErrorBody;
use super::read::{Fields, INCLUDE, Paging, refuse};
use super::retries::is_retried;
use crate::service::{Answered, Caller, ListItems, Service, ShownItem};

const TAG: &str = "Conversations";

/// An item: any object with a `type`, or with a `role` and `content`.
#[derive(Debug, ToSchema)]
#[schema(as = ConversationItem)]
#[expect(dead_code, reason = "describes what the routes take and give")]
pub struct ItemBody {
    /// The item's id; the service names an item that brings none.
    #[schema(example = "msg_019acf0b2a7c7d1e9f00aabbccddeeff")]
    id: Option<String>,
    /// `message`, `function_call`, `function_call_output`, `reasoning` and whatever else there is.
    #[schema(example = "message")]
    r#type: Option<String>,
}

/// Some items.
#[derive(Debug, ToSchema)]
#[schema(as = ConversationItemList)]
#[expect(dead_code, reason = "describes what `list` writes")]
pub struct ListBody {
    /// Always `list`.
    #[schema(example = "list")]
    object: String,
    /// The items.
    data: Vec<ItemBody>,
    /// The id of the first; empty if there is none.
    first_id: String,
    /// The id of the last; empty if there is none.
    last_id: String,
    /// More follow: go on with `after` set to `last_id`.
    has_more: bool,
}

fn list(items: &[ShownItem], has_more: bool) -> Result<HttpResponse, Problem> {
    let id = |item: Option<&ShownItem>| to_text(&item.map_or("", |item| item.id.as_str()));
    let (first, last) = (id(items.first())?, id(items.last())?);
    let data: Vec<_> = items.iter().map(|item| item.text.as_str()).collect();
    let data = data.join(",");
    Ok(text(
        StatusCode::OK,
        format!(
            r#"{{"object":"list","data":[{data}],"first_id":{first},"last_id":{last},"has_more":{has_more}}}"#
        ),
    ))
}

fn refuse_query(request: &HttpRequest) -> Result<(), Problem> {
    Query::letting(request, &INCLUDE)?.finish()
}

/// Append items
///
/// All, or none. An output must answer an open call of the newest answer. Items come back as they came, with an `id` and
/// a `status` where they had none.
#[utoipa::path(
    tag = TAG,
    params(
        ("conversation_id" = String, Path, description = "The conversation's id, or the session's.", example = "conv_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("include" = Option<Vec<String>>, Query, description = "Taken and without effect: everything that is stored is shown."),
    ),
    request_body(
        content = ref("#/components/schemas/CreateConversationItems"),
        content_type = "application/json",
        example = json!({"items": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What grows in shade?"}]}]})
    ),
    responses(
        (status = 200, description = "The items.", body = ListBody),
        (status = 400, description = "The body is unreadable, an item cannot be taken, an output answers no open call, or the session is closed.", body = ErrorBody),
        (status = 404, description = "There is no such conversation.", body = ErrorBody),
        (status = 409, description = "Another item has the id, or a turn runs in the session.", body = ErrorBody),
        (status = 413, description = "The body or an item is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 503, description = "The database gave no answer in time.", body = ErrorBody),
    )
)]
#[post("/v1/conversations/{conversation_id}/items")]
pub async fn create_items(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    path: Path<String>,
    body: Body,
) -> Result<HttpResponse, Problem> {
    refuse_query(&request)?;
    let fields = Fields::of(&body)?;
    let items = fields.list("items")?.unwrap_or_default();
    if items.is_empty() {
        return Err(refuse("items", "`items` must hold at least one item."));
    }
    let key = body.key();
    let work = service.append_items(caller, &path, &items, is_retried(&request), key);
    let (items, repeated) = match service.once(caller, key, work).await? {
        Answered::First(items) => (items, false),
        Answered::Again(kept) => {
            let items = service.repeat_append_items(caller, &path, &kept).await?;
            (items, true)
        }
    };
    Ok(once::mark(list(&items, false)?, repeated))
}

/// List items
///
/// Faithful: every item that was not deleted, whatever a summary stands for. What a model should see instead is the
/// session's context.
#[utoipa::path(
    tag = TAG,
    params(
        ("conversation_id" = String, Path, description = "The conversation's id, or the session's.", example = "conv_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("after" = Option<String>, Query, description = "The id of the item to begin behind."),
        ("limit" = Option<i64>, Query, description = "How many at most, 1 to 100; 20 unless given.", minimum = 1, maximum = 100),
        ("order" = Option<String>, Query, description = "`asc` (oldest first) or `desc` (the default).", example = "asc"),
        ("include" = Option<Vec<String>>, Query, description = "Taken and without effect: everything that is stored is shown."),
    ),
    responses(
        (status = 200, description = "A page of items.", body = ListBody),
        (status = 400, description = "A part of the query is not what it must be.", body = ErrorBody),
        (status = 404, description = "There is no such conversation, or no item `after`.", body = ErrorBody),
        (status = 503, description = "The database gave no answer in time.", body = ErrorBody),
    )
)]
#[get("/v1/conversations/{conversation_id}/items")]
pub async fn list_items(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    path: Path<String>,
) -> Result<HttpResponse, Problem> {
    let paging = Paging::of(Query::letting(&request, &INCLUDE)?)?;
    let asked = ListItems {
        after: paging.after,
        limit: paging.limit,
        order: paging.order,
    };
    let page = service.list_items(caller, &path, &asked).await?;
    list(&page.items, page.has_more)
}

/// Read an item
///
/// As it came, with what the service adds.
#[utoipa::path(
    tag = TAG,
    params(
        ("conversation_id" = String, Path, description = "The conversation's id, or the session's.", example = "conv_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("item_id" = String, Path, description = "The item's id.", example = "msg_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("include" = Option<Vec<String>>, Query, description = "Taken and without effect: everything that is stored is shown."),
    ),
    responses(
        (status = 200, description = "The item.", body = ItemBody),
        (status = 400, description = "A part of the query is not what it must be.", body = ErrorBody),
        (status = 404, description = "There is no such conversation or item.", body = ErrorBody),
        (status = 503, description = "The database gave no answer in time.", body = ErrorBody),
    )
)]
#[get("/v1/conversations/{conversation_id}/items/{item_id}")]
pub async fn get_item(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    path: Path<(String, String)>,
) -> Result<HttpResponse, Problem> {
    refuse_query(&request)?;
    let (conversation, item) = path.into_inner();
    let item = service.load_item(caller, &conversation, &item).await?;
    Ok(text(StatusCode::OK, item.text))
}

/// Delete an item
///
/// The newest is taken back, as a rewind does it. Any other is erased: its place stays, its content is gone for good.
#[utoipa::path(
    tag = TAG,
    params(
        ("conversation_id" = String, Path, description = "The conversation's id, or the session's.", example = "conv_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("item_id" = String, Path, description = "The item's id.", example = "msg_019acf0b2a7c7d1e9f00aabbccddeeff"),
    ),
    responses(
        (status = 200, description = "The conversation.", body = ConversationBody),
        (status = 400, description = "The item is a part of a chat message, or the session is closed.", body = ErrorBody),
        (status = 404, description = "There is no such conversation or item.", body = ErrorBody),
        (status = 409, description = "A turn runs in the session.", body = ErrorBody),
        (status = 503, description = "The database gave no answer in time.", body = ErrorBody),
    )
)]
#[delete("/v1/conversations/{conversation_id}/items/{item_id}")]
pub async fn delete_item(
    service: Data<Service>,
    caller: Caller,
    path: Path<(String, String)>,
) -> Result<HttpResponse, Problem> {
    let (conversation, item) = path.into_inner();
    answer(service.delete_item(caller, &conversation, &item).await?)
}
