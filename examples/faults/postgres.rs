//! A PostgreSQL server of the run's own, in a temporary directory, that can be restarted.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::Outcome;

/// The server; it ends with this value.
pub struct Postgres {
    programs: PathBuf,
    directory: TempDir,
    is_root: bool,
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
}

impl Postgres {
    /// Makes a cluster and starts it.
    pub fn start() -> Outcome<Self> {
        let programs = programs().ok_or(
            "PostgreSQL's programs were not found (initdb, pg_ctl): install the package postgresql, or use --database sqlite",
        )?;
        let directory = tempfile::Builder::new()
            .prefix("precis-faults-postgres")
            .tempdir()?;
        let is_root = output("id", &["-u"])? == "0";
        let server = Self {
            programs,
            directory,
            is_root,
            port: TcpListener::bind("127.0.0.1:0")?.local_addr()?.port(),
        };
        let data = server.data();
        if is_root {
            std::fs::set_permissions(
                server.directory.path(),
                std::fs::Permissions::from_mode(0o755),
            )?;
            std::fs::create_dir(&data)?;
            let owned = Command::new("chown").arg("postgres").arg(&data).status()?;
            if !owned.success() {
                return Err("the cluster could not be given to the user postgres".into());
            }
        }
        let path = data.display().to_string();
        server.run(
            "initdb",
            &[
                "-D",
                &path,
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--no-locale",
                "--no-sync",
            ],
        )?;
        // What is acknowledged has been given to the operating system, which does not crash here: so nothing is synced.
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nport = {}\nmax_connections = 200\n\
             shared_buffers = 64MB\nfsync = off\nsynchronous_commit = on\n",
            server.port
        );
        let file = data.join("postgresql.conf");
        let before = std::fs::read_to_string(&file)?;
        std::fs::write(&file, before + &settings)?;
        server.control(&["start", "-w", "-t", "60"])?;
        Ok(server)
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// What the service is told.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Stops it and starts it again. `mode` is `fast` (connections are ended) or `immediate` (as in a crash).
    pub fn restart(&self, mode: &str) -> Outcome<()> {
        self.control(&["restart", "-m", mode, "-w", "-t", "60"])
    }

    fn control(&self, arguments: &[&str]) -> Outcome<()> {
        let data = self.data().display().to_string();
        let log = self.data().join("server.log").display().to_string();
        self.run("pg_ctl", &[arguments, &["-D", &data, "-l", &log]].concat())
    }

    /// Runs one of its programs, which refuse to be root.
    fn run(&self, program: &str, arguments: &[&str]) -> Outcome<()> {
        let program = self.programs.join(program);
        let mut command = if self.is_root {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(&program);
            command
        } else {
            Command::new(&program)
        };
        let ended = command
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if ended.success() {
            return Ok(());
        }
        Err(format!("{} failed", program.display()).into())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Nobody needs its data.
        drop(self.control(&["stop", "-m", "immediate", "-w", "-t", "20"]));
    }
}

fn output(program: &str, arguments: &[&str]) -> Outcome<String> {
    let output = Command::new(program).args(arguments).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Where the programs are: the newest of the versioned directories, else where the shell finds them.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok();
    let mut found: Vec<(u32, PathBuf)> = versions
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.parse().ok()?;
            Some((version, path.join("bin")))
        })
        .filter(|(_, programs)| programs.join("pg_ctl").exists())
        .collect();
    found.sort();
    let newest = found.pop().map(|(_, programs)| programs);
    newest.or_else(|| {
        let path = output("sh", &["-c", "command -v pg_ctl"]).ok()?;
        Path::new(&path).parent().map(Path::to_owned)
    })
}
