//! K15: ids that try to be paths or SQL.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::json;

use crate::support::messages::user;
use crate::support::{Backend, TestApp};

/// As they stand in the request line.
const IDS: [&str; 12] = [
    "../../etc/passwd",
    "..%2F..%2Fetc%2Fpasswd",
    "..%2f..%2fx",
    "a/../b",
    "%2e%2e",
    "%00",
    "con",
    "x'%20OR%20'1'='1",
    "x%27%20OR%20%271%27%3D%271",
    "%E2%80%AEsess",
    "sess_%25",
    "%ff%fe",
];

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s31_an_id_is_never_a_path_nor_sql(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&[user("secret text")]).await;
    let files = || -> BTreeSet<String> {
        std::fs::read_dir(app.database.directory())
            .expect("the test's directory")
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect()
    };
    let before = files();
    let long = "a".repeat(300);
    for bad in IDS.iter().copied().chain([long.as_str()]) {
        for target in [
            format!("/sessions/{bad}"),
            format!("/sessions/{bad}/messages"),
            format!("/sessions/{bad}/context"),
            format!("/sessions/{bad}/compactions"),
            format!("/sessions/{id}/messages/{bad}"),
            format!("/sessions/{id}/compactions/{bad}"),
            format!("/agents/{bad}"),
        ] {
            let answer = app.raw_get(target.as_bytes());
            let status = answer.split(' ').nth(1).unwrap_or_default();
            assert!(
                ["400", "404"].contains(&status),
                "expected 400 or 404 for {target}, got: {answer:.600}"
            );
            assert!(
                answer
                    .to_ascii_lowercase()
                    .contains("application/problem+json"),
                "expected a problem for {target}, got: {answer:.600}"
            );
            for leak in ["secret text", "root:"] {
                assert!(
                    !answer.contains(leak),
                    "{target} must not answer with `{leak}`"
                );
            }
        }
    }
    // An empty id is another route or none at all, but no session.
    let answer = app.raw_get(b"/sessions//messages");
    let status = answer.split(' ').nth(1).unwrap_or_default();
    assert!(["400", "404"].contains(&status), "got: {answer:.600}");

    assert_eq!(files(), before, "no file appeared or went");
    assert_eq!(app.history(&id).await.len(), 1, "the session is unharmed");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s31_writes_take_no_bad_id_either(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&[user("secret text")]).await;
    for bad in ["..%2F..%2Fx", "x'%20OR%20'1'='1", "%00", "%E2%80%AE", "%25"] {
        for reply in [
            app.append_raw(bad, &format!("[{}]", user("x"))).await,
            app.compact(bad, &json!({})).await,
            app.patch(&format!("/sessions/{bad}"), &json!({"title": "x"}))
                .await,
            app.post_empty(&format!("/sessions/{bad}/reset")).await,
            app.delete(&format!("/sessions/{bad}")).await,
            app.delete(&format!("/agents/{bad}")).await,
        ] {
            assert!(
                [400, 404].contains(&reply.status),
                "expected 400 or 404: {reply}"
            );
        }
        let reply = app
            .put(&format!("/agents/{bad}"), &json!({"name": "x"}))
            .await;
        assert!(
            [400, 404, 422].contains(&reply.status),
            "expected a bad agent name to be refused: {reply}"
        );
    }
    let session = app.session(&id).await;
    assert_eq!(
        session["title"],
        serde_json::Value::Null,
        "the session is unharmed"
    );
    assert_eq!(session["lastSeq"], 1);
    let agents = app.get("/agents").await.expect(200).json();
    assert_eq!(agents["data"], json!([]), "no agent was stored");
}
