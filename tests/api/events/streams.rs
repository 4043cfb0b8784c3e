//! The streams themselves: silence, slow readers, all sessions at once, and every way to end.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use super::{append_one, numbers, patch};
use crate::support::backend::TestDatabase;
use crate::support::process::Process;
use crate::support::sse::Sent;
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn silence_is_broken_by_comments(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[("PRECIS_EVENTS__KEEP_ALIVE_SECONDS", "1")]).await;
    let id = app.create(&json!({})).await;
    for path in [format!("/sessions/{id}/events"), "/events".to_owned()] {
        let mut reader = app.read_events(&path, None).await;
        for _ in 0..2 {
            let comment = Sent::Comment("keep-alive".to_owned());
            assert_eq!(reader.sent().await, Some(comment), "{path}");
        }
        patch(&app, &id).await;
        let next = reader.next().await.expect("an event");
        assert_eq!(next.event, "session.updated", "{path}");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn without_an_id_a_stream_begins_with_what_happens_next(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    append_one(&app, &id).await;
    let mut reader = app.events(&id, None).await;
    append_one(&app, &id).await;
    assert_eq!(numbers(&reader.take(1).await), [3]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_reading_gets_everything_later(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    const EVENTS: usize = 5_000;
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let mut lazy = app.events(&id, Some("0")).await;
    let mut eager = app.events(&id, None).await;
    let writes = stream::iter(0..EVENTS)
        .map(|_| patch(&app, &id))
        .buffer_unordered(32)
        .count();
    let reads = async {
        for number in 2.. {
            let frame = eager.next().await.expect("an event");
            assert_eq!(frame.number(), number, "the other one slows nobody");
            if frame.number() > i64::try_from(EVENTS).expect("a few") {
                break;
            }
        }
    };
    let (count, ()) = futures_util::future::join(writes, reads).await;
    assert_eq!(count, EVENTS);
    let expected: Vec<_> = (1..=i64::try_from(EVENTS + 1).expect("a few")).collect();
    assert_eq!(numbers(&lazy.take(EVENTS + 1).await), expected);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn all_sessions_are_followed_live_and_a_return_is_a_resync(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let before = app.create(&json!({})).await;
    let mut reader = app.read_events("/events", None).await;
    let id = app.create(&json!({})).await;
    append_one(&app, &before).await;
    append_one(&app, &id).await;
    let frames = reader.take(3).await;
    let told: Vec<_> = frames
        .iter()
        .map(|frame| {
            (
                frame.data["sessionId"].as_str().expect("an id"),
                frame.number(),
            )
        })
        .collect();
    let (own, other): (Vec<_>, Vec<_>) = told.into_iter().partition(|(session, _)| *session == id);
    assert_eq!(own, [(id.as_str(), 1), (id.as_str(), 2)]);
    assert_eq!(other, [(before.as_str(), 2)]);

    let last = frames[2].id.as_deref();
    let mut again = app.read_events("/events", last).await;
    let frame = again.next().await.expect("a resync");
    assert_eq!(
        (frame.event.as_str(), &frame.data["reason"]),
        ("resync", &json!("reconnected"))
    );
    append_one(&app, &id).await;
    for reader in [&mut reader, &mut again] {
        let frame = reader.next().await.expect("an event");
        assert_eq!(
            (frame.event.as_str(), frame.number()),
            ("message.appended", 3)
        );
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_session_is_no_stream(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let unknown = "/sessions/sess_019acf0b2a7c7d1e9f00aabbccddeeff/events";
    app.get(unknown).await.problem(404, "SESSION_NOT_FOUND");
    app.get_with(unknown, &[("last-event-id", "x")])
        .await
        .problem(404, "SESSION_NOT_FOUND");
    let id = app.create(&json!({})).await;
    app.get(&format!("/sessions/{id}/events?from=1"))
        .await
        .problem(400, "INVALID_PARAMETER");
    app.get("/events?after=1")
        .await
        .problem(400, "INVALID_PARAMETER");
    // The head of a stream alone, and the connection is free again.
    for path in [format!("/sessions/{id}/events"), "/events".to_owned()] {
        let reply = app.send(Method::HEAD, &path, &[], None).await.expect(200);
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_session_ends_its_streams(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let mut reader = app.events(&id, Some("0")).await;
    assert_eq!(numbers(&reader.take(1).await), [1]);
    app.delete(&format!("/sessions/{id}")).await.expect(204);
    assert_eq!(reader.next().await, None);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_streams_at_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let database = TestDatabase::create(backend).await;
    let mut process = Process::start(&database, &[]);
    let id = process.create(&json!({})).await;
    let mut one = process.events(&id, None).await;
    let mut all = process.read_events("/events", None).await;
    process.terminate();
    assert_eq!(one.next().await, None);
    assert_eq!(all.next().await, None);
    // Not only when the patience of the shutdown is at its end.
    assert!(process.ended_well(Duration::from_secs(15)));
}
