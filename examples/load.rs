//! Does the cost of a context follow its tail, or the history behind it? An HTTP load program.
//!
//! ```text
//! cargo build --release && cargo run --release --example load            # SQLite
//! scripts/with-postgres cargo run --release --example load -- --postgres
//! ```
//!
//! It starts the service it finds beside itself, on an empty database, fills two sessions, and asks
//! for the same kind of thing of both in turns, over eight connections, so that the noise of the
//! machine meets both alike. Every answer is checked for its status and its number of messages. Printed
//! are ratios within this run, and the memory of the idle server. Only addresses on this machine are asked.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const CONNECTIONS: u32 = 8;
const LONG: usize = 100_000;
const TAIL: usize = 50;
const ROUNDS: usize = 7;
const SLICE: Duration = Duration::from_millis(1_500);
/// Stands once in each message, so that an answer's messages can be counted.
const MARK: &[u8] = b"~M~";

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let server = Server::start(has("--postgres"))?;
    let idle = server.memory_kib()?;
    let mut client = Client::new(&server.address);

    let long = client.create(LONG)?;
    client.call(
        "POST",
        &format!("/sessions/{long}/compact"),
        r#"{"compactCount":99,"keepRecentTurns":25}"#,
    )?;
    let short = client.create(TAIL)?;
    let hundred = client.create(100)?;

    let context = Pair {
        name: "context: tail of 50 behind 100,000 messages, against a session of 50",
        limit: 1.3,
        long: (format!("/sessions/{long}/context"), TAIL),
        short: (format!("/sessions/{short}/context"), TAIL),
    };
    let list = Pair {
        name: "a page of 100 messages at 100,000, against one at 100",
        limit: 1.2,
        long: (
            format!(
                "/sessions/{long}/messages?limit=100&afterSeq={}",
                LONG - 100
            ),
            100,
        ),
        short: (format!("/sessions/{hundred}/messages?limit=100"), 100),
    };
    let database = if has("--postgres") {
        "PostgreSQL"
    } else {
        "SQLite"
    };
    let mut rows = Vec::new();
    for pair in [context, list] {
        rows.push(pair.measure(&server.address)?);
    }
    if has("--json") {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        println!(
            r#"{{"database":"{database}","connections":{CONNECTIONS},"idleMemoryKiB":{idle},"rows":[{}]}}"#,
            rows.join(",")
        );
        return Ok(());
    }
    println!(
        "{database}, {CONNECTIONS} connections, {ROUNDS} rounds in turns; idle server: {idle} KiB resident"
    );
    for row in &rows {
        println!("{row}");
    }
    Ok(())
}

/// The service as a process of its own; it ends with this value.
struct Server {
    process: Child,
    address: String,
    directory: std::path::PathBuf,
}

impl Server {
    fn start(postgres: bool) -> Outcome<Self> {
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
            .env("PRECIS_COMPACTION__MAX_SUMMARY_TOKENS", "100")
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

    /// Resident memory.
    fn memory_kib(&self) -> Outcome<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(number.ok_or("no VmRSS")?.parse()?)
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
struct Client {
    address: String,
    stream: Option<BufReader<TcpStream>>,
    body: Vec<u8>,
}

impl Client {
    fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            stream: None,
            body: Vec::new(),
        }
    }

    /// Sends a request and reads the answer into `body`; anything but a success is an error.
    fn call(&mut self, method: &str, path: &str, body: &str) -> Outcome<()> {
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

    /// A session of that many messages, in turns of two.
    fn create(&mut self, count: usize) -> Outcome<String> {
        self.call("POST", "/sessions", "{}")?;
        let answer: serde_json::Value = serde_json::from_slice(&self.body)?;
        let id = answer
            .pointer("/id")
            .and_then(|id| id.as_str())
            .ok_or("no id")?
            .to_owned();
        let filler = "all work and no play ".repeat(20);
        let message = |number: usize| {
            let role = if number.is_multiple_of(2) {
                "user"
            } else {
                "assistant"
            };
            format!(r#"{{"role":"{role}","content":"~M~ {number} {filler}"}}"#)
        };
        let numbers: Vec<usize> = (0..count).collect();
        for batch in numbers.chunks(1_000) {
            let messages: Vec<_> = batch.iter().map(|number| message(*number)).collect();
            let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
            self.call("POST", &format!("/sessions/{id}/messages"), &body)?;
        }
        Ok(id)
    }

    /// Asks for a path until the time is up; gives how often. Every answer is checked.
    fn ask(&mut self, path: &str, messages: usize, time: Duration) -> Outcome<usize> {
        let (started, mut asked) = (Instant::now(), 0);
        while started.elapsed() < time {
            self.call("GET", path, "")?;
            let found = self
                .body
                .windows(MARK.len())
                .filter(|window| *window == MARK)
                .count();
            if found != messages {
                return Err(format!("{path}: {found} messages instead of {messages}").into());
            }
            asked += 1;
        }
        Ok(asked)
    }
}

/// Two things to ask for, whose costs should be alike.
struct Pair {
    name: &'static str,
    limit: f64,
    long: (String, usize),
    short: (String, usize),
}

/// What was measured: seconds a request, and the ratio of each round.
struct Row {
    name: &'static str,
    limit: f64,
    long: f64,
    short: f64,
    ratios: Vec<f64>,
}

impl Pair {
    fn measure(&self, address: &str) -> Outcome<Row> {
        let mut rounds = Vec::new();
        // The first round warms both up and does not count.
        for round in 0..=ROUNDS {
            // Whoever comes first changes from round to round.
            let (long, short) = if round % 2 == 0 {
                let long = cost(address, &self.long)?;
                (long, cost(address, &self.short)?)
            } else {
                let short = cost(address, &self.short)?;
                (cost(address, &self.long)?, short)
            };
            if round > 0 {
                rounds.push((long, short));
            }
        }
        let middle = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        Ok(Row {
            name: self.name,
            limit: self.limit,
            long: middle(rounds.iter().map(|round| round.0).collect()),
            short: middle(rounds.iter().map(|round| round.1).collect()),
            ratios: rounds.iter().map(|(long, short)| long / short).collect(),
        })
    }
}

/// Seconds that one request takes while all connections ask at once.
fn cost(address: &str, (path, messages): &(String, usize)) -> Outcome<f64> {
    let barrier = Barrier::new(CONNECTIONS as usize);
    let ask = || {
        let mut client = Client::new(address);
        client.call("GET", path, "")?;
        barrier.wait();
        client.ask(path, *messages, SLICE)
    };
    let asked = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(ask)).collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("a connection broke".into()))
            })
            .sum::<Outcome<usize>>()
    })?;
    let asked = u32::try_from(asked)?;
    Ok(SLICE.as_secs_f64() * f64::from(CONNECTIONS) / f64::from(asked))
}

impl Row {
    /// Ratio of the middle round, the smallest and the largest.
    fn spread(&self) -> (f64, f64, f64) {
        let mut ratios = self.ratios.clone();
        ratios.sort_by(f64::total_cmp);
        let at = |index: usize| ratios.get(index).copied().unwrap_or(f64::NAN);
        (at(ratios.len() / 2), at(0), at(ratios.len() - 1))
    }

    fn json(&self) -> String {
        let (ratio, smallest, largest) = self.spread();
        format!(
            r#"{{"name":"{}","limit":{},"ratio":{ratio:.3},"smallest":{smallest:.3},"largest":{largest:.3},"longMicroseconds":{:.0},"shortMicroseconds":{:.0}}}"#,
            self.name,
            self.limit,
            self.long * 1e6,
            self.short * 1e6
        )
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (ratio, smallest, largest) = self.spread();
        write!(
            f,
            "{}: ratio {ratio:.2} ({smallest:.2} to {largest:.2}; at most {}), {:.0} µs against {:.0} µs",
            self.name,
            self.limit,
            self.long * 1e6,
            self.short * 1e6
        )
    }
}
