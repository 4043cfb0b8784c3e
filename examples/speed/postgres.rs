//! The PostgreSQL server that is there, databases of our own on it, and pgbench, which runs the same statements as the
//! service without the service.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Outcome;

/// The variable that `scripts/with-postgres` sets.
const URL: &str = "PRECIS_TEST_DATABASE_URL";

/// A server, and the programs to speak to it.
#[derive(Debug, Clone)]
pub struct Postgres {
    url: String,
    programs: PathBuf,
}

/// A database that is dropped with this value.
pub struct Database {
    server: Postgres,
    name: String,
    /// Where it is.
    pub url: String,
}

impl Postgres {
    /// Finds both.
    pub fn find() -> Outcome<Self> {
        let url = std::env::var(URL).map_err(|_| {
            format!("run it under scripts/with-postgres, or set {URL} to a server that lets databases be made")
        })?;
        let programs = programs().ok_or("pgbench and psql were not found")?;
        Ok(Self { url, programs })
    }

    /// What a commit waits for there.
    pub fn durability(&self) -> Outcome<String> {
        let show = "SELECT 'fsync ' || current_setting('fsync') || ', commit ' || current_setting('synchronous_commit')";
        self.query(&self.url, show)
    }

    /// Makes an empty database.
    pub fn create_database(&self) -> Outcome<Database> {
        let name = format!("precis_speed_{}", uuid::Uuid::now_v7().simple());
        self.query(&self.url, &format!("CREATE DATABASE {name}"))?;
        let (server, parameters) = match self.url.split_once('?') {
            Some((server, parameters)) => (server, format!("?{parameters}")),
            None => (self.url.as_str(), String::new()),
        };
        let (server, _) = server.rsplit_once('/').ok_or("a URL without a database")?;
        Ok(Database {
            server: self.clone(),
            url: format!("{server}/{name}{parameters}"),
            name,
        })
    }

    fn query(&self, url: &str, statement: &str) -> Outcome<String> {
        let done = Command::new(self.programs.join("psql"))
            .args([
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-d",
                url,
                "-c",
                statement,
            ])
            .output()?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            return Err(format!("PostgreSQL: {said}").into());
        }
        Ok(String::from_utf8(done.stdout)?.trim().to_owned())
    }
}

impl Database {
    /// Runs a statement and gives its answer as text.
    pub fn query(&self, statement: &str) -> Outcome<String> {
        self.server.query(&self.url, statement)
    }

    /// Runs a script over and over on as many connections; gives transactions a second. `start` is a number that the
    /// script may begin to count from.
    pub fn pgbench(
        &self,
        script: &Path,
        connections: usize,
        time: Duration,
        start: usize,
    ) -> Outcome<f64> {
        // It takes whole seconds.
        let seconds = time.as_secs().max(1).to_string();
        let connections = connections.to_string();
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let done = Command::new(self.server.programs.join("pgbench"))
            .args(["-n", "-M", "prepared", "-T", &seconds, "-c", &connections])
            .args(["-j", &threads.to_string()])
            .arg("-D")
            .arg(format!("n={start}"))
            .arg("-f")
            .arg(script)
            .arg(&self.url)
            .output()?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let rate = said
            .lines()
            .filter_map(|line| line.strip_prefix("tps = "))
            .find_map(|line| line.split(' ').next()?.parse().ok());
        match rate {
            Some(rate) if done.status.success() => Ok(rate),
            _ => Err(format!("pgbench: {said}{}", String::from_utf8_lossy(&done.stderr)).into()),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let drop_it = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        if let Err(error) = self.server.query(&self.server.url, &drop_it) {
            eprintln!("{}: {error}", self.name);
        }
    }
}

/// The directory of pgbench and psql: that of the newest server that is installed, or else on the path.
fn programs() -> Option<PathBuf> {
    let has_both = |directory: &PathBuf| {
        ["pgbench", "psql"]
            .iter()
            .all(|program| directory.join(program).is_file())
    };
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(has_both)
        .collect();
    versions.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    versions
        .pop()
        .or_else(|| std::env::split_paths(&path).find(has_both))
}
