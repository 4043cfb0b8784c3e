//! What a stranger may send, made up at random: each target is a law that no input may break.
//!
//! In a plain run of the tests every target takes a small, fixed number of cases from a fixed seed. With
//! `PRECIS_FUZZ_SECONDS` it takes new ones for so long (`scripts/fuzz`). Whatever breaks a law is made as
//! small as it gets, and printed with the seed that finds it again.
//!
//! Only what the crate shows to others is called here. The laws of single rules stand beside the rules.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    reason = "a test stops at the first thing that is not as it should be"
)]

mod generate;
mod json;
mod overflow;
mod pruning;
mod rendering;
mod runner;
mod stored;
mod streams;
#[path = "../api/support/strict_anthropic.rs"]
mod strict_anthropic;
mod texts;
