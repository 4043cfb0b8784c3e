//! Streamed turns: pieces while the model still writes, streams that break off, begin anew, go slowly.

use rstest::rstest;
use serde_json::{Value, json};

use super::{
    Stage, Turn, body, is_usable, kinds, load, path, records, sent, stored, stream, tells, values,
};
use crate::support::Backend;
use crate::support::messages::{result, user};
use crate::support::sse::{Frame, Sent};
use crate::support::stream_model::{Piece, Script};

/// The texts of all pieces together, from the newest beginning on.
fn text_of(frames: &[Frame]) -> String {
    let start = frames
        .iter()
        .rposition(|frame| frame.event == "turn.restarted")
        .unwrap_or(0);
    let pieces = frames[start..]
        .iter()
        .filter(|frame| frame.event == "message.delta");
    pieces
        .filter_map(|frame| frame.data["delta"]["content"].as_str())
        .collect()
}

/// Stored events and pieces: a piece is told of at once, an event once it is read from the log.
fn apart(frames: Vec<Frame>) -> (Vec<Frame>, Vec<Frame>) {
    frames
        .into_iter()
        .partition(|frame| frame.event != "message.delta")
}

fn content(raw: &str) -> Value {
    let message: Value = serde_json::from_str(raw).expect("a message");
    message["content"].clone()
}

/// A line break in stored JSON must not end the line of an event.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_written_over_many_lines_stays_one_event() {
    let stage = Stage::new(Backend::Sqlite).await;
    stage.script([Script::stream([Piece::text("yes")], "stop")]);
    let id = stage.create(&json!({})).await;
    let message = "{\n  \"role\": \"user\",\r\n  \"content\": \"is it?\"\n}".to_owned();
    let mut reader = stream(&stage, &id, std::slice::from_ref(&message)).await;
    let frames = reader.rest().await;
    assert_eq!(
        kinds(&frames),
        ["turn.started", "message.delta", "turn.completed"]
    );
    for turn in [&frames[0], &frames[2]] {
        assert_eq!(turn.data["messages"][0]["message"]["content"], "is it?");
    }
    assert_eq!(stored(&stage, &id).await[0], message);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_line_is_kept_open_while_the_model_thinks() {
    let stage = Stage::with(
        Backend::Sqlite,
        &[("PRECIS_EVENTS__KEEP_ALIVE_SECONDS", "1")],
    )
    .await;
    stage.script([Script::stream([Piece::Gate, Piece::text("well")], "stop")]);
    let id = stage.create(&json!({})).await;
    let mut reader = stream(&stage, &id, &[user("think")]).await;
    assert_eq!(kinds(&reader.take(1).await), ["turn.started"]);
    assert!(matches!(reader.sent().await, Some(Sent::Comment(_))));
    stage.model.open_gate();
    let rest = reader.rest().await;
    assert_eq!(rest.last().expect("an end").event, "turn.completed");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn pieces_arrive_while_the_rest_is_held(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let pieces = [
        Piece::reasoning("hm"),
        Piece::text("one, "),
        Piece::Gate,
        Piece::text("two, "),
        Piece::Gate,
        Piece::text("three"),
    ];
    stage.script([Script::stream(pieces, "stop")]);
    let id = stage.create(&json!({})).await;
    let mut watching = stage.events(&id, None).await;
    let mut reader = stream(&stage, &id, &[user("count")]).await;
    let mut frames = reader.take(3).await;
    assert_eq!(
        kinds(&frames),
        ["turn.started", "message.delta", "message.delta"]
    );
    let begun = Turn::read(&frames[0].data);
    assert_eq!(
        (begun.status.as_str(), values(&begun.texts())),
        ("in_progress", values(&[user("count")]))
    );
    assert_eq!(frames[1].data["delta"]["reasoning_content"], "hm");
    assert_eq!(frames[2].data["delta"]["content"], "one, ");
    assert!(
        frames.iter().all(|frame| frame.id.is_none()),
        "not to be resumed behind"
    );
    // Whoever watches the session sees them as well.
    let (stored_events, deltas) = apart(watching.take(5).await);
    assert_eq!(
        kinds(&stored_events),
        ["message.appended", "turn.started", "context.dispatched"]
    );
    assert_eq!(deltas[1].data["delta"]["content"], "one, ");
    assert!(deltas.iter().all(|frame| frame.id.is_none()));
    assert_eq!(stored(&stage, &id).await.len(), 1, "nothing half is stored");

    stage.model.open_gate();
    frames.extend(reader.take(1).await);
    stage.model.at_gate(2).await;
    stage.model.open_gate();
    frames.extend(reader.rest().await);
    assert_eq!(text_of(&frames), "one, two, three");
    let last = frames.last().expect("an end");
    assert_eq!(last.event, "turn.completed");
    let made = Turn::read(&last.data);
    assert_eq!(
        (made.status.as_str(), made.incomplete),
        ("completed", false)
    );
    assert_eq!(content(made.texts()[1]), "one, two, three");
    assert_eq!(
        made.usage.as_ref().map(|usage| usage.get()),
        Some(r#"{"completion_tokens":20,"prompt_tokens":100,"total_tokens":120}"#)
    );
    assert_eq!(values(&stored(&stage, &id).await), values(&made.texts()));
    assert_eq!(
        values(&load(&stage, &id, &made.id).await.texts()),
        values(&made.texts())
    );
    let (stored_events, deltas) = apart(watching.take(4).await);
    assert_eq!(
        kinds(&stored_events),
        ["message.appended", "turn.completed"]
    );
    assert_eq!(stored_events[1].data["turnId"], made.id);
    assert_eq!(deltas[1].data["delta"]["content"], "three");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_come_in_pieces_and_are_stored_whole() {
    let stage = Stage::new(Backend::Sqlite).await;
    let mut pieces = vec![Piece::text("let me see")];
    pieces.extend(Piece::call(0, "c1", "read", r#"{"path":"a"}"#));
    pieces.extend(Piece::call(1, "c2", "read", r#"{"path":"b"}"#));
    stage.script([
        Script::stream(pieces, "tool_calls"),
        Script::texts(&["done"]),
    ]);
    let id = stage.create(&json!({})).await;
    let frames = stream(&stage, &id, &[user("read both")]).await.rest().await;
    let made = Turn::read(&frames.last().expect("an end").data);
    assert_eq!(
        (made.status.as_str(), made.open_calls.as_slice()),
        (
            "requires_tool_results",
            ["c1".to_owned(), "c2".to_owned()].as_slice()
        )
    );
    let message: Value = serde_json::from_str(made.texts()[1]).expect("a message");
    assert_eq!(
        message["tool_calls"][1]["function"]["arguments"],
        r#"{"path":"b"}"#
    );
    // A streamed turn that waits has its end at once.
    let frames = stream(&stage, &id, &[result("c2", "B")]).await.rest().await;
    assert_eq!(kinds(&frames), ["turn.started", "turn.completed"]);
    assert_eq!(Turn::read(&frames[1].data).open_calls, ["c1"]);
    assert_eq!(stage.asked().len(), 1);
    let frames = stream(&stage, &id, &[result("c1", "A")]).await.rest().await;
    assert_eq!(
        Turn::read(&frames.last().expect("an end").data).status,
        "completed"
    );
    assert_eq!(sent(&stage.asked()[1]), stored(&stage, &id).await[..4]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_came_before_a_break_is_stored_as_incomplete(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(false, true)] in_a_call: bool,
) {
    let stage = Stage::new(backend).await;
    let mut pieces = vec![Piece::text("half an "), Piece::text("ans")];
    if in_a_call {
        pieces.extend(
            Piece::call(0, "c1", "read", r#"{"path":"a"}"#)
                .into_iter()
                .take(2),
        );
    }
    pieces.push(Piece::Cut);
    stage.script([Script::Stream(pieces), Script::texts(&["the rest"])]);
    let id = stage.create(&json!({})).await;
    let frames = stream(&stage, &id, &[user("go")]).await.rest().await;
    assert_eq!(text_of(&frames), "half an ans");
    let made = Turn::read(&frames.last().expect("an end").data);
    assert_eq!((made.status.as_str(), made.incomplete), ("completed", true));
    assert!(made.open_calls.is_empty(), "no half call");
    let answer = stored(&stage, &id).await.remove(1);
    assert_eq!(content(&answer), "half an ans");
    assert!(!answer.contains("tool_calls"), "{answer}");
    let list = stage
        .get(&format!("/sessions/{id}/messages"))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (
            list["data"][0]["incomplete"].as_bool(),
            list["data"][1]["incomplete"].as_bool()
        ),
        (Some(false), Some(true))
    );
    let frames = stream(&stage, &id, &[user("go on")]).await.rest().await;
    assert_eq!(frames.last().expect("an end").event, "turn.completed");
    assert_eq!(sent(&stage.asked()[1])[1], answer);
    assert_eq!(
        stage.asked().len(),
        2,
        "a stream that has begun is not asked for again"
    );
}

/// A stream that stalls is a stream that breaks off.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_stalls_is_incomplete() {
    let idle = [("PRECIS_PROVIDER__IDLE_TIMEOUT_MS", "300")];
    let stage = Stage::with(Backend::Sqlite, &idle).await;
    let pieces = vec![Piece::text("half an answer"), Piece::Hang];
    stage.script([Script::Stream(pieces), Script::call("c1", "read", "{}")]);
    let id = stage.create(&json!({})).await;
    let frames = stream(&stage, &id, &[user("go")]).await.rest().await;
    let made = Turn::read(&frames.last().expect("an end").data);
    assert_eq!((made.status.as_str(), made.incomplete), ("completed", true));
    assert_eq!(content(made.texts()[1]), "half an answer");
    stage.model.abandoned(1).await;
    let frames = stream(&stage, &id, &[user("go on")]).await.rest().await;
    let made = Turn::read(&frames.last().expect("an end").data);
    assert_eq!(made.open_calls, ["c1"]);
}

/// A call alone, of which half has come, is nothing to keep: the turn fails, and can be tried again.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_call_alone_is_no_answer() {
    let stage = Stage::new(Backend::Postgres).await;
    let mut pieces = Piece::call(0, "c1", "read", r#"{"path":"a"}"#);
    pieces.push(Piece::Cut);
    stage.script([Script::Stream(pieces), Script::texts(&["fine"])]);
    let id = stage.create(&json!({})).await;
    let frames = stream(&stage, &id, &[user("go")]).await.rest().await;
    let last = frames.last().expect("an end");
    assert_eq!(
        (last.event.as_str(), last.data["code"].as_str()),
        ("turn.failed", Some("MODEL_FAILED"))
    );
    assert_eq!(last.data["errors"][0]["code"], "connect");
    assert_eq!(stored(&stage, &id).await, [user("go")]);
    let frames = stream(&stage, &id, &[]).await.rest().await;
    assert_eq!(frames.last().expect("an end").event, "turn.completed");
    assert_eq!(stored(&stage, &id).await.len(), 2);
}

#[rstest]
#[case::at_once(Script::overflow(), 0)]
#[case::in_a_success(Script::overflow_inside(), 0)]
#[case::in_the_stream(Script::overflow_in_stream(&[]), 0)]
#[case::behind_pieces(Script::overflow_in_stream(&["It is ", "this"]), 2)]
#[tokio::test(flavor = "multi_thread")]
async fn after_an_overflow_the_answer_begins_anew(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] refusal: Script,
    #[case] pieces: usize,
) {
    let stage = Stage::new(backend).await;
    stage.script([refusal, Script::texts(&["It is ", "that."])]);
    let id = stage.session_of(4).await;
    let frames = stream(&stage, &id, &[user("what is it?")])
        .await
        .rest()
        .await;
    let mut expected = vec!["turn.started"];
    expected.extend(std::iter::repeat_n("message.delta", pieces));
    expected.extend([
        "turn.restarted",
        "message.delta",
        "message.delta",
        "turn.completed",
    ]);
    assert_eq!(kinds(&frames), expected);
    assert_eq!(text_of(&frames), "It is that.");
    let made = Turn::read(&frames.last().expect("an end").data);
    assert_eq!((made.compaction_version, made.messages.len()), (Some(1), 2));
    assert_eq!(content(made.texts()[1]), "It is that.");
    assert_eq!((stage.asked().len(), stage.summarised()), (2, 1));
    assert_eq!(stored(&stage, &id).await.len(), 10);
    is_usable(&stage, &stage, &id).await;
}

#[rstest]
#[case::limited(Script::rate_limit(Some("0")), "MODEL_FAILED")]
#[case::refused(Script::Status(403, Vec::new(), "secret words".to_owned()), "MODEL_FAILED")]
#[case::in_the_stream(Script::Stream(vec![Piece::error(&json!({"error": {"message": "secret words", "code": 500}}))]), "MODEL_FAILED")]
#[case::twice_too_long(Script::overflow(), "CONTEXT_OVERFLOW")]
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_a_problem_document(#[case] script: Script, #[case] code: &str) {
    let stage = Stage::new(Backend::Sqlite).await;
    stage.script([script]);
    let id = stage.session_of(4).await;
    let mut reader = stream(&stage, &id, &[user("secret question")]).await;
    let request = reader.response.headers()["x-request-id"]
        .to_str()
        .expect("a text")
        .to_owned();
    let frames = reader.rest().await;
    let last = frames.last().expect("an end");
    assert_eq!(last.event, "turn.failed");
    for member in ["title", "detail", "instance", "requestId", "type", "code"] {
        assert!(
            last.data[member]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{member}: {last:?}"
        );
    }
    assert_eq!(last.data["code"], code);
    assert_eq!(last.data["requestId"], request);
    assert_eq!(last.data["instance"], path(&id));
    assert!(!last.data.to_string().contains("secret"), "{last:?}");
    assert_eq!(records(&stage, &id).await[0]["error"]["code"], code);
    is_usable(&stage, &stage, &id).await;
}

/// What is refused before a turn begins is refused with its status, streamed or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_no_stream() {
    let stage = Stage::new(Backend::Sqlite).await;
    let id = stage.create(&json!({})).await;
    let streamed = r#","stream":true"#;
    stage
        .post_raw(&path(&id), body(&[], streamed))
        .await
        .invalid("/messages");
    stage
        .post_raw(&path("sess_x"), body(&[user("x")], streamed))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    stage
        .post_empty(&format!("/sessions/{id}/close"))
        .await
        .expect(200);
    stage
        .post_raw(&path(&id), body(&[user("x")], streamed))
        .await
        .problem(400, "SESSION_CLOSED");
}

/// Pieces that come faster than a reader reads hold nothing up, and the end comes whole all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_gets_the_end_all_the_same() {
    const PIECES: usize = 2_000;
    let stage = Stage::new(Backend::Sqlite).await;
    let word = "word ".repeat(200);
    let pieces = std::iter::repeat_n(Piece::text(&word), PIECES);
    stage.script([Script::stream(pieces, "stop")]);
    let id = stage.create(&json!({})).await;
    let mut reader = stream(&stage, &id, &[user("write")]).await;
    let begun = reader.take(1).await;
    let at = begun[0].data["id"].as_str().expect("an id").to_owned();
    let mut events = stage.events(&id, Some("4")).await;
    // Nobody reads the pieces; the turn ends nevertheless.
    loop {
        let frame = events.next().await.expect("the stream goes on");
        if frame.event == "turn.completed" {
            break;
        }
    }
    let made = load(&stage, &id, &at).await;
    assert_eq!(
        made.texts()[1].len(),
        content(made.texts()[1]).to_string().len() + r#"{"role":"assistant","content":}"#.len()
    );
    let frames = reader.rest().await;
    assert_eq!(frames.last().expect("an end").event, "turn.completed");
    let whole = word.repeat(PIECES);
    let read = text_of(&frames);
    assert!(
        whole.starts_with(&read),
        "what it got is the beginning, without gaps"
    );
    assert_eq!(
        content(Turn::read(&frames.last().expect("an end").data).texts()[1]),
        whole
    );
}

/// A reader too slow for the first answer must not get pieces of the second behind those of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_never_gets_two_answers_in_one() {
    const PIECES: usize = 6_000;
    let stage = Stage::new(Backend::Sqlite).await;
    let word = "first ".repeat(400);
    let mut texts = vec![Piece::text(&word); PIECES];
    texts.push(Piece::Data(
        json!({"error": {"message": "too long", "code": "context_length_exceeded"}}).to_string(),
    ));
    let slow = [
        Piece::Gate,
        Piece::text("second "),
        Piece::Gate,
        Piece::text("answer"),
    ];
    stage.script([Script::Stream(texts), Script::stream(slow, "stop")]);
    let id = stage.session_of(4).await;
    let mut reader = stream(&stage, &id, &[user("write")]).await;
    stage.model.at_gate(1).await;
    // The first answer is over, and more of it than any buffer holds was not read. Now there is room again.
    let mut frames = Vec::new();
    stage.model.open_gate();
    stage.model.at_gate(2).await;
    stage.model.open_gate();
    frames.extend(reader.rest().await);
    assert_eq!(frames.last().expect("an end").event, "turn.completed");
    let restarted = frames.iter().any(|frame| frame.event == "turn.restarted");
    let second = frames
        .iter()
        .any(|frame| frame.data["delta"]["content"] == "second ");
    assert!(
        restarted || !second,
        "pieces of the second answer without a word that the first does not count"
    );
    tells(
        &stage,
        &id,
        &[
            "session.created",
            "message.appended",
            "message.appended",
            "turn.started",
            "context.dispatched",
            "compaction.started",
            "context.defaultCompacted",
            "context.dispatched",
            "message.appended",
            "turn.completed",
        ],
    )
    .await;
    is_usable(&stage, &stage, &id).await;
}
