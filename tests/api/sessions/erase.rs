//! `DELETE …/messages/{messageId}`: the place stays, the content is gone for good.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{a, r, result, system, turns, u, user};
use crate::support::model::{MAIN, mark};
use crate::support::shadow::{check_erased, item};
use crate::support::{Answer, Backend, History, Reply, ScriptedModel, TestApp, chain};

fn conversation() -> Vec<String> {
    let calls = json!({"role": "assistant", "content": "SECRET content", "reasoning_content": "SECRET thought",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{\"p\":\"SECRET\"}"}},
            {"id": "c2", "type": "function", "function": {"name": "write", "arguments": "SECRET, no JSON"}}]});
    vec![
        system("SECRET instruction"),
        r#"{"role":"user","name":"SECRET","content":[{"type":"text","text":"SECRET part"}],"x_SECRET":"SECRET"}"#.to_owned(),
        calls.to_string(),
        result("c1", "SECRET result"),
        r("c2", 40),
        a(50),
        u(60),
    ]
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_message_keeps_its_place_and_nothing_else(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut raws = conversation();
    let id = app.create_with(&raws).await;
    let before = app.history(&id).await;
    for index in [1, 2, 3] {
        let tag = app.etag(&id).await;
        let old = &before[index];
        let reply = app.erase(&id, &old.id).await.expect(204);
        assert!(reply.body.is_empty(), "nothing to say: {reply}");
        let new = item(&app, &id, &old.id).await;
        assert_eq!(new.state, "erased");
        assert_eq!(
            (new.seq, new.position),
            (old.seq, old.position),
            "its place"
        );
        check_erased(old.message.get(), new.message.get());
        raws[index] = new.message.get().to_owned();
        assert_ne!(app.etag(&id).await, tag, "another context, another tag");
        chain::check(
            &app,
            &id,
            &History::new(&raws),
            &format!("message {index} erased"),
        )
        .await;
        app.erase(&id, &old.id).await.expect(204);
    }
    // An erased instruction is left out of contexts.
    app.erase(&id, &before[0].id).await.expect(204);
    let new = item(&app, &id, &before[0].id).await;
    assert_eq!((new.state.as_str(), new.position), ("erased", None));
    check_erased(before[0].message.get(), new.message.get());
    chain::check(
        &app,
        &id,
        &History::new(&raws[1..]),
        "the instruction erased",
    )
    .await;
    assert_eq!(
        app.session(&id).await["messageCount"],
        7,
        "every place is there"
    );
    for path in ["", "/messages", "/context", "/compactions"] {
        let reply = app.get(&format!("/sessions/{id}{path}")).await.expect(200);
        let text = String::from_utf8_lossy(&reply.body);
        assert!(!text.contains("SECRET"), "gone for good: {reply}");
    }
    // What others said of the calls still pairs.
    app.append(&id, &[user("and now?")]).await;
    raws.push(user("and now?"));
    chain::check(&app, &id, &History::new(&raws[1..]), "goes on").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_open_call_stays_open(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&conversation()[..4]).await;
    let calling = app.history(&id).await[2].id.clone();
    app.erase(&id, &calling).await.expect(204);
    assert_eq!(app.context(&id).await.open_calls, ["c2"]);
    app.append(&id, &[r("c2", 5)]).await;
    assert!(
        app.context(&id).await.open_calls.is_empty(),
        "it was answered"
    );
}

/// Ten marked messages and versions that end at 2, 4 and 6.
async fn summarised(backend: Backend) -> (ScriptedModel, TestApp, String) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [Answer::Marks]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let raws: Vec<String> = turns(5, 90)
        .iter()
        .enumerate()
        .map(|(n, raw)| raw.replacen('x', &format!("{} ", mark(n)), 1))
        .collect();
    let id = app.create_with(&raws).await;
    for _ in 0..3 {
        app.compact(&id, &json!({"compactCount": 1}))
            .await
            .expect(200);
    }
    (model, app, id)
}

#[rstest]
#[case::in_the_first_batch(1, 0)]
#[case::in_the_second(2, 1)]
#[case::at_the_end_of_the_second(3, 1)]
#[case::in_the_third(5, 2)]
#[case::in_the_tail(6, 3)]
#[tokio::test(flavor = "multi_thread")]
async fn what_summaries_said_of_it_is_erased_with_it(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] index: usize,
    #[case] active: usize,
) {
    let (_model, app, id) = summarised(backend).await;
    let before = app.compactions(&id).await;
    let message = app.history(&id).await[index].id.clone();
    app.erase(&id, &message).await.expect(204);

    let raws: Vec<String> = app
        .history(&id)
        .await
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    let session = chain::check_context(&app, &id, &History::new(&raws), "erased").await;
    assert_eq!(session["compactionVersion"], active);
    assert_eq!(session["compactSize"], 2 * active);
    let after = app.compactions(&id).await;
    assert_eq!(after.len(), 3, "the records stay");
    for (record, before) in after.iter().zip(&before) {
        let to = record["to"].as_u64().expect("an end");
        let expected = if to > index as u64 {
            &Value::Null
        } else {
            &before["summary"]
        };
        assert_eq!(&record["summary"], expected, "the text of {record:#}");
    }
    let gone = mark(index);
    for path in [
        "",
        "/messages",
        "/context",
        "/compactions",
        "/compactions/3",
    ] {
        let reply = app.get(&format!("/sessions/{id}{path}")).await.expect(200);
        assert!(
            !String::from_utf8_lossy(&reply.body).contains(&gone),
            "gone: {reply}"
        );
    }
    let answer = app
        .compact(&id, &json!({"compactCount": 99}))
        .await
        .expect(200)
        .json();
    assert_eq!(answer["compaction"]["version"], 4);
    assert_eq!(
        answer["compaction"]["basedOn"].as_u64().unwrap_or(0),
        active as u64
    );
    assert!(
        !answer.to_string().contains(&gone),
        "no new summary knows it: {answer:#}"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn two_erasures_at_once_are_one_each(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let (_model, app, id) = summarised(backend).await;
    let ids: Vec<String> = app
        .history(&id)
        .await
        .iter()
        .map(|item| item.id.clone())
        .collect();
    // The same message twice, and others beside it.
    let targets = [&ids[1], &ids[1], &ids[4], &ids[7], &ids[1]];
    let replies: Vec<Reply> =
        futures_util::future::join_all(targets.map(|message| app.erase(&id, message))).await;
    for reply in replies {
        reply.expect(204);
    }
    let items = app.history(&id).await;
    let erased: Vec<usize> = (0..10).filter(|n| items[*n].state == "erased").collect();
    assert_eq!(erased, [1, 4, 7]);
    let raws: Vec<String> = items
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    let session = chain::check_context(&app, &id, &History::new(&raws), "erased").await;
    assert_eq!(session["compactSize"], 0, "the first is in every version");
    assert!(
        app.compactions(&id)
            .await
            .iter()
            .all(|record| record["summary"].is_null())
    );
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
    app.erase(&id, missing)
        .await
        .problem(404, "MESSAGE_NOT_FOUND");
    app.erase(&other, &message)
        .await
        .problem(404, "MESSAGE_NOT_FOUND");
    app.erase("sess_00000000000000000000000000", &message)
        .await
        .problem(404, "SESSION_NOT_FOUND");
    app.post_empty(&format!("/sessions/{id}/close"))
        .await
        .expect(200);
    app.erase(&id, &message)
        .await
        .problem(400, "SESSION_CLOSED");
    assert_eq!(item(&app, &id, &message).await.message.get(), u(10));
}
