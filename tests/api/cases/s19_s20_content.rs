//! K9: NUL, and contents that are null.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::chain;
use crate::support::messages::{a, turns, u, user};
use crate::support::model::MAIN;
use crate::support::{Answer, Backend, History, ScriptedModel, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s19_nul_is_kept_and_never_a_500(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    model.script(
        MAIN,
        [Answer::Text("A sum\u{0}mary with a NUL in it.".to_owned())],
    );
    let app = TestApp::with_model(backend, &model, &[]).await;
    let head = json!({
        "title": "ti\u{0}tle",
        "metadata": {"k\u{0}ey": "va\u{0}lue"},
        "model": "mo\u{0}del",
        "instanceFolder": "/srv/\u{0}",
    });
    let session = app.post("/sessions", &head).await.expect(201).json();
    for member in ["title", "metadata", "model", "instanceFolder"] {
        assert_eq!(session[member], head[member], "`{member}` with a NUL");
    }
    let id = session["id"].as_str().expect("an id").to_owned();
    app.patch(
        &format!("/sessions/{id}"),
        &json!({"title": "\u{0}", "model": null}),
    )
    .await
    .expect(200);
    assert_eq!(app.session(&id).await["title"], "\u{0}");

    let raws = [
        r#"{"role":"user","content":"a\u0000b"}"#.to_owned(),
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c\u0000 1","type":"function","function":{"name":"f\u0000","arguments":"{\"a\":\"\\u0000\"}"}}]}"#.to_owned(),
        // The same id in another spelling: pairing is by the text, not by its bytes.
        r#"{"role":"tool","tool_call_id":"\u0063\u0000\u0020\u0031","content":"\u0000"}"#.to_owned(),
        a(100),
        u(100),
    ];
    app.append(&id, &raws).await;
    let history = History::new(&raws);
    chain::check(&app, &id, &history, "s19").await;
    let stored: Vec<String> = app
        .history(&id)
        .await
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    assert_eq!(stored, raws, "stored and returned unchanged");

    let answer = app.compact(&id, &json!({})).await.expect(200).json();
    assert_eq!(answer["newSize"], 4);
    assert_eq!(
        answer["session"]["compactSummary"],
        "A summary with a NUL in it."
    );
    chain::check(&app, &id, &history, "s19, compacted").await;

    // The extractive summarizer reads the same batch.
    let plain = TestApp::spawn(backend).await;
    let id = plain.create_with(&raws).await;
    let answer = plain.compact(&id, &json!({})).await.expect(200).json();
    let summary = answer["session"]["compactSummary"]
        .as_str()
        .unwrap_or_default();
    assert!(
        !summary.contains('\u{0}'),
        "a summary holds no NUL: {summary:?}"
    );

    for query in [
        "agentName=%00",
        "metadata.k%00ey=va%00lue",
        "status=%00",
        "cursor=%00",
    ] {
        let reply = app.get(&format!("/sessions?{query}")).await;
        assert!(
            [200, 400].contains(&reply.status),
            "a NUL in a parameter is an answer or a refusal: {reply}"
        );
    }
    let reply = app.get("/agents/%00").await;
    assert!(
        [400, 404].contains(&reply.status),
        "a NUL in a name: {reply}"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s19_the_same_document_on_both_stores(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let agent = json!({"name": "nul", "instructions": "a\u{0}b", "description": "\u{0}"});
    let reply = app.put("/agents/nul", &agent).await;
    assert!(
        [200, 201].contains(&reply.status),
        "an agent with NUL is taken: {reply}"
    );
    let id = app.create(&json!({"agentName": "nul"})).await;
    let context = app.context(&id).await;
    let shown: Value = serde_json::from_str(context.messages[0].get()).expect("JSON");
    assert_eq!(shown["content"], "a\u{0}b", "and shown unchanged");
}

const CALL: &str = r#""tool_calls":[{"id":"c1","type":"function","function":{"name":"look_up","arguments":"{\"word\":\"heron\"}"}}]"#;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s20_null_absent_and_empty_stay_what_they_are(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let mut raws = vec![
        user("go"),
        format!(r#"{{"role":"assistant","content":null,{CALL}}}"#),
        r#"{"role":"tool","tool_call_id":"c1","content":""}"#.to_owned(),
        r#"{"role":"assistant","content":null}"#.to_owned(),
        r#"{"role":"assistant"}"#.to_owned(),
        r#"{"role":"assistant","content":""}"#.to_owned(),
        r#"{"role":"assistant","content":[]}"#.to_owned(),
        r#"{"role":"assistant","content":null,"tool_calls":null}"#.to_owned(),
        r#"{"role":"assistant","content":"","tool_calls":[]}"#.to_owned(),
        r#"{"role":"user"}"#.to_owned(),
        r#"{"role":"user","content":null}"#.to_owned(),
    ];
    raws.extend(turns(1, 10));
    let id = app.create_with(&raws).await;
    let items = app.history(&id).await;
    let stored: Vec<&str> = items.iter().map(|item| item.message.get()).collect();
    assert_eq!(stored, raws, "stored and returned as given");
    let lengths: Vec<usize> = items.iter().map(|item| item.length).collect();
    let call = CALL.len() - r#""tool_calls":"#.len();
    assert_eq!(
        lengths,
        [2, call, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 10],
        "null, absent and empty count 0"
    );

    let history = History::new(&raws);
    let request = json!({"compactCount": 99, "keepRecentTurns": 0});
    app.compact(&id, &request).await.expect(200);
    chain::check(&app, &id, &history, "s20").await;
    let call = model.last();
    let material = call.user();
    assert!(
        material.contains("look_up") && material.contains("heron"),
        "the call's name and arguments are in the transcript: {material}"
    );
    assert!(
        !material.contains("null"),
        "`null` is no content: {material}"
    );
}
