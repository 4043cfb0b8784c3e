//! The plan under compaction, restore and fork: edits go with what the summary takes, and come back with it.

use rstest::rstest;
use serde_json::{Value, json};

use super::sent::edits;
use super::talk::{lines, read};
use crate::support::messages::{assistant, user};
use crate::support::{Backend, History, Http, TestApp};

const POLICY: fn() -> Value = || {
    json!({"enabled": true, "budgetTokens": 1, "protectRecentTurns": 2,
        "maxToolResultBytes": 1_000, "keepHeadBytes": 100, "keepTailBytes": 100})
};

/// Five turns: `b` read in the first and again in the third, the same poll in the second and the fourth.
fn turns() -> Vec<String> {
    [
        vec![user("one")],
        read("c1", "b", &lines("old b", 800)).to_vec(),
        vec![assistant("read"), user("two")],
        read("c2", "p", &lines("poll", 700)).to_vec(),
        vec![assistant("polled"), user("three")],
        read("c3", "b", &lines("new b", 900)).to_vec(),
        vec![assistant("read again"), user("four")],
        read("c4", "q", &lines("poll", 700)).to_vec(),
        vec![assistant("polled again"), user("five")],
        read("c5", "large", &lines("large", 5_000)).to_vec(),
        vec![assistant("large"), user("six"), assistant("bye")],
    ]
    .concat()
}

async fn compact_to(http: &Http, id: &str, size: usize) {
    for percent in 1..=99 {
        let body = json!({"compactCount": percent, "boundary": "turn", "dryRun": true});
        let answer = http.compact(id, &body).await.expect(200).json();
        if answer["newSize"] == size || answer["plan"]["newSize"] == size {
            let body = json!({"compactCount": percent, "boundary": "turn"});
            let answer = http.compact(id, &body).await.expect(200).json();
            assert_eq!(answer["newSize"], size, "{answer:#}");
            return;
        }
    }
    panic!("no percentage compacts to {size}");
}

/// Indices of the whole history that are edited in what is shown now.
async fn edited(http: &Http, id: &str, history: &History) -> Vec<usize> {
    let session = http.session(id).await;
    let size = usize::try_from(session["compactSize"].as_u64().expect("a size")).expect("small");
    let rendered = history.render(size, session["compactSummary"].as_str());
    let shown = http.shown(id).await;
    let before_tail = rendered.len() - (history.messages.len() - size);
    let edits = edits(&shown, &rendered, "the context");
    edits.iter().map(|edit| edit + size - before_tail).collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn edits_go_with_the_summary_and_come_back(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages = turns();
    let history = History::new(&messages);
    let id = app.create_pruned(POLICY(), &messages).await;
    let first = app.dispatch(&id, &json!({})).await;
    // Old b is superseded, the second poll is a duplicate of the first, the large one is cut.
    assert_eq!(edited(&app, &id, &history).await, [2, 14, 18]);
    let shown = app.shown(&id).await;

    compact_to(&app, &id, 4).await;
    // No dispatch yet: the edit of old b went with it, the others stay as they are.
    assert_eq!(edited(&app, &id, &history).await, [14, 18]);
    app.set_pruning(&id, json!({"enabled": false})).await;
    let second = app.dispatch(&id, &json!({})).await;
    assert_eq!(edited(&app, &id, &history).await, [14, 18]);
    assert!(second.compaction.is_some());

    compact_to(&app, &id, 8).await;
    // The first poll is in the summary now: a breadcrumb must not point to it.
    assert_eq!(edited(&app, &id, &history).await, [18]);
    let third = app.dispatch(&id, &json!({})).await;
    assert_eq!(third.messages(), app.shown(&id).await);

    app.restore(&id, 1).await.expect(200);
    assert_eq!(
        app.shown(&id).await,
        second.messages(),
        "the second's, byte for byte"
    );
    app.restore(&id, 0).await.expect(200);
    assert_eq!(app.shown(&id).await, shown, "the first's, byte for byte");
    assert_eq!(first.messages(), shown);
    let fourth = app.dispatch(&id, &json!({})).await;
    assert_eq!(fourth.sha256, first.sha256);
    for sent in [&first, &second, &third, &fourth] {
        app.replays_as(&id, sent, "after restores").await;
    }
}

/// What a compaction opens again may be planned anew, and no worse than before.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_dispatch_after_a_compaction_plans_anew(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages = turns();
    let history = History::new(&messages);
    let id = app.create_pruned(POLICY(), &messages).await;
    app.dispatch(&id, &json!({})).await;
    compact_to(&app, &id, 8).await;
    assert_eq!(edited(&app, &id, &history).await, [18]);
    let poll = r#"{"type":"text","text":"x"}"#;
    assert!(!app.shown(&id).await.concat().contains(poll));
    // The older b of the tail is the newest now: nothing supersedes it.
    app.append(
        &id,
        &[
            vec![user("seven")],
            read("c6", "b", &lines("newest b", 300)).to_vec(),
            vec![assistant("ok"), user("eight"), assistant("bye")],
        ]
        .concat(),
    )
    .await;
    let sent = app.dispatch(&id, &json!({})).await;
    let history = History::new(
        &[
            messages,
            vec![user("seven")],
            read("c6", "b", &lines("newest b", 300)).to_vec(),
            vec![assistant("ok"), user("eight"), assistant("bye")],
        ]
        .concat(),
    );
    assert_eq!(edited(&app, &id, &history).await, [10, 18]);
    let items = app.history(&id).await;
    let newest = &items[24].id;
    assert!(
        sent.messages().concat().contains(newest.as_str()),
        "points to the newest b"
    );
    app.replays_as(&id, &sent, "planned anew").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_carries_the_plan(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let messages = turns();
    let id = app.create_pruned(POLICY(), &messages).await;
    let sent = app.dispatch(&id, &json!({})).await;
    let fork = async |body: Value| {
        let fork = app.fork(&id, &body).await.expect(201).json();
        fork["id"].as_str().expect("an id").to_owned()
    };
    let whole = fork(json!({})).await;
    app.set_pruning(&whole, json!({"enabled": false})).await;
    assert_eq!(app.shown(&whole).await, sent.messages(), "byte for byte");
    let again = app.dispatch(&whole, &json!({})).await;
    assert_eq!(
        (again.dispatch, &again.sha256),
        (1, &sent.sha256),
        "its own first dispatch"
    );
    app.replays_as(&whole, &again, "a fork").await;
    let replay = app.get(&format!("/sessions/{whole}/dispatches/2")).await;
    replay.problem(404, "DISPATCH_NOT_FOUND");

    // Up to the poll of the second turn: the newer b is not there, so the old one is whole.
    let short = fork(json!({"atSeq": 7})).await;
    assert_eq!(
        app.shown(&short).await,
        messages[..7],
        "nothing that points to what is not there"
    );
    let part = fork(json!({"atSeq": 16})).await;
    assert_eq!(
        app.shown(&part).await,
        sent.messages()[..16],
        "and what may stay, stays"
    );

    // What one does the other does not see.
    app.append(&whole, &[user("more")]).await;
    app.erase(&whole, &app.history(&whole).await[18].id.clone())
        .await
        .expect(204);
    assert_eq!(app.shown(&id).await, sent.messages());
    app.replays_as(&id, &sent, "the parent").await;
}

/// A compaction in steps through a session that dispatches all the while: nothing is lost or told twice.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_session_stays_whole(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_pruned(POLICY(), &[]).await;
    let mut history = History::default();
    let mut all = Vec::new();
    for round in 0..8_usize {
        let more: Vec<String> = turns()
            .iter()
            .map(|raw| raw.replace("poll", &format!("poll{}", round / 3)))
            .collect();
        for raw in &more {
            history.push(raw);
        }
        app.append(&id, &more).await;
        all.push(app.dispatch(&id, &json!({})).await);
        assert!(!edited(&app, &id, &history).await.is_empty());
        app.compact(
            &id,
            &json!({"compactCount": 30 + round * 8, "keepRecentTurns": round % 3}),
        )
        .await
        .expect(200);
        edited(&app, &id, &history).await;
        all.push(app.dispatch(&id, &json!({})).await);
        assert_eq!(
            app.shown(&id).await,
            all[all.len() - 1].messages(),
            "round {round}"
        );
    }
    for sent in &all {
        app.replays_as(&id, sent, "a rolling session").await;
    }
}

/// A breadcrumb that names a message goes when that message is changed or gone.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_goes_with_the_message_that_it_names(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut messages = turns();
    let id = app.create_pruned(POLICY(), &messages).await;
    app.dispatch(&id, &json!({})).await;
    app.set_pruning(&id, json!({"enabled": false})).await;
    let items = app.history(&id).await;
    // The first poll: the second was told as the same.
    app.erase(&id, &items[6].id).await.expect(204);
    messages[6] = app.history(&id).await[6].message.get().to_owned();
    let history = History::new(&messages);
    assert_eq!(edited(&app, &id, &history).await, [2, 18]);
    // The newer b: the older one is the only one now.
    app.rewind(&id, 10).await.expect(200);
    messages.truncate(10);
    let history = History::new(&messages);
    assert_eq!(edited(&app, &id, &history).await, [0_usize; 0]);
}
