//! The service as processes of their own: started, killed, paused, and looked at from outside.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::Outcome;

/// How long a start may take before it is tried again.
const START: Duration = Duration::from_secs(20);

/// One replica: at most one process at a time, and what all of them wrote to standard error.
pub struct Replica {
    binary: PathBuf,
    /// A limit that the shell sets before the service begins, as in `ulimit -S -f 4096`.
    prelude: Option<String>,
    settings: Vec<(String, String)>,
    /// What all processes of this replica logged.
    pub log: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    child: Option<Child>,
    address: Option<String>,
}

impl Replica {
    /// A replica that does not run yet.
    pub fn new(
        binary: &Path,
        settings: &[(String, String)],
        log: PathBuf,
        prelude: Option<&str>,
    ) -> Self {
        Self {
            binary: binary.to_owned(),
            prelude: prelude.map(ToOwned::to_owned),
            settings: settings.to_vec(),
            log,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it listens, while it does.
    pub fn address(&self) -> Option<String> {
        self.state().address.clone()
    }

    /// The id of its process.
    pub fn pid(&self) -> Option<u32> {
        self.state().child.as_ref().map(Child::id)
    }

    /// Begins a process; the answer comes once it says where it listens, or ends.
    fn spawn(&self) -> Outcome<oneshot::Receiver<String>> {
        let log: File = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)?;
        let mut command = match &self.prelude {
            None => Command::new(&self.binary),
            Some(prelude) => {
                let mut shell = Command::new("bash");
                shell.args(["-c", &format!("{prelude}; exec \"$0\"")]);
                shell.arg(&self.binary);
                shell
            }
        };
        let mut child = command
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let banner = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        self.state().child = Some(child);
        let (say, said) = oneshot::channel();
        // Reads on to the end, so that the process never waits for somebody to read.
        std::thread::spawn(move || {
            let mut say = Some(say);
            for line in banner.lines().map_while(Result::ok) {
                if let Some(address) = line.split("http://").nth(1)
                    && let Some(say) = say.take()
                {
                    drop(say.send(address.trim().to_owned()));
                }
            }
        });
        Ok(said)
    }

    /// Starts it, again and again until it runs: its database may be away.
    pub async fn start(&self) -> Outcome<()> {
        for _ in 0..60 {
            let said = self.spawn()?;
            if let Ok(Ok(address)) = timeout(START, said).await {
                self.state().address = Some(address);
                return Ok(());
            }
            self.kill();
            sleep(Duration::from_millis(200)).await;
        }
        Err(format!("the service does not start; see {}", self.log.display()).into())
    }

    /// Starts a process that is killed so long after, whether it runs by then or not.
    pub async fn start_and_kill(&self, after: Duration) -> Outcome<()> {
        drop(self.spawn()?);
        sleep(after).await;
        self.kill();
        Ok(())
    }

    /// Kills it with SIGKILL; true if there was something to kill.
    pub fn kill(&self) -> bool {
        let mut state = self.state();
        state.address = None;
        let Some(mut child) = state.child.take() else {
            return false;
        };
        let killed = child.kill().is_ok();
        drop(child.wait());
        killed
    }

    /// Sends it another signal, by its name without SIG.
    pub fn signal(&self, name: &str) -> Outcome<()> {
        let pid = self.pid().ok_or("it does not run")?;
        let sent = Command::new("kill")
            .args([format!("-{name}"), pid.to_string()])
            .status()?;
        if sent.success() {
            Ok(())
        } else {
            Err(format!("SIG{name} could not be sent").into())
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What `/proc` tells of a process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Resident memory, in KiB.
    pub resident: u64,
    /// The most that it ever was, in KiB.
    pub peak: u64,
    /// Open files and connections.
    pub files: u64,
    /// Of these, handles of the database: connections to the server's port, or files of SQLite.
    pub database: u64,
}

/// Makes what a process has now the most that it ever had.
pub fn forget_peak(pid: u32) -> Outcome<()> {
    Ok(std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

/// Looks at a process. `port` is that of the database's server.
pub fn sample(pid: u32, port: Option<u16>) -> Outcome<Sample> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .unwrap_or_default()
    };
    let mut sample = Sample {
        resident: of("VmRSS:"),
        peak: of("VmHWM:"),
        ..Sample::default()
    };
    let sockets = port.map(|port| sockets_to(pid, port)).transpose()?;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        // It may be closed meanwhile.
        let Ok(target) = entry.and_then(|entry| std::fs::read_link(entry.path())) else {
            continue;
        };
        let target = target.to_string_lossy();
        sample.files += 1;
        let is_database = match &sockets {
            Some(sockets) => sockets.iter().any(|socket| target == *socket),
            None => target.contains(".db"),
        };
        sample.database += u64::from(is_database);
    }
    Ok(sample)
}

/// The sockets of established connections to a port, as links in `/proc` name them.
fn sockets_to(pid: u32, port: u16) -> Outcome<Vec<String>> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp"))?;
    let remote = format!(":{port:04X}");
    Ok(table
        .lines()
        .filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let is_one = columns.get(2)?.ends_with(&remote) && *columns.get(3)? == "01";
            is_one.then(|| columns.get(9).map(|inode| format!("socket:[{inode}]")))?
        })
        .collect())
}
