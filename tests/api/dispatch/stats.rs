//! Statistics: every number told twice, here from the records and there by the service.

use rstest::rstest;
use serde_json::{Value, json};

use super::talk::{agent_loop, lines, read, steps};
use crate::support::messages::{assistant, user};
use crate::support::{Backend, Http, TestApp};

const POLICY: fn() -> Value = || {
    json!({"enabled": true, "budgetTokens": 3_000, "floorRatio": 0.5, "protectRecentTurns": 2,
        "maxToolResultBytes": 1_000, "keepHeadBytes": 100, "keepTailBytes": 100})
};

async fn records(http: &Http, id: &str) -> Vec<Value> {
    let mut all = Vec::new();
    let mut path = format!("/sessions/{id}/dispatches?limit=7");
    loop {
        let page = http.get(&path).await.expect(200).json();
        all.extend(page["data"].as_array().expect("a list").iter().cloned());
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/sessions/{id}/dispatches?limit=7&cursor={cursor}"),
            None => break,
        }
    }
    let numbers: Vec<u64> = all.iter().filter_map(|one| one["n"].as_u64()).collect();
    let expected: Vec<u64> = (1..=all.len() as u64).rev().collect();
    assert_eq!(numbers, expected, "newest first, each once");
    all
}

fn sum(records: &[Value], of: impl Fn(&Value) -> i64) -> i64 {
    records.iter().map(of).sum()
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_those_of_the_records(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_pruned(POLICY(), &agent_loop(1, 2_000)).await;
    let mut is_over = false;
    for number in 1..16 {
        let stats = app.stats(&id).await;
        if !is_over && number > 2 {
            assert_eq!(
                stats["prefix"]["share"], 1.0,
                "nothing but appends: {stats:#}"
            );
        }
        app.append(&id, &steps(number, number + 1, 2_000)).await;
        let sent = app.dispatch(&id, &json!({})).await;
        is_over |= sent.tokens.before > 3_000;
    }
    let all = records(&app, &id).await;
    let stats = app.stats(&id).await;
    let saved = sum(&all, |one| {
        number(&one["tokensBefore"]) - number(&one["tokensAfter"])
    });
    assert_eq!(number(&stats["tokensSaved"]), saved, "{stats:#}");
    assert!(saved > 0);
    let changes = all.iter().filter(|one| one["added"] != 0).count();
    assert_eq!(stats["planChanges"], changes);
    assert!(changes > 2 && changes < 10, "{changes}");
    let added = sum(&all, |one| number(&one["added"]));
    assert_eq!(number(&stats["elisions"]), added);
    assert_eq!(stats["dispatches"], all.len());
    let plan: i64 = stats["plan"]
        .as_object()
        .expect("a plan")
        .values()
        .map(|rule| number(&rule["messages"]))
        .sum();
    assert_eq!(plan, added, "nothing was dropped");
    assert_eq!(number(&all[0]["planLength"]), added);
    let kept: i64 = stats["plan"]
        .as_object()
        .expect("a plan")
        .values()
        .map(|rule| number(&rule["tokens"]))
        .sum();
    assert_eq!(
        kept,
        number(&all[0]["tokensBefore"]) - number(&all[0]["tokensAfter"])
    );
    assert_eq!(stats["contextTokens"], all[0]["tokensAfter"]);
    assert_eq!(stats["storedTokens"], all[0]["tokensBefore"]);
    let previous = sum(&all, |one| number(&one["previousBytes"]));
    let shared = sum(&all, |one| number(&one["sharedBytes"]));
    assert_eq!(number(&stats["prefix"]["previousBytes"]), previous);
    assert_eq!(number(&stats["prefix"]["sharedBytes"]), shared);
    let share = stats["prefix"]["share"].as_f64().expect("a share");
    assert!(
        share > 0.3 && share < 1.0,
        "less after a change of the plan: {share}"
    );
    for (newer, older) in all.iter().zip(&all[1..]) {
        assert_eq!(newer["previousBytes"], older["bytes"], "{newer:#}");
        let is_whole = newer["sharedBytes"] == newer["previousBytes"];
        assert_eq!(is_whole, newer["added"] == 0, "{newer:#}");
    }
    assert_eq!(all[all.len() - 1]["previousBytes"], Value::Null);
}

/// The share is measured, not guessed: it is the one of the bytes, within what the notes allow.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_share_is_the_one_of_the_bytes(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_pruned(POLICY(), &agent_loop(1, 2_000)).await;
    let mut before = app.dispatch(&id, &json!({})).await.items().join(",");
    for number in 1..14 {
        app.append(&id, &steps(number, number + 1, 2_000)).await;
        let sent = app.dispatch(&id, &json!({})).await;
        let record = app.replay(&id, sent.dispatch).await.record;
        let now = sent.items().join(",");
        let common = before
            .bytes()
            .zip(now.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        let told =
            usize::try_from(record["sharedBytes"].as_u64().expect("a number")).expect("small");
        let longest = before.len().max(now.len());
        assert!(
            told <= common && common - told <= 64.max(longest / 128),
            "{told} of {common}"
        );
        before = now;
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_again_is_counted(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages = [
        vec![user("go")],
        read("c1", "a", &lines("WORDONE", 9_000)).to_vec(),
        read("c2", "b", &lines("b", 9_000)).to_vec(),
        vec![assistant("hm"), user("and?"), assistant("well")],
    ]
    .concat();
    let id = app.create_pruned(POLICY(), &messages).await;
    let refetches = async || app.stats(&id).await["refetches"].clone();
    app.append(&id, &read("c3", "a", "fresh")).await;
    app.dispatch(&id, &json!({})).await;
    assert_eq!(
        refetches().await,
        0,
        "nothing had been shortened when it was asked for"
    );
    app.append(&id, &read("c4", "b", "fresh")).await;
    app.append(&id, &read("c5", "other", "x")).await;
    let sent = app.dispatch(&id, &json!({})).await;
    assert_eq!(refetches().await, 1, "b was");
    let record = app.replay(&id, sent.dispatch).await.record;
    assert_eq!(record["refetches"], 1);
    app.dispatch(&id, &json!({})).await;
    assert_eq!(refetches().await, 1, "each call once");

    let items = app.history(&id).await;
    assert_eq!(
        app.stats(&id).await["restores"],
        0,
        "a list reads nothing back"
    );
    let states: Vec<&str> = items.iter().map(|item| item.state.as_str()).collect();
    assert_eq!(
        (states[2], states[4], states[3], states[7]),
        ("elided", "elided", "verbatim", "verbatim")
    );
    let one = app
        .get(&format!("/sessions/{id}/messages/{}", items[2].id))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&one["state"], &one["message"]["content"]),
        (&json!("elided"), &json!(lines("WORDONE", 9_000)))
    );
    app.get(&format!("/sessions/{id}/messages/{}", items[3].id))
        .await
        .expect(200);
    assert_eq!(
        app.stats(&id).await["restores"],
        1,
        "an elided message was read back"
    );
    let hits = app
        .get(&format!("/sessions/{id}/search?q=WORDONE"))
        .await
        .expect(200)
        .json();
    assert_eq!(hits["data"][0]["state"], "elided", "{hits:#}");
    assert_eq!(hits["data"][0]["messageId"], items[2].id.as_str());
    let hits = app
        .get(&format!("/sessions/{id}/search?q=fresh"))
        .await
        .expect(200)
        .json();
    assert_eq!(hits["data"][0]["state"], "verbatim", "{hits:#}");
}

/// Where a summary has gone past an edited message, that is what its state says.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_summarised_message_is_no_longer_elided(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages = [
        agent_loop(4, 3_000),
        vec![assistant("a"), user("b"), assistant("c")],
    ]
    .concat();
    let id = app.create_pruned(POLICY(), &messages).await;
    app.dispatch(&id, &json!({})).await;
    assert_eq!(app.history(&id).await[2].state, "elided");
    app.compact(&id, &json!({"compactCount": 99}))
        .await
        .expect(200);
    assert_eq!(app.history(&id).await[2].state, "summarised");
    let stats = app.stats(&id).await;
    assert_eq!(
        (&stats["plan"], &stats["elisions"]),
        (&json!({}), &stats["elisions"])
    );
    assert!(
        stats["elisions"].as_u64() > Some(0),
        "those that are gone counted in"
    );
    app.restore(&id, 0).await.expect(200);
    assert_eq!(app.history(&id).await[2].state, "elided");
}

/// The other form is another prefix.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_form_shares_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&agent_loop(3, 500)).await;
    for (format, whole) in [
        ("openai", false),
        ("openai", true),
        ("anthropic", false),
        ("anthropic", true),
        ("openai", false),
    ] {
        let sent = app.dispatch(&id, &json!({"format": format})).await;
        let record = app.replay(&id, sent.dispatch).await.record;
        let is_whole = record["sharedBytes"].as_u64() > Some(0)
            && record["sharedBytes"] == record["previousBytes"];
        assert_eq!(is_whole, whole, "{format}: {record:#}");
    }
}
