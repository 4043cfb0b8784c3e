//! Replays after the history was rewritten: what is gone is named, what was not touched is still there.

use rstest::rstest;
use serde_json::{Value, json};

use super::sent::Sent;
use super::talk::{agent_loop, lines, steps};
use crate::support::messages::{assistant, result, system, user};
use crate::support::{Backend, TestApp};

struct Past<'a> {
    app: &'a TestApp,
    id: String,
    /// After 11, 15, 19 … messages.
    sent: Vec<Sent>,
}

/// A loop that dispatched after every second step; pruned from the first on.
async fn past(app: &TestApp) -> Past<'_> {
    let policy = json!({"enabled": true, "budgetTokens": 1_500, "protectRecentTurns": 2, "maxToolResultBytes": 900,
        "keepHeadBytes": 100, "keepTailBytes": 100});
    let id = app.create_pruned(policy, &agent_loop(5, 2_000)).await;
    let mut sent = vec![app.dispatch(&id, &json!({})).await];
    for number in [5, 7, 9] {
        app.append(&id, &steps(number, number + 2, 2_000)).await;
        sent.push(app.dispatch(&id, &json!({})).await);
    }
    let seqs: Vec<u64> = sent.iter().map(|sent| sent.last_seq).collect();
    assert_eq!(seqs, [11, 15, 19, 23]);
    Past { app, id, sent }
}

impl Past<'_> {
    async fn message(&self, seq: u64) -> String {
        let items = self.app.history(&self.id).await;
        let item = items.iter().find(|item| item.seq == seq);
        item.expect("a message").id.clone()
    }

    /// The first `whole` replay, the others lack exactly this.
    async fn check(&self, whole: usize, kind: &str, seq: u64, message: Option<&str>) {
        for sent in &self.sent[..whole] {
            self.app.replays_as(&self.id, sent, kind).await;
        }
        for sent in &self.sent[whole..] {
            let replay = self.app.replay(&self.id, sent.dispatch).await;
            assert!(!replay.is_possible(), "{kind}: dispatch {}", sent.dispatch);
            let expected = (kind.to_owned(), seq, message.map(str::to_owned));
            assert_eq!(replay.missing(), [expected], "{kind}: {:#}", replay.record);
            let why = replay.record["replay"]["reason"].as_str();
            assert!(why.is_some_and(|why| !why.is_empty()), "{kind}: says why");
            assert_eq!(
                replay.record["sha256"], sent.sha256,
                "{kind}: the record stays"
            );
        }
    }
}

/// Into a dispatch, to the end of one, to the first, before all: how many are whole after it.
const REWINDS: [(u64, usize); 4] = [(17, 2), (19, 3), (11, 1), (10, 0)];

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_takes_the_dispatches_that_saw_more(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for (to, whole) in REWINDS {
        let past = past(&app).await;
        app.rewind(&past.id, to).await.expect(200);
        past.check(whole, "rewound", to, None).await;
        // Also when the places are taken by other messages.
        let open = app.context(&past.id).await.open_calls;
        let next = open
            .first()
            .map_or_else(|| assistant("other"), |id| result(id, "other"));
        let other = [vec![next], steps(100, 105, 2_000)].concat();
        app.append(&past.id, &other).await;
        past.check(whole, "rewound", to, None).await;
        let sent = app.dispatch(&past.id, &json!({})).await;
        assert_eq!(sent.dispatch, 5, "numbers go on");
        app.replays_as(&past.id, &sent, "after a rewind").await;
    }
}

/// A rewind that takes away nothing that a dispatch showed, though the dispatch's last `seq` is higher.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_behind_what_was_shown_takes_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let past = past(&app).await;
    past.app.rewind(&past.id, 11).await.expect(200);
    let shown = past.app.dispatch(&past.id, &json!({})).await;
    past.app.append(&past.id, &[assistant("new")]).await;
    past.app.rewind(&past.id, 15).await.expect(200);
    past.app
        .replays_as(&past.id, &shown, "nothing it showed is gone")
        .await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_takes_the_dispatches_that_held_the_message(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for (seq, whole, erase) in [
        (13, 1, true),
        (16, 2, false),
        (23, 3, true),
        (23, 3, false),
        (1, 0, true),
        (1, 0, false),
    ] {
        let past = past(&app).await;
        let id = past.message(seq).await;
        let path = format!("/sessions/{}/messages/{id}", past.id);
        let kind = if erase { "erased" } else { "replaced" };
        if erase {
            app.erase(&past.id, &id).await.expect(204);
        } else {
            let old = app.get(&path).await.expect(200).json();
            let mut new: Value = old["message"].clone();
            new["content"] = json!(lines("edited", 3_000));
            let reply = app.replace(&past.id, &id, &new.to_string()).await;
            reply.expect(200);
        }
        past.check(whole, kind, seq, Some(&id)).await;
        let item = app.get(&path).await.expect(200).json();
        assert_ne!(item["state"], "elided", "its edit is gone with it");
        let sent = app.dispatch(&past.id, &json!({})).await;
        app.replays_as(&past.id, &sent, "after an edit").await;
        assert_eq!(app.shown(&past.id).await, sent.messages());
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn several_rewrites_are_named_in_order(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let past = past(&app).await;
    let (first, second) = (past.message(3).await, past.message(5).await);
    past.app.erase(&past.id, &second).await.expect(204);
    past.app.erase(&past.id, &first).await.expect(204);
    past.app.rewind(&past.id, 21).await.expect(200);
    let missing = past.app.replay(&past.id, 4).await.missing();
    assert_eq!(
        missing,
        [
            ("erased".to_owned(), 5, Some(second.clone())),
            ("erased".to_owned(), 3, Some(first.clone())),
            ("rewound".to_owned(), 21, None),
        ]
    );
    assert_eq!(past.app.replay(&past.id, 1).await.missing().len(), 2);
    // A message erased twice was taken away once.
    past.app.erase(&past.id, &first).await.expect(204);
    assert_eq!(past.app.replay(&past.id, 1).await.missing().len(), 2);
}

/// An instruction has no position, and is shown all the same.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_erased_instruction_is_missing_too(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&[system("be brief"), user("hi")]).await;
    let before = app.dispatch(&id, &json!({})).await;
    app.append(&id, &[assistant("hello"), system("be briefer")])
        .await;
    let after = app.dispatch(&id, &json!({})).await;
    let items = app.history(&id).await;
    app.erase(&id, &items[3].id).await.expect(204);
    app.replays_as(&id, &before, "it was not there yet").await;
    let missing = app.replay(&id, after.dispatch).await.missing();
    assert_eq!(
        missing,
        [("erased".to_owned(), 4, Some(items[3].id.clone()))]
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_of_a_summary_whose_text_is_gone_is_not_replayed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let past = past(&app).await;
    let id = past.id.as_str();
    app.append(id, &[assistant("done"), user("next"), assistant("bye")])
        .await;
    app.compact(id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    let with = app.dispatch(id, &json!({})).await;
    assert!(with.compaction.is_some());
    app.replays_as(id, &with, "while the summary is there")
        .await;
    let seq = app.session(id).await["compactSize"]
        .as_u64()
        .expect("a size");
    let message = past.message(seq - 1).await;
    app.erase(id, &message).await.expect(204);
    let replay = app.replay(id, with.dispatch).await;
    assert!(!replay.is_possible());
    assert_eq!(
        replay.missing(),
        [("erased".to_owned(), seq - 1, Some(message))]
    );
    let shown = app.dispatch(id, &json!({})).await;
    assert!(
        shown.compaction.is_none(),
        "the version that covered it is not active"
    );
    app.replays_as(id, &shown, "without the summary").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_forgets_dispatches_and_plan(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let past = past(&app).await;
    past.app
        .post_empty(&format!("/sessions/{}/reset", past.id))
        .await
        .expect(200);
    for n in 1..=4 {
        let reply = past
            .app
            .get(&format!("/sessions/{}/dispatches/{n}", past.id))
            .await;
        reply.problem(404, "DISPATCH_NOT_FOUND");
    }
    let list = past
        .app
        .get(&format!("/sessions/{}/dispatches", past.id))
        .await;
    assert_eq!(
        list.expect(200).json(),
        json!({"data": [], "nextCursor": null})
    );
    let empty = past.app.dispatch(&past.id, &json!({})).await;
    assert_eq!((empty.messages().len(), empty.tokens.after), (0, 0));
    past.app.append(&past.id, &agent_loop(5, 2_000)).await;
    let sent = past.app.dispatch(&past.id, &json!({})).await;
    assert!(sent.dispatch > empty.dispatch);
    past.app.replays_as(&past.id, &sent, "after a reset").await;
    past.app.replays_as(&past.id, &empty, "after a reset").await;
}
