//! Sessions and messages that the measurements work with, and the checks of what comes back.

use serde_json::json;

use crate::load::Kind;
use crate::wire::{Connection, KeyedRequest, Target};
use crate::{Outcome, stop};

/// Messages of one append while a session is filled.
const BATCH: usize = 1_000;
/// Bytes of an ordinary message, about.
pub const ORDINARY: usize = 500;

/// A message with its mark, of about that many bytes.
pub fn message(number: usize, bytes: usize) -> String {
    let role = if number.is_multiple_of(2) {
        "user"
    } else {
        "assistant"
    };
    let words = "all work and no play ";
    let filler = words.repeat(bytes.saturating_sub(60).div_ceil(words.len()));
    format!(r#"{{"role":"{role}","content":"{number} {filler}","x_mark":"~"}}"#)
}

/// The body of an append.
pub fn append_body(messages: impl IntoIterator<Item = String>) -> String {
    let messages: Vec<String> = messages.into_iter().collect();
    format!(r#"{{"messages":[{}]}}"#, messages.join(","))
}

/// A session in a store.
#[derive(Debug, Clone)]
pub struct Session {
    /// Its id there.
    pub id: String,
    /// Messages that it has.
    pub count: usize,
}

impl Session {
    /// Makes one with that many ordinary messages.
    pub fn create(target: &Target, count: usize) -> Outcome<Self> {
        Self::create_with(
            target,
            "{}",
            (0..count).map(|n| message(n, ORDINARY)),
            BATCH,
        )
    }

    /// Makes one with these messages, as many at a time.
    pub fn create_with(
        target: &Target,
        settings: &str,
        messages: impl IntoIterator<Item = String>,
        batch: usize,
    ) -> Outcome<Self> {
        let made = target.ask("POST", "/sessions", settings)?;
        let id = made.get("id").and_then(|id| id.as_str());
        let mut session = Self {
            id: id.ok_or("a session without an id")?.to_owned(),
            count: 0,
        };
        let mut connection = target.connect()?;
        let mut messages = messages.into_iter().peekable();
        while messages.peek().is_some() {
            let taken: Vec<String> = messages.by_ref().take(batch).collect();
            let count = taken.len();
            let body = append_body(taken);
            let request = target.request("POST", &session.path("messages"), &body);
            expect(connection.exchange(&request)?, 201, &connection)?;
            session.count += count;
            stop::check()?;
        }
        Ok(session)
    }

    /// A path below the session's.
    pub fn path(&self, rest: &str) -> String {
        format!("/sessions/{}/{rest}", self.id)
    }

    /// Compacts it until that many messages are left of it.
    pub fn compact_to(&self, target: &Target, tail: usize) -> Outcome<()> {
        // A turn is a question and its answer.
        let body = json!({"compactCount": 99, "keepRecentTurns": tail / 2}).to_string();
        for _ in 0..8 {
            let answer = target.ask("POST", &self.path("compact"), &body)?;
            let size = answer.get("newSize").and_then(serde_json::Value::as_u64);
            if size == Some(u64::try_from(self.count - tail)?) {
                return Ok(());
            }
        }
        Err("the session was not compacted to its tail".into())
    }
}

/// Fails unless the status is the one.
pub fn expect(status: u16, wanted: u16, connection: &Connection) -> Outcome<()> {
    if status == wanted {
        Ok(())
    } else {
        Err(format!("{status} instead of {wanted}: {}", connection.excerpt()).into())
    }
}

/// Reads one session's context over and over.
pub struct Reader {
    connection: Connection,
    request: Vec<u8>,
    messages: usize,
}

impl Reader {
    /// For a session of which that many messages are shown.
    pub fn new(target: &Target, session: &Session, messages: usize) -> Outcome<Self> {
        Self::of(target, "GET", &session.path("context"), "", messages)
    }

    /// Asks for anything that holds that many messages.
    pub fn of(
        target: &Target,
        method: &str,
        path: &str,
        body: &str,
        messages: usize,
    ) -> Outcome<Self> {
        Ok(Self {
            connection: target.connect()?,
            request: target.request(method, path, body),
            messages,
        })
    }

    /// Several of them.
    pub fn several(
        target: &Target,
        session: &Session,
        messages: usize,
        connections: usize,
    ) -> Outcome<Vec<Self>> {
        (0..connections)
            .map(|_| Self::new(target, session, messages))
            .collect()
    }

    /// Asks once.
    pub fn step(&mut self) -> Outcome<Kind> {
        let status = self.connection.exchange(&self.request)?;
        self.check(status)
    }

    /// Asks once, and rests before it reads on.
    pub fn step_slowly(&mut self, pause: std::time::Duration) -> Outcome<Kind> {
        let status = self.connection.exchange_slowly(&self.request, pause)?;
        self.check(status)
    }

    fn check(&self, status: u16) -> Outcome<Kind> {
        expect(status, 200, &self.connection)?;
        check_count(&self.connection, self.messages)?;
        Ok(Kind::Read)
    }
}

fn check_count(connection: &Connection, messages: usize) -> Outcome<()> {
    let found = connection.messages();
    if found == messages && connection.body().ends_with(b"]}") {
        Ok(())
    } else {
        Err(format!("an answer of {found} messages instead of {messages}").into())
    }
}

/// What a writer sends.
enum Request {
    Plain(Vec<u8>),
    Keyed(KeyedRequest),
}

/// Appends to one session over and over, the same messages each time.
pub struct Writer {
    target: Target,
    connection: Connection,
    request: Request,
    batch: usize,
    session: Session,
    /// The service says of each message where it stands; the floor says how many there were.
    is_service: bool,
}

impl Writer {
    /// Appends that many messages at a time.
    pub fn new(target: &Target, session: Session, batch: usize) -> Outcome<Self> {
        let body = append_body((0..batch).map(|n| message(n, ORDINARY)));
        let request = Request::Plain(target.request("POST", &session.path("messages"), &body));
        Ok(Self {
            target: target.clone(),
            connection: target.connect()?,
            request,
            batch,
            session,
            is_service: target.key.is_some(),
        })
    }

    /// Several of them, each with a new session of its own, one message at a time; with a fresh `Idempotency-Key` each
    /// time if they are `keyed`.
    pub fn several(target: &Target, connections: usize, keyed: bool) -> Outcome<Vec<Self>> {
        (0..connections)
            .map(|worker| {
                let mut writer = Self::new(target, Session::create(target, 0)?, 1)?;
                if keyed {
                    let path = writer.session.path("messages");
                    let body = append_body([message(0, ORDINARY)]);
                    let request = KeyedRequest::new(target, &path, &body, worker)?;
                    writer.request = Request::Keyed(request);
                }
                Ok(writer)
            })
            .collect()
    }

    /// Appends once.
    pub fn step(&mut self) -> Outcome<Kind> {
        let request = match &mut self.request {
            Request::Plain(bytes) => bytes,
            Request::Keyed(request) => request.next()?,
        };
        let status = self.connection.exchange(request)?;
        expect(status, 201, &self.connection)?;
        self.session.count += self.batch;
        let said = if self.is_service {
            let place = format!("\"lastSeq\":{}}}", self.session.count);
            self.connection.messages() == self.batch
                && self.connection.body().ends_with(place.as_bytes())
        } else {
            let added = format!("{{\"added\":{}}}", self.batch);
            self.connection.body() == added.as_bytes()
        };
        if said {
            Ok(Kind::Write)
        } else {
            Err(format!("an append says: {}", self.connection.excerpt()).into())
        }
    }

    /// Whether all that was acknowledged is there, and nothing else.
    pub fn check(&self) -> Outcome<()> {
        Reader::new(&self.target, &self.session, self.session.count)?.step()?;
        Ok(())
    }
}
