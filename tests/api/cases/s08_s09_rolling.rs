//! K4: rolling summaries.

use rstest::rstest;
use serde_json::json;

use crate::support::chain;
use crate::support::messages::{assistant, padded, turns, u, user};
use crate::support::{Backend, History, Request, ScriptedModel, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s08_compacting_with_nothing_new_does_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let mut raws = turns(6, 100);
    raws.push(u(100));
    let history = History::new(&raws);
    let id = app.create_with(&raws).await;
    while chain::compact_and_check(&app, &id, &history, Request::percent(50), "s08").await {}
    let before = app.session(&id).await;
    assert_eq!(before["compactSize"], 12, "only the open turn is left");
    let calls = model.calls().len();
    let context = app.get(&format!("/sessions/{id}/context")).await.body;

    for _ in 0..5 {
        let answer = app.compact(&id, &json!({})).await.expect(200).json();
        assert_eq!(answer["compactedCount"], 0);
        assert_eq!(answer["newSize"], 12);
        assert_eq!(answer["alreadyUpToDate"], true);
    }
    assert_eq!(model.calls().len(), calls, "no model is called for nothing");
    assert_eq!(
        app.session(&id).await,
        before,
        "summary and version are unchanged"
    );
    let after = app.get(&format!("/sessions/{id}/context")).await.body;
    assert_eq!(after, context, "the context has the same bytes");
}

fn marked(from: usize, to: usize) -> Vec<String> {
    (from..=to)
        .map(|n| {
            let text = padded(&format!("M{n:02} "), 100);
            if n % 2 == 1 {
                user(&text)
            } else {
                assistant(&text)
            }
        })
        .collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s09_the_second_run_starts_at_the_first_kept_message(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let id = app.create_with(&marked(1, 12)).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    assert_eq!(answer.json()["newSize"], 6, "{answer}");
    app.append(&id, &marked(13, 16)).await;
    app.compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);

    let transcripts: Vec<String> = model
        .calls()
        .iter()
        .map(|call| call.user().to_owned())
        .collect();
    assert_eq!(transcripts.len(), 2, "two runs, two calls");
    assert!(
        transcripts[1].contains("M07 "),
        "the second batch starts at M07"
    );
    let context = app.context(&id).await;
    for n in 1..=16 {
        let mark = format!("M{n:02} ");
        let summarised = transcripts
            .iter()
            .filter(|text| text.contains(&mark))
            .count();
        let verbatim = context
            .messages
            .iter()
            .filter(|raw| raw.get().contains(&mark))
            .count();
        assert_eq!(
            summarised + verbatim,
            1,
            "{mark}is in one transcript or in the tail, once ({summarised} and {verbatim})"
        );
    }
    let history = History::new(&marked(1, 16));
    let session = chain::check(&app, &id, &history, "s09").await;
    assert_eq!(session["compactionVersion"], 2);
}
