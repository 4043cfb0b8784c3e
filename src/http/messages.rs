//! `/sessions/{id}/messages`: appending, listing, reading one.

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, get, post};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::cursor;
use super::extract::{Body, Query, name};
use super::once;
use super::problem::{Problem, ProblemDocument};
use super::respond::{Page, raw, text, to_text, with_last_member};
use super::schema::Schema;
use crate::service::{Answered, AppendRequest, Caller, ListMessages, ListedMessage, Service};
use crate::storage::{MessageFilter, Order};

const TAG: &str = "Messages";

/// What stands beside a message; the message itself follows as the last member.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MessageHead {
    id: String,
    seq: i64,
    position: Option<i64>,
    length: i64,
    state: &'static str,
    usage: Option<Box<RawValue>>,
    incomplete: bool,
    created_at: String,
}

/// A stored message.
#[derive(Debug, ToSchema)]
#[schema(as = Message, rename_all = "camelCase")]
#[expect(dead_code, reason = "describes what `render` writes")]
pub struct MessageBody {
    /// Unique in its session.
    #[schema(example = "msg_019acf0b2a7c7d1e9f00aabbccddeeff")]
    id: String,
    /// 1, 2, … over all messages of the session.
    #[schema(example = 1)]
    seq: i64,
    /// 0, 1, … over those that are no instructions; `null` for instructions.
    position: Option<i64>,
    /// UTF-16 code units.
    length: i64,
    /// `verbatim`, `summarised`, `elided` or `erased`.
    #[schema(example = "verbatim")]
    state: String,
    /// The provider's `usage` of the call that made the message, as it came.
    #[schema(value_type = Option<Object>)]
    usage: Option<String>,
    /// The message broke off.
    incomplete: bool,
    #[schema(example = "2026-11-29T21:21:28.000120Z")]
    created_at: String,
    /// The message, byte for byte as it came.
    #[schema(value_type = Object)]
    message: String,
}

/// What an append did.
#[derive(Debug, ToSchema)]
#[schema(as = Appended, rename_all = "camelCase")]
#[expect(dead_code, reason = "describes what the route writes")]
pub struct AppendedBody {
    /// One a message of the request, in its order.
    data: Vec<MessageBody>,
    /// The session's highest `seq` now.
    last_seq: i64,
}

/// A message as the last member of what stands beside it.
///
/// # Errors
/// A stored part is not readable.
pub fn render(listed: &ListedMessage) -> Result<String, Problem> {
    let head = MessageHead {
        id: listed.id.clone(),
        seq: listed.seq,
        position: listed.position,
        length: listed.length,
        state: listed.state.as_str(),
        usage: raw(listed.usage.as_deref())?,
        incomplete: listed.incomplete,
        created_at: listed.created_at.to_string(),
    };
    with_last_member(&head, "message", &listed.message)
}

/// Messages as a JSON array.
///
/// # Errors
/// A stored part is not readable.
pub fn render_all(listed: &[ListedMessage]) -> Result<String, Problem> {
    let mut array = String::from("[");
    for (index, message) in listed.iter().enumerate() {
        if index > 0 {
            array.push(',');
        }
        array.push_str(&render(message)?);
    }
    array.push(']');
    Ok(array)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AppendBody<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(default, deserialize_with = "crate::service::whole")]
    expected_last_seq: Option<i64>,
}

/// Append messages
///
/// All, or none. Each message is stored byte for byte. A tool message must answer an open call of the newest assistant
/// message with calls. With `precis.id` a message that is sent again with the same bytes is not stored twice.
#[utoipa::path(
    tag = TAG,
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    request_body(
        content = ref("#/components/schemas/AppendMessages"),
        content_type = "application/json",
        example = json!({"messages": [{"role": "user", "content": "What grows in shade?"}, {"role": "assistant", "content": "Ferns, hostas, ivy."}]})
    ),
    responses(
        (status = 201, description = "Stored.", body = AppendedBody),
        (status = 400, description = "The body is unreadable, the id is none, or the session is closed.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "The history has moved on (`SEQUENCE_CONFLICT`), another message has the id (`IDEMPOTENCY_CONFLICT`), or a turn runs in the session (`TURN_IN_PROGRESS`).", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body or a message is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The body does not hold to its schema, or a tool result answers no open call.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions/{id}/messages")]
pub async fn append_messages(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let read: AppendBody<'_> = body.read(Schema::AppendMessages)?;
    let append = AppendRequest {
        messages: read.messages,
        expected_last_seq: read.expected_last_seq,
    };
    let key = body.key();
    let work = service.append(caller, id, append, key);
    let (appended, repeated) = match service.once(caller, key, work).await? {
        Answered::First(appended) => (appended, false),
        Answered::Again(kept) => (service.repeat_append(caller, id, &kept).await?, true),
    };
    let data = render_all(&appended.messages)?;
    let last_seq = appended.last_seq;
    let response = text(
        StatusCode::CREATED,
        format!(r#"{{"data":{data},"lastSeq":{last_seq}}}"#),
    );
    Ok(once::mark(response, repeated))
}

/// List messages
///
/// Faithful: every message as it came, whatever the summary covers. A page ends early when its messages get large, so
/// go on for as long as `nextCursor` is not `null`.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("afterSeq" = Option<i64>, Query, description = "Only messages with a larger `seq`.", minimum = 0),
        ("beforeSeq" = Option<i64>, Query, description = "Only messages with a smaller `seq`.", minimum = 0),
        ("order" = Option<String>, Query, description = "`asc` (oldest first, the default) or `desc`.", example = "asc"),
        ("role" = Option<String>, Query, description = "Only messages of this role.", example = "user"),
        ("limit" = Option<i64>, Query, description = "How many at most, 1 to 1,000; 100 unless given.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before."),
    ),
    responses(
        (status = 200, description = "A page of messages.", body = Page<MessageBody>),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/messages")]
pub async fn list_messages(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let (list, scope) = read_list(id, Query::of(&request)?)?;
    let (messages, more) = service.list_messages(caller, id, &list).await?;
    let newest = messages.last().filter(|_| more);
    let next = newest.map(|newest| cursor::encode(&scope, &newest.seq.to_string()));
    let data = render_all(&messages)?;
    let next = to_text(&next)?;
    Ok(text(
        StatusCode::OK,
        format!(r#"{{"data":{data},"nextCursor":{next}}}"#),
    ))
}

fn read_list(id: &str, mut query: Query) -> Result<(ListMessages, String), Problem> {
    const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
    let limit = query.take_limit()?;
    let order = match query.take_word("order", &["asc", "desc"])? {
        Some("desc") => Order::Desc,
        _ => Order::Asc,
    };
    let mut filter = MessageFilter {
        after_seq: query.take_number("afterSeq", 0, i64::MAX)?.unwrap_or(0),
        before_seq: query
            .take_number("beforeSeq", 0, i64::MAX)?
            .unwrap_or(i64::MAX),
        role: query.take_word("role", &ROLES)?,
        order,
    };
    let scope = format!(
        "messages/{id}/{order:?}/{}",
        filter.role.unwrap_or_default()
    );
    if let Some(seq) = cursor::take::<i64>(&mut query, &scope)? {
        match order {
            Order::Asc => filter.after_seq = filter.after_seq.max(seq),
            Order::Desc => filter.before_seq = filter.before_seq.min(seq),
        }
    }
    query.finish()?;
    Ok((ListMessages { filter, limit }, scope))
}

/// Read a message
///
/// Byte for byte as it came, also when the summary stands for it.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("messageId" = String, Path, description = "The message's id.", example = "msg_019acf0b2a7c7d1e9f00aabbccddeeff"),
    ),
    responses(
        (status = 200, description = "The message.", body = MessageBody),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session or message.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/messages/{messageId}")]
pub async fn get_message(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let message = name(&request, "messageId")?;
    let listed = service.load_message(caller, id, message).await?;
    Ok(text(StatusCode::OK, render(&listed)?))
}
