//! The JSON Schemas of request bodies: compiled in, used to validate, and shown in the OpenAPI document.
//!
//! A schema needs a parsed value, and messages are not to be parsed and written again: the envelope
//! is checked with each message opaque, each message through a shallow view.

use std::sync::LazyLock;

use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use serde_json::{Map, Value};

use super::problem::{Code, FieldError, Problem};

/// Faults that one answer names at most.
const MOST_FAULTS: usize = 50;

/// The schema documents, each with the name of its component in the OpenAPI document.
pub const DOCUMENTS: [(&str, &str); 12] = [
    ("AgentDocument", include_str!("../../schemas/agent.json")),
    (
        "CreateSession",
        include_str!("../../schemas/session-create.json"),
    ),
    (
        "PatchSession",
        include_str!("../../schemas/session-patch.json"),
    ),
    (
        "AppendMessages",
        include_str!("../../schemas/messages-append.json"),
    ),
    ("ChatMessage", include_str!("../../schemas/message.json")),
    ("CompactSession", include_str!("../../schemas/compact.json")),
    ("RewindSession", include_str!("../../schemas/rewind.json")),
    ("ForkSession", include_str!("../../schemas/fork.json")),
    ("RunTurn", include_str!("../../schemas/turn.json")),
    (
        "DispatchContext",
        include_str!("../../schemas/dispatch.json"),
    ),
    (
        "PatchTenant",
        include_str!("../../schemas/tenant-patch.json"),
    ),
    ("CreateKey", include_str!("../../schemas/key-create.json")),
];

/// A schema of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schema {
    Agent,
    CreateSession,
    PatchSession,
    AppendMessages,
    Message,
    Compact,
    Rewind,
    Fork,
    Turn,
    Dispatch,
    PatchTenant,
    CreateKey,
}

struct Compiled(Vec<Option<Validator>>);

static COMPILED: LazyLock<Compiled> = LazyLock::new(|| {
    let compile = |(_, text): &(&str, &str)| {
        let mut schema: Value = serde_json::from_str(text).ok()?;
        // Each message is checked through its own view.
        if let Some(messages) = schema
            .pointer_mut("/properties/messages")
            .and_then(Value::as_object_mut)
        {
            messages.remove("items");
        }
        jsonschema::validator_for(&schema).ok()
    };
    Compiled(DOCUMENTS.iter().map(compile).collect())
});

/// Compiles the schemas now rather than at the first request. Says whether all of them are sound.
#[must_use]
pub fn warm_up() -> bool {
    COMPILED.0.iter().all(Option::is_some)
}

/// Every fault of a value, each with its pointer under `prefix`.
#[must_use]
pub fn faults(schema: Schema, value: &Value, prefix: &str) -> Vec<FieldError> {
    let Some(Some(validator)) = COMPILED.0.get(schema as usize) else {
        return vec![FieldError::new(prefix, "the schema is not available")];
    };
    let mut found = Vec::new();
    for error in validator.iter_errors(value).take(MOST_FAULTS) {
        let at = format!("{prefix}{}", error.instance_path());
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                found.extend(unexpected.iter().map(|name| {
                    let name = name.replace('~', "~0").replace('/', "~1");
                    FieldError::new(format!("{at}/{name}"), "unknown member")
                }));
            }
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                found.push(FieldError::new(format!("{at}/{name}"), "is required"));
            }
            ValidationErrorKind::FalseSchema => {
                found.push(FieldError::new(at, "is not taken beside the other members"));
            }
            // Without the value: it may be long, and the client knows it.
            _ => found.push(FieldError::new(at, error.masked().to_string())),
        }
    }
    found
}

/// A problem that names the faults, if there are any.
///
/// # Errors
/// There are.
pub fn refuse(faults: Vec<FieldError>) -> Result<(), Problem> {
    let Some(first) = faults.first() else {
        return Ok(());
    };
    let more = match faults.len() {
        1 => String::new(),
        count => format!(" (and {} more, see `errors`)", count - 1),
    };
    let at = if first.pointer.is_empty() {
        "the body"
    } else {
        &first.pointer
    };
    let detail = format!("{at}: {}{more}", first.message);
    Err(Problem::new(Code::ValidationFailed, detail).with_errors(faults))
}

/// An object whose `messages` are opaque, for checking an envelope: each stands as `null`.
#[must_use]
pub fn envelope(members: Map<String, Value>, messages: Option<usize>) -> Value {
    let mut envelope = members;
    if let Some(count) = messages {
        envelope.insert("messages".into(), vec![Value::Null; count].into());
    }
    envelope.into()
}
