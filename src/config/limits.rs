//! The settings that bound what clients send and what tenants use.

use serde::Deserialize;

/// What the process takes in.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    pub body_bytes: usize,
    pub message_bytes: usize,
    pub messages_per_append: usize,
    pub metadata_bytes: usize,
    pub body_bytes_in_flight: usize,
    pub event_streams: usize,
}

/// What a tenant may use that has no limits of its own. 0 means no limit.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSettings {
    pub requests_per_second: u32,
    pub request_burst: u32,
    pub concurrent_compactions: u32,
    pub concurrent_turns: u32,
    pub stored_bytes: i64,
}
