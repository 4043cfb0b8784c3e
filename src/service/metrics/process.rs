//! The process itself, under the names that every exporter uses. What the system does not tell is left out.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

#[derive(Debug)]
pub(super) struct Process {
    /// Seconds since 1970.
    started: f64,
}

impl Process {
    /// The process as it is now; it takes this moment for its start.
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            started: since.unwrap_or_default().as_secs_f64(),
        }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let started = encoder.encode_descriptor(
            "process_start_time",
            "When the service started, in seconds since 1970",
            Some(&Unit::Seconds),
            MetricType::Gauge,
        )?;
        ConstGauge::new(self.started).encode(started)?;
        if let Some(bytes) = resident_bytes() {
            let memory = encoder.encode_descriptor(
                "process_resident_memory",
                "Memory of the process that is in use",
                Some(&Unit::Bytes),
                MetricType::Gauge,
            )?;
            ConstGauge::new(bytes).encode(memory)?;
        }
        if let Some(open) = open_files() {
            let files = encoder.encode_descriptor(
                "process_open_fds",
                "Files and connections that the process has open",
                None,
                MetricType::Gauge,
            )?;
            ConstGauge::new(open).encode(files)?;
        }
        Ok(())
    }
}

/// From a line as `VmRSS:     1234 kB`.
fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1_024)
}

fn open_files() -> Option<i64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    // The one that reads the folder is among them.
    i64::try_from(open.saturating_sub(1)).ok()
}
