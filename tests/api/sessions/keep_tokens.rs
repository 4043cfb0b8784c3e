//! `keepTokens`: a budget for what stays, and where the sizes come from.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{turns, u, user};
use crate::support::tokens::{Budget, estimate};
use crate::support::{Backend, Boundary, FIXTURES, History, TestApp, conversation};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn fixtures_are_cut_where_the_rest_fits(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for name in FIXTURES {
        let raws = conversation(name);
        let history = History::new(&raws);
        let total: usize = history.messages.iter().map(|m| estimate(&m.raw)).sum();
        let id = app.create_with(&raws).await;
        for (boundary, keep) in [
            (Boundary::Turn, 1),
            (Boundary::Step, 0),
            (Boundary::Turn, 3),
        ] {
            for part in 0..=10 {
                let budget = Budget {
                    tokens: total * part / 10,
                    boundary,
                    keep,
                };
                let plan = history.plan_within(0, budget);
                let mut body = budget.body();
                body["dryRun"] = json!(true);
                let planned = app.compact(&id, &body).await.expect(200).json();
                assert_eq!(
                    planned["newSize"],
                    plan.size_after(0),
                    "{name}, {body}: {planned:#}"
                );
                assert!(
                    plan.reasons().contains(&planned["reason"].as_str()),
                    "{name}, {body}"
                );
                assert_eq!(planned["tokensBy"], "estimate", "{name}, {body}");
            }
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_a_budget_says_so(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    // 25 tokens each.
    let id = app.create_with(&turns(5, 100)).await;
    let answer = app
        .compact(&id, &json!({"keepTokens": 100}))
        .await
        .expect(200)
        .json();
    assert_eq!(answer["newSize"], 6, "four messages stay: {answer:#}");
    assert_eq!(answer["compaction"]["keepTokens"], 100);
    assert_eq!(answer["compaction"]["compactCount"], Value::Null);
    for tokens in [100, 1_000_000] {
        let body = json!({"keepTokens": tokens});
        let answer = app.compact(&id, &body).await.expect(200).json();
        assert_eq!(answer["reason"], "within_budget", "{answer:#}");
        assert_eq!(answer["compactedCount"], 0);
        assert_eq!(answer["alreadyUpToDate"], true);
    }
    // One token less, and the next turn goes; nothing fits into 0, so the largest cut is taken.
    let answer = app
        .compact(&id, &json!({"keepTokens": 99}))
        .await
        .expect(200)
        .json();
    assert_eq!(answer["newSize"], 8);
    let answer = app
        .compact(&id, &json!({"keepTokens": 0}))
        .await
        .expect(200)
        .json();
    assert_eq!(
        answer["reason"], "protected",
        "the newest turn stays: {answer:#}"
    );
}

#[rstest]
#[case::both(json!({"keepTokens": 5, "compactCount": 50}))]
#[case::negative(json!({"keepTokens": -1}))]
#[case::null(json!({"keepTokens": null}))]
#[case::text(json!({"keepTokens": "5"}))]
#[case::fraction(json!({"keepTokens": 5.5}))]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_budget_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] body: Value,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(3, 100)).await;
    app.compact(&id, &body)
        .await
        .problem(422, "VALIDATION_FAILED");
    assert!(app.compactions(&id).await.is_empty());
}

fn answer(names: [&str; 2], input: i64, output: i64) -> String {
    let usage = json!({names[0]: input, names[1]: output});
    json!({"role": "assistant", "content": "x".repeat(40), "precis": {"usage": usage}}).to_string()
}

/// Texts of 10 tokens by the estimate; usage says otherwise.
#[rstest]
#[case::responses(["input_tokens", "output_tokens"])]
#[case::chat_completions(["prompt_tokens", "completion_tokens"])]
#[tokio::test(flavor = "multi_thread")]
async fn usage_knows_sizes_better(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] names: [&str; 2],
) {
    let app = TestApp::spawn(backend).await;
    let raws = [
        u(40),
        answer(names, 1_000, 70),
        // 1,000 + 70 + this is 1,570: 500.
        u(40),
        answer(names, 1_570, 30),
        // 1,570 + 30 + this is 1,800: 200.
        u(40),
        answer(names, 1_800, 900),
    ];
    let id = app.create_with(&raws).await;
    // The tail from position 4: 200 + 900. From 2: 500 + 30 more.
    for (tokens, size) in [(0, 4), (1_099, 4), (1_100, 4), (1_629, 4), (1_630, 2)] {
        let body = json!({"keepTokens": tokens, "dryRun": true});
        let planned = app.compact(&id, &body).await.expect(200).json();
        assert_eq!(planned["newSize"], size, "{body}: {planned:#}");
        assert_eq!(planned["tokensBy"], "usage", "{body}");
    }
    let body = json!({"keepTokens": 1_800, "dryRun": true});
    let planned = app.compact(&id, &body).await.expect(200).json();
    assert_eq!(
        planned["reason"], "within_budget",
        "with 70 and an estimate of 10: {planned:#}"
    );
}

/// What stood between is shared out by the estimates; a count that shrinks tells nothing.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn growth_is_shared_out_and_nonsense_is_not_believed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let names = ["input_tokens", "output_tokens"];
    let app = TestApp::spawn(backend).await;
    let shared = [
        u(40),
        answer(names, 1_000, 10),
        // 400 tokens stand between, a quarter and three quarters.
        u(400),
        u(1_200),
        answer(names, 1_410, 10),
    ];
    let id = app.create_with(&shared).await;
    let body = |tokens: u64| json!({"keepTokens": tokens, "boundary": "step", "keepRecentTurns": 0, "dryRun": true});
    for (tokens, size) in [(310, 3), (410, 2), (309, 4)] {
        let planned = app.compact(&id, &body(tokens)).await.expect(200).json();
        assert_eq!(planned["newSize"], size, "{tokens}: {planned:#}");
    }
    // The second call was told less than the first: somebody cut the history. The estimate holds.
    let shrunk = [
        u(40),
        answer(names, 5_000, 10),
        u(400),
        answer(names, 600, 10),
    ];
    let id = app.create_with(&shrunk).await;
    for (tokens, size) in [(110, 2), (109, 3)] {
        let planned = app.compact(&id, &body(tokens)).await.expect(200).json();
        assert_eq!(planned["newSize"], size, "{tokens}: {planned:#}");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_script_has_its_estimate(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let image = json!({"role": "user", "content": [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{}", "A".repeat(50_000))}}]});
    for raw in [
        u(1_001),
        user(&"\u{4e2d}".repeat(300)),
        user(&"\u{1f600}e".repeat(77)),
        image.to_string(),
    ] {
        let tokens = estimate(&raw);
        let id = app.create_with(&[raw, u(4)]).await;
        for (budget, reason) in [(tokens + 1, "within_budget"), (tokens, "open_turn")] {
            let body = json!({"keepTokens": budget, "dryRun": true});
            let planned = app.compact(&id, &body).await.expect(200).json();
            let reasons = [reason, "protected"];
            let given = planned["reason"].as_str().unwrap_or_default();
            assert!(
                given == reason || (reason == "open_turn" && reasons.contains(&given)),
                "{budget} for {tokens} tokens: {planned:#}"
            );
        }
    }
}
