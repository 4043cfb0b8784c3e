//! The answer to a turn, streamed or in one piece, as one message.
//!
//! A server that was asked for a stream may answer with one JSON text, and the other way round;
//! which of the two it is shows in its first character, and is believed more than the header.
//!
//! What does not belong here: sending, and what is done with the message.

use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::body::Body;
use super::completion::take_apart;
use super::error::ProviderError;
use super::refusal::{malformed, overflow_named_by};
use super::stream::{AnswerStream, End, Ended};
use crate::domain::json::{self, Member};

/// The model's answer in a turn.
///
/// `Debug` shows neither the message nor the usage.
#[derive(Clone)]
pub struct TurnAnswer {
    /// The assistant message, the JSON text of one object. From an answer in one piece: the bytes
    /// that came, but for a `role` put in front if there was none. From a stream: what its
    /// deltas add up to.
    pub message: String,
    /// The server's count of tokens, byte for byte.
    pub usage: Option<Box<RawValue>>,
    /// Why the model stopped, as the server spells it. `length` is an end like any other.
    pub finish: Option<String>,
    /// The model that answered, as the server names it.
    pub model: Option<String>,
    /// The stream broke off: the message holds the texts that came until then, and no tool calls.
    pub incomplete: bool,
}

impl std::fmt::Debug for TurnAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TurnAnswer")
            .field("message_bytes", &self.message.len())
            .field("finish", &self.finish)
            .field("model", &self.model)
            .field("incomplete", &self.incomplete)
            .finish_non_exhaustive()
    }
}

/// A receiver of deltas that puts them into a bounded channel.
///
/// Never waits. If the channel is full or its reader has gone, that reader gets nothing more and,
/// after what is in the channel, sees its end: what it got is the beginning of the answer without
/// gaps. The call goes on.
pub fn into_channel<T: From<Box<RawValue>> + Send>(
    sender: mpsc::Sender<T>,
) -> impl FnMut(&RawValue) + Send + use<T> {
    let mut sender = Some(sender);
    move |delta| {
        let sent = sender
            .as_ref()
            .is_some_and(|sender| sender.try_send(delta.to_owned().into()).is_ok());
        if !sent {
            sender = None;
        }
    }
}

/// How long to wait for the end of a body after the end of the answer in it. A connection whose
/// body was read to its end serves the next call.
const FAREWELL: Duration = Duration::from_millis(100);

/// Reads the answer from a body with a success status.
pub(super) async fn read_answer(
    body: &mut Body,
    on_delta: &mut (dyn FnMut(&RawValue) + Send),
) -> Result<Ended, ProviderError> {
    let mut head = Vec::new();
    loop {
        match kind(&head) {
            Some(Kind::Whole) => {
                body.read_rest(&mut head).await?;
                let answer = read_whole(&head)?;
                if let Ok(message) = serde_json::from_str(&answer.message) {
                    on_delta(message);
                }
                return Ok((answer, None));
            }
            Some(Kind::Stream) => return read_stream(body, &head, on_delta).await,
            None => {}
        }
        drop_blank(&mut head);
        match body.next().await? {
            Some(piece) => head.extend_from_slice(&piece),
            None => return Err(malformed("the body is empty")),
        }
    }
}

enum Kind {
    Whole,
    Stream,
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What begins like this, if that can be told already.
fn kind(head: &[u8]) -> Option<Kind> {
    if head.len() < BYTE_ORDER_MARK.len() && BYTE_ORDER_MARK.starts_with(head) {
        return None;
    }
    let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    Some(match text.trim_ascii_start().first()? {
        b'{' | b'[' | b'<' => Kind::Whole,
        _ => Kind::Stream,
    })
}

/// Drops white space that only keeps the line open; there may be a lot of it.
fn drop_blank(head: &mut Vec<u8>) {
    let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    if text.trim_ascii_start().is_empty() {
        // The mark has done its work, too.
        head.clear();
    }
}

async fn read_stream(
    body: &mut Body,
    head: &[u8],
    on_delta: &mut (dyn FnMut(&RawValue) + Send),
) -> Result<Ended, ProviderError> {
    body.expect_stream();
    let mut stream = AnswerStream::new();
    let mut wanted = stream.feed(head, on_delta);
    while wanted {
        match body.next().await {
            Ok(Some(piece)) => wanted = stream.feed(&piece, on_delta),
            Ok(None) => return stream.conclude(End::Closed, on_delta),
            Err(cause) => return stream.conclude(End::Broken(cause), on_delta),
        }
    }
    let ended = stream.conclude(End::Closed, on_delta);
    if ended.is_ok() {
        // A kindness to the next call; an error here is nothing to this one.
        let rest = async { while let Ok(Some(_)) = body.next().await {} };
        drop(timeout(FAREWELL, rest).await);
    }
    ended
}

/// Reads an answer that came in one piece.
fn read_whole(bytes: &[u8]) -> Result<TurnAnswer, ProviderError> {
    let parts = take_apart(bytes)?;
    let message = with_role(parts.message.get());
    if let Some(overflow) = parts.finish.as_deref().and_then(overflow_named_by)
        && says_nothing(&message)
    {
        return Err(overflow);
    }
    Ok(TurnAnswer {
        message,
        usage: parts.usage,
        finish: parts.finish,
        model: parts.model,
        incomplete: false,
    })
}

/// The message with a role: put in front, if there is none.
fn with_role(message: &str) -> String {
    const ROLE: &str = "\"role\":\"assistant\"";
    let members = json::members(message);
    let role = members.iter().position(|member| member.name == "role");
    let text = match role {
        Some(at) if members.get(at).is_some_and(is_null) => {
            json::without_member(message, &members, at)
        }
        Some(_) => return message.to_owned(),
        None => message.to_owned(),
    };
    let inner = text.strip_prefix('{').unwrap_or(&text);
    let comma = if inner.trim_start().starts_with('}') {
        ""
    } else {
        ","
    };
    format!("{{{ROLE}{comma}{inner}")
}

fn is_null(member: &Member<'_>) -> bool {
    member.value == "null"
}

/// Whether a message holds nothing but its role.
fn says_nothing(message: &str) -> bool {
    json::members(message).iter().all(|member| {
        member.name == "role" || matches!(member.value, "null" | "\"\"" | "[]" | "{}")
    })
}
