//! What a request costs the database: statements, round trips, rows, allocations, and the plans of all that is sent.
//! Nothing here is a time: each number is one that noise cannot change, so that a change of one is a change of the
//! program. How fast it all is, a program of its own measures (`examples/speed`).
//!
//! What counts is the process's own, so one test runs at a time.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    reason = "a test stops at the first thing that is not as it should be"
)]

mod counts;
mod growth;
mod measure;
mod plans;
mod requests;
mod rows;
mod statements;
#[expect(
    dead_code,
    unused_imports,
    reason = "the other tests use what these do not"
)]
#[path = "../api/support/mod.rs"]
mod support;
mod walk;
mod wire;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;
