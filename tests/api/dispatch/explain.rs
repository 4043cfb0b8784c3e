//! `precis explain` as a process beside a running server.

use std::process::{Command, Output};

use rstest::rstest;
use serde_json::{Value, json};

use super::talk::agent_loop;
use crate::support::app::base_variables;
use crate::support::{Backend, TestApp};

fn explain(app: &TestApp, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_precis"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PRECIS_")) {
        command.env_remove(name);
    }
    let command = command
        .current_dir(app.database.directory())
        .envs(base_variables(&app.database.url))
        .arg("explain")
        .args(arguments);
    command.output().expect("the binary runs")
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn it_says_why_a_dispatch_looked_so(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let policy = json!({"enabled": true, "budgetTokens": 3_000, "protectRecentTurns": 2, "maxToolResultBytes": 1_000,
        "keepHeadBytes": 100, "keepTailBytes": 100});
    let id = app.create_pruned(policy, &[]).await;
    let none = explain(&app, &[&id]);
    assert!(
        !none.status.success(),
        "nothing was dispatched yet: {none:?}"
    );
    app.append(&id, &agent_loop(8, 4_000)).await;
    let sent = app
        .dispatch(&id, &json!({"model": "some-model", "format": "anthropic"}))
        .await;
    app.append(&id, &[crate::support::messages::assistant("ok")])
        .await;
    let last = app.dispatch(&id, &json!({})).await;
    let items = app.history(&id).await;
    let elided: Vec<_> = items.iter().filter(|item| item.state == "elided").collect();

    let first: Value =
        serde_json::from_str(&said(&explain(&app, &[&id, "1", "--json"]))).expect("JSON");
    assert_eq!(first["sessionId"], id.as_str());
    assert_eq!(
        first["dispatch"],
        without_replay(app.replay(&id, 1).await.record),
        "the record"
    );
    assert_eq!(first["replay"], json!({"possible": true, "reason": null}));
    let edits = first["edits"].as_array().expect("edits");
    assert_eq!(edits.len(), elided.len());
    assert_eq!(first["dispatch"]["added"], edits.len());
    let mut saved = 0;
    for (edit, item) in edits.iter().zip(&elided) {
        assert_eq!(
            (&edit["messageId"], &edit["seq"]),
            (&json!(item.id), &json!(item.seq))
        );
        assert_eq!(
            (&edit["rule"], &edit["tool"]),
            (&json!("large"), &json!("read"))
        );
        assert_eq!(edit["bytes"], item.message.get().len());
        saved += edit["savedTokens"].as_i64().expect("a number");
    }
    assert_eq!(saved, sent.tokens.before - sent.tokens.after);

    let text = said(&explain(&app, &[&id]));
    for part in [
        format!("Dispatch {} of {id}", last.dispatch),
        last.sha256.clone(),
        format!("Edits: {} (0 of them new", edits.len()),
        "begins with 0 of the".to_owned(),
        elided[0].id.clone(),
    ] {
        assert!(text.contains(&part), "`{part}` in:\n{text}");
    }
    assert!(!text.contains("quick brown"), "no content:\n{text}");
    app.erase(&id, &items[2].id).await.expect(204);
    let text = said(&explain(&app, &[&id, "2"]));
    assert!(text.contains("Replay: not possible. "), "{text}");
    for arguments in [[&id, "3"], [&id, "0"], ["sess_x", "1"]] {
        let output = explain(&app, &arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
    app.get("/health/ready").await.expect(200);
}

fn without_replay(mut record: Value) -> Value {
    let members = record.as_object_mut().expect("a record");
    members.remove("replay");
    record
}
