//! Whatever rewrites a history while the model thinks wins: the compaction writes nothing.

use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::messages::{assistant, turns, u, user};
use crate::support::{Backend, History, Reply, ScriptedModel, TestApp, chain};

async fn held_compaction(app: &TestApp, model: &ScriptedModel, id: &str) -> JoinHandle<Reply> {
    model.hold();
    let (http, session, before) = (app.http().clone(), id.to_owned(), model.calls().len());
    let running = tokio::spawn(async move { http.compact(&session, &json!({})).await });
    model.arrived(before + 1).await;
    running
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rewrite {
    RewindIntoTheBatch,
    RewindBehindTheBatch,
    EditInTheBatch,
    EditInTheTail,
    EraseInTheBatch,
    Restore,
}

async fn rewrite(app: &TestApp, id: &str, rewrite: Rewrite) {
    let items = app.history(id).await;
    match rewrite {
        Rewrite::RewindIntoTheBatch => app.rewind(id, 3).await.expect(200),
        Rewrite::RewindBehindTheBatch => app.rewind(id, 9).await.expect(200),
        Rewrite::EditInTheBatch => app.replace(id, &items[4].id, &u(7)).await.expect(200),
        Rewrite::EditInTheTail => app
            .replace(id, &items[9].id, &assistant("other"))
            .await
            .expect(200),
        Rewrite::EraseInTheBatch => app.erase(id, &items[5].id).await.expect(204),
        Rewrite::Restore => app.restore(id, 0).await.expect(200),
    };
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_rewrite_during_a_compaction_wins(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(
        Rewrite::RewindIntoTheBatch,
        Rewrite::RewindBehindTheBatch,
        Rewrite::EditInTheBatch,
        Rewrite::EditInTheTail,
        Rewrite::EraseInTheBatch,
        Rewrite::Restore
    )]
    change: Rewrite,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&turns(5, 100)).await;
    // A version that covers the first turn, so that there is something to restore from.
    app.compact(&id, &json!({"compactCount": 1}))
        .await
        .expect(200);
    let running = held_compaction(&app, &model, &id).await;
    rewrite(&app, &id, change).await;
    let (session, records) = (app.session(&id).await, app.compactions(&id).await);
    let tag = app.etag(&id).await;
    model.release();

    let reply = running.await.expect("an answer");
    reply.problem(409, "COMPACTION_CONFLICT");
    assert!(
        reply.header("retry-after").is_some(),
        "time heals it: {reply}"
    );
    assert_eq!(app.session(&id).await, session, "nothing was written");
    assert_eq!(app.compactions(&id).await, records, "no record");
    assert_eq!(app.etag(&id).await, tag, "no other context");

    // The lease is free, and the next run does what is right now.
    let reply = app
        .compact(&id, &json!({"compactCount": 99}))
        .await
        .expect(200);
    let raws: Vec<String> = app
        .history(&id)
        .await
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    let what = format!("after {change:?}: {reply}");
    chain::check_context(&app, &id, &History::new(&raws), &what).await;
}

/// What reads and writes see of a rewrite is before or after, never between.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn rewinds_and_appends_at_once_leave_a_sound_history(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(5, 20)).await;
    let appending = async {
        for n in 0..30 {
            app.append(&id, &[user(&format!("q{n}")), assistant("a")])
                .await;
        }
    };
    let rewinding = async {
        for _ in 0..15 {
            let last = app.session(&id).await["lastSeq"]
                .as_u64()
                .expect("a number");
            app.rewind(&id, last - 2).await.expect(200);
        }
    };
    let compacting = async {
        for _ in 0..10 {
            let status = app.compact(&id, &json!({"compactCount": 20})).await.status;
            assert!([200, 409].contains(&status), "got {status}");
        }
    };
    let reading = async {
        for _ in 0..15 {
            let context = app.context(&id).await;
            assert!(context.open_calls.is_empty());
            app.history(&id).await;
        }
    };
    tokio::join!(appending, rewinding, compacting, reading);
    let items = app.history(&id).await;
    for (position, item) in items.iter().enumerate() {
        assert_eq!(item.position, Some(position), "positions are dense");
    }
    assert!(
        items.windows(2).all(|pair| pair[0].seq < pair[1].seq),
        "seqs rise"
    );
    let raws: Vec<String> = items
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    chain::check_context(&app, &id, &History::new(&raws), "after the storm").await;
    let session: Value = app.session(&id).await;
    assert_eq!(session["lastSeq"], 70, "every append had its own numbers");
}
