//! Every operation of the OpenAPI document: without a key, with a wrong one, with one that may not.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{ADMIN, Operation, bare, guarded, holder, make_key, operations, until};
use crate::support::{Backend, TestApp};

/// Well-formed and unknown.
fn anything(parameter: &str) -> String {
    match parameter {
        "id" => "sess_019acf0b2a7c7d1e9f00aabbccddeeff",
        "messageId" | "item_id" => "msg_none",
        "turnId" => "turn_019acf0b2a7c7d1e9f00aabbccddeeff",
        "version" | "n" => "1",
        "name" => "nobody",
        "conversation_id" => "conv_019acf0b2a7c7d1e9f00aabbccddeeff",
        other => panic!("a route has a parameter `{other}`, which the walk does not know"),
    }
    .to_owned()
}

fn at(operation: &Operation) -> String {
    format!("{} {}", operation.method, operation.path)
}

#[test]
fn all_but_a_short_list_is_secured_and_says_so() {
    let public: Vec<_> = operations()
        .iter()
        .filter(|operation| !operation.is_secured())
        .map(at)
        .collect();
    assert_eq!(
        public,
        ["GET /health/live", "GET /health/ready", "GET /openapi.json"]
    );
    for operation in operations().iter().filter(|one| one.is_secured()) {
        let responses = &operation.about["responses"];
        for status in ["401", "403", "429", "503"] {
            assert!(responses[status].is_object(), "{}: {status}", at(operation));
        }
        assert!(responses["401"]["headers"]["WWW-Authenticate"].is_object());
        for status in ["429", "503"] {
            assert!(responses[status]["headers"]["Retry-After"].is_object());
        }
    }
    let document: Value = serde_json::from_str(&precis::http::openapi_json()).expect("JSON");
    let scheme = &document["components"]["securitySchemes"]["bearer"];
    assert_eq!(
        (&scheme["type"], &scheme["scheme"]),
        (&json!("http"), &json!("bearer"))
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_told_without_a_key(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = guarded(backend).await;
    // One a shape of errors.
    let mut first = [None, None];
    for operation in operations() {
        let address = operation.address(anything);
        let reply = operation.ask(&app, &address).await;
        if !operation.is_secured() {
            assert_eq!(reply.status, 200, "{}", at(&operation));
            continue;
        }
        reply.problem(401, "UNAUTHENTICATED");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        assert_eq!(
            bare(&reply),
            *first[usize::from(reply.is_v1())].get_or_insert_with(|| bare(&reply))
        );
        // Nor is the body looked at.
        let text = [("content-type", "text/plain")];
        let reply = app
            .send(
                operation.method.clone(),
                &address,
                &text,
                Some(b"{".to_vec()),
            )
            .await;
        reply.problem(401, "UNAUTHENTICATED");
    }
    for path in [
        "/nowhere",
        "/sessions/x/nowhere",
        "/health",
        "/admin",
        "/v1/nowhere",
    ] {
        app.get(path).await.problem(401, "UNAUTHENTICATED");
    }
    app.with_key(ADMIN)
        .get("/nowhere")
        .await
        .problem(404, "ROUTE_NOT_FOUND");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_key_that_does_not_count_is_answered_alike(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = guarded(backend).await;
    let good = make_key(&app, "default", &["read", "write"]).await;
    let text = good["key"].as_str().expect("a key").to_owned();
    app.with_key(&text).get("/sessions").await.expect(200);

    let expired = make_key(&app, "default", &["admin"]).await;
    let revoked = make_key(&app, "default", &["admin"]).await;
    let id = expired["id"].as_str().expect("an id");
    app.database
        .execute(
            &format!("UPDATE keys SET expires_at = 1 WHERE id = '{id}'"),
            &format!("UPDATE keys SET expires_at = '2020-01-01T00:00:00Z' WHERE id = '{id}'"),
        )
        .await;
    let path = format!("/admin/keys/{}", revoked["id"].as_str().expect("an id"));
    app.with_key(ADMIN).delete(&path).await.expect(204);

    let flipped = if text.ends_with('0') { "1" } else { "0" };
    let wrong_secret = format!("{}{flipped}", &text[..text.len() - 1]);
    let unknown = format!("precis_{}_{}", "0".repeat(32), "0".repeat(64));
    let expired = expired["key"].as_str().expect("a key");
    let revoked = revoked["key"].as_str().expect("a key");
    let bearer = |key: &str| format!("Bearer {key}");
    let missing = app.get("/sessions").await;
    missing.problem(401, "UNAUTHENTICATED");
    for value in [
        bearer(""),
        bearer(" "),
        "Bearer".to_owned(),
        String::new(),
        bearer(&wrong_secret),
        bearer(&unknown),
        bearer(expired),
        bearer(revoked),
        bearer(&ADMIN[1..]),
        bearer(&format!("{ADMIN} {ADMIN}")),
        bearer("precis__"),
        bearer(&text[..40]),
        format!("Basic {text}"),
        format!("Token {text}"),
        text.clone(),
    ] {
        let reply = app
            .get_with("/sessions", &[("authorization", &value)])
            .await;
        assert_eq!(reply.status, 401, "{value:?}: {reply}");
        assert_eq!(bare(&reply), bare(&missing), "{value:?}");
    }
    let twice = [
        ("authorization", &*bearer(&text)),
        ("authorization", &*bearer(&text)),
    ];
    app.get_with("/sessions", &twice).await.expect(401);
    for scheme in ["bearer", "BEARER"] {
        let value = format!("{scheme} {text}");
        let headers = [("authorization", &*value)];
        app.get_with("/sessions", &headers).await.expect(200);
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn each_scope_allows_its_own(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = guarded(backend).await;
    let read = holder(&app, "default", &["read"]).await;
    let write = holder(&app, "default", &["write"]).await;
    let both = holder(&app, "default", &["read", "write"]).await;
    for operation in operations().iter().filter(|one| one.is_secured()) {
        let address = operation.address(anything);
        // A stream of every event has no end, and needs no second look.
        let is_read = operation.method == Method::GET;
        if operation.is_admins() {
            for http in [&read, &write, &both] {
                operation
                    .ask(http, &address)
                    .await
                    .problem(403, "FORBIDDEN");
            }
            continue;
        }
        if operation.path == "/metrics" {
            for http in [&read, &write] {
                operation.ask(http, &address).await.expect(200);
            }
            continue;
        }
        let (refused, name) = if is_read {
            (&write, "read")
        } else {
            (&read, "write")
        };
        let reply = operation.ask(refused, &address).await;
        let problem = reply.problem(403, "FORBIDDEN");
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(
            detail.contains(&format!("`{name}`")),
            "{}: {detail}",
            at(operation)
        );
        let allowed = if is_read { &read } else { &write };
        let reply = operation.ask(allowed, &address).await;
        assert!(
            ![401, 403].contains(&reply.status),
            "{}: {reply}",
            at(operation)
        );
    }
    let list = both.get("/sessions").await.expect(200).json();
    assert_eq!(
        list["data"].as_array().map(Vec::len),
        Some(2),
        "two that make a session were allowed"
    );
    let head = write.send(Method::HEAD, "/sessions", &[], None).await;
    assert_eq!(head.status, 403, "a HEAD reads");
}

/// The router decodes what is percent-encoded, so the door does.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_of_a_path_leads_around_the_door(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = guarded(backend).await;
    let read = holder(&app, "default", &["read"]).await;
    read.get("/%61dmin/keys").await.expect(403);
    app.get("/%61dmin/keys").await.expect(401);
    app.get("/%73essions").await.expect(401);
    for target in [
        "/health/../sessions",
        "/docs/../sessions",
        "/docs/..%2fsessions",
        "/health/%2e%2e/sessions",
        "//sessions",
        "/./sessions",
    ] {
        let answer = app.raw_get(target.as_bytes());
        assert!(!answer.contains("\"nextCursor\""), "{target}: {answer}");
    }
}

/// Neither an open door nor a wrong answer: what cannot be looked up is nobody's.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn without_the_table_of_keys_nobody_comes_in(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    const GONE: &str = "ALTER TABLE keys RENAME TO keys_gone";
    let app = guarded(backend).await;
    let key = holder(&app, "default", &["read"]).await;
    key.get("/sessions").await.expect(200);
    app.database.execute(GONE, GONE).await;
    until(500, "/sessions", &key).await.problem(500, "INTERNAL");
    app.get("/sessions").await.expect(401);
    app.with_key(ADMIN).get("/sessions").await.expect(200);

    let open = TestApp::spawn(backend).await;
    open.get("/sessions").await.expect(200);
    open.database.execute(GONE, GONE).await;
    until(500, "/sessions", &open)
        .await
        .problem(500, "INTERNAL");
}
