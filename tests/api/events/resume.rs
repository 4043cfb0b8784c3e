//! S30: a reader that drops and comes again misses nothing and gets nothing twice, or is told so.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use super::{append_one, kinds, numbers, patch, send};
use crate::support::messages::{turns, user};
use crate::support::process::Process;
use crate::support::sse::{Frame, Reader};
use crate::support::{Backend, Http, TestApp, backend::TestDatabase};

/// That the next is one `resync` with this reason, after the event of this number, and then live.
async fn resyncs(http: &Http, id: &str, mut reader: Reader, reason: &str, newest: i64) {
    let frame = reader.next().await.expect("a resync");
    assert_eq!(frame.event, "resync");
    assert_eq!(frame.data["reason"], reason, "{frame:?}");
    assert_eq!(frame.data["sessionId"], id);
    assert_eq!(frame.data["lastEventId"].as_str(), frame.id.as_deref());
    assert_eq!(frame.number(), newest);
    patch(http, id).await;
    let live = reader.next().await.expect("what happens next");
    assert_eq!(
        (live.event.as_str(), live.number()),
        ("session.updated", newest + 1)
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s30_events_are_not_lost_when_the_stream_reconnects(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    for _ in 0..4 {
        append_one(&app, &id).await;
    }
    let first = app.first_events(&id, 5).await;
    assert_eq!(numbers(&first), [1, 2, 3, 4, 5]);
    for _ in 0..4 {
        append_one(&app, &id).await;
    }
    // By the whole id, by the number alone, in the query.
    let last = first[4].id.clone();
    let path = format!("/sessions/{id}/events?after=5");
    let mut readers = [
        app.events(&id, last.as_deref()).await,
        app.events(&id, Some("5")).await,
        app.read_events(&path, None).await,
        // The header is newer than the address that the client was given once.
        app.read_events(&format!("/sessions/{id}/events?after=1"), Some("5"))
            .await,
    ];
    for reader in &mut readers {
        assert_eq!(numbers(&reader.take(4).await), [6, 7, 8, 9]);
    }
    append_one(&app, &id).await;
    for reader in &mut readers {
        assert_eq!(numbers(&reader.take(1).await), [10], "then live");
    }

    let other = app.create(&json!({})).await;
    let foreign = app.first_events(&other, 1).await[0].id.clone();
    let mut newest = 10;
    for (last, reason) in [
        ("garbage", "malformed"),
        ("-1", "malformed"),
        ("evt_x_5", "malformed"),
        ("11", "unknown"),
        ("99999999999999999999999", "unknown"),
        (foreign.as_deref().expect("an id"), "other_session"),
    ] {
        // The id that is 11 here is unknown only before there are more.
        let last = if last == "11" {
            (newest + 1).to_string()
        } else {
            last.to_owned()
        };
        let reader = app.events(&id, Some(&last)).await;
        resyncs(&app, &id, reader, reason, newest).await;
        newest += 1;
    }
    let reader = app
        .read_events(&format!("/sessions/{id}/events?after=nothing"), None)
        .await;
    resyncs(&app, &id, reader, "malformed", newest).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_is_missed_with_a_word(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    for _ in 0..4 {
        append_one(&app, &id).await;
    }
    let aged = |below: i64| {
        (
            format!("UPDATE events SET created_at = 0 WHERE id < {below}"),
            format!("UPDATE events SET created_at = to_timestamp(0) WHERE id < {below}"),
        )
    };
    // Each start deletes what is too old; until it has, the whole log is replayed.
    let (sqlite, postgres) = aged(4);
    app.database.execute(&sqlite, &postgres).await;
    let again = app.spawn_second().await;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let oldest = again.events(&id, Some("0")).await.next().await;
        let oldest = oldest.expect("an event").number();
        if oldest == 4 {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "expected 1 to 3 to be deleted"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let reader = again.events(&id, Some("2")).await;
    resyncs(&again, &id, reader, "too_old", 5).await;
    let frames = again.events(&id, Some("3")).await.take(3).await;
    assert_eq!(
        numbers(&frames),
        [4, 5, 6],
        "3 is gone, but nothing behind it"
    );

    // None is kept any more, but the count goes on.
    let forget = "DELETE FROM events";
    app.database.execute(forget, forget).await;
    let reader = again.events(&id, Some("5")).await;
    resyncs(&again, &id, reader, "too_old", 6).await;
    for (number, start) in [(8, "7"), (9, "0")] {
        app.database.execute(forget, forget).await;
        let mut reader = again.events(&id, Some(start)).await;
        patch(&again, &id).await;
        let frame = reader.next().await.expect("what happens next");
        assert_eq!(frame.event, "session.updated", "nothing was missed");
        assert_eq!(frame.number(), number);
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn numbers_go_on_after_a_restart(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let database = TestDatabase::create(backend).await;
    let mut process = Process::start(&database, &[]);
    let id = process.create_with(&turns(1, 10)).await;
    let first = process.first_events(&id, 2).await;
    process.kill();

    let process = Process::start(&database, &[]);
    append_one(&process, &id).await;
    let last = first[1].id.as_deref();
    let frames = process.events(&id, last).await.take(1).await;
    assert_eq!(numbers(&frames), [3]);
    assert_eq!(process.first_events(&id, 2).await, first, "the same events");
}

/// One of the writes that there are, by chance.
async fn write(http: &Http, id: &str, kind: u8) {
    match kind {
        0..=4 => append_one(http, id).await,
        5 | 6 => patch(http, id).await,
        7 => {
            let last = http.session(id).await["lastSeq"].as_u64().expect("a seq");
            http.rewind(id, last.saturating_sub(1)).await.expect(200);
        }
        8 => {
            let items = http.history(id).await;
            if let Some(item) = items.first() {
                http.replace(id, &item.id, &user("other")).await.expect(200);
            }
        }
        _ => {
            let path = format!("/sessions/{id}/compact");
            let reply = http.post(&path, &json!({"compactCount": 90})).await;
            assert!([200, 409].contains(&reply.status), "{reply}");
        }
    }
}

/// Reads a few events, leaves, comes again with the last id, until the session is closed.
async fn dropping_reader(http: &Http, id: &str, portions: &[usize]) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    for portion in portions.iter().cycle() {
        let last = frames.last().and_then(|frame| frame.id.clone());
        let last = last.unwrap_or_else(|| "0".to_owned());
        let mut reader = http.events(id, Some(&last)).await;
        for _ in 0..*portion {
            let frame = reader.next().await.expect("the stream goes on");
            let ended = frame.event == "session.closed";
            frames.push(frame);
            if ended {
                return frames;
            }
        }
    }
    frames
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_may_drop_at_every_point_of_any_activity(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let mut runner = TestRunner::new(Config::default());
    let inputs = (
        prop::collection::vec(0_u8..10, 40),
        prop::collection::vec(prop::collection::vec(1_usize..5, 8), 3),
    );
    let (writes, portions) = inputs.new_tree(&mut runner).expect("inputs").current();
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let writer = async {
        for kind in &writes {
            write(&app, &id, *kind).await;
        }
        let close = format!("/sessions/{id}/close");
        send(&app, Method::POST, &close, &json!({}), 200).await;
    };
    let readers = portions
        .iter()
        .map(|portions| dropping_reader(&app, &id, portions));
    let (seen, ()) =
        futures_util::future::join(futures_util::future::join_all(readers), writer).await;

    let what = format!("{writes:?} read in {portions:?}");
    let all = &seen[0];
    let count = i64::try_from(all.len()).expect("a few");
    assert_eq!(numbers(all), (1..=count).collect::<Vec<_>>(), "{what}");
    for frames in &seen {
        assert_eq!(frames, all, "{what}");
    }
    // And again, from every point.
    for at in 0..all.len() {
        let last = match at {
            0 => "0".to_owned(),
            at => all[at - 1].id.clone().expect("an id"),
        };
        let rest = app
            .events(&id, Some(&last))
            .await
            .take(all.len() - at)
            .await;
        assert_eq!(kinds(&rest), kinds(&all[at..]), "behind {last} of {what}");
        assert_eq!(&rest, &all[at..], "behind {last} of {what}");
    }
}
