//! Turns that are stopped: on request, by a server that stops, by clients that go away.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use super::answers::calling;
use super::{
    Stage, Turn, beside, body, cancel, gated_summary, is_usable, kinds, load, path, running,
    stored, stream, tells, turn, values,
};
use crate::support::Backend;
use crate::support::messages::{result, user};
use crate::support::model::COMPACT;
use crate::support::stream_model::{Piece, Script};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_turn_is_over_at_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    stage.script([Script::Hang]);
    let id = stage.create(&json!({})).await;
    let asked = beside(&stage, &id, &[user("a question")]);
    stage.model.arrived(1).await;
    let at = running(&stage, &id).await;
    let stopped = Turn::of(&cancel(&stage, &id, &at).await);
    assert_eq!(
        (stopped.status.as_str(), stopped.error["code"].as_str()),
        ("failed", Some("TURN_CANCELLED"))
    );
    asked.await.expect("a reply").problem(409, "TURN_CANCELLED");
    stage.model.abandoned(1).await;
    // Again, and it is the same.
    let again = Turn::of(&cancel(&stage, &id, &at).await);
    assert_eq!(again.error, stopped.error);
    assert_eq!(
        stored(&stage, &id).await,
        [user("a question")],
        "nothing of an answer"
    );
    is_usable(&stage, &stage, &id).await;
    tells(
        &stage,
        &id,
        &[
            "session.created",
            "message.appended",
            "turn.started",
            "context.dispatched",
            "turn.failed",
            "message.appended",
            "turn.started",
            "context.dispatched",
            "message.appended",
            "turn.completed",
        ],
    )
    .await;
    for wrong in ["turn_019acf0b2a7c7d1e9f00aabbccddeeff", "x"] {
        cancel(&stage, &id, wrong)
            .await
            .problem(404, "TURN_NOT_FOUND");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_over_stays_as_it_is() {
    let stage = Stage::new(Backend::Postgres).await;
    stage.script([calling(&["c1"]), Script::Text("done".to_owned())]);
    let id = stage.create(&json!({})).await;
    let first = Turn::of(&turn(&stage, &id, &[user("go")]).await);
    let waits = Turn::of(&turn(&stage, &id, &[]).await);
    let last = Turn::of(&turn(&stage, &id, &[result("c1", "x")]).await);
    stage.model.hold();
    let asked = beside(&stage, &id, &[user("next")]);
    stage.model.arrived(3).await;
    for over in [&first, &waits, &last] {
        let stopped = Turn::of(&cancel(&stage, &id, &over.id).await);
        assert_eq!(
            (&stopped.status, stopped.error.is_null()),
            (&over.status, true)
        );
        assert_eq!(stopped.texts(), over.texts());
    }
    stage.model.release();
    assert_eq!(
        Turn::of(&asked.await.expect("a reply")).status,
        "completed",
        "another is not stopped"
    );
}

/// Another replica than the one that runs it may stop a turn: what it answers afterwards is not stored.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_stopped_from_any_replica(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let second = stage.spawn_second().await;
    let id = stage.create(&json!({})).await;
    stage.model.hold();
    let asked = beside(&stage, &id, &[user("a question")]);
    stage.model.arrived(1).await;
    let at = running(&second, &id).await;
    Turn::of(&cancel(&second, &id, &at).await);
    second.append(&id, &[user("instead")]).await;
    stage.model.release();
    asked.await.expect("a reply").problem(409, "TURN_CANCELLED");
    assert_eq!(
        stored(&stage, &id).await,
        [user("a question"), user("instead")]
    );
    is_usable(&stage, &stage, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_turn_is_stopped_in_the_middle() {
    let stage = Stage::new(Backend::Sqlite).await;
    stage.script([Script::stream(
        [Piece::text("half an "), Piece::Gate, Piece::text("answer")],
        "stop",
    )]);
    let id = stage.create(&json!({})).await;
    let mut reader = stream(&stage, &id, &[user("a question")]).await;
    let first = reader.take(2).await;
    assert_eq!(kinds(&first), ["turn.started", "message.delta"]);
    let at = first[0].data["id"].as_str().expect("an id");
    Turn::of(&cancel(&stage, &id, at).await);
    let rest = reader.rest().await;
    assert_eq!(kinds(&rest), ["turn.failed"]);
    assert_eq!(rest[0].data["code"], "TURN_CANCELLED");
    stage.model.abandoned(1).await;
    assert_eq!(stored(&stage, &id).await, [user("a question")]);
    is_usable(&stage, &stage, &id).await;
}

/// A compaction that a stopped turn has begun leaves the session free as well.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_stopped_while_it_compacts_leaves_no_lock(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    stage.script([Script::overflow(), Script::Text("fine".to_owned())]);
    stage.model.script(
        COMPACT,
        [gated_summary(), Script::Text(super::SUMMARY.to_owned())],
    );
    let id = stage.session_of(4).await;
    let asked = beside(&stage, &id, &[user("a question")]);
    stage.model.at_gate(1).await;
    let at = running(&stage, &id).await;
    Turn::of(&cancel(&stage, &id, &at).await);
    asked.await.expect("a reply").problem(409, "TURN_CANCELLED");
    stage.model.open_gate();
    // Well before a lease has run out, which takes half a minute.
    let mut tries = 0;
    loop {
        let reply = stage.compact(&id, &json!({"compactCount": 99})).await;
        if reply.status == 200 {
            break;
        }
        reply.problem(409, "COMPACTION_IN_PROGRESS");
        tries += 1;
        assert!(tries < 100, "the lock of the compaction stays");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    is_usable(&stage, &stage, &id).await;
    let events = stage.events(&id, Some("0")).await.take(12).await;
    let started = events
        .iter()
        .filter(|frame| frame.event == "compaction.started")
        .count();
    let ended = events.iter().filter(|frame| {
        [
            "context.defaultCompacted",
            "compaction.failed",
            "compaction.cancelled",
        ]
        .contains(&frame.event.as_str())
    });
    assert!(
        started >= 1 && ended.count() == started,
        "each has its end: {:?}",
        kinds(&events)
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_stops_nothing(#[values(false, true)] streamed: bool) {
    let stage = Stage::new(Backend::Postgres).await;
    let pieces = [Piece::text("a whole "), Piece::Gate, Piece::text("answer")];
    stage.script([Script::stream(pieces, "stop")]);
    let id = stage.create(&json!({})).await;
    if streamed {
        let mut reader = stream(&stage, &id, &[user("a question")]).await;
        assert_eq!(
            kinds(&reader.take(2).await),
            ["turn.started", "message.delta"]
        );
        drop(reader);
    } else {
        let (http, path) = (stage.http().clone(), path(&id));
        let asking =
            tokio::spawn(
                async move { http.post_raw(&path, body(&[user("a question")], "")).await },
            );
        stage.model.at_gate(1).await;
        asking.abort();
        drop(asking.await);
    }
    stage.model.at_gate(1).await;
    let at = running(&stage, &id).await;
    let mut events = stage.events(&id, Some("4")).await;
    stage.model.open_gate();
    let mut told = Vec::new();
    while told.len() < 2 {
        told.extend(
            events
                .take(1)
                .await
                .into_iter()
                .filter(|frame| frame.event != "message.delta"),
        );
    }
    assert_eq!(kinds(&told), ["message.appended", "turn.completed"]);
    assert_eq!(told[1].data["turnId"], at);
    let made = load(&stage, &id, &at).await;
    assert_eq!(made.status, "completed");
    assert!(made.texts()[1].contains("a whole answer"));
    assert_eq!(stored(&stage, &id).await.len(), 2);
}

/// A server that stops lets its turns end, streamed or not, and begins no more.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_turns_end(#[values(false, true)] streamed: bool) {
    let mut stage = Stage::new(Backend::Sqlite).await;
    let pieces = [Piece::text("a whole "), Piece::Gate, Piece::text("answer")];
    stage.script([Script::stream(pieces, "stop")]);
    let id = stage.create(&json!({})).await;
    let ended = if streamed {
        let mut reader = stream(&stage, &id, &[user("a question")]).await;
        assert_eq!(
            kinds(&reader.take(2).await),
            ["turn.started", "message.delta"]
        );
        stage.stop();
        stage.model.open_gate();
        let rest = reader.rest().await;
        assert_eq!(kinds(&rest), ["message.delta", "turn.completed"]);
        Turn::read(&rest[1].data)
    } else {
        let asked = beside(&stage, &id, &[user("a question")]);
        stage.model.at_gate(1).await;
        stage.stop();
        stage.model.open_gate();
        Turn::of(&asked.await.expect("a reply"))
    };
    assert_eq!(ended.status, "completed");
    stage.app.ended().await;
    let again = stage.app.spawn_second().await;
    assert_eq!(
        values(&load(&again, &id, &ended.id).await.texts()),
        values(&ended.texts())
    );
}
