//! Stands between the service and PostgreSQL and counts round trips as they are: also those that the driver makes for
//! itself and logs nowhere (pings, preparing, the beginning of a transaction). It reads the messages of the protocol that
//! end a round trip and those that name a statement, and changes none.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reqwest::Url;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::AbortHandle;

/// A round trip, by what it was for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trip {
    /// A statement was run.
    Statement(String),
    /// A statement was prepared, or a connection opened.
    Setup,
    /// The connection was tested.
    Ping,
}

#[derive(Default)]
struct Seen {
    trips: Vec<Trip>,
    /// Texts that were prepared, with the types of their parameters.
    prepared: BTreeMap<String, Vec<u32>>,
}

pub struct Wire {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    server: AbortHandle,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire {
    /// A way to the server of this URL.
    pub async fn to(url: &str) -> Self {
        let options = PgConnectOptions::from_str(url).expect("the URL of a database");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::new(Mutex::new(Seen::default()));
        let server = tokio::spawn(accept(listener, options, Arc::clone(&seen))).abort_handle();
        Self {
            address,
            seen,
            server,
        }
    }

    /// The URL of the same database by this way.
    pub fn url(&self, url: &str) -> String {
        let mut url = Url::parse(url).expect("an URL");
        url.set_host(Some("127.0.0.1")).expect("a host");
        url.set_port(Some(self.address.port())).expect("a port");
        url.set_query(Some("sslmode=disable"));
        url.to_string()
    }

    pub fn take(&self) -> Vec<Trip> {
        std::mem::take(&mut lock(&self.seen).trips)
    }

    pub fn count(&self) -> usize {
        lock(&self.seen).trips.len()
    }

    /// Every text that was prepared so far, with the types of its parameters as PostgreSQL numbers them.
    pub fn prepared(&self) -> BTreeMap<String, Vec<u32>> {
        lock(&self.seen).prepared.clone()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn accept(listener: TcpListener, options: PgConnectOptions, seen: Arc<Mutex<Seen>>) {
    while let Ok((client, _)) = listener.accept().await {
        client.set_nodelay(true).expect("a socket");
        let (from_client, to_client) = client.into_split();
        let seen = Arc::clone(&seen);
        let socket = options
            .get_socket()
            .map(|directory| directory.join(format!(".s.PGSQL.{}", options.get_port())));
        if let Some(socket) = socket {
            let server = UnixStream::connect(socket).await.expect("the server");
            let (from_server, to_server) = server.into_split();
            carry((from_client, to_server), (from_server, to_client), seen);
        } else {
            let place = (options.get_host(), options.get_port());
            let server = TcpStream::connect(place).await.expect("the server");
            server.set_nodelay(true).expect("a socket");
            let (from_server, to_server) = server.into_split();
            carry((from_client, to_server), (from_server, to_client), seen);
        }
    }
}

/// Carries both directions, each until its sender closes it.
fn carry<A, B, C, D>(up: (A, B), down: (C, D), seen: Arc<Mutex<Seen>>)
where
    A: AsyncRead + Unpin + Send + 'static,
    B: AsyncWrite + Unpin + Send + 'static,
    C: AsyncRead + Unpin + Send + 'static,
    D: AsyncWrite + Unpin + Send + 'static,
{
    let asked = Asked::default();
    let requests = Requests {
        asked: Arc::clone(&asked),
        seen: Arc::clone(&seen),
        ..Requests::default()
    };
    // The first message of a client has no letter.
    tokio::spawn(copy(up, Cutter::new(false), move |letter, rest| {
        requests.read(letter, rest);
    }));
    tokio::spawn(copy(down, Cutter::new(true), move |letter, _| {
        // Ready for the next: what was asked for is done.
        if letter == b'Z' {
            let trip = lock(&asked).pop_front().unwrap_or(Trip::Setup);
            lock(&seen).trips.push(trip);
        }
    }));
}

async fn copy<R, W>((mut from, mut to): (R, W), mut cutter: Cutter, mut read: impl FnMut(u8, &[u8]))
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        // Seen before it is passed on: whoever has an answer finds its round trip counted.
        cutter.cut(&buffer[..count], &mut read);
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    // An error says that the other side was first.
    drop(to.shutdown().await);
}

/// Cuts a direction into messages: a letter, a length that counts itself, and the rest.
struct Cutter {
    held: Vec<u8>,
    has_letter: bool,
}

impl Cutter {
    fn new(has_letter: bool) -> Self {
        Self {
            held: Vec::new(),
            has_letter,
        }
    }

    fn cut(&mut self, bytes: &[u8], read: &mut impl FnMut(u8, &[u8])) {
        self.held.extend_from_slice(bytes);
        loop {
            let head = if self.has_letter { 5 } else { 4 };
            if self.held.len() < head {
                return;
            }
            let length = self.held[head - 4..head].try_into().expect("four bytes");
            let length = u32::from_be_bytes(length) as usize + head - 4;
            if self.held.len() < length {
                return;
            }
            let message: Vec<u8> = self.held.drain(..length).collect();
            if std::mem::replace(&mut self.has_letter, true) {
                read(message[0], &message[head..]);
            }
        }
    }
}

/// What a connection was asked for and has not done yet, a round trip each.
type Asked = Arc<Mutex<VecDeque<Trip>>>;

/// What a client of one connection asks for.
#[derive(Default)]
struct Requests {
    asked: Asked,
    seen: Arc<Mutex<Seen>>,
    /// Texts by the name that they were prepared under.
    names: Mutex<BTreeMap<Vec<u8>, String>>,
    /// What stands before the end of the round trip.
    begun: Mutex<Option<Trip>>,
}

impl Requests {
    fn read(&self, letter: u8, rest: &[u8]) {
        let mut parts = rest.splitn(3, |byte| *byte == 0);
        let mut part = || parts.next().unwrap_or_default();
        let mut begun = lock(&self.begun);
        match letter {
            b'P' => {
                let (name, text, types) = (part(), part(), part());
                let text = String::from_utf8(text.to_vec()).expect("UTF-8");
                let types = types[2..].chunks_exact(4);
                let types = types.map(|one| u32::from_be_bytes(one.try_into().expect("four")));
                let types = types.collect();
                lock(&self.names).insert(name.to_vec(), text.clone());
                lock(&self.seen).prepared.insert(text, types);
                begun.get_or_insert(Trip::Setup);
            }
            b'B' => {
                let (_, name) = (part(), part());
                let text = lock(&self.names).get(name).cloned();
                *begun = Some(Trip::Statement(text.unwrap_or_default()));
            }
            b'S' => {
                let trip = begun.take().unwrap_or(Trip::Ping);
                lock(&self.asked).push_back(trip);
            }
            b'Q' => {
                let text = String::from_utf8_lossy(part()).into_owned();
                lock(&self.asked).push_back(Trip::Statement(text));
            }
            // Something else of a round trip, such as the closing of a prepared statement.
            _ => {
                begun.get_or_insert(Trip::Setup);
            }
        }
    }
}
