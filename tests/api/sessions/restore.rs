//! `POST …/compactions/{version}/restore`: an old version is the active one again.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{turns, u};
use crate::support::model::MAIN;
use crate::support::{Answer, Backend, History, ScriptedModel, TestApp, chain};

const TEXTS: [&str; 4] = [
    "FIRST summary",
    "SECOND summary",
    "THIRD summary",
    "FOURTH summary",
];

/// Ten turns; three versions of two messages each.
async fn three_versions(backend: Backend) -> (ScriptedModel, TestApp, String, Vec<String>) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, TEXTS.map(|text| Answer::Text(text.to_owned())));
    let app = TestApp::with_model(backend, &model, &[]).await;
    let raws = turns(10, 100);
    let id = app.create_with(&raws).await;
    for _ in 0..3 {
        app.compact(&id, &json!({"compactCount": 1}))
            .await
            .expect(200);
    }
    (model, app, id, raws)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn any_version_can_be_restored_and_built_upon(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let (model, app, id, raws) = three_versions(backend).await;
    let history = History::new(&raws);
    let chain_before = app.compactions(&id).await;
    let mut tag = app.etag(&id).await;
    for version in [1_usize, 3, 0, 2] {
        let what = format!("version {version} restored");
        let reply = app.restore(&id, version as u64).await.expect(200);
        let session = chain::check_context(&app, &id, &history, &what).await;
        assert_eq!(reply.json(), session, "{what}: the answer is the session");
        assert_eq!(session["compactionVersion"], version, "{what}");
        assert_eq!(session["compactSize"], 2 * version, "{what}");
        let expected = version.checked_sub(1).map(|index| TEXTS[index]);
        assert_eq!(session["compactSummary"], json!(expected), "{what}");
        let next = app.etag(&id).await;
        assert_ne!(next, tag, "{what}: another context has another tag");
        tag = next;
        let context = app.context(&id).await;
        let shown = context
            .compaction
            .map_or(0, |compaction| compaction.version);
        assert_eq!(
            shown, version as u64,
            "{what}: the context names the version"
        );
        assert_eq!(
            app.compactions(&id).await,
            chain_before,
            "{what}: the chain stays"
        );
    }

    let answer = app
        .compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200)
        .json();
    let record = &answer["compaction"];
    assert_eq!(record["version"], 4, "the next number: {record:#}");
    assert_eq!(record["basedOn"], 2, "built on the active version");
    assert_eq!(record["from"], 4);
    let previous = model.last().previous().map(str::to_owned);
    assert_eq!(
        previous.as_deref(),
        Some(TEXTS[1]),
        "the active summary, no newer one"
    );
    let session = chain::check_context(&app, &id, &history, "built upon").await;
    assert_eq!(session["compactSummary"], TEXTS[3]);

    // A first version beside the others, from nothing.
    app.restore(&id, 0).await.expect(200);
    let answer = app
        .compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200)
        .json();
    assert_eq!(answer["compaction"]["version"], 5);
    assert_eq!(answer["compaction"]["basedOn"].as_u64().unwrap_or(0), 0);
    assert_eq!(answer["compaction"]["from"], 0);
    assert_eq!(
        model.last().previous(),
        None,
        "there is no previous summary"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_version_whose_messages_changed_cannot_be_restored(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("rewind", "edit", "erase")] change: &str,
) {
    let (_model, app, id, _) = three_versions(backend).await;
    let third = app.history(&id).await[2].id.clone();
    match change {
        // As many messages as before, but other ones.
        "rewind" => {
            app.rewind(&id, 2).await.expect(200);
            app.append(&id, &turns(9, 100)).await;
        }
        "edit" => drop(app.replace(&id, &third, &u(99)).await.expect(200)),
        _ => drop(app.erase(&id, &third).await.expect(204)),
    }
    let before = app.session(&id).await;
    assert_eq!(
        before["compactionVersion"], 1,
        "{change}: the newest that ends before"
    );
    for version in [2, 3] {
        let record = app
            .get(&format!("/sessions/{id}/compactions/{version}"))
            .await
            .expect(200)
            .json();
        assert_eq!(record["summary"], Value::Null, "{change}: {record:#}");
        let reply = app.restore(&id, version).await;
        reply.problem(409, "COMPACTION_CONFLICT");
        assert_eq!(
            reply.header("retry-after"),
            None,
            "no time heals it: {reply}"
        );
    }
    assert_eq!(
        app.session(&id).await,
        before,
        "{change}: nothing was written"
    );
    app.restore(&id, 0).await.expect(200);
    app.restore(&id, 1).await.expect(200);
    assert_eq!(app.session(&id).await["compactSummary"], TEXTS[0]);
    let answer = app
        .compact(&id, &json!({"compactCount": 1}))
        .await
        .expect(200)
        .json();
    assert_eq!(
        answer["compaction"]["version"], 4,
        "no number is used twice"
    );
    assert_eq!(answer["compaction"]["basedOn"], 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_cannot_be_restored(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let (_model, app, id, _) = three_versions(backend).await;
    let before = app.session(&id).await;
    for version in [4, 99, 1 << 40] {
        app.restore(&id, version)
            .await
            .problem(404, "COMPACTION_NOT_FOUND");
    }
    for version in ["-1", "x", "01x", "9999999999999999999999", "1.0", "%00"] {
        let path = format!("/sessions/{id}/compactions/{version}/restore");
        let reply = app.post_empty(&path).await;
        assert!([400, 404].contains(&reply.status), "no version: {reply}");
    }
    assert_eq!(app.session(&id).await, before, "nothing was written");
    app.restore("sess_00000000000000000000000000", 0)
        .await
        .problem(404, "SESSION_NOT_FOUND");
    app.post_empty(&format!("/sessions/{id}/close"))
        .await
        .expect(200);
    for version in [0, 1, 3] {
        app.restore(&id, version)
            .await
            .problem(400, "SESSION_CLOSED");
    }
    app.post_empty(&format!("/sessions/{id}/reopen"))
        .await
        .expect(200);
    for member in ["compactSummary", "compactSize", "compactionVersion"] {
        assert_eq!(app.session(&id).await[member], before[member], "`{member}`");
    }
}
