//! S30 for turns: a reader may drop at every point of every kind of turn, and misses and doubles nothing.

use rstest::rstest;
use serde_json::json;

use super::answers::calling;
use super::{Stage, beside, body, cancel, kinds, path, running, tells, turn};
use crate::support::Backend;
use crate::support::messages::{result, user};
use crate::support::stream_model::{Piece, Script};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s30_a_reader_may_drop_at_every_point_of_turns(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = stage.session_of(4).await;
    // Answered, with calls, with an overflow, failed, broken off, stopped, closed.
    stage.script([
        Script::Text("one".to_owned()),
        calling(&["c1", "c2"]),
        Script::overflow(),
        Script::Text("two".to_owned()),
        Script::Status(400, Vec::new(), String::new()),
        Script::cut(&["half"]),
        Script::Hang,
    ]);
    turn(&stage, &id, &[user("1")]).await.expect(200);
    turn(&stage, &id, &[user("2")]).await.expect(200);
    turn(&stage, &id, &[result("c1", "x")]).await.expect(200);
    turn(&stage, &id, &[result("c2", "x")]).await.expect(200);
    turn(&stage, &id, &[user("3")])
        .await
        .problem(502, "MODEL_FAILED");
    let streamed = body(&[], r#","stream":true"#);
    stage
        .post_for_events(&path(&id), streamed)
        .await
        .rest()
        .await;
    let asked = beside(&stage, &id, &[user("4")]);
    stage.model.arrived(8).await;
    let at = running(&stage, &id).await;
    cancel(&stage, &id, &at).await.expect(200);
    asked.await.expect("a reply").problem(409, "TURN_CANCELLED");

    let ran = ["turn.started", "context.dispatched"];
    let answered = ["message.appended", "turn.completed"];
    let mut expected = vec!["session.created", "message.appended"];
    for _ in 0..2 {
        expected.push("message.appended");
        expected.extend(ran.iter().chain(&answered));
    }
    expected.extend([
        "message.appended",
        "turn.started",
        "turn.completed",
        "message.appended",
    ]);
    expected.extend(ran);
    expected.extend([
        "compaction.started",
        "context.defaultCompacted",
        "context.dispatched",
    ]);
    expected.extend(answered);
    expected.push("message.appended");
    expected.extend(ran);
    expected.push("turn.failed");
    expected.extend(ran.iter().chain(&answered));
    expected.push("message.appended");
    expected.extend(ran);
    expected.push("turn.failed");
    let whole = tells(&stage, &id, &expected).await;

    let codes: Vec<_> = whole
        .iter()
        .filter(|f| f.event == "turn.failed")
        .map(|f| f.data["code"].clone())
        .collect();
    assert_eq!(codes, ["MODEL_FAILED", "TURN_CANCELLED"]);
    let statuses: Vec<_> = whole
        .iter()
        .filter(|f| f.event == "turn.completed")
        .map(|f| f.data["status"].clone())
        .collect();
    assert_eq!(
        statuses,
        [
            "completed",
            "requires_tool_results",
            "requires_tool_results",
            "completed",
            "completed"
        ]
    );
    let mut open = Vec::new();
    for frame in whole
        .iter()
        .filter(|frame| frame.event.starts_with("turn."))
    {
        let of = frame.data["turnId"].as_str().expect("an id");
        match frame.event.as_str() {
            "turn.started" => open.push(of),
            _ => assert_eq!(open.pop(), Some(of), "each end behind its own beginning"),
        }
    }
    assert!(open.is_empty(), "each has one end");

    for point in 0..whole.len() {
        let last = point
            .checked_sub(1)
            .and_then(|before| whole[before].id.clone());
        let last = last.unwrap_or_else(|| "0".to_owned());
        let rest = stage
            .events(&id, Some(&last))
            .await
            .take(whole.len() - point)
            .await;
        assert_eq!(rest, whole[point..], "from {last} on");
    }
    let mut frames = Vec::new();
    while frames.len() < whole.len() {
        let last = frames
            .last()
            .and_then(|frame: &crate::support::sse::Frame| frame.id.clone());
        let last = last.unwrap_or_else(|| "0".to_owned());
        frames.extend(stage.events(&id, Some(&last)).await.take(1).await);
    }
    assert_eq!(frames, whole, "one at a time");
    let text = format!("{whole:?}");
    assert!(
        !text.contains("half") && !text.contains("two"),
        "no content in what is stored of a turn"
    );
}

/// Readers that come and go while a turn is streamed get every stored event once, whatever else they see.
#[tokio::test(flavor = "multi_thread")]
async fn readers_come_and_go_in_a_streamed_turn() {
    let stage = Stage::new(Backend::Postgres).await;
    let pieces = [
        Piece::text("a"),
        Piece::Gate,
        Piece::text("b"),
        Piece::Gate,
        Piece::text("c"),
    ];
    stage.script([Script::stream(pieces, "stop")]);
    let id = stage.create(&json!({})).await;
    let asked = tokio::spawn({
        let (http, at) = (stage.http().clone(), path(&id));
        async move {
            let text = body(&[user("go")], r#","stream":true"#);
            http.post_for_events(&at, text).await.rest().await
        }
    });
    stage.model.at_gate(1).await;
    let first = stage.events(&id, Some("0")).await.take(4).await;
    assert_eq!(
        kinds(&first),
        [
            "session.created",
            "message.appended",
            "turn.started",
            "context.dispatched"
        ]
    );
    let mut reader = stage.events(&id, first[3].id.as_deref()).await;
    stage.model.open_gate();
    let piece = reader.take(1).await;
    assert_eq!(
        (piece[0].event.as_str(), &piece[0].id),
        ("message.delta", &None)
    );
    drop(reader);
    stage.model.at_gate(2).await;
    stage.model.open_gate();
    assert_eq!(
        asked.await.expect("frames").last().expect("an end").event,
        "turn.completed"
    );
    let rest = stage
        .events(&id, first[3].id.as_deref())
        .await
        .take(2)
        .await;
    assert_eq!(kinds(&rest), ["message.appended", "turn.completed"]);
}

/// A replica that does not run the turn tells of it too, without the pieces.
#[tokio::test(flavor = "multi_thread")]
async fn other_replicas_tell_of_turns() {
    let stage = Stage::new(Backend::Postgres).await;
    let other = stage.spawn_second().await;
    let id = stage.create(&json!({})).await;
    let mut reader = other.events(&id, Some("0")).await;
    let text = body(&[user("go")], r#","stream":true"#);
    let frames = stage.post_for_events(&path(&id), text).await.rest().await;
    assert_eq!(frames.last().expect("an end").event, "turn.completed");
    let told = reader.take(6).await;
    assert_eq!(
        kinds(&told),
        [
            "session.created",
            "message.appended",
            "turn.started",
            "context.dispatched",
            "message.appended",
            "turn.completed"
        ],
    );
}
