//! Tests of the folder, over loopback only. They live here rather than under `tests/` because
//! most of what they prove (limits, waits, what is never printed) needs no running service.

mod chat;
mod overflow;
mod retry;
mod server;
