//! `precis keys` beside a running server, and what a key leaves in the log: nothing.

use std::fs::File;
use std::process::Output;

use rstest::rstest;
use serde_json::{Value, json};

use super::{ADMIN, make_key, until};
use crate::support::Backend;
use crate::support::backend::TestDatabase;
use crate::support::process::{Process, command};

fn run(database: &TestDatabase, words: &[&str]) -> Output {
    command(database)
        .args(words)
        .output()
        .expect("the binary runs")
}

/// What went to standard output, of a command that must succeed.
#[track_caller]
fn printed(database: &TestDatabase, words: &[&str]) -> String {
    let output = run(database, words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_managed_beside_a_running_server(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let database = TestDatabase::create(backend).await;
    let server = Process::start(&database, &[]);
    server.get("/sessions").await.expect(200);

    let create = [
        "keys",
        "create",
        "--tenant",
        "blue",
        "--name",
        "ci",
        "--scopes",
        "read,write",
        "--expires-in",
        "90d",
    ];
    let text = printed(&database, &create);
    let key = text.strip_suffix('\n').expect("a line");
    assert!(
        key.starts_with("precis_") && !key.contains(char::is_whitespace),
        "{key}"
    );
    until(401, "/sessions", &server).await;
    let holder = server.with_key(key);
    until(200, "/sessions", &holder).await;
    let session = holder.create(&json!({})).await;
    holder
        .get(&format!("/sessions/{session}"))
        .await
        .expect(200);
    holder.get("/admin/keys").await.problem(403, "FORBIDDEN");

    let id = key.split('_').nth(1).expect("an id");
    let secret = key.split('_').nth(2).expect("a secret");
    let table = printed(&database, &["keys", "list"]);
    for part in [id, "blue", "ci", "read,write", "active"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(!table.contains(secret));
    let list = printed(&database, &["keys", "list", "--json"]);
    assert!(!list.contains(secret));
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list[0]["id"], id);
    assert_eq!(list[0]["scopes"], json!(["read", "write"]));
    assert_eq!(list[0]["revokedAt"], Value::Null);

    for _ in 0..2 {
        assert_eq!(printed(&database, &["keys", "revoke", id]), "");
    }
    until(401, "/sessions", &holder).await;
    assert!(printed(&database, &["keys", "list"]).contains("revoked"));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn commands_that_make_no_sense_are_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let database = TestDatabase::create(backend).await;
    // The first key can be made before the first start.
    printed(
        &database,
        &["keys", "create", "--name", "first", "--scopes", "admin"],
    );
    for (words, part) in [
        (&["keys", "revoke", "nothing"][..], "No key"),
        (
            &["keys", "create", "--name", "x", "--scopes", "root"],
            "read, write, admin",
        ),
        (
            &[
                "keys",
                "create",
                "--name",
                "x",
                "--scopes",
                "read",
                "--expires-in",
                "soon",
            ],
            "90d",
        ),
        (
            &[
                "keys", "create", "--name", "x", "--scopes", "read", "--tenant", "a b",
            ],
            "tenant",
        ),
        (
            &["keys", "create", "--name", "", "--scopes", "read"],
            "name",
        ),
    ] {
        let output = run(&database, words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words:?}");
        assert!(errors.contains(part), "{words:?}: {errors}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    let list: Value =
        serde_json::from_str(&printed(&database, &["keys", "list", "--json"])).expect("JSON");
    assert_eq!(list.as_array().map(Vec::len), Some(1));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_key_comes_into_the_log(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let database = TestDatabase::create(backend).await;
    let path = database.directory().join("log");
    let log = File::create(&path).expect("a file for the log");
    let variables = [
        ("PRECIS_ADMIN_KEY".to_owned(), ADMIN.to_owned()),
        ("PRECIS_LOG".to_owned(), "trace".to_owned()),
    ];
    let mut server = Process::start_logging_to(&database, &variables, log.into());
    let key = make_key(&server, "blue", &["read"]).await;
    let text = key["key"].as_str().expect("a key");
    let holder = server.with_key(text);
    holder.get("/sessions").await.expect(200);
    holder.post("/sessions", &json!({})).await.expect(403);
    server
        .with_key("a-key-that-is-unknown")
        .get("/sessions")
        .await
        .expect(401);
    server.kill();
    let log = std::fs::read_to_string(path).expect("the log");
    assert!(log.contains("a key was made"), "there is a log");
    let secret = text.rsplit('_').next().expect("a secret");
    for hidden in [ADMIN, secret, "a-key-that-is-unknown"] {
        assert!(!log.contains(hidden), "`{hidden}` is in the log");
    }
}
