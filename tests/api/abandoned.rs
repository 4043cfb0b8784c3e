//! A write whose caller goes away in the middle of it is done or not done, and leaves nothing open behind it.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use precis::storage::{Database, ForgetReplicas, Timestamp, Url};
use sqlx::{Connection, PgConnection};

use crate::landmarks::OPTIONS;
use crate::support::{Backend, TestApp};

/// Transactions of this database that wait for their next statement.
async fn open_transactions(conn: &mut PgConnection) -> i64 {
    let text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND state LIKE 'idle in transaction%'";
    let count = sqlx::query_scalar(text).fetch_one(conn).await;
    count.expect("the server tells")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_nobody_waits_for_leaves_no_transaction_open() {
    let app = TestApp::spawn(Backend::Postgres).await;
    let url = &app.database.url;
    let database = Database::open(&Url::parse(url).expect("a URL"), &OPTIONS).await;
    let database = database.expect("it opens");
    let mut other = PgConnection::connect(url).await.expect("a connection");
    let write = || {
        database.write(ForgetReplicas {
            before: Timestamp(0),
        })
    };
    for polls in 1..8 {
        // So that a connection is at hand, and the first thing to wait for is the beginning of the transaction.
        write().await.expect("it is done");
        let mut write = Box::pin(write());
        for _ in 0..polls {
            let is_ready = poll_fn(|context| Poll::Ready(write.as_mut().poll(context).is_ready()));
            if is_ready.await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(write);
        // What was sent arrives.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut looks = 0;
        while open_transactions(&mut other).await > 0 {
            looks += 1;
            assert!(
                looks < 200,
                "left after {polls} polls: a transaction is open"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    database.close().await;
}
