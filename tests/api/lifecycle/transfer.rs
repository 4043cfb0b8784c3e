//! `precis export` and `precis import`: byte for byte, between the databases in every direction.

use std::path::PathBuf;

use rstest::rstest;
use serde_json::{Value, json};

use super::stories::{Dice, everything, tell};
use super::{precis_beside, said};
use crate::support::messages::turns;
use crate::support::{Backend, TestApp};

/// Exports with these arguments to a new file of this name.
pub async fn export(app: &TestApp, name: &str, arguments: &[&str]) -> PathBuf {
    let file = app.database.directory().join(name);
    let path = file.to_str().expect("UTF-8");
    let all = [&["export", "--output", path], arguments].concat();
    said(&precis_beside(&app.database, &all).await);
    file
}

pub async fn import(app: &TestApp, file: &std::path::Path, arguments: &[&str]) -> String {
    let path = file.to_str().expect("UTF-8");
    let all = [&["import", path], arguments].concat();
    said(&precis_beside(&app.database, &all).await)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_the_same_in_another_database(
    #[values(Backend::Sqlite, Backend::Postgres)] from: Backend,
    #[values(Backend::Sqlite, Backend::Postgres)] to: Backend,
) {
    let here = TestApp::spawn(from).await;
    let there = TestApp::spawn(to).await;
    let agent = json!({"instructions": "Be \u{1F980}", "retentionDays": 3, "temperature": 0.5});
    here.put("/agents/crab", &agent).await.expect(201);
    let mut ids = vec![here.create(&json!({"agentName": "crab"})).await];
    for seed in 0..12 {
        ids.extend(tell(&here, &mut Dice::new(seed), 30).await);
    }
    here.post_empty(&format!("/sessions/{}/close", ids[1]))
        .await
        .expect(200);
    let file = export(&here, "all.jsonl", &["--all"]).await;
    let text = std::fs::read_to_string(&file).expect("the export");

    for seen in [
        r#"{"type":"elision","#,
        r#"{"type":"dispatch","#,
        r#"{"type":"dispatch_marks","#,
        r#"{"type":"rewrite","#,
        r#""summary":null"#,
        r#""summary":"#,
        r#""erased":true"#,
        r#""fill":""#,
        r#""kind":"replaced""#,
        r#""kind":"rewound""#,
        r#""item":"{"#,
        r#""item":"","#,
    ] {
        assert!(text.contains(seen), "the stories have {seen}");
    }

    let checked = import(&there, &file, &["--dry-run"]).await;
    assert!(checked.contains("would be imported"), "{checked}");
    let list = there.get("/sessions").await.expect(200).json();
    assert_eq!(list["data"], json!([]), "a dry run stores nothing");
    let done = import(&there, &file, &[]).await;
    let count = format!("{} sessions and 1 agent imported", ids.len());
    assert!(done.starts_with(&count), "{done}");
    for id in &ids {
        let (before, after) = (
            everything(&here, id, id).await,
            everything(&there, id, id).await,
        );
        for ((path, before), (_, after)) in before.iter().zip(&after) {
            assert_eq!(before, after, "{id}{path}");
        }
        assert_eq!(before.len(), after.len());
    }
    assert_eq!(
        here.get("/agents/crab").await.expect(200).body,
        there.get("/agents/crab").await.expect(200).body
    );
    // What is found by, and what goes on, came along.
    let found = there.get("/sessions?metadata.customer=42&limit=1000").await;
    let found = found.expect(200).json();
    assert!(
        found["data"]
            .as_array()
            .is_some_and(|data| data.len() >= 12)
    );
    let again = export(&there, "again.jsonl", &["--all"]).await;
    let again = std::fs::read_to_string(again).expect("the second export");
    for (number, (one, other)) in text.lines().zip(again.lines()).enumerate() {
        assert_eq!(one, other, "line {}", number + 1);
    }
    assert_eq!(text.len(), again.len());
    let id = ids.last().expect("a session");
    there.append(id, &turns(1, 30)).await;
    there.compact(id, &json!({})).await.expect(200);
    let hits = there.get(&format!("/sessions/{id}/search?q=words")).await;
    hits.expect(200);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn sessions_can_be_named_get_new_ids_or_be_skipped(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let ids = tell(&app, &mut Dice::new(99), 40).await;
    let (one, two) = (&ids[0], app.create_with(&turns(2, 50)).await);
    let arguments = ["--session", one, "--session", &two];
    let file = export(&app, "two.jsonl", &arguments).await;
    let skipped = import(&app, &file, &["--skip-existing"]).await;
    assert!(skipped.contains("2 there already"), "{skipped}");

    let before = app.session(&two).await;
    let done = import(&app, &file, &["--new-ids"]).await;
    let renamed: Vec<_> = done
        .lines()
        .skip(1)
        .map(|line| line.split_once(' ').expect("two ids"))
        .collect();
    assert_eq!(renamed.len(), 2, "{done}");
    for (old, new) in renamed {
        assert_ne!(old, new);
        let (here, there) = (
            everything(&app, old, "ID").await,
            everything(&app, new, "ID").await,
        );
        assert_eq!(here, there, "the ids are different, and nothing else");
    }
    assert_eq!(app.session(&two).await, before, "the original is untouched");
    let total = app.get("/sessions?limit=1000").await.expect(200).json();
    let total = total["data"].as_array().map(Vec::len);
    assert_eq!(total, Some(ids.len() + 3));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_sessions_go_to_the_tenant_that_is_named(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let other = "INSERT INTO tenants (id, name) VALUES (7, 'other')";
    app.database.execute(other, other).await;
    let id = app.create_with(&turns(2, 50)).await;
    let file = export(&app, "default.jsonl", &["--tenant", "default"]).await;
    // An id is free in another tenant.
    import(&app, &file, &["--tenant", "other"]).await;
    let theirs = export(&app, "other.jsonl", &["--tenant", "other"]).await;
    let text = std::fs::read_to_string(theirs).expect("the export");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines[0], json!({"precis": "export", "version": 1}));
    assert_eq!(lines[1], json!({"type": "tenant", "name": "other"}));
    assert_eq!(lines[2]["id"], json!(id));
    assert_eq!(lines[7]["type"], json!("session_end"));
    let end = json!({"type": "end", "agents": 0, "sessions": 1});
    assert_eq!(lines.last(), Some(&end));
    // All tenants at once.
    let all = export(&app, "all.jsonl", &["--all"]).await;
    let all = std::fs::read_to_string(all).expect("the export");
    assert_eq!(all.matches("\"type\":\"tenant\"").count(), 2);
    assert_eq!(all.matches(&id).count(), 2);
}
