//! Writing answers: JSON whose stored parts are handed on as text, never parsed again.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::problem::{Code, Problem};

/// A JSON answer.
///
/// # Errors
/// The value cannot be written, which is a mistake of ours.
pub fn json(status: StatusCode, value: &impl Serialize) -> Result<HttpResponse, Problem> {
    Ok(text(status, to_text(value)?))
}

/// An answer that is JSON text already.
#[must_use]
pub fn text(status: StatusCode, body: String) -> HttpResponse {
    HttpResponse::build(status)
        .content_type("application/json")
        .body(body)
}

/// A value as JSON text.
///
/// # Errors
/// It cannot be written, which is a mistake of ours.
pub fn to_text(value: &impl Serialize) -> Result<String, Problem> {
    serde_json::to_string(value)
        .map_err(|_| Problem::new(Code::Internal, "An answer could not be written."))
}

/// `head`, a JSON object that is not empty, with one more member at its end, as text.
///
/// # Errors
/// The head cannot be written, which is a mistake of ours.
pub fn with_last_member(head: &impl Serialize, name: &str, value: &str) -> Result<String, Problem> {
    let mut text = to_text(head)?;
    // The closing brace makes room for the member.
    text.pop();
    text.reserve(value.len() + name.len() + 5);
    for piece in [",\"", name, "\":", value, "}"] {
        text.push_str(piece);
    }
    Ok(text)
}

/// Stored JSON as a part of an answer.
///
/// # Errors
/// It is no JSON, which storage never holds.
pub fn raw(stored: Option<&str>) -> Result<Option<Box<RawValue>>, Problem> {
    stored
        .map(|text| RawValue::from_string(text.to_owned()))
        .transpose()
        .map_err(|_| Problem::new(Code::Internal, "A stored value is not readable."))
}

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    /// The items.
    pub data: Vec<T>,
    /// Pass it as `cursor` to go on; `null` on the last page.
    pub next_cursor: Option<String>,
}
