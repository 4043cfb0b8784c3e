//! K2 and K3: context assembly, and the user's current request.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::chain;
use crate::support::messages::{a, padded, system, turns, u, user};
use crate::support::model::MAIN;
use crate::support::{Answer, Backend, History, Request, ScriptedModel, TestApp};
use crate::support::{FIXTURES, conversation};

#[rstest]
#[case::system("system")]
#[case::developer("developer")]
#[tokio::test(flavor = "multi_thread")]
async fn s05_instructions_stay_first_once_and_whole(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] role: &str,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let first = format!(r#"{{ "role":"{role}",  "content":"FIRST \u0041 INSTRUCTION" }}"#);
    let second = system("SECOND INSTRUCTION");
    let raws = [
        first.clone(),
        u(100),
        a(100),
        second.clone(),
        u(100),
        a(100),
        u(100),
    ];
    let id = app.create_with(&raws).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    assert_eq!(
        answer.json()["newSize"],
        4,
        "no instruction is counted: {answer}"
    );

    let mut bodies = Vec::new();
    for _ in 0..3 {
        let reply = app
            .get(&format!("/sessions/{id}/context"))
            .await
            .expect(200);
        let context = reply.context();
        let shown: Vec<&str> = context.messages.iter().map(|raw| raw.get()).collect();
        assert_eq!(
            shown[..2],
            [&first, &second],
            "both instructions first, byte for byte"
        );
        assert_eq!(context.summary_at, Some(2), "then the summary pair");
        assert_eq!(shown[4..], [&raws[6]], "then the tail");
        bodies.push(reply.body);
    }
    assert!(
        bodies.windows(2).all(|pair| pair[0] == pair[1]),
        "the same on every call"
    );
    let asked = model.last().body.to_string();
    for absent in ["FIRST A INSTRUCTION", "SECOND INSTRUCTION"] {
        assert!(
            !asked.contains(absent),
            "no system text is summarised: {asked}"
        );
    }

    // One that comes later shows at once and leaves pointer and summary alone.
    let before = app.session(&id).await;
    let third = format!(r#"{{"role":"{role}","content":"THIRD"}}"#);
    app.append(&id, std::slice::from_ref(&third)).await;
    let session = app.session(&id).await;
    for member in [
        "compactSize",
        "compactSummary",
        "compactionVersion",
        "historyLength",
    ] {
        assert_eq!(
            session[member], before[member],
            "`{member}` after a new instruction"
        );
    }
    let context = app.context(&id).await;
    assert_eq!(
        context.messages[2].get(),
        third,
        "after the other instructions"
    );
    let mut all = raws.to_vec();
    all.push(third);
    chain::check(&app, &id, &History::new(&all), "s05").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s06_the_summary_keeps_roles_alternating(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let raws = [system("s"), a(50), u(400), a(400), u(100)];
    let id = app.create_with(&raws).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 30}))
        .await
        .expect(200);
    assert_eq!(answer.json()["newSize"], 3, "{answer}");
    let roles: Vec<String> = app
        .context(&id)
        .await
        .messages
        .iter()
        .map(|raw| {
            let message: Value = serde_json::from_str(raw.get()).expect("JSON");
            message["role"].as_str().expect("a role").to_owned()
        })
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
}

/// Every fixture at every percentage; by turn and by step, with and without a kept turn.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s06_no_fixture_makes_neighbours_of_one_role(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for name in FIXTURES {
        let raws = conversation(name);
        let history = History::new(&raws);
        let mut seen = Vec::new();
        for percent in 1..=99 {
            for request in [Request::percent(percent), Request::step(percent)] {
                let cut = history.plan(0, 0, request).size_after(0);
                // The context depends on the cut alone: one session for each will do.
                if !seen.contains(&cut) {
                    seen.push(cut);
                    let id = app.create_with(&raws).await;
                    chain::compact_and_check(&app, &id, &history, request, name).await;
                    app.delete(&format!("/sessions/{id}")).await.expect(204);
                }
            }
        }
        assert!(
            seen.len() > 5,
            "{name}: expected several cuts, got {seen:?}"
        );
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s07_the_newest_user_message_is_never_summarised_away(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let mut raws = turns(10, 10);
    raws.push(u(10_000));
    let id = app.create_with(&raws).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    assert_eq!(answer.json()["newSize"], 20, "(a): {answer}");
    let context = app.context(&id).await;
    let newest = context.messages.last().map(|raw| raw.get());
    assert_eq!(
        newest,
        raws.last().map(String::as_str),
        "(a): verbatim and last"
    );

    // (b): an old summary of 3,000 characters weighs more than all that is left.
    model.script(
        MAIN,
        [Answer::Text(padded("old summary ", 3_000)), Answer::Summary],
    );
    let mut raws = turns(2, 2_000);
    let id = app.create_with(&raws).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 99, "keepRecentTurns": 0}))
        .await
        .expect(200);
    assert_eq!(answer.json()["newSize"], 4, "(b), first: {answer}");
    raws.extend(turns(9, 100));
    raws.push(user(&padded("the question ", 200)));
    app.append(&id, &raws[4..]).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    assert_eq!(answer.json()["compactedCount"], 18, "(b): {answer}");
    let context = app.context(&id).await;
    let newest = context.messages.last().map(|raw| raw.get());
    assert_eq!(
        newest,
        raws.last().map(String::as_str),
        "(b): verbatim and last"
    );
    chain::check(&app, &id, &History::new(&raws), "s07").await;
}
