//! What the OpenAPI document says of `Idempotency-Key`: the same of every POST, so in one place.

use serde_json::{Value, json};

use super::security::refusal;

const KEY: &str = "A key of the client's own for this request, 1 to 255 visible ASCII characters: made again with the \
    same key and body it is done once, and the first answer is repeated, for as long as the server is set to \
    (`idempotency.hours`, a day unless changed). Only answers of success are kept.";
const CONFLICT: &str = "The `Idempotency-Key` was sent here with another body before, or its request is still at work \
    (`IDEMPOTENCY_CONFLICT`, the latter with `Retry-After`).";
const MALFORMED: &str = "A part of the path or a header is not what it must be.";
const REPLAYED: &str =
    "`true` if the answer was given before to a request with the same `Idempotency-Key`.";

/// Adds the header, and what it can bring about, to every POST but the one that shows a secret.
pub fn describe(document: &mut Value) {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    for (path, item) in paths.into_iter().flatten() {
        // What it shows is shown once, and kept nowhere.
        if path == "/admin/keys" {
            continue;
        }
        if let Some(operation) = item.get_mut("post").and_then(Value::as_object_mut) {
            let parameters = operation.entry("parameters").or_insert_with(|| json!([]));
            if let Some(parameters) = parameters.as_array_mut() {
                parameters.push(header());
            }
            if let Some(Value::Object(responses)) = operation.get_mut("responses") {
                describe_answers(path, responses);
            }
        }
    }
}

fn header() -> Value {
    json!({
        "name": "Idempotency-Key",
        "in": "header",
        "description": KEY,
        "required": false,
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        "example": "b1f0c3d2-append-17",
    })
}

fn describe_answers(path: &str, responses: &mut serde_json::Map<String, Value>) {
    responses
        .entry("400")
        .or_insert_with(|| refusal(path, MALFORMED));
    match responses
        .get_mut("409")
        .and_then(|known| known.get_mut("description"))
    {
        Some(Value::String(description)) => {
            description.push(' ');
            description.push_str(CONFLICT);
        }
        _ => {
            responses.insert("409".to_owned(), refusal(path, CONFLICT));
        }
    }
    let kept = responses
        .iter_mut()
        .filter(|(status, _)| status.starts_with('2'));
    for (_, response) in kept {
        let Some(response) = response.as_object_mut() else {
            continue;
        };
        let headers = response.entry("headers").or_insert_with(|| json!({}));
        if let Some(headers) = headers.as_object_mut() {
            let replayed = json!({"description": REPLAYED, "schema": {"type": "boolean"}});
            headers.insert("Idempotency-Replayed".to_owned(), replayed);
        }
    }
}
