//! Contexts that are streamed: over 4 MiB, digested before they are sent.

use rstest::rstest;
use serde_json::json;

use super::sent::{Sent, edits, sha};
use super::talk::{agent_loop, steps};
use crate::support::{Backend, History, TestApp};

/// Over 4 MiB in 300 steps.
const STEPS: usize = 300;
const BYTES: usize = 16_000;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_large_context_is_dispatched_pruned_and_replayed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages = agent_loop(STEPS, BYTES);
    let id = app.create_pruned(json!({}), &messages).await;
    let raw = app.dispatch(&id, &json!({})).await;
    assert_eq!(raw.messages(), messages);
    assert_eq!(raw.sha256, sha(&messages));
    app.replays_as(&id, &raw, "raw").await;

    // New edits in what is still too large to be kept.
    let whole = raw.tokens.after;
    let policy = json!({"enabled": true, "budgetTokens": whole - 20_000});
    app.set_pruning(&id, policy).await;
    let few = app.dispatch(&id, &json!({})).await;
    let history = History::new(&messages);
    let edited = edits(&few.messages(), &history.render(0, None), "some");
    assert!((4..12).contains(&edited.len()), "{edited:?}");
    assert!(few.tokens.after <= whole - 20_000 && few.items().concat().len() > 4 << 20);
    app.replays_as(&id, &few, "few edits").await;
    assert_eq!(app.shown(&id).await, few.messages());

    app.append(&id, &steps(STEPS, STEPS + 2, BYTES)).await;
    let more = app.dispatch(&id, &json!({})).await;
    assert_eq!(more.messages()[..edited[0]], few.messages()[..edited[0]]);
    assert!(more.tokens.after <= whole - 20_000);
    app.set_pruning(&id, json!({"budgetTokens": 40_000})).await;
    let all = app.dispatch(&id, &json!({"format": "anthropic"})).await;
    assert!(
        all.tokens.after <= 120_000 && all.items().concat().len() < 1 << 20,
        "{:?}",
        all.tokens
    );
    let past: [&Sent; 4] = [&raw, &few, &more, &all];
    for sent in past {
        app.replays_as(&id, sent, "at last").await;
    }
}
