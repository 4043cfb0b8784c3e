//! How long sessions are kept, who says so, and `precis prune-store`.

use rstest::rstest;
use serde_json::{Value, json};

use super::{complaint, precis_beside, said};
use crate::support::messages::{turns, user};
use crate::support::{Backend, Http, TestApp};

/// Makes a session look as if it had been made, and last written to, so many days ago. Its new id.
async fn age(app: &TestApp, id: &str, days: u64) {
    let hex = id.strip_prefix("sess_").expect("a session's id");
    let micros = days * 86_400_000_000;
    app.database
        .execute(
            &format!("UPDATE sessions SET updated_at = updated_at - {micros} WHERE hex(id) = upper('{hex}')"),
            &format!("UPDATE sessions SET updated_at = updated_at - interval '{days} days' WHERE replace(id::text, '-', '') = '{hex}'"),
        )
        .await;
}

/// Creates a session whose id is as old as that of one made so many days ago.
async fn old_session(app: &TestApp, days: u64, body: &Value) -> String {
    let id = app.create(body).await;
    let hex = id.strip_prefix("sess_").expect("a session's id").to_owned();
    let millis = u64::from_str_radix(&hex[..12], 16).expect("hexadecimal digits");
    let older = format!("{:012x}{}", millis - days * 86_400_000, &hex[12..]);
    // Children first refer to the old id, so there are none yet but events and the like.
    let tables = ["events", "session_metadata"];
    let clear = |table: &&str| format!("DELETE FROM {table};");
    let clear: String = tables.iter().map(clear).collect();
    app.database
        .execute(
            &format!("{clear} UPDATE sessions SET id = x'{older}' WHERE hex(id) = upper('{hex}')"),
            &format!("{clear} UPDATE sessions SET id = '{older}'::uuid WHERE id = '{hex}'::uuid"),
        )
        .await;
    let id = format!("sess_{older}");
    app.append(&id, &[user("hello")]).await;
    age(app, &id, days).await;
    id
}

async fn exists(http: &Http, id: &str) -> bool {
    let reply = http.get(&format!("/sessions/{id}")).await;
    assert!([200, 404].contains(&reply.status), "{reply}");
    reply.status == 200
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_days_of_a_session_come_from_the_request_or_its_agent(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let agent = json!({"retentionDays": 30, "model": "m"});
    app.put("/agents/keeper", &agent).await.expect(201);
    let by_agent = app.create(&json!({"agentName": "keeper"})).await;
    let session = app.session(&by_agent).await;
    assert_eq!(session["retentionDays"], json!(30), "copied");
    assert_eq!(session["agent"], Value::Null, "and not kept twice");
    let own = json!({"agentName": "keeper", "retentionDays": 0});
    let own = app.create(&own).await;
    assert_eq!(app.session(&own).await["retentionDays"], json!(0));
    let plain = app.create(&json!({})).await;
    assert_eq!(app.session(&plain).await["retentionDays"], Value::Null);

    let path = format!("/sessions/{by_agent}");
    let patched = app.patch(&path, &json!({"retentionDays": 7.0})).await;
    assert_eq!(patched.expect(200).json()["retentionDays"], json!(7));
    let kept = app.patch(&path, &json!({"title": "t"})).await.expect(200);
    assert_eq!(kept.json()["retentionDays"], json!(7), "absent stays");
    let fork = app.fork(&by_agent, &json!({})).await.expect(201).json();
    assert_eq!(fork["retentionDays"], json!(7), "a fork has it too");
    let cleared = app.patch(&path, &json!({"retentionDays": null})).await;
    assert_eq!(cleared.expect(200).json()["retentionDays"], Value::Null);
    for wrong in [json!(-1), json!(36_501), json!("7"), json!(1.5)] {
        let body = json!({"retentionDays": wrong});
        app.patch(&path, &body).await.invalid("/retentionDays");
        app.post("/sessions", &body).await.invalid("/retentionDays");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_session_wins_over_the_tenant_and_that_over_the_server(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let none = old_session(&app, 20, &json!({})).await;
    let for_ever = old_session(&app, 20, &json!({"retentionDays": 0})).await;
    let long = old_session(&app, 20, &json!({"retentionDays": 21})).await;
    let short = old_session(&app, 20, &json!({"retentionDays": 19})).await;
    let fresh = app.create(&json!({"retentionDays": 1})).await;
    let tenant_keeps = |days: &str| format!("UPDATE tenants SET retention_days = {days}");

    // Neither the server nor the tenant says anything: only what the session says counts.
    let report = json_report(&app, &["--dry-run"]).await;
    assert_eq!(ids(&report), [short.as_str()]);
    assert!(exists(&app, &short).await, "a dry run deletes nothing");
    // The tenant's days, and with them those that were asked for.
    let text = tenant_keeps("15");
    app.database.execute(&text, &text).await;
    let report = json_report(&app, &["--dry-run"]).await;
    assert_eq!(ids(&report), [none.as_str(), short.as_str()]);
    let text = tenant_keeps("0");
    app.database.execute(&text, &text).await;
    let report = json_report(&app, &["--dry-run", "--older-than", "19d"]).await;
    assert_eq!(ids(&report), [none.as_str(), short.as_str()]);
    let report = json_report(&app, &["--dry-run", "--older-than", "21d"]).await;
    assert_eq!(ids(&report), [short.as_str()]);

    let pruned = json_report(&app, &["--older-than", "480h", "--tenant", "default"]).await;
    assert_eq!(ids(&pruned), [none.as_str(), short.as_str()]);
    for (id, there) in [
        (&none, false),
        (&short, false),
        (&for_ever, true),
        (&long, true),
        (&fresh, true),
    ] {
        assert_eq!(exists(&app, id).await, there, "{id}");
    }
    let again = said(&precis_beside(&app.database, &["prune-store", "--verbose"]).await);
    assert_eq!(again, "0 sessions deleted\n");
    let unknown = ["prune-store", "--tenant", "nobody"];
    let unknown = complaint(&precis_beside(&app.database, &unknown).await);
    assert!(unknown.contains("no tenant nobody"), "{unknown}");
}

async fn json_report(app: &TestApp, arguments: &[&str]) -> Value {
    let all = [&["prune-store", "--json"], arguments].concat();
    let output = precis_beside(&app.database, &all).await;
    serde_json::from_str(&said(&output)).expect("JSON")
}

fn ids(report: &Value) -> Vec<&str> {
    let sessions = report["sessions"].as_array().expect("a list");
    let id = |session: &Value| session["id"].as_str().expect("an id").to_owned();
    let mut ids: Vec<&str> = sessions
        .iter()
        .map(|session| session["id"].as_str().expect("an id"))
        .collect();
    ids.sort_by_key(|id| *id);
    assert!(sessions.iter().all(|session| !id(session).is_empty()));
    ids
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_worked_on_stays(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let turning = old_session(&app, 20, &json!({})).await;
    let compacting = old_session(&app, 20, &json!({})).await;
    let dead = old_session(&app, 20, &json!({})).await;
    let hex = |id: &str| id.strip_prefix("sess_").expect("an id").to_owned();
    let (t, c, d) = (hex(&turning), hex(&compacting), hex(&dead));
    // Both work for another hour; a third has died.
    app.database
        .execute(
            &format!(
                "UPDATE sessions SET turn_until = (unixepoch() + 3600) * 1000000, turn_id = id WHERE hex(id) = upper('{t}');
                 INSERT INTO leases SELECT 1, x'{c}', 'compaction', x'{c}', (unixepoch() + 3600) * 1000000, NULL;
                 INSERT INTO leases SELECT 1, x'{d}', 'other', x'{d}', 1, NULL;"
            ),
            &format!(
                "UPDATE sessions SET turn_until = now() + interval '1 hour', turn_id = id WHERE id = '{t}'::uuid;
                 INSERT INTO leases VALUES (1, '{c}'::uuid, 'compaction', '{c}'::uuid, now() + interval '1 hour', NULL);
                 INSERT INTO leases VALUES (1, '{d}'::uuid, 'other', '{d}'::uuid, now() - interval '1 hour', NULL);"
            ),
        )
        .await;
    let pruned = json_report(&app, &["--older-than", "1d"]).await;
    assert_eq!(ids(&pruned), [dead.as_str()]);
    assert!(exists(&app, &turning).await && exists(&app, &compacting).await);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn replicas_delete_old_sessions_by_themselves_and_each_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let first = TestApp::spawn(backend).await;
    let mut old = Vec::new();
    for days in [40, 35, 31] {
        old.push(old_session(&first, days, &json!({"metadata": {"a": 1}})).await);
    }
    let young = first.create_with(&turns(3, 50)).await;
    let stale = "INSERT INTO replicas (id, version, started_at, seen_at) VALUES";
    first
        .database
        .execute(
            &format!("{stale} (x'00', '0', 1, 1)"),
            &format!("{stale} ('00000000-0000-0000-0000-000000000001', '0', to_timestamp(1), to_timestamp(1))"),
        )
        .await;
    // Each looks when it starts.
    let keep = [("PRECIS_RETENTION__DAYS".to_owned(), "30".to_owned())].to_vec();
    let database = || std::sync::Arc::clone(&first.database);
    let _second = TestApp::on(database(), keep.clone()).await;
    let _third = TestApp::on(database(), keep).await;
    for id in &old {
        let mut tries = 0;
        while exists(&first, id).await {
            tries += 1;
            assert!(tries < 500, "{id} is old and must go");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    assert!(exists(&first, &young).await);
    assert_eq!(first.history(&young).await.len(), 6);
    // What belonged to them is gone too, and the process that was not heard of for long.
    let check = |table: &str| {
        format!(
            "INSERT INTO agents SELECT 1, 'left-{table}', '{{}}', s.created_at, s.created_at FROM sessions s WHERE (SELECT count(*) FROM {table}) > 0"
        )
    };
    let mut tries = 0;
    loop {
        first
            .database
            .execute("DELETE FROM agents", "DELETE FROM agents")
            .await;
        let text = format!("{} LIMIT 1", check("replicas"));
        first.database.execute(&text, &text).await;
        let agents = first.get("/agents").await.expect(200).json();
        if agents["data"] == json!([]) {
            break;
        }
        tries += 1;
        assert!(tries < 500, "the replica is forgotten: {agents}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
