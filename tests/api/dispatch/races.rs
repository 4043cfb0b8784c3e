//! Dispatches beside appends, compactions, rewinds and each other, in one process and in two.

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use super::sent::{Sent, edits, sha};
use super::talk::{agent_loop, steps};
use crate::support::messages::user;
use crate::support::{Backend, History, Http, TestApp};

const POLICY: fn() -> Value = || {
    json!({"enabled": true, "budgetTokens": 3_000, "protectRecentTurns": 2, "maxToolResultBytes": 1_000,
        "keepHeadBytes": 100, "keepTailBytes": 100})
};

/// Every dispatch has its own number, and edits never go away.
async fn check(http: &Http, id: &str, mut sent: Vec<Sent>, what: &str) {
    sent.sort_by_key(|sent| sent.dispatch);
    let numbers: Vec<u64> = sent.iter().map(|sent| sent.dispatch).collect();
    let expected: Vec<u64> = (1..=sent.len() as u64).collect();
    assert_eq!(numbers, expected, "{what}: no gaps and no repeats");
    let stored: Vec<String> = http
        .history(id)
        .await
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    let mut before: Vec<(usize, String)> = Vec::new();
    let mut added = 0;
    for sent in &sent {
        let length = usize::try_from(sent.last_seq).expect("small");
        let rendered = History::new(&stored[..length]).render(0, None);
        let shown = sent.messages();
        let edits = edits(&shown, &rendered, what);
        for (index, text) in before.iter().filter(|(index, _)| *index < length) {
            assert_eq!(
                shown[*index], *text,
                "{what}: edit {index} stays in {}",
                sent.dispatch
            );
        }
        if edits.len() > before.len() {
            before = edits
                .iter()
                .map(|index| (*index, shown[*index].clone()))
                .collect();
        }
        let record = http.replay(id, sent.dispatch).await.record;
        added += record["added"].as_u64().expect("a number");
        http.replays_as(id, sent, what).await;
    }
    assert_eq!(http.stats(id).await["elisions"], added, "{what}");
    assert_eq!(
        before.len() as u64,
        added,
        "{what}: each edit was made once"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn parallel_dispatches_and_appends_line_up(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let other = app.spawn_second().await;
    for replicas in [1, 2] {
        let id = app.create_pruned(POLICY(), &agent_loop(4, 2_500)).await;
        let body = json!({});
        let dispatches = (0..20).map(|number| {
            let http: &Http = if number % replicas == 0 { &app } else { &other };
            http.dispatch(&id, &body)
        });
        let appends = async {
            for number in 4..14 {
                app.append(&id, &steps(number, number + 1, 2_500)).await;
            }
        };
        let (sent, ()) = futures_util::future::join(join_all(dispatches), appends).await;
        check(&app, &id, sent, "in parallel").await;
        let last = app.dispatch(&id, &json!({})).await;
        assert!(last.tokens.after <= 3_000, "{:?}", last.tokens);
        assert_eq!(app.shown(&id).await, other.shown(&id).await);
    }
}

/// What a dispatch answers is of one moment, whatever happens to the history meanwhile.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_races_a_rewrite_is_whole(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut possible = 0;
    let mut gone = 0;
    for round in 0..6 {
        let id = app.create_pruned(POLICY(), &agent_loop(12, 2_500)).await;
        app.append(
            &id,
            &[crate::support::messages::assistant("ok"), user("go on")],
        )
        .await;
        let empty = json!({});
        let dispatches = (0..6).map(|_| app.dispatch(&id, &empty));
        let item = app.history(&id).await[6].id.clone();
        let rewrite = async {
            match round % 3 {
                0 => drop(
                    app.compact(&id, &json!({"compactCount": 40, "boundary": "step"}))
                        .await
                        .expect(200),
                ),
                1 => drop(app.rewind(&id, 17).await.expect(200)),
                _ => drop(app.erase(&id, &item).await.expect(204)),
            }
        };
        let (sent, ()) = futures_util::future::join(join_all(dispatches), rewrite).await;
        let last = app.dispatch(&id, &json!({})).await;
        for sent in sent.iter().chain([&last]) {
            let replay = app.replay(&id, sent.dispatch).await;
            if let Some(items) = &replay.items {
                assert_eq!(sha(items), sent.sha256, "round {round}");
                assert_eq!(*items, sent.items(), "round {round}");
                possible += 1;
            } else {
                assert!(
                    round % 3 != 0,
                    "a compaction takes nothing: {:#}",
                    replay.record
                );
                assert_eq!(replay.missing().len(), 1);
                gone += 1;
            }
        }
        assert_eq!(app.shown(&id).await, last.messages(), "round {round}");
        assert_eq!(app.stats(&id).await["dispatches"], 7, "round {round}");
    }
    assert!(possible >= 6 + 14, "{possible} possible, {gone} gone");
}
