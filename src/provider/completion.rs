//! Reading an answer that came in one piece.
//!
//! Answers are read leniently where servers differ (text as a string or in parts, `null` or
//! missing members, other members of any type) and strictly where nothing sensible could be
//! made of it. `usage` is kept as the bytes that came.
//!
//! What does not belong here: whether an answer is good enough. An empty text, a cut-off one or
//! a refusal is a completion.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::ProviderError;
use super::overflow;
use super::refusal::{error_in_success, error_member, malformed};

/// What the model answered: the first choice of it.
#[derive(Debug, Clone)]
pub struct Completion {
    /// The text, as it came; parts of text joined without anything in between. May be empty.
    pub text: String,
    /// Why the model stopped, as the server spells it.
    pub finish: Option<String>,
    /// There is no text (or only white space), but there is reasoning: the model spent its
    /// output on thought.
    pub reasoning_only: bool,
    /// Why the model would not answer, if it said so in the place for that.
    pub refusal: Option<String>,
    /// Whether it called tools, unasked.
    pub has_tool_calls: bool,
    /// The server's count of tokens, byte for byte.
    pub usage: Option<Box<RawValue>>,
    /// The model that answered, as the server names it.
    pub model: Option<String>,
    /// How many tries it took, from 1.
    pub attempts: u32,
}

/// The members of an answer that are looked at, each left as it came until it is needed: a
/// member of a strange type spoils only itself.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow, default)]
    choices: Option<&'a RawValue>,
    #[serde(default)]
    usage: Option<Box<RawValue>>,
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    finish_reason: Option<&'a RawValue>,
    /// Where `OpenRouter` reports an error of the server behind it.
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Value,
    #[serde(default)]
    reasoning_content: Value,
    #[serde(default)]
    reasoning: Value,
    #[serde(default)]
    refusal: Value,
    #[serde(default)]
    tool_calls: Value,
    #[serde(default)]
    function_call: Value,
}

/// The parts of an answer with a success status that carry it, each as it came.
pub(super) struct Parts<'a> {
    /// An object.
    pub(super) message: &'a RawValue,
    pub(super) finish: Option<String>,
    pub(super) usage: Option<Box<RawValue>>,
    pub(super) model: Option<String>,
}

/// Takes the body of an answer with a success status apart.
pub(super) fn take_apart(bytes: &[u8]) -> Result<Parts<'_>, ProviderError> {
    let text = std::str::from_utf8(bytes).map_err(|_| malformed("the body is not UTF-8"))?;
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Err(malformed("the body is empty"));
    }
    if text.starts_with('<') {
        return Err(malformed("the body is a page, not JSON"));
    }
    if let Some(error) = error_in_success(text) {
        return Err(error);
    }
    let answer: Answer<'_> =
        serde_json::from_str(text).map_err(|_| malformed("the body is not a JSON object"))?;
    let choices: Vec<&RawValue> = answer
        .choices
        .and_then(|raw| serde_json::from_str(raw.get()).ok())
        .ok_or(malformed("there is no list of choices"))?;
    let first = choices
        .first()
        .ok_or(malformed("the list of choices is empty"))?;
    let choice: Choice<'_> = object(first).ok_or(malformed("the choice is not an object"))?;
    if let Some(error) = choice.error.and_then(error_member) {
        return Err(error);
    }
    let message = choice
        .message
        .ok_or(malformed("the choice has no message"))?;
    if !message.get().starts_with('{') {
        return Err(malformed("the message is not an object"));
    }
    Ok(Parts {
        message,
        finish: string(choice.finish_reason),
        usage: answer.usage,
        model: string(answer.model),
    })
}

/// Reads the body of an answer with a success status.
pub(super) fn read_completion(bytes: &[u8]) -> Result<Completion, ProviderError> {
    let parts = take_apart(bytes)?;
    let message: Message =
        object(parts.message).ok_or(malformed("the message is not an object"))?;
    let mut content = Content::default();
    content.read(&message.content)?;
    let reasoned =
        content.has_thought || speaks(&message.reasoning_content) || speaks(&message.reasoning);
    Ok(Completion {
        reasoning_only: content.text.trim().is_empty() && reasoned,
        text: content.text,
        finish: parts.finish,
        refusal: nonblank(&message.refusal).or(content.refusal),
        has_tool_calls: overflow::says_something(&message.tool_calls)
            || overflow::says_something(&message.function_call),
        usage: parts.usage,
        model: parts.model,
        attempts: 1,
    })
}

/// Reads an object; serde alone would take a list for one, member by member.
pub(super) fn object<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Option<T> {
    let text = raw.get();
    text.starts_with('{')
        .then(|| serde_json::from_str(text).ok())
        .flatten()
}

#[derive(Debug, Default)]
struct Content {
    text: String,
    refusal: Option<String>,
    has_thought: bool,
}

impl Content {
    fn read(&mut self, content: &Value) -> Result<(), ProviderError> {
        match content {
            Value::Null => {}
            Value::String(text) => self.text.push_str(text),
            Value::Array(parts) => parts.iter().for_each(|part| self.read_part(part)),
            _ => return Err(malformed("the content is neither text nor a list of parts")),
        }
        Ok(())
    }

    fn read_part(&mut self, part: &Value) {
        if let Value::String(text) = part {
            self.text.push_str(text);
            return;
        }
        let member = |name: &str| part.get(name);
        match member("type").and_then(Value::as_str) {
            Some("text" | "output_text") | None => {
                if let Some(text) = member("text").and_then(Value::as_str) {
                    self.text.push_str(text);
                }
            }
            Some("refusal") => {
                self.refusal = self.refusal.take().or(member("refusal").and_then(nonblank));
            }
            Some("thinking" | "reasoning" | "redacted_thinking") => self.has_thought = true,
            Some(_) => {}
        }
    }
}

fn nonblank(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    (!text.trim().is_empty()).then(|| text.to_owned())
}

/// Whether a member for reasoning holds any.
fn speaks(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(_) | Value::Object(_) => overflow::says_something(value),
        _ => false,
    }
}

pub(super) fn string(raw: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(raw?.get()).ok()
}
