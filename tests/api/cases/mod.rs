//! The fault cases, each a test named after its number; `folded` runs those of planning again with
//! a summarizer too small for their batches. A case that names other routes than the
//! service has yet is tested as far as they reach.

mod folded;
mod s01_s04_pairing;
mod s05_s07_context;
mod s08_s09_rolling;
mod s10_drift;
mod s11_s12_summaries;
mod s13_s14_failures;
mod s15_too_large;
mod s16_s17_concurrency;
mod s18_pointer;
mod s19_s20_content;
mod s21_s22_content;
mod s23_order;
mod s24_tokens;
mod s27_locks;
mod s28_repeats;
mod s29_sizes;
mod s31_paths;
mod s33_hijack;
