//! What is not about sessions: health, the OpenAPI document, the pages under `/docs`.

use std::fmt::Write;

use actix_web::http::{StatusCode, header};
use actix_web::web::Data;
use actix_web::{HttpResponse, get};
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::{Code, Problem, ProblemDocument};
use super::respond::json;
use crate::service::Service;

const TAG: &str = "Operations";

/// How the service is.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`.
    #[schema(example = "ok")]
    status: &'static str,
    /// The program's version.
    #[schema(example = "0.1.0")]
    version: &'static str,
}

const HEALTHY: Health = Health {
    status: "ok",
    version: env!("CARGO_PKG_VERSION"),
};

/// Is the process alive
///
/// Asks nothing of the database: a restart would not mend one that is down.
#[utoipa::path(
    tag = TAG,
    responses((status = 200, description = "It is.", body = Health))
)]
#[get("/health/live")]
pub async fn live() -> Result<HttpResponse, Problem> {
    json(StatusCode::OK, &HEALTHY)
}

/// Does the service take requests
///
/// The database answers, and the service is not shutting down.
#[utoipa::path(
    tag = TAG,
    responses(
        (status = 200, description = "It does.", body = Health),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/health/ready")]
pub async fn ready(service: Data<Service>) -> Result<HttpResponse, Problem> {
    service.check_ready().await?;
    json(StatusCode::OK, &HEALTHY)
}

/// Metrics
///
/// What this replica has counted since its start, in the text format of `OpenMetrics`, for Prometheus and what understands
/// it.
#[utoipa::path(
    tag = TAG,
    responses((status = 200, description = "The metrics.", body = String, content_type = "application/openmetrics-text"))
)]
#[get("/metrics")]
pub async fn metrics(service: Data<Service>) -> Result<HttpResponse, Problem> {
    Ok(HttpResponse::Ok()
        .content_type("application/openmetrics-text; version=1.0.0; charset=utf-8")
        .body(service.metrics().render()?))
}

/// The OpenAPI document
///
/// OpenAPI 3.1, as JSON.
#[utoipa::path(
    tag = TAG,
    responses((status = 200, description = "The document.", body = Object, content_type = "application/json"))
)]
#[get("/openapi.json")]
pub async fn openapi_document() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("application/json")
        .body(super::openapi::text())
}

/// The address in the banner, opened in a browser, leads to the page.
#[get("/")]
pub async fn home() -> HttpResponse {
    to_docs()
}

/// `/docs` itself leads to the page.
#[get("/docs")]
pub async fn docs() -> HttpResponse {
    to_docs()
}

fn to_docs() -> HttpResponse {
    HttpResponse::PermanentRedirect()
        .insert_header((header::LOCATION, "/docs/"))
        .finish()
}

/// What every error code means.
#[get("/docs/errors")]
pub async fn errors() -> HttpResponse {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Precis: errors</title>\
         <style>body{font:16px/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}\
         h2{font-size:1rem;margin:1.5rem 0 0}:target{background:#fff3bf}</style>\
         <h1>Errors</h1><p>Every error is a problem document (RFC 9457) with one of these codes.</p>",
    );
    for code in Code::ALL {
        // Writing to a string does not fail; none of these texts holds markup.
        let _ = write!(
            page,
            "<h2 id=\"{0}\"><code>{0}</code> · {1}</h2><p>{2}. {3}</p>",
            code.as_str(),
            code.status(),
            code.title(),
            code.advice()
        );
    }
    HttpResponse::Ok()
        .content_type("text/html; charset=utf-8")
        .body(page)
}
