//! A model server that misbehaves below HTTP, which no mock of HTTP can: it hangs, trickles, hangs
//! up. A thread for each connection, so that many calls can be held at the same time.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::model::{API_KEY, MAIN};

/// Nothing in a test takes this long unless it is stuck.
const STUCK: Duration = Duration::from_secs(30);
/// Between two bytes of a trickle.
const DRIP: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub enum Act {
    /// An acceptable summary.
    Summary,
    /// The same, once [`RawModel::release`] was called.
    Held,
    /// Nothing, while the client holds the line.
    Hang,
    /// A head, and then nothing.
    HangAfterHead,
    /// A good answer, byte by byte, which would take minutes.
    Trickle,
    /// Half a good answer, and the end of the connection.
    Cut,
    /// Half a chunk of a chunked answer, and the end of the connection.
    CutChunk,
    /// The end of the connection at once.
    HangUp,
    /// Status, further headers, media type, body.
    Status(u16, Vec<(&'static str, String)>, &'static str, String),
}

pub struct RawModel {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    arrived: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    script: VecDeque<Act>,
    calls: usize,
    released: bool,
    stopped: bool,
}

impl RawModel {
    /// Does these in order, call by call; the last one stays.
    pub fn start(script: impl IntoIterator<Item = Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the address of the model");
        let state = State {
            script: script.into_iter().collect(),
            ..State::default()
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            arrived: watch::Sender::new(0),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if accepting.lock().stopped {
                    return;
                }
                let shared = Arc::clone(&accepting);
                // An error only says that the client has gone, which is what it should do.
                std::thread::spawn(move || drop(serve(stream, &shared)));
            }
        });
        Self { address, shared }
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

    /// From now on, these.
    pub fn script(&self, script: impl IntoIterator<Item = Act>) {
        self.shared.lock().script = script.into_iter().collect();
    }

    pub fn release(&self) {
        self.shared.lock().released = true;
        self.shared.changed.notify_all();
    }

    pub fn calls(&self) -> usize {
        self.shared.lock().calls
    }

    /// Waits until this many calls have arrived since the start.
    pub async fn arrived(&self, count: usize) {
        let mut arrived = self.shared.arrived.subscribe();
        let waiting = arrived.wait_for(|now| *now >= count);
        tokio::time::timeout(STUCK, waiting)
            .await
            .unwrap_or_else(|_| panic!("expected {count} calls to reach the model"))
            .expect("the model is there");
    }
}

impl Drop for RawModel {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.released = true;
            state.stopped = true;
        }
        self.shared.changed.notify_all();
        // Wakes the thread that accepts, so that it sees the end.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, until: impl Fn(&State) -> bool) {
        let state = self.lock();
        drop(
            self.changed
                .wait_timeout_while(state, STUCK, |state| !until(state))
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (number, act) = {
        let mut state = shared.lock();
        state.calls += 1;
        let act = if state.script.len() > 1 {
            state.script.pop_front()
        } else {
            state.script.front().cloned()
        };
        (state.calls, act.unwrap_or(Act::Summary))
    };
    shared.arrived.send_replace(number);
    perform(act, stream, shared)
}

fn perform(act: Act, mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let good = completion().to_string();
    match act {
        Act::Summary => stream.write_all(answer(200, &[], "application/json", &good).as_bytes()),
        Act::Held => {
            shared.wait(|state| state.released);
            stream.write_all(answer(200, &[], "application/json", &good).as_bytes())
        }
        Act::Hang => {
            shared.wait(|state| state.stopped);
            Ok(())
        }
        Act::HangAfterHead => {
            stream.write_all(head(200, &[], "application/json", good.len()).as_bytes())?;
            shared.wait(|state| state.stopped);
            Ok(())
        }
        Act::Trickle => trickle(&stream, shared, &good),
        Act::Cut => {
            let whole = answer(200, &[], "application/json", &good);
            stream.write_all(&whole.as_bytes()[..whole.len() - good.len() / 2])
        }
        Act::CutChunk => stream.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
              ff\r\n{\"choices\":[{\"index\":0,\"message\":{\"role\":",
        ),
        Act::HangUp => Ok(()),
        Act::Status(status, headers, media_type, body) => {
            stream.write_all(answer(status, &headers, media_type, &body).as_bytes())
        }
    }
}

/// White space in front of the JSON, drop by drop: enough of it for minutes.
fn trickle(mut stream: &TcpStream, shared: &Shared, good: &str) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let drops = 10_000;
    stream.write_all(head(200, &[], "application/json", good.len() + drops).as_bytes())?;
    let until = Instant::now() + STUCK;
    while Instant::now() < until && !shared.lock().stopped {
        stream.write_all(b" ")?;
        std::thread::sleep(DRIP);
    }
    Ok(())
}

fn head(status: u16, headers: &[(&'static str, String)], media: &str, length: usize) -> String {
    let mut more = String::new();
    for (name, value) in headers {
        more.extend([name, ": ", value, "\r\n"]);
    }
    format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n\
         connection: close\r\n{more}\r\n"
    )
}

fn answer(status: u16, headers: &[(&'static str, String)], media: &str, body: &str) -> String {
    format!("{}{body}", head(status, headers, media, body.len()))
}

fn completion() -> Value {
    json!({
        "id": "chatcmpl-raw",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": MAIN,
        "choices": [{
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "SUMMARY: decisions, findings, files and open problems of the conversation so far.",
            },
            "finish_reason": "stop",
        }],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    })
}
