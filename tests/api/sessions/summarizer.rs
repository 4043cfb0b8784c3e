//! What the summarizer is asked, how often, and what happens when it fails.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{assistant, calls, padded, result, system, turns, user};
use crate::support::model::{API_KEY, COMPACT, MAIN};
use crate::support::{Answer, Backend, ScriptedModel, TestApp};

fn failing(status: u16) -> Answer {
    let body = json!({"error": {"message": format!("no, {API_KEY}"), "type": "e", "code": "c"}});
    Answer::Status(status, vec![], body.to_string())
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_request_is_a_prompt_and_a_transcript(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let raws = [
        system("INSTRUCTION-MARK"),
        user("USER-MARK"),
        calls(&["c1"], 0).replace("{}", r#"{\"path\": \"src/lib.rs\"}"#),
        result("c1", "RESULT-MARK"),
        assistant("ASSISTANT-MARK"),
        user(&padded("TAIL-MARK", 20)),
    ];
    let id = app.create_with(&raws).await;
    let request = json!({"compactCount": 50, "instructions": "Keep NOTE-MARK in mind."});
    app.compact(&id, &request).await.expect(200);

    let call = model.last();
    assert_eq!(
        call.authorization,
        Some(format!("Bearer {API_KEY}")),
        "the key is sent"
    );
    assert_eq!(call.body["model"], MAIN);
    let messages = call.body["messages"].as_array().expect("messages");
    assert_eq!(
        messages.len(),
        2,
        "a system and a user message: {:#}",
        call.body
    );
    for absent in ["tools", "temperature", "tool_choice"] {
        assert_eq!(call.body.get(absent), None, "`{absent}` is not sent");
    }
    assert_ne!(call.body["stream"], true, "a summary is not streamed");
    let cap = ["max_tokens", "max_completion_tokens"]
        .iter()
        .find_map(|name| call.body[*name].as_u64());
    assert!(
        cap.is_none_or(|cap| cap > 2_000),
        "room for thought beside the summary: {cap:?}"
    );

    let material = call.user();
    let mut at = 0;
    for mark in [
        "[User]",
        "USER-MARK",
        "[Assistant tool calls]",
        "src/lib.rs",
        "[Tool result]",
        "RESULT-MARK",
        "[Assistant]",
        "ASSISTANT-MARK",
    ] {
        let found = material[at..].find(mark);
        at += found.unwrap_or_else(|| panic!("expected `{mark}` after byte {at} in: {material}"));
    }
    for absent in ["TAIL-MARK", "INSTRUCTION-MARK", "<previous-summary>"] {
        assert!(
            !material.contains(absent),
            "`{absent}` is not part of the first batch: {material}"
        );
    }
    let whole = call.body.to_string();
    assert!(
        whole.contains("## Additional instructions for this compaction run")
            && whole.contains("Keep NOTE-MARK in mind."),
        "the instructions of the request are appended under their heading: {whole}"
    );
    assert!(
        !whole.contains("INSTRUCTION-MARK"),
        "system text is nowhere in the request"
    );

    app.append(&id, &[assistant("more"), user("next")]).await;
    app.compact(&id, &json!({})).await.expect(200);
    let whole = model.last().body.to_string();
    assert!(
        !whole.contains("NOTE-MARK") && !whole.contains("## Additional instructions"),
        "instructions hold for one run: {whole}"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_hands_on_exactly_the_active_summary(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let texts = [
        "ONE of the summaries",
        "TWO of the summaries",
        "THREE of the summaries",
    ];
    model.script(MAIN, texts.map(|text| Answer::Text(text.to_owned())));
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;
    for run in 0..3 {
        app.compact(&id, &json!({"compactCount": 1}))
            .await
            .expect(200);
        let call = model.last();
        let material = call.user();
        let previous = material.matches("<previous-summary>").count();
        assert_eq!(
            previous,
            usize::from(run > 0),
            "at most one previous summary, run {run}"
        );
        for (index, text) in texts.iter().enumerate() {
            assert_eq!(
                material.contains(text),
                index + 1 == run,
                "run {run} is given the summary before it alone; summary {index} in {material}"
            );
        }
    }
    assert_eq!(app.session(&id).await["compactSummary"], texts[2]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_agents_prompt_and_models_are_used(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let variables = [("PRECIS_COMPACTION_MODEL", COMPACT)];
    let app = TestApp::with_model(backend, &model, &variables).await;
    let agent = json!({
        "name": "coder",
        "model": "agent-main",
        "compactionModel": "agent-compact",
        "compactionPrompt": "PROMPT-OF-THE-AGENT",
    });
    app.put("/agents/coder", &agent).await;
    let id = app.create(&json!({"agentName": "coder"})).await;
    app.append(&id, &turns(5, 100)).await;

    model.script("agent-compact", [failing(400)]);
    let answer = app.compact(&id, &json!({})).await.expect(200).json();
    assert_eq!(
        model.models(),
        ["agent-compact", "agent-main"],
        "the agent's compaction model, then the session's own"
    );
    for call in model.calls() {
        assert!(
            call.system().contains("PROMPT-OF-THE-AGENT"),
            "the agent's prompt replaces the built-in one: {}",
            call.system()
        );
    }
    assert_eq!(
        answer["compaction"]["model"], "agent-main",
        "the record says who wrote it"
    );
    assert_eq!(answer["compaction"]["method"], "llm");

    let plain = app.create_with(&turns(5, 100)).await;
    app.compact(&plain, &json!({})).await.expect(200);
    let call = model.last();
    assert_eq!(
        call.body["model"], COMPACT,
        "without an agent the server's compaction model"
    );
    assert!(
        !call.system().contains("PROMPT-OF-THE-AGENT"),
        "and the built-in prompt"
    );
}

#[rstest]
#[case::unavailable(503, 3)]
#[case::internal(500, 3)]
#[case::timeout(408, 3)]
#[case::bad_request(400, 1)]
#[case::unauthorized(401, 1)]
#[case::not_found(404, 1)]
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_model_is_tried_as_often_as_it_makes_sense(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] status: u16,
    #[case] tries: usize,
) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [failing(status)]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;
    let before = app.session(&id).await;

    let reply = app.compact(&id, &json!({})).await;
    let problem = reply.problem(502, "SUMMARIZER_FAILED");
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(
        detail.contains(&status.to_string()),
        "expected the provider's status {status} in the detail: {detail}"
    );
    assert!(
        !String::from_utf8_lossy(&reply.body).contains(API_KEY),
        "a key never reaches a client: {reply}"
    );
    assert_eq!(model.calls().len(), tries, "tries at a {status}");
    assert_eq!(app.session(&id).await, before, "the session is unchanged");
    assert!(app.compactions(&id).await.is_empty(), "there is no record");

    // The lease was given back: the next run needs no waiting.
    model.script(MAIN, [Answer::Summary]);
    app.compact(&id, &json!({})).await.expect(200);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_passes_is_no_failure(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [failing(500), failing(503), Answer::Summary]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;
    let answer = app.compact(&id, &json!({})).await.expect(200).json();
    assert_eq!(answer["compaction"]["model"], MAIN);
    assert_eq!(model.calls().len(), 3, "two failures and a success");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_hangs_is_given_up(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    model.script(
        MAIN,
        [Answer::Slow(
            Duration::from_mins(1),
            Box::new(Answer::Summary),
        )],
    );
    let variables = [
        ("PRECIS_PROVIDER__CALL_TIMEOUT_MS", "200"),
        ("PRECIS_PROVIDER__ATTEMPTS", "2"),
    ];
    let app = TestApp::with_model(backend, &model, &variables).await;
    let id = app.create_with(&turns(5, 100)).await;
    let started = Instant::now();
    let reply = app.compact(&id, &json!({})).await;
    assert!(
        [502, 504].contains(&reply.status),
        "expected the hanging model to be reported: {reply}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(15),
        "expected an answer soon after the time-out of 200 ms, took {:?}",
        started.elapsed()
    );
    assert_eq!(app.session(&id).await["compactionVersion"], 0);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_extractive_summarizer_is_a_fall_back_only_where_it_was_asked_for(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [failing(400)]);
    let variables = [("PRECIS_COMPACTION__FALLBACK", "extractive")];
    let app = TestApp::with_model(backend, &model, &variables).await;
    let id = app.create_with(&turns(5, 100)).await;
    let answer = app.compact(&id, &json!({})).await.expect(200).json();
    assert_eq!(
        answer["compaction"]["method"], "extractive",
        "the record says so: {answer:#}"
    );
    assert_eq!(model.calls().len(), 1, "the model was asked first");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_extractive_summarizer_needs_no_model(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let variables = [("PRECIS_COMPACTION__SUMMARIZER", "extractive")];
    let app = TestApp::with_model(backend, &model, &variables).await;
    let mut summaries = Vec::new();
    let raws = crate::support::conversation("02_coding_agent_60");
    for _ in 0..2 {
        let id = app.create_with(&raws).await;
        let answer = app
            .compact(&id, &json!({"compactCount": 90}))
            .await
            .expect(200)
            .json();
        assert_eq!(answer["compaction"]["method"], "extractive");
        summaries.push(answer["compaction"]["summary"].clone());
    }
    assert_eq!(model.calls().len(), 0, "the operator chose no network");
    assert!(
        matches!(&summaries[0], Value::String(text) if text.len() > 40),
        "expected a summary: {}",
        summaries[0]
    );
    assert_eq!(
        summaries[0], summaries[1],
        "the same output for the same input"
    );
}
