//! `precis backup`, while the service writes, and what a restored backup holds.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rstest::rstest;
use serde_json::json;

use super::{complaint, precis_beside, said};
use crate::support::backend::TestDatabase;
use crate::support::messages::{turns, user};
use crate::support::process::Process;
use crate::support::{Backend, TestApp};

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_of_one_moment_and_gives_everything_back() {
    let database = TestDatabase::create(Backend::Sqlite).await;
    let process = Process::start(&database, &[]);
    let id = process.create_with(&turns(40, 200)).await;
    process.compact(&id, &json!({})).await.expect(200);
    process
        .get(&format!("/sessions/{id}/search?q=xxxx"))
        .await
        .expect(200);
    let paths = ["", "/context", "/messages?limit=1000", "/compactions"];
    let mut before = Vec::new();
    for path in paths {
        let path = format!("/sessions/{id}{path}");
        before.push((path.clone(), process.get(&path).await.expect(200).body));
    }

    // A client appends to another session all the while.
    let busy = process.create(&json!({})).await;
    let (http, going) = ((*process).clone(), Arc::new(AtomicBool::new(true)));
    let (goes_on, session) = (Arc::clone(&going), busy.clone());
    let client = tokio::spawn(async move {
        let mut count = 0;
        while goes_on.load(Ordering::Relaxed) {
            http.append(&session, &[user("a"), user("b")]).await;
            count += 2;
        }
        count
    });
    let file = database.directory().join("copy.db");
    let name = file.to_str().expect("UTF-8");
    let text = said(&precis_beside(&database, &["backup", name]).await);
    assert!(text.starts_with(name) && text.contains("checked"), "{text}");
    going.store(false, Ordering::Relaxed);
    let count: usize = client.await.expect("the client does not fail");
    let mode = file.metadata().expect("the backup").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its owner alone");
    let companions: Vec<_> = std::fs::read_dir(database.directory())
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().contains("copy"))
        .collect();
    assert_eq!(companions, ["copy.db"], "one file is the whole backup");

    // Restored: copied to where a new service looks.
    drop(process);
    let restored = TestDatabase::create(Backend::Sqlite).await;
    let target = restored.url.strip_prefix("sqlite://").expect("a file");
    std::fs::copy(&file, target).expect("a copy");
    let process = Process::start(&restored, &[]);
    for (path, body) in before {
        assert_eq!(process.get(&path).await.expect(200).body, body, "{path}");
    }
    process
        .get(&format!("/sessions/{id}/search?q=xxxx"))
        .await
        .expect(200);
    let copied = process.history(&busy).await.len();
    assert!(copied <= count && copied % 2 == 0, "appends are whole");
    process.append(&busy, &[user("on it goes")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_overwrites_nothing_and_leaves_nothing_half_done() {
    let app = TestApp::spawn(Backend::Sqlite).await;
    let taken = app.database.directory().join("taken");
    std::fs::write(&taken, "mine").expect("a file");
    let text = complaint(&precis_beside(&app.database, &["backup", "taken"]).await);
    assert!(text.contains("taken exists already"), "{text}");
    assert_eq!(std::fs::read(&taken).expect("the file"), b"mine");
    let text = complaint(&precis_beside(&app.database, &["backup", "no/such/place"]).await);
    assert!(text.contains("cannot write no/such/place"), "{text}");

    // A database that no program of ours made.
    let other = TestDatabase::empty(Backend::Sqlite).await;
    let text = complaint(&precis_beside(&other, &["backup", "copy"]).await);
    assert!(text.contains("there is no database file"), "{text}");
    std::fs::write(other.directory().join("precis.db"), "").expect("a file");
    let text = complaint(&precis_beside(&other, &["backup", "copy"]).await);
    assert!(text.contains("no backup was made"), "{text}");
    let names: Vec<_> = std::fs::read_dir(other.directory())
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().contains("copy"))
        .collect();
    assert!(names.is_empty(), "nothing is left: {names:?}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn with_postgresql_it_names_the_tool(#[values(Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let text = complaint(&precis_beside(&app.database, &["backup", "copy"]).await);
    assert!(
        text.contains("pg_dump") && text.contains("pg_restore"),
        "{text}"
    );
    assert!(!app.database.directory().join("copy").exists());
}
