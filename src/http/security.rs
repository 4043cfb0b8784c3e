//! What every operation of the OpenAPI document that needs a key has in common, put in in one place.

use serde_json::{Map, Value, json};

use super::access::is_public;
use super::v1;

/// Adds the scheme by which keys are sent, and to each operation that needs one: that it does, and the answers that
/// any of them may give before its own handler is asked.
pub fn describe(document: &mut Value) {
    if let Some(components) = document
        .pointer_mut("/components")
        .and_then(Value::as_object_mut)
    {
        let scheme = json!({
            "type": "http",
            "scheme": "bearer",
            "description": "A key that `precis keys create` or `POST /admin/keys` has made, or PRECIS_ADMIN_KEY. While \
                there never was one, none is needed.",
        });
        components.insert("securitySchemes".into(), json!({"bearer": scheme}));
    }
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    for (path, item) in paths
        .into_iter()
        .flatten()
        .filter(|(path, _)| !is_public(path))
    {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            secure(path, operation);
        }
    }
}

fn secure(path: &str, operation: &mut Value) {
    let Some(operation) = operation.as_object_mut() else {
        return;
    };
    operation.insert("security".into(), json!([{"bearer": []}]));
    let has_body = operation.contains_key("requestBody");
    let responses = operation
        .entry("responses")
        .or_insert_with(|| json!({}))
        .as_object_mut();
    let Some(responses) = responses else {
        return;
    };
    if has_body {
        let text = "The body came too slowly.";
        responses
            .entry("408")
            .or_insert_with(|| refusal(path, text));
    }
    let challenge = json!({"schema": {"type": "string"}, "description": "`Bearer`."});
    let wait =
        json!({"schema": {"type": "integer", "minimum": 1}, "description": "Seconds to wait."});
    for (status, text, header) in [
        (
            "401",
            "No key came, or none that is valid.",
            Some(("WWW-Authenticate", challenge)),
        ),
        (
            "403",
            "The key lacks the scope, a web page of another site asked, or the tenant stores as much as it may.",
            None,
        ),
        (
            "429",
            "More than the tenant may ask. The detail names the limit.",
            Some(("Retry-After", wait.clone())),
        ),
        (
            "503",
            "The database gave no answer in time, or the server bears no more just now.",
            Some(("Retry-After", wait)),
        ),
    ] {
        let response = responses
            .entry(status)
            .or_insert_with(|| refusal(path, text));
        if let (Some((name, header)), Some(response)) = (header, response.as_object_mut()) {
            let headers = response.entry("headers").or_insert_with(|| json!({}));
            if let Some(headers) = headers.as_object_mut() {
                headers.entry(name).or_insert(header);
            }
        }
    }
}

/// A refusal in the shape that the routes of a path answer in.
pub fn refusal(path: &str, text: &str) -> Value {
    let (schema, kind) = if v1::is_path(path) {
        ("OpenAiError", "application/json")
    } else {
        ("Problem", "application/problem+json")
    };
    let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
    json!({
        "description": text,
        "content": {kind: {"schema": schema}},
    })
}
