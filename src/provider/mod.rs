//! The way out to model servers.
//!
//! Everything that knows the chat-completions protocol lives in this folder: how a request is
//! spelled, which refusals mean "too long" ([`overflow`]), when a failed try is worth another
//! one ([`retry`]) and how long any of it may take ([`Timeouts`]). The rest of the service sees
//! one client ([`ChatModel`]) with two calls: one gives a [`Completion`] of a prompt, the other
//! the [`TurnAnswer`] to a turn, streamed or not; or else a [`ProviderError`] that says what kind of
//! failure it was.
//!
//! One concrete client and not a trait: hosted providers, vLLM, llama.cpp, Ollama and `LiteLLM`
//! all speak this protocol, and tests speak it too, over loopback.
//!
//! What does not belong here: what a session, a turn or a summary is. Whether an empty or a
//! cut-off answer is acceptable is the caller's to decide; this folder reports it.

mod assembly;
mod attempts;
mod body;
mod calls;
mod chat;
mod completion;
mod endpoint;
mod error;
mod grown;
pub mod overflow;
mod refusal;
mod request;
pub mod retry;
pub mod sse;
pub mod stream;
mod turn;

#[cfg(test)]
mod tests;

pub use body::Timeouts;
pub use chat::ChatModel;
pub use completion::Completion;
pub use endpoint::Endpoint;
pub use error::{ProviderError, SetupError, TimeoutKind};
pub use request::{ChatRequest, OutputCap, OutputCapName, PromptMessage, TurnRequest};
pub use retry::RetryPolicy;
pub use turn::{TurnAnswer, into_channel};
