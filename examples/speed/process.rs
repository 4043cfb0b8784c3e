//! What is measured, as processes of their own: the service, and the floor. Each ends with the value that stands for it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Outcome;
use crate::floor::Durability;
use crate::wire::Target;

/// Settings of the service: names of variables and their values.
pub type Settings = Vec<(String, String)>;

/// A running process that answers over HTTP.
pub struct Server {
    process: Child,
    /// What it prints is nobody's business any more, but it may go on printing.
    _output: BufReader<ChildStdout>,
    /// Where it is, and how it is asked.
    pub target: Target,
    /// From its start to the first answer, for the service.
    pub ready_in: Duration,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing is left to be done if it is gone already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Resident memory of a process, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Now.
    pub resident: f64,
    /// What of that is no part of a file.
    pub anonymous: f64,
    /// The most it was since the start, or since it was last [forgotten](Server::forget_peak).
    pub peak: f64,
}

impl Server {
    /// Starts the service with these settings. Those of the environment are left out, so that a run can be repeated.
    pub fn service(binary: &Path, directory: &Path, settings: &Settings) -> Outcome<Self> {
        let key = format!("speed-{}", uuid::Uuid::now_v7().simple());
        let log = directory.join("service.log");
        let mut command = Command::new(binary);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PRECIS_")) {
            command.env_remove(name);
        }
        command
            .env("PRECIS_LISTEN", "127.0.0.1:0")
            .env("PRECIS_ADMIN_KEY", &key)
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .current_dir(directory)
            .stderr(File::create(&log)?);
        let mut server = Self::start(&mut command, Some(key)).map_err(|error| {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            format!("the service did not start: {error}\n{said}")
        })?;
        let started = server.ready_in;
        let asked = Instant::now();
        server.target.ask("GET", "/health/ready", "")?;
        server.ready_in = started + asked.elapsed();
        Ok(server)
    }

    /// Starts the floor, which is this program as well.
    pub fn floor(file: &Path, durability: Durability) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("floor")
            .arg(file)
            .arg(durability.name())
            .stdin(Stdio::piped());
        Self::start(&mut command, None)
    }

    fn start(command: &mut Command, key: Option<String>) -> Outcome<Self> {
        let started = Instant::now();
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let mut output = BufReader::new(process.stdout.take().ok_or("no output")?);
        let mut line = String::new();
        let address = loop {
            line.clear();
            if output.read_line(&mut line)? == 0 {
                drop(process.kill());
                drop(process.wait());
                return Err("it ended without saying where it listens".into());
            }
            if let Some((_, address)) = line.split_once("http://") {
                break address.trim().to_owned();
            }
        };
        Ok(Self {
            process,
            _output: output,
            target: Target { address, key },
            ready_in: started.elapsed(),
        })
    }

    /// Ends it as an operator does, so that it can put things in order.
    pub fn stop(mut self) -> Outcome<()> {
        let asked = Command::new("kill")
            .arg(self.process.id().to_string())
            .status()?;
        if !asked.success() {
            return Err("it could not be asked to stop".into());
        }
        self.process.wait()?;
        Ok(())
    }

    /// From now on counts anew how much memory it has at most.
    pub fn forget_peak(&self) -> Outcome<()> {
        let file = format!("/proc/{}/clear_refs", self.process.id());
        Ok(std::fs::write(file, "5")?)
    }

    /// How much memory it has.
    pub fn memory(&self) -> Outcome<Memory> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let read = |name: &str| -> Outcome<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            Ok(number
                .ok_or("memory is only known on Linux")?
                .parse::<f64>()?
                * 1024.0)
        };
        Ok(Memory {
            resident: read("VmRSS:")?,
            anonymous: read("RssAnon:")?,
            peak: read("VmHWM:")?,
        })
    }
}

/// The service beside this program.
pub fn find_service() -> Outcome<PathBuf> {
    let here = std::env::current_exe()?;
    here.parent()
        .and_then(|examples| examples.parent())
        .map(|target| target.join("precis"))
        .filter(|binary| binary.exists())
        .ok_or_else(|| "build the service first: cargo build --release".into())
}

/// A new directory in that one; it goes with its value.
pub fn directory_in(parent: &Path) -> Outcome<TempDir> {
    let made = tempfile::Builder::new()
        .prefix("precis-speed-")
        .tempdir_in(parent)?;
    Ok(made)
}
