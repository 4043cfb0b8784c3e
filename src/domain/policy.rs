//! The policies of a session: what it may override of its agent, and the agent of the server.
//!
//! A policy is always whole; what a client sends is part of one and is laid over it. Whether a part
//! is acceptable is decided by the JSON Schemas, before it comes here.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::plan::Boundary;

/// How compactions are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactionPolicy {
    /// Newest turns that stay verbatim.
    pub keep_recent_turns: i64,
    /// Where a batch may end.
    pub boundary: Boundary,
    /// Bound on a summary, in tokens.
    pub max_summary_tokens: i64,
    /// Whether secrets are replaced in what goes to the summarizer and in what comes back.
    pub redact_secrets: bool,
}

/// How stale tool output is shortened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own in the contract"
)]
pub struct PruningPolicy {
    /// Whether it is at all.
    pub enabled: bool,
    /// Prune when the context is estimated above this many tokens.
    pub budget_tokens: i64,
    /// Prune also when the context exceeds the request's window.
    pub fit_to_window: bool,
    /// Share of the window that may be used.
    pub headroom: f64,
    /// Once armed, prune down to this share of the budget.
    pub floor_ratio: f64,
    /// Newest user or assistant messages that are never touched.
    pub protect_recent_turns: i64,
    /// Results larger than this many bytes may be shortened.
    pub max_tool_result_bytes: i64,
    /// Bytes that stay at the front of a shortened result.
    pub keep_head_bytes: i64,
    /// Bytes that stay at its end.
    pub keep_tail_bytes: i64,
    /// The rule of duplicates.
    pub collapse_duplicate_results: bool,
    /// The rule of superseded reads.
    pub elide_superseded_reads: bool,
    /// The rule of stale reasoning.
    pub drop_stale_reasoning: bool,
    /// Tokens between the milestones of a prefix that a provider may keep.
    pub milestone_tokens: i64,
}

impl Default for PruningPolicy {
    fn default() -> Self {
        Self {
            enabled: false,
            budget_tokens: 40_000,
            fit_to_window: true,
            headroom: 0.9,
            floor_ratio: 1.0,
            protect_recent_turns: 4,
            max_tool_result_bytes: 4_096,
            keep_head_bytes: 512,
            keep_tail_bytes: 512,
            collapse_duplicate_results: true,
            elide_superseded_reads: true,
            drop_stale_reasoning: true,
            milestone_tokens: 20_000,
        }
    }
}

/// When an automatic compaction begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// When rewriting the prefix costs nothing extra.
    Cold,
    /// At once.
    Now,
}

/// When compactions are made without being asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoCompactPolicy {
    /// Whether they are at all.
    pub enabled: bool,
    /// Estimated tokens of the context that make a session due.
    pub trigger_tokens: i64,
    /// Messages of the tail that make a session due.
    pub trigger_messages: Option<i64>,
    /// When a due session is compacted.
    pub when: When,
    /// Estimated tokens that end the wait.
    pub hard_trigger_tokens: Option<i64>,
    /// How long a provider is taken to keep a prefix, in seconds.
    pub cache_ttl_seconds: i64,
}

impl Default for AutoCompactPolicy {
    fn default() -> Self {
        Self {
            enabled: false,
            trigger_tokens: 80_000,
            trigger_messages: None,
            when: When::Cold,
            hard_trigger_tokens: None,
            cache_ttl_seconds: 300,
        }
    }
}

/// Part of a policy, as a client sends it.
pub type Part = Map<String, Value>;

/// Lays a part over a policy. A part that does not fit (the schemas let none through) changes nothing.
#[must_use]
pub fn lay_over<P: Serialize + serde::de::DeserializeOwned>(policy: P, part: Option<&Part>) -> P {
    let Some(part) = part else { return policy };
    let mut whole = serde_json::to_value(&policy).unwrap_or_default();
    if let Some(members) = whole.as_object_mut() {
        members.extend(part.clone());
    }
    serde_json::from_value(whole).unwrap_or(policy)
}

/// Lays a part over a policy that is stored as JSON text.
///
/// # Errors
/// The stored text is no such policy.
pub fn lay_over_text<P: Serialize + serde::de::DeserializeOwned>(
    stored: &str,
    part: &Part,
) -> serde_json::Result<String> {
    let policy: P = serde_json::from_str(stored)?;
    serde_json::to_string(&lay_over(policy, Some(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_replaces_only_what_it_names() {
        let part = serde_json::json!({"budgetTokens": 9, "floorRatio": 0.75});
        let policy = lay_over(PruningPolicy::default(), part.as_object());
        assert_eq!(policy.budget_tokens, 9);
        assert!((policy.floor_ratio - 0.75).abs() < f64::EPSILON);
        assert_eq!(policy.keep_head_bytes, 512);
    }
}
