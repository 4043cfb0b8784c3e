//! K8: edits, deletions, rewinds and forks never leave a pointer that points elsewhere.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{assistant, padded, raws, user};
use crate::support::model::{MAIN, mark, marks};
use crate::support::{Answer, Backend, History, ScriptedModel, TestApp, chain};

/// Twenty marked messages of 100 characters; v1 covers six of them, v2 twelve.
async fn two_versions(backend: Backend) -> (ScriptedModel, TestApp, String, Vec<String>) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [Answer::Marks]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let messages: Vec<String> = (0..20_usize)
        .map(|n| {
            let text = padded(&format!("{} ", mark(n)), 100);
            if n % 2 == 0 {
                user(&text)
            } else {
                assistant(&text)
            }
        })
        .collect();
    let id = app.create_with(&messages).await;
    for (percent, size) in [(30, 6), (33, 12)] {
        let body = json!({"compactCount": percent});
        let answer = app.compact(&id, &body).await.expect(200).json();
        assert_eq!(answer["newSize"], size, "the chain of the case: {answer:#}");
    }
    (model, app, id, messages)
}

/// Each mark is in the summary or verbatim, once; and all is as the contract says.
async fn covered_once(app: &TestApp, id: &str, what: &str) -> Value {
    let stored: Vec<String> = app
        .history(id)
        .await
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    let session = chain::check_context(app, id, &History::new(&stored), what).await;
    let mut seen = marks(session["compactSummary"].as_str().unwrap_or_default());
    let context = app.context(id).await;
    let tail = context
        .messages
        .iter()
        .skip(context.summary_at.map_or(0, |at| at + 2));
    seen.extend(tail.flat_map(|raw| marks(raw.get())));
    let expected: Vec<String> = stored.iter().flat_map(|raw| marks(raw)).collect();
    assert_eq!(seen, expected, "{what}: each message once");
    session
}

#[rstest]
#[case::a_rewind_to_eight(8, 1, 6)]
#[case::b_rewind_to_four(4, 0, 0)]
#[case::to_the_end_of_v1(6, 1, 6)]
#[case::to_the_end_of_v2(12, 2, 12)]
#[tokio::test(flavor = "multi_thread")]
async fn s18_rewind_goes_back_to_what_covers_only_what_is_left(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] to: u64,
    #[case] version: u64,
    #[case] size: u64,
) {
    let (_model, app, id, _) = two_versions(backend).await;
    let summaries = app.compactions(&id).await;
    app.rewind(&id, to).await.expect(200);
    let session = covered_once(&app, &id, &format!("s18, rewind to {to}")).await;
    assert_eq!(session["compactionVersion"], version);
    assert_eq!(session["compactSize"], size);
    let expected = match version {
        0 => Value::Null,
        _ => summaries[usize::try_from(version).expect("small") - 1]["summary"].clone(),
    };
    assert_eq!(session["compactSummary"], expected);

    // Other messages in the same places are other messages.
    let text = padded("other ", 100);
    app.append(
        &id,
        &[user(&text), assistant(&text), user(&text), assistant(&text)],
    )
    .await;
    covered_once(&app, &id, "s18, other messages").await;
    app.compact(&id, &json!({"compactCount": 60}))
        .await
        .expect(200);
    covered_once(&app, &id, "s18, compacted anew").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s18_c_and_d_a_changed_message_is_in_no_summary(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("delete", "edit")] change: &str,
    #[values((3, 0, 0), (6, 1, 6), (11, 1, 6), (12, 2, 12))] place: (usize, u64, u64),
) {
    let (index, version, size) = place;
    let (_model, app, id, _) = two_versions(backend).await;
    let item = &app.history(&id).await[index];
    if change == "delete" {
        app.erase(&id, &item.id).await.expect(204);
    } else {
        let text = padded(&format!("{} ", mark(77)), 30);
        let raw = if index % 2 == 0 {
            user(&text)
        } else {
            assistant(&text)
        };
        app.replace(&id, &item.id, &raw).await.expect(200);
    }
    let what = format!("s18, {change} message {index}");
    let session = covered_once(&app, &id, &what).await;
    assert_eq!(session["compactionVersion"], version, "{what}");
    assert_eq!(session["compactSize"], size, "{what}");
    app.compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    let session = covered_once(&app, &id, &what).await;
    let summary = session["compactSummary"].as_str().unwrap_or_default();
    assert!(
        !summary.contains(&mark(index)),
        "{what}: nothing of it is left: {summary}"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s18_e_a_fork_has_a_pointer_of_its_own(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let (_model, app, id, _) = two_versions(backend).await;
    let parent = app.session(&id).await;
    let fork = app
        .fork(&id, &json!({"atSeq": 20}))
        .await
        .expect(201)
        .json();
    let copy = fork["id"].as_str().expect("an id").to_owned();
    let session = covered_once(&app, &copy, "s18, the fork").await;
    assert_eq!(session["compactSize"], 12);
    assert_eq!(
        session["compactSummary"], parent["compactSummary"],
        "the same text"
    );
    assert_eq!(
        raws(&app.context(&copy).await.messages),
        raws(&app.context(&id).await.messages),
        "its context equals the parent's"
    );
    // Its pointer does not move with the parent's.
    app.rewind(&id, 4).await.expect(200);
    let session = covered_once(&app, &copy, "s18, after the parent's rewind").await;
    assert_eq!(session["compactSize"], 12);
    app.rewind(&copy, 8).await.expect(200);
    assert_eq!(app.session(&copy).await["compactSize"], 6);
    assert_eq!(app.session(&id).await["compactSize"], 0);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s18_f_a_pointer_out_of_range_is_healed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(50, 13, 20, 21, 1_000_000)] forced: u64,
    #[values("read", "compact", "rewind")] first: &str,
) {
    let (_model, app, id, messages) = two_versions(backend).await;
    let sql = format!("UPDATE sessions SET compact_size = {forced}");
    app.database.execute(&sql, &sql).await;

    let root = format!("/sessions/{id}");
    match first {
        "read" => {}
        "compact" => {
            let status = app.compact(&id, &json!({"compactCount": 30})).await.status;
            assert!([200, 409].contains(&status), "no failure of ours: {status}");
        }
        _ => drop(app.rewind(&id, 20).await.expect(200)),
    }
    for path in [
        "",
        "/context",
        "/messages",
        "/compactions",
        "/messages?limit=3&order=desc",
    ] {
        let reply = app.get(&format!("{root}{path}")).await;
        assert!(reply.status < 500, "no failure of ours: {reply}");
    }
    let context = app.context(&id).await;
    let shown: Vec<&str> = context.messages.iter().map(|raw| raw.get()).collect();
    for raw in messages
        .iter()
        .skip(if first == "compact" { 20 } else { 12 })
    {
        assert!(
            shown.contains(&raw.as_str()),
            "never summarised, so visible: {raw}"
        );
    }
    let session = covered_once(&app, &id, &format!("s18 f, {first}")).await;
    let size = session["compactSize"].as_u64().expect("a number");
    assert!(size <= 20, "the pointer is inside the history: {session:#}");

    app.append(&id, &[user(&mark(500)), assistant(&mark(501))])
        .await;
    app.compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    let session = covered_once(&app, &id, "s18 f, and compacted again").await;
    assert!(session["compactSize"].as_u64() >= Some(size));
}
