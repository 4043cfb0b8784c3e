//! The memory that many streams of events take, and many large appends at once.
//!
//! The clients are plain sockets, so that they themselves need little.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::Outcome;
use crate::check::read_all;
use crate::findings::Findings;
use crate::ledger::Listed;
use crate::options::Options;
use crate::random::Random;
use crate::run::Stage;
use crate::server::{Sample, forget_peak, sample};
use crate::web::{Ask, CONTENT_MARK, Reply};

/// Sessions that the streams and appends are spread over.
const SESSIONS: usize = 100;
/// Connections that are being made at once.
const OPENING: usize = 100;
/// Streams from one address of this machine: each address has its own ports.
const PER_ADDRESS: usize = 5_000;
/// The content of a large message, in bytes.
const LARGE: usize = 1 << 20;
/// How long a closed stream may go unnoticed: two comments, and a little.
const GONE: Duration = Duration::from_secs(40);
/// How long everything together may take.
const PATIENCE: Duration = Duration::from_mins(10);

/// What both parts work with.
struct Scene {
    stage: Stage,
    address: String,
    authorization: String,
    sessions: Vec<String>,
    pid: u32,
    port: Option<u16>,
}

impl Scene {
    async fn start(options: &Options, findings: &Arc<Findings>) -> Outcome<Self> {
        let more = [
            ("PRECIS_EVENTS__KEEP_ALIVE_SECONDS", "15"),
            ("PRECIS_HTTP__MAX_CONNECTIONS", "30000"),
            ("PRECIS_LOG", "info"),
        ];
        let stage = Stage::start(options, findings, None, &more).await?;
        let mut random = Random::new(options.seed);
        let mut sessions = Vec::new();
        for n in 0..SESSIONS {
            let body = format!(r#"{{"title":"main {n}"}}"#);
            let ask = Ask::post("create", "/sessions", body, &[]);
            let made = stage
                .world
                .web
                .ask(&mut random, ask)
                .await
                .json()
                .unwrap_or_default();
            let id = made.get("id").and_then(Value::as_str).ok_or("no session")?;
            sessions.push(id.to_owned());
        }
        let replica = stage.world.replicas.first().ok_or("no replica")?;
        let (address, pid) = (replica.address(), replica.pid());
        let port = stage.postgres.as_ref().map(|postgres| postgres.port);
        Ok(Self {
            address: address.ok_or("no address")?,
            authorization: stage.world.web.authorization(),
            sessions,
            pid: pid.ok_or("no process")?,
            port,
            stage,
        })
    }

    fn look(&self) -> Outcome<Sample> {
        sample(self.pid, self.port)
    }

    /// A connection, from one of several addresses of this machine.
    async fn connect(&self, n: usize) -> Outcome<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        let last = 1 + (n / PER_ADDRESS) % 250;
        socket.bind(format!("127.0.0.{last}:0").parse()?)?;
        let stream = socket.connect(self.address.parse()?).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn session(&self, n: usize) -> &str {
        self.sessions.get(n % SESSIONS).map_or("", String::as_str)
    }

    fn head(&self, first: &str, more: &str) -> String {
        let (host, key) = (&self.address, &self.authorization);
        format!("{first} HTTP/1.1\r\nHost: {host}\r\n{key}{more}\r\n")
    }
}

/// The run.
pub async fn measure(
    options: &Options,
    streams: usize,
    appends: usize,
    findings: &Arc<Findings>,
) -> Outcome<()> {
    let limit = open_files()?;
    if limit < streams + 1_000 {
        return Err(format!(
            "{limit} files may be open, {streams} streams need more: ulimit -n {}",
            streams + 1_000
        )
        .into());
    }
    let scene = Scene::start(options, findings).await?;
    timeout(PATIENCE, measure_streams(&scene, streams, findings)).await??;
    drop(scene);
    let scene = Scene::start(options, findings).await?;
    timeout(PATIENCE, measure_appends(&scene, appends, findings)).await??;
    Ok(())
}

/// How many files a process may open, as its children may as well.
fn open_files() -> Outcome<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    Ok(soft
        .ok_or("no limit is told")?
        .parse()
        .unwrap_or(usize::MAX))
}

fn per(findings: &Findings, name: &str, before: u64, after: u64, count: usize) {
    let more = after.saturating_sub(before) * 1_024;
    let count = u64::try_from(count).unwrap_or(1).max(1);
    findings.figure(format!("{name}: KiB before"), before);
    findings.figure(format!("{name}: KiB at most"), after);
    findings.figure(format!("{name}: bytes each"), more / count);
}

async fn measure_streams(scene: &Scene, count: usize, findings: &Findings) -> Outcome<()> {
    let before = scene.look()?;
    let opening = Semaphore::new(OPENING);
    let open = async |n: usize| -> Outcome<TcpStream> {
        let _place = opening.acquire().await?;
        let mut stream = scene.connect(n).await?;
        let path = format!("GET /sessions/{}/events", scene.session(n));
        stream.write_all(scene.head(&path, "").as_bytes()).await?;
        let head = read_head(&mut stream).await?;
        if !head.starts_with("HTTP/1.1 200") {
            return Err(format!("a stream was answered with {head}").into());
        }
        Ok(stream)
    };
    let streams = try_join_all((0..count).map(open)).await?;
    let opened = scene.look()?;
    per(
        findings,
        "open streams",
        before.resident,
        opened.peak,
        count,
    );
    findings.figure("open streams: files", opened.files);
    // Each hears of the one append of its session, once.
    let hear = async |mut stream: TcpStream| -> Outcome<usize> {
        let mut text = String::new();
        let mut buffer = [0; 4_096];
        loop {
            let patience = if text.contains("message.appended") {
                2
            } else {
                120
            };
            let Ok(read) = timeout(Duration::from_secs(patience), stream.read(&mut buffer)).await
            else {
                return Ok(text.matches("event: message.appended").count());
            };
            let read = read?;
            text.push_str(&String::from_utf8_lossy(
                buffer.get(..read).unwrap_or_default(),
            ));
            if read == 0 {
                return Ok(text.matches("event: message.appended").count());
            }
        }
    };
    let heard = join_all(streams.into_iter().map(hear));
    let tell = async {
        let mut random = Random::new(1);
        for n in 0..SESSIONS {
            let body = r#"{"messages":[{"role":"user","content":"~CONTENT~ news"}]}"#;
            let path = format!("/sessions/{}/messages", scene.session(n));
            let ask = Ask::post("append", path, body, &[]);
            let reply = scene.stage.world.web.ask(&mut random, ask).await;
            findings.check(matches!(reply, Reply::Done(_)), || {
                "an append failed".to_owned()
            });
        }
    };
    let (heard, ()) = futures_util::future::join(heard, tell).await;
    let right = heard.iter().filter(|heard| matches!(heard, Ok(1))).count();
    findings.figure("open streams: told once", right);
    findings.check(right == count, || {
        format!("{right} of {count} streams were told once")
    });
    let told = scene.look()?;
    findings.figure("open streams: KiB at most, when all were told", told.peak);
    // That a client is gone is noticed by what cannot be written to it any more: at the second comment at the latest.
    sleep(GONE).await;
    let after = scene.look()?;
    findings.figure("open streams: KiB when they are closed", after.resident);
    findings.check(after.files < before.files + 50, || {
        format!(
            "{} files are open, {} were before",
            after.files, before.files
        )
    });
    Ok(())
}

async fn measure_appends(scene: &Scene, count: usize, findings: &Findings) -> Outcome<()> {
    let before = scene.look()?;
    forget_peak(scene.pid)?;
    let filler = Arc::new("large ".repeat(LARGE / 6));
    let mut random = Random::new(1);
    let waits: Vec<Duration> = (0..count).map(|_| random.millis(1_000, 4_000)).collect();
    let send = async |(n, wait): (usize, Duration)| -> Outcome<()> {
        loop {
            let stream = scene.connect(n).await?;
            match append_large(scene, stream, n, &filler).await.as_deref() {
                Ok("201") => return Ok(()),
                // Too many at once: the client is asked to come again, or was not read from in time.
                Ok("503") => findings.count("large append STORAGE_UNAVAILABLE"),
                Ok("408") => findings.count("large append not read in time"),
                Ok(other) => return Err(format!("a large append was answered with {other}").into()),
                Err(_) => findings.count("large append broken"),
            }
            sleep(wait).await;
        }
    };
    let done = join_all(waits.into_iter().enumerate().map(send)).await;
    let peak = scene.look()?;
    per(
        findings,
        "appends of 1 MiB",
        before.resident,
        peak.peak,
        count,
    );
    for failed in done.into_iter().filter_map(Result::err) {
        findings.violation(format!("{failed}"));
    }
    sleep(Duration::from_secs(5)).await;
    findings.figure("appends of 1 MiB: KiB afterwards", scene.look()?.resident);
    let mut found = 0;
    for session in &scene.sessions {
        let path = format!("/sessions/{session}/messages");
        let messages: Vec<Listed> = read_all(&scene.stage.world, &path).await;
        for listed in &messages {
            let good = listed.message.get().ends_with(&format!("{filler}\"}}"));
            findings.check(good, || {
                format!("{session}: seq {} has other bytes", listed.seq)
            });
        }
        found += messages.len();
    }
    findings.check(found == count, || {
        format!("{found} of {count} large messages are there")
    });
    findings.figure("appends of 1 MiB: read back", found);
    Ok(())
}

/// Appends one large message and gives the status.
async fn append_large(
    scene: &Scene,
    mut stream: TcpStream,
    n: usize,
    filler: &str,
) -> Outcome<String> {
    let start = format!(
        r#"{{"messages":[{{"precis":{{"id":"own-{n}"}},"role":"user","content":"{CONTENT_MARK}{n};"#
    );
    let end = r#""}]}"#;
    let length = start.len() + filler.len() + end.len();
    let path = format!("POST /sessions/{}/messages", scene.session(n));
    let more = format!(
        "Connection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
    );
    let head = scene.head(&path, &more);
    for part in [head.as_str(), start.as_str(), filler, end] {
        stream.write_all(part.as_bytes()).await?;
    }
    let head = read_head(&mut stream).await?;
    let mut buffer = vec![0; 65_536];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(head.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// Reads up to the end of an answer's head, or a little further.
async fn read_head(stream: &mut TcpStream) -> Outcome<String> {
    let mut head = String::new();
    let mut one = [0; 1];
    while !head.ends_with("\r\n\r\n") {
        if stream.read(&mut one).await? == 0 {
            return Err(format!("the connection ended within the head: {head}").into());
        }
        head.push(char::from(one.first().copied().unwrap_or_default()));
    }
    Ok(head)
}
