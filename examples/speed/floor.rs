//! The floor: the least that a store over HTTP and SQLite does. It writes the same rows and nothing else: no key, no
//! validation, no ids, no events, no limits.
//!
//! `speed floor FILE normal|full|group` serves it and prints its address; it ends when its standard input does.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix_web::http::header::ContentType;
use actix_web::web::{self, Bytes, Data};
use actix_web::{App, HttpResponse, HttpServer, get, post};
use clap::ValueEnum;
use rusqlite::{Connection, TransactionBehavior, params};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::Outcome;

/// Requests that share a commit at most.
const GROUP: usize = 256;
/// Bytes of a body at most.
const LARGEST: usize = 1 << 28;

/// When a commit is made, and what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// One for each request; the operating system writes it when it likes.
    Normal,
    /// One for each request, on the disk before the answer.
    Full,
    /// One for all requests that wait, on the disk before their answers.
    Group,
}

impl Durability {
    /// As the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Full => "full",
            Self::Group => "group",
        }
    }

    fn open(self, file: &Path) -> rusqlite::Result<Connection> {
        let connection = Connection::open(file)?;
        let synchronous = match self {
            Self::Normal => "NORMAL",
            Self::Full | Self::Group => "FULL",
        };
        connection.execute_batch(&format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; PRAGMA busy_timeout = 5000;"
        ))?;
        Ok(connection)
    }
}

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS sessions (
        sid INTEGER PRIMARY KEY, n INTEGER NOT NULL, done INTEGER NOT NULL, summary TEXT);
    CREATE TABLE IF NOT EXISTS messages (
        sid INTEGER NOT NULL, seq INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY (sid, seq)) WITHOUT ROWID;";

/// An append that waits for the writer's next commit.
struct Waiting {
    session: i64,
    messages: Vec<String>,
    answer: oneshot::Sender<bool>,
}

/// What all requests share.
struct Store {
    file: PathBuf,
    durability: Durability,
    writer: Mutex<Connection>,
    readers: Mutex<Vec<Connection>>,
    queue: Option<Sender<Waiting>>,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves until standard input ends.
pub fn serve(file: &Path, durability: Durability) -> Outcome<()> {
    let writer = durability.open(file)?;
    writer.execute_batch(SCHEMA)?;
    let queue = if durability == Durability::Group {
        let (queue, jobs) = channel();
        let connection = durability.open(file)?;
        std::thread::spawn(move || commit_groups(connection, &jobs));
        Some(queue)
    } else {
        None
    };
    let store = Arc::new(Store {
        file: file.to_owned(),
        durability,
        writer: Mutex::new(writer),
        readers: Mutex::new(Vec::new()),
        queue,
    });
    std::thread::spawn(|| {
        // Whoever started this is gone, or wants it to be.
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
    actix_web::rt::System::new().block_on(async move {
        let server = HttpServer::new(move || {
            App::new()
                .app_data(Data::from(Arc::clone(&store)))
                .app_data(web::PayloadConfig::new(LARGEST))
                .service(create)
                .service(append)
                .service(context)
        })
        .bind(("127.0.0.1", 0))?;
        for address in server.addrs() {
            println!("http://{address}");
        }
        server.run().await
    })?;
    Ok(())
}

fn json(mut answer: actix_web::HttpResponseBuilder, body: impl Into<Bytes>) -> HttpResponse {
    answer.content_type(ContentType::json()).body(body.into())
}

fn answer<T>(
    outcome: Result<rusqlite::Result<T>, actix_web::error::BlockingError>,
    show: impl FnOnce(T) -> HttpResponse,
) -> HttpResponse {
    match outcome {
        Ok(Ok(found)) => show(found),
        Ok(Err(rusqlite::Error::QueryReturnedNoRows)) => json(HttpResponse::NotFound(), "{}"),
        _ => json(HttpResponse::InternalServerError(), "{}"),
    }
}

#[post("/sessions")]
async fn create(store: Data<Store>) -> HttpResponse {
    let work = move || {
        hold(&store.writer).query_row(
            "INSERT INTO sessions (n, done) VALUES (0, 0) RETURNING sid",
            [],
            |row| row.get::<_, i64>(0),
        )
    };
    answer(web::block(work).await, |id| {
        json(HttpResponse::Created(), format!(r#"{{"id":"{id}"}}"#))
    })
}

#[derive(Deserialize)]
struct Append<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

#[post("/sessions/{id}/messages")]
async fn append(store: Data<Store>, session: web::Path<i64>, body: Bytes) -> HttpResponse {
    let Ok(read) = serde_json::from_slice::<Append>(&body) else {
        return json(HttpResponse::BadRequest(), "{}");
    };
    let messages: Vec<String> = read
        .messages
        .iter()
        .map(|message| message.get().to_owned())
        .collect();
    let (session, count) = (*session, messages.len());
    let show = |()| json(HttpResponse::Created(), format!(r#"{{"added":{count}}}"#));
    if let Some(queue) = &store.queue {
        let (sender, receiver) = oneshot::channel();
        let job = Waiting {
            session,
            messages,
            answer: sender,
        };
        drop(queue.send(job));
        return match receiver.await {
            Ok(true) => show(()),
            _ => json(HttpResponse::InternalServerError(), "{}"),
        };
    }
    let work = move || {
        let mut writer = hold(&store.writer);
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        insert(&transaction, session, &messages)?;
        transaction.commit()
    };
    answer(web::block(work).await, show)
}

fn insert(connection: &Connection, session: i64, messages: &[String]) -> rusqlite::Result<()> {
    let mut seq: i64 = connection
        .prepare_cached("SELECT n FROM sessions WHERE sid = ?1")?
        .query_row([session], |row| row.get(0))?;
    let mut statement =
        connection.prepare_cached("INSERT INTO messages (sid, seq, data) VALUES (?1, ?2, ?3)")?;
    for message in messages {
        seq += 1;
        statement.execute(params![session, seq, message])?;
    }
    connection
        .prepare_cached("UPDATE sessions SET n = ?2 WHERE sid = ?1")?
        .execute([session, seq])?;
    Ok(())
}

fn commit_groups(mut connection: Connection, jobs: &Receiver<Waiting>) {
    while let Ok(first) = jobs.recv() {
        let mut group = vec![first];
        group.extend(jobs.try_iter().take(GROUP - 1));
        let outcome = commit_group(&mut connection, &group);
        for job in group {
            // Whoever asked may be gone.
            let _heard = job.answer.send(outcome.is_ok());
        }
    }
}

/// All of them or none: those who measure send nothing that fails.
fn commit_group(connection: &mut Connection, group: &[Waiting]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for job in group {
        insert(&transaction, job.session, &job.messages)?;
    }
    transaction.commit()
}

#[get("/sessions/{id}/context")]
async fn context(store: Data<Store>, session: web::Path<i64>) -> HttpResponse {
    let work = move || {
        let kept = hold(&store.readers).pop();
        let reader = match kept {
            Some(reader) => reader,
            None => store.durability.open(&store.file)?,
        };
        let found = read_context(&reader, *session);
        hold(&store.readers).push(reader);
        found
    };
    answer(web::block(work).await, |body| {
        json(HttpResponse::Ok(), body)
    })
}

/// The stored texts, joined, as they are.
fn read_context(connection: &Connection, session: i64) -> rusqlite::Result<Vec<u8>> {
    let (done, summary): (i64, Option<String>) = connection
        .prepare_cached("SELECT done, summary FROM sessions WHERE sid = ?1")?
        .query_row([session], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut body = br#"{"messages":["#.to_vec();
    body.extend(summary.unwrap_or_default().into_bytes());
    let mut is_first = true;
    let mut statement = connection
        .prepare_cached("SELECT data FROM messages WHERE sid = ?1 AND seq > ?2 ORDER BY seq")?;
    let mut rows = statement.query([session, done])?;
    while let Some(row) = rows.next()? {
        if !is_first {
            body.push(b',');
        }
        is_first = false;
        body.extend_from_slice(row.get_ref(0)?.as_bytes()?);
    }
    body.extend_from_slice(b"]}");
    Ok(body)
}
