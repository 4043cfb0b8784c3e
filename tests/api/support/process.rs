//! The real binary as a child process, for what only a process can show: kills and signals.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::ops::Deref;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::app::base_variables;
use super::backend::TestDatabase;
use super::http::Http;

const START_WITHIN: Duration = Duration::from_secs(30);

pub struct Process {
    child: Child,
    http: Http,
}

impl Process {
    /// Starts `precis` on the database and waits until it has printed its address.
    pub fn start(database: &TestDatabase, variables: &[(String, String)]) -> Self {
        Self::start_logging_to(database, variables, Stdio::inherit())
    }

    /// The same, with its log going there.
    pub fn start_logging_to(
        database: &TestDatabase,
        variables: &[(String, String)],
        log: Stdio,
    ) -> Self {
        let mut child = command(database)
            .envs(variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let (found, address) = mpsc::channel();
        // Reads to the end, so that the child is never stopped by a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(address) = api_address(&line) {
                    // An error only says that the test gave up waiting.
                    found.send(address).ok();
                }
            }
        });
        let Ok(address) = address.recv_timeout(START_WITHIN) else {
            drop(child.kill());
            panic!(
                "expected a line `  API        http://…` on stdout within {START_WITHIN:?} of the start"
            );
        };
        Self {
            child,
            http: Http::new(address),
        }
    }

    /// The number under which the system knows it.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL: no chance to tidy up.
    pub fn kill(&mut self) {
        self.child.kill().expect("the process can be killed");
        self.child.wait().expect("the process is reaped");
    }

    /// SIGTERM: please finish.
    pub fn terminate(&self) {
        let status = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status()
            .expect("`kill` runs");
        assert!(status.success(), "expected the signal to be delivered");
    }

    /// Waits for the end; whether the process ended with success.
    pub fn ended_well(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().expect("the state of the process") {
                return status.success();
            }
            assert!(
                Instant::now() < deadline,
                "expected the process to end within {within:?}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Deref for Process {
    type Target = Http;

    fn deref(&self) -> &Http {
        &self.http
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails when the process has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The binary on this database, told nothing by the environment of the tests.
pub fn command(database: &TestDatabase) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_precis"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PRECIS_")) {
        command.env_remove(name);
    }
    command
        .current_dir(database.directory())
        .envs(base_variables(&database.url));
    command
}

fn api_address(line: &str) -> Option<SocketAddr> {
    let rest = line.strip_prefix(' ')?.trim_start().strip_prefix("API")?;
    let url = rest.get(rest.find("http://")? + "http://".len()..)?;
    let end = url
        .find(|c: char| c.is_whitespace() || c == '/')
        .unwrap_or(url.len());
    url.get(..end)?.parse().ok()
}
