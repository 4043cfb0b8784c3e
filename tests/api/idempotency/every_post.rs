//! Every POST of the OpenAPI document: the repeat gives the same status, headers and bytes, and does nothing.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{Stage, everything, is_repeated, keyed, long_session};
use crate::support::{Backend, Http};

/// The session of an address; empty if it has none.
fn session_of(path: &str) -> &str {
    let mut parts = path.trim_start_matches("/v1").split('/').skip(1);
    let of_one = matches!(parts.next(), Some("sessions" | "conversations"));
    parts.next().filter(|_| of_one).unwrap_or_default()
}

/// The paths that take a POST.
fn posts() -> Vec<String> {
    let document: Value =
        serde_json::from_str(&precis::http::openapi_json()).expect("the document is JSON");
    let paths = document["paths"].as_object().expect("paths");
    // A new key is shown once and kept nowhere.
    let posts = paths
        .iter()
        .filter(|(path, item)| item.get("post").is_some() && *path != "/admin/keys");
    posts.map(|(path, _)| path.clone()).collect()
}

/// A request to a path that does something: the path filled in, and a body. A new route needs an entry here.
async fn request(http: &Http, path: &str) -> (String, String) {
    let id = long_session(http).await;
    let body = match path {
        "/sessions" => json!({"title": "new", "messages": [{"role": "user", "content": "hello"}]}),
        "/sessions/{id}/messages" => {
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
        }
        "/sessions/{id}/turns" => json!({"messages": [{"role": "user", "content": "What grows?"}]}),
        "/sessions/{id}/rewind" => json!({"toSeq": 4}),
        "/sessions/{id}/fork" => json!({"atSeq": 6, "title": "copy"}),
        "/sessions/{id}/compact" => json!({"compactCount": 50}),
        "/sessions/{id}/context" => json!({"contextWindow": 100_000, "format": "anthropic"}),
        "/v1/conversations" => {
            json!({"items": [{"role": "user", "content": "a"}], "metadata": {"k": "v"}})
        }
        "/v1/conversations/{conversation_id}" => json!({"metadata": {"k": "v"}}),
        "/v1/conversations/{conversation_id}/items" => {
            json!({"items": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
        }
        "/v1/responses/compact" => {
            json!({"conversation": id, "input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
        }
        "/sessions/{id}/reopen" => {
            http.post_empty(&format!("/sessions/{id}/close"))
                .await
                .expect(200);
            Value::Null
        }
        "/sessions/{id}/compactions/{version}/restore" => {
            http.compact(&id, &json!({})).await.expect(200);
            Value::Null
        }
        "/sessions/{id}/close"
        | "/sessions/{id}/reset"
        | "/sessions/{id}/turns/{turnId}/cancel" => Value::Null,
        unknown => panic!("POST {unknown} is new: give it a request here, and see to its key"),
    };
    let turn = if path.contains("{turnId}") {
        let question = json!({"messages": [{"role": "user", "content": "What grows?"}]});
        let ran = http.post(&format!("/sessions/{id}/turns"), &question).await;
        ran.expect(200).json()["id"]
            .as_str()
            .expect("an id")
            .to_owned()
    } else {
        String::new()
    };
    let filled = path
        .replace("{id}", &id)
        .replace("{conversation_id}", &id)
        .replace("{version}", "0")
        .replace("{turnId}", &turn);
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    (filled, body)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_post_is_done_once(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let stage = Stage::new(backend).await;
    let app = &stage.app;
    let mut seen = 0;
    for path in posts() {
        let (path, body) = request(app, &path).await;
        let before = everything(app).await;
        let first = keyed(app, &path, "the-key", &body).await;
        assert!((200..300).contains(&first.status), "{first}");
        let after = everything(app).await;
        let inert = path.ends_with("/cancel") || path == "/v1/responses/compact";
        assert!(inert || after != before, "{path} does something");
        for _ in 0..2 {
            let again = keyed(app, &path, "the-key", &body).await;
            is_repeated(&again, &first);
        }
        let other = keyed(app, &path, "the-key", &format!("{body} ")).await;
        other.problem(409, "IDEMPOTENCY_CONFLICT");
        assert_eq!(other.header("retry-after"), None, "{other}");
        assert!(everything(app).await == after, "{path}: it is done once");
        seen += 1;
    }
    assert!(seen >= 16, "{seen} routes take a POST");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_outlives_what_comes_after_it(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let app = &stage.app;
    for path in posts() {
        if path.contains("/turns/") {
            continue;
        }
        let (path, body) = request(app, &path).await;
        let first = keyed(app, &path, "the-key", &body).await;
        assert!((200..300).contains(&first.status), "{first}");
        // A summary, a shorter list of what is shown, another title; and at last a session that takes nothing.
        let session = session_of(&path);
        if !session.is_empty() {
            let session = session.to_owned();
            let reopen = format!("/sessions/{session}/reopen");
            app.post_empty(&reopen).await.expect(200);
            app.append(&session, &crate::support::messages::turns(6, 300))
                .await;
            app.compact(&session, &json!({"compactCount": 99, "keepRecentTurns": 0}))
                .await
                .expect(200);
            let change =
                json!({"title": "another", "pruning": {"enabled": true, "budgetTokens": 1}});
            app.patch(&format!("/sessions/{session}"), &change)
                .await
                .expect(200);
            app.post(&format!("/sessions/{session}/context"), &json!({}))
                .await
                .expect(200);
            app.post_empty(&format!("/sessions/{session}/close"))
                .await
                .expect(200);
        }
        is_repeated(&keyed(app, &path, "the-key", &body).await, &first);
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_not_kept(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let stage = Stage::new(backend).await;
    let app = &stage.app;
    for path in posts() {
        let (path, body) = request(app, &path).await;
        let id = session_of(&path).to_owned();
        if id.is_empty() || path.contains("/turns/") {
            continue;
        }
        let reopens = path.ends_with("/reopen");
        // Nothing is taken by a session that is closed, but what reads it, or is no write.
        app.post_empty(&format!("/sessions/{id}/close"))
            .await
            .expect(200);
        let refused = keyed(app, &path, "the-key", &body).await;
        if refused.status < 300 {
            let reads = ["close", "fork", "reopen"].map(|end| path.ends_with(end));
            assert!(reads.contains(&true), "{refused}");
            continue;
        }
        assert!(!reopens);
        refused.problem(400, "SESSION_CLOSED");
        app.post_empty(&format!("/sessions/{id}/reopen"))
            .await
            .expect(200);
        let done = keyed(app, &path, "the-key", &body).await;
        assert!((200..300).contains(&done.status), "{done}");
        assert_eq!(done.header("idempotency-replayed"), None);
        is_repeated(&keyed(app, &path, "the-key", &body).await, &done);
    }
}

#[test]
fn every_post_says_so() {
    let document: Value =
        serde_json::from_str(&precis::http::openapi_json()).expect("the document is JSON");
    for path in posts() {
        let post = &document["paths"][&path]["post"];
        let headers = post["parameters"].as_array().expect("parameters");
        let named = headers
            .iter()
            .filter(|header| header["name"] == "Idempotency-Key" && header["in"] == "header");
        assert_eq!(named.count(), 1, "{path}");
        let conflict = post["responses"]["409"]["description"].as_str();
        assert!(
            conflict.is_some_and(|text| text.contains("Idempotency-Key")),
            "{path}"
        );
    }
    let get = &document["paths"]["/sessions"]["get"];
    assert!(!get.to_string().contains("Idempotency-Key"));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_put_and_a_patch_take_no_notice_of_a_key(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let id = long_session(&stage.app).await;
    let path = format!("/sessions/{id}");
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "the-key"),
    ];
    for title in ["one", "two"] {
        let body = json!({ "title": title }).to_string();
        let reply = stage
            .app
            .send(Method::PATCH, &path, &headers, Some(body.into()))
            .await
            .expect(200);
        assert_eq!(reply.json()["title"], title);
    }
}
