//! `POST /sessions/{id}/context`, its records and their replays: pruning as a client sees it.
//!
//! What a dispatch must look like is told here a second time, from the contract alone: the history as
//! the oracle renders it, with nothing different but tool results that lost text and old reasoning.

mod anthropic;
mod breakpoints;
mod budgets;
mod cases;
mod compactions;
mod cost;
mod explain;
mod histories;
mod large;
mod properties;
mod races;
mod random;
mod refusals;
mod replays;
mod rewrites;
mod sent;
mod stats;
mod talk;
