//! A model's server that fails in every way there is, by turns, and remembers what it answered.
//!
//! Turns and summaries are told apart by the model's name. Speaks just as much HTTP as it takes to break it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::Outcome;
use crate::findings::Findings;
use crate::random::Random;
use crate::web::MODEL_MARK;

/// The names under which the service asks.
pub const MODEL: &str = "scripted-model";
pub const SUMMARIZER: &str = "scripted-summarizer";
/// Out of a hundred calls, how many fail.
const FAILING: usize = 40;
/// Longer than the service waits for anything.
const SILENCE: Duration = Duration::from_secs(30);

/// The ways to fail.
const FAULTS: &[&str] = &[
    "status 500",
    "status 429",
    "status 429 for hours",
    "status 429 with nonsense",
    "status 401",
    "silence",
    "silence within",
    "cut off",
    "empty",
    "ended by length",
    "overflow",
    "garbage",
    "reset",
    "too short",
    "too long",
];

/// An answer that was sent, or begun.
#[derive(Debug, Clone)]
pub struct Sent {
    /// The message, as it was written.
    pub message: String,
    /// Its text.
    pub text: String,
    /// In pieces.
    pub streamed: bool,
}

/// The server; its task ends with the program.
pub struct Model {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    healthy: AtomicBool,
    answers: AtomicU64,
    turn_faults: AtomicUsize,
    summary_faults: AtomicUsize,
    sent: Mutex<HashMap<u64, Sent>>,
    findings: Arc<Findings>,
}

/// A call to answer.
struct Call {
    is_summary: bool,
    stream: bool,
    tools: bool,
    n: u64,
    random: Random,
}

impl Model {
    /// Listens on a free port.
    pub async fn start(seed: u64, findings: Arc<Findings>) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            healthy: AtomicBool::new(false),
            answers: AtomicU64::new(0),
            turn_faults: AtomicUsize::new(0),
            summary_faults: AtomicUsize::new(0),
            sent: Mutex::default(),
            findings,
        });
        let served = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&served);
                // A client that goes away in the middle is nothing of ours.
                tokio::spawn(async move { drop(shared.serve(stream, seed).await) });
            }
        });
        Ok(Self { port, shared })
    }

    /// From now on every call is answered well, or no longer.
    pub fn set_healthy(&self, healthy: bool) {
        self.shared.healthy.store(healthy, Ordering::Relaxed);
    }

    /// The answer whose number stands behind the mark in a text.
    pub fn sent(&self, text: &str) -> Option<Sent> {
        let behind = text.split(MODEL_MARK).nth(1)?;
        let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
        let n = digits.parse().ok()?;
        let sent = self.shared.sent.lock();
        sent.unwrap_or_else(PoisonError::into_inner)
            .get(&n)
            .cloned()
    }
}

impl Shared {
    async fn serve(&self, mut stream: TcpStream, seed: u64) -> Outcome<()> {
        stream.set_nodelay(true)?;
        let request: Value = serde_json::from_slice(&read_request(&mut stream).await?)?;
        let n = self.answers.fetch_add(1, Ordering::Relaxed) + 1;
        let is = |name: &str| request.get(name).is_some_and(|value| value == true);
        let mut call = Call {
            is_summary: request
                .get("model")
                .is_some_and(|model| model == SUMMARIZER)
                || asks_for_summary(&request),
            stream: is("stream"),
            tools: request.get("tools").is_some(),
            n,
            random: Random::of(seed, &format!("answer {n}")),
        };
        let kind = if call.is_summary { "summary" } else { "turn" };
        let fails = !self.healthy.load(Ordering::Relaxed) && call.random.chance(FAILING);
        if !fails {
            self.findings.count(format!("model, {kind}: good"));
            return self.answer(&mut stream, &mut call, "stop", None).await;
        }
        let turns = if call.is_summary {
            &self.summary_faults
        } else {
            &self.turn_faults
        };
        let index = turns.fetch_add(1, Ordering::Relaxed) % FAULTS.len();
        let fault = FAULTS.get(index).copied().unwrap_or_default();
        self.findings.count(format!("model, {kind}: {fault}"));
        self.fail(&mut stream, &mut call, fault).await
    }

    async fn fail(&self, stream: &mut TcpStream, call: &mut Call, fault: &str) -> Outcome<()> {
        let refusal =
            |text: &str| json!({"error": {"message": text, "type": "scripted"}}).to_string();
        match fault {
            "status 500" => respond(stream, "500 Broken", "", &refusal("broken")).await,
            "status 429" => {
                respond(stream, "429 Slow", "Retry-After: 1\r\n", &refusal("slow")).await
            }
            "status 429 for hours" => {
                respond(
                    stream,
                    "429 Slow",
                    "Retry-After: 9000\r\n",
                    &refusal("slow"),
                )
                .await
            }
            "status 429 with nonsense" => {
                respond(
                    stream,
                    "429 Slow",
                    "Retry-After: soon\r\n",
                    &refusal("slow"),
                )
                .await
            }
            "status 401" => respond(stream, "401 No", "", &refusal("no")).await,
            "silence" => {
                sleep(SILENCE).await;
                Ok(())
            }
            "silence within" => self.answer(stream, call, "stop", Some(false)).await,
            "cut off" => self.answer(stream, call, "stop", Some(true)).await,
            "empty" => self.say(stream, call, String::new()).await,
            "ended by length" => self.answer(stream, call, "length", None).await,
            "overflow" => {
                let text = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.";
                let body = json!({"error": {"message": text, "type": "invalid_request_error", "code": "context_length_exceeded"}});
                respond(stream, "400 Bad", "", &body.to_string()).await
            }
            "garbage" => respond(stream, "200 OK", "", "<html>{\"choices\": 7").await,
            "too short" => {
                self.say(stream, call, format!("{MODEL_MARK}{}:", call.n))
                    .await
            }
            "too long" => {
                let text = format!("{MODEL_MARK}{}: {}", call.n, "too long ".repeat(8_000));
                self.say(stream, call, text).await
            }
            _ => {
                stream.set_zero_linger()?;
                Ok(())
            }
        }
    }

    /// An answer of just this text, all at once.
    async fn say(&self, stream: &mut TcpStream, call: &Call, text: String) -> Outcome<()> {
        let mark = format!("{MODEL_MARK}{}", call.n);
        let message = json!({"role": "assistant", "content": text, "x_mark": mark}).to_string();
        let body =
            format!(r#"{{"choices":[{{"index":0,"message":{message},"finish_reason":"stop"}}]}}"#);
        let streamed = call.stream;
        self.remember(
            call.n,
            Sent {
                message,
                text,
                streamed,
            },
        );
        respond(stream, "200 OK", "", &body).await
    }

    fn remember(&self, n: u64, sent: Sent) {
        let mut all = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(n, sent);
    }

    /// A good answer; `broken` breaks it off in the middle, by an end (true) or by silence.
    async fn answer(
        &self,
        stream: &mut TcpStream,
        call: &mut Call,
        finish: &str,
        broken: Option<bool>,
    ) -> Outcome<()> {
        let n = call.n;
        let mut text = format!("{MODEL_MARK}{n}: the answer, of some words, to what was asked.");
        if call.is_summary {
            text.push_str(" What was decided stays decided; files, errors and the next step are as they were told.");
        }
        for _ in 0..call.random.below(12) {
            text.push_str(" And one sentence more, with an \u{e9} in it.");
        }
        let calls = (call.tools && call.random.chance(35)).then(|| {
            json!([{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": format!("{{\"n\": {n}}}")}}])
        });
        let finish = if calls.is_some() && finish == "stop" {
            "tool_calls"
        } else {
            finish
        };
        let mut message = json!({"role": "assistant", "content": text});
        if let (Some(calls), Some(members)) = (&calls, message.as_object_mut()) {
            members.insert("tool_calls".to_owned(), calls.clone());
        }
        let message = message.to_string();
        let sent = Sent {
            message: message.clone(),
            text: text.clone(),
            streamed: call.stream,
        };
        self.remember(n, sent);
        // The model thinks.
        sleep(call.random.millis(0, 150)).await;
        if call.stream {
            let pieces = pieces(&text, calls.as_ref(), finish);
            return stream_pieces(stream, call, &pieces, broken).await;
        }
        let body = format!(
            r#"{{"id":"a{n}","object":"chat.completion","choices":[{{"index":0,"message":{message},"finish_reason":"{finish}"}}],"usage":{{"prompt_tokens":100,"completion_tokens":20}}}}"#
        );
        let Some(ends) = broken else {
            return respond(stream, "200 OK", "", &body).await;
        };
        let head = head(
            "200 OK",
            "Content-Type: application/json\r\n",
            Some(body.len()),
        );
        let half = body.as_bytes().get(..body.len() / 2).unwrap_or_default();
        stream.write_all(&[head.as_bytes(), half].concat()).await?;
        if !ends {
            sleep(SILENCE).await;
        }
        Ok(())
    }
}

/// A call with the first model's name may ask for a summary too, after the second has failed.
fn asks_for_summary(request: &Value) -> bool {
    let last = request.get("messages").and_then(Value::as_array);
    let last = last.and_then(|all| all.last()?.get("content")?.as_str());
    request.get("tools").is_none() && last.is_some_and(|text| text.contains("[User]"))
}

fn pieces(text: &str, calls: Option<&Value>, finish: &str) -> Vec<String> {
    let chunk = |delta: Value, finish: Value| {
        json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).to_string()
    };
    let mut pieces = Vec::new();
    let words: Vec<&str> = text.split_inclusive(' ').collect();
    for (index, some) in words.chunks(3).enumerate() {
        let delta = if index == 0 {
            json!({"role": "assistant", "content": some.concat()})
        } else {
            json!({"content": some.concat()})
        };
        pieces.push(chunk(delta, Value::Null));
    }
    if let Some(Some(call)) = calls.map(|calls| calls.get(0)) {
        let mut call = call.clone();
        if let Some(members) = call.as_object_mut() {
            members.insert("index".to_owned(), json!(0));
        }
        pieces.push(chunk(json!({"tool_calls": [call]}), Value::Null));
    }
    pieces.push(chunk(json!({}), json!(finish)));
    pieces.push(
        json!({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 20}})
            .to_string(),
    );
    pieces
}

async fn stream_pieces(
    stream: &mut TcpStream,
    call: &mut Call,
    pieces: &[String],
    broken: Option<bool>,
) -> Outcome<()> {
    let head = head("200 OK", "Content-Type: text/event-stream\r\n", None);
    stream.write_all(head.as_bytes()).await?;
    let until = match broken {
        None => pieces.len(),
        Some(_) => 1 + call.random.below(pieces.len().saturating_sub(3)),
    };
    for piece in pieces.iter().take(until) {
        stream
            .write_all(format!("data: {piece}\n\n").as_bytes())
            .await?;
        sleep(call.random.millis(0, 8)).await;
    }
    match broken {
        None => stream.write_all(b"data: [DONE]\n\n").await?,
        Some(true) => {}
        Some(false) => sleep(SILENCE).await,
    }
    Ok(())
}

fn head(status: &str, headers: &str, length: Option<usize>) -> String {
    let length = length.map(|length| format!("Content-Length: {length}\r\n"));
    let length = length.unwrap_or_default();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}{length}\r\n")
}

async fn respond(stream: &mut TcpStream, status: &str, headers: &str, body: &str) -> Outcome<()> {
    let headers = format!("Content-Type: application/json\r\n{headers}");
    let head = head(status, &headers, Some(body.len()));
    stream
        .write_all(&[head.as_bytes(), body.as_bytes()].concat())
        .await?;
    Ok(())
}

/// Reads a request and gives its body.
async fn read_request(stream: &mut TcpStream) -> Outcome<Vec<u8>> {
    let mut received = Vec::new();
    let mut buffer = vec![0; 16_384];
    let mut whole = None;
    loop {
        let read = timeout(SILENCE, stream.read(&mut buffer)).await??;
        if read == 0 {
            return Err("the request ended early".into());
        }
        received.extend_from_slice(buffer.get(..read).unwrap_or_default());
        if whole.is_none()
            && let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n")
        {
            let head = String::from_utf8_lossy(received.get(..end).unwrap_or_default());
            let head = head.to_ascii_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.ok_or("no length")?.trim().parse()?;
            whole = Some((end + 4, end + 4 + length));
        }
        if let Some((start, end)) = whole
            && received.len() >= end
        {
            return Ok(received.get(start..end).unwrap_or_default().to_vec());
        }
    }
}
