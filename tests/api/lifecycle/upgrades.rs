//! Databases of other versions, and migrations beside a service at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rstest::rstest;
use serde_json::json;

use super::{complaint, precis_beside, said};
use crate::support::backend::TestDatabase;
use crate::support::messages::{turns, user};
use crate::support::process::Process;
use crate::support::{Backend, Http, TestApp};

const NEWER: &str = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                     VALUES (9999, 'of the future', TRUE, ";

async fn make_newer(database: &TestDatabase) {
    let (sqlite, postgres) = (format!("{NEWER}x'00', 1)"), format!("{NEWER}'\\x00', 1)"));
    database.execute(&sqlite, &postgres).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_database_is_refused_and_left_alone(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(2, 30)).await;
    make_newer(&app.database).await;
    for command in [
        &["migrate"][..],
        &["serve"],
        &["prune-store"],
        &["export", "--all"],
        &["explain", &id],
    ] {
        let text = complaint(&precis_beside(&app.database, command).await);
        assert!(
            text.contains("schema 9999 by a newer Precis"),
            "{command:?}: {text}"
        );
    }
    // Whoever serves it already goes on.
    app.append(&id, &[user("still here")]).await;
    assert_eq!(app.history(&id).await.len(), 5);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_older_database_is_named_by_what_does_not_migrate(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let database = TestDatabase::empty(backend).await;
    if backend == Backend::Sqlite {
        std::fs::write(database.directory().join("precis.db"), "").expect("a file");
    }
    let text = complaint(&precis_beside(&database, &["export", "--all"]).await);
    assert!(text.contains("run `precis migrate` first"), "{text}");
    said(&precis_beside(&database, &["migrate"]).await);
    let nothing = said(&precis_beside(&database, &["migrate"]).await);
    assert_eq!(nothing, "nothing to do\n");
    said(&precis_beside(&database, &["export", "--all"]).await);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_broke_off_says_what_to_do(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let broken = "UPDATE _sqlx_migrations SET success = FALSE WHERE version = 9";
    app.database.execute(broken, broken).await;
    let text = complaint(&precis_beside(&app.database, &["migrate"]).await);
    assert!(
        text.contains("migration 9 broke off") && text.contains("restore the backup"),
        "{text}"
    );
}

/// Appends and reads until it is told to stop; every request must succeed.
async fn work(http: Http, id: String, going: Arc<AtomicBool>) -> usize {
    let mut done = 0;
    while going.load(Ordering::Relaxed) {
        http.append(&id, &[user("on")]).await;
        http.get(&format!("/sessions/{id}")).await.expect(200);
        http.context(&id).await;
        let made = http.create_with(&[user("x")]).await;
        http.patch(&format!("/sessions/{made}"), &json!({"title": "t"}))
            .await
            .expect(200);
        http.fork(&made, &json!({})).await.expect(201);
        done += 1;
    }
    done
}

/// What a later version would add, as our rule has it: columns that may be NULL or have a default, tables, indexes.
const EXPAND: &str = "ALTER TABLE sessions ADD COLUMN future TEXT; \
                      ALTER TABLE messages ADD COLUMN future BIGINT NOT NULL DEFAULT 0; \
                      ALTER TABLE tenants ADD COLUMN future TEXT; \
                      CREATE TABLE futures (id BIGINT NOT NULL PRIMARY KEY); \
                      CREATE INDEX sessions_future ON sessions (future) WHERE future IS NOT NULL";

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn migrating_beside_a_service_at_work_fails_no_request(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let database = TestDatabase::create(backend).await;
    let process = Process::start(&database, &[]);
    let going = Arc::new(AtomicBool::new(true));
    let mut clients = Vec::new();
    for _ in 0..3 {
        let id = process.create_with(&turns(5, 50)).await;
        let client = work((*process).clone(), id, Arc::clone(&going));
        clients.push(tokio::spawn(client));
    }
    for _ in 0..3 {
        said(&precis_beside(&database, &["migrate"]).await);
    }
    // A newer version's additions come while this one serves, statements prepared before included.
    database.execute(EXPAND, EXPAND).await;
    make_newer(&database).await;
    let id = process.create_with(&turns(1, 30)).await;
    process.append(&id, &turns(5, 30)).await;
    process.compact(&id, &json!({})).await.expect(200);
    going.store(false, Ordering::Relaxed);
    for client in clients {
        let done = client.await.expect("no request of a client failed");
        assert!(done > 0, "clients were at work");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_migrate_at_once_wait_for_one_another() {
    let database = Arc::new(TestDatabase::empty(Backend::Postgres).await);
    let started: Vec<_> = (0..4)
        .map(|_| {
            let database = Arc::clone(&database);
            tokio::task::spawn_blocking(move || said(&super::precis(&database, &["migrate"])))
        })
        .collect();
    let mut applied = 0;
    for run in started {
        let text = run.await.expect("it succeeds");
        applied += usize::from(text.contains("0001"));
    }
    assert!(applied >= 1, "one of them did it");
    let app = TestApp::on(database, Vec::new()).await;
    app.create_with(&turns(1, 30)).await;
}
