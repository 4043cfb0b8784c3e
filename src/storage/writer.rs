//! How a [`Write`] runs on SQLite: through the one writer.
//!
//! SQLite takes one writer at a time whatever we do. So one task at a time has the writing connection, takes
//! what waits in the queue, and commits it together: one sync for many requests. If anything in such
//! a group fails, the group is rolled back and each write runs again alone, so that a request that
//! fails does so alone. The queue is bounded; a full one is an answer, not a wait without end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, SqliteConnection};
use tokio::sync::{Mutex, Notify, OwnedMutexGuard, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::quick::{MOST_ROWS, QuickAppend, SETUP};
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
/// How often it is looked whether anything waits that nobody works on.
const ORPHANED: Duration = Duration::from_secs(1);
/// How long that may hold up a stop. What is left is taken out after the next start.
const LAST_SWEEPS: Duration = Duration::from_secs(2);
/// How long emptying the log waits for readers, in milliseconds.
const SHORT_WAIT: i64 = 50;
/// Tries of one transaction that meets concurrent ones.
pub(super) const TRIES: u32 = 6;

/// A write whose type is forgotten, with the way back to its caller.
trait Job: Send {
    /// When its caller was promised an answer.
    fn deadline(&self) -> Instant;
    fn erases(&self) -> bool;
    fn run<'t>(&'t mut self, conn: &'t mut SqliteConnection) -> BoxFuture<'t, Result<()>>;
    /// What it is as one statement, told once.
    fn quick(&mut self) -> Result<Option<QuickAppend>>;
    /// It was done by that statement.
    fn done_quick(&mut self, done: &QuickAppend);
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

    fn quick(&mut self) -> Result<Option<QuickAppend>> {
        self.write.quick()
    }

    fn done_quick(&mut self, done: &QuickAppend) {
        self.committed = vec![done.signal()];
        self.output = self.write.answer_quick(done);
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

/// The queue in front of the one SQLite connection that writes.
///
/// Whoever puts something into it and finds nobody at work sets to work, in a task on the runtime it is on: that spares
/// the way to a thread of the writer's own and back. Whoever finds somebody at work is taken along.
#[derive(Clone)]
pub struct SqliteWriter {
    queue: mpsc::Sender<Box<dyn Job>>,
    patience: Duration,
    signals: Signals,
    bench: Arc<Bench>,
    stop: CancellationToken,
}

/// What writers share.
struct Bench {
    place: Arc<Mutex<Place>>,
    /// Something was written that left something to tidy up.
    untidy: Notify,
    tasks: TaskTracker,
}

/// The place at the connection, which one task has at a time.
struct Place {
    target: Target,
    signals: Signals,
    jobs: mpsc::Receiver<Box<dyn Job>>,
    conn: Option<SqliteConnection>,
    /// When something was last written.
    last: Instant,
    /// The log holds what was erased.
    erased: bool,
    /// The index may hold terms that are gone. An earlier run may have left some.
    trash: bool,
}

impl SqliteWriter {
    /// Starts the writer on the runtime of the caller; it connects when there is something to write.
    /// `patience` bounds how long a write waits before it is begun.
    pub fn start(options: SqliteConnectOptions, patience: Duration, watch: &StorageWatch) -> Self {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let writer = Self::new(queue, jobs, options, patience, watch);
        let tidier = writer.clone();
        writer.bench.tasks.spawn(tidier.tidy());
        writer.bench.tasks.close();
        writer
    }

    fn new(
        queue: mpsc::Sender<Box<dyn Job>>,
        jobs: mpsc::Receiver<Box<dyn Job>>,
        options: SqliteConnectOptions,
        patience: Duration,
        watch: &StorageWatch,
    ) -> Self {
        let signals = Signals::new();
        let place = Place {
            target: Target {
                options,
                watch: watch.clone(),
            },
            signals: signals.clone(),
            jobs,
            conn: None,
            last: Instant::now(),
            erased: false,
            trash: true,
        };
        Self {
            queue,
            patience,
            signals,
            bench: Arc::new(Bench {
                place: Arc::new(Mutex::new(place)),
                untidy: Notify::new(),
                tasks: TaskTracker::new(),
            }),
            stop: CancellationToken::new(),
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
        self.bench.tasks.wait().await;
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
            Ok(()) => {
                self.set_to_work();
                answer.await.unwrap_or(Err(StorageError::Stopped))
            }
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(StorageError::Busy),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(StorageError::Stopped),
        }
    }

    /// Sets somebody to work unless somebody is.
    fn set_to_work(&self) {
        if let Ok(place) = Arc::clone(&self.bench.place).try_lock_owned() {
            self.bench.tasks.spawn(self.clone().work(place));
        }
    }

    /// Writes what waits. It runs as a task of its own: no caller that goes away leaves a transaction behind.
    async fn work(self, mut place: OwnedMutexGuard<Place>) {
        loop {
            place.write_waiting().await;
            if place.is_untidy() {
                self.bench.untidy.notify_one();
            }
            drop(place);
            // Whoever came since the queue was found empty found the place taken.
            if self.waiting() == 0 {
                return;
            }
            match Arc::clone(&self.bench.place).try_lock_owned() {
                Ok(taken) => place = taken,
                Err(_) => return,
            }
        }
    }

    /// Tidies up when nothing is written, until it is told to stop; then writes what waits, and closes.
    async fn tidy(self) {
        while !self.stop.is_cancelled() {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                () = self.bench.untidy.notified() => {}
                // A task that ended with its runtime leaves behind what still waited.
                () = tokio::time::sleep(ORPHANED) => {
                    if self.waiting() > 0 {
                        self.set_to_work();
                    }
                    continue;
                }
            }
            loop {
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => break,
                    () = tokio::time::sleep(BREATH) => {}
                }
                let Ok(mut place) = self.bench.place.try_lock() else {
                    continue;
                };
                let is_untidy = place.is_untidy();
                if is_untidy {
                    place.tidy_a_little().await;
                }
                drop(place);
                // Whoever came meanwhile found the place taken.
                if self.waiting() > 0 {
                    self.set_to_work();
                }
                if !is_untidy {
                    break;
                }
            }
        }
        self.bench.place.lock().await.close().await;
    }
}

impl Place {
    /// Writes what is in the queue, in groups.
    async fn write_waiting(&mut self) {
        loop {
            let mut group = Vec::new();
            while group.len() < GROUP
                && let Ok(job) = self.jobs.try_recv()
            {
                group.push(job);
            }
            if group.is_empty() {
                return;
            }
            if group.iter().any(|job| job.erases()) {
                (self.erased, self.trash) = (true, true);
            }
            commit_group(&self.target, &mut self.conn, &mut group).await;
            self.last = Instant::now();
        }
    }

    fn is_untidy(&self) -> bool {
        self.conn.is_some() && (self.trash || self.erased)
    }

    /// Takes some terms out of the index or empties the log, if nothing was written for long enough.
    async fn tidy_a_little(&mut self) {
        let quiet = self.last.elapsed();
        if self.trash && quiet >= BREATH {
            self.trash = sweep(&self.target, &mut self.conn, &self.signals).await;
            (self.erased, self.last) = (true, Instant::now());
        } else if self.erased && !self.trash && quiet >= QUIET {
            self.erased = !empty_log(self.conn.as_mut()).await;
            self.last = Instant::now();
        }
    }

    /// Refuses what comes later, writes what waits, and closes the connection.
    async fn close(&mut self) {
        self.jobs.close();
        self.write_waiting().await;
        let stopping = Instant::now();
        while self.trash && self.conn.is_some() && stopping.elapsed() < LAST_SWEEPS {
            self.trash = sweep(&self.target, &mut self.conn, &self.signals).await;
        }
        // The last connection to close folds the log into the file, so that one file is the whole database.
        if let Some(conn) = self.conn.take()
            && let Err(error) = conn.close().await
        {
            tracing::warn!(%error, "the database was not closed cleanly; nothing is lost");
        }
    }
}

/// Where the writer writes, and who watches it.
struct Target {
    options: SqliteConnectOptions,
    watch: StorageWatch,
}

impl Target {
    async fn connect(&self) -> Result<SqliteConnection, sqlx::Error> {
        let mut conn = self.options.connect().await?;
        sqlx::raw_sql(SETUP.as_str()).execute(&mut conn).await?;
        Ok(conn)
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
    if let Err(error) = commit_quick(target, conn, group).await {
        target.watch.note_failure();
        refuse(group, &error);
        return;
    }
    if group.len() > 1 {
        match in_transaction(target, conn, group).await {
            Ok(()) => {
                group.drain(..).for_each(|job| job.answer(Ok(())));
                return;
            }
            Err(Failure::Begin(error)) => {
                refuse(group, &error);
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

/// Answers that nobody gets in: each alone would only wait as long again.
fn refuse(group: &mut Vec<Box<dyn Job>>, error: &StorageError) {
    tracing::warn!(%error, waiting = group.len(), "the database takes no writes");
    let busy = |job: Box<dyn Job>| job.answer(Err(StorageError::Busy));
    group.drain(..).for_each(busy);
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

/// Commits those that are one statement, as one together, and answers them. What that does not do is left: a session
/// that is not as was remembered, and whatever failed, of which a transaction then says whose fault it is.
///
/// # Errors
/// Another process has the file, and did not let go of it in time.
async fn commit_quick(
    target: &Target,
    slot: &mut Option<SqliteConnection>,
    group: &mut Vec<Box<dyn Job>>,
) -> Result<()> {
    // Whoever opens the database has more to do than this.
    if slot.is_none() {
        return Ok(());
    }
    let now = Instant::now();
    let mut left = Vec::new();
    let mut taken = Vec::with_capacity(group.len());
    for mut job in group.drain(..) {
        match job.quick() {
            Ok(Some(quick)) if now <= job.deadline() => taken.push((job, quick)),
            // What is not readable is so for its transaction, too.
            _ => left.push(job),
        }
    }
    let mut rest = taken.into_iter().peekable();
    while rest.peek().is_some() {
        let mut rows = 0;
        let mut fits = |(_, quick): &(Box<dyn Job>, QuickAppend)| {
            rows += quick.rows();
            rows <= MOST_ROWS
        };
        let chunk = std::iter::from_fn(|| rest.next_if(&mut fits));
        let (jobs, quicks): (Vec<_>, Vec<_>) = chunk.unzip();
        let (done, failure) = match run_quick(target, slot, &quicks).await {
            Ok(done) => (done, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        for (index, (mut job, quick)) in jobs.into_iter().zip(&quicks).enumerate() {
            if done.get(index) == Some(&true) {
                job.done_quick(quick);
                job.answer(Ok(()));
            } else {
                left.push(job);
            }
        }
        if let Some(error @ StorageError::Contended(_)) = failure {
            left.extend(rest.map(|(job, _)| job));
            *group = left;
            return Err(error);
        }
    }
    *group = left;
    Ok(())
}

/// Says of each whether it is committed.
async fn run_quick(
    target: &Target,
    slot: &mut Option<SqliteConnection>,
    quicks: &[QuickAppend],
) -> Result<Vec<bool>> {
    let Some(mut conn) = slot.take() else {
        return Ok(Vec::new());
    };
    let quicks: Vec<_> = quicks.iter().collect();
    let began = Instant::now();
    match QuickAppend::run_sqlite(&mut conn, &quicks).await {
        Ok(done) => {
            *slot = Some(conn);
            let writes = done.iter().filter(|done| **done).count();
            if let Ok(writes @ 1..) = u32::try_from(writes) {
                target.watch.commit.observe(began.elapsed().as_secs_f64());
                target.watch.group.observe(f64::from(writes));
                target.watch.note(None);
            }
            Ok(done)
        }
        Err(error) => {
            // The statement was its own transaction, so none is open; but a connection may be lost.
            if let StorageError::Contended(_) | StorageError::Duplicate(_) | StorageError::Full(_) =
                error
            {
                *slot = Some(conn);
            }
            Err(error)
        }
    }
}

/// 2, 4, 8 … milliseconds.
pub(super) async fn back_off(tried: u32) {
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
        let patience = Duration::from_millis(20);
        let options = SqliteConnectOptions::new();
        let writer = SqliteWriter::new(queue, jobs, options, patience, &StorageWatch::default());
        let place = Arc::clone(&writer.bench.place).lock_owned().await;
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
        let mut place = place;
        place.jobs.close();
        while place.jobs.try_recv().is_ok() {}
        drop(place);
        for write in waiting {
            let ended = write.await.unwrap();
            assert!(matches!(ended, Err(StorageError::Stopped)), "{ended:?}");
        }
    }
}
