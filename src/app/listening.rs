//! The HTTP server on its address: its threads, and what connections may hold up.

use std::any::Any;
use std::net::SocketAddr;
use std::time::Duration;

use actix_web::HttpServer;
use actix_web::dev::Server;
use actix_web::web::Data;

use super::StartError;
use crate::config::{Settings, Switch};
use crate::http::{self, Door, Intake, Refusals};
use crate::service::{LimitDefaults, Service};

/// What tenants may use, and how many streams of events there may be.
pub(super) fn limits(settings: &Settings) -> LimitDefaults {
    let tenants = &settings.tenants;
    LimitDefaults {
        requests_per_second: i64::from(tenants.requests_per_second),
        request_burst: i64::from(tenants.request_burst),
        concurrent_compactions: i64::from(tenants.concurrent_compactions),
        concurrent_turns: i64::from(tenants.concurrent_turns),
        stored_bytes: tenants.stored_bytes,
        event_streams: settings.limits.event_streams,
    }
}

/// Takes the address and gives the server, which serves once it is awaited.
///
/// # Errors
/// The address cannot be taken.
pub(super) fn bind(
    settings: &Settings,
    service: Service,
) -> Result<(Server, SocketAddr), StartError> {
    let address = settings.listen;
    let listen = |source| StartError::Listen {
        address,
        option: "listen, PRECIS_LISTEN",
        source,
    };
    let service = Data::new(service);
    let intake = Data::new(Intake::new(
        settings.limits.body_bytes,
        settings.limits.body_bytes_in_flight,
        settings.http.body_timeout(),
    ));
    let door = Data::new(Door {
        origins: settings.cors.origins(),
        insecure: settings.insecure_no_auth == Switch::On,
    });
    let refusals = Data::new(Refusals::default());
    let patience = settings.http.shutdown().as_secs();
    let unread = settings.http.write_timeout();
    let server = HttpServer::new(move || {
        http::app(
            service.clone(),
            door.clone(),
            intake.clone(),
            refusals.clone(),
        )
    })
        .workers(settings.http.worker_count())
        .max_connections(settings.http.max_connections)
        .backlog(settings.http.backlog)
        .keep_alive(settings.http.keep_alive())
        .client_request_timeout(settings.http.header_timeout())
        .shutdown_timeout(patience)
        .on_connect(move |connection, _| bound_unread(connection, unread))
        // The pieces of a stream are small; none waits for the acknowledgement of the one before.
        .tcp_nodelay(true)
        .disable_signals()
        .bind(address)
        .map_err(listen)?;
    let bound = server.addrs().first().copied().unwrap_or(address);
    Ok((server.run(), bound))
}

/// Has the system cut a connection whose client neither acknowledges nor reads what it is sent for so long. A client
/// that reads slowly is not meant: each byte that it makes room for begins the time anew. One that is only silent,
/// behind an answer that it has read, has nothing outstanding.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn bound_unread(connection: &dyn Any, unread: Option<Duration>) {
    let stream = connection.downcast_ref::<actix_web::rt::net::TcpStream>();
    if let (Some(stream), Some(unread)) = (stream, unread)
        && let Err(error) = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(unread))
    {
        tracing::debug!(%error, "a connection has no bound on how long an answer may lie unread");
    }
}

/// Other systems have no such bound.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn bound_unread(_: &dyn Any, _: Option<Duration>) {}
