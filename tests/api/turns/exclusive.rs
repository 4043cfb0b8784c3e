//! One turn at a time: what waits while one runs, and what goes on.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    Stage, Turn, beside, body, cancel, gated_summary, is_usable, load, path, records, running,
    sent, stored, tells, turn,
};
use crate::support::messages::{turns, user};
use crate::support::model::COMPACT;
use crate::support::{Backend, History, Reply, chain};

/// That something has to wait for the turn that runs.
#[track_caller]
fn waits(reply: &Reply) {
    reply.problem(409, "TURN_IN_PROGRESS");
    let wait = reply
        .header("retry-after")
        .and_then(|wait| wait.parse::<u64>().ok());
    assert!(
        wait.is_some_and(|wait| (1..=5).contains(&wait)),
        "a wait of a few seconds: {reply}"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn while_a_turn_runs_the_history_stands_still(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = stage.session_of(3).await;
    stage.compact(&id, &json!({})).await.expect(200);
    let first = stage.history(&id).await.remove(0).id;
    stage.model.hold();
    let asked = beside(&stage, &id, &[user("a question")]);
    stage.model.arrived(2).await;
    let before = stored(&stage, &id).await;

    waits(&stage.append_raw(&id, &format!("[{}]", user("x"))).await);
    waits(&turn(&stage, &id, &[user("x")]).await);
    waits(&turn(&stage, &id, &[]).await);
    waits(
        &stage
            .post_raw(&path(&id), body(&[user("x")], r#","stream":true"#))
            .await,
    );
    waits(&stage.rewind(&id, 1).await);
    waits(&stage.post_empty(&format!("/sessions/{id}/reset")).await);
    let path = format!("/sessions/{id}/messages/{first}");
    waits(&stage.replace(&id, &first, &user("x")).await);
    waits(&stage.erase(&id, &first).await);
    // What is refused for its own sake is refused so.
    stage
        .append_raw(&id, "[{}]")
        .await
        .problem(422, "VALIDATION_FAILED");
    // A second replica on the same database sees the same turn.
    let second = stage.spawn_second().await;
    waits(&turn(&second, &id, &[user("x")]).await);
    waits(&second.append_raw(&id, &format!("[{}]", user("x"))).await);

    for at in [
        "",
        "/messages",
        "/context",
        "/compactions",
        "/dispatches",
        "/turns",
    ] {
        stage.get(&format!("/sessions/{id}{at}")).await.expect(200);
    }
    stage.get(&path).await;
    stage
        .patch(&format!("/sessions/{id}"), &json!({"title": "other"}))
        .await
        .expect(200);
    stage.restore(&id, 1).await.expect(200);
    let copy = stage.fork(&id, &json!({})).await.expect(201).json();
    let copy = copy["id"].as_str().expect("an id").to_owned();
    stage.append(&copy, &[user("the copy is not held")]).await;
    assert_eq!(stored(&stage, &id).await, before, "nothing was stored");
    stage.model.release();
    let made = Turn::of(&asked.await.expect("a reply"));
    assert_eq!(made.status, "completed");
    assert_eq!(stored(&stage, &id).await.len(), before.len() + 1);
    is_usable(&stage, &second, &id).await;
    is_usable(&stage, &stage, &copy).await;
}

/// S17 through turns: neither waits for the other, and nothing is lost.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s17_a_turn_and_a_compaction_run_side_by_side(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = stage.session_of(5).await;
    // A compaction that was begun in a turn, and ends in it.
    stage.model.hold();
    let asked = beside(&stage, &id, &[user("one")]);
    stage.model.arrived(1).await;
    let (http, session) = (stage.http().clone(), id.clone());
    let compacts = tokio::spawn(async move { http.compact(&session, &json!({})).await });
    stage.model.arrived(2).await;
    stage.model.release();
    Turn::of(&asked.await.expect("a reply"));
    let done = compacts.await.expect("a reply").expect(200).json();
    assert_eq!(done["compaction"]["trigger"], "manual", "{done}");
    let raws = stored(&stage, &id).await;
    assert_eq!(raws.len(), 12);
    chain::check(&stage, &id, &History::new(&raws), "side by side").await;

    // Turns while a compaction is held.
    stage.model.script(COMPACT, [gated_summary()]);
    let (http, session) = (stage.http().clone(), id.clone());
    let compacts =
        tokio::spawn(async move { http.compact(&session, &json!({"compactCount": 99})).await });
    stage.model.at_gate(1).await;
    for n in 0..3 {
        Turn::of(&turn(&stage, &id, &[user(&n.to_string())]).await);
    }
    stage.model.open_gate();
    compacts.await.expect("a reply").expect(200);
    let raws = stored(&stage, &id).await;
    assert_eq!(raws.len(), 18);
    chain::check(&stage, &id, &History::new(&raws), "turns in a compaction").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_closed_meanwhile_gets_no_answer(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = stage.create(&json!({})).await;
    stage.model.hold();
    let asked = beside(&stage, &id, &[user("a question")]);
    stage.model.arrived(1).await;
    stage
        .post_empty(&format!("/sessions/{id}/close"))
        .await
        .expect(200);
    turn(&stage, &id, &[user("x")])
        .await
        .problem(400, "SESSION_CLOSED");
    stage.model.release();
    asked.await.expect("a reply").problem(400, "SESSION_CLOSED");
    assert_eq!(stored(&stage, &id).await, [user("a question")]);
    let record = records(&stage, &id).await.remove(0);
    assert_eq!(
        (record["status"].as_str(), record["error"]["code"].as_str()),
        (Some("failed"), Some("SESSION_CLOSED"))
    );
    stage
        .post_empty(&format!("/sessions/{id}/reopen"))
        .await
        .expect(200);
    let made = Turn::of(&turn(&stage, &id, &[]).await);
    assert_eq!(made.status, "completed");
    tells(
        &stage,
        &id,
        &[
            "session.created",
            "message.appended",
            "turn.started",
            "context.dispatched",
            "session.closed",
            "turn.failed",
            "session.updated",
            "turn.started",
            "context.dispatched",
            "message.appended",
            "turn.completed",
        ],
    )
    .await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_deleted_meanwhile_is_gone(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = stage.create(&json!({})).await;
    stage.model.hold();
    let asked = beside(&stage, &id, &[user("a question")]);
    stage.model.arrived(1).await;
    let at = running(&stage, &id).await;
    stage.delete(&format!("/sessions/{id}")).await.expect(204);
    stage.model.release();
    let reply = asked.await.expect("a reply");
    assert!([404, 409].contains(&reply.status), "{reply}");
    for gone in [
        path(&id),
        format!("{}/{at}", path(&id)),
        format!("/sessions/{id}"),
    ] {
        stage.get(&gone).await.problem(404, "SESSION_NOT_FOUND");
    }
    cancel(&stage, &id, &at)
        .await
        .problem(404, "SESSION_NOT_FOUND");
    let next = stage.create(&json!({})).await;
    is_usable(&stage, &stage, &next).await;
}

/// Many at once: one at a time gets through, each message is there once, each answer has its question.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn turns_that_race_take_turns(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    const CLIENTS: usize = 6;
    const EACH: usize = 3;
    let stage = Stage::new(backend).await;
    let second = stage.spawn_second().await;
    let id = stage.create(&json!({})).await;
    let client = async |number: usize| {
        let http = if number.is_multiple_of(2) {
            stage.http()
        } else {
            second.http()
        };
        for n in 0..EACH {
            loop {
                let reply = turn(http, &id, &[user(&format!("client {number}, {n}"))]).await;
                if reply.status == 200 {
                    assert_eq!(Turn::of(&reply).messages.len(), 2);
                    break;
                }
                waits(&reply);
                tokio::task::yield_now().await;
            }
        }
    };
    futures_util::future::join_all((0..CLIENTS).map(client)).await;
    let items = stage.history(&id).await;
    assert_eq!(
        items.len(),
        CLIENTS * EACH * 2,
        "nothing twice, nothing lost"
    );
    for (index, item) in items.iter().enumerate() {
        let message: Value = serde_json::from_str(item.message.get()).expect("a message");
        let role = if index.is_multiple_of(2) {
            "user"
        } else {
            "assistant"
        };
        assert_eq!(message["role"], role, "message {index}");
        assert_eq!(item.seq, index as u64 + 1);
    }
    let mut questions: Vec<_> = items
        .iter()
        .step_by(2)
        .map(|item| item.message.get())
        .collect();
    questions.sort_unstable();
    questions.dedup();
    assert_eq!(questions.len(), CLIENTS * EACH);
    for call in stage.asked() {
        assert_eq!(
            sent(&call).len() % 2,
            1,
            "each request ends with a question"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_change_meanwhile_are_of_the_next_turn() {
    let stage = Stage::new(Backend::Sqlite).await;
    let id = stage.create(&json!({"model": "one"})).await;
    stage.append(&id, &turns(1, 10)).await;
    stage.model.hold();
    let asked = beside(&stage, &id, &[user("a question")]);
    stage.model.arrived(1).await;
    stage
        .patch(&format!("/sessions/{id}"), &json!({"model": "two"}))
        .await
        .expect(200);
    let at = running(&stage, &id).await;
    assert_eq!(
        load(&stage, &id, &at).await.texts(),
        [user("a question")],
        "read while it runs"
    );
    stage.model.release();
    Turn::of(&asked.await.expect("a reply"));
    turn(&stage, &id, &[user("x")]).await.expect(200);
    assert_eq!(stage.model.models(), ["one", "two"]);
    let statuses: Vec<_> = records(&stage, &id)
        .await
        .iter()
        .map(|r| r["model"].clone())
        .collect();
    assert_eq!(statuses, ["two", "one"]);
    stage
        .send(Method::DELETE, &path(&id), &[], None)
        .await
        .problem(405, "METHOD_NOT_ALLOWED");
}
