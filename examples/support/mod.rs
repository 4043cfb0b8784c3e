//! What the programs beside this share: the service as a process of its own, and a client that checks every answer.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A result of these programs, which stop at the first thing that is not as it should be.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The service as a process of its own; it ends with this value.
pub struct Server {
    pub process: Child,
    pub address: String,
    directory: std::path::PathBuf,
}

impl Server {
    /// Starts it on an empty database, with these settings over those of the environment.
    pub fn start(postgres: bool, settings: &[(&str, &str)]) -> Outcome<Self> {
        let here = std::env::current_exe()?;
        let binary = here
            .parent()
            .and_then(|examples| examples.parent())
            .map(|target| target.join("precis"))
            .filter(|binary| binary.exists())
            .ok_or("build the service first: cargo build --release")?;
        let directory = std::env::temp_dir().join(format!("precis-load-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let url = if postgres {
            std::env::var("PRECIS_TEST_DATABASE_URL")
                .map_err(|_| "run it under scripts/with-postgres, or set PRECIS_TEST_DATABASE_URL to an empty database")?
        } else {
            format!("sqlite://{}", directory.join("load.db").display())
        };
        let mut process = Command::new(binary)
            .env("PRECIS_LISTEN", "127.0.0.1:0")
            .env("PRECIS_DATABASE_URL", url)
            .envs(settings.iter().copied())
            .stdout(Stdio::piped())
            .spawn()?;
        let banner = BufReader::new(process.stdout.take().ok_or("no banner")?);
        let address = banner
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.split("http://").nth(1).map(ToOwned::to_owned))
            .ok_or("the service did not say where it listens")?;
        Ok(Self {
            process,
            address,
            directory,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing is left to be done if it is gone already.
        drop(self.process.kill());
        drop(self.process.wait());
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// One kept-alive connection.
pub struct Client {
    address: String,
    stream: Option<BufReader<TcpStream>>,
    pub body: Vec<u8>,
}

impl Client {
    pub fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            stream: None,
            body: Vec::new(),
        }
    }

    /// Sends a request and reads the answer into `body`; anything but a success is an error.
    pub fn call(&mut self, method: &str, path: &str, body: &str) -> Outcome<()> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(&self.address)?;
            stream.set_nodelay(true)?;
            self.stream = Some(BufReader::with_capacity(1 << 16, stream));
        }
        let stream = self.stream.as_mut().ok_or("no connection")?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream
            .get_mut()
            .write_all([head.as_bytes(), body.as_bytes()].concat().as_slice())?;
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut length = 0;
        loop {
            line.clear();
            stream.read_line(&mut line)?;
            if line == "\r\n" || line.is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
        }
        self.body.resize(length, 0);
        stream.read_exact(&mut self.body)?;
        if !status.starts_with('2') {
            let body = String::from_utf8_lossy(&self.body).into_owned();
            return Err(format!("{method} {path}: {status} {body}").into());
        }
        Ok(())
    }
}
