//! Logging for the whole process: what is let through, in which form, and where it goes.
//!
//! Standard error, because standard output belongs to what a command prints (`precis openapi`), and because whoever
//! runs the service already collects it: no files, no rotation. What is worth logging is decided where it happens.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::{
    EnvFilter, Layer, Registry, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::config::{LogFormat, Settings};

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("the log filter is not one")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    #[error("logging was set up before")]
    Again(#[from] tracing_subscriber::util::TryInitError),
}

/// Libraries whose notices at `info` say nothing to the operator of this service.
const QUIET: &str = "actix_server=warn,sqlx::postgres::notice=warn";

/// Sets logging up; once per process.
///
/// # Errors
///
/// If the filter is not one, which [`Settings::load`] has already ruled out, or if logging was set up before.
pub fn init(settings: &Settings) -> Result<(), TelemetryError> {
    // The operator's own directives come last, so that they win.
    let filter = EnvFilter::builder().parse(format!("{QUIET},{}", settings.log))?;
    tracing_subscriber::registry()
        .with(lines(settings.log_format))
        .with(filter)
        .try_init()?;
    Ok(())
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
