//! Model servers that misbehave below HTTP, which no mock library offers: one thread each.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A server that reads a request and then does what it was told to with the connection.
pub struct RawServer {
    pub port: u16,
    seen: Arc<AtomicU32>,
}

impl RawServer {
    /// `act` gets the connection and the number of the request, from 1.
    pub fn start(act: impl Fn(&mut TcpStream, u32) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&seen);
        let act = Arc::new(act);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(mut connection) = connection else {
                    return;
                };
                let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
                let act = Arc::clone(&act);
                std::thread::spawn(move || {
                    read_request(&mut connection);
                    act(&mut connection, number);
                });
            }
        });
        Self { port, seen }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    pub fn connections(&self) -> u32 {
        self.seen.load(Ordering::SeqCst)
    }
}

pub fn read_request(connection: &mut TcpStream) {
    connection
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut all = Vec::new();
    let mut buffer = [0_u8; 4096];
    while let Ok(count @ 1..) = connection.read(&mut buffer) {
        all.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&all);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix("content-length: ")
                    .map(str::to_owned)
            })
            .and_then(|length| length.parse::<usize>().ok())
            .unwrap_or(0);
        if body.len() >= length {
            return;
        }
    }
}

/// Writes, and says whether the other side still listens.
pub fn send(connection: &mut TcpStream, bytes: &[u8]) -> bool {
    connection
        .write_all(bytes)
        .and_then(|()| connection.flush())
        .is_ok()
}

pub fn head(status: &str, length: usize) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
    .into_bytes()
}
