//! A streamed answer: from pieces of bytes to the answer of a turn.
//!
//! Pure: bytes go in, deltas and in the end an answer come out, and the same bytes give the same
//! answer however they were cut.
//!
//! How it may end:
//!
//! - *by itself*: a reason to finish was given, or `[DONE]`. The answer is the provider's, also
//!   one that was cut by its length limit, with its tool calls as they came. What goes wrong
//!   afterwards goes wrong with an answer that is already there;
//! - *with an error*: a chunk that is one, an event of the type `error`. An overflow or a rate
//!   limit is that error, whatever came before: there is something to be done about it;
//! - *broken off*: by a lost connection, a time limit, any other error, or the end of the body
//!   before the end of the answer. If there is text, it is kept and marked as incomplete, without
//!   tool calls; if there is none, the cause is the error.
//!
//! What does not belong here: waiting, and whether a call is repeated.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::assembly::Assembly;
use super::chat::ChatModel;
use super::completion::{object, string};
use super::error::ProviderError;
use super::refusal::{error_event, error_in_success, error_member, malformed, overflow_named_by};
use super::sse::{Event, Events};
use super::turn::TurnAnswer;
use crate::domain::json;

/// The reader of one streamed answer.
#[derive(Debug)]
pub struct AnswerStream {
    events: Events,
    message: Assembly,
    /// Bytes of deltas that may still come.
    left: usize,
    /// A chunk with a choice was there.
    begun: bool,
    /// `[DONE]` was there.
    done: bool,
    finish: Option<String>,
    usage: Option<Box<RawValue>>,
    model: Option<String>,
    fault: Option<ProviderError>,
}

/// How a stream was left.
#[derive(Debug)]
pub enum End {
    /// The body is at its end, or the stream said that no more is to come.
    Closed,
    /// Something cut it off.
    Broken(ProviderError),
}

/// An answer, and what broke it off, if anything did.
pub type Ended = (TurnAnswer, Option<ProviderError>);

/// The members of a chunk that are looked at.
#[derive(Deserialize)]
struct Chunk<'a> {
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
    index: Option<&'a RawValue>,
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
    /// What a server sends that streams a whole answer as one chunk.
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    finish_reason: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

impl Default for AnswerStream {
    fn default() -> Self {
        Self::new()
    }
}

impl AnswerStream {
    /// A reader to which nothing has come yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            events: Events::new(ChatModel::MAX_ANSWER_BYTES),
            message: Assembly::default(),
            left: ChatModel::MAX_ANSWER_BYTES,
            begun: false,
            done: false,
            finish: None,
            usage: None,
            model: None,
            fault: None,
        }
    }

    /// Takes the next bytes. Says whether more is wanted.
    pub fn feed(&mut self, bytes: &[u8], on_delta: &mut dyn FnMut(&RawValue)) -> bool {
        match self.events.feed(bytes) {
            Ok(events) => {
                for event in events {
                    self.read_event(&event, on_delta);
                }
            }
            Err(_) => self.fail(ProviderError::TooLarge),
        }
        !self.is_over()
    }

    /// The answer, now that nothing more is read.
    ///
    /// # Errors
    /// There is none: what the stream says went wrong, or what broke it off before anything was said.
    pub fn conclude(
        mut self,
        end: End,
        on_delta: &mut dyn FnMut(&RawValue),
    ) -> Result<Ended, ProviderError> {
        let broken = match end {
            End::Broken(cause) => Some(cause),
            End::Closed => {
                if let Some(event) = self.events.finish() {
                    self.read_event(&event, on_delta);
                }
                None
            }
        };
        if !self.has_ended() {
            let cause = self.fault.take().or(broken);
            let cause = cause.unwrap_or_else(|| self.missing_end());
            return self.break_off(cause);
        }
        if !self.begun {
            return Err(malformed("the stream holds no choice"));
        }
        if self.message.is_empty()
            && let Some(overflow) = self.finish.as_deref().and_then(overflow_named_by)
        {
            return Err(overflow);
        }
        let message = self.message.write();
        Ok((self.into_answer(message, false), None))
    }

    /// Whether the answer ended by itself.
    fn has_ended(&self) -> bool {
        match self.finish.as_deref() {
            Some(reason) => reason != "error",
            None => self.done,
        }
    }

    /// What an answer that has not ended lacks, where nothing else tells.
    fn missing_end(&self) -> ProviderError {
        if self.finish.is_some() {
            malformed("the stream ended with an error that it does not name")
        } else if self.begun {
            ProviderError::Connect
        } else {
            malformed("the stream holds no choice")
        }
    }

    fn break_off(self, cause: ProviderError) -> Result<Ended, ProviderError> {
        let is_final = matches!(
            cause,
            ProviderError::Overflow { .. }
                | ProviderError::RateLimited { .. }
                | ProviderError::TooLarge
        );
        if is_final || !self.message.has_text() {
            return Err(cause);
        }
        let message = self.message.write_texts();
        Ok((self.into_answer(message, true), Some(cause)))
    }

    fn into_answer(self, message: String, incomplete: bool) -> TurnAnswer {
        TurnAnswer {
            message,
            usage: self.usage,
            finish: self.finish,
            model: self.model,
            incomplete,
        }
    }

    fn is_over(&self) -> bool {
        self.done || self.fault.is_some()
    }

    fn fail(&mut self, error: ProviderError) {
        if self.has_ended() {
            // The answer is there, whatever follows.
            self.done = true;
        } else {
            self.fault = Some(error);
        }
    }

    fn read_event(&mut self, event: &Event, on_delta: &mut dyn FnMut(&RawValue)) {
        if self.is_over() {
            return;
        }
        if event.is_error {
            self.fail(error_event(&event.data));
            return;
        }
        if self.read_data(&event.data, on_delta) {
            return;
        }
        // Some servers forget the blank line between events; each line is one then.
        for line in event.data.lines() {
            if !self.is_over() && !self.read_data(line, on_delta) {
                self.fail(malformed("a chunk of the stream is not JSON"));
            }
        }
    }

    /// Whether the text could be read: as a chunk, or as something that needs no reading.
    fn read_data(&mut self, data: &str, on_delta: &mut dyn FnMut(&RawValue)) -> bool {
        let data = data.trim();
        if data == "[DONE]" {
            self.done = true;
            return true;
        }
        if !data.starts_with(['{', '[']) {
            // Words that keep the line open.
            return !data.contains('\n');
        }
        if let Some(error) = error_in_success(data) {
            self.fail(error);
            return true;
        }
        let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(data) else {
            return false;
        };
        self.read_chunk(chunk, on_delta);
        true
    }

    fn read_chunk(&mut self, chunk: Chunk<'_>, on_delta: &mut dyn FnMut(&RawValue)) {
        self.usage = chunk.usage.or(self.usage.take());
        let named = string(chunk.model).filter(|model| !model.is_empty());
        self.model = self.model.take().or(named);
        let choices = chunk.choices.map_or("", RawValue::get);
        let choices: Vec<&RawValue> = serde_json::from_str(choices).unwrap_or_default();
        let is_first = |choice: &Choice<'_>| {
            choice
                .index
                .is_none_or(|index| matches!(index.get(), "0" | "null"))
        };
        let choice = choices
            .into_iter()
            .filter_map(object::<Choice<'_>>)
            .find(is_first);
        if let Some(choice) = choice {
            self.read_choice(&choice, on_delta);
        }
    }

    fn read_choice(&mut self, choice: &Choice<'_>, on_delta: &mut dyn FnMut(&RawValue)) {
        if let Some(error) = choice.error.and_then(error_member) {
            self.fail(error);
            return;
        }
        self.begun = true;
        let is_object = |raw: &&RawValue| raw.get().starts_with('{');
        let delta = choice.delta.filter(is_object);
        if let Some(delta) = delta.or(choice.message.filter(is_object)) {
            let Some(left) = self.left.checked_sub(delta.get().len()) else {
                self.fail(ProviderError::TooLarge);
                return;
            };
            self.left = left;
            self.message.grow(delta.get());
            if says_something(delta.get()) {
                on_delta(delta);
            }
        }
        let finish = string(choice.finish_reason).filter(|finish| !finish.is_empty());
        self.finish = finish.or(self.finish.take());
    }

    /// Bytes of memory that the reading of events holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.events.held()
    }
}

/// Whether a delta adds anything. Those that do not (the role alone, an empty content at the
/// beginning and at the end) are not handed on, so that a call that fails behind one may still be
/// repeated.
fn says_something(delta: &str) -> bool {
    json::members(delta).iter().any(|member| {
        member.name != "role" && !matches!(member.value, "null" | "\"\"" | "[]" | "{}")
    })
}
