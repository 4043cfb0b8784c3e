//! How many rows PostgreSQL reads for a request, as it counts them itself: what is shown or folded in, never the history
//! behind it. A server counts when a connection ends, so each request has a service of its own.

use std::sync::Arc;

use sqlx::{Connection, PgConnection};

use crate::measure::alone;
use crate::requests::{Made, Request, TAIL, make, pruned, summarised};
use crate::support::backend::TestDatabase;
use crate::support::{Backend, TestApp};

/// Messages behind the summary.
const LENGTHS: [usize; 2] = [1_000, 10_000];

/// Messages that may be read beside.
const BESIDE: i64 = 15;

/// Each request, and how often it may read the tail. What it folds in or prunes is a part of that.
const TO_SUMMARISED: &[(Request, usize)] = &[
    (Request::Append, 0),
    (Request::AppendUnderKey, 0),
    (Request::Messages, 1),
    (Request::ContextWithSummary, 1),
    (Request::CompactionPlanned, 1),
    (Request::Compaction, 2),
];
const TO_PRUNED: &[(Request, usize)] = &[
    (Request::DispatchFirst, 4),
    // Once as it is stored, which is of no use then, and once as it is shown.
    (Request::ContextWithPlan, 2),
    (Request::DispatchCarried, 3),
];

#[tokio::test(flavor = "multi_thread")]
async fn postgres_reads_what_is_shown_and_nothing_behind_it() {
    let _alone = alone().await;
    let mut wrong = Vec::new();
    let mut by_length = Vec::new();
    for behind in LENGTHS {
        let mut found: Vec<String> = Vec::new();
        let database = Arc::new(TestDatabase::create(Backend::Postgres).await);
        let app = TestApp::on(Arc::clone(&database), Vec::new()).await;
        let with_summary = summarised(&app, behind).await;
        let with_plan = pruned(&app, behind).await;
        database.execute("", "ANALYZE").await;
        end(app).await;
        let to_summarised = TO_SUMMARISED.iter().map(|request| (request, &with_summary));
        let to_pruned = TO_PRUNED.iter().map(|request| (request, &with_plan));
        for ((request, times), id) in to_summarised.chain(to_pruned) {
            let before = read(&database).await;
            let app = TestApp::on(Arc::clone(&database), Vec::new()).await;
            make(&app, *request, &Made::of(id.clone()), || 0).await;
            end(app).await;
            let rows = read(&database).await - before;
            let most = i64::try_from(times * (TAIL + 1)).expect("small") + BESIDE;
            found.push(format!("{request:?}: {rows}"));
            // It counts: what shows messages reads some.
            if rows > most || (rows == 0) != (*times == 0) {
                let what = format!("{request:?} reads {rows} messages behind {behind}, not {most}");
                wrong.push(what);
            }
        }
        by_length.push(found);
    }
    assert_eq!(by_length[0], by_length[1], "behind {LENGTHS:?} messages");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn end(mut app: TestApp) {
    app.stop();
    app.ended().await;
}

/// Messages that were read since the database was made, in the table or in an index of it, once nobody is connected any more.
async fn read(database: &TestDatabase) -> i64 {
    loop {
        let mut conn = PgConnection::connect(&database.url)
            .await
            .expect("a connection");
        let others: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
        )
        .fetch_one(&mut conn)
        .await
        .expect("a count");
        if others == 0 {
            let rows = sqlx::query_scalar(
                "SELECT CAST(seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes \
                 WHERE relname = 'messages') AS BIGINT) FROM pg_stat_user_tables WHERE relname = 'messages'",
            );
            return rows.fetch_one(&mut conn).await.expect("a count");
        }
    }
}
