//! Traces: where spans go, how a trace that began elsewhere is joined, and how it goes on elsewhere.
//!
//! Spans are sent by a thread of their own, from a queue with a bound: a collector that is slow, or not there,
//! costs spans and nothing else. It is asked through the HTTP client that the rest of the program uses, on its
//! runtime. What becomes a span is decided where it happens; nothing that is not a span of ours is sent, so no
//! log line and no library can put anything into a trace.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Status, TracerProvider};
use opentelemetry_http::{HeaderInjector, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use reqwest::header::HeaderMap;
use tokio::runtime::Handle;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::TelemetryError;

/// How long the collector may take to accept spans.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the end of the program waits for the last of them.
const FAREWELL: Duration = Duration::from_secs(3);
/// Bytes of the collector's answer that are read: it says nothing of interest.
const ANSWER: usize = 64 << 10;

/// Whether spans are sent anywhere.
static SENT: AtomicBool = AtomicBool::new(false);

/// Sends spans until it is told to end.
pub(super) struct Exporter {
    provider: SdkTracerProvider,
}

impl Exporter {
    /// Sends spans to the collector at this address, with `/v1/traces` behind it. The runtime must outlive it.
    pub(super) fn start(endpoint: &str, runtime: &Handle) -> Result<Self, TelemetryError> {
        let endpoint = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(runtime)?)
            .with_endpoint(endpoint)
            .with_timeout(PATIENCE)
            .build()
            .map_err(|_| TelemetryError::Exporter)?;
        let resource = Resource::builder();
        // The operator's own word, if there is one, is among them already.
        let resource = if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource.with_service_name("precis")
        } else {
            resource
        };
        let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.with_attribute(version).build())
            .with_batch_exporter(exporter)
            .build();
        SENT.store(true, Ordering::Relaxed);
        Ok(Self { provider })
    }

    pub(super) fn tracer(&self) -> SdkTracer {
        self.provider.tracer("precis")
    }

    /// Sends what waits, for a few seconds at most.
    pub(super) fn end(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FAREWELL) {
            tracing::debug!(%error, "the last spans were not sent");
        }
    }
}

/// The way to the collector.
struct Collector {
    client: reqwest::Client,
    runtime: Handle,
    /// Whether it was told of that the collector takes nothing.
    failing: Arc<AtomicBool>,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

impl Collector {
    fn new(runtime: &Handle) -> Result<Self, TelemetryError> {
        let client = reqwest::Client::builder()
            .user_agent(concat!("precis/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .timeout(PATIENCE)
            .build()
            .map_err(|_| TelemetryError::Exporter)?;
        Ok(Self {
            client,
            runtime: runtime.clone(),
            failing: Arc::default(),
        })
    }
}

impl HttpClient for Collector {
    // As `async_trait` spells an asynchronous function.
    fn send_bytes<'life0, 'async_trait>(
        &'life0 self,
        request: Request<Bytes>,
    ) -> BoxFuture<'async_trait, Result<Response<Bytes>, HttpError>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        let (client, failing) = (self.client.clone(), Arc::clone(&self.failing));
        // Whoever sends spans is a thread outside of the runtime.
        let sent = self.runtime.spawn(async move {
            let sent = send(&client, request).await;
            note(&failing, &sent);
            sent
        });
        Box::pin(async move { sent.await? })
    }
}

async fn send(
    client: &reqwest::Client,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let request = reqwest::Request::try_from(request)?;
    let mut answer = client
        .execute(request)
        .await
        .map_err(reqwest::Error::without_url)?;
    let status = answer.status();
    let mut left = ANSWER;
    // A connection whose answer was read serves again.
    while let Ok(Some(piece)) = answer.chunk().await {
        match left.checked_sub(piece.len()) {
            Some(rest) => left = rest,
            None => break,
        }
    }
    Ok(Response::builder().status(status).body(Bytes::new())?)
}

/// One line when it begins to fail, and one when that is over.
fn note(failing: &AtomicBool, sent: &Result<Response<Bytes>, HttpError>) {
    let trouble = match sent {
        Ok(answer) if answer.status().is_success() => None,
        Ok(answer) => Some(answer.status().to_string()),
        Err(error) => Some(error.to_string()),
    };
    let was_failing = failing.swap(trouble.is_some(), Ordering::Relaxed);
    match trouble {
        Some(trouble) if !was_failing => {
            tracing::warn!(
                trouble,
                "the collector takes no spans (otlp_endpoint); they are dropped until it does"
            );
        }
        None if was_failing => tracing::info!("the collector takes spans again"),
        _ => {}
    }
}

/// Headers of a request, by name.
struct Headers<'h>(&'h dyn Fn(&str) -> Option<&'h str>);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (self.0)(key)
    }

    fn keys(&self) -> Vec<&str> {
        // The propagator asks for those that it knows.
        Vec::new()
    }
}

/// Makes a span that was just created part of the trace that a request's headers (`traceparent`) name, and says
/// what kind of request it is. Nothing happens if spans are not sent anywhere.
pub fn join<'h>(span: &Span, name: &str, header: &'h dyn Fn(&str) -> Option<&'h str>) {
    if !SENT.load(Ordering::Relaxed) {
        return;
    }
    let remote = TraceContextPropagator::new().extract(&Headers(header));
    // Only fails if the span was entered before, or is one that is not sent.
    drop(span.set_parent(remote));
    span.record("otel.name", name);
    span.record("otel.kind", "server");
}

/// The headers by which the server that is asked can join the trace of the present span; none if there is none.
#[must_use]
pub fn outgoing() -> HeaderMap {
    let mut headers = HeaderMap::new();
    if SENT.load(Ordering::Relaxed) {
        let context = Span::current().context();
        TraceContextPropagator::new().inject_context(&context, &mut HeaderInjector(&mut headers));
    }
    headers
}

/// Adds to a span what only a trace has a use for, under the name that is agreed for it.
pub fn describe(span: &Span, name: &'static str, value: impl Into<opentelemetry::Value>) {
    if SENT.load(Ordering::Relaxed) {
        span.set_attribute(name, value);
    }
}

/// Marks the span of something that failed. `code`: why, in a fixed word.
pub fn mark_failed(span: &Span, code: &'static str) {
    if SENT.load(Ordering::Relaxed) {
        span.set_status(Status::error(code));
        span.set_attribute("error.type", code);
    }
}
