//! Logging and traces for the whole process: what is let through, in which form, and where it goes.
//!
//! Log lines go to standard error, because standard output belongs to what a command prints (`precis openapi`), and because whoever
//! runs the service already collects it: no files, no rotation. What is worth logging is decided where it happens. Spans
//! go to a collector, if one is configured; see [`traces`].

mod traces;

use std::io::{self, IsTerminal as _};

use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::{
    EnvFilter, Layer, Registry, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use self::traces::Exporter;
pub use self::traces::{describe, join, mark_failed, outgoing};

use crate::config::{LogFormat, Settings};

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("the log filter is not one")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    #[error("logging was set up before")]
    Again(#[from] tracing_subscriber::util::TryInitError),
    #[error("the sender of traces cannot be set up (otlp_endpoint, PRECIS_OTLP_ENDPOINT)")]
    Exporter,
}

/// What was set up, to be ended with the process.
pub struct Telemetry {
    exporter: Option<Exporter>,
}

impl Telemetry {
    /// Sends the spans that wait; a collector that does not take them holds this up for a few seconds at most. Not
    /// to be called from within the runtime.
    pub fn end(self) {
        if let Some(exporter) = self.exporter {
            exporter.end();
        }
    }
}

/// Libraries whose notices at `info` say nothing to the operator of this service.
const QUIET: &str = "actix_server=warn,sqlx::postgres::notice=warn";

/// Sets logging up, and traces if there is a collector; once per process. Spans are sent with the help of the runtime.
///
/// # Errors
///
/// If the filter is not one, which [`Settings::load`] has already ruled out, if the collector's address is of no use,
/// or if logging was set up before.
pub fn init(settings: &Settings, runtime: &Handle) -> Result<Telemetry, TelemetryError> {
    // The operator's own directives come last, so that they win.
    let filter = EnvFilter::builder().parse(format!("{QUIET},{}", settings.log))?;
    let lines = lines(settings.log_format);
    if settings.otlp_endpoint.is_empty() {
        tracing_subscriber::registry()
            .with(lines)
            .with(filter)
            .try_init()?;
        return Ok(Telemetry { exporter: None });
    }
    let exporter = Exporter::start(&settings.otlp_endpoint, runtime)?;
    // Each has a filter of its own: what is logged is the same with and without a collector.
    let ours = FilterFn::new(is_span_of_ours).with_max_level_hint(LevelFilter::DEBUG);
    let spans = tracing_opentelemetry::layer()
        .with_tracer(exporter.tracer())
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_level(false)
        .with_tracked_inactivity(false)
        .with_filter(ours);
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(spans)
        .try_init()?;
    Ok(Telemetry {
        exporter: Some(exporter),
    })
}

fn is_span_of_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_span()
        && *metadata.level() <= Level::DEBUG
        && metadata.target().starts_with("precis")
}

fn lines(format: LogFormat) -> Box<dyn Layer<Registry> + Send + Sync> {
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    match format {
        // The list of spans holds the innermost one too: once is enough.
        LogFormat::Json => layer
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(true)
            .boxed(),
        // On a terminal the layer's own choice stands, which honours NO_COLOR.
        LogFormat::Text if io::stderr().is_terminal() => layer.boxed(),
        LogFormat::Text => layer.with_ansi(false).boxed(),
    }
}
