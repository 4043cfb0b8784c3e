//! `POST …/fork`: the same history under another id.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{a, calls, r, raws, system, turns, u, user};
use crate::support::{Backend, History, Http, TestApp, chain};

async fn items(app: &Http, id: &str) -> Vec<Value> {
    app.get(&format!("/sessions/{id}/messages?limit=1000"))
        .await
        .expect(200)
        .json()["data"]
        .as_array()
        .expect("a list")
        .clone()
}

fn forked(reply: &crate::support::Reply) -> String {
    let session = reply.json();
    let id = session["id"].as_str().expect("an id").to_owned();
    let location = reply.header("location").unwrap_or_default();
    assert!(
        location.ends_with(&format!("/sessions/{id}")),
        "Location names the new session: {location}"
    );
    id
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_the_same_and_goes_its_own_way(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let body = json!({
        "title": "parent", "compactCount": 30, "model": "some-model", "mode": "task",
        "metadata": {"k": "v"}, "compaction": {"keepRecentTurns": 2},
    });
    let parent = app.create(&body).await;
    let odd = r#"{ "content":"spaces \u0041 \u0000",   "role":"user", "x":1.50 }"#.to_owned();
    let mut all = vec![system("s"), odd];
    all.extend([a(100), u(100), calls(&["c1"], 50), r("c1", 60), a(70)]);
    all.extend(turns(4, 100));
    app.append(&parent, &all).await;
    for _ in 0..2 {
        app.compact(&parent, &json!({})).await.expect(200);
    }
    let before = app.session(&parent).await;
    assert_eq!(before["compactionVersion"], 2, "there is a chain to copy");

    let reply = app
        .post_empty(&format!("/sessions/{parent}/fork"))
        .await
        .expect(201);
    let fork = forked(&reply);
    let session = app.session(&fork).await;
    assert_eq!(reply.json(), session, "the answer is the new session");
    for member in [
        "agentName",
        "mode",
        "model",
        "title",
        "metadata",
        "compactSummary",
        "compactSize",
        "compactCount",
        "compactionVersion",
        "compaction",
        "messageCount",
        "historyLength",
        "lastSeq",
    ] {
        assert_eq!(session[member], before[member], "`{member}` of the fork");
    }
    assert_eq!(
        items(&app, &fork).await,
        items(&app, &parent).await,
        "every message"
    );
    let bytes = |context: &crate::support::http::Context| raws(&context.messages);
    assert_eq!(
        bytes(&app.context(&fork).await),
        bytes(&app.context(&parent).await),
        "the same context, byte for byte"
    );
    let what_counts = |records: Vec<Value>| -> Vec<Value> {
        let of = |r: &Value| json!([r["version"], r["basedOn"], r["from"], r["to"], r["summary"]]);
        records.iter().map(of).collect()
    };
    let chain_before = what_counts(app.compactions(&parent).await);
    assert_eq!(
        what_counts(app.compactions(&fork).await),
        chain_before,
        "the chain"
    );

    // What one does now does not reach the other.
    app.append(&fork, &[u(11), a(12)]).await;
    app.compact(&fork, &json!({"compactCount": 99, "keepRecentTurns": 0}))
        .await
        .expect(200);
    app.rewind(&fork, 9).await.expect(200);
    let first = items(&app, &fork).await[1]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    app.erase(&fork, &first).await.expect(204);
    assert_eq!(
        app.session(&parent).await,
        before,
        "the parent is as it was"
    );
    chain::check(&app, &parent, &History::new(&all), "the parent").await;
    app.append(&parent, &[user("only here")]).await;
    assert!(
        items(&app, &fork)
            .await
            .iter()
            .all(|item| item["message"]["content"] != "only here"),
        "the fork does not hear of it"
    );
    app.delete(&format!("/sessions/{parent}")).await.expect(204);
    assert_eq!(
        app.history(&fork).await.len(),
        9,
        "nor of the end of its parent"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_may_begin_earlier(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let all = turns(5, 100);
    let parent = app.create_with(&all).await;
    for percent in [25, 1] {
        app.compact(&parent, &json!({"compactCount": percent}))
            .await
            .expect(200);
    }
    let records = app.compactions(&parent).await;
    assert_eq!(
        (&records[0]["to"], &records[1]["to"]),
        (&json!(4), &json!(6))
    );
    for (at, size) in [
        (0_usize, 0),
        (3, 0),
        (4, 4),
        (5, 4),
        (6, 6),
        (9, 6),
        (10, 6),
        (99, 6),
    ] {
        let reply = app.fork(&parent, &json!({"atSeq": at})).await.expect(201);
        let fork = forked(&reply);
        let what = format!("forked at {at}");
        let history = History::new(&all[..at.min(10)]);
        let session = chain::check_context(&app, &fork, &history, &what).await;
        assert_eq!(
            session["compactSize"], size,
            "{what}: what its summaries cover"
        );
        let expected = match size {
            4 => &records[0]["summary"],
            6 => &records[1]["summary"],
            _ => &Value::Null,
        };
        assert_eq!(&session["compactSummary"], expected, "{what}");
        for record in app.compactions(&fork).await {
            let to = record["to"]
                .as_u64()
                .and_then(|to| usize::try_from(to).ok());
            assert!(
                record["summary"].is_null() || to.is_some_and(|to| to <= at),
                "{what}: no summary of what the fork does not have: {record:#}"
            );
        }
        let after = app.append(&fork, &[u(10)]).await;
        assert_eq!(
            after[0]["position"],
            at.min(10),
            "{what}: positions are dense"
        );
        assert!(
            after[0]["seq"].as_u64() > Some(at.min(10) as u64),
            "{what}: a new seq: {}",
            after[0]
        );
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_session_has_an_open_fork(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let parent = app.create_with(&turns(2, 10)).await;
    app.post_empty(&format!("/sessions/{parent}/close"))
        .await
        .expect(200);
    let before = app.session(&parent).await;
    let body = json!({"title": "second try", "metadata": {"of": parent}});
    let session = app.fork(&parent, &body).await.expect(201).json();
    assert_eq!(session["status"], "active");
    assert_eq!(session["closedAt"], Value::Null);
    assert_eq!(session["title"], "second try");
    assert_eq!(session["metadata"], body["metadata"]);
    let id = session["id"].as_str().expect("an id");
    app.append(id, &[user("goes on")]).await;
    assert_eq!(
        app.session(&parent).await,
        before,
        "the parent stays closed"
    );
}

#[rstest]
#[case::negative(json!({"atSeq": -1}), "/atSeq")]
#[case::text(json!({"atSeq": "1"}), "/atSeq")]
#[case::unknown(json!({"toSeq": 1}), "/toSeq")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_makes_no_session(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] body: Value,
    #[case] pointer: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(2, 10)).await;
    app.fork(&id, &body).await.invalid(pointer);
    app.fork("sess_00000000000000000000000000", &json!({}))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    let sessions = app.get("/sessions").await.expect(200).json();
    assert_eq!(sessions["data"].as_array().map(Vec::len), Some(1));
}

/// Forks while others append: each is a whole prefix, without a hole or a half request.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_during_appends_is_a_prefix(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let parent = app.create_with(&turns(1, 10)).await;
    let appending = async {
        for n in 0..40 {
            app.append(&parent, &[user(&format!("q{n}")), a(5), user("and"), a(6)])
                .await;
        }
    };
    let forking = async {
        let mut forks = Vec::new();
        for _ in 0..12 {
            let reply = app.fork(&parent, &json!({})).await.expect(201);
            forks.push(forked(&reply));
        }
        forks
    };
    let ((), forks) = tokio::join!(appending, forking);
    let whole = items(&app, &parent).await;
    assert_eq!(whole.len(), 162, "every append was taken");
    for fork in forks {
        let part = items(&app, &fork).await;
        assert_eq!(
            part.len() % 4,
            2,
            "no half request: {} messages",
            part.len()
        );
        assert_eq!(part, whole[..part.len()], "a prefix of its parent");
        let session = app.session(&fork).await;
        assert_eq!(session["messageCount"], part.len());
        assert_eq!(
            session["lastSeq"],
            part.len(),
            "and its numbers are those of the prefix"
        );
        let stored: Vec<String> = app
            .history(&fork)
            .await
            .iter()
            .map(|item| item.message.get().to_owned())
            .collect();
        chain::check(&app, &fork, &History::new(&stored), "a fork during appends").await;
    }
}
