//! What is sent to a model server.
//!
//! Two kinds of request: a prompt that the service wrote itself ([`ChatRequest`]), and a turn
//! ([`TurnRequest`]), whose messages, tools and parameters are somebody else's JSON and go out as
//! the bytes that they are. Either becomes one body, built once; all tries of a call share it.
//!
//! What does not belong here: whether the parts of a turn are well formed or allowed. Whoever
//! takes them in sees to that.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::error::ProviderError;
use super::refusal::malformed;
use crate::domain::json;

/// One message of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PromptMessage {
    /// `system`, `user`, `assistant`, …
    pub role: &'static str,
    /// The text.
    pub content: String,
}

/// A limit on what the model may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputCap {
    /// Which member carries it.
    pub name: OutputCapName,
    /// In the model's tokens.
    pub tokens: u32,
}

/// The member that carries the output cap: newer models refuse the older name, and older servers
/// do not know the newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputCapName {
    /// `max_tokens`
    MaxTokens,
    /// `max_completion_tokens`
    MaxCompletionTokens,
}

impl OutputCapName {
    fn as_str(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }
}

/// A prompt for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatRequest {
    /// The model's name at the server.
    pub model: String,
    /// The prompt, in order.
    pub messages: Vec<PromptMessage>,
    /// Sent under its name; nothing is sent for `None`.
    pub output_cap: Option<OutputCap>,
}

impl ChatRequest {
    pub(super) fn to_json(&self) -> Result<Bytes, ProviderError> {
        #[derive(Serialize)]
        struct Wire<'a> {
            model: &'a str,
            messages: &'a [PromptMessage],
            #[serde(skip_serializing_if = "Option::is_none")]
            max_tokens: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            max_completion_tokens: Option<u32>,
        }
        let cap = |name| {
            self.output_cap
                .filter(|cap| cap.name == name)
                .map(|cap| cap.tokens)
        };
        serde_json::to_vec(&Wire {
            model: &self.model,
            messages: &self.messages,
            max_tokens: cap(OutputCapName::MaxTokens),
            max_completion_tokens: cap(OutputCapName::MaxCompletionTokens),
        })
        .map(Bytes::from)
        // Strings and numbers always serialise; a variant of its own would never be seen.
        .map_err(|_| malformed("the request cannot be written as JSON"))
    }
}

/// A turn's request: what is handed on byte for byte, and the little that is our own.
///
/// `Debug` shows the model, sizes and names, and no content.
#[derive(Clone)]
pub struct TurnRequest {
    /// The model's name at the server.
    pub model: String,
    /// The JSON texts of the messages, joined by commas. Not checked and not changed.
    pub messages: String,
    /// The value of `tools`, if there is one.
    pub tools: Option<Box<RawValue>>,
    /// Members of the request itself, in this order. Those that the other fields stand for
    /// (`model`, `messages`, `tools`, `stream`, `stream_options`) are refused where a turn comes
    /// in; should one arrive here, it is left out, so that no member is ever sent twice.
    pub parameters: Vec<(String, Box<RawValue>)>,
    /// Sent under its name, unless the parameters hold a cap of either name: the caller's own
    /// wins. Nothing is sent for `None`.
    pub max_output: Option<OutputCap>,
    /// Whether the answer is asked for as a stream, with the usage at its end.
    pub stream: bool,
}

impl TurnRequest {
    /// Members that are never taken from the parameters.
    const OWN: [&str; 5] = ["model", "messages", "tools", "stream", "stream_options"];

    /// The whole body. The messages are copied once and not looked at.
    pub(super) fn to_json(&self) -> Bytes {
        let mut body = String::with_capacity(self.expected_length());
        body.push_str("{\"model\":");
        body.push_str(&json::encode_string(&self.model));
        body.push_str(",\"messages\":[");
        body.push_str(&self.messages);
        body.push(']');
        if let Some(tools) = &self.tools {
            push_member(&mut body, "tools", tools.get());
        }
        let handed_on = self
            .parameters
            .iter()
            .filter(|(name, _)| !Self::OWN.contains(&name.as_str()));
        for (name, value) in handed_on {
            push_member(&mut body, name, value.get());
        }
        if let Some(cap) = self.max_output.filter(|_| !self.has_own_cap()) {
            push_member(&mut body, cap.name.as_str(), &cap.tokens.to_string());
        }
        if self.stream {
            push_member(&mut body, "stream", "true");
            push_member(&mut body, "stream_options", "{\"include_usage\":true}");
        }
        body.push('}');
        Bytes::from(body)
    }

    fn has_own_cap(&self) -> bool {
        let names = [OutputCapName::MaxTokens, OutputCapName::MaxCompletionTokens];
        self.parameters
            .iter()
            .any(|(given, _)| names.iter().any(|name| name.as_str() == given))
    }

    /// Bytes, and a little more: a large body should not be moved while it grows.
    fn expected_length(&self) -> usize {
        let tools = self.tools.as_ref().map_or(0, |tools| tools.get().len());
        let parameters: usize = self
            .parameters
            .iter()
            .map(|(name, value)| name.len() + value.get().len() + 16)
            .sum();
        self.model.len() + self.messages.len() + tools + parameters + 256
    }
}

impl fmt::Debug for TurnRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self
            .parameters
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        f.debug_struct("TurnRequest")
            .field("model", &self.model)
            .field("messages_bytes", &self.messages.len())
            .field("has_tools", &self.tools.is_some())
            .field("parameters", &names)
            .field("max_output", &self.max_output)
            .field("stream", &self.stream)
            .finish()
    }
}

fn push_member(body: &mut String, name: &str, value: &str) {
    body.push(',');
    body.push_str(&json::encode_string(name));
    body.push(':');
    body.push_str(value);
}
