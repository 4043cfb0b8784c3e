//! Turns under a key: at work, failed, streamed, cut off; a question is stored once whatever becomes of them.

use std::time::{Duration, Instant};

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::work::{beside, is_at_work};
use super::{Stage, is_repeated, keyed, messages, stored, variables};
use crate::support::backend::TestDatabase;
use crate::support::messages::{assistant, user};
use crate::support::model::MAIN;
use crate::support::process::Process;
use crate::support::stream_model::{Piece, Script, StreamModel};
use crate::support::{Backend, Http};

const KEY: &str = "turn-once";

/// A stream as it came: its `Idempotency-Replayed`, and its text.
async fn streamed(http: &Http, path: &str, key: &str, body: &str) -> (Option<String>, String) {
    let request = http.streaming().post(http.url(path));
    let request = request
        .header("content-type", "application/json")
        .header("idempotency-key", key);
    let response = request.body(body.to_owned()).send().await;
    let response = response.expect("the stream is answered");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let replayed = response.headers().get("idempotency-replayed");
    let replayed = replayed.map(|value| value.to_str().expect("a text").to_owned());
    (replayed, response.text().await.expect("the stream ends"))
}

/// The data of the events of this type.
fn data(stream: &str, kind: &str) -> Vec<Value> {
    let frames = stream.split("\n\n").filter_map(|frame| {
        let data = frame.strip_prefix(&format!("event: {kind}\ndata: "))?;
        Some(serde_json::from_str(data).expect("data is JSON"))
    });
    frames.collect()
}

#[rstest]
#[case::sqlite(Backend::Sqlite, false)]
#[case::postgres(Backend::Postgres, false)]
#[case::another_replica(Backend::Postgres, true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_at_work_is_told_of_and_then_repeated(
    #[case] backend: Backend,
    #[case] another: bool,
) {
    let stage = Stage::new(backend).await;
    let second = if another {
        Some(stage.app.spawn_second().await)
    } else {
        None
    };
    let http = second.as_ref().map_or(stage.app.http(), |app| app.http());
    let id = stage.app.create(&json!({})).await;
    let path = format!("/sessions/{id}/turns");
    let body = messages(&[user("What grows?")]);
    stage.model.hold();
    let first = beside(&stage.app, &path, KEY, &body);
    stage.model.arrived(1).await;
    is_at_work(&keyed(http, &path, KEY, &body).await);
    keyed(http, &path, "another-key", &body)
        .await
        .problem(409, "TURN_IN_PROGRESS");
    stage.model.release();
    let first = first.await.expect("the client's task ends").expect(200);
    is_repeated(&keyed(http, &path, KEY, &body).await, &first);
    // Its messages are summarised later, but the answer is what it was.
    stage
        .app
        .append(&id, &crate::support::messages::turns(6, 400))
        .await;
    stage
        .app
        .compact(&id, &json!({"compactCount": 99, "keepRecentTurns": 0}))
        .await
        .expect(200);
    is_repeated(&keyed(http, &path, KEY, &body).await, &first);
    let asked = stage.model.models();
    assert_eq!(asked.iter().filter(|model| *model == MAIN).count(), 1);
    assert_eq!(stored(&stage.app, &id).await.len(), 14);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_turn_is_tried_again_with_its_question_stored_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(false, true)] stream: bool,
) {
    let stage = Stage::new(backend).await;
    let id = stage.app.create(&json!({})).await;
    let path = format!("/sessions/{id}/turns");
    let questions = [user("What grows?"), user("And in shade?")];
    let mut body = messages(&questions);
    if stream {
        body.truncate(body.len() - 1);
        body.push_str(",\"stream\":true}");
    }
    stage.model.script(MAIN, [Script::unavailable()]);
    for _ in 0..3 {
        if stream {
            let (replayed, text) = streamed(&stage.app, &path, KEY, &body).await;
            assert_eq!(replayed, None);
            assert_eq!(data(&text, "turn.failed").len(), 1, "{text}");
        } else {
            keyed(&stage.app, &path, KEY, &body)
                .await
                .problem(502, "MODEL_FAILED");
        }
        assert_eq!(stored(&stage.app, &id).await, questions);
    }
    let script = [Script::Text("Ferns.".to_owned())];
    stage.model.script(MAIN, script);
    let turn = if stream {
        let (replayed, text) = streamed(&stage.app, &path, KEY, &body).await;
        assert_eq!(replayed, None);
        data(&text, "turn.completed").remove(0)
    } else {
        let first = keyed(&stage.app, &path, KEY, &body).await.expect(200);
        is_repeated(&keyed(&stage.app, &path, KEY, &body).await, &first);
        first.json()
    };
    assert_eq!(turn["messages"].as_array().map(Vec::len), Some(3), "{turn}");
    let all = stored(&stage.app, &id).await;
    assert_eq!(all[..2], questions);
    assert_eq!(all.len(), 3, "{all:?}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn another_turn_in_the_way_loses_nothing_of_a_failed_one(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = stage.app.create(&json!({})).await;
    let path = format!("/sessions/{id}/turns");
    let body = messages(&[user("What grows?")]);
    stage.model.script(MAIN, [Script::unavailable()]);
    keyed(&stage.app, &path, KEY, &body)
        .await
        .problem(502, "MODEL_FAILED");
    let script = [Script::Text("Ferns.".to_owned())];
    stage.model.script(MAIN, script);
    let calls = stage.model.calls().len();
    stage.model.hold();
    let other = beside(&stage.app, &path, "another-key", r#"{"messages":[]}"#);
    stage.model.arrived(calls + 1).await;
    keyed(&stage.app, &path, KEY, &body)
        .await
        .problem(409, "TURN_IN_PROGRESS");
    stage.model.release();
    other.await.expect("the client's task ends").expect(200);
    // It is answered by now, and is not asked a second time.
    keyed(&stage.app, &path, KEY, &body)
        .await
        .problem(422, "VALIDATION_FAILED");
    assert_eq!(
        stored(&stage.app, &id).await,
        [user("What grows?"), assistant("Ferns.")]
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_turn_is_repeated_as_one_that_is_over(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = stage.app.create(&json!({})).await;
    let path = format!("/sessions/{id}/turns");
    stage
        .model
        .script(MAIN, [Script::texts(&["Ferns", " and ivy."])]);
    let question = user("What grows?");
    let body = format!("{{\"messages\":[{question}],\"stream\":true}}");
    let (replayed, first) = streamed(&stage.app, &path, KEY, &body).await;
    assert_eq!(replayed, None);
    assert!(!data(&first, "message.delta").is_empty());
    let completed = data(&first, "turn.completed");
    for _ in 0..2 {
        let (replayed, again) = streamed(&stage.app, &path, KEY, &body).await;
        assert_eq!(replayed.as_deref(), Some("true"));
        assert_eq!(data(&again, "turn.started"), completed, "{again}");
        assert_eq!(data(&again, "turn.completed"), completed, "{again}");
        assert_eq!(again.matches("event: ").count(), 2, "{again}");
        let frame = |text: &str| text.rsplit("\n\n").nth(1).map(str::to_owned);
        assert_eq!(frame(&again), frame(&first), "byte for byte");
    }
    let (_, one) = streamed(&stage.app, &path, KEY, &body).await;
    let (_, two) = streamed(&stage.app, &path, KEY, &body).await;
    assert_eq!(one, two);
    assert_eq!(stage.model.calls().len(), 1);
    assert_eq!(stored(&stage.app, &id).await.len(), 2);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_waits_for_results_is_repeated(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = stage.app.create(&json!({})).await;
    let path = format!("/sessions/{id}/turns");
    let calls = crate::support::messages::calls(&["c1", "c2"], 5);
    stage.app.append(&id, &[user("Look."), calls]).await;
    // One of two results: the model is not asked, and the turn is over at once.
    let body = messages(&[crate::support::messages::result("c1", "found")]);
    let first = keyed(&stage.app, &path, KEY, &body).await.expect(200);
    assert_eq!(first.json()["status"], "requires_tool_results");
    is_repeated(&keyed(&stage.app, &path, KEY, &body).await, &first);
    assert_eq!(stored(&stage.app, &id).await.len(), 3);
    assert_eq!(stage.model.calls().len(), 0);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_turn_is_told_of_as_it_was(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = stage.app.create(&json!({})).await;
    let path = format!("/sessions/{id}/turns");
    stage.model.hold();
    let body = messages(&[user("What grows?")]);
    let asked = beside(&stage.app, &path, KEY, &body);
    stage.model.arrived(1).await;
    let turns = stage.app.get(&path).await.expect(200).json();
    let turn = turns["data"][0]["id"].as_str().expect("an id").to_owned();
    let cancel = format!("{path}/{turn}/cancel");
    let first = keyed(&stage.app, &cancel, "stop", "").await.expect(200);
    assert_eq!(first.json()["error"]["code"], "TURN_CANCELLED");
    asked
        .await
        .expect("the client's task ends")
        .problem(409, "TURN_CANCELLED");
    stage.model.release();
    is_repeated(&keyed(&stage.app, &cancel, "stop", "").await, &first);
    // A turn that was stopped is not kept: its request runs, with the question that is there.
    keyed(&stage.app, &path, KEY, &body).await.expect(200);
    assert_eq!(
        stored(&stage.app, &id).await,
        [user("What grows?"), assistant("Ferns.")]
    );
}

#[rstest]
#[case::sqlite(Backend::Sqlite, false)]
#[case::postgres(Backend::Postgres, false)]
#[case::another_replica(Backend::Postgres, true)]
#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_killed_turn_is_free_when_its_time_runs_out(
    #[case] backend: Backend,
    #[case] another: bool,
) {
    let model = StreamModel::start().await;
    let pieces = [Piece::text("half an "), Piece::Gate, Piece::text("answer")];
    model.script(MAIN, [Script::stream(pieces, "stop")]);
    let database = TestDatabase::create(backend).await;
    let mut settings = variables(&model);
    settings.push((
        "PRECIS_COMPACTION__LEASE_SECONDS".to_owned(),
        "2".to_owned(),
    ));
    let mut process = Process::start(&database, &settings);
    let survivor = another.then(|| Process::start(&database, &settings));
    let id = process.create(&json!({})).await;
    let path = format!("/sessions/{id}/turns");
    let question = user("What grows?");
    let body = format!("{{\"messages\":[{question}],\"stream\":true}}");
    let (http, at, sent) = ((*process).clone(), path.clone(), body.clone());
    let asking = tokio::spawn(async move {
        let headers = [
            ("content-type", "application/json"),
            ("idempotency-key", KEY),
        ];
        let sent = Some(sent.into());
        http.try_send(Method::POST, &at, &headers, sent).await
    });
    model.at_gate(1).await;
    process.kill();
    drop(asking.await);
    model.script(MAIN, [Script::Text("Ferns.".to_owned())]);
    let next = survivor.unwrap_or_else(|| Process::start(&database, &settings));
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let reply = keyed(&next, &path, KEY, &body).await;
        if reply.status == 200 {
            assert_eq!(reply.header("idempotency-replayed"), None);
            break;
        }
        is_at_work(&reply);
        assert!(Instant::now() < deadline, "the key is free after a while");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The streamed answer is not waited for by the loop above.
    loop {
        let reply = keyed(&next, &path, KEY, &body).await;
        if reply.status == 200 {
            assert_eq!(reply.header("idempotency-replayed"), Some("true"));
            break;
        }
        is_at_work(&reply);
        assert!(Instant::now() < deadline, "the turn ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(stored(&next, &id).await, [question, assistant("Ferns.")]);
}
