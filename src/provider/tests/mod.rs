//! Tests of the folder, over loopback only. They live here rather than under `tests/` because
//! most of what they prove (limits, waits, what is never printed) needs no running service.

mod answers;
mod assembly;
mod network;
mod overflow;
mod refusals;
mod retry;
mod secrets;
mod sent;
mod server;
mod sse;
mod stream;
mod support;
mod turn;
mod turn_breaks;
