//! K5: which summaries are accepted.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::turns;
use crate::support::model::{COMPACT, MAIN};
use crate::support::{Answer, Backend, ScriptedModel, TestApp};

/// Both models answer like this: the compaction model once, the session's once, and no change.
async fn is_refused(backend: Backend, answer: Answer) {
    let model = ScriptedModel::start().await;
    model.script(COMPACT, [answer.clone()]);
    model.script(MAIN, [answer.clone()]);
    let variables = [("PRECIS_COMPACTION_MODEL", COMPACT)];
    let app = TestApp::with_model(backend, &model, &variables).await;
    let id = app.create_with(&turns(5, 100)).await;
    let before = app.session(&id).await;
    let context = app.get(&format!("/sessions/{id}/context")).await;

    app.compact(&id, &json!({}))
        .await
        .problem(502, "SUMMARIZER_FAILED");

    assert_eq!(
        model.models(),
        [COMPACT, MAIN],
        "the compaction model, then the session's model once: {answer:?}"
    );
    assert_eq!(app.session(&id).await, before, "the session is unchanged");
    assert!(app.compactions(&id).await.is_empty(), "there is no record");
    let after = app.get(&format!("/sessions/{id}/context")).await;
    assert_eq!(after.body, context.body, "the context has the same bytes");

    // The session's own model is a second chance, not a formality.
    model.script(MAIN, [Answer::Summary]);
    let answer = app.compact(&id, &json!({})).await.expect(200).json();
    assert_eq!(
        answer["compaction"]["model"], MAIN,
        "the record says who wrote it"
    );
}

fn body_with(choices: &Value) -> Answer {
    Answer::Body(json!({"id": "x", "object": "chat.completion", "model": "m", "choices": choices}))
}

#[rstest]
#[case::nothing(Answer::Text(String::new()))]
#[case::white_space(Answer::Text("  \n\t".to_owned()))]
#[case::only_nul(Answer::Text("\u{0}\u{0} ".to_owned()))]
#[case::no_choices(body_with(&json!([])))]
#[case::no_message(body_with(&json!([{"index": 0, "finish_reason": "stop"}])))]
#[case::null_content(body_with(&json!([{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": null}}])))]
#[case::an_error_with_status_200(Answer::Body(json!({"error": {"message": "busy", "code": "no_capacity"}})))]
#[case::no_json(Answer::Status(200, vec![], "<html>busy</html>".to_owned()))]
#[tokio::test(flavor = "multi_thread")]
async fn s11_an_empty_answer_is_a_failure(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] answer: Answer,
) {
    is_refused(backend, answer).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s12_a_summary_that_was_cut_off_is_a_failure(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(
        "length",
        "max_tokens",
        "MAX_TOKENS",
        "model_length",
        "incomplete",
        "content_filter",
        "tool_calls",
        "a_reason_nobody_knows"
    )]
    reason: &'static str,
) {
    let text = "Decisions: use the blue".to_owned();
    is_refused(backend, Answer::Finished(text, reason)).await;
}
