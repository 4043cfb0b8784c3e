//! The second server, of metrics and health, and the lines that say where everything is.

use std::net::SocketAddr;

use actix_web::HttpServer;
use actix_web::dev::Server;
use actix_web::web::Data;

use super::StartError;
use crate::config::Settings;
use crate::http;
use crate::service::Service;

/// The server of metrics and health, if one is asked for.
pub(super) fn bind_watched(
    settings: &Settings,
    service: Service,
) -> Result<Option<(Server, SocketAddr)>, StartError> {
    /// Nobody waits for a scrape that is cut off.
    const PATIENCE: u64 = 1;
    let Some(address) = settings.metrics_listen else {
        return Ok(None);
    };
    let service = Data::new(service);
    let server = HttpServer::new(move || http::watch_app(service.clone()))
        .workers(1)
        .client_request_timeout(settings.http.header_timeout())
        .shutdown_timeout(PATIENCE)
        .disable_signals()
        .bind(address)
        .map_err(|source| StartError::Listen {
            address,
            option: "metrics_listen, PRECIS_METRICS_LISTEN",
            source,
        })?;
    let bound = server.addrs().first().copied().unwrap_or(address);
    Ok(Some((server.run(), bound)))
}

/// The lines for a person: a name and what there is to say.
pub(super) fn banner(
    address: SocketAddr,
    metrics: Option<SocketAddr>,
    parts: [(&'static str, String); 4],
) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("API", format!("http://{address}")),
        ("Swagger UI", format!("http://{address}/docs/")),
    ];
    lines.extend(metrics.map(|address| ("Metrics", format!("http://{address}/metrics"))));
    lines.extend(parts);
    lines
}
