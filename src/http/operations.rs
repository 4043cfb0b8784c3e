//! What is not about sessions: health, the OpenAPI document, the pages under `/docs`.

use std::fmt::Write;

use actix_web::http::{StatusCode, header};
use actix_web::web::Data;
use actix_web::{HttpResponse, get};
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::{Code, FieldError, Problem, ProblemDocument};
use super::respond::json;
use crate::service::{self, Service};

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

/// What the service stands on, each in a word. `not configured`: there is none, and need not be.
#[derive(Debug, Serialize, ToSchema)]
pub struct Checks {
    /// `ok`; `busy`: all connections are at work, so that some requests get 503 `STORAGE_UNAVAILABLE`.
    #[schema(example = "ok")]
    database: String,
    /// `ok`, or `failing since` the first of the writes that failed because the database takes none (its disk is
    /// full, say). Reading works.
    #[schema(example = "ok")]
    writer: String,
    /// `ok`; `older` or `newer`: the schema is not the one that this version was made for; `unknown`.
    #[schema(example = "ok")]
    migrations: String,
    /// `ok`; `polling`: what other replicas do is not heard at once, events of theirs come later.
    #[schema(example = "not configured")]
    listener: String,
    /// `ok`, or `failing since` the first of the calls for summaries that failed.
    #[schema(example = "failing since 2026-11-30T04:06:55.000000Z")]
    summarizer: String,
    /// `ok`, or `failing since` the first of the calls of turns that failed.
    #[schema(example = "ok")]
    model: String,
}

/// Whether the service takes requests, and how that is which it stands on.
#[derive(Debug, Serialize, ToSchema)]
pub struct Readiness {
    /// `ok`; `degraded`: it takes requests, and one of the checks says what some of them will meet.
    #[schema(example = "degraded")]
    status: &'static str,
    /// The program's version.
    #[schema(example = "0.1.0")]
    version: &'static str,
    checks: Checks,
}

impl Readiness {
    fn of(health: &service::Health) -> Self {
        Self {
            status: if health.is_fine() { "ok" } else { "degraded" },
            version: HEALTHY.version,
            checks: Checks {
                database: health.database.to_string(),
                writer: health.writer.to_string(),
                migrations: health.migrations.to_string(),
                listener: health.listener.to_string(),
                summarizer: health.summarizer.to_string(),
                model: health.model.to_string(),
            },
        }
    }
}

/// Does the service take requests
///
/// It does while the database answers and no shutdown has begun; the answer comes within little more than a second.
/// Whatever else is not as it should be is told of in `checks` and does not change the status: a model that fails, other
/// replicas that are not heard, a disk that is full. A refusal names in `errors` each check that is not as it should be.
#[utoipa::path(
    tag = TAG,
    responses(
        (status = 200, description = "It does.", body = Readiness),
        (status = 503, description = "The database gave no answer in time, or the server is shutting down.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/health/ready")]
pub async fn ready(service: Data<Service>) -> Result<HttpResponse, Problem> {
    let health = service.health().await;
    match health.refused {
        None => json(StatusCode::OK, &Readiness::of(&health)),
        Some(why) => {
            let checks = health.checks().into_iter();
            let troubles = checks
                .filter(|(_, check)| !check.is_fine())
                .map(|(name, check)| FieldError::new(format!("/checks/{name}"), check.to_string()));
            Err(Problem::unavailable(why).with_errors(troubles.collect()))
        }
    }
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
