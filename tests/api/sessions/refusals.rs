//! What is no summary, each with its stable code; and what is one once it is unwrapped.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::turns;
use crate::support::model::MAIN;
use crate::support::{Answer, Backend, ScriptedModel, TestApp};

const GOOD: &str =
    "Decisions, findings, files and open problems, as they were told in the conversation.";

fn message(message: &Value, reason: &str) -> Answer {
    Answer::Body(json!({
        "id": "x", "object": "chat.completion", "model": MAIN,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
    }))
}

fn content(text: &str) -> Answer {
    Answer::Text(text.to_owned())
}

#[rstest]
#[case::empty("summary_empty", content(""), 100)]
#[case::white_space("summary_empty", content(" \n\t"), 100)]
#[case::cut_off("summary_incomplete", Answer::Finished(GOOD.to_owned(), "length"), 100)]
#[case::unheard_of("summary_incomplete", Answer::Finished(GOOD.to_owned(), "unheard_of"), 100)]
#[case::filtered("summary_refused", Answer::Finished(GOOD.to_owned(), "content_filter"), 100)]
#[case::refusal("summary_refused", message(&json!({"role": "assistant", "content": null, "refusal": "No."}), "stop"), 100)]
#[case::apology(
    "summary_refused",
    content("I'm sorry, but I can't help with that."),
    100
)]
#[case::calls("summary_tool_calls", message(&json!({"role": "assistant", "content": null, "tool_calls": [
    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}), "tool_calls"), 100)]
#[case::too_long("summary_too_long", content(&"word ".repeat(4_000)), 8_000)]
#[case::too_short("summary_too_short", content("It was fine."), 8_000)]
#[case::not_smaller("summary_not_smaller", content(&"word ".repeat(600)), 400)]
#[case::only_thought(
    "summary_reasoning_only",
    content("<think>What was it about?</think>"),
    100
)]
#[case::endless_thought("summary_reasoning_only", content("<think>What was it about"), 100)]
#[case::reasoning_beside("summary_reasoning_only",
    message(&json!({"role": "assistant", "content": "", "reasoning_content": GOOD}), "stop"), 100)]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_summary_is_refused_by_code(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] code: &str,
    #[case] answer: Answer,
    #[case] length: usize,
) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [answer]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, length)).await;
    let before = app.session(&id).await;
    let (status, problem) = match code {
        "summary_not_smaller" => (422, "SUMMARY_NOT_SMALLER"),
        _ => (502, "SUMMARIZER_FAILED"),
    };
    let problem = app.compact(&id, &json!({})).await.problem(status, problem);
    let codes: Vec<&str> = problem["errors"]
        .as_array()
        .expect("a list of errors")
        .iter()
        .filter_map(|error| error["code"].as_str())
        .collect();
    assert!(codes.contains(&code), "expected {code}: {problem:#}");
    assert_eq!(app.session(&id).await, before, "the session is unchanged");
    assert!(app.compactions(&id).await.is_empty(), "there is no record");
}

#[rstest]
#[case::thought_before(content(&format!("<think>Let me see.\nYes.</think>\n\n{GOOD}")))]
#[case::parts(message(&json!({"role": "assistant", "content": [
    {"type": "text", "text": &GOOD[..10]}, {"type": "text", "text": &GOOD[10..]}]}), "stop"))]
#[case::reasoning_beside(message(&json!({"role": "assistant", "content": GOOD, "reasoning_content": "hm"}), "stop"))]
#[case::white_space_around(content(&format!("\n  {GOOD}\n\n")))]
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_is_taken_out_of_its_wrapping(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] answer: Answer,
) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [answer]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;
    app.compact(&id, &json!({})).await.expect(200);
    assert_eq!(app.session(&id).await["compactSummary"], GOOD);
}
