//! The way out to model servers.
//!
//! Everything that knows the chat-completions protocol lives in this folder: how a request is
//! spelled, which refusals mean "too long" ([`overflow`]), when a failed try is worth another
//! one ([`retry`]) and how long any of it may take ([`ChatModel`]). The rest of the service sees
//! one call that gives a [`Completion`] or a [`ProviderError`] saying what kind of failure it was.
//!
//! One concrete client and not a trait: hosted providers, vLLM, llama.cpp, Ollama and `LiteLLM`
//! all speak this protocol, and tests speak it too, over loopback.
//!
//! What does not belong here: what a session, a turn or a summary is. Whether an empty or a
//! cut-off answer is acceptable is the caller's to decide; this folder reports it.

mod chat;
mod error;
pub mod overflow;
pub mod retry;

#[cfg(test)]
mod tests;

pub use chat::{
    ChatModel, ChatRequest, Completion, Endpoint, OutputCap, OutputCapName, PromptMessage, Timeouts,
};
pub use error::{ProviderError, SetupError, TimeoutKind};
pub use retry::RetryPolicy;
