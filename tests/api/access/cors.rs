//! Pages of other sites: off unless named, and then without credentials.

use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use super::{ADMIN, guarded, holder};
use crate::support::{Backend, Reply, TestApp};

const PAGE: &str = "https://app.example.com";

async fn shared(backend: Backend) -> TestApp {
    let origins = "https://app.example.com, http://localhost:3000";
    let variables = [
        ("PRECIS_ADMIN_KEY", ADMIN),
        ("PRECIS_CORS__ALLOWED_ORIGINS", origins),
    ];
    TestApp::with(backend, &variables).await
}

async fn preflight(app: &TestApp, origin: &str, path: &str, method: &str) -> Reply {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", method),
        (
            "access-control-request-headers",
            "authorization,content-type,idempotency-key",
        ),
    ];
    app.send(Method::OPTIONS, path, &headers, None).await
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_named_page_is_answered_and_another_is_not(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = shared(backend).await;
    for origin in [PAGE, "http://localhost:3000"] {
        for (path, method) in [
            ("/sessions", "POST"),
            ("/sessions/x", "PATCH"),
            ("/admin/keys/x", "DELETE"),
        ] {
            let reply = preflight(&app, origin, path, method).await.expect(200);
            assert_eq!(reply.header("access-control-allow-origin"), Some(origin));
            let methods = reply
                .header("access-control-allow-methods")
                .unwrap_or_default();
            assert!(methods.contains(method), "{methods}");
            let headers = reply
                .header("access-control-allow-headers")
                .unwrap_or_default();
            assert!(headers.contains("authorization"), "{headers}");
            assert_eq!(reply.header("access-control-allow-credentials"), None);
        }
    }
    let reply = preflight(&app, "https://evil.example", "/sessions", "POST").await;
    reply.problem(400, "INVALID_PARAMETER");
    assert_eq!(reply.header("access-control-allow-origin"), None);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn answers_and_errors_can_be_read_by_it(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = shared(backend).await;
    let key = holder(&app, "default", &["read", "write"]).await;
    let id = key.create(&json!({})).await;
    let page = [("origin", PAGE)];
    let context = format!("/sessions/{id}/context");
    for reply in [
        key.get_with(&context, &page).await.expect(200),
        key.get_with("/sessions/sess_x", &page).await.expect(404),
        app.get_with("/sessions", &page).await.expect(401),
    ] {
        assert_eq!(
            reply.header("access-control-allow-origin"),
            Some(PAGE),
            "{reply}"
        );
        assert_eq!(reply.header("access-control-allow-credentials"), None);
        let exposed = reply
            .header("access-control-expose-headers")
            .unwrap_or_default();
        for name in [
            "etag",
            "location",
            "retry-after",
            "x-request-id",
            "idempotency-replayed",
        ] {
            assert!(
                exposed.to_ascii_lowercase().contains(name),
                "{name}: {exposed}"
            );
        }
        let vary = reply.header("vary").unwrap_or_default();
        assert!(vary.to_ascii_lowercase().contains("origin"), "{vary}");
    }
    // With a key another page may ask; a browser just does not let it read the answer.
    let reply = key
        .get_with(&context, &[("origin", "https://evil.example")])
        .await;
    assert_eq!(
        reply.expect(200).header("access-control-allow-origin"),
        None
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn it_is_off_unless_set(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = guarded(backend).await;
    let reply = preflight(&app, PAGE, "/sessions", "POST").await;
    assert_eq!(reply.status, 401);
    let reply = app
        .with_key(ADMIN)
        .get_with("/sessions", &[("origin", PAGE)])
        .await;
    assert_eq!(
        reply.expect(200).header("access-control-allow-origin"),
        None
    );
}
