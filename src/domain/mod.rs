//! Pure rules: what a message is, how messages pair, what a compaction folds in, what a model is shown.
//!
//! Nothing here knows a runtime, a database, HTTP, a clock or chance: the same input gives the same
//! output, which is what makes these rules testable and a prompt cache warm.

pub mod anthropic;
pub mod auto_compaction;
pub mod budget;
pub mod context;
pub mod event;
pub mod extractive;
pub mod fold;
pub mod ids;
pub mod items;
pub mod json;
pub mod message;
pub mod pairing;
pub mod plan;
pub mod policy;
pub mod prefix;
pub mod prompt;
pub mod pruning;
pub mod reasoning;
pub mod redact;
pub mod search;
pub mod size;
pub mod summary;
pub mod terms;
pub mod tokens;
pub mod transcript;
