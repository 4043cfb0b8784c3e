//! From what a server says when it does not answer to the error of this folder.
//!
//! What does not belong here: which words mean what; that is the overflow table's.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::completion::object;
use super::error::ProviderError;
use super::overflow::{self, Refusal};

/// The error for a refusal with this status and text.
pub(super) fn refusal(status: u16, retry_after: Option<Duration>, text: &[u8]) -> ProviderError {
    match overflow::classify(status, text) {
        Refusal::Overflow {
            prompt_tokens,
            window,
        } => ProviderError::Overflow {
            status,
            prompt_tokens,
            window,
        },
        Refusal::RateLimit => ProviderError::RateLimited {
            status,
            retry_after,
        },
        Refusal::Other if status >= 500 => ProviderError::Unavailable {
            status,
            retry_after,
        },
        Refusal::Other => ProviderError::Refused { status },
    }
}

pub(super) fn malformed(what: &'static str) -> ProviderError {
    ProviderError::Malformed { what }
}

/// The error that a body with a success status is, if it is one.
pub(super) fn error_in_success(text: &str) -> Option<ProviderError> {
    /// Enough to tell, without building the rest of what may be a long answer.
    #[derive(Deserialize)]
    struct Head {
        #[serde(default)]
        error: Value,
        #[serde(default)]
        object: Value,
        #[serde(default, rename = "type")]
        kind: Value,
    }
    let head: Head = if text.starts_with('[') {
        let list: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        object(list.first()?)?
    } else {
        serde_json::from_str(text).ok()?
    };
    let is_error =
        overflow::says_something(&head.error) || head.object == "error" || head.kind == "error";
    is_error.then(|| {
        let body = text.as_bytes();
        let status = overflow::embedded_status(body).unwrap_or(200);
        refusal(status, None, body)
    })
}

/// The error that the member `error` of something smaller than a body is, if it says anything.
pub(super) fn error_member(error: &RawValue) -> Option<ProviderError> {
    error_in_success(&format!("{{\"error\":{}}}", error.get()))
}

/// The overflow that the reason of an ending names: some servers end an empty answer with
/// `model_context_window_exceeded` and the like, where others refuse.
pub(super) fn overflow_named_by(finish: &str) -> Option<ProviderError> {
    let error = serde_json::json!({"error": {"code": finish}}).to_string();
    error_in_success(&error).filter(|error| matches!(error, ProviderError::Overflow { .. }))
}

/// The error that an event of the type `error` is, whatever its data looks like.
pub(super) fn error_event(data: &str) -> ProviderError {
    if let Some(error) = error_in_success(data) {
        return error;
    }
    let wrapped = match serde_json::from_str::<&RawValue>(data) {
        Ok(data) => error_member(data),
        Err(_) => error_in_success(&serde_json::json!({ "error": data }).to_string()),
    };
    wrapped.unwrap_or(ProviderError::Refused { status: 200 })
}
