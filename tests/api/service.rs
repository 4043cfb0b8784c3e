//! What belongs to the service and to no resource: health, documentation, request ids.

use std::sync::Arc;

use rstest::rstest;
use serde_json::Value;

use crate::support::backend::TestDatabase;
use crate::support::{Backend, TestApp};

/// All other tests begin with the tables in place.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_is_migrated_at_the_start(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let database = Arc::new(TestDatabase::empty(backend).await);
    // Two replicas that are started together do not get into each other's way.
    let start = || TestApp::on(Arc::clone(&database), Vec::new());
    let (one, other) = match backend {
        Backend::Sqlite => (start().await, start().await),
        Backend::Postgres => tokio::join!(start(), start()),
    };
    let created = one
        .post("/sessions", &serde_json::json!({}))
        .await
        .expect(201)
        .json();
    let id = created["id"].as_str().unwrap_or_default();
    other.get(&format!("/sessions/{id}")).await.expect(200);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn health_and_documentation_are_served(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    app.get("/health/live").await.expect(200);
    app.get("/health/ready").await.expect(200);

    let document = app.get("/openapi.json").await.expect(200).json();
    let version = document["openapi"].as_str().unwrap_or_default();
    assert!(
        version.starts_with("3.1"),
        "expected OpenAPI 3.1, got `{version}`"
    );
    for (path, methods) in [
        ("/agents", &["get"][..]),
        ("/agents/{name}", &["get", "put", "delete"]),
        ("/sessions", &["get", "post"]),
        ("/sessions/{id}", &["get", "patch", "delete"]),
        ("/sessions/{id}/close", &["post"]),
        ("/sessions/{id}/reopen", &["post"]),
        ("/sessions/{id}/reset", &["post"]),
        ("/sessions/{id}/messages", &["get", "post"]),
        ("/sessions/{id}/messages/{messageId}", &["get"]),
        ("/sessions/{id}/context", &["get"]),
        ("/sessions/{id}/compact", &["post"]),
        ("/sessions/{id}/compactions", &["get"]),
        ("/sessions/{id}/compactions/{version}", &["get"]),
        ("/health/live", &["get"]),
        ("/health/ready", &["get"]),
    ] {
        for method in methods {
            let operation = &document["paths"][path][method];
            assert!(
                operation["summary"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty()),
                "expected {method} {path} in the document, with a summary"
            );
        }
    }

    // The client follows the redirect that a person would.
    let page = app.get("/docs").await.expect(200);
    let kind = page.header("content-type").unwrap_or_default();
    assert!(
        kind.starts_with("text/html"),
        "expected the page of the Swagger UI: {page}"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn request_ids_are_echoed_or_made(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mine = [("x-request-id", "my-request-42")];
    let reply = app.get_with("/health/live", &mine).await.expect(200);
    assert_eq!(
        reply.header("x-request-id"),
        Some("my-request-42"),
        "the id is echoed"
    );

    let failing = app.get_with("/sessions/sess_none", &mine).await;
    let problem = failing.problem(404, "SESSION_NOT_FOUND");
    assert_eq!(
        problem["requestId"], "my-request-42",
        "a problem names the request"
    );
    assert_eq!(
        problem["instance"], "/sessions/sess_none",
        "and where it happened"
    );

    let first = app.get("/health/live").await;
    let second = app.get("/health/live").await;
    let (first, second) = (first.header("x-request-id"), second.header("x-request-id"));
    assert!(
        first.is_some_and(|id| !id.is_empty()),
        "an id is made where none came"
    );
    assert_ne!(first, second, "each request has its own");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_error_code_is_documented(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let document: Value = app.get("/openapi.json").await.expect(200).json();
    let text = document.to_string();
    for code in [
        "INVALID_JSON",
        "INVALID_PARAMETER",
        "SESSION_CLOSED",
        "SESSION_NOT_FOUND",
        "MESSAGE_NOT_FOUND",
        "AGENT_NOT_FOUND",
        "COMPACTION_NOT_FOUND",
        "ROUTE_NOT_FOUND",
        "METHOD_NOT_ALLOWED",
        "COMPACTION_IN_PROGRESS",
        "COMPACTION_CONFLICT",
        "SEQUENCE_CONFLICT",
        "PAYLOAD_TOO_LARGE",
        "UNSUPPORTED_MEDIA_TYPE",
        "VALIDATION_FAILED",
        "TOOL_CALL_NOT_FOUND",
        "INTERNAL",
        "SUMMARIZER_FAILED",
        "STORAGE_UNAVAILABLE",
    ] {
        assert!(
            text.contains(&format!("\"{code}\"")),
            "expected the code {code} in the OpenAPI document"
        );
    }
}
