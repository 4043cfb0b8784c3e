//! Runs a request several times and says what it costs. Others may be at work in the process (somebody looks for what is
//! due), so what is found most often counts.

use std::time::Duration;

use stats_alloc::Region;
use tokio::sync::{Mutex, MutexGuard};

use crate::ALLOCATOR;
use crate::statements::{self, Statement};
use crate::support::backend::TestDatabase;
use crate::support::{Backend, TestApp};
use crate::wire::{Trip, Wire};

/// How often a request is made that is measured; an odd number.
const TIMES: usize = 5;
/// How long nothing may have happened before it is taken to be over. Longer is slower, and changes no number.
const STILL: Duration = Duration::from_millis(8);

/// Keeps the other tests of the process waiting.
pub async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// What a request cost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cost {
    /// Statements, as the driver logs them.
    pub statements: usize,
    /// Rows that they gave.
    pub rows: u64,
    /// Round trips to PostgreSQL with a statement; 0 on SQLite.
    pub trips: usize,
    /// Round trips that only test a connection.
    pub pings: usize,
}

/// What a replica does without a request: it tells the others what it committed (at most every 20 ms, for all requests
/// together), looks now and then for what is due, and asks once a second at most for keys and limits.
const BESIDE: &[&str] = &[
    "pg_notify",
    "FROM leases WHERE expires_at <= $1",
    "turn_until <= $1",
    "WHERE due_at <= $1",
    "FROM keys",
    "FROM replicas",
    "FROM tenants",
];

fn is_beside(text: &str) -> bool {
    text.starts_with("SELECT") && BESIDE.iter().any(|part| text.contains(part))
}

/// A service of which every statement is seen.
pub struct Bench {
    pub app: TestApp,
    pub wire: Option<Wire>,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    /// On a fresh database. One connection, so that one statement is prepared once.
    pub async fn start(backend: Backend, variables: &[(&str, &str)]) -> Self {
        let alone = alone().await;
        statements::start();
        let mut database = TestDatabase::create(backend).await;
        // Those that made it.
        statements::take();
        let mut wire = None;
        if backend == Backend::Postgres {
            let between = Wire::to(&database.url).await;
            database.url = between.url(&database.url);
            wire = Some(between);
        }
        let all = [
            ("PRECIS_DATABASE__MAX_CONNECTIONS", "1"),
            ("PRECIS_DATABASE__READERS", "1"),
        ];
        let all = all.iter().chain(variables);
        let all = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let app = TestApp::on(database.into(), all.collect()).await;
        Self {
            app,
            wire,
            _alone: alone,
        }
    }

    /// What `act` costs on what `prepare` makes, once everything is warm.
    pub async fn cost<T>(
        &self,
        prepare: impl AsyncFn() -> T,
        act: impl AsyncFn(T),
    ) -> (Cost, usize) {
        act(prepare().await).await;
        let mut costs = Vec::new();
        let mut allocations = Vec::new();
        for _ in 0..TIMES {
            let made = prepare().await;
            self.still().await;
            self.take();
            let region = Region::new(ALLOCATOR);
            act(made).await;
            let change = region.change();
            allocations.push(change.allocations + change.reallocations);
            self.still().await;
            costs.push(self.take());
        }
        allocations.sort_unstable();
        (most_frequent(&costs), allocations[TIMES / 2])
    }

    /// The statements of what `act` does.
    pub async fn statements(&self, act: impl AsyncFnOnce()) -> Vec<Statement> {
        self.still().await;
        statements::take();
        act().await;
        self.still().await;
        statements::take()
    }

    fn take(&self) -> Cost {
        let run = statements::take().into_iter();
        let run: Vec<_> = run.filter(|run| !is_beside(&run.text)).collect();
        let (mut trips, mut pings) = (0, 0);
        // A connection is tested when it is given back: then that belongs to what went before.
        let mut beside = false;
        for trip in self.wire.as_ref().map(Wire::take).unwrap_or_default() {
            match trip {
                Trip::Statement(text) => {
                    beside = is_beside(&text);
                    trips += usize::from(!beside);
                }
                Trip::Setup => trips += 1,
                Trip::Ping => {
                    pings += usize::from(!beside);
                    beside = false;
                }
            }
        }
        Cost {
            statements: run.len(),
            rows: run.iter().map(|statement| statement.rows_returned).sum(),
            trips,
            pings,
        }
    }

    /// Waits until nothing happens any more: an answer may come a little before the last statement is logged.
    async fn still(&self) {
        let now = || statements::count() + self.wire.as_ref().map_or(0, Wire::count);
        let (mut before, mut quiet) = (now(), 0);
        while quiet < 2 {
            tokio::time::sleep(STILL).await;
            let after = now();
            quiet = if before == after { quiet + 1 } else { 0 };
            before = after;
        }
    }
}

fn most_frequent(costs: &[Cost]) -> Cost {
    let times = |cost: &Cost| costs.iter().filter(|other| *other == cost).count();
    let most = costs.iter().max_by_key(|cost| times(cost)).cloned();
    most.expect("something was measured")
}
