//! Events: what each write tells, reading on from any point, other processes, crashes.

mod compactions;
mod replicas;
mod resume;
mod streams;
mod writes;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::Http;
use crate::support::messages::user;
use crate::support::sse::Frame;

/// Types of events, in order.
fn kinds(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.event.as_str()).collect()
}

/// Numbers of events, in order.
fn numbers(frames: &[Frame]) -> Vec<i64> {
    frames.iter().map(Frame::number).collect()
}

/// Appends one message.
async fn append_one(http: &Http, id: &str) {
    http.append(id, &[user("hello")]).await;
}

/// Changes a setting, which is one event.
async fn patch(http: &Http, id: &str) {
    let reply = http
        .patch(&format!("/sessions/{id}"), &json!({"title": "t"}))
        .await;
    reply.expect(200);
}

/// The one of these events that is about compactions and of this type.
fn only<'f>(frames: &'f [Frame], kind: &str) -> &'f Value {
    let found: Vec<_> = frames.iter().filter(|frame| frame.event == kind).collect();
    assert_eq!(found.len(), 1, "exactly one {kind} in {:?}", kinds(frames));
    &found[0].data
}

/// A request with a JSON body and a status.
async fn send(http: &Http, method: Method, path: &str, body: &Value, status: u16) -> Value {
    let json = [("content-type", "application/json")];
    let body = Some(body.to_string().into_bytes());
    let reply = http.send(method, path, &json, body).await.expect(status);
    serde_json::from_slice(&reply.body).unwrap_or_default()
}
