//! `POST …/rewind`: forget what came after.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{a, calls, r, system, turns, u, user};
use crate::support::{Backend, History, ScriptedModel, TestApp, chain};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_came_after_is_gone_and_numbers_are_kept_apart(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let raws = [system("s"), u(10), a(20), system("late"), u(30), a(40)];
    let id = app.create_with(&raws).await;
    let before = app.history(&id).await;

    let session = app.rewind(&id, 3).await.expect(200).json();
    assert_eq!(session["messageCount"], 3);
    assert_eq!(session["historyLength"], 30, "the running total goes back");
    assert_eq!(session["lastSeq"], 6, "a seq is never given twice");
    assert_eq!(session, app.session(&id).await, "the session as it is now");
    let history = History::new(&raws[..3]);
    chain::check(&app, &id, &history, "after the rewind").await;
    for item in &before[3..] {
        app.get(&format!("/sessions/{id}/messages/{}", item.id))
            .await
            .problem(404, "MESSAGE_NOT_FOUND");
    }

    let after = app.append(&id, &[u(5), system("newer"), a(6)]).await;
    let numbers: Vec<_> = after
        .iter()
        .map(|item| (&item["seq"], &item["position"]))
        .collect();
    assert_eq!(
        numbers,
        [
            (&json!(7), &json!(2)),
            (&json!(8), &Value::Null),
            (&json!(9), &json!(3))
        ],
        "seq goes on behind the gap, position is dense"
    );
    let history = History::new(&[&raws[..3], &[u(5), system("newer"), a(6)]].concat());
    chain::check(&app, &id, &history, "after the gap").await;
    let listed = app
        .get(&format!("/sessions/{id}/messages?afterSeq=3"))
        .await
        .expect(200)
        .page();
    let seqs: Vec<u64> = listed.data.iter().map(|item| item.seq).collect();
    assert_eq!(seqs, [7, 8, 9], "the list knows of the gap");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn everything_or_nothing_can_be_forgotten(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(5, 100)).await;
    app.compact(&id, &json!({})).await.expect(200);
    let (before, tag) = (app.session(&id).await, app.etag(&id).await);
    for to in [10, 11, 1_000_000] {
        let session = app.rewind(&id, to).await.expect(200).json();
        assert_eq!(session, before, "nothing comes after {to}");
    }
    assert_eq!(app.etag(&id).await, tag, "nothing has changed");

    let session = app.rewind(&id, 0).await.expect(200).json();
    assert_eq!(session["messageCount"], 0);
    assert_eq!(session["compactSize"], 0);
    assert_eq!(session["compactSummary"], Value::Null);
    assert_eq!(session["compactionVersion"], 0);
    assert_eq!(session["lastSeq"], 10);
    assert_ne!(app.etag(&id).await, tag, "an emptied context is another");
    assert!(app.context(&id).await.messages.is_empty());
    let records = app.compactions(&id).await;
    assert!(
        records.iter().all(|record| record["summary"].is_null()),
        "no summary of what was forgotten is left: {records:#?}"
    );
    app.append(&id, &[user("again")]).await;
    assert_eq!(app.context(&id).await.messages.len(), 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn calls_are_open_as_they_were(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let raws = [
        u(5),
        calls(&["c1", "c2"], 0),
        r("c2", 5),
        r("c1", 5),
        a(5),
        u(5),
    ];
    let id = app.create_with(&raws).await;
    app.append_raw(&id, &format!("[{}]", r("c1", 5)))
        .await
        .problem(422, "TOOL_CALL_NOT_FOUND");
    for (to, open) in [(4, &[][..]), (3, &["c1"]), (2, &["c1", "c2"])] {
        app.rewind(&id, to).await.expect(200);
        assert_eq!(app.context(&id).await.open_calls, open, "rewound to {to}");
    }
    app.append(&id, &[r("c1", 7), r("c2", 8), a(9)]).await;
    let history = History::new(&[
        raws[0].clone(),
        raws[1].clone(),
        r("c1", 7),
        r("c2", 8),
        a(9),
    ]);
    chain::check(&app, &id, &history, "answered anew").await;
}

/// A turn that was opened by two user messages, cut between them.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn turns_and_plans_are_those_of_what_is_left(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let raws = [u(100), a(100), u(100), u(100), a(100), u(100), a(100)];
    for to in 0..=7_u64 {
        let id = app.create_with(&raws).await;
        app.rewind(&id, to).await.expect(200);
        let left = usize::try_from(to).expect("small");
        let mut history = History::new(&raws[..left]);
        for percent in [1, 50, 99] {
            let expected = history
                .plan(0, 0, crate::support::Request::percent(percent))
                .size_after(0);
            let body = json!({"compactCount": percent, "dryRun": true});
            let planned = app.compact(&id, &body).await.expect(200).json();
            assert_eq!(planned["newSize"], expected, "to {to}, {percent} per cent");
        }
        app.append(&id, &[u(100), a(100)]).await;
        history.push(&u(100));
        history.push(&a(100));
        let request = crate::support::Request::percent(99);
        chain::compact_and_check(&app, &id, &history, request, "after a rewind").await;
    }
}

#[rstest]
#[case::negative(json!({"toSeq": -1}), "/toSeq")]
#[case::missing(json!({}), "/toSeq")]
#[case::null(json!({"toSeq": null}), "/toSeq")]
#[case::text(json!({"toSeq": "3"}), "/toSeq")]
#[case::fraction(json!({"toSeq": 1.5}), "/toSeq")]
#[case::unknown(json!({"toSeq": 1, "force": true}), "/force")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_changes_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] body: Value,
    #[case] pointer: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(2, 10)).await;
    app.post(&format!("/sessions/{id}/rewind"), &body)
        .await
        .invalid(pointer);
    assert_eq!(app.history(&id).await.len(), 4);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_session_and_a_closed_one(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    app.rewind("sess_00000000000000000000000000", 1)
        .await
        .problem(404, "SESSION_NOT_FOUND");
    let id = app.create_with(&turns(2, 10)).await;
    app.post_empty(&format!("/sessions/{id}/close"))
        .await
        .expect(200);
    for to in [0, 2, 4, 9] {
        app.rewind(&id, to).await.problem(400, "SESSION_CLOSED");
    }
    assert_eq!(app.history(&id).await.len(), 4);
}
