//! The last hand on every response: the request id, and errors as problem documents.
//!
//! Whatever fails, in a handler, an extractor or the framework itself, comes through here. So there
//! is one place where a cause is logged, once, and where path and request id are put into the answer.

use actix_web::body::{self, BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, HttpRequest};
use tracing::Span;
use tracing_actix_web::RootSpanBuilder;
use uuid::Uuid;

use super::intake::Watched;
use super::problem::{Code, Problem};
use super::watch;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request: the client's if it is harmless, else a new one.
#[derive(Debug, Clone)]
struct RequestId(String);

impl RequestId {
    fn of(request: &ServiceRequest) -> Self {
        if let Some(id) = request.extensions().get::<Self>() {
            return id.clone();
        }
        let given = request
            .headers()
            .get(REQUEST_ID)
            .and_then(|id| id.to_str().ok());
        let is_harmless = |id: &&str| {
            (1..=128).contains(&id.len())
                && id
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        let id = match given.filter(is_harmless) {
            Some(id) => id.to_owned(),
            None => Uuid::now_v7().simple().to_string(),
        };
        let id = Self(id);
        request.extensions_mut().insert(id.clone());
        id
    }
}

/// The id of a request that is being answered.
pub fn request_id(request: &HttpRequest) -> String {
    let id = request.extensions().get::<RequestId>().cloned();
    id.map(|id| id.0).unwrap_or_default()
}

/// The span of a request. At `debug`, since a line a request costs more than most requests do.
pub struct RequestSpan;

impl RootSpanBuilder for RequestSpan {
    fn on_request_start(request: &ServiceRequest) -> Span {
        let id = RequestId::of(request).0;
        let span = tracing::debug_span!(
            "request",
            request_id = %id,
            method = %request.method(),
            // The pattern, not the path: a path may hold anything.
            route = request.match_pattern().as_deref().unwrap_or("none"),
            status = tracing::field::Empty,
            otel.name = tracing::field::Empty,
            otel.kind = tracing::field::Empty,
        );
        if !span.is_disabled() {
            watch::join(&span, request);
        }
        span
    }

    fn on_request_end<B: MessageBody>(span: Span, outcome: &Result<ServiceResponse<B>, Error>) {
        if span.is_disabled() {
            return;
        }
        let status = match outcome {
            Ok(response) => response.status().as_u16(),
            Err(error) => error.as_response_error().status_code().as_u16(),
        };
        span.record("status", status);
        watch::describe(&span, status);
        span.in_scope(|| tracing::debug!(status, "answered"));
    }
}

/// Puts the request id on a response and makes a problem document of an error.
///
/// # Errors
/// None of ours: an error became a response before.
pub async fn finish(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let id = RequestId::of(&request).0;
    let path = request.path().to_owned();
    let watched = watch::begin(&request);
    let body = Watched::of(&mut request);
    // A HEAD is answered as a GET would be; the server itself leaves the body out.
    let is_head = request.method() == Method::HEAD;
    if is_head {
        request.head_mut().method = Method::GET;
    }
    // Handlers and extractors never fail here: their errors are responses already.
    let response = next.call(request).await?;
    let status = response.status();
    let problem = match response.response().error() {
        Some(error) => Some(problem_of(error, &id, &path)),
        // An empty refusal of the framework, of a page it does not have, say.
        None if status.is_client_error() || status.is_server_error() => {
            Some(problem_of_status(status).respond(&path, &id))
        }
        None => None,
    };
    if let Some(watched) = watched {
        watched.end(status.as_u16());
    }
    let response = response.map_into_boxed_body();
    let mut response = match problem {
        Some(mut problem) => {
            keep_cross_origin(response.headers(), problem.headers_mut());
            response.into_response(problem)
        }
        None => response,
    };
    if let Some(body) = body {
        let status = response.status();
        response = response.map_body(|_, answer| body.beside(status, answer));
    }
    // But it waits for the end of one that is streamed, which that of events never comes to.
    if is_head && response.response().body().size() == BodySize::Stream {
        response = response.map_body(|_, _| BoxBody::new(body::None::new()));
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    Ok(response)
}

/// What lets a page of another site read an answer lets it read an error too.
fn keep_cross_origin(from: &HeaderMap, to: &mut HeaderMap) {
    for (name, value) in from {
        if *name == header::VARY || name.as_str().starts_with("access-control-") {
            to.append(name.clone(), value.clone());
        }
    }
}

fn problem_of(error: &Error, id: &str, path: &str) -> actix_web::HttpResponse {
    if let Some(problem) = error.as_error::<Problem>() {
        log(problem, id);
        return problem.respond(path, id);
    }
    let status = error.as_response_error().status_code();
    if status.is_server_error() {
        tracing::error!(request_id = id, cause = %error, "a request failed");
    }
    problem_of_status(status).respond(path, id)
}

/// The framework's own refusals; its words are for nobody.
fn problem_of_status(status: StatusCode) -> Problem {
    match status.as_u16() {
        404 => Problem::new(Code::RouteNotFound, "There is no such route."),
        405 => Problem::new(
            Code::MethodNotAllowed,
            "This path does not take this method.",
        ),
        413 => Problem::new(Code::PayloadTooLarge, "The request is too large."),
        415 => Problem::new(Code::UnsupportedMediaType, "The body must be JSON."),
        400..=499 => Problem::new(Code::InvalidParameter, "The request cannot be read."),
        _ => Problem::new(
            Code::Internal,
            "A fault of the server. Its log has the cause under the requestId.",
        ),
    }
}

/// Logs the cause of a problem, if it is one for the log.
pub fn log(problem: &Problem, id: &str) {
    let code = problem.code.as_str();
    match problem.code {
        Code::Internal => {
            tracing::error!(request_id = id, code, cause = %problem.causes(), "a request failed");
        }
        Code::StorageUnavailable => {
            tracing::warn!(request_id = id, code, cause = %problem.causes(), "a request failed");
        }
        // What a model did wrong was logged where it was asked.
        _ => tracing::debug!(request_id = id, code, "a request was refused"),
    }
}
