//! The machine that the figures are from. Linux tells of itself under `/proc`; elsewhere less is known.

use std::path::Path;

use serde::Serialize;

/// What a reader of the figures must know of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Processors.
    cores: usize,
    /// Their name.
    processor: String,
    /// Operating system and version.
    kernel: String,
    /// Of the directory with the databases.
    file_system: String,
    /// Of the directory with those that are held in memory.
    memory_file_system: Option<String>,
    /// Processes that wanted a processor over the minute before the start: over 1, others were at work as well.
    load_before: Option<f64>,
}

impl Machine {
    /// Looks around.
    pub fn here(directory: &Path, memory: Option<&Path>) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo")
            .lines()
            .find(|line| line.starts_with("model name"))
            .and_then(|line| line.split_once(": "))
            .map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned());
        let release = read("/proc/sys/kernel/osrelease");
        Self {
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            processor,
            kernel: format!("{} {}", std::env::consts::OS, release.trim()),
            file_system: file_system(directory),
            memory_file_system: memory.map(file_system),
            load_before: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok()),
        }
    }
}

/// The kind of file system that holds a directory: that of the longest mount point above it.
fn file_system(directory: &Path) -> String {
    let directory = directory.canonicalize().unwrap_or_default();
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (place, kind) = (words.next()?, words.next()?);
            directory.starts_with(place).then_some((place, kind))
        })
        .max_by_key(|(place, _)| place.len())
        .map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            cores,
            processor,
            kernel,
            file_system,
            ..
        } = self;
        write!(
            f,
            "{cores} x {processor}, {kernel}, databases on {file_system}"
        )?;
        if let Some(memory) = &self.memory_file_system {
            write!(f, " (in memory: {memory})")?;
        }
        if let Some(load) = self.load_before {
            write!(f, ", load before {load}")?;
        }
        Ok(())
    }
}
