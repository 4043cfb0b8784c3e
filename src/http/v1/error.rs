//! Errors under `/v1`: a problem in the shape that OpenAI's clients read.

use serde::Serialize;
use utoipa::ToSchema;

use super::super::problem::{Code, Problem};

/// An error as OpenAI's clients read it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAiError)]
pub struct ErrorBody {
    error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAiErrorDetail)]
pub struct ErrorDetail {
    /// What happened here, and what to do.
    #[schema(example = "No session `conv_x`.")]
    message: String,
    /// What kind of error it is.
    #[schema(example = "invalid_request_error")]
    r#type: &'static str,
    /// The parameter that is not what it must be, if it is one.
    param: Option<String>,
    /// A stable code for programs.
    #[schema(example = "session_not_found")]
    code: String,
}

/// Whether a path is one of this API.
#[must_use]
pub fn is_path(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}

/// The status of a problem here: this API has one for a request that cannot be taken.
#[must_use]
pub fn status(status: u16) -> u16 {
    match status {
        422 => 400,
        other => other,
    }
}

/// The document of a problem.
#[must_use]
pub fn document(problem: &Problem, status: u16, path: &str) -> ErrorBody {
    let pointer = problem.first_pointer();
    ErrorBody {
        error: ErrorDetail {
            message: message(problem.detail(), path),
            r#type: match status {
                401 => "authentication_error",
                403 => "permission_error",
                409 => "conflict_error",
                429 => "rate_limit_error",
                500.. => "server_error",
                _ => "invalid_request_error",
            },
            param: pointer.map(|pointer| parameter(pointer, path)),
            code: match problem.code {
                Code::Unauthenticated => "invalid_api_key".to_owned(),
                Code::RateLimited => "rate_limit_exceeded".to_owned(),
                code => code.as_str().to_ascii_lowercase(),
            },
        },
    }
}

/// What the items of a request are called. Sessions call them messages.
fn list_name(path: &str) -> &'static str {
    if path.ends_with("/compact") {
        "input"
    } else {
        "items"
    }
}

fn message(detail: &str, path: &str) -> String {
    match detail.strip_prefix("messages[") {
        Some(rest) => format!("{}[{rest}", list_name(path)),
        None => detail.to_owned(),
    }
}

/// A JSON pointer as this API spells it: `items[3].call_id`.
fn parameter(pointer: &str, path: &str) -> String {
    let mut spelled = String::new();
    for (depth, part) in pointer.trim_start_matches('/').split('/').enumerate() {
        match (depth, part) {
            (0, "messages") => spelled.push_str(list_name(path)),
            (0, part) => spelled.push_str(part),
            // The call that an output answers.
            (_, "tool_call_id") => spelled.push_str(".call_id"),
            (_, part) if part.bytes().all(|byte| byte.is_ascii_digit()) && !part.is_empty() => {
                spelled.push('[');
                spelled.push_str(part);
                spelled.push(']');
            }
            (_, part) => {
                spelled.push('.');
                spelled.push_str(part);
            }
        }
    }
    spelled
}

#[cfg(test)]
mod tests {
    use super::parameter;

    #[test]
    fn pointers_become_parameters() {
        let items = "/v1/conversations/conv_x/items";
        assert_eq!(
            parameter("/messages/3/tool_call_id", items),
            "items[3].call_id"
        );
        assert_eq!(parameter("/messages/0/content", items), "items[0].content");
        assert_eq!(
            parameter("/messages/0/id", "/v1/responses/compact"),
            "input[0].id"
        );
        assert_eq!(parameter("limit", items), "limit");
    }
}
