//! The options of the table `retention`.

use std::time::Duration;

use serde::Deserialize;

/// How long sessions are kept, and how often old ones are looked for.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionSettings {
    /// Days behind the last write; 0 is for ever.
    pub days: u32,
    /// From one look to the next.
    interval_minutes: u64,
}

impl RetentionSettings {
    /// How long from one look for old sessions to the next.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_mins(self.interval_minutes)
    }
}
