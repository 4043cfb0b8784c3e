//! Turns whose process dies, stands still, or cannot write: each has one end, and no answer comes too late.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    Stage, Turn, beside, body, cancel, is_usable, kinds, load, path, records, running, start_model,
    stored, tells, turn, variables,
};
use crate::support::backend::TestDatabase;
use crate::support::messages::user;
use crate::support::model::MAIN;
use crate::support::process::Process;
use crate::support::stream_model::{Piece, Script};
use crate::support::{Backend, Http, TestApp};

const LEASE: (&str, &str) = ("PRECIS_COMPACTION__LEASE_SECONDS", "1");

/// Waits until a turn is over; what it came to.
async fn over(http: &Http, id: &str, at: &str) -> Turn {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let turn = load(http, id, at).await;
        if turn.status != "in_progress" {
            return turn;
        }
        assert!(Instant::now() < deadline, "the turn of a dead process ends");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[rstest]
#[case::sqlite_and_a_restart(Backend::Sqlite, false)]
#[case::postgres_and_a_restart(Backend::Postgres, false)]
#[case::postgres_and_another_process(Backend::Postgres, true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_a_turn_leaves_one_end(
    #[case] backend: Backend,
    #[case] another: bool,
    #[values(false, true)] streamed: bool,
) {
    let model = start_model().await;
    let pieces = [Piece::text("half an "), Piece::Gate, Piece::text("answer")];
    model.script(MAIN, [Script::stream(pieces, "stop")]);
    let database = TestDatabase::create(backend).await;
    let settings = variables(&model, &[LEASE]);
    let mut process = Process::start(&database, &settings);
    let survivor = another.then(|| Process::start(&database, &settings));
    let id = process.create(&json!({})).await;
    let (http, at) = ((*process).clone(), path(&id));
    let text = body(
        &[user("a question")],
        if streamed { r#","stream":true"# } else { "" },
    );
    let asking = tokio::spawn(async move {
        let json = [("content-type", "application/json")];
        http.try_send(Method::POST, &at, &json, Some(text.into()))
            .await
    });
    model.at_gate(1).await;
    let at = running(&process, &id).await;
    process.kill();
    let answer = asking.await.expect("the client's task ends");
    assert!(
        streamed || answer.is_err(),
        "a killed server answers nobody"
    );

    let next = survivor.unwrap_or_else(|| Process::start(&database, &settings));
    let ended = over(&next, &id, &at).await;
    assert_eq!(
        (ended.status.as_str(), ended.error["code"].as_str()),
        ("failed", Some("TURN_INTERRUPTED"))
    );
    assert_eq!(
        stored(&next, &id).await,
        [user("a question")],
        "the question once, and nothing half"
    );
    model.script(MAIN, [Script::Text("fine".to_owned())]);
    assert_eq!(Turn::of(&turn(&next, &id, &[]).await).status, "completed");
    assert_eq!(stored(&next, &id).await.len(), 2);
    tells(
        &next,
        &id,
        &[
            "session.created",
            "message.appended",
            "turn.started",
            "context.dispatched",
            "turn.failed",
            "turn.started",
            "context.dispatched",
            "message.appended",
            "turn.completed",
        ],
    )
    .await;
}

/// The next turn does not wait for the sweep: whoever comes behind the end of the lease ends the dead turn.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_writer_ends_a_dead_turn() {
    let model = start_model().await;
    model.script(MAIN, [Script::Hang, Script::Text("fine".to_owned())]);
    let database = Arc::new(TestDatabase::create(Backend::Sqlite).await);
    let settings = variables(&model, &[("PRECIS_COMPACTION__LEASE_SECONDS", "600")]);
    let mut process = Process::start(&database, &settings);
    let id = process.create(&json!({})).await;
    let (http, at) = ((*process).clone(), path(&id));
    let asking = tokio::spawn(async move {
        let json = [("content-type", "application/json")];
        http.try_send(
            Method::POST,
            &at,
            &json,
            Some(body(&[user("one")], "").into()),
        )
        .await
    });
    model.arrived(1).await;
    process.kill();
    drop(asking.await);
    let app = TestApp::on(Arc::clone(&database), settings).await;
    turn(&app, &id, &[user("two")])
        .await
        .problem(409, "TURN_IN_PROGRESS");
    let past = "UPDATE sessions SET turn_until = 0";
    database.execute(past, past).await;
    assert_eq!(
        Turn::of(&turn(&app, &id, &[user("two")]).await).status,
        "completed"
    );
    let statuses: Vec<Value> = records(&app, &id)
        .await
        .iter()
        .map(|r| r["error"]["code"].clone())
        .collect();
    assert_eq!(statuses, [Value::Null, "TURN_INTERRUPTED".into()]);
    tells(
        &app,
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
}

/// A process that stood still for longer than its lease comes back with an answer that nobody waits for.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_behind_the_lease_is_not_stored() {
    let model = start_model().await;
    let pieces = [Piece::Gate, Piece::text("much too late")];
    model.script(
        MAIN,
        [
            Script::stream(pieces, "stop"),
            Script::Text("in time".to_owned()),
        ],
    );
    let database = TestDatabase::create(Backend::Postgres).await;
    let settings = variables(&model, &[LEASE]);
    let zombie = Process::start(&database, &settings);
    let other = Process::start(&database, &settings);
    let id = zombie.create(&json!({})).await;
    let asked = beside(&zombie, &id, &[user("a question")]);
    model.at_gate(1).await;
    let at = running(&other, &id).await;
    signal(&zombie, "-STOP");
    let ended = over(&other, &id, &at).await;
    assert_eq!(ended.error["code"], "TURN_INTERRUPTED");
    assert_eq!(Turn::of(&turn(&other, &id, &[]).await).status, "completed");
    model.open_gate();
    signal(&zombie, "-CONT");
    asked
        .await
        .expect("a reply")
        .problem(503, "TURN_INTERRUPTED");
    let raws = stored(&other, &id).await;
    assert_eq!(raws.len(), 2);
    assert!(raws[1].contains("in time"));
    assert_eq!(
        load(&other, &id, &at).await.error,
        ended.error,
        "its end stays what it was"
    );
    tells(
        &other,
        &id,
        &[
            "session.created",
            "message.appended",
            "turn.started",
            "context.dispatched",
            "turn.failed",
            "turn.started",
            "context.dispatched",
            "message.appended",
            "turn.completed",
        ],
    )
    .await;
}

fn signal(process: &Process, name: &str) {
    let status = Command::new("kill")
        .args([name, &process.id().to_string()])
        .status();
    assert!(status.expect("`kill` runs").success());
}

/// A turn that takes longer than its lease goes on holding its session.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_while_the_model_works(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::with(backend, &[LEASE]).await;
    let other = stage.spawn_second().await;
    stage.model.hold();
    let id = stage.create(&json!({})).await;
    let asked = beside(&stage, &id, &[user("a question")]);
    stage.model.arrived(1).await;
    let until = Instant::now() + Duration::from_millis(2_500);
    while Instant::now() < until {
        turn(&other, &id, &[])
            .await
            .problem(409, "TURN_IN_PROGRESS");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stage.model.release();
    assert_eq!(Turn::of(&asked.await.expect("a reply")).status, "completed");
}

/// S13: the answer cannot be written. The question stays, nothing is half there, and the session waits for nothing.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s13_an_answer_that_cannot_be_stored_leaves_the_history_as_it_was(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(false, true)] streamed: bool,
) {
    let stage = Stage::new(backend).await;
    stage.script([Script::Text("my secret answer".to_owned())]);
    let id = stage.session_of(2).await;
    let before = stored(&stage, &id).await;
    stage.model.hold();
    let (http, text) = (
        stage.http().clone(),
        body(
            &[user("a question")],
            if streamed { r#","stream":true"# } else { "" },
        ),
    );
    let at = path(&id);
    let asked = tokio::spawn(async move {
        if streamed {
            let mut reader = http.post_for_events(&at, text).await;
            return reader.rest().await.pop().expect("an end").data;
        }
        http.post_raw(&at, text).await.json()
    });
    stage.model.arrived(1).await;
    let sqlite = "CREATE TRIGGER sabotage BEFORE INSERT ON messages BEGIN SELECT RAISE(ABORT, 'the disk is full'); END";
    let postgres = "CREATE FUNCTION sabotage() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN RAISE EXCEPTION 'the disk is full'; END $$;
                    CREATE TRIGGER sabotage BEFORE INSERT ON messages FOR EACH ROW EXECUTE FUNCTION sabotage()";
    stage.database.execute(sqlite, postgres).await;
    stage.model.release();
    let problem = asked.await.expect("a reply");
    assert!(
        ["INTERNAL", "STORAGE_UNAVAILABLE"].contains(&problem["code"].as_str().expect("a code")),
        "{problem}"
    );
    let failed = records(&stage, &id).await.remove(0);
    assert_eq!(failed["status"], "failed", "it ends at once: {failed}");
    for text in [problem.to_string(), failed.to_string()] {
        assert!(
            !text.contains("secret") && !text.contains("disk is full"),
            "{text}"
        );
    }
    let mut history = before;
    history.push(user("a question"));
    assert_eq!(stored(&stage, &id).await, history);
    stage
        .database
        .execute("DROP TRIGGER sabotage", "DROP TRIGGER sabotage ON messages")
        .await;
    assert_eq!(Turn::of(&turn(&stage, &id, &[]).await).status, "completed");
    history.push(stored(&stage, &id).await.pop().expect("an answer"));
    assert_eq!(stored(&stage, &id).await, history);
    let events = stage.first_events(&id, 10).await;
    assert_eq!(
        kinds(&events[3..]),
        [
            "turn.started",
            "context.dispatched",
            "turn.failed",
            "turn.started",
            "context.dispatched",
            "message.appended",
            "turn.completed"
        ],
    );
}

/// Whatever comes first of an answer and a stop wins, and there is one end.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn stops_and_answers_that_race_have_one_end(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = stage.create(&json!({})).await;
    let mut answers = 0;
    for round in 0..12 {
        stage.model.hold();
        let before = stage.asked().len();
        let asked = beside(&stage, &id, &[user(&round.to_string())]);
        stage.model.arrived(before + 1).await;
        let at = running(&stage, &id).await;
        stage.model.release();
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        let stopped = Turn::of(&cancel(&stage, &id, &at).await);
        let reply = asked.await.expect("a reply");
        let shown = load(&stage, &id, &at).await;
        assert_eq!(shown.status, stopped.status);
        if reply.status == 200 {
            assert_eq!(shown.status, "completed");
        } else {
            reply.problem(409, "TURN_CANCELLED");
            assert_eq!(shown.status, "failed");
        }
        answers += usize::from(reply.status == 200);
        assert_eq!(stored(&stage, &id).await.len(), round + 1 + answers);
    }
    let mut reader = stage.events(&id, Some("0")).await;
    let (mut started, mut ended) = (0, 0);
    while ended < 12 {
        let frame = reader.next().await.expect("the stream goes on");
        started += usize::from(frame.event == "turn.started");
        ended += usize::from(["turn.completed", "turn.failed"].contains(&frame.event.as_str()));
        assert_eq!(
            usize::from(started > ended) + ended,
            started,
            "one end each"
        );
    }
    is_usable(&stage, &stage, &id).await;
}
