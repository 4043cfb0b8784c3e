//! HTTP: the list of routes, a file a resource, problem documents, schema-checked bodies.
//!
//! Handlers are thin: they read a request, call one use case, and write its answer. What a request
//! means is the service's.

mod access;
mod admission;
mod agents;
mod compactions;
mod context;
mod cursor;
mod dispatches;
mod events;
mod extract;
mod finish;
mod intake;
mod keys;
mod messages;
mod once;
mod openapi;
mod openapi_once;
mod operations;
mod problem;
mod respond;
mod rewrites;
mod schema;
mod search;
mod security;
mod sessions;
mod shapes;
mod tenants;
mod turns;
mod v1;
mod watch;

use actix_cors::Cors;
use actix_web::dev::{ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::middleware::{Condition, from_fn};
use actix_web::web::{self, Data};
use actix_web::{App, Error, HttpRequest, HttpResponse};

pub use access::Door;
pub use intake::Intake;
pub use openapi::{openapi_json, route_table};
pub use problem::{Code, Problem};
pub use schema::warm_up as schemas_are_sound;
pub use v1::Refusals;
pub use watch::watch_app;

use crate::service::Service;

/// Adds every route to whatever takes them. They are tried in this order, so those that agents ask for all the time
/// stand first.
macro_rules! add_routes {
    ($config:expr) => {
        $config
            .service(messages::append_messages)
            .service(context::get_context)
            .service(dispatches::dispatch_context)
            .service(turns::run_turn)
            .service(messages::list_messages)
            .service(sessions::get_session)
            .service(agents::put_agent)
            .service(agents::list_agents)
            .service(agents::get_agent)
            .service(agents::delete_agent)
            .service(sessions::create_session)
            .service(sessions::list_sessions)
            .service(sessions::patch_session)
            .service(sessions::delete_session)
            .service(sessions::close_session)
            .service(sessions::reopen_session)
            .service(sessions::reset_session)
            .service(messages::get_message)
            .service(search::search_session)
            .service(rewrites::replace_message)
            .service(rewrites::erase_message)
            .service(rewrites::rewind_session)
            .service(rewrites::fork_session)
            .service(rewrites::restore_compaction)
            .service(dispatches::list_dispatches)
            .service(dispatches::get_dispatch)
            .service(dispatches::get_stats)
            .service(turns::list_turns)
            .service(turns::get_turn)
            .service(turns::cancel_turn)
            .service(compactions::compact_session)
            .service(compactions::list_compactions)
            .service(compactions::get_compaction)
            .service(events::session_events)
            .service(events::all_events)
            .service(v1::conversations::create_conversation)
            .service(v1::conversations::get_conversation)
            .service(v1::conversations::update_conversation)
            .service(v1::conversations::delete_conversation)
            .service(v1::items::create_items)
            .service(v1::items::list_items)
            .service(v1::items::get_item)
            .service(v1::items::delete_item)
            .service(v1::compact::compact_response)
            .service(tenants::list_tenants)
            .service(tenants::get_tenant)
            .service(tenants::patch_tenant)
            .service(keys::create_key)
            .service(keys::list_keys)
            .service(keys::revoke_key)
            .service(operations::live)
            .service(operations::ready)
            .service(operations::metrics)
            .service(operations::openapi_document)
    };
}

/// Every route, with what the OpenAPI document says of it. That takes megabytes, so no worker has it.
fn describe(config: &mut utoipa_actix_web::service_config::ServiceConfig<'_>) {
    add_routes!(config);
}

fn serve(config: &mut web::ServiceConfig) {
    add_routes!(config);
}

/// The whole application for one worker.
pub fn app(
    service: Data<Service>,
    door: Data<Door>,
    intake: Data<Intake>,
    refusals: Data<Refusals>,
) -> App<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<impl actix_web::body::MessageBody>,
        Error = Error,
        InitError = (),
    >,
> {
    let cors = Condition::new(!door.origins.is_empty(), cross_origin(&door.origins));
    App::new()
        .configure(serve)
        .app_data(service)
        .app_data(door)
        .app_data(intake)
        .app_data(refusals)
        .service(operations::home)
        .service(operations::docs)
        .service(operations::errors)
        .service(openapi::swagger_ui())
        .default_service(web::to(no_route))
        // Within whatever finds out who is asking.
        .wrap(from_fn(admission::admit))
        .wrap(from_fn(access::admit))
        .wrap(cors)
        .wrap(from_fn(finish::finish))
        .wrap(tracing_actix_web::TracingLogger::<finish::RequestSpan>::new())
}

/// For the pages of these origins: answers what browsers ask beforehand, which brings no key, and lets scripts see
/// what else an answer says. Cookies play no part here, so credentials are not allowed.
fn cross_origin(origins: &[String]) -> Cors {
    let cors = Cors::default()
        .allowed_methods(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
        .allow_any_header()
        .expose_headers(EXPOSED)
        .max_age(3_600);
    origins
        .iter()
        .fold(cors, |cors, origin| cors.allowed_origin(origin))
}

/// Headers of answers that a script of another site may read.
const EXPOSED: [&str; 6] = [
    "etag",
    "location",
    "retry-after",
    "x-request-id",
    "idempotency-replayed",
    "www-authenticate",
];

/// What no route takes: a wrong method on a path there is, or a path there is not.
async fn no_route(request: HttpRequest) -> Result<HttpResponse, Problem> {
    let methods = openapi::methods_of(request.match_info().as_str());
    if methods.is_empty() {
        return Err(Problem::new(
            Code::RouteNotFound,
            "There is no such route; GET /openapi.json lists those there are.",
        ));
    }
    let allow = methods.join(", ");
    Err(Problem::new(Code::MethodNotAllowed, format!("This path takes {allow}.")).with_allow(allow))
}
