//! `/v1/responses/compact`: compaction of items that stay where they are.

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpResponse, post};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::super::extract::Body;
use super::super::once;
use super::super::problem::Problem;
use super::super::respond::text;
use super::error::ErrorBody;
use super::items::ItemBody;
use super::read::{Fields, refuse};
use crate::domain::json;
use crate::service::{Answered, Caller, CompactItems, CompactedItems, CompactionForm, Service};

const TAG: &str = "Conversations";

/// What came of it.
#[derive(Debug, ToSchema)]
#[schema(as = CompactedResponse)]
#[expect(dead_code, reason = "describes what `answer` writes")]
pub struct CompactedBody {
    id: String,
    /// Always `response.compaction`.
    object: String,
    /// Seconds since 1970.
    created_at: i64,
    /// Instructions and user messages as they came, then the summary.
    output: Vec<ItemBody>,
    /// Tokens read and written.
    usage: UsageBody,
}

/// Tokens read and written.
#[derive(Debug, ToSchema)]
#[schema(as = CompactionUsage)]
#[expect(dead_code, reason = "describes what `answer` writes")]
pub struct UsageBody {
    input_tokens: i64,
    #[schema(value_type = Object)]
    input_tokens_details: String,
    output_tokens: i64,
    #[schema(value_type = Object)]
    output_tokens_details: String,
    total_tokens: i64,
}

/// Compact items
///
/// Nothing is stored. What comes back is what to go on with: instructions and user messages as they came, then a summary
/// of everything.
#[utoipa::path(
    tag = TAG,
    request_body(
        content = ref("#/components/schemas/CompactResponse"),
        content_type = "application/json",
        example = json!({"model": "gpt-5", "input": [{"role": "user", "content": "What grows in shade?"}, {"role": "assistant", "content": "Ferns, hostas, ivy."}]})
    ),
    responses(
        (status = 200, description = "The items to go on with.", body = CompactedBody),
        (status = 400, description = "The body is unreadable, an item cannot be taken, there is nothing to compact, or no shorter summary was found.", body = ErrorBody),
        (status = 404, description = "There is no such conversation.", body = ErrorBody),
        (status = 413, description = "The body, an item or the conversation is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 502, description = "The model that writes summaries gave none that can be used.", body = ErrorBody),
        (status = 503, description = "The database or the model's rate limit asks to come back later.", body = ErrorBody),
    )
)]
#[post("/v1/responses/compact")]
pub async fn compact_response(
    service: Data<Service>,
    caller: Caller,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let fields = Fields::of(&body)?;
    if fields.get("previous_response_id").is_some() {
        return Err(refuse(
            "previous_response_id",
            "No responses are stored here: send the items as `input`, or name a `conversation`.",
        ));
    }
    let spelled = text_input(&fields)?;
    let input = match &spelled {
        Some(message) => vec![&**message],
        None => fields.list("input")?.unwrap_or_default(),
    };
    let form = match fields.text("compaction_format")?.as_deref() {
        None | Some("message") => CompactionForm::Message,
        Some("item") => CompactionForm::Item,
        Some(_) => {
            let message = "`compaction_format` must be `message` or `item`.";
            return Err(refuse("compaction_format", message));
        }
    };
    let request = CompactItems {
        input,
        conversation: conversation(&fields)?,
        instructions: fields.text("instructions")?,
        form,
    };
    let key = body.key();
    let work = Box::pin(service.compact_items(caller, &request, key));
    Ok(match service.once_costly(caller, key, work).await? {
        Answered::First(compacted) => answer(&compacted),
        Answered::Again(kept) => {
            let compacted = service
                .repeat_compact_items(caller, &request, &kept)
                .await?;
            once::again(answer(&compacted))
        }
    })
}

/// An input that is a text, as the user's message that it stands for.
fn text_input(fields: &Fields<'_>) -> Result<Option<Box<RawValue>>, Problem> {
    let Some(input) = fields.get("input").map(RawValue::get) else {
        return Ok(None);
    };
    if !input.starts_with('"') {
        return Ok(None);
    }
    let message = format!(r#"{{"type":"message","role":"user","content":{input}}}"#);
    RawValue::from_string(message)
        .map(Some)
        .map_err(|_| refuse("input", "`input` must be a string or an array."))
}

fn conversation(fields: &Fields<'_>) -> Result<Option<String>, Problem> {
    let Some(value) = fields.get("conversation") else {
        return Ok(None);
    };
    let members = json::members(value.get());
    let id = members.iter().find(|member| member.name == "id");
    let id = id.map_or(value.get(), |id| id.value);
    json::decode_string(id)
        .map(|id| Some(id.into_owned()))
        .ok_or_else(|| refuse("conversation", "`conversation` must be an id."))
}

fn answer(compacted: &CompactedItems) -> HttpResponse {
    let id = json::encode_string(&compacted.id);
    let created_at = compacted.created_at;
    let output = compacted.output.join(",");
    let (input, written) = (compacted.input_tokens, compacted.output_tokens);
    let total = input + written;
    text(
        StatusCode::OK,
        format!(
            r#"{{"id":{id},"object":"response.compaction","created_at":{created_at},"output":[{output}],"usage":{{"input_tokens":{input},"input_tokens_details":{{"cached_tokens":0,"cache_write_tokens":0}},"output_tokens":{written},"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":{total}}}}}"#
        ),
    )
}
