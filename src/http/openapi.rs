//! The OpenAPI document, made from the handlers and the schemas, and what is read off it.

use std::sync::LazyLock;

use actix_web::App;
use actix_web::dev::ResourceDef;
use serde_json::{Value, json};
use utoipa_actix_web::AppExt;
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::problem::Code;
use super::schema::DOCUMENTS;
use super::{shapes, v1};

static TEXT: LazyLock<String> = LazyLock::new(|| {
    let mut text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    text.push('\n');
    text
});

static PATHS: LazyLock<Vec<(ResourceDef, Vec<String>)>> = LazyLock::new(|| {
    let mut paths: Vec<_> = route_table()
        .into_iter()
        .map(|(path, methods)| (ResourceDef::new(path), methods))
        .collect();
    for page in ["/", "/docs", "/docs/", "/docs/errors"] {
        paths.push((ResourceDef::new(page), vec!["GET".to_owned()]));
    }
    paths
});

/// The document as it is committed in `openapi/openapi.json`.
#[must_use]
pub fn openapi_json() -> String {
    TEXT.clone()
}

/// The document as it is served.
pub fn text() -> &'static str {
    &TEXT
}

/// Every path of the document with its methods.
#[must_use]
pub fn route_table() -> Vec<(String, Vec<String>)> {
    let document = document();
    let paths = document.get("paths").and_then(Value::as_object);
    let methods = |item: &Value| {
        let operations = item.as_object().into_iter().flat_map(|item| item.keys());
        operations
            .map(|method| method.to_ascii_uppercase())
            .collect()
    };
    paths
        .into_iter()
        .flatten()
        .map(|(path, item)| (path.clone(), methods(item)))
        .collect()
}

/// The methods that a request's path takes; none if there is no such path.
pub fn methods_of(path: &str) -> &'static [String] {
    PATHS
        .iter()
        .find(|(pattern, _)| pattern.is_match(path))
        .map_or(&[], |(_, methods)| methods)
}

/// Swagger UI, served from the binary.
pub fn swagger_ui() -> SwaggerUi {
    SwaggerUi::new("/docs/{_:.*}").config(
        Config::new(["/openapi.json"])
            .try_it_out_enabled(true)
            .persist_authorization(true)
            .display_request_duration(true)
            .doc_expansion("list")
            .default_models_expand_depth(0),
    )
}

const DESCRIPTION: &str = "A session store that keeps an agent's history short without losing it.\n\n\
    Append chat-completions messages to a session; compact it when it grows; read its context on every turn: \
    instructions, a rolling summary of what was compacted, and the rest verbatim, ready to be sent to a model. \
    Nothing is ever deleted by a compaction.\n\n\
    Errors are RFC 9457 problem documents with a stable `code`; [their list](/docs/errors) says what to do.";

/// Makes the document: operations and answers from the handlers, bodies from the schemas.
fn document() -> Value {
    let (_, api) = App::new()
        .into_utoipa_app()
        .configure(super::describe)
        .split_for_parts();
    let mut document = serde_json::to_value(&api).unwrap_or_default();
    let mut parts = serde_json::Map::new();
    parts.insert("openapi".into(), json!("3.1.0"));
    let info = json!({
        "title": "Precis",
        "version": env!("CARGO_PKG_VERSION"),
        "description": DESCRIPTION,
        "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
    });
    parts.insert("info".into(), info);
    let tags = json!([
        {"name": "Agents", "description": "Named documents that sessions copy their settings from."},
        {"name": "Sessions", "description": "A conversation, its settings and its summary."},
        {"name": "Messages", "description": "The history: every message, byte for byte as it came."},
        {"name": "Context", "description": "What the model should see now."},
        {"name": "Compaction", "description": "Folding old messages into a rolling summary, and the chain of summaries."},
        {"name": "Events", "description": "What happens, as it happens: server-sent events."},
        {"name": "Conversations", "description": "Sessions as OpenAI's clients see them: conversations and their items."},
        {"name": "Keys", "description": "Who may use the API, and for which tenant. Needs the scope `admin`."},
        {"name": "Administration", "description": "Tenants, and what each may use."},
        {"name": "Operations", "description": "Health, and this document."},
    ]);
    parts.insert("tags".into(), tags);
    if let Some(document) = document.as_object_mut() {
        document.extend(parts);
    }
    // These bodies may be left out.
    for path in [
        "/paths/~1sessions/post",
        "/paths/~1sessions~1{id}~1compact/post",
        "/paths/~1sessions~1{id}~1fork/post",
        "/paths/~1sessions~1{id}~1context/post",
        "/paths/~1v1~1conversations/post",
    ] {
        let body = document.pointer_mut(&format!("{path}/requestBody"));
        if let Some(body) = body.and_then(Value::as_object_mut) {
            body.insert("required".into(), json!(false));
        }
    }
    shapes::describe(&mut document);
    if let Some(schemas) = document
        .pointer_mut("/components/schemas")
        .and_then(Value::as_object_mut)
    {
        for (name, text) in DOCUMENTS.into_iter().chain(v1::DOCUMENTS) {
            schemas.insert(name.to_owned(), component(text));
        }
        if let Some(code) = schemas
            .get_mut("Problem")
            .and_then(|problem| problem.pointer_mut("/properties/code"))
            .and_then(Value::as_object_mut)
        {
            let codes = Code::ALL.iter().map(|code| code.as_str()).collect();
            code.insert("enum".into(), codes);
        }
    }
    super::openapi_once::describe(&mut document);
    super::security::describe(&mut document);
    document
}

/// A schema document as a component of the OpenAPI document.
fn component(text: &str) -> Value {
    let text = text
        .replace("\"message.json\"", "\"#/components/schemas/ChatMessage\"")
        .replace(
            "\"item.json\"",
            "\"#/components/schemas/ConversationItemInput\"",
        );
    let mut schema: Value = serde_json::from_str(&text).unwrap_or_default();
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("$schema");
        schema.remove("$id");
    }
    schema
}
