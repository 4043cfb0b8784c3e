//! How a [`Write`] runs: through the one writer on SQLite, in a transaction of its own on PostgreSQL.
//!
//! SQLite takes one writer at a time whatever we do. So one task owns the writing connection, takes
//! what waits in the queue, and commits it together: one sync for many requests. If anything in such
//! a group fails, the group is rolled back and each write runs again alone, so that a request that
//! fails does so alone. The queue is bounded; a full one is an answer, not a wait without end.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgPool, SqliteConnection};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::search::Sweep;
use super::{Conn, Result, Signal, Signals, StorageError, StorageWatch, Write};

/// Writes that may wait. Beyond it a request is told to come again.
const QUEUE: usize = 4_096;
/// Writes that share a commit at most.
const GROUP: usize = 128;
/// How long nothing is written before the log is emptied of what was erased.
const QUIET: Duration = Duration::from_millis(500);
/// How long nothing is written before terms that are gone are taken out of the index, a few at a time.
const BREATH: Duration = Duration::from_millis(20);
/// How long that may hold up a stop. What is left is taken out after the next start.
const LAST_SWEEPS: Duration = Duration::from_secs(2);
/// How long emptying the log waits for readers, in milliseconds.
const SHORT_WAIT: i64 = 50;
/// Tries of one transaction that meets concurrent ones.
const TRIES: u32 = 6;

/// A write whose type is forgotten, with the way back to its caller.
trait Job: Send {
    /// When its caller was promised an answer.
    fn deadline(&self) -> Instant;
    fn erases(&self) -> bool;
    fn run<'t>(&'t mut self, conn: &'t mut SqliteConnection) -> BoxFuture<'t, Result<()>>;
    /// Tries it as one statement, outside of any transaction; says whether that did it.
    fn run_quick<'t>(&'t mut self, conn: &'t mut SqliteConnection) -> BoxFuture<'t, Result<bool>>;
    /// Tells of what was committed, and answers.
    fn answer(self: Box<Self>, outcome: Result<()>);
}

struct Waiting<W: Write> {
    write: W,
    deadline: Instant,
    output: Option<W::Output>,
    committed: Vec<Signal>,
    signals: Signals,
    reply: oneshot::Sender<Result<W::Output>>,
}

impl<W: Write> Job for Waiting<W> {
    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn erases(&self) -> bool {
        self.write.erases()
    }

    fn run<'t>(&'t mut self, conn: &'t mut SqliteConnection) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move {
            let mut conn = Conn::sqlite(conn);
            // A panic would end the only writer: it is caught and fails this write alone.
            let outcome = AssertUnwindSafe(self.write.run(&mut conn))
                .catch_unwind()
                .await
                .unwrap_or(Err(StorageError::Corrupt("a write panicked")));
            self.output = Some(outcome?);
            self.committed = conn.into_signals();
            Ok(())
        })
    }

    fn run_quick<'t>(&'t mut self, conn: &'t mut SqliteConnection) -> BoxFuture<'t, Result<bool>> {
        Box::pin(async move {
            let mut conn = Conn::sqlite(conn).alone();
            let Some(quick) = self.write.quick(&mut conn) else {
                return Ok(false);
            };
            let outcome = AssertUnwindSafe(quick).catch_unwind().await;
            self.output = outcome.unwrap_or(Err(StorageError::Corrupt("a write panicked")))?;
            self.committed = conn.into_signals();
            Ok(self.output.is_some())
        })
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let answer = match (outcome, self.output) {
            (Ok(()), Some(output)) => {
                self.signals.send(self.committed);
                Ok(output)
            }
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
    signals: Signals,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl SqliteWriter {
    /// Starts the writer on the runtime of the caller; it connects when there is something to write.
    /// `patience` bounds how long a write waits before it is begun.
    pub fn start(options: SqliteConnectOptions, patience: Duration, watch: &StorageWatch) -> Self {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let signals = Signals::new();
        let target = Target {
            options,
            watch: watch.clone(),
        };
        tasks.spawn(work(target, jobs, stop.clone(), signals.clone()));
        tasks.close();
        Self {
            queue,
            patience,
            signals,
            stop,
            tasks,
        }
    }

    /// Told of what is committed.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Writes that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
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
            deadline: Instant::now() + self.patience,
            output: None,
            committed: Vec::new(),
            signals: self.signals.clone(),
            reply,
        };
        match self.queue.send_timeout(Box::new(job), self.patience).await {
            Ok(()) => answer.await.unwrap_or(Err(StorageError::Stopped)),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(StorageError::Busy),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(StorageError::Stopped),
        }
    }
}

/// Where the writer writes, and who watches it.
struct Target {
    options: SqliteConnectOptions,
    watch: StorageWatch,
}

async fn work(
    target: Target,
    mut jobs: mpsc::Receiver<Box<dyn Job>>,
    stop: CancellationToken,
    signals: Signals,
) {
    let mut conn = None;
    let mut group = Vec::with_capacity(GROUP);
    let mut erased = false;
    // An earlier run may have left some.
    let mut trash = true;
    loop {
        let sweeping = trash && conn.is_some();
        let taken = tokio::select! {
            biased;
            taken = jobs.recv_many(&mut group, GROUP) => taken,
            () = tokio::time::sleep(BREATH), if sweeping => {
                trash = sweep(&target, &mut conn, &signals).await;
                erased = true;
                continue;
            }
            () = tokio::time::sleep(QUIET), if erased && !sweeping => {
                erased = !empty_log(conn.as_mut()).await;
                continue;
            }
            // Nothing waits: then what comes later is refused, and this ends.
            () = stop.cancelled(), if !jobs.is_closed() => {
                jobs.close();
                continue;
            }
        };
        if taken == 0 {
            break;
        }
        if group.iter().any(|job| job.erases()) {
            (erased, trash) = (true, true);
        }
        commit_group(&target, &mut conn, &mut group).await;
    }
    let stopping = Instant::now();
    while trash && conn.is_some() && stopping.elapsed() < LAST_SWEEPS {
        trash = sweep(&target, &mut conn, &signals).await;
    }
    // The last connection to close folds the log into the file, so that one file is the whole database.
    if let Some(conn) = conn
        && let Err(error) = conn.close().await
    {
        tracing::warn!(%error, "the database was not closed cleanly; nothing is lost");
    }
}

/// Takes some terms that are gone out of the index; says whether there may be more.
async fn sweep(target: &Target, conn: &mut Option<SqliteConnection>, signals: &Signals) -> bool {
    let (reply, answer) = oneshot::channel();
    let mut job: Box<dyn Job> = Box::new(Waiting {
        write: Sweep,
        deadline: Instant::now() + LAST_SWEEPS,
        output: None,
        committed: Vec::new(),
        signals: signals.clone(),
        reply,
    });
    let outcome = commit_alone(target, conn, &mut job).await;
    job.answer(outcome);
    match answer.await {
        Ok(Ok(more)) => more,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the index was not swept; it will be after the next erasure");
            false
        }
        Err(_) => false,
    }
}

/// Moves the log into the file and empties it, so that what was erased is nowhere any more. Says whether
/// it did: a reader may be in the way, and writers are not kept waiting for it.
async fn empty_log(conn: Option<&mut SqliteConnection>) -> bool {
    let Some(conn) = conn else { return true };
    let before = sqlx::query_scalar::<_, i64>("PRAGMA busy_timeout")
        .fetch_one(&mut *conn)
        .await;
    let Ok(before) = before else { return false };
    let patience =
        |milliseconds: i64| AssertSqlSafe(format!("PRAGMA busy_timeout = {milliseconds}"));
    let brief = sqlx::raw_sql(patience(SHORT_WAIT))
        .execute(&mut *conn)
        .await;
    let busy = sqlx::query_scalar::<_, i64>("PRAGMA wal_checkpoint(TRUNCATE)")
        .fetch_one(&mut *conn)
        .await;
    let restored = sqlx::raw_sql(patience(before)).execute(&mut *conn).await;
    brief.is_ok() && restored.is_ok() && busy.is_ok_and(|busy| busy == 0)
}

/// Commits what waits and answers it. A connection that failed in a way that may have left it half-way
/// is replaced by a new one.
async fn commit_group(
    target: &Target,
    conn: &mut Option<SqliteConnection>,
    group: &mut Vec<Box<dyn Job>>,
) {
    if group.len() > 1 {
        match in_transaction(target, conn, group).await {
            Ok(()) => {
                group.drain(..).for_each(|job| job.answer(Ok(())));
                return;
            }
            // Nobody gets in: each alone would only wait as long again.
            Err(Failure::Begin(error)) => {
                tracing::warn!(%error, waiting = group.len(), "the database takes no writes");
                group
                    .drain(..)
                    .for_each(|job| job.answer(Err(StorageError::Busy)));
                return;
            }
            Err(Failure::Run(_)) => {}
        }
    }
    for mut job in group.drain(..) {
        let outcome = commit_alone(target, conn, &mut job).await;
        job.answer(outcome);
    }
}

/// Where a transaction failed.
enum Failure {
    /// It did not begin.
    Begin(StorageError),
    /// It was rolled back.
    Run(StorageError),
}

/// Runs writes in one transaction. The statements are given as such, not through the driver's
/// transactions: SQLite ends some by itself (a full disk, say), which the driver's count does not notice.
async fn in_transaction(
    target: &Target,
    slot: &mut Option<SqliteConnection>,
    group: &mut [Box<dyn Job>],
) -> Result<(), Failure> {
    let outcome = try_transaction(target, slot, group).await;
    match &outcome {
        Ok(()) => target.watch.note(None),
        Err(Failure::Begin(_)) => target.watch.note_failure(),
        Err(Failure::Run(error)) => target.watch.note(Some(error)),
    }
    outcome
}

async fn try_transaction(
    target: &Target,
    slot: &mut Option<SqliteConnection>,
    group: &mut [Box<dyn Job>],
) -> Result<(), Failure> {
    let mut conn = match slot.take() {
        Some(conn) => conn,
        None => target
            .options
            .connect()
            .await
            .map_err(|error| Failure::Begin(error.into()))?,
    };
    // The connection comes back only if its transaction is surely over.
    if let Err(error) = sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut conn).await {
        if error.as_database_error().is_some() {
            *slot = Some(conn);
        }
        return Err(Failure::Begin(error.into()));
    }
    let outcome = run_all(target, &mut conn, group).await;
    match outcome {
        Ok(()) => *slot = Some(conn),
        Err(_) => {
            if sqlx::raw_sql("ROLLBACK").execute(&mut conn).await.is_ok() {
                *slot = Some(conn);
            }
        }
    }
    outcome.map_err(Failure::Run)
}

async fn run_all(
    target: &Target,
    conn: &mut SqliteConnection,
    group: &mut [Box<dyn Job>],
) -> Result<()> {
    let writes = u32::try_from(group.len()).unwrap_or(u32::MAX);
    for job in group {
        job.run(conn).await?;
    }
    let began = Instant::now();
    sqlx::raw_sql("COMMIT").execute(conn).await?;
    target.watch.commit.observe(began.elapsed().as_secs_f64());
    target.watch.group.observe(f64::from(writes));
    Ok(())
}

async fn commit_alone(
    target: &Target,
    conn: &mut Option<SqliteConnection>,
    job: &mut Box<dyn Job>,
) -> Result<()> {
    let mut tried = 1;
    if Instant::now() <= job.deadline() && try_quick(target, conn, job).await? {
        return Ok(());
    }
    loop {
        if Instant::now() > job.deadline() {
            return Err(StorageError::Busy);
        }
        let outcome = in_transaction(target, conn, std::slice::from_mut(job)).await;
        match outcome {
            Ok(()) => return Ok(()),
            Err(Failure::Begin(StorageError::Contended(_))) => return Err(StorageError::Busy),
            Err(Failure::Run(StorageError::Contended(_) | StorageError::Duplicate(_)))
                if tried < TRIES =>
            {
                back_off(tried).await;
                tried += 1;
            }
            Err(Failure::Begin(error) | Failure::Run(error)) => return Err(error),
        }
    }
}

/// Tries a write as one statement. What another connection stood in the way of is left to a transaction.
async fn try_quick(
    target: &Target,
    slot: &mut Option<SqliteConnection>,
    job: &mut Box<dyn Job>,
) -> Result<bool> {
    // Whoever opens the database has more to do than this.
    let Some(mut conn) = slot.take() else {
        return Ok(false);
    };
    let began = Instant::now();
    let error = match job.run_quick(&mut conn).await {
        Ok(done) => {
            *slot = Some(conn);
            if done {
                target.watch.commit.observe(began.elapsed().as_secs_f64());
                target.watch.group.observe(1.0);
                target.watch.note(None);
            }
            return Ok(done);
        }
        Err(error) => error,
    };
    // It fails where no transaction is open any more; a connection that is lost says so in another way.
    let ended = sqlx::raw_sql("ROLLBACK").execute(&mut conn).await;
    if ended.is_ok() || matches!(error, StorageError::Contended(_)) {
        *slot = Some(conn);
    }
    match error {
        StorageError::Contended(_) | StorageError::Duplicate(_) => Ok(false),
        error => {
            target.watch.note(Some(&error));
            Err(error)
        }
    }
}

/// Runs a write in a PostgreSQL transaction, again if it met a concurrent one.
pub async fn write_postgres<W: Write>(
    pool: &PgPool,
    signals: &Signals,
    watch: &StorageWatch,
    write: W,
) -> Result<W::Output> {
    let mut tried = 1;
    loop {
        let outcome = try_postgres(pool, signals, watch, &write).await;
        watch.note(outcome.as_ref().err());
        match outcome {
            Err(StorageError::Contended(_) | StorageError::Duplicate(_)) if tried < TRIES => {
                back_off(tried).await;
                tried += 1;
            }
            outcome => return outcome,
        }
    }
}

async fn try_postgres<W: Write>(
    pool: &PgPool,
    signals: &Signals,
    watch: &StorageWatch,
    write: &W,
) -> Result<W::Output> {
    let mut held = watch.acquire(pool).await?;
    let began = Instant::now();
    let mut conn = Conn::postgres(&mut held).alone();
    let quick = match write.quick(&mut conn) {
        Some(quick) => quick.await?,
        None => None,
    };
    if let Some(output) = quick {
        watch.commit.observe(began.elapsed().as_secs_f64());
        signals.send(conn.into_signals());
        return Ok(output);
    }
    let mut transaction = held.begin().await?;
    let mut conn = Conn::postgres(&mut transaction);
    let output = write.run(&mut conn).await?;
    let committed = conn.into_signals();
    let began = Instant::now();
    transaction.commit().await?;
    watch.commit.observe(began.elapsed().as_secs_f64());
    signals.send(committed);
    Ok(output)
}

/// 2, 4, 8 … milliseconds.
async fn back_off(tried: u32) {
    tokio::time::sleep(Duration::from_millis(1 << tried.min(10))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Write for Nothing {
        type Output = ();

        fn run<'t>(&'t self, _: &'t mut Conn<'_>) -> BoxFuture<'t, Result<()>> {
            Box::pin(async { Ok(()) })
        }
    }

    #[tokio::test]
    async fn a_queue_that_is_full_is_an_answer() {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let writer = SqliteWriter {
            queue,
            patience: Duration::from_millis(20),
            signals: Signals::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let write = || {
            let writer = writer.clone();
            tokio::spawn(async move { writer.write(Nothing).await })
        };
        // Nobody takes them.
        let waiting: Vec<_> = (0..QUEUE).map(|_| write()).collect();
        while writer.waiting() < QUEUE {
            tokio::task::yield_now().await;
        }
        let refused = writer.write(Nothing).await;
        assert!(matches!(refused, Err(StorageError::Busy)), "{refused:?}");
        drop(jobs);
        for write in waiting {
            let ended = write.await.unwrap();
            assert!(matches!(ended, Err(StorageError::Stopped)), "{ended:?}");
        }
    }
}
