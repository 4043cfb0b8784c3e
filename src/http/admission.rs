//! Lets requests in at their tenant's rate, before their bodies are read.

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, HttpMessage};

use super::problem::Problem;
use crate::service::{Caller, Service};

/// Refuses a request beyond its tenant's rate. What watches the service and what describes it has none.
///
/// # Errors
/// None of its own: a refusal is a response.
pub async fn admit(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let service = request.app_data::<Data<Service>>().cloned();
    if let Some(service) = service.filter(|_| has_rate(request.path())) {
        let caller = request.extensions().get::<Caller>().copied();
        let tenant = caller.unwrap_or(Caller::DEFAULT).tenant;
        if let Err(refused) = service.admit_request(tenant).await {
            return Ok(request.error_response(Problem::from(refused)));
        }
    }
    let response = next.call(request).await?;
    Ok(response.map_into_boxed_body())
}

fn has_rate(path: &str) -> bool {
    let is_free = matches!(path, "/" | "/docs" | "/openapi.json" | "/metrics")
        || path.starts_with("/docs/")
        || path.starts_with("/health/");
    !is_free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_metrics_and_documentation_have_no_rate() {
        for path in [
            "/",
            "/docs",
            "/docs/",
            "/docs/errors",
            "/health/live",
            "/metrics",
            "/openapi.json",
        ] {
            assert!(!has_rate(path), "{path}");
        }
        for path in [
            "/sessions",
            "/docsx",
            "/health",
            "/metrics/",
            "/admin/tenants",
            "//",
        ] {
            assert!(has_rate(path), "{path}");
        }
    }
}
