//! Which summaries are refused, and what is done to those that are taken.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::turns;
use crate::support::model::MAIN;
use crate::support::{Answer, Backend, Reply, ScriptedModel, TestApp};

/// Compacts five turns of this size with a model that says this; the answer, and the session.
async fn summarised(
    backend: Backend,
    size: usize,
    text: &str,
    max_tokens: u64,
) -> (Reply, Value, Value) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [Answer::Text(text.to_owned())]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let policy = json!({"maxSummaryTokens": max_tokens});
    let id = app.create(&json!({"compaction": policy})).await;
    app.append(&id, &turns(5, size)).await;
    let before = app.session(&id).await;
    let reply = app.compact(&id, &json!({})).await;
    (reply, before, app.session(&id).await)
}

#[rstest]
// 4,000 characters are 1,000 tokens where 100 were allowed.
#[case::longer_than_allowed_by_far(2_000, 4_000, 100)]
// The batch is 6,000 units.
#[case::not_shorter_than_what_it_replaces(1_000, 6_000, 2_000)]
#[case::longer_than_what_it_replaces(1_000, 6_500, 2_000)]
// The batch is 12,000 units.
#[case::far_too_short_for_its_batch(2_000, 39, 2_000)]
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_of_the_wrong_size_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] size: usize,
    #[case] length: usize,
    #[case] max_tokens: u64,
) {
    let text = "word ".repeat(length / 5 + 1)[..length - 1].to_owned() + ".";
    let (reply, before, after) = summarised(backend, size, &text, max_tokens).await;
    let code = reply.json()["code"].as_str().unwrap_or_default().to_owned();
    match code.as_str() {
        "SUMMARY_NOT_SMALLER" => reply.problem(422, "SUMMARY_NOT_SMALLER"),
        _ => reply.problem(502, "SUMMARIZER_FAILED"),
    };
    assert_eq!(after, before, "a refused summary changes nothing");
}

#[rstest]
// 560 characters are 140 tokens: more than 100, not by more than half.
#[case::a_little_over_the_limit(2_000, 560, 100)]
#[case::just_shorter_than_what_it_replaces(1_000, 5_900, 2_000)]
#[case::short_for_a_long_batch(2_000, 40, 2_000)]
// The batch is 600 units: below 2,000 only maxSummaryTokens limits.
#[case::longer_than_a_small_batch(100, 900, 2_000)]
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_of_a_fitting_size_is_taken(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] size: usize,
    #[case] length: usize,
    #[case] max_tokens: u64,
) {
    let text = "word ".repeat(length / 5 + 1)[..length - 1].to_owned() + ".";
    let (reply, _, after) = summarised(backend, size, &text, max_tokens).await;
    reply.expect(200);
    assert_eq!(
        after["compactSummary"], text,
        "the summary as the model wrote it"
    );
    assert_eq!(after["compactionVersion"], 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_is_stored_trimmed_and_without_nul(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let text = " \n\t The\u{0} user\n\n wants \u{e9}\u{1f600}.\u{0} \r\n ";
    let (reply, _, after) = summarised(backend, 100, text, 2_000).await;
    let answer = reply.expect(200).json();
    let expected = "The user\n\n wants \u{e9}\u{1f600}.";
    assert_eq!(after["compactSummary"], expected, "in the session");
    assert_eq!(answer["compaction"]["summary"], expected, "in the record");
}
