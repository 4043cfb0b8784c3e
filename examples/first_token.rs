//! How long does the first word of an answer take from the model's server to the client?
//!
//! ```text
//! cargo build --release && cargo run --release --example first_token            # SQLite
//! scripts/with-postgres cargo run --release --example first_token -- --postgres
//! ```
//!
//! It plays the model's server itself, which notes the moment in which its first word goes out, starts the
//! service it finds beside itself, and asks for the same streamed answer in turns: of that server, and of the
//! service, which asks it. Printed are the times from that moment to the client, those from the request to
//! the client, and the ratios of each round. `--json` prints them for programs. Only addresses on this machine
//! are asked.

mod support;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use support::{Client, Outcome, Server};

const ROUNDS: usize = 200;
/// Rounds that warm both up and do not count.
const WARM_UP: usize = 20;
/// What the model thinks, and how long it pauses behind the first word.
const PAUSE: Duration = Duration::from_millis(3);
/// Stands in the first piece, and in nothing that comes before it.
const WORD: &[u8] = b"~FIRST~";

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let model = Model::start()?;
    let base = format!("http://{}/v1", model.address);
    let settings = [
        ("PRECIS_MODEL_BASE_URL", base.as_str()),
        ("PRECIS_MODEL", "scripted"),
    ];
    let server = Server::start(has("--postgres"), &settings)?;
    let mut client = Client::new(&server.address);
    let mut direct = Asker::connect(&model.address)?;
    let mut through = Asker::connect(&server.address)?;
    let question = r#"{"role":"user","content":"Which word is the first?"}"#;
    let asked = format!(r#"{{"model":"scripted","messages":[{question}],"stream":true}}"#);
    let turn = format!(r#"{{"messages":[{question}],"stream":true}}"#);

    let mut rounds = Vec::new();
    for round in 0..WARM_UP + ROUNDS {
        client.call("POST", "/sessions", "{}")?;
        let session: serde_json::Value = serde_json::from_slice(&client.body)?;
        let id = session.pointer("/id").and_then(|id| id.as_str());
        let path = format!("/sessions/{}/turns", id.ok_or("no id")?);
        // Whoever comes first changes from round to round.
        let (alone, relayed) = if round % 2 == 0 {
            let alone = direct.ask(&model, "/v1/chat/completions", &asked)?;
            (alone, through.ask(&model, &path, &turn)?)
        } else {
            let relayed = through.ask(&model, &path, &turn)?;
            (direct.ask(&model, "/v1/chat/completions", &asked)?, relayed)
        };
        if round >= WARM_UP {
            rounds.push((relayed, alone));
        }
    }
    let of = |name, part: fn(&Times) -> f64| Row {
        name,
        through: rounds.iter().map(|(relayed, _)| part(relayed)).collect(),
        direct: rounds.iter().map(|(_, alone)| part(alone)).collect(),
    };
    let rows = [
        of("from the model's first word to the client", |times| {
            times.relay
        }),
        of("from the request to the first word", |times| times.whole),
    ];
    let database = if has("--postgres") {
        "PostgreSQL"
    } else {
        "SQLite"
    };
    if has("--json") {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        println!(
            r#"{{"database":"{database}","rounds":{ROUNDS},"rows":[{}]}}"#,
            rows.join(",")
        );
        return Ok(());
    }
    println!("{database}, {ROUNDS} rounds in turns");
    for row in &rows {
        println!("{row}");
    }
    Ok(())
}

/// A model's server with one answer.
struct Model {
    address: String,
    /// When the first word of the newest answer went out.
    spoke: Arc<Mutex<Option<Instant>>>,
}

impl Model {
    fn start() -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let spoke = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&spoke);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let noted = Arc::clone(&noted);
                // An error only says that the client has gone.
                std::thread::spawn(move || drop(Self::serve(stream, &noted)));
            }
        });
        Ok(Self { address, spoke })
    }

    /// Answers one request after the other.
    fn serve(stream: TcpStream, noted: &Mutex<Option<Instant>>) -> Outcome<()> {
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        while let Some(length) = read_head(&mut stream)? {
            let mut body = vec![0; length];
            stream.read_exact(&mut body)?;
            let out = stream.get_mut();
            out.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
            )?;
            std::thread::sleep(PAUSE);
            let first = chunk(r#"{"delta":{"role":"assistant","content":"~FIRST~"}}"#);
            *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            out.write_all(first.as_bytes())?;
            std::thread::sleep(PAUSE);
            let rest = [
                chunk(r#"{"delta":{"content":" and the last"}}"#),
                chunk(r#"{"delta":{},"finish_reason":"stop"}"#),
                "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n".to_owned(),
            ];
            out.write_all(rest.concat().as_bytes())?;
        }
        Ok(())
    }

    fn spoke(&self) -> Option<Instant> {
        *self.spoke.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event with this choice, as a chunk of a body.
fn chunk(choice: &str) -> String {
    let choice = choice.replacen('{', r#"{"index":0,"#, 1);
    let event = format!(
        "data: {{\"object\":\"chat.completion.chunk\",\"model\":\"scripted\",\"choices\":[{choice}]}}\n\n"
    );
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write!(text, "{:x}\r\n{event}\r\n", event.len());
    text
}

/// Reads the head of a message; its length (0 if it says none), and nothing at the end of the connection.
fn read_head(stream: &mut BufReader<TcpStream>) -> Outcome<Option<usize>> {
    let (mut line, mut length, mut begun) = (String::new(), 0, false);
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if line == "\r\n" && begun {
            return Ok(Some(length));
        }
        begun = true;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
}

/// Seconds until the first word was there.
struct Times {
    /// From the moment in which the model's server sent it.
    relay: f64,
    /// From the request.
    whole: f64,
}

/// One kept-alive connection for streamed answers.
struct Asker {
    address: String,
    stream: BufReader<TcpStream>,
}

impl Asker {
    fn connect(address: &str) -> Outcome<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            address: address.to_owned(),
            stream: BufReader::with_capacity(1 << 16, stream),
        })
    }

    /// Asks for an answer and reads it to its end.
    fn ask(&mut self, model: &Model, path: &str, body: &str) -> Outcome<Times> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let asked = Instant::now();
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (mut received, mut first) = (Vec::new(), None);
        while !received.ends_with(b"\r\n0\r\n\r\n") {
            let piece = self.stream.fill_buf()?;
            if piece.is_empty() {
                return Err("the connection ended in the middle of an answer".into());
            }
            let length = piece.len();
            received.extend_from_slice(piece);
            self.stream.consume(length);
            if first.is_none() && holds(&received, WORD) {
                first = Some(Instant::now());
            }
        }
        if !received.starts_with(b"HTTP/1.1 200") || holds(&received, b"turn.failed") {
            return Err(String::from_utf8_lossy(&received).into_owned().into());
        }
        let first = first.ok_or("the first word did not come")?;
        let spoke = model.spoke().ok_or("the model was not asked")?;
        Ok(Times {
            relay: first.duration_since(spoke).as_secs_f64(),
            whole: first.duration_since(asked).as_secs_f64(),
        })
    }
}

fn holds(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// What was measured of one thing, in seconds, round by round.
struct Row {
    name: &'static str,
    through: Vec<f64>,
    direct: Vec<f64>,
}

impl Row {
    fn ratios(&self) -> Vec<f64> {
        let pairs = self.through.iter().zip(&self.direct);
        pairs.map(|(through, direct)| through / direct).collect()
    }

    fn json(&self) -> String {
        let [low, ratio, high] = spread(self.ratios());
        let [_, through, _] = spread(self.through.clone());
        let [_, direct, _] = spread(self.direct.clone());
        format!(
            r#"{{"name":"{}","ratio":{ratio:.3},"tenth":{low:.3},"ninetieth":{high:.3},"throughMicroseconds":{:.0},"directMicroseconds":{:.0}}}"#,
            self.name,
            through * 1e6,
            direct * 1e6
        )
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [low, ratio, high] = spread(self.ratios());
        let micros = |values: &[f64]| spread(values.to_vec()).map(|value| (value * 1e6).round());
        let ([_, through, most], [_, direct, _]) = (micros(&self.through), micros(&self.direct));
        write!(
            f,
            "{}: ratio {ratio:.2} ({low:.2} to {high:.2}), {through} µs (nine of ten under {most}) against {direct} µs",
            self.name
        )
    }
}

/// The tenth, the middle and the ninetieth of a hundred.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |share: usize| values.get(values.len() * share / 100).copied();
    [10, 50, 90].map(|share| at(share).unwrap_or(f64::NAN))
}
