//! What a turn stores and answers with: texts, calls of tools, and what waits for what.

use rstest::rstest;
use serde_json::json;

use super::{Stage, Turn, beside, body, load, path, records, sent, stored, tells, turn};
use crate::support::Backend;
use crate::support::messages::{assistant, calls, result, system, user};
use crate::support::stream_model::Script;

/// A whole body of an answer, as a text, around this message and this usage.
pub fn answer_of(message: &str, usage: &str) -> Script {
    let body = format!(
        r#"{{"id":"c","object":"chat.completion","model":"m","choices":[{{"index":0,"message":{message},"finish_reason":"stop"}}],"usage":{usage}}}"#
    );
    Script::Status(200, Vec::new(), body)
}

/// An answer that calls these tools.
pub fn calling(ids: &[&str]) -> Script {
    answer_of(
        &calls(ids, 0),
        r#"{"prompt_tokens":1,"completion_tokens":2}"#,
    )
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_stored_and_shown(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    stage.script([Script::Text("Hostas do.".to_owned())]);
    let id = stage.create_with(&[system("Be brief.")]).await;
    let question = user("What grows in shade?");
    let reply = turn(&stage, &id, std::slice::from_ref(&question)).await;
    let made = Turn::of(&reply);
    assert_eq!(made.status, "completed");
    assert!(made.open_calls.is_empty() && made.error.is_null() && !made.incomplete);
    assert_eq!(made.finish_reason.as_deref(), Some("stop"));
    let usage = made.usage.as_ref().map(|usage| usage.get());
    assert_eq!(
        usage,
        Some(r#"{"completion_tokens":20,"prompt_tokens":100,"total_tokens":120}"#)
    );
    assert_eq!((made.dispatch, made.compaction_version), (Some(1), None));
    assert!(made.compaction.is_null());
    assert_eq!(reply.json()["sessionId"], id);
    assert_eq!(reply.json()["model"], "main-model");
    let seqs: Vec<_> = made.messages.iter().map(|item| item.seq).collect();
    assert_eq!(seqs, [2, 3], "the new messages, the model's last");
    assert_eq!(made.texts()[0], question);
    assert_eq!(made.texts()[1], stored(&stage, &id).await[2]);

    let asked = stage.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(sent(&asked[0]), [system("Be brief."), question]);
    let again = load(&stage, &id, &made.id).await;
    assert_eq!(again.texts(), made.texts(), "read later, it is the same");
    let raw = stage.get(&format!("{}/{}", path(&id), made.id)).await;
    assert_eq!(raw.body, reply.body, "byte for byte");
    assert_eq!(records(&stage, &id).await.len(), 1);
    let dispatch = stage
        .get(&format!("/sessions/{id}/dispatches/1"))
        .await
        .expect(200);
    assert_eq!(dispatch.json()["model"], "main-model");
    tells(
        &stage,
        &id,
        &[
            "session.created",
            "message.appended",
            "message.appended",
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
async fn while_a_call_is_open_the_model_is_not_asked(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    stage.script([
        calling(&["c1", "c2", "c3"]),
        calling(&["c4"]),
        Script::Text("done".to_owned()),
    ]);
    let id = stage.create(&json!({})).await;
    let first = Turn::of(&turn(&stage, &id, &[user("go")]).await);
    assert_eq!(first.status, "requires_tool_results");
    assert_eq!(first.open_calls, ["c1", "c2", "c3"]);

    let mut open = vec!["c1", "c2", "c3"];
    for (part, left) in [(vec!["c2"], vec!["c1", "c3"]), (vec!["c3"], vec!["c1"])] {
        let results: Vec<_> = part.iter().map(|call| result(call, "partial")).collect();
        let waiting = Turn::of(&turn(&stage, &id, &results).await);
        open = left;
        assert_eq!(waiting.status, "requires_tool_results");
        assert_eq!(waiting.open_calls, open);
        assert_eq!(waiting.dispatch, None);
        assert_eq!(waiting.texts(), results, "only what was sent");
        assert_eq!(stage.asked().len(), 1, "the model is not asked");
        let again = load(&stage, &id, &waiting.id).await;
        assert_eq!(
            (again.open_calls, again.status),
            (waiting.open_calls, waiting.status)
        );
    }
    // Nothing is new, the call is still open.
    let waiting = Turn::of(&turn(&stage, &id, &[]).await);
    assert_eq!(
        (waiting.status.as_str(), waiting.open_calls),
        ("requires_tool_results", vec!["c1".to_owned()])
    );
    assert!(waiting.messages.is_empty());
    assert_eq!(open, ["c1"]);
    // A result that fits nothing is refused whole.
    let reply = turn(&stage, &id, &[result("c1", "x"), result("c9", "x")]).await;
    reply.problem(422, "TOOL_CALL_NOT_FOUND");
    assert_eq!(stored(&stage, &id).await.len(), 4);

    let second = Turn::of(&turn(&stage, &id, &[result("c1", "last")]).await);
    assert_eq!(
        (second.status.as_str(), second.open_calls),
        ("requires_tool_results", vec!["c4".to_owned()])
    );
    let history = stored(&stage, &id).await;
    let asked = stage.asked();
    assert_eq!(
        sent(&asked[1]),
        history[..5],
        "results in the order in which they came"
    );
    let third = Turn::of(&turn(&stage, &id, &[result("c4", "end")]).await);
    assert_eq!(third.status, "completed");
    assert_eq!(sent(&stage.asked()[2]), stored(&stage, &id).await[..7]);
    assert_eq!(stored(&stage, &id).await[5], calls(&["c4"], 0));
}

/// S03: a late result finds its call, and nothing is invented in storage.
#[tokio::test(flavor = "multi_thread")]
async fn s03_a_call_that_waits_is_kept_open_through_a_compaction() {
    let stage = Stage::new(Backend::Sqlite).await;
    stage.script([calling(&["c1", "c2"]), Script::Text("done".to_owned())]);
    let id = stage.session_of(1).await;
    Turn::of(&turn(&stage, &id, &[user(&"x".repeat(500))]).await);
    Turn::of(&turn(&stage, &id, &[result("c1", "one")]).await);
    stage
        .compact(&id, &json!({"compactCount": 99}))
        .await
        .expect(200);
    assert_eq!(stage.session(&id).await["compactSize"], 2);
    turn(&stage, &id, &[result("c9", "x")])
        .await
        .problem(422, "TOOL_CALL_NOT_FOUND");
    let done = Turn::of(&turn(&stage, &id, &[result("c2", "two")]).await);
    assert_eq!(done.status, "completed");
    let asked = stage.asked();
    let shown = sent(&asked[1]);
    let tail = [
        user(&"x".repeat(500)),
        calls(&["c1", "c2"], 0),
        result("c1", "one"),
        result("c2", "two"),
    ];
    assert_eq!(shown[shown.len() - 4..], tail, "behind the summary");
    assert_eq!(stored(&stage, &id).await.len(), 7);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_turn_is_tried_again_without_messages(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    stage.script([
        Script::Status(400, Vec::new(), "{}".to_owned()),
        Script::Status(401, Vec::new(), "{}".to_owned()),
        Script::Text("at last".to_owned()),
    ]);
    let id = stage.create(&json!({})).await;
    turn(&stage, &id, &[]).await.invalid("/messages");
    stage.append(&id, &[system("rules")]).await;
    turn(&stage, &id, &[]).await.invalid("/messages");
    turn(&stage, &id, &[system("more")])
        .await
        .invalid("/messages");
    turn(&stage, &id, &[assistant("I say")])
        .await
        .invalid("/messages");
    assert_eq!(
        stored(&stage, &id).await.len(),
        1,
        "what is refused is not stored"
    );
    assert!(records(&stage, &id).await.is_empty());

    let reply = turn(&stage, &id, &[user("why?")]).await;
    let problem = reply.problem(502, "MODEL_FAILED");
    assert_eq!(problem["errors"][0]["code"], "refused");
    let failed = records(&stage, &id).await.remove(0);
    assert_eq!(failed["status"], "failed");
    assert_eq!(failed["error"]["code"], "MODEL_FAILED");
    assert_eq!(failed["error"]["detail"], problem["detail"]);
    let shown = load(&stage, &id, failed["id"].as_str().expect("an id")).await;
    assert_eq!(
        shown.texts(),
        [user("why?")],
        "the question, and no half answer"
    );
    turn(&stage, &id, &[]).await.problem(502, "MODEL_FAILED");

    let made = Turn::of(&turn(&stage, &id, &[]).await);
    assert_eq!(made.status, "completed");
    assert_eq!(made.messages.len(), 1, "only the answer is new");
    let history = stored(&stage, &id).await;
    assert_eq!(history[..2], [system("rules"), user("why?")], "once");
    assert_eq!(history.len(), 3);
    turn(&stage, &id, &[]).await.invalid("/messages");
    assert_eq!(stage.asked().len(), 3);
    let statuses: Vec<_> = records(&stage, &id)
        .await
        .iter()
        .map(|r| r["status"].clone())
        .collect();
    assert_eq!(statuses, ["completed", "failed", "failed"]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_an_id_is_stored_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    stage.script([
        Script::Status(400, Vec::new(), String::new()),
        Script::Text("hello".to_owned()),
    ]);
    let id = stage.create(&json!({})).await;
    let named = r#"{"role":"user","content":"hi","precis":{"id":"m-1"}}"#.to_owned();
    turn(&stage, &id, std::slice::from_ref(&named))
        .await
        .problem(502, "MODEL_FAILED");
    let made = Turn::of(&turn(&stage, &id, std::slice::from_ref(&named)).await);
    assert_eq!(made.status, "completed");
    assert_eq!(made.messages[0].id, "m-1");
    assert_eq!(
        stored(&stage, &id).await.len(),
        2,
        "the question once, the answer"
    );
    assert_eq!(
        sent(&stage.asked()[1]),
        [r#"{"role":"user","content":"hi"}"#]
    );
    // It is answered; the answer is not made twice.
    turn(&stage, &id, std::slice::from_ref(&named))
        .await
        .invalid("/messages");
    let other = r#"{"role":"user","content":"ho","precis":{"id":"m-1"}}"#.to_owned();
    turn(&stage, &id, &[other])
        .await
        .problem(409, "IDEMPOTENCY_CONFLICT");
    assert_eq!(stage.asked().len(), 2);
    assert_eq!(stored(&stage, &id).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_are_listed_page_by_page() {
    let stage = Stage::new(Backend::Postgres).await;
    let id = stage.create(&json!({})).await;
    let mut made = Vec::new();
    for n in 0..5 {
        made.push(Turn::of(&turn(&stage, &id, &[user(&n.to_string())]).await).id);
    }
    made.reverse();
    let (mut seen, mut at) = (Vec::new(), format!("{}?limit=2", path(&id)));
    loop {
        let page = stage.get(&at).await.expect(200).json();
        let data = page["data"].as_array().expect("a list");
        assert!(data.len() <= 2 && data.iter().all(|record| record.get("messages").is_none()));
        seen.extend(
            data.iter()
                .map(|record| record["id"].as_str().expect("an id").to_owned()),
        );
        let Some(cursor) = page["nextCursor"].as_str() else {
            break;
        };
        at = format!("{}?limit=2&cursor={cursor}", path(&id));
    }
    assert_eq!(seen, made, "newest first, each once");
    for wrong in ["turn_019acf0b2a7c7d1e9f00aabbccddeeff", "turn_x", "x"] {
        stage
            .get(&format!("{}/{wrong}", path(&id)))
            .await
            .problem(404, "TURN_NOT_FOUND");
    }
    let other = stage.create(&json!({})).await;
    stage
        .get(&format!("{}/{}", path(&other), made[0]))
        .await
        .problem(404, "TURN_NOT_FOUND");
    stage
        .get(&format!("{}?cursor=garbage", path(&id)))
        .await
        .problem(400, "INVALID_PARAMETER");
}

/// A turn that has only to wait for results takes no hold of its session.
#[tokio::test(flavor = "multi_thread")]
async fn turns_without_a_model_call_hold_nothing() {
    let stage = Stage::new(Backend::Sqlite).await;
    stage.script([calling(&["c1", "c2"]), Script::Text("done".to_owned())]);
    let id = stage.create(&json!({})).await;
    turn(&stage, &id, &[user("go")]).await.expect(200);
    let both = [
        beside(&stage, &id, &[result("c1", "1")]),
        beside(&stage, &id, &[result("c2", "2")]),
    ];
    let mut statuses = Vec::new();
    for reply in both {
        statuses.push(Turn::of(&reply.await.expect("a reply")).status);
    }
    statuses.sort();
    assert_eq!(
        statuses,
        ["completed", "requires_tool_results"],
        "whoever comes last asks the model"
    );
    assert_eq!(stage.asked().len(), 2);
    let whole = body(&[], "");
    stage.post_raw(&path(&id), whole).await.invalid("/messages");
}
