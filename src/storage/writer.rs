//! How a [`Write`] runs: through the one writer on SQLite, in a transaction of its own on PostgreSQL.
//!
//! SQLite takes one writer at a time whatever we do. So one task owns the writing connection, takes
//! what waits in the queue, and commits it together: one sync for many requests. If anything in such
//! a group fails, the group is rolled back and each write runs again alone, so that a request that
//! fails does so alone. The queue is bounded; a full one is an answer, not a wait without end.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::{Connection, PgPool, SqliteConnection};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Conn, Result, StorageError, Write};

/// Writes that may wait. Beyond it a request is told to come again.
const QUEUE: usize = 4_096;
/// Writes that share a commit at most.
const GROUP: usize = 128;
/// Tries of one transaction that meets concurrent ones.
const TRIES: u32 = 6;

/// A write whose type is forgotten, with the way back to its caller.
trait Job: Send {
    fn run<'t>(&'t mut self, conn: &'t mut SqliteConnection) -> BoxFuture<'t, Result<()>>;
    fn answer(self: Box<Self>, outcome: Result<()>);
}

struct Waiting<W: Write> {
    write: W,
    output: Option<W::Output>,
    reply: oneshot::Sender<Result<W::Output>>,
}

impl<W: Write> Job for Waiting<W> {
    fn run<'t>(&'t mut self, conn: &'t mut SqliteConnection) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move {
            let mut conn = Conn::Sqlite(conn);
            // A panic would end the only writer: it is caught and fails this write alone.
            let outcome = AssertUnwindSafe(self.write.run(&mut conn))
                .catch_unwind()
                .await
                .unwrap_or(Err(StorageError::Corrupt("a write panicked")));
            self.output = Some(outcome?);
            Ok(())
        })
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let answer = match (outcome, self.output) {
            (Ok(()), Some(output)) => Ok(output),
            (Ok(()), None) => Err(StorageError::Stopped),
            (Err(error), _) => Err(error),
        };
        // A caller that went away needs no answer; its write is stored all the same.
        drop(self.reply.send(answer));
    }
}

/// The queue in front of the one SQLite writer.
#[derive(Clone)]
pub struct SqliteWriter {
    queue: mpsc::Sender<Box<dyn Job>>,
    patience: Duration,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl SqliteWriter {
    /// Starts the writer on the runtime of the caller. `patience` bounds the wait for a place in the queue.
    pub fn start(conn: SqliteConnection, patience: Duration) -> Self {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(work(conn, jobs, stop.clone()));
        tasks.close();
        Self {
            queue,
            patience,
            stop,
            tasks,
        }
    }

    /// Commits what waits, takes nothing new, and closes the connection.
    pub async fn close(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }

    pub async fn write<W: Write>(&self, write: W) -> Result<W::Output> {
        let (reply, answer) = oneshot::channel();
        let job = Waiting {
            write,
            output: None,
            reply,
        };
        match self.queue.send_timeout(Box::new(job), self.patience).await {
            Ok(()) => answer.await.unwrap_or(Err(StorageError::Stopped)),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(StorageError::Busy),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(StorageError::Stopped),
        }
    }
}

async fn work(
    mut conn: SqliteConnection,
    mut jobs: mpsc::Receiver<Box<dyn Job>>,
    stop: CancellationToken,
) {
    let mut group = Vec::with_capacity(GROUP);
    loop {
        let taken = tokio::select! {
            biased;
            taken = jobs.recv_many(&mut group, GROUP) => taken,
            // Nothing waits: then what comes later is refused, and this ends.
            () = stop.cancelled(), if !jobs.is_closed() => {
                jobs.close();
                continue;
            }
        };
        if taken == 0 {
            break;
        }
        if group.len() > 1 && commit_together(&mut conn, &mut group).await.is_ok() {
            for job in group.drain(..) {
                job.answer(Ok(()));
            }
            continue;
        }
        for mut job in group.drain(..) {
            let outcome = commit_alone(&mut conn, &mut job).await;
            job.answer(outcome);
        }
    }
    // The last connection to close folds the log into the file, so that one file is the whole database.
    if let Err(error) = conn.close().await {
        tracing::warn!(%error, "the database was not closed cleanly; nothing is lost");
    }
}

async fn commit_together(conn: &mut SqliteConnection, group: &mut [Box<dyn Job>]) -> Result<()> {
    let mut transaction = conn.begin_with("BEGIN IMMEDIATE").await?;
    for job in group {
        // Dropping the transaction rolls it back.
        job.run(&mut transaction).await?;
    }
    Ok(transaction.commit().await?)
}

async fn commit_alone(conn: &mut SqliteConnection, job: &mut Box<dyn Job>) -> Result<()> {
    let mut tried = 1;
    loop {
        let outcome = commit_together(conn, std::slice::from_mut(job)).await;
        match outcome {
            Err(StorageError::Contended(_) | StorageError::Duplicate(_)) if tried < TRIES => {
                back_off(tried).await;
                tried += 1;
            }
            outcome => return outcome,
        }
    }
}

/// Runs a write in a PostgreSQL transaction, again if it met a concurrent one.
pub async fn write_postgres<W: Write>(pool: &PgPool, write: W) -> Result<W::Output> {
    let mut tried = 1;
    loop {
        match try_postgres(pool, &write).await {
            Err(StorageError::Contended(_) | StorageError::Duplicate(_)) if tried < TRIES => {
                back_off(tried).await;
                tried += 1;
            }
            outcome => return outcome,
        }
    }
}

async fn try_postgres<W: Write>(pool: &PgPool, write: &W) -> Result<W::Output> {
    let mut transaction = pool.begin().await?;
    let output = write.run(&mut Conn::Postgres(&mut transaction)).await?;
    transaction.commit().await?;
    Ok(output)
}

/// 2, 4, 8 … milliseconds.
async fn back_off(tried: u32) {
    tokio::time::sleep(Duration::from_millis(1 << tried.min(10))).await;
}
