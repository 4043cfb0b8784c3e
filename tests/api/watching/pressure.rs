//! A database that has nothing left to give: clear refusals in bounded time, and all well again afterwards.

use std::time::Duration;

use futures_util::future::join_all;
use rstest::rstest;
use sqlx::{Connection, PgConnection, SqliteConnection};

use super::exposition::Scrape;
use crate::support::messages::user;
use crate::support::{Backend, TestApp};

/// Nothing here takes this long unless it hangs.
const STUCK: Duration = Duration::from_secs(20);

/// Holds what every write needs, for as long as it lives.
enum Holder {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Holder {
    async fn of(app: &TestApp) -> Self {
        let url = &app.database.url;
        match app.database.backend {
            Backend::Sqlite => {
                let mut connection = SqliteConnection::connect(url).await.expect("a connection");
                let begin = sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection);
                begin.await.expect("the file is locked");
                Self::Sqlite(connection)
            }
            Backend::Postgres => {
                let mut connection = PgConnection::connect(url).await.expect("a connection");
                let lock = "BEGIN; LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE";
                let lock = sqlx::raw_sql(lock).execute(&mut connection);
                lock.await.expect("the table is locked");
                Self::Postgres(connection)
            }
        }
    }

    async fn release(self) {
        match self {
            Self::Sqlite(connection) => connection.close().await,
            Self::Postgres(connection) => connection.close().await,
        }
        .expect("the lock is given back");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_written_is_refused_in_time(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(
        backend,
        &[
            ("PRECIS_DATABASE__MAX_CONNECTIONS", "2"),
            ("PRECIS_DATABASE__ACQUIRE_TIMEOUT_SECONDS", "1"),
            ("PRECIS_DATABASE__BUSY_TIMEOUT_SECONDS", "1"),
        ],
    )
    .await;
    let id = app.create_with(&[user("before")]).await;
    let holder = Holder::of(&app).await;

    // On PostgreSQL two of them may get a connection, and wait for the lock; the others wait for a connection.
    let path = format!("/sessions/{id}/messages");
    let body = format!("{{\"messages\":[{}]}}", user("meanwhile"));
    let appends = (0..6).map(|_| {
        let (http, path, body) = (app.http().clone(), path.clone(), body.clone());
        tokio::spawn(async move { http.post_raw(&path, body).await })
    });
    let mut appends: Vec<_> = appends.collect();
    let may_wait = match backend {
        Backend::Sqlite => 0,
        Backend::Postgres => 2,
    };
    let mut refused = 0;
    while appends.len() > may_wait {
        let next = tokio::time::timeout(STUCK, futures_util::future::select_all(appends)).await;
        let (reply, _, left) =
            next.expect("a request that cannot be served is refused, and does not hang");
        let reply = reply.expect("the request ends");
        reply.problem(503, "STORAGE_UNAVAILABLE");
        assert!(reply.header("retry-after").is_some(), "{reply}");
        refused += 1;
        appends = left;
    }
    assert_eq!(refused, 6 - may_wait);

    // Probes are answered while nothing else is, ready or not.
    let probe = tokio::time::timeout(STUCK, app.get("/health/ready")).await;
    let probe = probe.expect("a probe is answered whatever the database does");
    match backend {
        Backend::Sqlite => {
            let ready = probe.expect(200).json();
            let told = ready["checks"]["writer"].as_str().unwrap_or_default();
            assert!(told.starts_with("failing since 20"), "{ready}");
        }
        // Busy or down: how long the connections have been away decides.
        Backend::Postgres => assert!(matches!(probe.status, 200 | 503), "{probe}"),
    }
    tokio::time::timeout(STUCK, app.get("/health/live"))
        .await
        .expect("the process is alive")
        .expect(200);
    holder.release().await;
    // They got on, unless work of the service's own had taken the connections before them.
    for reply in join_all(appends).await {
        let reply = reply.expect("the request ends");
        assert!(matches!(reply.status, 201 | 503), "{reply}");
    }
    // Whether there are keys, which this address asks for, is in the database.
    let scrape = Scrape::of(&app).await;
    let trouble = match backend {
        Backend::Sqlite => "precis_database_write_failures_total",
        Backend::Postgres => "precis_database_acquire_timeouts_total",
    };
    assert!(scrape.value(trouble) > 0.0, "{trouble} counts it");
    app.append(&id, &[user("after")]).await;
    let ready = app.get("/health/ready").await.expect(200).json();
    assert_eq!(ready["checks"]["writer"], "ok", "{ready}");
    assert_eq!(ready["checks"]["database"], "ok", "{ready}");
}
