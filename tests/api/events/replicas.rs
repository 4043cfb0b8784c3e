//! Several processes on one database: what one does is seen on the others, by notification or by looking.

use rstest::rstest;
use serde_json::json;

use super::{append_one, kinds, numbers};
use crate::support::Backend;
use crate::support::backend::TestDatabase;
use crate::support::process::Process;

/// Looking is as good as off: within the patience of a reader nobody looks.
const DEAF: (&str, &str) = ("PRECIS_EVENTS__POLL_MS", "60000");

fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// What is done on the one is read on the other, in both kinds of stream.
async fn is_seen(one: &Process, other: &Process) {
    let id = one.create(&json!({})).await;
    let mut session = other.events(&id, Some("0")).await;
    let mut all = other.read_events("/events", None).await;
    assert_eq!(numbers(&session.take(1).await), [1]);
    for number in 2..5 {
        append_one(one, &id).await;
        assert_eq!(numbers(&session.take(1).await), [number]);
        assert_eq!(numbers(&all.take(1).await), [number]);
    }
    let new = one.create(&json!({})).await;
    let frame = all.next().await.expect("an event");
    assert_eq!(kinds(std::slice::from_ref(&frame)), ["session.created"]);
    assert_eq!(frame.data["sessionId"], new.as_str());

    one.delete(&format!("/sessions/{id}")).await.expect(204);
    assert_eq!(session.next().await, None, "the session is gone here too");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_notify_each_other() {
    let database = TestDatabase::create(Backend::Postgres).await;
    let settings = variables(&[DEAF]);
    let one = Process::start(&database, &settings);
    let other = Process::start(&database, &settings);
    is_seen(&one, &other).await;
    is_seen(&other, &one).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn without_notifications_replicas_look(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let database = TestDatabase::create(backend).await;
    let settings = variables(&[
        ("PRECIS_DATABASE_LISTEN_URL", ""),
        ("PRECIS_EVENTS__POLL_MS", "100"),
    ]);
    let one = Process::start(&database, &settings);
    let other = Process::start(&database, &settings);
    is_seen(&one, &other).await;
    is_seen(&other, &one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_for_listening_costs_time_never_an_event() {
    let database = TestDatabase::create(Backend::Postgres).await;
    let settings = variables(&[DEAF]);
    let one = Process::start(&database, &settings);
    let other = Process::start(&database, &settings);
    let id = one.create(&json!({})).await;
    let mut session = other.events(&id, Some("0")).await;
    let mut all = other.read_events("/events", None).await;
    assert_eq!(numbers(&session.take(1).await), [1]);
    for number in 2..5 {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND query LIKE 'LISTEN%'";
        database.execute("", cut).await;
        append_one(&one, &id).await;
        assert_eq!(numbers(&session.take(1).await), [number]);
        assert_eq!(numbers(&all.take(1).await), [number]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_notification_holds_is_found_by_looking() {
    const SESSIONS: usize = 300;
    let database = TestDatabase::create(Backend::Postgres).await;
    let settings = variables(&[DEAF]);
    let one = Process::start(&database, &settings);
    let other = Process::start(&database, &settings);
    let mut all = other.read_events("/events", None).await;
    let bodies = (0..SESSIONS).map(|_| json!({}));
    let creates = bodies.map(async |body| one.create(&body).await);
    let mut made = futures_util::future::join_all(creates).await;
    let mut seen: Vec<_> = all
        .take(SESSIONS)
        .await
        .iter()
        .map(|frame| frame.data["sessionId"].as_str().expect("an id").to_owned())
        .collect();
    made.sort();
    seen.sort();
    assert_eq!(seen, made, "each once");
}
