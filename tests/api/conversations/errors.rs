//! Errors under `/v1`, as its clients read them: a table of requests and what is said to each.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::create;
use crate::support::{Backend, Reply, TestApp};

#[track_caller]
fn check(reply: &Reply, status: u16, code: &str, param: Option<&str>) {
    assert_eq!(reply.status, status, "{reply}");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let body = reply.json();
    let members: Vec<_> = body["error"]
        .as_object()
        .expect("an error")
        .keys()
        .collect();
    assert_eq!(members, ["code", "message", "param", "type"], "{reply}");
    let error = &body["error"];
    assert_eq!(error["code"], code, "{reply}");
    assert_eq!(
        error["param"],
        param.map_or(Value::Null, Value::from),
        "{reply}"
    );
    assert!(!error["message"].as_str().expect("a text").is_empty());
    let kind = match status {
        409 => "conflict_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    assert_eq!(error["type"], kind, "{reply}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn queries_and_paths(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({"items": [{"role": "user", "content": "a"}]})).await;
    let own = format!("/v1/conversations/{id}");
    for (method, path, status, code, param) in [
        (
            Method::GET,
            format!("{own}/items?limit=0"),
            400,
            "invalid_parameter",
            Some("limit"),
        ),
        (
            Method::GET,
            format!("{own}/items?limit=101"),
            400,
            "invalid_parameter",
            Some("limit"),
        ),
        (
            Method::GET,
            format!("{own}/items?limit=ten"),
            400,
            "invalid_parameter",
            Some("limit"),
        ),
        (
            Method::GET,
            format!("{own}/items?order=up"),
            400,
            "invalid_parameter",
            Some("order"),
        ),
        (
            Method::GET,
            format!("{own}/items?before=x"),
            400,
            "invalid_parameter",
            Some("before"),
        ),
        (
            Method::GET,
            format!("{own}/items?after=msg_none"),
            404,
            "message_not_found",
            None,
        ),
        (
            Method::GET,
            format!("{own}/items/msg_none"),
            404,
            "message_not_found",
            None,
        ),
        (
            Method::DELETE,
            format!("{own}/items/msg_none"),
            404,
            "message_not_found",
            None,
        ),
        (
            Method::GET,
            "/v1/conversations/conv_none".into(),
            404,
            "session_not_found",
            None,
        ),
        (
            Method::DELETE,
            "/v1/conversations/conv_none".into(),
            404,
            "session_not_found",
            None,
        ),
        (
            Method::GET,
            "/v1/conversations/conv_none/items".into(),
            404,
            "session_not_found",
            None,
        ),
        (
            Method::GET,
            "/v1/conversations/a%2Fb/items/c%00".into(),
            404,
            "session_not_found",
            None,
        ),
        (
            Method::GET,
            "/v1/models".into(),
            404,
            "route_not_found",
            None,
        ),
        (
            Method::GET,
            format!("{own}/items/a%00"),
            404,
            "message_not_found",
            None,
        ),
        (
            Method::DELETE,
            format!("{own}/items/a%00"),
            404,
            "message_not_found",
            None,
        ),
        (
            Method::DELETE,
            format!("{own}/items/msg-of-%00"),
            404,
            "message_not_found",
            None,
        ),
        (
            Method::GET,
            format!("{own}/items?after=%00"),
            404,
            "message_not_found",
            None,
        ),
        (
            Method::GET,
            format!("{own}/items/%C3%A4"),
            404,
            "message_not_found",
            None,
        ),
        (Method::GET, "/v1".into(), 404, "route_not_found", None),
        (
            Method::GET,
            "/%76%31/zz".into(),
            404,
            "route_not_found",
            None,
        ),
        (
            Method::PUT,
            own.replace("/v1/", "/%76%31/"),
            405,
            "method_not_allowed",
            None,
        ),
        (Method::PUT, own.clone(), 405, "method_not_allowed", None),
    ] {
        let reply = app.send(method, &path, &[], None).await;
        check(&reply, status, code, param);
    }
    let allowed = app.send(Method::PUT, &own, &[], None).await;
    assert_eq!(allowed.header("allow"), Some("DELETE, GET, POST"));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn bodies(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let own = format!("/v1/conversations/{id}");
    let items = format!("{own}/items");
    let many: Vec<_> = (0..1_001)
        .map(|_| json!({"role": "user", "content": "a"}))
        .collect();
    let long = "x".repeat(513);
    let members: serde_json::Map<_, _> = (0..17).map(|n| (n.to_string(), json!("a"))).collect();
    let invalid = "validation_failed";
    for (path, body, code, param) in [
        (&items, "{".to_owned(), "invalid_json", None),
        (&items, "[]".to_owned(), invalid, None),
        (
            &items,
            r#"{"items":[],"items":[]}"#.to_owned(),
            "invalid_json",
            None,
        ),
        (&items, "{}".to_owned(), invalid, Some("items")),
        (&items, r#"{"items":[]}"#.to_owned(), invalid, Some("items")),
        (&items, r#"{"items":{}}"#.to_owned(), invalid, Some("items")),
        (
            &items,
            r#"{"items":[{"role":"user","content":"a"},7]}"#.to_owned(),
            invalid,
            Some("items[1]"),
        ),
        (
            &items,
            r#"{"items":[{}]}"#.to_owned(),
            invalid,
            Some("items[0].type"),
        ),
        (
            &items,
            r#"{"items":[{"role":"user","content":7}]}"#.to_owned(),
            invalid,
            Some("items[0].content"),
        ),
        (
            &items,
            r#"{"items":[{"type":"function_call","call_id":"c","name":"f"}]}"#.to_owned(),
            invalid,
            Some("items[0].arguments"),
        ),
        (
            &items,
            r#"{"items":[{"type":"function_call_output","output":"f"}]}"#.to_owned(),
            invalid,
            Some("items[0].call_id"),
        ),
        (
            &items,
            r#"{"items":[{"role":"user","content":"\ud800"}]}"#.to_owned(),
            "invalid_json",
            None,
        ),
        (
            &items,
            json!({"items": many}).to_string(),
            invalid,
            Some("items"),
        ),
        (&own, "{}".to_owned(), invalid, Some("metadata")),
        (
            &own,
            r#"{"metadata":[]}"#.to_owned(),
            invalid,
            Some("metadata"),
        ),
        (
            &own,
            r#"{"metadata":{"a":1}}"#.to_owned(),
            invalid,
            Some("metadata"),
        ),
        (
            &own,
            json!({"metadata": {"a": long}}).to_string(),
            invalid,
            Some("metadata"),
        ),
        (
            &own,
            json!({"metadata": {"x".repeat(65): "a"}}).to_string(),
            invalid,
            Some("metadata"),
        ),
        (
            &own,
            json!({"metadata": members}).to_string(),
            invalid,
            Some("metadata"),
        ),
    ] {
        let reply = app.post_raw(path, body).await;
        check(&reply, 400, code, param);
    }
    let fits = json!({"metadata": {"ü".repeat(64): "ü".repeat(512)}});
    app.post(&own, &fits).await.expect(200);
    let typed = [("content-type", "text/plain")];
    let reply = app
        .send(Method::POST, &items, &typed, Some(b"{}".to_vec()))
        .await;
    check(&reply, 415, "unsupported_media_type", None);
    app.post_empty(&format!("/sessions/{id}/close"))
        .await
        .expect(200);
    let reply = app
        .post(
            &items,
            &json!({"items": [{"role": "user", "content": "a"}]}),
        )
        .await;
    check(&reply, 400, "session_closed", None);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn outputs_that_answer_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let path = format!("/v1/conversations/{id}/items");
    let first = [super::call("a"), super::call("b"), super::output("a", "1")];
    super::append(&app, &id, &first).await;
    for (item, code) in [
        (super::output("a", "again"), "tool_call_not_found"),
        (super::output("c", "never called"), "tool_call_not_found"),
    ] {
        let reply = app
            .post_raw(&path, format!(r#"{{"items":[{item}]}}"#))
            .await;
        check(&reply, 400, code, Some("items[0].call_id"));
    }
    let twice = format!(r#"{{"items":[{},{}]}}"#, super::call("x"), super::call("x"));
    let reply = app.post_raw(&path, twice).await;
    check(&reply, 400, "tool_call_not_found", Some("items[1].call_id"));
    super::append(&app, &id, &[super::output("b", "2")]).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_taken(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let item = |text: &str| json!({"id": "msg_1", "role": "user", "content": text});
    let id = create(&app, &json!({"items": [item("a")]})).await;
    let path = format!("/v1/conversations/{id}/items");
    let twice = json!({"items": [{"role": "user", "content": "b"}, item("a"), item("a")]});
    for (path, body, param) in [
        (path.as_str(), json!({"items": [item("b")]}), "items[0].id"),
        (&path, twice.clone(), "items[2].id"),
        ("/v1/conversations", twice, "items[2].id"),
    ] {
        let reply = app.post(path, &body).await;
        check(&reply, 409, "idempotency_conflict", Some(param));
        let message = reply.json()["error"]["message"].to_string();
        assert!(
            message.contains("`id`") && !message.contains("precis"),
            "{message}"
        );
    }
}
