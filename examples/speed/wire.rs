//! The asking side: requests whose bytes are made beforehand, over one kept-alive connection, as cheap as can be.
//!
//! It shares the processors with what it measures, so it copies and parses no more than it needs for its checks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::Outcome;

/// Stands once in each message, beside its content (so in no summary), and nowhere else.
const MARK: u8 = b'~';
/// How long an answer may take: a compaction of a million messages is one.
const PATIENCE: Duration = Duration::from_mins(15);
/// Bytes that are read at once.
const BUFFER: usize = 1 << 18;

/// Who is asked.
#[derive(Debug, Clone)]
pub struct Target {
    /// Address and port.
    pub address: String,
    /// The key that every request brings.
    pub key: Option<String>,
}

impl Target {
    /// The bytes of a request.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        self.assemble(method, path, "", body)
    }

    /// The bytes of a request with an `Idempotency-Key` of [`KeyedRequest::DIGITS`] characters.
    fn keyed(&self, path: &str, body: &str) -> Vec<u8> {
        let header = format!("Idempotency-Key: {}\r\n", "0".repeat(KeyedRequest::DIGITS));
        self.assemble("POST", path, &header, body)
    }

    fn assemble(&self, method: &str, path: &str, more: &str, body: &str) -> Vec<u8> {
        let authorization = self
            .key
            .as_ref()
            .map(|key| format!("Authorization: Bearer {key}\r\n"))
            .unwrap_or_default();
        let content = if method == "GET" {
            String::new()
        } else {
            format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\n",
                body.len()
            )
        };
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{authorization}{more}{content}\r\n{body}",
            self.address
        )
        .into_bytes()
    }

    /// A connection to it.
    pub fn connect(&self) -> Outcome<Connection> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection {
            stream: BufReader::with_capacity(BUFFER, stream),
            line: Vec::new(),
            body: Vec::new(),
            length: 0,
        })
    }

    /// Asks once, over a connection of its own, and gives the body as JSON.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Outcome<serde_json::Value> {
        let mut connection = self.connect()?;
        let request = self.request(method, path, body);
        let status = connection.exchange(&request)?;
        if !(200..300).contains(&status) {
            return Err(format!("{method} {path}: {status} {}", connection.excerpt()).into());
        }
        Ok(serde_json::from_slice(connection.body())?)
    }
}

/// A POST that carries another `Idempotency-Key` each time.
pub struct KeyedRequest {
    bytes: Vec<u8>,
    at: usize,
    worker: usize,
    count: u64,
}

impl KeyedRequest {
    const DIGITS: usize = 24;

    /// For one connection among several.
    pub fn new(target: &Target, path: &str, body: &str, worker: usize) -> Outcome<Self> {
        let bytes = target.keyed(path, body);
        let name = b"Idempotency-Key: ";
        let at = bytes
            .windows(name.len())
            .position(|window| window == name)
            .ok_or("a request without its key")?
            + name.len();
        Ok(Self {
            bytes,
            at,
            worker,
            count: 0,
        })
    }

    /// The request, under a key that was not used yet.
    pub fn next(&mut self) -> Outcome<&[u8]> {
        self.count += 1;
        let key = format!("{:08}{:016}", self.worker, self.count);
        self.bytes
            .get_mut(self.at..self.at + Self::DIGITS)
            .ok_or("a request without its key")?
            .copy_from_slice(key.as_bytes());
        Ok(&self.bytes)
    }
}

/// One kept-alive connection, and the answer that came last.
pub struct Connection {
    stream: BufReader<TcpStream>,
    line: Vec<u8>,
    /// Only ever grows, so that no answer has to be zeroed first.
    body: Vec<u8>,
    length: usize,
}

/// What stands in the head of an answer.
struct Head {
    status: u16,
    /// `None`: in chunks.
    length: Option<usize>,
}

impl Connection {
    /// Sends a request, reads the whole answer, and gives its status.
    pub fn exchange(&mut self, request: &[u8]) -> Outcome<u16> {
        self.stream.get_mut().write_all(request)?;
        self.receive(None)
    }

    /// As [`exchange`](Self::exchange), but rests once that long behind the first of the body's bytes, as a slow reader does.
    pub fn exchange_slowly(&mut self, request: &[u8], pause: Duration) -> Outcome<u16> {
        self.stream.get_mut().write_all(request)?;
        self.receive(Some(pause))
    }

    /// The body of the last answer.
    pub fn body(&self) -> &[u8] {
        self.body.get(..self.length).unwrap_or_default()
    }

    /// The beginning of it, for a message.
    pub fn excerpt(&self) -> String {
        let body = self.body();
        String::from_utf8_lossy(body.get(..300).unwrap_or(body)).into_owned()
    }

    /// Messages in the last answer.
    pub fn messages(&self) -> usize {
        // Short runs are counted in one byte each, which the compiler makes wide instructions of.
        self.body()
            .chunks(128)
            .map(|chunk| {
                let marks: u8 = chunk.iter().map(|byte| u8::from(*byte == MARK)).sum();
                usize::from(marks)
            })
            .sum()
    }

    fn receive(&mut self, pause: Option<Duration>) -> Outcome<u16> {
        self.length = 0;
        let head = self.read_head()?;
        if let Some(pause) = pause {
            std::thread::sleep(pause);
        }
        match head.length {
            Some(length) => self.read_bytes(length)?,
            None => self.read_chunks()?,
        }
        Ok(head.status)
    }

    fn read_head(&mut self) -> Outcome<Head> {
        self.read_line()?;
        let status = self
            .line
            .get(9..12)
            .and_then(|status| std::str::from_utf8(status).ok())
            .and_then(|status| status.parse().ok())
            .ok_or("an answer without a status")?;
        let mut length = Some(0);
        loop {
            self.read_line()?;
            if self.line.is_empty() {
                return Ok(Head { status, length });
            }
            let mut parts = self.line.splitn(2, |byte| *byte == b':');
            let (name, value) = (parts.next().unwrap_or_default(), parts.next());
            let value = value.unwrap_or_default().trim_ascii();
            if name.eq_ignore_ascii_case(b"content-length") {
                length = Some(std::str::from_utf8(value)?.parse()?);
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                length = None;
            }
        }
    }

    fn read_line(&mut self) -> Outcome<()> {
        self.line.clear();
        if self.stream.read_until(b'\n', &mut self.line)? == 0 {
            return Err("the connection was closed before the answer".into());
        }
        while self
            .line
            .last()
            .is_some_and(|byte| matches!(byte, b'\r' | b'\n'))
        {
            self.line.pop();
        }
        Ok(())
    }

    fn read_chunks(&mut self) -> Outcome<()> {
        loop {
            self.read_line()?;
            let size = usize::from_str_radix(std::str::from_utf8(&self.line)?, 16)?;
            self.read_bytes(size)?;
            self.read_line()?;
            if size == 0 {
                return Ok(());
            }
        }
    }

    /// Reads that many bytes more of the body.
    fn read_bytes(&mut self, count: usize) -> Outcome<()> {
        let end = self.length + count;
        if self.body.len() < end {
            self.body.resize(end, 0);
        }
        let place = self.body.get_mut(self.length..end).ok_or("no room")?;
        self.stream.read_exact(place)?;
        self.length = end;
        Ok(())
    }
}
