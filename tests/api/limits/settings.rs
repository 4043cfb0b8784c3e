//! Tenants' limits: over HTTP, and by `precis tenants`.

use std::process::{Command, Output};

use rstest::rstest;
use serde_json::{Value, json};

use super::until;
use crate::access::{ADMIN, guarded, holder};
use crate::support::app::base_variables;
use crate::support::{Backend, TestApp};

const PATH: &str = "/admin/tenants/default";

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn limits_are_set_changed_and_given_back(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[("PRECIS_TENANTS__CONCURRENT_TURNS", "7")]).await;
    let before = app.get(PATH).await.expect(200).json();
    for name in [
        "requestsPerSecond",
        "requestBurst",
        "concurrentCompactions",
        "concurrentTurns",
        "storedBytes",
        "retentionDays",
    ] {
        assert_eq!(before[name], Value::Null, "{before}");
    }
    assert_eq!(before["effective"]["concurrentTurns"], 7);
    assert_eq!(before["usedBytes"], 0);

    let patch = json!({"requestsPerSecond": 900, "concurrentTurns": 0, "storedBytes": 5.0, "retentionDays": 30});
    let patched = app.patch(PATH, &patch).await.expect(200).json();
    assert_eq!(patched["requestsPerSecond"], 900);
    assert_eq!(patched["concurrentTurns"], 0);
    assert_eq!(patched["storedBytes"], 5);
    assert_eq!(patched["retentionDays"], 30);
    let effective = json!({
        "requestsPerSecond": 900, "requestBurst": 900, "concurrentCompactions": null,
        "concurrentTurns": null, "storedBytes": 5,
    });
    assert_eq!(patched["effective"], effective);
    let back = json!({"concurrentTurns": null, "storedBytes": null});
    let back = app.patch(PATH, &back).await.expect(200).json();
    assert_eq!(
        (&back["concurrentTurns"], &back["requestsPerSecond"]),
        (&Value::Null, &json!(900))
    );
    assert_eq!(back["effective"]["concurrentTurns"], 7);
    assert_eq!(app.patch(PATH, &json!({})).await.expect(200).json(), back);
    let mut read = app.get(PATH).await.expect(200).json();
    assert_eq!(read, back);

    read["usedBytes"] = Value::Null;
    let list = app.get("/admin/tenants").await.expect(200).json();
    assert_eq!(list, json!({"data": [read], "nextCursor": null}));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_limit_and_who_is_no_tenant_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for (body, at) in [
        (json!({"requestsPerSecond": -1}), "/requestsPerSecond"),
        (json!({"requestBurst": 1.5}), "/requestBurst"),
        (json!({"storedBytes": "1"}), "/storedBytes"),
        (json!({"concurrentTurns": 1_000_001}), "/concurrentTurns"),
        (json!({"name": "x"}), "/name"),
    ] {
        app.patch(PATH, &body).await.invalid(at);
    }
    app.get("/admin/tenants/nobody")
        .await
        .problem(404, "TENANT_NOT_FOUND");
    let nobody = app.patch("/admin/tenants/no.body", &json!({})).await;
    nobody.problem(404, "TENANT_NOT_FOUND");
    app.get("/admin/tenants/a%20b")
        .await
        .problem(400, "INVALID_PARAMETER");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_tenants_has_pages(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let sql = "INSERT INTO tenants (id, name) VALUES (2, 'b'), (3, 'a.c')";
    app.database.execute(sql, sql).await;
    let mut names = Vec::new();
    let mut path = "/admin/tenants?limit=1".to_owned();
    loop {
        let page = app.get(&path).await.expect(200).json();
        names.push(page["data"][0]["name"].clone());
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/admin/tenants?limit=1&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(names, ["default", "b", "a.c"]);
    app.get("/admin/tenants?cursor=x")
        .await
        .problem(400, "INVALID_PARAMETER");
    app.get("/admin/tenants/a.c").await.expect(200);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_admin_reads_its_own_limits_and_changes_none(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = guarded(backend).await;
    let blue = holder(&app, "blue", &["admin"]).await;
    let limits = json!({"concurrentTurns": 2, "requestsPerSecond": 5000});
    let own = "/admin/tenants/blue";
    app.with_key(ADMIN).patch(own, &limits).await.expect(200);
    let read = blue.get(own).await.expect(200).json();
    assert_eq!(read["effective"]["concurrentTurns"], 2, "{read}");
    let list = blue.get("/admin/tenants").await.expect(200).json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(list["data"][0]["name"], "blue");

    let none = json!({"concurrentTurns": 0});
    blue.patch(own, &none).await.problem(403, "FORBIDDEN");
    blue.get(PATH).await.problem(404, "TENANT_NOT_FOUND");
    blue.patch(PATH, &none)
        .await
        .problem(404, "TENANT_NOT_FOUND");
    assert_eq!(blue.get(own).await.expect(200).json(), read);
    let reader = holder(&app, "blue", &["read", "write"]).await;
    reader.get(own).await.problem(403, "FORBIDDEN");
}

fn tenants(app: &TestApp, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_precis"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PRECIS_")) {
        command.env_remove(name);
    }
    command
        .current_dir(app.database.directory())
        .envs(base_variables(&app.database.url))
        .arg("tenants")
        .args(arguments)
        .output()
        .expect("the binary runs")
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_command_changes_limits_beside_a_running_server(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let message = format!("[{}]", crate::support::messages::user("some words"));
    app.append_raw(&id, &message).await.expect(201);

    let set = tenants(
        &app,
        &[
            "set",
            "default",
            "--stored-bytes",
            "10",
            "--retention-days",
            "3",
        ],
    );
    assert!(set.status.success(), "{set:?}");
    until(403, || app.append_raw(&id, &message)).await;
    let list = tenants(&app, &["list"]);
    let line = "default  requests-per-second=default  request-burst=default  concurrent-compactions=default  \
                concurrent-turns=default  stored-bytes=10  retention-days=3\n";
    assert_eq!(String::from_utf8_lossy(&list.stdout), line);
    let set = tenants(&app, &["set", "default", "--stored-bytes", "default"]);
    assert!(set.status.success(), "{set:?}");
    until(201, || app.append_raw(&id, &message)).await;

    for (arguments, words) in [
        (
            &["set", "nobody", "--request-burst", "1"][..],
            "No tenant `nobody`.",
        ),
        (
            &["set", "default", "--request-burst", "-1"][..],
            "whole number from 0 to 1000000",
        ),
        (
            &["set", "default", "--request-burst", "x"][..],
            "whole number from 0 to 1000000",
        ),
    ] {
        let output = tenants(&app, arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(words) || arguments.contains(&"-1"), "{said}");
    }
}
