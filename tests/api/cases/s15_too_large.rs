//! K6: the compaction prompt itself does not fit.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{a, assistant, calls, padded, r, turns, u, user};
use crate::support::model::{Call, MAIN, mark, marks};
use crate::support::{Answer, Backend, History, ScriptedModel, TestApp, chain};

/// Characters of a prompt that the model takes.
const MOST: usize = 200_000;

fn overflowing() -> Answer {
    Answer::Within(MOST, Box::new(Answer::Marks))
}

/// Twenty turns of 20,000 characters a message, each with its mark in front.
fn large() -> Vec<String> {
    (0..40_usize)
        .map(|n| {
            let text = padded(&format!("{} ", mark(n)), 20_000);
            if n % 2 == 0 {
                user(&text)
            } else {
                assistant(&text)
            }
        })
        .collect()
}

fn number(value: &Value) -> usize {
    usize::try_from(
        value
            .as_u64()
            .unwrap_or_else(|| panic!("a number, got {value}")),
    )
    .expect("small")
}

/// Each mark is in exactly one transcript that the model took.
#[track_caller]
fn each_once(calls: &[Call], count: usize) {
    let mut seen: Vec<String> = Vec::new();
    for call in calls.iter().filter(|call| call.size() <= MOST) {
        seen.extend(marks(&call.transcript()));
    }
    let expected: Vec<String> = (0..count).map(mark).collect();
    assert_eq!(
        seen, expected,
        "each message in one successful call, in order"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s15_a_batch_that_is_too_large_is_folded(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [overflowing()]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let raws = large();
    let id = app.create_with(&raws).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 90}))
        .await
        .expect(200)
        .json();
    assert_eq!(
        answer["newSize"], 36,
        "the whole batch: {:#}",
        answer["compaction"]
    );
    let calls = model.calls();
    each_once(&calls, 36);
    let taken: Vec<&Call> = calls.iter().filter(|call| call.size() <= MOST).collect();
    let parts = number(&answer["compaction"]["parts"]);
    assert_eq!(
        parts,
        taken.len(),
        "the record tells of each successful call"
    );
    assert!(
        parts >= 4,
        "720,000 characters do not fit into {parts} calls of {MOST}"
    );
    assert!(
        calls.len() <= 4 * parts,
        "{} calls for {parts} parts",
        calls.len()
    );
    assert_eq!(
        answer["compaction"]["shortened"], 0,
        "each message fits alone"
    );
    assert_eq!(taken[0].previous(), None);
    for (part, pair) in taken.windows(2).enumerate() {
        let before = marks(pair[1].previous().expect("the part before"));
        let so_far: usize = taken[..=part]
            .iter()
            .map(|call| marks(&call.transcript()).len())
            .sum();
        assert_eq!(
            before.len(),
            so_far,
            "part {part} is the next one's previous summary"
        );
    }
    chain::check(&app, &id, &History::new(&raws), "s15").await;
    let summary = app.session(&id).await["compactSummary"]
        .as_str()
        .expect("a text")
        .to_owned();
    assert_eq!(
        marks(&summary),
        (0..36).map(mark).collect::<Vec<_>>(),
        "all of it is known"
    );
}

#[rstest]
#[case::a_long_answer(vec![u(1_000), assistant(&format!("HEAD{}TAIL", padded("", 500_000))), u(100)], 2)]
#[case::a_long_question(vec![user(&format!("HEAD{}TAIL", padded("", 500_000))), a(100), u(100)], 2)]
#[case::a_long_result(vec![u(10), calls(&["c1"], 0), r("c1", 500_000).replacen('x', "HEAD", 1).replace("x\"", "TAIL\""), a(100), u(100)], 4)]
#[tokio::test(flavor = "multi_thread")]
async fn s15_what_is_too_large_alone_is_shortened_and_the_record_says_so(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] raws: Vec<String>,
    #[case] size: usize,
) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [Answer::Within(MOST, Box::new(Answer::Summary))]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&raws).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 90}))
        .await
        .expect(200)
        .json();
    assert_eq!(answer["newSize"], size, "{:#}", answer["compaction"]);
    assert_eq!(
        answer["compaction"]["shortened"], 1,
        "{:#}",
        answer["compaction"]
    );
    let parts = number(&answer["compaction"]["parts"]);
    let all = model.calls();
    assert!(
        all.len() <= 4 * parts.max(1),
        "{} calls for {parts} parts",
        all.len()
    );
    let taken: Vec<&Call> = all.iter().filter(|call| call.size() <= MOST).collect();
    assert_eq!(taken.len(), parts);
    let holding: Vec<&&Call> = taken
        .iter()
        .filter(|call| call.user().contains("HEAD"))
        .collect();
    assert_eq!(holding.len(), 1, "its head is in one part");
    assert!(
        holding[0].user().contains("TAIL"),
        "and its tail in the same"
    );
    chain::check(&app, &id, &History::new(&raws), "s15, shortened").await;
    let stored = app.history(&id).await;
    for (item, raw) in stored.iter().zip(&raws) {
        assert!(item.message.get() == raw, "what is stored is not shortened");
    }
}

/// A window that nothing fits into: a few calls, an error, nothing written.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s15_a_model_that_never_fits_is_given_up(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [Answer::Within(0, Box::new(Answer::Summary))]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&large()).await;
    let before = app.session(&id).await;
    app.compact(&id, &json!({"compactCount": 90}))
        .await
        .problem(502, "SUMMARIZER_FAILED");
    let calls = model.calls().len();
    assert!(calls <= 8, "four calls for a part are enough, got {calls}");
    assert_eq!(app.session(&id).await, before, "nothing was written");
    assert!(app.compactions(&id).await.is_empty());
}

/// All or nothing: a part that fails takes the parts before it along.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s15_a_part_that_fails_fails_them_all(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let refusal = r#"{"error":{"message":"no","type":"invalid_request_error","code":"bad"}}"#;
    let refused = Answer::Status(400, vec![], refusal.to_owned());
    let fits = || Answer::Within(40_000, Box::new(Answer::Summary));
    let variables = [
        ("PRECIS_COMPACTION__CONTEXT_WINDOW", "8000"),
        ("PRECIS_COMPACTION__MAX_SUMMARY_TOKENS", "200"),
        ("PRECIS_COMPACTION__OUTPUT_CAP_TOKENS", "400"),
    ];
    let app = TestApp::with_model(backend, &model, &variables).await;
    let raws = turns(20, 4_000);
    let id = app.create_with(&raws).await;
    let before = app.session(&id).await;
    model.script(MAIN, [fits(), fits(), refused]);
    app.compact(&id, &json!({"compactCount": 90}))
        .await
        .problem(502, "SUMMARIZER_FAILED");
    assert_eq!(app.session(&id).await, before, "nothing was written");
    assert!(app.compactions(&id).await.is_empty());

    model.script(MAIN, [fits()]);
    let answer = app
        .compact(&id, &json!({"compactCount": 90}))
        .await
        .expect(200)
        .json();
    assert_eq!(answer["newSize"], 36);
    assert!(
        number(&answer["compaction"]["parts"]) >= 4,
        "{:#}",
        answer["compaction"]
    );
    chain::check(&app, &id, &History::new(&raws), "s15, the next run").await;
}
