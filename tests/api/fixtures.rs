//! The conversation fixtures: in and out byte for byte, first runs as `expectations.json` says,
//! and chains of compactions until there is nothing left to do.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::chain;
use crate::support::{
    Backend, Boundary, FIXTURES, History, Plan, Request, ScriptedModel, TestApp, conversation,
    fixture, messages,
};

fn expectations() -> Value {
    serde_json::from_str(&fixture("expectations.json")).expect("expectations.json is JSON")
}

/// The rows of a table "percentage → size".
fn rows(table: &Value) -> Vec<(usize, usize)> {
    let table = table.as_object().expect("a table of percentages");
    assert!(!table.is_empty(), "the table has rows");
    let number = |value: &Value| usize::try_from(value.as_u64().expect("a size")).expect("small");
    table
        .iter()
        .map(|(percent, size)| (percent.parse().expect("a percentage"), number(size)))
        .collect()
}

/// The oracle of these tests is itself held against the expectations.
#[test]
fn the_oracle_agrees_with_the_expectations() {
    let expectations = expectations();
    for name in FIXTURES {
        let expected = &expectations["fixtures"][format!("{name}.json")];
        let raws = conversation(name);
        let history = History::new(&raws);
        assert_eq!(expected["messages"], raws.len(), "{name}: messages");
        assert_eq!(expected["length"], history.length(), "{name}: length");
        assert_eq!(
            expected["turnStarts"],
            json!(history.turn_starts()),
            "{name}: turn starts"
        );
        assert_eq!(
            expected["openCallsAtEnd"],
            json!(history.open_calls()),
            "{name}: open calls"
        );
        for (percent, size) in rows(&expected["compactSizeOfAFirstRun"]) {
            let plan = history.plan(0, 0, Request::percent(percent));
            assert_eq!(plan, Plan::Cut(size), "{name} at {percent} by turn");
        }
        for (percent, size) in rows(&expected["compactSizeOfAFirstRunByStep"]) {
            let plan = history.plan(0, 0, Request::step(percent));
            assert_eq!(plan, Plan::Cut(size), "{name} at {percent} by step");
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_fixture_comes_back_byte_for_byte(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(false, true)] at_creation: bool,
) {
    let app = TestApp::spawn(backend).await;
    for name in FIXTURES {
        let file = fixture(&format!("{name}.json"));
        let raws = messages::split(&file);
        let id = if at_creation {
            let body = format!("{{\"messages\":{file}}}");
            let session = app.post_raw("/sessions", body).await.expect(201).json();
            session["id"].as_str().expect("an id").to_owned()
        } else {
            let id = app.create(&json!({})).await;
            app.append_raw(&id, &file).await.expect(201);
            id
        };
        let history = History::new(&raws);
        let items = app.history(&id).await;
        assert_eq!(items.len(), raws.len(), "{name}: every message is listed");
        let mut position = 0;
        for (index, (item, raw)) in items.iter().zip(&raws).enumerate() {
            assert_eq!(
                item.message.get(),
                raw,
                "{name}: message {index}, byte for byte"
            );
            assert_eq!(item.seq, index as u64 + 1, "{name}: seq counts from 1");
            assert_eq!(item.state, "verbatim", "{name}: nothing was summarised");
            if let Some(place) = item.position {
                assert_eq!(place, position, "{name}: positions are dense");
                assert_eq!(
                    item.length, history.messages[position].length,
                    "{name}: length of message {index}"
                );
                position += 1;
            } else {
                assert!(
                    history.instructions.contains(raw),
                    "{name}: only instructions have no position, message {index} has none"
                );
            }
        }
        assert_eq!(
            position,
            history.messages.len(),
            "{name}: every other message has one"
        );
        let one = items.last().expect("a message");
        let reply = app
            .get(&format!("/sessions/{id}/messages/{}", one.id))
            .await
            .expect(200);
        let text = String::from_utf8(reply.body.to_vec()).expect("UTF-8");
        assert!(
            text.contains(one.message.get()),
            "{name}: one message alone has the same bytes: {text:.300}"
        );
        let session = chain::check(&app, &id, &history, name).await;
        assert_eq!(session["messageCount"], raws.len(), "{name}: messageCount");
        assert_eq!(session["lastSeq"], raws.len(), "{name}: lastSeq");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_lone_surrogate_is_refused_and_stores_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&[messages::user("before")]).await;
    let before = app.session(&id).await;

    app.append_raw(&id, &fixture("06b_lone_surrogate.invalid.json"))
        .await
        .problem(400, "INVALID_JSON");

    assert_eq!(app.session(&id).await, before, "the session is as before");
    assert_eq!(app.history(&id).await.len(), 1, "no message was stored");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_first_run_compacts_what_the_expectations_say(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(Boundary::Turn, Boundary::Step)] boundary: Boundary,
) {
    let app = TestApp::spawn(backend).await;
    let expectations = expectations();
    for name in FIXTURES {
        let raws = conversation(name);
        let history = History::new(&raws);
        let expected = &expectations["fixtures"][format!("{name}.json")];
        let (table, request): (_, fn(usize) -> Request) = match boundary {
            Boundary::Turn => ("compactSizeOfAFirstRun", Request::percent),
            Boundary::Step => ("compactSizeOfAFirstRunByStep", Request::step),
        };
        for (percent, size) in rows(&expected[table]) {
            let what = format!("{name} at {percent} by {}", boundary.name());
            let id = app.create_with(&raws).await;
            let mut body = request(percent).body();
            body["dryRun"] = json!(true);
            let planned = app.compact(&id, &body).await.expect(200).json();
            assert_eq!(planned["newSize"], size, "{what}: a dry run tells the cut");
            assert_eq!(
                app.session(&id).await["compactSize"],
                0,
                "{what}: a dry run changes nothing"
            );
            let answer = app.compact(&id, &request(percent).body()).await.expect(200);
            assert_eq!(answer.json()["newSize"], size, "{what}: {answer}");
            let session = chain::check(&app, &id, &history, &what).await;
            assert_eq!(session["compactSize"], size, "{what}: compactSize");
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn compacting_until_up_to_date_keeps_every_context_valid(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(Request::percent(30), Request::step(30))] request: Request,
    #[values(false, true)] with_model: bool,
) {
    let model = ScriptedModel::start().await;
    let app = if with_model {
        TestApp::with_model(backend, &model, &[]).await
    } else {
        TestApp::spawn(backend).await
    };
    let mut total = 0;
    for name in FIXTURES {
        let raws = conversation(name);
        let history = History::new(&raws);
        let id = app.create_with(&raws).await;
        let mut runs = 0;
        while chain::compact_and_check(&app, &id, &history, request, name).await {
            runs += 1;
            assert!(runs < raws.len(), "{name}: each run must make progress");
        }
        assert!(runs > 1, "{name}: expected a chain, got {runs} runs");
        total += runs;
        let kept: Vec<String> = app
            .history(&id)
            .await
            .iter()
            .map(|item| item.message.get().to_owned())
            .collect();
        assert_eq!(kept, raws, "{name}: compaction leaves the messages alone");
    }
    if with_model {
        assert!(
            model.calls().len() >= total,
            "expected a call for each of {total} runs, got {}",
            model.calls().len()
        );
    } else {
        assert_eq!(model.calls().len(), 0, "no model was configured");
    }
}
