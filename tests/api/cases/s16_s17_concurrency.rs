//! K7: concurrency. The model is held until everybody else has been answered.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rstest::rstest;
use serde_json::json;

use crate::support::chain;
use crate::support::messages::{turns, user};
use crate::support::{Backend, History, Http, Reply, ScriptedModel, TestApp};

/// Compacts many times at once, spread over the services; all replies.
async fn at_once(services: &[&Http], id: &str, count: usize, model: &ScriptedModel) -> Vec<Reply> {
    model.hold();
    let mut running: FuturesUnordered<_> = (0..count)
        .map(|n| {
            let service = services[n % services.len()];
            async move { service.compact(id, &json!({})).await }
        })
        .collect();
    let mut replies = Vec::new();
    while let Some(reply) = running.next().await {
        replies.push(reply);
        if replies.len() == count - 1 {
            // All but the one whose call is held have their answer.
            model.release();
        }
    }
    model.release();
    replies
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s16_two_compactions_at_once_count_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(2, 10)] count: usize,
    #[values(false, true)] on_two_servers: bool,
) {
    let model = ScriptedModel::start().await;
    let first = TestApp::with_model(backend, &model, &[]).await;
    let second = first.spawn_second().await;
    let raws = turns(10, 100);
    let id = first.create_with(&raws).await;
    let services: Vec<&Http> = if on_two_servers {
        vec![first.http(), second.http()]
    } else {
        vec![first.http()]
    };

    let replies = at_once(&services, &id, count, &model).await;
    let (done, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 200);
    assert_eq!(done.len(), 1, "one run commits, got {replies:?}");
    assert_eq!(done[0].json()["newSize"], 10, "half of twenty messages");
    for reply in refused {
        reply.problem(409, "COMPACTION_IN_PROGRESS");
        assert!(
            reply.header("retry-after").is_some(),
            "time heals it: {reply}"
        );
    }
    assert_eq!(model.calls().len(), 1, "one model call");
    let history = History::new(&raws);
    let session = chain::check(&first, &id, &history, "s16").await;
    assert_eq!(session["compactionVersion"], 1, "one version");
    assert_eq!(
        second.session(&id).await,
        session,
        "both servers see the same"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s17_what_is_appended_meanwhile_is_kept(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let mut raws = turns(10, 100);
    let id = app.create_with(&raws).await;

    model.hold();
    let http = app.http().clone();
    let session = id.clone();
    let running = tokio::spawn(async move { http.compact(&session, &json!({})).await });
    model.arrived(1).await;
    for n in 0..30 {
        let message = user(&format!("meanwhile {n}"));
        // Answered while the model is held: no append waits for it.
        app.append(&id, std::slice::from_ref(&message)).await;
        raws.push(message);
    }
    assert!(!running.is_finished(), "the model has not answered yet");
    model.release();

    let answer = running.await.expect("an answer").expect(200).json();
    assert_eq!(answer["newSize"], 10, "the batch as it was at the start");
    let history = History::new(&raws);
    let session = chain::check(&app, &id, &history, "s17").await;
    assert_eq!(session["lastSeq"], 50, "every append has its number");
    let context = app.context(&id).await;
    let tail: Vec<&str> = context
        .messages
        .iter()
        .skip(2)
        .map(|raw| raw.get())
        .collect();
    assert_eq!(tail, raws[10..], "all thirty are in the tail, in order");
}
