//! The shapes of parameters and bodies in the OpenAPI document, where the handlers' types say too little.
//!
//! A client that keeps to the document should not be refused for a reason that the document could have told. What
//! depends on the state of a session cannot be told there and stands in the descriptions.

use serde_json::{Map, Value, json};

use crate::domain::search::QUERY_CHARS;

/// What a parameter takes; `None` where its type says it all.
fn shape(place: &str, name: &str) -> Option<Value> {
    let words = match (place, name) {
        ("path", "id" | "name" | "messageId" | "turnId") => {
            return Some(json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}));
        }
        ("query", "cursor") => {
            return Some(json!({"type": "string", "pattern": "^[A-Za-z0-9_-]+$"}));
        }
        ("query", "q") => {
            return Some(json!({"type": "string", "minLength": 1, "maxLength": QUERY_CHARS}));
        }
        ("header", _) => return Some(json!({"type": "string"})),
        ("query", "format") => ["openai", "anthropic"].as_slice(),
        ("query", "mode") => &["chat", "task", "subagent", "daemon"],
        ("query", "order") => &["asc", "desc"],
        ("query", "role") => &["system", "developer", "user", "assistant", "tool"],
        ("query", "status") => &["active", "closed"],
        _ => return None,
    };
    Some(json!({"type": "string", "enum": words}))
}

/// Writes the shapes into every operation of the document.
pub fn describe(document: &mut Value) {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    let items = paths.into_iter().flat_map(Map::values_mut);
    for operation in items
        .filter_map(Value::as_object_mut)
        .flat_map(Map::values_mut)
    {
        describe_parameters(operation);
        if let Some(body) = operation
            .get_mut("requestBody")
            .and_then(Value::as_object_mut)
        {
            body.entry("required").or_insert(json!(true));
        }
        forget_stream_types(operation);
    }
}

fn describe_parameters(operation: &mut Value) {
    let parameters = operation
        .get_mut("parameters")
        .and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        let text = |name: &str| parameter.get(name).and_then(Value::as_str);
        let shape = shape(
            text("in").unwrap_or_default(),
            text("name").unwrap_or_default(),
        );
        if let (Some(shape), Some(parameter)) = (shape, parameter.as_object_mut()) {
            parameter.insert("schema".to_owned(), shape);
        }
    }
}

/// A stream of events is no one string, and its events have no schema: the descriptions tell of them.
fn forget_stream_types(operation: &mut Value) {
    let responses = operation
        .get_mut("responses")
        .and_then(Value::as_object_mut);
    for response in responses.into_iter().flat_map(Map::values_mut) {
        let stream = response.pointer_mut("/content/text~1event-stream");
        if let Some(stream) = stream.and_then(Value::as_object_mut) {
            stream.remove("schema");
        }
    }
}
