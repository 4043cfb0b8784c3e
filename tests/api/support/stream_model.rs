//! A model that streams, as a test tells it to: chunk by chunk, with gates between the chunks, and
//! with every way to break off. No mock of HTTP can: they know an answer as a whole.
//!
//! Gates replace sleeping: a test waits until a stream is *at* a gate, does what it wants to do
//! while half an answer is out, and opens it.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::model::{API_KEY, MAIN};

/// Nothing in a test takes this long unless it is stuck.
const STUCK: Duration = Duration::from_secs(20);

/// What is done with one call.
#[derive(Clone, Debug)]
pub enum Script {
    /// This text, complete and in one piece, also to a call that asks for a stream.
    Text(String),
    /// A whole body with status 200 and nothing checked.
    Body(Value),
    /// A stream of these, which ends cleanly behind the last of them.
    Stream(Vec<Piece>),
    /// What `Stream` does if the call asks for a stream, and else this body.
    Either(Vec<Piece>, Value),
    /// A failure: status, headers, body.
    Status(u16, Vec<(&'static str, String)>, String),
    /// Nothing, while the client holds the line.
    Hang,
    /// The end of the connection, without an answer.
    HangUp,
}

/// A stretch of a stream.
#[derive(Clone, Debug)]
pub enum Piece {
    /// An event with this data.
    Data(String),
    /// These bytes as they are, in one piece.
    Raw(Vec<u8>),
    /// Waits for [`StreamModel::open_gate`].
    Gate,
    /// Nothing more, while the client holds the line.
    Hang,
    /// The end of the connection in the middle of the body.
    Cut,
}

/// A call as it came in.
#[derive(Clone, Debug)]
pub struct StreamCall {
    pub authorization: Option<String>,
    /// Names in lower case, in the order in which they came.
    pub headers: Vec<(String, String)>,
    pub body: Value,
    /// The body byte for byte.
    pub raw: Vec<u8>,
}

impl StreamCall {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find_map(|(known, value)| (known == name).then_some(value.as_str()))
    }

    pub fn is_streamed(&self) -> bool {
        self.body["stream"] == true
    }
}

pub struct StreamModel {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: AbortHandle,
}

struct Shared {
    state: Mutex<State>,
    gates: Semaphore,
    held: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
    at_gate: watch::Sender<usize>,
    abandoned: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    calls: Vec<StreamCall>,
    scripts: HashMap<String, VecDeque<Script>>,
}

impl StreamModel {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the address of the model");
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            gates: Semaphore::new(0),
            held: watch::Sender::new(false),
            arrived: watch::Sender::new(0),
            at_gate: watch::Sender::new(0),
            abandoned: watch::Sender::new(0),
        });
        let server = tokio::spawn(accept(listener, Arc::clone(&shared))).abort_handle();
        Self {
            address,
            shared,
            server,
        }
    }

    /// Settings that make this the model of the service, with short waits.
    pub fn variables(&self) -> Vec<(String, String)> {
        let base = format!("http://{}/v1", self.address);
        [
            ("PRECIS_MODEL_BASE_URL", base.as_str()),
            ("PRECIS_MODEL", MAIN),
            ("PRECIS_MODEL_API_KEY", API_KEY),
            ("PRECIS_PROVIDER__ATTEMPTS", "3"),
            ("PRECIS_PROVIDER__BACKOFF_INITIAL_MS", "1"),
            ("PRECIS_PROVIDER__BACKOFF_MAX_MS", "5"),
            ("PRECIS_PROVIDER__RETRY_AFTER_MAX_MS", "200"),
            ("PRECIS_PROVIDER__RETRY_WAIT_TOTAL_MS", "400"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
    }

    /// What the model of this name does, call by call; the last one stays.
    pub fn script(&self, model: &str, scripts: impl IntoIterator<Item = Script>) {
        self.shared
            .lock()
            .scripts
            .insert(model.to_owned(), scripts.into_iter().collect());
    }

    /// From now on calls arrive and are not answered.
    pub fn hold(&self) {
        self.shared.held.send_replace(true);
    }

    pub fn release(&self) {
        self.shared.held.send_replace(false);
    }

    /// Lets one stream pass one gate, now or when it gets there.
    pub fn open_gate(&self) {
        self.shared.gates.add_permits(1);
    }

    /// Waits until this many gates have been reached since the start, by all calls together.
    pub async fn at_gate(&self, count: usize) {
        wait_for(&self.shared.at_gate, count, "gates to be reached").await;
    }

    /// Waits until this many calls have arrived since the start.
    pub async fn arrived(&self, count: usize) {
        wait_for(&self.shared.arrived, count, "calls to reach the model").await;
    }

    /// Waits until this many clients have hung up on a model that hangs or stands at a gate.
    pub async fn abandoned(&self, count: usize) {
        wait_for(&self.shared.abandoned, count, "clients to hang up").await;
    }

    pub fn calls(&self) -> Vec<StreamCall> {
        self.shared.lock().calls.clone()
    }

    /// The names of the models that were called, in order.
    pub fn models(&self) -> Vec<String> {
        self.calls()
            .iter()
            .map(|call| call.body["model"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// The newest call.
    pub fn last(&self) -> StreamCall {
        self.calls()
            .pop()
            .expect("expected the model to have been called")
    }
}

impl Drop for StreamModel {
    fn drop(&mut self) {
        // The connections belong to the task that accepts them and end with it.
        self.server.abort();
    }
}

async fn wait_for(what: &watch::Sender<usize>, count: usize, name: &str) {
    let mut seen = what.subscribe();
    let waiting = seen.wait_for(|now| *now >= count);
    tokio::time::timeout(STUCK, waiting)
        .await
        .unwrap_or_else(|_| panic!("expected {count} {name}"))
        .expect("the model is there");
}

// Scripts and pieces

impl Script {
    /// A stream of these texts, a chunk each, ended by `stop` and with its usage.
    pub fn texts(texts: &[&str]) -> Self {
        let chunks = texts.iter().map(|text| Piece::text(text));
        Self::stream(chunks, "stop")
    }

    /// A stream of one tool call, its arguments in two pieces.
    pub fn call(id: &str, name: &str, arguments: &str) -> Self {
        Self::stream(Piece::call(0, id, name, arguments), "tool_calls")
    }

    /// These pieces, and then an end for this reason, the usage and `[DONE]`.
    pub fn stream(pieces: impl IntoIterator<Item = Piece>, reason: &str) -> Self {
        let end = [Piece::finish(reason), Piece::usage(), Piece::done()];
        Self::Stream(pieces.into_iter().chain(end).collect())
    }

    /// What a provider says to a prompt that exceeds its context window.
    pub fn overflow() -> Self {
        Self::Status(400, Vec::new(), too_long().to_string())
    }

    /// The same with status 200.
    pub fn overflow_inside() -> Self {
        Self::Body(too_long())
    }

    /// The same inside a stream, behind these texts.
    pub fn overflow_in_stream(texts: &[&str]) -> Self {
        let chunks = texts.iter().map(|text| Piece::text(text));
        Self::Stream(
            chunks
                .chain([Piece::Data(too_long().to_string())])
                .collect(),
        )
    }

    /// Too many requests, with a wait if there is one.
    pub fn rate_limit(retry_after: Option<&str>) -> Self {
        let header = retry_after.map(|wait| ("retry-after", wait.to_owned()));
        let body =
            json!({"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}});
        Self::Status(429, header.into_iter().collect(), body.to_string())
    }

    pub fn unavailable() -> Self {
        Self::Status(503, Vec::new(), String::new())
    }

    /// A stream of these texts that is cut behind the last of them.
    pub fn cut(texts: &[&str]) -> Self {
        let chunks = texts.iter().map(|text| Piece::text(text));
        Self::Stream(chunks.chain([Piece::Cut]).collect())
    }
}

impl Piece {
    /// A chunk with this delta.
    pub fn delta(delta: &Value) -> Self {
        Self::choice(delta, None)
    }

    pub fn text(text: &str) -> Self {
        Self::delta(&json!({"content": text}))
    }

    pub fn reasoning(text: &str) -> Self {
        Self::delta(&json!({"reasoning_content": text}))
    }

    /// The chunks of one tool call, its arguments in two pieces.
    pub fn call(index: usize, id: &str, name: &str, arguments: &str) -> Vec<Self> {
        let middle = arguments.char_indices().nth(arguments.chars().count() / 2);
        let (one, two) = arguments.split_at(middle.map_or(0, |(at, _)| at));
        let head = json!({
            "index": index, "id": id, "type": "function",
            "function": {"name": name, "arguments": ""},
        });
        let rest = [one, two].map(|part| json!({"index": index, "function": {"arguments": part}}));
        [head]
            .into_iter()
            .chain(rest)
            .map(|call| Self::delta(&json!({"tool_calls": [call]})))
            .collect()
    }

    pub fn finish(reason: &str) -> Self {
        Self::choice(&json!({}), Some(reason))
    }

    pub fn usage() -> Self {
        Self::Data(json!({"choices": [], "usage": usage()}).to_string())
    }

    pub fn done() -> Self {
        Self::Data("[DONE]".to_owned())
    }

    /// An event of the type `error`.
    pub fn error(data: &Value) -> Self {
        Self::Raw(format!("event: error\ndata: {data}\n\n").into_bytes())
    }

    fn choice(delta: &Value, reason: Option<&str>) -> Self {
        let chunk = json!({
            "id": "chatcmpl-streamed",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": MAIN,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        });
        Self::Data(chunk.to_string())
    }
}

fn too_long() -> Value {
    json!({"error": {
        "message": "This model's maximum context length was exceeded. Please reduce the length of the messages.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }})
}

fn usage() -> Value {
    json!({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120})
}

fn completion(text: &str) -> Value {
    json!({
        "id": "chatcmpl-streamed",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": MAIN,
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }],
        "usage": usage(),
    })
}

// The server

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a call in and says what is to be done with it.
    fn take(&self, call: StreamCall) -> Script {
        let mut state = self.lock();
        let model = call.body["model"].as_str().unwrap_or_default();
        let script = match state.scripts.get_mut(model) {
            Some(script) if script.len() > 1 => script.pop_front(),
            Some(script) => script.front().cloned(),
            None => None,
        };
        let chosen = match script {
            Some(Script::Either(pieces, _)) if call.is_streamed() => Script::Stream(pieces),
            Some(Script::Either(_, body)) => Script::Body(body),
            Some(script) => script,
            None if call.is_streamed() => Script::texts(&["The streaming model ", "answers."]),
            None => Script::Text("The streaming model answers.".to_owned()),
        };
        state.calls.push(call);
        self.arrived.send_replace(state.calls.len());
        chosen
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        // An error only says that the client has gone.
        connections.spawn(async move { drop(serve(stream, &shared).await) });
    }
}

async fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let Some(call) = read_call(&mut stream).await? else {
        return Ok(());
    };
    let script = shared.take(call);
    let mut held = shared.held.subscribe();
    drop(held.wait_for(|held| !held).await);
    match script {
        Script::Text(text) => answer(&mut stream, 200, &[], &completion(&text).to_string()).await,
        Script::Body(body) | Script::Either(_, body) => {
            answer(&mut stream, 200, &[], &body.to_string()).await
        }
        Script::Status(status, headers, body) => answer(&mut stream, status, &headers, &body).await,
        Script::Stream(pieces) => play(&mut stream, shared, pieces).await,
        Script::Hang => hang(&mut stream, shared).await,
        Script::HangUp => Ok(()),
    }
}

/// The next call, or none if the client hung up instead.
async fn read_call(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<StreamCall>> {
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        // The request line has no colon in front of a space.
        if let Some((name, value)) = line.split_once(": ") {
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    let header = |wanted: &str| {
        headers
            .iter()
            .find_map(|(name, value)| (name == wanted).then(|| value.clone()))
    };
    let length = header("content-length").and_then(|length| length.parse().ok());
    let mut raw = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut raw).await?;
    Ok(Some(StreamCall {
        authorization: header("authorization"),
        body: serde_json::from_slice(&raw).unwrap_or_default(),
        headers,
        raw,
    }))
}

async fn answer(
    stream: &mut BufReader<TcpStream>,
    status: u16,
    headers: &[(&'static str, String)],
    body: &str,
) -> std::io::Result<()> {
    let mut more = String::new();
    for (name, value) in headers {
        more.extend([name, ": ", value, "\r\n"]);
    }
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n{more}\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

async fn play(
    stream: &mut BufReader<TcpStream>,
    shared: &Shared,
    pieces: Vec<Piece>,
) -> std::io::Result<()> {
    stream
        .write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
              transfer-encoding: chunked\r\nconnection: close\r\n\r\n",
        )
        .await?;
    for piece in pieces {
        match piece {
            Piece::Data(data) => send(stream, format!("data: {data}\n\n").as_bytes()).await?,
            Piece::Raw(bytes) => send(stream, &bytes).await?,
            Piece::Gate => wait_at_gate(stream, shared).await?,
            Piece::Hang => return hang(stream, shared).await,
            Piece::Cut => return Ok(()),
        }
    }
    stream.write_all(b"0\r\n\r\n").await?;
    stream.shutdown().await
}

/// Sends a piece of the body. An empty one would be its end.
async fn send(stream: &mut BufReader<TcpStream>, bytes: &[u8]) -> std::io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut piece = format!("{:x}\r\n", bytes.len()).into_bytes();
    piece.extend_from_slice(bytes);
    piece.extend_from_slice(b"\r\n");
    stream.write_all(&piece).await
}

async fn wait_at_gate(stream: &mut BufReader<TcpStream>, shared: &Shared) -> std::io::Result<()> {
    shared.at_gate.send_modify(|count| *count += 1);
    tokio::select! {
        permit = shared.gates.acquire() => {
            permit.expect("the gates are never closed").forget();
            Ok(())
        }
        left = hang(stream, shared) => left.and(Err(std::io::ErrorKind::ConnectionAborted.into())),
    }
}

/// Waits until the client hangs up.
async fn hang(stream: &mut BufReader<TcpStream>, shared: &Shared) -> std::io::Result<()> {
    let mut rest = [0_u8; 64];
    while let Ok(1..) = stream.read(&mut rest).await {}
    shared.abandoned.send_modify(|count| *count += 1);
    Ok(())
}
