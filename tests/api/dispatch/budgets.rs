//! Budgets and windows: how far a dispatch prunes, what it leaves alone, which models it says will do.

use rstest::rstest;
use serde_json::{Value, json};

use super::sent::{edits, window};
use super::talk::{agent_loop, calling, lines, steps};
use crate::support::messages::{assistant, result, user};
use crate::support::{Backend, History, TestApp};

/// Over 100,000 tokens: an early `deploy`, and then a loop that reads one file after another.
fn long_history() -> Vec<String> {
    let mut messages = vec![
        user("Ship it, then read everything."),
        calling(&[
            ("d", "deploy", r#"{"target":"prod"}"#),
            ("s", "status", "{}"),
        ]),
        result("d", &lines("deploy", 9_000)),
        result("s", &lines("status", 9_000)),
        assistant("Shipped."),
        user("Now read."),
    ];
    messages.extend(steps(0, 50, 8_500));
    messages
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_tokens_end_under_the_budget(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages = long_history();
    let id = app.create_pruned(json!({"enabled": true}), &messages).await;
    let candidates = json!([
        {"model": "tiny", "contextWindow": 2_000},
        {"model": "middle", "contextWindow": 50_000},
        {"model": "large", "contextWindow": 1_000_000},
    ]);
    // A history is stored as it is, so before the first dispatch the middle one holds nothing.
    let body = json!({
        "candidates": candidates,
        "tool_choice": {"type": "function", "function": {"name": "deploy"}},
        "reservedTokens": 3_000,
    });
    let sent = app.dispatch(&id, &body).await;
    assert!(sent.tokens.before > 100_000, "{:?}", sent.tokens);
    assert!(
        sent.tokens.after <= 40_000,
        "{:?} {:?}",
        sent.tokens,
        sent.reasons
    );
    assert_eq!(sent.tokens.by, "estimate");
    let history = History::new(&messages);
    let shown = sent.messages();
    let edits = edits(&shown, &history.render(0, None), "pruned");
    let from = window(&shown, 0, 4);
    assert_eq!(shown[from..], messages[from..], "the window, byte for byte");
    assert!(from > 90 && edits.iter().all(|edit| *edit < from));
    assert_eq!(
        shown[..5],
        messages[..5],
        "what `tool_choice` names stays whole"
    );
    let fits: Vec<&Value> = sent.candidates.iter().map(|one| &one["fit"]).collect();
    assert_eq!(fits, ["no", "pruned", "raw"]);
    let prunes = sent
        .reasons
        .iter()
        .find(|line| line.starts_with("pruning: "));
    let prunes = prunes.expect("a line on pruning");
    assert!(
        prunes.contains(&format!("{} messages", edits.len())),
        "{prunes}"
    );

    // Once the tool is no longer named, its results are as any other; they lie before those edited.
    app.set_pruning(&id, json!({"budgetTokens": 30_000})).await;
    let next = app.dispatch(&id, &json!({"reservedTokens": 3_000})).await;
    assert!(
        next.tokens.after <= 30_000,
        "{:?} {:?}",
        next.tokens,
        next.reasons
    );
}

/// An edit costs a cached prefix, so a pruned context is not touched before it is over again.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_trigger_sees_what_is_sent_and_not_what_is_stored(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for expected in [(1.0, 1), (0.75, 3), (0.6, 4)] {
        count_changes(&app, expected).await;
    }
}

async fn count_changes(app: &TestApp, expected: (f64, usize)) {
    let (floor, fewer) = expected;
    let policy = json!({"enabled": true, "floorRatio": floor});
    let id = app.create_pruned(policy, &[user("Read on.")]).await;
    let (mut changes, mut over) = (0, 0);
    for number in 0..30 {
        app.append(&id, &steps(number, number + 1, 11_600)).await;
        let sent = app.dispatch(&id, &json!({})).await;
        let added = app.replay(&id, sent.dispatch).await.record["added"].as_u64();
        changes += usize::from(added > Some(0));
        over += usize::from(sent.tokens.before > 40_000);
        assert!(sent.tokens.after <= 40_000, "{:?}", sent.tokens);
    }
    assert!(over >= 15, "the history is over the budget {over} times");
    assert!(
        changes > 1 && changes <= over / fewer,
        "{changes} changes of {over} at {floor}"
    );
    // Without a margin the prefix changes almost every time.
    assert!(
        fewer > 1 || changes * 10 >= over * 8,
        "{changes} changes of {over} at {floor}"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_window_prunes_though_the_budget_would_not(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages = agent_loop(12, 8_000);
    let id = app.create_pruned(json!({"enabled": true}), &messages).await;
    let sent = app.dispatch(&id, &json!({"contextWindow": 200_000})).await;
    assert_eq!((sent.messages(), sent.fits), (messages.clone(), Some(true)));
    // 20,000 × 0.9 − 3,000.
    let body = json!({"contextWindow": 20_000, "maxOutputTokens": 3_000, "reservedTokens": 1_000});
    let sent = app.dispatch(&id, &body).await;
    assert!(
        sent.tokens.after <= 15_000 && sent.tokens.before > 20_000,
        "{:?}",
        sent.tokens
    );
    assert_eq!(sent.fits, Some(true));
    assert!(
        sent.reasons.iter().any(|line| line.starts_with("window: ")),
        "{:?}",
        sent.reasons
    );
    let record = app.replay(&id, sent.dispatch).await.record;
    assert_eq!(record["parameters"]["contextWindow"], 20_000);
    assert_eq!(record["parameters"]["reservedTokens"], 1_000);

    let other = json!({"enabled": true, "fitToWindow": false});
    let id = app.create_pruned(other, &messages).await;
    let sent = app.dispatch(&id, &body).await;
    assert_eq!(
        (sent.messages(), sent.fits),
        (messages, Some(false)),
        "told not to"
    );
}

/// Off is off: nothing is shortened, whatever the sizes say; but what was shortened stays so.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn pruning_is_never_implicit(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let messages = agent_loop(30, 8_000);
    let id = app.create_with(&messages).await;
    let body =
        json!({"contextWindow": 10_000, "candidates": [{"model": "m", "contextWindow": 50_000}]});
    let sent = app.dispatch(&id, &body).await;
    assert_eq!(sent.messages(), messages);
    assert_eq!(
        (sent.fits, &sent.candidates[0]["fit"]),
        (Some(false), &json!("no"))
    );
    app.set_pruning(&id, json!({"enabled": true})).await;
    let pruned = app.dispatch(&id, &json!({})).await;
    assert!(pruned.tokens.after <= 40_000);
    app.set_pruning(&id, json!({"enabled": false})).await;
    let after = app.dispatch(&id, &json!({})).await;
    assert_eq!(
        after.messages(),
        pruned.messages(),
        "an edit that was sent is permanent"
    );
    app.append(&id, &steps(30, 60, 8_000)).await;
    let after = app.dispatch(&id, &json!({})).await;
    assert_eq!(
        after.messages()[..61],
        pruned.messages()[..],
        "and there are no new ones"
    );
    let record = app.replay(&id, after.dispatch).await.record;
    assert_eq!(
        (
            &record["added"],
            record["sharedBytes"] == record["previousBytes"]
        ),
        (&json!(0), true)
    );
}

/// A forced call is protected by whichever API's spelling names it, and only for that dispatch.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_tool_is_known_in_both_spellings(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for choice in [
        json!({"type": "function", "function": {"name": "deploy"}}),
        json!({"type": "tool", "name": "deploy"}),
    ] {
        forced_tool_is_kept(&app, choice).await;
    }
}

async fn forced_tool_is_kept(app: &TestApp, choice: Value) {
    let messages = long_history();
    let policy = json!({"enabled": true, "budgetTokens": 1_000});
    let id = app.create_pruned(policy, &messages).await;
    let kept = app.dispatch(&id, &json!({"tool_choice": choice})).await;
    assert_eq!(kept.messages()[..5], messages[..5]);
    let auto = app.dispatch(&id, &json!({"tool_choice": "auto"})).await;
    assert_ne!(auto.messages()[2], messages[2], "no longer named");
    assert_eq!(auto.messages()[6..], kept.messages()[6..]);
}

/// What is said of a candidate is what a dispatch to it would find.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn candidates_are_judged_as_a_dispatch_would(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let windows = [800, 3_000, 6_000, 9_000, 14_000, 20_000, 60_000];
    let candidates = windows.map(|window| json!({"model": "m", "contextWindow": window}));
    for (policy, expected) in [
        (json!({}), vec!["no", "raw"]),
        (json!({"enabled": true}), vec!["no", "pruned", "raw"]),
        // Told not to prune for a window, it does not.
        (
            json!({"enabled": true, "fitToWindow": false}),
            vec!["no", "raw"],
        ),
    ] {
        let id = app.create_pruned(policy, &agent_loop(10, 5_000)).await;
        let body = json!({"candidates": candidates, "maxOutputTokens": 500, "reservedTokens": 300});
        let judged = app.dispatch(&id, &body).await.candidates;
        let mut said: Vec<&str> = judged
            .iter()
            .filter_map(|one| one["fit"].as_str())
            .collect();
        for (window, fit) in windows.into_iter().zip(said.clone()) {
            let fork = app.fork(&id, &json!({})).await.expect(201).json();
            let fork = fork["id"].as_str().expect("an id");
            let body =
                json!({"contextWindow": window, "maxOutputTokens": 500, "reservedTokens": 300});
            let sent = app.dispatch(fork, &body).await;
            assert_eq!(
                sent.fits,
                Some(fit != "no"),
                "{window}: {fit}, {:?}",
                sent.tokens
            );
            let is_raw = sent.tokens.before == sent.tokens.after;
            assert!(fit == "no" || is_raw == (fit == "raw"), "{window}: {fit}");
        }
        said.dedup();
        assert_eq!(said, expected);
    }
}
