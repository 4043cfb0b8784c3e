//! Errors as clients see them: RFC 9457 problem documents, from one table of codes.
//!
//! The table is the source of the enum, the statuses, the titles, the page `/docs/errors` and the
//! enum in the OpenAPI document. A client's message never holds a driver's text, a key, a path of the
//! server or another tenant's data; the cause goes to the log, once, where the response is finished.

use std::error::Error;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpResponse, ResponseError};
use serde::Serialize;
use utoipa::ToSchema;

use super::v1;
use crate::domain::message::MessageFault;
use crate::domain::summary::Unacceptable;
use crate::provider::ProviderError;
use crate::service::{ServiceError, SummarizerFailure};
use crate::storage::{RETRY_AFTER, StorageError};

macro_rules! codes {
    ($($variant:ident $name:literal $status:literal $title:literal $advice:literal;)*) => {
        /// Every code an error can carry.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $title] $variant,)*
        }

        impl Code {
            /// All of them, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The status it is sent with, unless a cause asks for another.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// What it means, in a few words.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            /// What to do about it.
            #[must_use]
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$variant => $advice,)* }
            }
        }
    };
}

codes! {
    InvalidJson "INVALID_JSON" 400 "Unreadable JSON" "The body is not JSON that can be stored as it is. The detail says where.";
    InvalidParameter "INVALID_PARAMETER" 400 "Invalid parameter" "A part of the path or the query is not what it must be. `errors` names it.";
    SessionClosed "SESSION_CLOSED" 400 "Session closed" "The session is read-only. POST /sessions/{id}/reopen opens it again.";
    Unauthenticated "UNAUTHENTICATED" 401 "No valid key" "Send `Authorization: Bearer KEY` with a key that is neither expired nor revoked.";
    Forbidden "FORBIDDEN" 403 "Not allowed" "The key lacks the scope that this needs, or a web page of another site asked. The detail says which.";
    StorageQuotaExceeded "STORAGE_QUOTA_EXCEEDED" 403 "Storage quota exceeded" "The tenant stores as much as it may. Delete sessions, rewind or erase messages, shorten the retention, or have its `storedBytes` raised.";
    SessionNotFound "SESSION_NOT_FOUND" 404 "Session not found" "There is no session of this id, or it is not yours.";
    MessageNotFound "MESSAGE_NOT_FOUND" 404 "Message not found" "The session has no message of this id.";
    AgentNotFound "AGENT_NOT_FOUND" 404 "Agent not found" "PUT /agents/{name} makes one.";
    CompactionNotFound "COMPACTION_NOT_FOUND" 404 "Compaction not found" "GET /sessions/{id}/compactions lists the versions there are.";
    DispatchNotFound "DISPATCH_NOT_FOUND" 404 "Dispatch not found" "GET /sessions/{id}/dispatches lists those there are.";
    TurnNotFound "TURN_NOT_FOUND" 404 "Turn not found" "GET /sessions/{id}/turns lists those there are.";
    TenantNotFound "TENANT_NOT_FOUND" 404 "Tenant not found" "GET /admin/tenants lists those there are.";
    KeyNotFound "KEY_NOT_FOUND" 404 "Key not found" "GET /admin/keys lists those there are.";
    RouteNotFound "ROUTE_NOT_FOUND" 404 "No such route" "GET /openapi.json lists the routes; /docs/ shows them.";
    MethodNotAllowed "METHOD_NOT_ALLOWED" 405 "Method not allowed" "The `Allow` header names the methods of this path.";
    RequestTimeout "REQUEST_TIMEOUT" 408 "Request time-out" "The body came too slowly. Send it again, over a better line or in smaller requests.";
    CompactionInProgress "COMPACTION_IN_PROGRESS" 409 "Compaction in progress" "Another compaction of this session is running. Come back after `Retry-After`.";
    CompactionConflict "COMPACTION_CONFLICT" 409 "Compaction conflict" "What was to be written no longer fits the history; nothing was. The detail says whether to try again.";
    SequenceConflict "SEQUENCE_CONFLICT" 409 "Sequence conflict" "Messages were appended that you have not seen. Read them, then append again.";
    TurnInProgress "TURN_IN_PROGRESS" 409 "Turn in progress" "A turn of this session is running. Come back after `Retry-After`.";
    TurnCancelled "TURN_CANCELLED" 409 "Turn stopped" "The turn was stopped on request. Send a turn without messages to have the newest message answered.";
    IdempotencyConflict "IDEMPOTENCY_CONFLICT" 409 "Idempotency conflict" "The same key or message id was used for something else before: use a new one. Or, with `Retry-After`, the request of this key is still at work: come back for its answer.";
    PayloadTooLarge "PAYLOAD_TOO_LARGE" 413 "Payload too large" "The detail names the limit and the setting that moves it.";
    UnsupportedMediaType "UNSUPPORTED_MEDIA_TYPE" 415 "Unsupported media type" "Send JSON, with `Content-Type: application/json`.";
    ValidationFailed "VALIDATION_FAILED" 422 "Validation failed" "`errors` names every member that is not what it must be, by JSON pointer.";
    ToolCallNotFound "TOOL_CALL_NOT_FOUND" 422 "Tool call not found" "A tool message answers no open call. Nothing of the append was stored.";
    ContextOverflow "CONTEXT_OVERFLOW" 422 "Context overflow" "The context does not fit the model's window, even after compacting.";
    SummaryNotSmaller "SUMMARY_NOT_SMALLER" 422 "Summary not smaller" "The summarizer wrote at least as much as it was to replace. Nothing changed.";
    RateLimited "RATE_LIMITED" 429 "Limit reached" "The detail names the tenant's limit: requests, compactions or turns. Come back after `Retry-After`.";
    Internal "INTERNAL" 500 "Internal error" "A fault of the server. Its log has the cause under the `requestId`.";
    SummarizerFailed "SUMMARIZER_FAILED" 502 "Summarizer failed" "The model that writes summaries gave none that can be used. The session is unchanged.";
    ModelFailed "MODEL_FAILED" 502 "Model failed" "The model server gave no usable answer.";
    ModelTimeout "MODEL_TIMEOUT" 504 "Model timeout" "The model server took too long.";
    TurnInterrupted "TURN_INTERRUPTED" 503 "Turn interrupted" "The server that ran the turn stopped before it ended. Send a turn without messages to try again.";
    ModelNotConfigured "MODEL_NOT_CONFIGURED" 503 "No model configured" "Set PRECIS_MODEL_BASE_URL and PRECIS_MODEL.";
    Overloaded "OVERLOADED" 503 "Overloaded" "The server bears no more of this just now. Come back after `Retry-After`.";
    StorageUnavailable "STORAGE_UNAVAILABLE" 503 "Storage unavailable" "The database gave no answer in time. Come back after `Retry-After`.";
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// One fault of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// Where, as a JSON pointer into the body; for a part of the path or the query, its name.
    pub pointer: String,
    /// What is wrong there.
    pub message: String,
    /// A stable name of the fault, where there are several kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
}

impl FieldError {
    /// A fault at a place.
    #[must_use]
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            message: message.into(),
            code: None,
        }
    }
}

/// An error on its way to a client.
#[derive(Debug)]
pub struct Problem {
    /// Which.
    pub code: Code,
    /// The status, where it is not the code's own.
    status: Option<u16>,
    detail: String,
    errors: Vec<FieldError>,
    retry_after: Option<Duration>,
    allow: Option<String>,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

/// RFC 9457 problem details.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Problem)]
pub struct ProblemDocument {
    /// Address of the code's description.
    #[schema(example = "/docs/errors#SESSION_NOT_FOUND")]
    r#type: String,
    /// What the code means.
    #[schema(example = "Session not found")]
    title: &'static str,
    /// The response's status.
    #[schema(example = 404)]
    status: u16,
    /// What happened here, and what to do.
    #[schema(example = "No session `sess_x`.")]
    detail: String,
    /// A stable code for programs.
    #[schema(value_type = String, example = "SESSION_NOT_FOUND")]
    code: Code,
    /// The path of the request.
    #[schema(example = "/sessions/sess_x")]
    instance: String,
    /// The `x-request-id` of the response; the server's log has more under it.
    request_id: String,
    /// Each fault of the request, if it has several.
    errors: Vec<FieldError>,
}

impl Problem {
    /// A problem with a detail for the client.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            status: None,
            detail: detail.into(),
            errors: Vec::new(),
            retry_after: None,
            allow: None,
            cause: None,
        }
    }

    /// What the service stands on is not there; the client comes again.
    #[must_use]
    pub fn unavailable(detail: &str) -> Self {
        Self::new(Code::StorageUnavailable, detail).with_retry_after(RETRY_AFTER)
    }

    /// With the faults of the request.
    #[must_use]
    pub fn with_errors(mut self, errors: Vec<FieldError>) -> Self {
        self.errors = errors;
        self
    }

    /// With the methods that the path does have.
    #[must_use]
    pub fn with_allow(mut self, methods: String) -> Self {
        self.allow = Some(methods);
        self
    }

    fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    fn with_cause(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// A part of the request that is not what it must be.
    fn at(pointer: impl Into<String>, message: impl Into<String>, detail: String) -> Self {
        let at = FieldError::new(pointer, message);
        Self::new(Code::ValidationFailed, detail).with_errors(vec![at])
    }

    /// A parameter of the path or the query that is not what it must be.
    #[must_use]
    pub fn parameter(name: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self::new(Code::InvalidParameter, format!("`{name}`: {message}"))
            .with_errors(vec![FieldError::new(name, message)])
    }

    /// The causes, outermost first, for the log.
    #[must_use]
    pub fn causes(&self) -> String {
        let mut texts = Vec::new();
        let mut cause: Option<&dyn Error> = self.cause.as_deref().map(|cause| cause as _);
        while let Some(error) = cause {
            texts.push(error.to_string());
            cause = error.source();
        }
        texts.join(": ")
    }

    /// Whether the request is to be made again, and nothing of it was stored, for certain: it got no further than the
    /// door, or the database took nothing of it.
    #[must_use]
    pub fn refuses_for_now(&self) -> bool {
        let cause = self.cause.as_deref();
        match self.code {
            Code::RateLimited | Code::RequestTimeout | Code::Overloaded => true,
            Code::StorageUnavailable => matches!(
                cause.and_then(|cause| cause.downcast_ref()),
                Some(StorageError::Busy | StorageError::Full(_) | StorageError::Contended(_))
            ),
            _ => false,
        }
    }

    /// What happened, for the client.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Where the first fault of the request is, if one is named.
    #[must_use]
    pub fn first_pointer(&self) -> Option<&str> {
        let first = self.errors.first().map(|error| error.pointer.as_str());
        first.filter(|pointer| !pointer.is_empty())
    }

    /// The document for a request of this path and id.
    #[must_use]
    pub fn document(&self, instance: &str, request_id: &str) -> ProblemDocument {
        ProblemDocument {
            r#type: format!("/docs/errors#{}", self.code.as_str()),
            title: self.code.title(),
            status: self.status_code().as_u16(),
            detail: self.detail.clone(),
            code: self.code,
            instance: instance.to_owned(),
            request_id: request_id.to_owned(),
            errors: self.errors.clone(),
        }
    }

    /// The response to a request of this path and id.
    #[must_use]
    pub fn respond(&self, instance: &str, request_id: &str) -> HttpResponse {
        let mut status = self.status_code();
        let (kind, document) = if v1::is_path(instance) {
            status = StatusCode::from_u16(v1::status(status.as_u16())).unwrap_or(status);
            let document = v1::document(self, status.as_u16(), instance);
            ("application/json", serde_json::to_vec(&document))
        } else {
            let document = self.document(instance, request_id);
            ("application/problem+json", serde_json::to_vec(&document))
        };
        let mut response = HttpResponse::build(status);
        response.insert_header((header::CONTENT_TYPE, kind));
        if v1::is_path(instance) && status == StatusCode::CONFLICT {
            // Their clients try again by themselves, which no conflict here is healed by.
            response.insert_header(("x-should-retry", "false"));
        }
        if let Some(wait) = self.retry_after {
            // Whole seconds, and never "at once".
            let seconds = wait.as_millis().div_ceil(1_000).max(1);
            response.insert_header((header::RETRY_AFTER, seconds.to_string()));
        }
        if self.code == Code::RequestTimeout {
            // What is left of the body would stand in front of the next request.
            response.force_close();
        }
        if status == StatusCode::UNAUTHORIZED {
            response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        if let Some(allow) = self.allow.as_deref().map(HeaderValue::from_str) {
            response.insert_header((
                header::ALLOW,
                allow.unwrap_or_else(|_| HeaderValue::from_static("GET")),
            ));
        }
        response.body(document.unwrap_or_default())
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.detail)
    }
}

/// Its causes are for the log, through [`Problem::causes`].
impl Error for Problem {}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.status.unwrap_or(self.code.status()))
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Only until the response is finished, which puts path and request id in.
    fn error_response(&self) -> HttpResponse {
        self.respond("", "")
    }
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        use ServiceError as E;
        let detail = error.to_string();
        match error {
            E::Unauthenticated => Self::new(Code::Unauthenticated, detail),
            E::ScopeMissing(_) | E::OtherTenant | E::LimitsAreTheServers => {
                Self::new(Code::Forbidden, detail)
            }
            E::KeyNotFound { .. } => Self::new(Code::KeyNotFound, detail),
            E::InvalidKey { member, problem } => Self::at(format!("/{member}"), problem, detail),
            E::TenantNotFound { .. } => Self::new(Code::TenantNotFound, detail),
            E::LimitReached { retry_after, .. } => {
                Self::new(Code::RateLimited, detail).with_retry_after(retry_after)
            }
            E::StorageQuota { .. } => Self::new(Code::StorageQuotaExceeded, detail),
            E::Overloaded { retry_after, .. } => {
                Self::new(Code::Overloaded, detail).with_retry_after(retry_after)
            }
            E::SessionNotFound { .. } => Self::new(Code::SessionNotFound, detail),
            E::MessageNotFound { .. } | E::ItemNotFound { .. } => {
                Self::new(Code::MessageNotFound, detail)
            }
            E::PartOfMessage { .. } => Self::at("item_id", "is a part of a message", detail),
            E::NothingToCompact => Self::at("/input", "nothing to compact", detail),
            E::AgentNotFound { .. } => Self::new(Code::AgentNotFound, detail),
            E::CompactionNotFound { .. } => Self::new(Code::CompactionNotFound, detail),
            E::DispatchNotFound { .. } => Self::new(Code::DispatchNotFound, detail),
            E::NotMappable(fault) => {
                let pointer = format!("/messages/{}{}", fault.index, fault.pointer);
                Self::at(pointer, fault.to_string(), detail)
            }
            E::SessionClosed => Self::new(Code::SessionClosed, detail),
            E::SequenceConflict { .. } => Self::new(Code::SequenceConflict, detail),
            E::ToolCallNotFound { index, fault } => {
                let at =
                    FieldError::new(format!("/messages/{index}/tool_call_id"), fault.to_string());
                Self::new(Code::ToolCallNotFound, detail).with_errors(vec![at])
            }
            E::MessageIdTaken { index } => id_taken(index, "precis/id", detail),
            E::ItemIdTaken { index } => id_taken(index, "id", detail),
            E::InvalidMessage { index, fault } => match fault {
                MessageFault::Json(_) => Self::new(Code::InvalidJson, detail),
                MessageFault::Shape { pointer, problem } => {
                    let at = FieldError::new(format!("/messages/{index}{pointer}"), problem);
                    Self::new(Code::ValidationFailed, detail).with_errors(vec![at])
                }
            },
            E::IdentityChanged(identity) => Self::at(identity.pointer(), "may not change", detail),
            E::VersionStale { .. } => Self::new(Code::CompactionConflict, detail),
            E::TooManyMessages { .. } => Self::at("/messages", detail.clone(), detail),
            E::MemberTooLarge { member, .. } => {
                Self::at(format!("/{member}"), detail.clone(), detail)
            }
            E::MessageTooLarge { .. } | E::ConversationTooLarge { .. } => {
                Self::new(Code::PayloadTooLarge, detail)
            }
            E::KeyTaken => Self::new(Code::IdempotencyConflict, detail),
            E::RequestAtWork { retry_after } => {
                Self::new(Code::IdempotencyConflict, detail).with_retry_after(retry_after)
            }
            E::AskedBefore => {
                Self::new(Code::IdempotencyConflict, detail).with_retry_after(RETRY_AFTER)
            }
            E::CompactionInProgress { retry_after } => {
                Self::new(Code::CompactionInProgress, detail).with_retry_after(retry_after)
            }
            E::TurnNotFound { .. } => Self::new(Code::TurnNotFound, detail),
            E::TurnInProgress { retry_after } => {
                Self::new(Code::TurnInProgress, detail).with_retry_after(retry_after)
            }
            E::NothingToAnswer => Self::at("/messages", "nothing to answer", detail),
            E::TurnOver => Self::new(Code::TurnCancelled, detail),
            E::TurnInterrupted => {
                Self::new(Code::TurnInterrupted, detail).with_retry_after(RETRY_AFTER)
            }
            E::ModelNotConfigured => Self::new(Code::ModelNotConfigured, detail),
            E::ModelFailed(error) => model_failed(detail, error),
            E::ContextOverflow(_) | E::NothingFreed => Self::new(Code::ContextOverflow, detail),
            E::CompactionConflict => {
                Self::new(Code::CompactionConflict, detail).with_retry_after(RETRY_AFTER)
            }
            E::SummarizerFailed(failure) => summarizer_failed(detail, failure),
            E::CompactionTimeout(_) => Self::new(Code::SummarizerFailed, detail),
            E::ContextMoved => Self::new(
                Code::StorageUnavailable,
                "The history was rewritten again and again while its context was read; try again.",
            )
            .with_retry_after(RETRY_AFTER),
            E::ShuttingDown => retried(detail),
            E::Storage(error) => storage_failed(error),
            E::Internal(text) => internal().with_cause(text),
        }
    }
}

fn id_taken(index: usize, member: &str, detail: String) -> Problem {
    let pointer = format!("/messages/{index}/{member}");
    let at = FieldError::new(pointer, "another one has this id");
    Problem::new(Code::IdempotencyConflict, detail).with_errors(vec![at])
}

fn retried(detail: String) -> Problem {
    Problem::new(Code::StorageUnavailable, detail).with_retry_after(RETRY_AFTER)
}

fn storage_failed(error: StorageError) -> Problem {
    if !error.is_temporary() {
        return internal().with_cause(error);
    }
    let detail = match error {
        StorageError::Full(_) => {
            "The disk of the database is full, and nothing was changed. What is stored can be read; make room on that disk."
        }
        _ => {
            "The database gave no answer in time; nothing was changed unless the connection broke while it answered."
        }
    };
    Problem::new(Code::StorageUnavailable, detail)
        .with_retry_after(RETRY_AFTER)
        .with_cause(error)
}

fn internal() -> Problem {
    Problem::new(
        Code::Internal,
        "A fault of the server. Its log has the cause under the requestId.",
    )
}

/// What a client is told to wait for a rate limit whose end nobody knows.
const UNKNOWN_RATE_LIMIT: Duration = Duration::from_secs(30);
/// The longest wait passed on; a provider that asks for a day is asked again before.
const LONGEST_RATE_LIMIT: Duration = Duration::from_hours(1);

fn model_failed(detail: String, error: ProviderError) -> Problem {
    let code = match &error {
        ProviderError::Timeout { .. } => Code::ModelTimeout,
        _ => Code::ModelFailed,
    };
    let mut problem = Problem::new(code, detail).with_errors(vec![FieldError {
        code: Some(error.kind()),
        ..FieldError::new("", error.to_string())
    }]);
    if let ProviderError::RateLimited { retry_after, .. } = &error {
        problem.status = Some(503);
        let wait = retry_after.unwrap_or(UNKNOWN_RATE_LIMIT);
        problem.retry_after = Some(wait.min(LONGEST_RATE_LIMIT));
    }
    problem.with_cause(error)
}

fn summarizer_failed(detail: String, failure: SummarizerFailure) -> Problem {
    let code = match &failure {
        SummarizerFailure::Unacceptable(Unacceptable::NotSmaller { .. }) => Code::SummaryNotSmaller,
        _ => Code::SummarizerFailed,
    };
    let kind = match &failure {
        SummarizerFailure::Provider(error) => error.kind(),
        SummarizerFailure::Unacceptable(fault) => fault.code(),
    };
    let mut problem = Problem::new(code, detail).with_errors(vec![FieldError {
        code: Some(kind),
        ..FieldError::new("", failure.to_string())
    }]);
    if let SummarizerFailure::Provider(ProviderError::RateLimited { retry_after, .. }) = &failure {
        problem.status = Some(503);
        let wait = retry_after.unwrap_or(UNKNOWN_RATE_LIMIT);
        problem.retry_after = Some(wait.min(LONGEST_RATE_LIMIT));
    }
    problem.with_cause(failure)
}
