//! The service over real HTTP, on both databases. The modules mirror the tree of the URLs; beside
//! them stand the fault cases by number, and what only several clients, several processes or a
//! kill can show.
//!
//! Every test runs on SQLite and on PostgreSQL. Without `PRECIS_TEST_DATABASE_URL` the PostgreSQL
//! half fails: a green run that skipped half would be worse than a red one.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    reason = "a test stops at the first thing that is not as it should be"
)]

mod abandoned;
mod access;
mod agents;
mod auto_compaction;
mod cases;
mod chaos;
mod concurrency;
mod conversations;
mod crash;
mod dispatch;
mod events;
mod fixtures;
mod idempotency;
mod landmarks;
mod lifecycle;
mod limits;
mod openapi;
mod problems;
mod random_histories;
mod search;
mod service;
mod sessions;
mod shutdown;
mod state_machine;
mod support;
mod turns;
mod watching;
mod worked_cases;
