//! Records every statement that is sent to a database, as the driver logs it.

use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Where the driver logs statements.
const TARGET: &str = "sqlx::query";

/// A statement that was run.
#[derive(Debug, Clone, Default)]
pub struct Statement {
    pub text: String,
    pub rows_returned: u64,
}

static RECORDED: Mutex<Vec<Statement>> = Mutex::new(Vec::new());

struct Recorder;

impl<S: Subscriber> Layer<S> for Recorder {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let text = match fields.statement.trim() {
            // A short text is logged as its own summary.
            "" => fields.summary.trim().to_owned(),
            text => text.to_owned(),
        };
        let mut recorded = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.push(Statement {
            text,
            rows_returned: fields.rows_returned,
        });
    }
}

#[derive(Default)]
struct Fields {
    summary: String,
    statement: String,
    rows_returned: u64,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "summary" => value.clone_into(&mut self.summary),
            "db.statement" => value.clone_into(&mut self.statement),
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "rows_returned" {
            self.rows_returned = value;
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

/// Records from now on, for the whole process.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let only = Targets::new().with_target(TARGET, LevelFilter::TRACE);
        tracing_subscriber::registry()
            .with(Recorder.with_filter(only))
            .init();
    });
}

/// What was recorded since this was last called.
pub fn take() -> Vec<Statement> {
    std::mem::take(&mut *RECORDED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// How many statements wait to be taken.
pub fn count() -> usize {
    RECORDED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .len()
}
