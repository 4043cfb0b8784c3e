//! What each write tells: one event, in order, with ids and numbers and no content.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{append_one, kinds, numbers, send};
use crate::support::messages::{a, assistant, system, turns, user};
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_write_is_told_of_once_and_in_order(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let first = serde_json::from_str::<Value>(&system("SECRET-1")).expect("a message");
    let body = json!({"messages": [first], "title": "SECRET-2", "metadata": {"k": "SECRET-3"}});
    let id = app.create(&body).await;
    let at = |rest: &str| format!("/sessions/{id}{rest}");

    let added = app
        .append(&id, &[user("SECRET-4"), assistant("SECRET-5")])
        .await;
    let message = |n: usize| added[n]["id"].as_str().expect("an id").to_owned();
    app.append(&id, &turns(3, 40)).await;
    let title = json!({"title": "SECRET-6"});
    send(&app, Method::PATCH, &at(""), &title, 200).await;
    app.replace(&id, &message(0), &user("SECRET-7"))
        .await
        .expect(200);
    app.erase(&id, &message(1)).await.expect(204);
    app.compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    app.restore(&id, 0).await.expect(200);
    app.rewind(&id, 5).await.expect(200);
    app.post_empty(&at("/reset")).await.expect(200);
    append_one(&app, &id).await;
    app.post_empty(&at("/close")).await.expect(200);
    app.post_empty(&at("/reopen")).await.expect(200);

    let frames = app.first_events(&id, 15).await;
    let told: Vec<(&str, &str)> = frames
        .iter()
        .map(|frame| {
            let reason = frame.data["reason"].as_str().unwrap_or_default();
            (frame.event.as_str(), reason)
        })
        .collect();
    assert_eq!(
        told,
        [
            ("session.created", ""),
            ("message.appended", ""),
            ("message.appended", ""),
            ("message.appended", ""),
            ("session.updated", "patch"),
            ("session.updated", "edit"),
            ("session.updated", "erase"),
            ("compaction.started", ""),
            ("context.defaultCompacted", ""),
            ("session.updated", "restore"),
            ("session.updated", "rewind"),
            ("session.updated", "reset"),
            ("message.appended", ""),
            ("session.closed", ""),
            ("session.updated", "reopen"),
        ]
    );
    assert_eq!(numbers(&frames), (1..=15).collect::<Vec<_>>());
    for frame in &frames {
        assert_eq!(frame.data["type"], frame.event.as_str());
        assert_eq!(frame.data["sessionId"], id.as_str());
        assert_eq!(frame.data["id"].as_str(), frame.id.as_deref());
        let created = frame.data["createdAt"].as_str().expect("a time");
        assert_eq!(created.len(), "2026-11-29T21:21:28.000120Z".len());
        assert!(!frame.data.to_string().contains("SECRET"), "{frame:?}");
    }
    let range = |n: usize| {
        let data = &frames[n].data;
        [&data["firstSeq"], &data["lastSeq"], &data["count"]].map(|v| v.as_i64().expect("a number"))
    };
    assert_eq!(range(1), [1, 1, 1]);
    assert_eq!(range(2), [2, 3, 2]);
    assert_eq!(range(3), [4, 9, 6]);
    assert_eq!(frames[5].data["seq"], 2, "the message that was edited");
    assert_eq!(frames[6].data["seq"], 3, "the message that was erased");
    assert_eq!(frames[9].data["compactSize"], 0);
    assert_eq!(frames[10].data["messageCount"], 5);
    assert_eq!(frames[10].data["lastSeq"], 9, "a seq is never used twice");
    assert_eq!(frames[11].data["messageCount"], 0);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_changes_nothing_is_not_told_of(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let named = r#"{"role":"user","content":"x","precis":{"id":"m1"}}"#.to_owned();
    app.append(&id, std::slice::from_ref(&named)).await;

    // Stored before, behind the end, refused, tried out, nothing to do.
    app.append(&id, std::slice::from_ref(&named)).await;
    app.rewind(&id, 99).await.expect(200);
    let orphan = r#"[{"role":"tool","tool_call_id":"c","content":"x"}]"#;
    app.append_raw(&id, orphan).await.expect(422);
    app.compact(&id, &json!({"dryRun": true})).await.expect(200);
    let nothing = app.compact(&id, &json!({})).await.expect(200);
    assert_eq!(nothing.json()["alreadyUpToDate"], true);
    app.post_empty(&format!("/sessions/{id}/reopen"))
        .await
        .expect(200);
    app.erase(&id, "m1").await.expect(204);
    app.erase(&id, "m1").await.expect(204);
    // Known before and new in one append: only what is new is told of.
    let known = r#"{"role":"user","content":"y","precis":{"id":"m2"}}"#.to_owned();
    app.append(&id, std::slice::from_ref(&known)).await;
    app.append(&id, &[known, a(5)]).await;
    app.post_empty(&format!("/sessions/{id}/close"))
        .await
        .expect(200);
    app.post_empty(&format!("/sessions/{id}/close"))
        .await
        .expect(200);
    let frames = app.first_events(&id, 6).await;
    assert_eq!(
        kinds(&frames),
        [
            "session.created",
            "message.appended",
            "session.updated",
            "message.appended",
            "message.appended",
            "session.closed"
        ]
    );
    assert_eq!(frames[4].data["count"], 1);
    app.post_empty(&format!("/sessions/{id}/reopen"))
        .await
        .expect(200);
    let last = &app.first_events(&id, 7).await[6];
    assert_eq!(last.data["reason"], "reopen", "nothing came in between");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_begins_its_own_events(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(2, 10)).await;
    let fork = app.fork(&id, &json!({"atSeq": 3})).await.expect(201).json();
    let fork = fork["id"].as_str().expect("an id");
    append_one(&app, fork).await;
    append_one(&app, &id).await;

    let frames = app.first_events(fork, 2).await;
    assert_eq!(kinds(&frames), ["session.created", "message.appended"]);
    assert_eq!(numbers(&frames), [1, 2]);
    assert_eq!(frames[0].data["forkedFrom"], id.as_str());
    assert_eq!(frames[0].data["messageCount"], 3);

    let frames = app.first_events(&id, 3).await;
    assert_eq!(
        kinds(&frames),
        ["session.created", "message.appended", "message.appended"],
        "the parent is told nothing of its fork"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn parallel_appends_are_numbered_without_a_gap(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let mut live = app.events(&id, None).await;
    let appends = (0..40).map(|_| append_one(&app, &id));
    futures_util::future::join_all(appends).await;

    let frames = live.take(40).await;
    assert_eq!(numbers(&frames), (2..=41).collect::<Vec<_>>());
    let seqs: Vec<_> = frames
        .iter()
        .map(|frame| frame.data["firstSeq"].as_i64().expect("a seq"))
        .collect();
    assert_eq!(
        seqs,
        (1..=40).collect::<Vec<_>>(),
        "in the order of the seqs"
    );
}
