//! What is watched of requests, and the second server that shows it to whoever watches.
//!
//! A request is named by the pattern of its route, never by its path, and by a method that is known: labels and
//! the names of spans have a bound, whatever clients send.

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::middleware::from_fn;
use actix_web::web::{self, Data};
use actix_web::{App, Error};
use tracing::Span;

use super::problem::{Code, Problem};
use super::{finish, operations};
use crate::service::{Service, WatchedRequest};
use crate::telemetry;

/// A name for the route of a request that has none.
const NO_ROUTE: &str = "none";

fn route(request: &ServiceRequest) -> String {
    let pattern = request.match_pattern();
    pattern.unwrap_or_else(|| NO_ROUTE.to_owned())
}

fn method(method: &Method) -> &'static str {
    let known = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE",
    ];
    let mut known = known.into_iter();
    known
        .find(|known| *known == method.as_str())
        .unwrap_or("other")
}

/// Counts a request from now on.
pub(super) fn begin(request: &ServiceRequest) -> Option<WatchedRequest> {
    let service = request.app_data::<Data<Service>>()?;
    let method = method(request.method());
    Some(service.metrics().begin_request(route(request), method))
}

/// Makes a request's span part of the trace that its client began.
pub(super) fn join(span: &Span, request: &ServiceRequest) {
    let name = format!("{} {}", method(request.method()), route(request));
    let headers = request.headers();
    telemetry::join(span, &name, &|name| headers.get(name)?.to_str().ok());
    telemetry::describe(span, "http.request.method", method(request.method()));
    telemetry::describe(span, "http.route", route(request));
}

/// Says in a request's span how it was answered.
pub(super) fn describe(span: &Span, status: u16) {
    telemetry::describe(span, "http.response.status_code", i64::from(status));
    if status >= 500 {
        telemetry::mark_failed(span, "server");
    }
}

/// Metrics and health, for an address of their own where no key is asked for.
pub fn watch_app(
    service: Data<Service>,
) -> App<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<impl MessageBody>,
        Error = Error,
        InitError = (),
    >,
> {
    App::new()
        .app_data(service)
        .service(operations::metrics)
        .service(operations::live)
        .service(operations::ready)
        .default_service(web::to(nothing_else))
        .wrap(from_fn(finish::finish))
}

async fn nothing_else() -> Result<actix_web::HttpResponse, Problem> {
    Err(Problem::new(
        Code::RouteNotFound,
        "There are only /metrics, /health/live and /health/ready here.",
    ))
}
