//! Readiness: what is told, and what makes the service step aside.

use rstest::rstest;
use serde_json::json;

use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_sound_service_says_what_it_stands_on(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    // The first connection of the one that listens may take a moment.
    let listener = match backend {
        Backend::Sqlite => "not configured",
        Backend::Postgres => "ok",
    };
    let mut ready = app.get("/health/ready").await.expect(200).json();
    while ready["checks"]["listener"] != listener {
        tokio::task::yield_now().await;
        ready = app.get("/health/ready").await.expect(200).json();
    }
    assert_eq!(
        ready,
        json!({
            "status": "ok",
            "version": env!("CARGO_PKG_VERSION"),
            "checks": {
                "database": "ok",
                "writer": "ok",
                "migrations": "ok",
                "listener": listener,
                "summarizer": "not configured",
                "model": "not configured",
            },
        })
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_version_is_told_of(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 VALUES (9000, 'of a later version', TRUE, '', 0)";
    app.database.execute(newer, newer).await;
    let ready = app.get("/health/ready").await.expect(200).json();
    assert_eq!(ready["checks"]["migrations"], "newer", "{ready}");
    assert_eq!(ready["status"], "degraded", "{ready}");

    let older = "DELETE FROM _sqlx_migrations WHERE version > 6";
    app.database.execute(older, older).await;
    let ready = app.get("/health/ready").await.expect(200).json();
    assert_eq!(ready["checks"]["migrations"], "older", "{ready}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_gives_no_answer_is_named(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    // As good as gone, for what asks it.
    let broken = "DROP TABLE _sqlx_migrations";
    app.database.execute(broken, broken).await;
    let problem = app
        .get("/health/ready")
        .await
        .problem(503, "STORAGE_UNAVAILABLE");
    let named = json!([{"pointer": "/checks/database", "message": "down"}]);
    let errors = problem["errors"].as_array().expect("errors");
    assert!(
        errors.contains(&named[0]),
        "the database is named: {problem}"
    );
    app.get("/health/live").await.expect(200);
}
