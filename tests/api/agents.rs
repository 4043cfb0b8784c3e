//! `/agents`: documents that are checked, listed, copied into sessions and outlived by them.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, TestApp};

fn coder() -> Value {
    json!({
        "name": "coder",
        "description": "Writes code",
        "instructions": "You write Rust. Keep \u{201c}quotes\u{201d} as they are.",
        "model": "agent-model",
        "compactionModel": "agent-compaction-model",
        "modelThinking": "high",
        "temperature": 0.2,
        "compactionPrompt": "Summarise as the coder would.",
        "defaultCompaction": {
            "compactionCount": 70,
            "keepRecentTurns": 2,
            "boundary": "step",
            "maxSummaryTokens": 500,
        },
        "metadata": {"team": "blue"},
    })
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_put_read_listed_and_deleted(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let put = app.put("/agents/coder", &coder()).await;
    assert!(
        [200, 201].contains(&put.status),
        "expected a new agent to be accepted: {put}"
    );
    let mut changed = coder();
    changed["description"] = json!("Writes better code");
    app.put("/agents/coder", &changed).await.expect(200);

    let agent = app.get("/agents/coder").await.expect(200).json();
    for (name, value) in changed.as_object().expect("an object") {
        assert_eq!(&agent[name], value, "expected the member `{name}` back");
    }
    app.put("/agents/other", &json!({"name": "other"})).await;
    let list = app.get("/agents").await.expect(200).json();
    let mut names: Vec<&str> = list["data"]
        .as_array()
        .expect("a list has `data`")
        .iter()
        .filter_map(|agent| agent["name"].as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["coder", "other"], "both agents are listed");
    assert_eq!(list["nextCursor"], Value::Null, "there is one page");

    app.delete("/agents/coder").await.expect(204);
    app.get("/agents/coder")
        .await
        .problem(404, "AGENT_NOT_FOUND");
    app.delete("/agents/coder")
        .await
        .problem(404, "AGENT_NOT_FOUND");
}

#[rstest]
#[case::unknown_member(json!({"name": "x", "surprise": 1}), "/surprise")]
#[case::count_too_large(json!({"name": "x", "defaultCompaction": {"compactionCount": 100}}), "/defaultCompaction/compactionCount")]
#[case::count_too_small(json!({"name": "x", "defaultCompaction": {"compactionCount": 0}}), "/defaultCompaction/compactionCount")]
#[case::unknown_boundary(json!({"name": "x", "defaultCompaction": {"boundary": "word"}}), "/defaultCompaction/boundary")]
#[case::unknown_policy_member(json!({"name": "x", "defaultCompaction": {"compactCount": 5}}), "/defaultCompaction/compactCount")]
#[case::instructions_no_text(json!({"name": "x", "instructions": 7}), "/instructions")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_agent_is_refused_by_pointer(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] document: Value,
    #[case] pointer: &str,
) {
    let app = TestApp::spawn(backend).await;
    app.put("/agents/x", &document).await.invalid(pointer);
    app.get("/agents/x").await.problem(404, "AGENT_NOT_FOUND");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_keeps_what_its_agent_was(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    app.put("/agents/coder", &coder()).await;
    let body = json!({
        "agentName": "coder",
        "messages": [{"role": "user", "content": "hello"}],
    });
    let id = app.create(&body).await;

    let before = app.session(&id).await;
    assert_eq!(before["agentName"], "coder");
    assert_eq!(
        before["model"], "agent-model",
        "the agent's model is copied"
    );
    assert_eq!(before["modelThinking"], "high", "modelThinking is copied");
    assert_eq!(
        before["compactCount"], 70,
        "compactionCount becomes compactCount"
    );
    assert_eq!(before["compaction"]["keepRecentTurns"], 2);
    assert_eq!(before["compaction"]["boundary"], "step");
    assert_eq!(before["compaction"]["maxSummaryTokens"], 500);
    let history = app.history(&id).await;
    let first: Value = serde_json::from_str(history[0].message.get()).expect("a message");
    assert_eq!(
        first,
        json!({"role": "system", "content": coder()["instructions"]}),
        "the agent's instructions are the first message"
    );
    assert_eq!(history.len(), 2, "then the messages of the request");

    let changed = json!({"name": "coder", "instructions": "Something else."});
    app.put("/agents/coder", &changed).await.expect(200);
    assert_eq!(
        app.session(&id).await,
        before,
        "a change of the agent changes no session"
    );
    app.delete("/agents/coder").await.expect(204);
    assert_eq!(app.session(&id).await, before, "nor does its deletion");
    let context = app.context(&id).await;
    assert_eq!(
        context.messages[0].get(),
        history[0].message.get(),
        "the model still gets the instructions"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_request_wins_over_the_agent(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    app.put("/agents/coder", &coder()).await;
    let body = json!({
        "agentName": "coder",
        "model": "my-model",
        "compactCount": 30,
        "compaction": {"keepRecentTurns": 5},
    });
    let session = app.post("/sessions", &body).await.expect(201).json();
    assert_eq!(session["model"], "my-model");
    assert_eq!(session["compactCount"], 30);
    assert_eq!(session["compaction"]["keepRecentTurns"], 5);
    assert_eq!(
        session["compaction"]["boundary"], "step",
        "what the request leaves open comes from the agent"
    );

    app.post("/sessions", &json!({"agentName": "nobody"}))
        .await
        .problem(404, "AGENT_NOT_FOUND");
}
