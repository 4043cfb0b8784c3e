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

mod support;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use support::{Client, Outcome, Server};

const CONNECTIONS: u32 = 8;
const LONG: usize = 100_000;
const TAIL: usize = 50;
const ROUNDS: usize = 7;
const SLICE: Duration = Duration::from_millis(1_500);
/// Stands once in each message, beside its content (so in no summary), so that an answer's messages can be counted.
const MARK: &[u8] = b"~M~";

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let server = Server::start(
        has("--postgres"),
        &[("PRECIS_COMPACTION__MAX_SUMMARY_TOKENS", "100")],
    )?;
    let idle = memory_kib(&server)?;
    let mut client = Client::new(&server.address);

    let long = create(&mut client, LONG)?;
    // A hundredth of it stays behind the first run; the second goes as far as the protected turns.
    for _ in 0..2 {
        let body = r#"{"compactCount":99,"keepRecentTurns":25}"#;
        client.call("POST", &format!("/sessions/{long}/compact"), body)?;
    }
    let short = create(&mut client, TAIL)?;
    let hundred = create(&mut client, 100)?;

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

/// A session of that many messages, in turns of two.
fn create(client: &mut Client, count: usize) -> Outcome<String> {
    client.call("POST", "/sessions", "{}")?;
    let answer: serde_json::Value = serde_json::from_slice(&client.body)?;
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
        format!(r#"{{"role":"{role}","content":"{number} {filler}","x_mark":"~M~"}}"#)
    };
    let numbers: Vec<usize> = (0..count).collect();
    for batch in numbers.chunks(1_000) {
        let messages: Vec<_> = batch.iter().map(|number| message(*number)).collect();
        let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        client.call("POST", &format!("/sessions/{id}/messages"), &body)?;
    }
    Ok(id)
}

/// Asks for a path until the time is up; gives how often. Every answer is checked.
fn ask(client: &mut Client, path: &str, messages: usize, time: Duration) -> Outcome<usize> {
    let (started, mut asked) = (Instant::now(), 0);
    while started.elapsed() < time {
        client.call("GET", path, "")?;
        let found = client
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

/// Resident memory of the server.
fn memory_kib(server: &Server) -> Outcome<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process.id()))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(number.ok_or("no VmRSS")?.parse()?)
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
        ask(&mut client, path, *messages, SLICE)
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
