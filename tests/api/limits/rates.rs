//! Requests per second.

use std::time::Instant;

use rstest::rstest;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::{STUCK, comes_again, limited, until};
use crate::support::{Backend, Reply, TestApp};

/// One request a second, and no more than so many at once.
async fn slow(backend: Backend, burst: &str) -> TestApp {
    let variables = [
        ("PRECIS_TENANTS__REQUESTS_PER_SECOND", "1"),
        ("PRECIS_TENANTS__REQUEST_BURST", burst),
    ];
    TestApp::with(backend, &variables).await
}

/// Requests until one is refused: how many were not, the most that may have been let in meanwhile, and the refusal.
async fn exhaust(app: &TestApp, burst: usize) -> (usize, usize, Reply) {
    let began = Instant::now();
    for accepted in 0..20_000 {
        let reply = app.get("/agents").await;
        if reply.status != 200 {
            let passed = usize::try_from(began.elapsed().as_secs()).expect("seconds");
            return (accepted, burst + passed + 1, reply);
        }
    }
    panic!("no request was refused");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_beyond_the_rate_is_refused_and_a_later_one_is_not(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = slow(backend, "3").await;
    let (accepted, most, refused) = exhaust(&app, 3).await;
    assert!((3..=most).contains(&accepted), "{accepted} of {most}");
    limited(&refused, "requestsPerSecond", 1);
    // What watches the service and what describes it goes on, however often.
    for _ in 0..10 {
        for path in [
            "/health/live",
            "/health/ready",
            "/metrics",
            "/openapi.json",
            "/docs/errors",
            "/admin/tenants",
        ] {
            app.get(path).await.expect(200);
        }
    }
    until(200, || app.get("/agents")).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_set_and_taken_back_while_the_service_runs(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let limits = json!({"requestsPerSecond": 1, "requestBurst": 2});
    app.patch("/admin/tenants/default", &limits)
        .await
        .expect(200);
    let (accepted, most, refused) = exhaust(&app, 2).await;
    assert!((2..=most).contains(&accepted), "{accepted} of {most}");
    limited(&refused, "requestsPerSecond", 1);
    let none = json!({"requestsPerSecond": null});
    until(200, || app.patch("/admin/tenants/default", &none)).await;
    for _ in 0..20 {
        app.get("/agents").await.expect(200);
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_is_answered_before_its_body_is_there(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = slow(backend, "1").await;
    let answer = loop {
        exhaust(&app, 1).await;
        let head = "POST /sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                    content-length: 1000\r\n\r\n";
        let answer = super::bodies::answer_to(&app, head.as_bytes());
        // Without one it was let in, and its body is waited for: a second had passed.
        if !answer.is_empty() {
            break answer;
        }
    };
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_a_rate() {
    let app = slow(Backend::Postgres, "400").await;
    let (other, seen) = (
        "'00000000-0000-0000-0000-000000000001'",
        "'2100-01-01T00:00:00Z'",
    );
    let sql = format!("INSERT INTO replicas VALUES ({other}, 'x', {seen}, {seen})");
    app.database.execute("", &sql).await;
    // A second one sees both at its first look; the first one at its next.
    let second = app.spawn_second().await;
    let mut database = PgConnection::connect(&app.database.url)
        .await
        .expect("a connection");
    let counted = async {
        loop {
            let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM replicas")
                .fetch_one(&mut database)
                .await
                .expect("a count");
            if count == 3 {
                return;
            }
        }
    };
    tokio::time::timeout(STUCK, counted)
        .await
        .expect("both say that they are there");
    let (accepted, _, refused) = exhaust(&second, 133).await;
    assert!(
        (100..266).contains(&accepted),
        "a third of 400, about: {accepted}"
    );
    comes_again(&refused);
}
