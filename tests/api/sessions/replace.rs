//! `PUT …/messages/{messageId}`: another message in the same place.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{a, assistant, calls, r, result, system, turns, u, user};
use crate::support::model::{MAIN, mark, marks};
use crate::support::shadow::item;
use crate::support::{Answer, Backend, History, Request, ScriptedModel, TestApp, chain};

fn conversation() -> Vec<String> {
    vec![
        system("be brief"),
        u(10),
        calls(&["c1", "c2"], 20),
        r("c1", 30),
        r("c2", 40),
        a(50),
        u(60),
    ]
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_place_stays_and_the_bytes_are_new(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut raws = conversation();
    let id = app.create_with(&raws).await;
    let replacements = [
        (0, r#"{ "role":"system",  "content":"be \u0062older", "x":1.50 }"#.to_owned()),
        (1, r#"{"content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}],"role":"user"}"#.to_owned()),
        (2, calls(&["c1", "c2"], 0).replace("{}", r#"{\"path\":\"a\"}"#)),
        (4, result("c2", "short")),
        (5, assistant("another answer \u{1f600}")),
    ];
    for (index, raw) in replacements {
        let before = app.history(&id).await;
        let tag = app.etag(&id).await;
        let old = &before[index];
        let answer = app.replace(&id, &old.id, &raw).await.expect(200).json();
        raws[index].clone_from(&raw);
        let new = item(&app, &id, &old.id).await;
        assert_eq!(new.message.get(), raw, "byte for byte");
        assert_eq!(
            (new.seq, new.position),
            (old.seq, old.position),
            "its place stays"
        );
        assert_eq!(new.state, "verbatim");
        let shown = app
            .get(&format!("/sessions/{id}/messages/{}", old.id))
            .await
            .json();
        assert_eq!(answer, shown, "the answer is the item");
        assert_ne!(app.etag(&id).await, tag, "another context, another tag");
        let history = History::new(&raws);
        chain::check(&app, &id, &history, &format!("message {index} replaced")).await;
        let lengths: Vec<usize> = app
            .history(&id)
            .await
            .iter()
            .filter(|item| item.position.is_some())
            .map(|item| item.length)
            .collect();
        let expected: Vec<usize> = history.messages.iter().map(|m| m.length).collect();
        assert_eq!(lengths, expected, "the lengths");
    }
    // The running totals behind each change are right: plans say so.
    let history = History::new(&raws);
    for percent in 1..=99 {
        for request in [Request::percent(percent), Request::step(percent)] {
            let mut body = request.body();
            body["dryRun"] = json!(true);
            let planned = app.compact(&id, &body).await.expect(200).json();
            let expected = history.plan(0, 0, request).size_after(0);
            assert_eq!(planned["newSize"], expected, "{body}");
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_services_own_member_is_taken_off(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let first = json!({"role": "assistant", "content": "half",
        "precis": {"id": "answer-1", "usage": {"output_tokens": 1}, "incomplete": true}});
    app.append(&id, &[user("q"), first.to_string()]).await;
    let whole = json!({"role": "assistant", "content": "whole",
        "precis": {"id": "answer-1", "usage": {"output_tokens": 7}}});
    let answer = app
        .replace(&id, "answer-1", &whole.to_string())
        .await
        .expect(200)
        .json();
    assert_eq!(answer["usage"], json!({"output_tokens": 7}));
    assert_ne!(answer["incomplete"], true, "it is complete now: {answer}");
    assert_eq!(
        answer["message"],
        json!({"role": "assistant", "content": "whole"})
    );

    // Without the member there is none.
    let answer = app
        .replace(&id, "answer-1", &assistant("bare"))
        .await
        .expect(200)
        .json();
    assert_eq!(answer["usage"], Value::Null);
    let other = json!({"role": "assistant", "content": "x", "precis": {"id": "answer-2"}});
    app.replace(&id, "answer-1", &other.to_string())
        .await
        .problem(422, "VALIDATION_FAILED");
    assert_eq!(
        item(&app, &id, "answer-1").await.message.get(),
        assistant("bare")
    );
}

#[rstest]
#[case::role(1, assistant("x"))]
#[case::user_to_instruction(1, system("x"))]
#[case::instruction_to_user(0, user("x"))]
#[case::role_of_a_result(3, user("x"))]
#[case::another_call(2, calls(&["c1", "c9"], 0))]
#[case::one_call_less(2, calls(&["c1"], 0))]
#[case::no_calls(2, a(5))]
#[case::other_order(2, calls(&["c2", "c1"], 0))]
#[case::new_calls(5, calls(&["c1"], 0))]
#[case::answers_another_call(3, r("c2", 5))]
#[case::unknown_role(1, r#"{"role":"wizard","content":"x"}"#.to_owned())]
#[case::no_role(1, r#"{"content":"x"}"#.to_owned())]
#[case::content(1, r#"{"role":"user","content":5}"#.to_owned())]
#[tokio::test(flavor = "multi_thread")]
async fn what_others_rely_on_cannot_change(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] index: usize,
    #[case] raw: String,
) {
    let app = TestApp::spawn(backend).await;
    let raws = conversation();
    let id = app.create_with(&raws).await;
    let (session, tag) = (app.session(&id).await, app.etag(&id).await);
    let message = app.history(&id).await[index].id.clone();
    app.replace(&id, &message, &raw)
        .await
        .problem(422, "VALIDATION_FAILED");
    assert_eq!(app.session(&id).await, session, "nothing was written");
    assert_eq!(app.etag(&id).await, tag);
    chain::check(&app, &id, &History::new(&raws), "refused").await;
}

#[rstest]
#[case::not_json("{")]
#[case::two_values(r#"{"role":"user","content":"x"} {}"#)]
#[case::lone_surrogate(r#"{"role":"user","content":"\ud800"}"#)]
#[case::role_twice(r#"{"role":"user","role":"user","content":"x"}"#)]
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_json_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] raw: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(1, 10)).await;
    let message = app.history(&id).await[0].id.clone();
    app.replace(&id, &message, raw)
        .await
        .problem(400, "INVALID_JSON");
    assert_eq!(item(&app, &id, &message).await.message.get(), u(10));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_summary_of_the_old_text_is_gone_for_good(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [Answer::Marks]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let mut raws: Vec<String> = (0..10_usize)
        .map(|n| {
            let text = format!("{} {}", mark(n), "x".repeat(90));
            if n % 2 == 0 {
                user(&text)
            } else {
                assistant(&text)
            }
        })
        .collect();
    let id = app.create_with(&raws).await;
    for _ in 0..3 {
        app.compact(&id, &json!({"compactCount": 1}))
            .await
            .expect(200);
    }
    let third = app.history(&id).await[3].id.clone();
    raws[3] = assistant(&format!("{} corrected", mark(99)));
    app.replace(&id, &third, &raws[3]).await.expect(200);

    let history = History::new(&raws);
    let session = chain::check_context(&app, &id, &history, "edited").await;
    assert_eq!(
        session["compactSize"], 2,
        "the newest version that ends before it"
    );
    let records = app.compactions(&id).await;
    let kept: Vec<bool> = records
        .iter()
        .map(|record| record["summary"].is_string())
        .collect();
    assert_eq!(
        kept,
        [true, false, false],
        "no text that knew the message is left"
    );

    app.compact(&id, &json!({"compactCount": 99}))
        .await
        .expect(200);
    let session = chain::check_context(&app, &id, &history, "compacted anew").await;
    let summary = session["compactSummary"].as_str().expect("a summary");
    assert!(
        marks(summary).contains(&mark(99)),
        "the new text: {summary}"
    );
    assert!(
        !marks(summary).contains(&mark(3)),
        "not the old one: {summary}"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_instruction_changes_nothing_but_itself(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut raws = turns(5, 100);
    raws.insert(0, system("first"));
    raws.insert(3, system("second"));
    let id = app.create_with(&raws).await;
    app.compact(&id, &json!({})).await.expect(200);
    let before = app.session(&id).await;
    let message = app.history(&id).await[3].id.clone();
    raws[3] = system("second, changed");
    app.replace(&id, &message, &raws[3]).await.expect(200);
    let session = chain::check(&app, &id, &History::new(&raws), "s05: shown at once").await;
    for member in [
        "compactSize",
        "compactSummary",
        "compactionVersion",
        "historyLength",
    ] {
        assert_eq!(session[member], before[member], "`{member}` is left alone");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn unknown_ids_and_closed_sessions(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(1, 10)).await;
    let other = app.create_with(&turns(1, 10)).await;
    let message = app.history(&id).await[0].id.clone();
    let missing = "msg_00000000000000000000000000";
    app.replace(&id, missing, &u(1))
        .await
        .problem(404, "MESSAGE_NOT_FOUND");
    app.replace(&other, &message, &u(1))
        .await
        .problem(404, "MESSAGE_NOT_FOUND");
    app.replace("sess_00000000000000000000000000", &message, &u(1))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    app.post_empty(&format!("/sessions/{id}/close"))
        .await
        .expect(200);
    app.replace(&id, &message, &u(1))
        .await
        .problem(400, "SESSION_CLOSED");
    assert_eq!(item(&app, &id, &message).await.message.get(), u(10));
}
