//! A graceful stop: what is running finishes, in this process and in a child that gets SIGTERM.

use std::time::{Duration, Instant};

use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use crate::support::backend::TestDatabase;
use crate::support::messages::turns;
use crate::support::process::Process;
use crate::support::{Backend, Http, ScriptedModel, TestApp};

const SOON: Duration = Duration::from_secs(10);

/// Waits until the service says that it takes no more work, or takes no connection.
pub async fn refuses_new_work(address: std::net::SocketAddr) {
    let deadline = Instant::now() + SOON;
    loop {
        // A client of its own, so that no open connection is used again.
        let fresh = Http::new(address);
        match fresh
            .try_send(Method::GET, "/health/ready", &[], None)
            .await
        {
            Err(_) => return,
            Ok(reply) if reply.status == 503 => return,
            Ok(_) => assert!(
                Instant::now() < deadline,
                "expected a stopping service to be no longer ready"
            ),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_requests_in_flight_finish(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let mut app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;

    model.hold();
    let http = app.http().clone();
    let session = id.clone();
    let running = tokio::spawn(async move { http.compact(&session, &json!({})).await });
    model.arrived(1).await;
    app.stop();
    refuses_new_work(app.address).await;
    model.release();

    let reply = running.await.expect("the request is answered").expect(200);
    assert_eq!(
        reply.json()["newSize"],
        6,
        "the compaction in flight was finished"
    );
    tokio::time::timeout(SOON, app.ended())
        .await
        .expect("expected the service to end when its last request has");

    let again = app.spawn_second().await;
    assert_eq!(
        again.session(&id).await["compactSize"],
        6,
        "the next start finds what was finished"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_requests_in_flight_finish(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let database = TestDatabase::create(backend).await;
    let mut process = Process::start(&database, &model.variables());
    let id = process.create_with(&turns(5, 100)).await;

    model.hold();
    let http = (*process).clone();
    let session = id.clone();
    let running = tokio::spawn(async move { http.compact(&session, &json!({})).await });
    model.arrived(1).await;
    process.terminate();
    refuses_new_work(process.address).await;
    model.release();

    let reply = running.await.expect("the request is answered").expect(200);
    assert_eq!(
        reply.json()["newSize"],
        6,
        "the compaction in flight was finished"
    );
    assert!(
        process.ended_well(SOON),
        "expected exit status 0 after SIGTERM"
    );
}
