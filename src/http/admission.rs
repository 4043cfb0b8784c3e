//! Lets requests in at their tenant's rate, before their bodies are read.

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, HttpMessage};

use super::problem::Problem;
use crate::service::{Authority, Caller, Service};

/// What watches the service asks as often as it likes.
const METRICS: &str = "/metrics";

/// Refuses a request beyond its tenant's rate. Where nobody needs to be known, there is no tenant and no rate.
///
/// # Errors
/// None of its own: a refusal is a response.
pub async fn admit(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let caller = request.extensions().get::<Caller>().copied();
    let caller = caller.filter(|caller| is_limited(*caller, request.match_info().as_str()));
    let service = request.app_data::<Data<Service>>().cloned();
    if let (Some(caller), Some(service)) = (caller, service)
        && let Err(refused) = service.admit_request(caller.tenant).await
    {
        return Ok(request.error_response(Problem::from(refused)));
    }
    let response = next.call(request).await?;
    Ok(response.map_into_boxed_body())
}

/// Whoever sets the limits must get in to raise one that was set too low.
fn is_limited(caller: Caller, path: &str) -> bool {
    let sets_limits = caller.authority == Authority::Server && path.starts_with("/admin/");
    path != METRICS && !sets_limits
}
