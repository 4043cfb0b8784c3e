//! Errors that no handler makes: unknown routes, wrong methods, unreadable and oversized bodies.
//! All are problems, as those of the handlers are.

use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use crate::support::messages::{padded, user};
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_route_is_a_problem(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for path in ["/nowhere", "/sessions/sess_x/nowhere", "/agents/a/b"] {
        let problem = app.get(path).await.problem(404, "ROUTE_NOT_FOUND");
        assert_eq!(problem["instance"], path, "the problem names the path");
    }
    app.post("/nowhere", &json!({}))
        .await
        .problem(404, "ROUTE_NOT_FOUND");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_method_says_which_are_right(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for (method, path, allowed) in [
        (Method::PUT, "/sessions", &["GET", "POST"][..]),
        (
            Method::POST,
            "/sessions/sess_x",
            &["GET", "PATCH", "DELETE"],
        ),
        (
            Method::DELETE,
            "/sessions/sess_x/messages",
            &["GET", "POST"],
        ),
        (Method::GET, "/sessions/sess_x/compact", &["POST"]),
        (Method::GET, "/sessions/sess_x/close", &["POST"]),
        (Method::PATCH, "/agents/x", &["GET", "PUT", "DELETE"]),
        (Method::POST, "/agents", &["GET"]),
        (Method::POST, "/health/live", &["GET"]),
        (Method::DELETE, "/openapi.json", &["GET"]),
    ] {
        let reply = app.send(method.clone(), path, &[], None).await;
        reply.problem(405, "METHOD_NOT_ALLOWED");
        let header = reply.header("allow").unwrap_or_default();
        let named: Vec<&str> = header.split(',').map(str::trim).collect();
        for expected in allowed {
            assert!(
                named.contains(expected),
                "{method} {path}: expected {expected} in `Allow: {header}`"
            );
        }
        assert!(
            !named.contains(&method.as_str()),
            "{method} {path}: the refused method is not in `Allow: {header}`"
        );
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_no_json_is_415(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let body = format!("{{\"messages\":[{}]}}", user("x"));
    for path in ["/sessions".to_owned(), format!("/sessions/{id}/messages")] {
        for media_type in ["text/plain", "application/xml", "multipart/form-data"] {
            let headers = [("content-type", media_type)];
            app.send(Method::POST, &path, &headers, Some(body.clone().into()))
                .await
                .problem(415, "UNSUPPORTED_MEDIA_TYPE");
        }
    }
    assert!(app.history(&id).await.is_empty(), "nothing was stored");
    let headers = [("content-type", "application/json; charset=utf-8")];
    app.send(
        Method::POST,
        &format!("/sessions/{id}/messages"),
        &headers,
        Some(body.into()),
    )
    .await
    .expect(201);
}

#[rstest]
#[case::empty(b"")]
#[case::cut_off(br#"{"messages":[{"role":"user","content":"x"}"#)]
#[case::followed_by_more(br#"{"title":"x"} {"title":"y"}"#)]
#[case::single_quotes(b"{'title':'x'}")]
#[case::a_control_character_in_a_string(b"{\"title\":\"a\nb\"}")]
#[case::not_utf8(b"{\"title\":\"a\xffb\"}")]
#[case::an_overlong_encoding(b"{\"title\":\"a\xc0\x80b\"}")]
#[case::a_surrogate_in_utf8(b"{\"title\":\"a\xed\xa0\xbdb\"}")]
#[case::a_lone_surrogate_escape(br#"{"title":"\ud83d"}"#)]
#[case::a_reversed_pair(br#"{"title":"\ude00\ud83d"}"#)]
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_json_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] body: &[u8],
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    if !body.is_empty() {
        // Without a body, `POST /sessions` has nothing to read: all of it is optional.
        app.post_raw("/sessions", body)
            .await
            .problem(400, "INVALID_JSON");
    }
    app.post_raw(&format!("/sessions/{id}/messages"), body)
        .await
        .problem(400, "INVALID_JSON");
    let sessions = app.get("/sessions").await.expect(200).json();
    assert_eq!(
        sessions["data"].as_array().map(Vec::len),
        Some(1),
        "no session was created"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_names_the_limit(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let limits = [
        ("PRECIS_LIMITS__BODY_BYTES", "60000"),
        ("PRECIS_LIMITS__MESSAGE_BYTES", "20000"),
    ];
    let app = TestApp::with(backend, &limits).await;
    let id = app.create(&json!({})).await;

    // The body is `{"messages":[…]}`: 15 bytes around the messages.
    let message = |bytes: usize| user(&padded("", bytes - user("").len()));
    let three = [
        message(20_000),
        message(20_000),
        message(60_000 - 40_000 - 2 - 15),
    ];
    app.append(&id, &three).await;
    let over = [
        message(20_000),
        message(20_000),
        message(60_000 - 40_000 - 2 - 14),
    ];
    let reply = app.append_raw(&id, &format!("[{}]", over.join(","))).await;
    reply.problem(413, "PAYLOAD_TOO_LARGE");
    assert!(
        String::from_utf8_lossy(&reply.body).contains("60000"),
        "expected the limit in the answer: {reply}"
    );

    let reply = app.append_raw(&id, &format!("[{}]", message(20_001))).await;
    reply.problem(413, "PAYLOAD_TOO_LARGE");
    assert!(
        String::from_utf8_lossy(&reply.body).contains("20000"),
        "expected the limit in the answer: {reply}"
    );
    assert_eq!(app.history(&id).await.len(), 3, "only what fits was stored");
}
