//! What those see who watch: metrics, readiness, traces, and how the service bears a database that has
//! nothing left to give.

mod exposition;
mod metrics;
mod pressure;
mod ready;
mod traces;
