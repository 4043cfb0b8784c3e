//! What a session's policies are where neither request nor agent says it.
//!
//! The same members as in the API, in the spelling of the configuration. `compaction` has its own place: most
//! of its options are no policy.

use std::time::Duration;

use serde::Deserialize;

use super::Switch;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PruningSettings {
    pub enabled: Switch,
    pub budget_tokens: u32,
    pub fit_to_window: Switch,
    pub headroom: f64,
    pub floor_ratio: f64,
    pub protect_recent_turns: u32,
    pub max_tool_result_bytes: u32,
    pub keep_head_bytes: u32,
    pub keep_tail_bytes: u32,
    pub collapse_duplicate_results: Switch,
    pub elide_superseded_reads: Switch,
    pub drop_stale_reasoning: Switch,
    pub milestone_tokens: u32,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoCompactSettings {
    pub enabled: Switch,
    pub trigger_tokens: u32,
    /// 0 means no limit.
    pub trigger_messages: u32,
    pub when: When,
    /// 0 means no limit.
    pub hard_trigger_tokens: u32,
    pub cache_ttl_seconds: u32,
    pub concurrency: usize,
    pub backoff_initial_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    Cold,
    Now,
}

impl AutoCompactSettings {
    #[must_use]
    pub fn backoff_initial(&self) -> Duration {
        Duration::from_millis(self.backoff_initial_ms)
    }
}
