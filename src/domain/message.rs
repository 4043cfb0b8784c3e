//! A message: the bytes as they came, and the few things the service reads from them.
//!
//! A message is stored and returned byte for byte, so nothing here is ever serialised back. It is
//! read once, when it is appended, and what later steps need (role, length, calls, digests) is
//! kept beside the bytes. How messages follow one another belongs to `pairing`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::json::{self, JsonFault, Member};
use super::reasoning;
use super::size::Size;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions of the older spelling.
    System,
    /// Instructions of the newer spelling.
    Developer,
    /// The person or program that asks.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

impl Role {
    /// The role of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "system" => Self::System,
            "developer" => Self::Developer,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            _ => return None,
        })
    }

    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    /// Whether its message waits for a model's answer.
    #[must_use]
    pub fn asks(self) -> bool {
        matches!(self, Self::User | Self::Tool)
    }

    /// System and developer messages: never summarised, never counted, always shown first.
    #[must_use]
    pub fn is_instruction(self) -> bool {
        matches!(self, Self::System | Self::Developer)
    }
}

/// A tool call as an assistant message announces it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The provider's id; unique within its message only, since providers reuse ids.
    pub id: String,
    /// The tool's name, where the call says one.
    pub name: Option<String>,
}

/// What a client says of a message beside its content; taken off before the message is stored.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Annotations {
    /// An id of the client's choice, unique in its session.
    pub id: Option<String>,
    /// The provider's `usage` of the call that made the message, bytes as they came.
    pub usage: Option<Box<RawValue>>,
    /// Whether the message broke off.
    pub incomplete: bool,
}

/// A SHA-256 digest.
pub type Digest256 = [u8; 32];

/// A message read and measured, ready to be placed in a session.
#[derive(Debug, Clone)]
pub struct Message {
    /// The chat message: the stored bytes, or what a context shows of an item. Empty: it shows nothing.
    pub body: String,
    /// The item as it came, where it was not a chat message that came.
    pub item: Option<String>,
    /// Who speaks.
    pub role: Role,
    /// Text of content and calls: length in UTF-16 code units, and its token estimate.
    pub size: Size,
    /// Tokens of what a model is sent, so with the reasoning, which `size` leaves out; by whatever
    /// counts them, the estimate unless something better is at hand.
    pub tokens: u64,
    /// The calls of an assistant message; empty for any other.
    pub calls: Vec<Call>,
    /// The call that a tool message answers.
    pub answers: Option<String>,
    /// An assistant message without calls whose content is not empty: it ends a turn.
    pub says_something: bool,
    /// SHA-256 of what came: `item`, else `body`.
    pub body_digest: Digest256,
    /// SHA-256 of the content's text as stored.
    pub content_digest: Digest256,
    /// What the client said beside it.
    pub annotations: Annotations,
}

/// Why a message cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageFault {
    /// The text is not acceptable JSON.
    #[error(transparent)]
    Json(#[from] JsonFault),
    /// The JSON is no chat message.
    #[error("{problem}")]
    Shape {
        /// Where in the message, as a JSON pointer.
        pointer: String,
        /// What is wrong there.
        problem: String,
    },
}

fn shape(pointer: impl Into<String>, problem: impl Into<String>) -> MessageFault {
    MessageFault::Shape {
        pointer: pointer.into(),
        problem: problem.into(),
    }
}

/// The members of a message that the service reads, as slices of its text.
struct View<'a> {
    members: Vec<Member<'a>>,
}

impl<'a> View<'a> {
    const READ: [&'static str; 5] = ["role", "content", "tool_calls", "tool_call_id", "precis"];

    fn of(text: &'a str) -> Result<Self, JsonFault> {
        let members = json::members(text);
        refuse_repeats(&members, &Self::READ)?;
        Ok(Self { members })
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.members
            .iter()
            .find(|member| member.name == name)
            .map(|member| member.value)
    }

    /// As `get`, but a `null` counts as absent.
    fn present(&self, name: &str) -> Option<&'a str> {
        self.get(name).filter(|value| *value != "null")
    }
}

fn refuse_repeats(members: &[Member<'_>], names: &[&str]) -> Result<(), JsonFault> {
    for name in names {
        if members.iter().filter(|member| member.name == *name).count() > 1 {
            return Err(JsonFault::DuplicateName {
                name: (*name).to_owned(),
            });
        }
    }
    Ok(())
}

/// The parts of a message that a JSON Schema can check: names and types, with texts left out.
///
/// # Errors
/// A name that the service reads is given twice.
pub fn shallow_view(text: &str) -> Result<serde_json::Value, JsonFault> {
    let view = View::of(text)?;
    let mut shallow = serde_json::Map::new();
    for member in &view.members {
        let value = match member.name.as_ref() {
            "content" => content_view(member.value),
            "tool_calls" => calls_view(member.value)?,
            "precis" if member.value.starts_with('{') => annotations_view(member.value)?,
            "role" | "tool_call_id" => serde_json::from_str(member.value)?,
            "precis" => json::kind_only(member.value),
            _ => continue,
        };
        shallow.insert(member.name.clone().into_owned(), value);
    }
    Ok(if text.trim_start().starts_with('{') {
        shallow.into()
    } else {
        serde_json::Value::Null
    })
}

/// `usage` stays as it came, also with numbers that a parser has no room for.
fn annotations_view(annotations: &str) -> Result<serde_json::Value, JsonFault> {
    let mut view = serde_json::Map::new();
    for member in json::members(annotations) {
        let value = match member.name.as_ref() {
            "id" | "incomplete" => serde_json::from_str(member.value)?,
            _ => json::kind_only(member.value),
        };
        view.insert(member.name.into_owned(), value);
    }
    Ok(view.into())
}

fn content_view(content: &str) -> serde_json::Value {
    if !content.starts_with('[') {
        return json::kind_only(content);
    }
    let part = |part: &str| {
        if !part.starts_with('{') {
            return json::kind_only(part);
        }
        let kind = json::members(part)
            .into_iter()
            .rev()
            .find(|member| member.name == "type");
        match kind {
            Some(kind) => serde_json::json!({ "type": json::kind_only(kind.value) }),
            None => serde_json::json!({}),
        }
    };
    json::elements(content).into_iter().map(part).collect()
}

fn calls_view(calls: &str) -> Result<serde_json::Value, JsonFault> {
    if !calls.starts_with('[') {
        return Ok(json::kind_only(calls));
    }
    let mut views = Vec::new();
    for call in json::elements(calls) {
        if !call.starts_with('{') {
            views.push(json::kind_only(call));
            continue;
        }
        let members = json::members(call);
        refuse_repeats(&members, &CALL_NAMES)?;
        let mut view = serde_json::Map::new();
        for member in &members {
            let value = match member.name.as_ref() {
                "id" => serde_json::from_str(member.value)?,
                "function" if member.value.starts_with('{') => json::members(member.value)
                    .into_iter()
                    .filter(|member| matches!(member.name.as_ref(), "name" | "arguments"))
                    .map(|member| (member.name.into_owned(), json::kind_only(member.value)))
                    .collect::<serde_json::Map<_, _>>()
                    .into(),
                "function" | "type" => json::kind_only(member.value),
                _ => continue,
            };
            view.insert(member.name.clone().into_owned(), value);
        }
        views.push(view.into());
    }
    Ok(views.into())
}

const CALL_NAMES: [&str; 2] = ["id", "function"];

impl Message {
    /// Reads one message from its text, which must be well-formed JSON that passed [`json::check_text`].
    ///
    /// # Errors
    /// [`MessageFault`] says where and what; nothing of the content is quoted.
    pub fn read(text: &str) -> Result<Self, MessageFault> {
        let view = View::of(text)?;
        if !text.starts_with('{') {
            return Err(shape("", "a message is an object"));
        }
        let role = view
            .get("role")
            .and_then(json::decode_string)
            .and_then(|name| Role::parse(&name))
            .ok_or_else(|| {
                shape(
                    "/role",
                    "`role` is one of system, developer, user, assistant, tool",
                )
            })?;
        let answers = match (role, view.get("tool_call_id").and_then(json::decode_string)) {
            (Role::Tool, Some(id)) => Some(id.into_owned()),
            (Role::Tool, None) => {
                return Err(shape(
                    "/tool_call_id",
                    "a tool message names the call it answers in `tool_call_id`",
                ));
            }
            _ => None,
        };
        let content = view.present("content");
        let raw_calls = view.present("tool_calls");
        let calls = match (role, raw_calls) {
            (Role::Assistant, Some(calls)) => read_calls(calls)?,
            _ => Vec::new(),
        };
        let parts = content.map_or(Ok(Vec::new()), checked_parts)?;
        let content_size = content_size(&parts);
        let calls_size = raw_calls
            .filter(|calls| !json::elements(calls).is_empty())
            .map(Size::of_json)
            .unwrap_or_default();
        let annotations = match view.present("precis") {
            Some(text) => serde_json::from_str::<Annotations>(text)
                .map_err(|error| shape("/precis", error.to_string()))?,
            None => Annotations::default(),
        };
        let body = match view
            .members
            .iter()
            .position(|member| member.name == "precis")
        {
            Some(index) => json::without_member(text, &view.members, index),
            None => text.to_owned(),
        };
        let sent_size = match role {
            Role::Assistant => sent_size(&parts, &view.members),
            _ => content_size,
        };
        Ok(Self {
            role,
            size: content_size + calls_size,
            tokens: (sent_size + calls_size).tokens(),
            says_something: role == Role::Assistant
                && calls.is_empty()
                && content_size != Size::default(),
            calls,
            answers,
            body_digest: Sha256::digest(&body).into(),
            content_digest: Sha256::digest(content.unwrap_or_default()).into(),
            body,
            item: None,
            annotations,
        })
    }

    /// Bytes that it takes in the database: what came, and what a context shows of an item.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        self.body.len() + self.item.as_ref().map_or(0, String::len)
    }

    /// Whether no context shows it.
    #[must_use]
    pub fn shows_nothing(&self) -> bool {
        self.body.is_empty()
    }

    /// Whether it is one of the items that an answer of a model consists of.
    #[must_use]
    pub fn is_part_of_answer(&self) -> bool {
        self.item.is_some() && self.role == Role::Assistant
    }
}

/// What of a message may not change when it is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Who speaks.
    Role,
    /// The call it answers.
    Answers,
    /// The ids of its calls.
    Calls,
    /// Its own id in the session.
    Id,
    /// Whether it is a chat message or an item.
    Form,
}

impl Identity {
    /// Where in a message it stands, as a JSON pointer.
    #[must_use]
    pub fn pointer(self) -> &'static str {
        match self {
            Self::Role => "/role",
            Self::Answers => "/tool_call_id",
            Self::Calls => "/tool_calls",
            Self::Id => "/precis/id",
            Self::Form => "",
        }
    }
}

impl Message {
    /// The first part of its identity that another message does not share.
    #[must_use]
    pub fn changed_identity(&self, other: &Self) -> Option<Identity> {
        let ids = |message: &Self| -> Vec<String> {
            message.calls.iter().map(|call| call.id.clone()).collect()
        };
        if self.role != other.role {
            return Some(Identity::Role);
        }
        if self.answers != other.answers {
            return Some(Identity::Answers);
        }
        (ids(self) != ids(other)).then_some(Identity::Calls)
    }

    /// The text that is left of it when it is erased: role, call ids, function names, the call it answers.
    #[must_use]
    pub fn erased(&self) -> String {
        let mut text = format!(r#"{{"role":"{}""#, self.role.as_str());
        if let Some(call) = &self.answers {
            text.push_str(r#","tool_call_id":"#);
            text.push_str(&json::encode_string(call));
        }
        text.push_str(r#","content":"[erased]""#);
        if !self.calls.is_empty() {
            let call = |call: &Call| {
                format!(
                    r#"{{"id":{},"type":"function","function":{{"name":{},"arguments":"{{}}"}}}}"#,
                    json::encode_string(&call.id),
                    json::encode_string(call.name.as_deref().unwrap_or_default())
                )
            };
            let calls: Vec<_> = self.calls.iter().map(call).collect();
            text.push_str(r#","tool_calls":["#);
            text.push_str(&calls.join(","));
            text.push(']');
        }
        text.push('}');
        text
    }
}

fn read_calls(calls: &str) -> Result<Vec<Call>, MessageFault> {
    if !calls.starts_with('[') {
        return Err(shape("/tool_calls", "`tool_calls` is an array"));
    }
    let mut read: Vec<Call> = Vec::new();
    for (index, call) in json::elements(calls).into_iter().enumerate() {
        let members = json::members(call);
        refuse_repeats(&members, &CALL_NAMES)?;
        let member = |name: &str| members.iter().find(|member| member.name == name);
        let id = member("id")
            .and_then(|id| json::decode_string(id.value))
            .ok_or_else(|| {
                shape(
                    format!("/tool_calls/{index}/id"),
                    "a tool call has an `id`, a string",
                )
            })?
            .into_owned();
        if read.iter().any(|earlier| earlier.id == id) {
            return Err(shape(
                format!("/tool_calls/{index}/id"),
                "two calls of one message have the same `id`; results could not be told apart",
            ));
        }
        let name = ["function", "custom"]
            .into_iter()
            .find_map(member)
            .and_then(|function| {
                json::members(function.value)
                    .into_iter()
                    .rev()
                    .find(|member| member.name == "name")
            })
            .and_then(|name| json::decode_string(name.value).map(Cow::into_owned));
        read.push(Call { id, name });
    }
    Ok(read)
}

/// A piece of a message's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text (also a refusal's).
    Text(Cow<'a, str>),
    /// Anything else, as the part's JSON text.
    Other(&'a str),
}

/// The parts of a `content` value: a string is one part, `null` none.
#[must_use]
pub fn content_parts(content: &str) -> Vec<Part<'_>> {
    if let Some(text) = json::decode_string(content) {
        return vec![Part::Text(text)];
    }
    let part = |part| {
        let members = json::members(part);
        let text = |name: &str| {
            members
                .iter()
                .rev()
                .find(|member| member.name == name)
                .and_then(|member| json::decode_string(member.value))
        };
        match text("text").or_else(|| text("refusal")) {
            Some(text) => Part::Text(text),
            None => Part::Other(part),
        }
    };
    json::elements(content).into_iter().map(part).collect()
}

fn checked_parts(content: &str) -> Result<Vec<Part<'_>>, MessageFault> {
    if !content.starts_with(['"', '[']) {
        return Err(shape(
            "/content",
            "`content` is a string, an array of parts, null or absent",
        ));
    }
    Ok(content_parts(content))
}

fn content_size(parts: &[Part<'_>]) -> Size {
    let size = |part: &Part<'_>| match part {
        Part::Text(text) => Size::of(text),
        Part::Other(_) => Size::other_part(),
    };
    parts.iter().map(size).sum()
}

/// As `content_size`, but with the reasoning as what it is.
fn sent_size(parts: &[Part<'_>], members: &[Member<'_>]) -> Size {
    let size = |part: &Part<'_>| match part {
        Part::Text(text) => Size::of(text),
        Part::Other(part) => {
            reasoning::part_text(part).map_or_else(Size::other_part, |text| Size::of(&text))
        }
    };
    let beside = reasoning::member_texts(members);
    parts.iter().map(size).sum::<Size>() + beside.iter().map(|text| Size::of(text)).sum()
}

/// The content and the calls of a stored body, for a transcript.
#[derive(Debug, Clone, Default)]
pub struct Material<'a> {
    /// What was said.
    pub parts: Vec<Part<'a>>,
    /// Name and arguments of each call, the arguments exactly as the model wrote them.
    pub calls: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// Reads what a stored body says. Whatever is missing or odd reads as empty: it was stored, so it must never fail.
#[must_use]
pub fn read_material(body: &str) -> Material<'_> {
    let members = json::members(body);
    let value = |name: &str| {
        members
            .iter()
            .find(|member| member.name == name)
            .map(|member| member.value)
    };
    let call = |text| {
        let call = json::members(text);
        let function = call
            .iter()
            .find(|member| matches!(member.name.as_ref(), "function" | "custom"));
        let inner = function.map(|function| json::members(function.value));
        let text = |names: &[&str]| {
            inner
                .iter()
                .flatten()
                .find(|member| names.contains(&member.name.as_ref()))
                .map(|member| {
                    json::decode_string(member.value).unwrap_or(Cow::Borrowed(member.value))
                })
                .unwrap_or_default()
        };
        (text(&["name"]), text(&["arguments", "input"]))
    };
    Material {
        parts: value("content").map(content_parts).unwrap_or_default(),
        calls: value("tool_calls")
            .map(|calls| json::elements(calls).into_iter().map(call).collect())
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s20_null_absent_and_empty_content_count_nothing() {
        for text in [
            r#"{"role":"assistant","content":null}"#,
            r#"{"role":"assistant"}"#,
            r#"{"role":"assistant","content":""}"#,
            r#"{"role":"assistant","content":[]}"#,
            r#"{"role":"assistant","content":"","tool_calls":[]}"#,
            r#"{"role":"assistant","content":"","tool_calls":null}"#,
        ] {
            let message = Message::read(text).unwrap();
            assert_eq!(message.size.units, 0, "{text}");
            assert_eq!(message.body, text);
            assert!(!message.says_something, "{text}");
        }
    }

    #[test]
    fn s21_a_picture_counts_a_fixed_allowance() {
        let text = |data: &str| {
            format!(
                r#"{{"role":"user","content":[{{"type":"text","text":"look"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]}}"#
            )
        };
        let small = Message::read(&text("AA")).unwrap();
        let large = Message::read(&text(&"A".repeat(100_000))).unwrap();
        assert_eq!(small.size.units, 4_004);
        assert_eq!(small.size, large.size);
    }

    #[test]
    fn reasoning_counts_for_the_tokens_and_not_for_the_length() {
        let read = |text: &str| Message::read(text).unwrap();
        let plain = read(r#"{"role":"assistant","content":"1234"}"#);
        let member =
            read(r#"{"role":"assistant","reasoning_content":"12345678","content":"1234"}"#);
        assert_eq!((member.size, member.tokens), (plain.size, plain.tokens + 2));
        let part = read(
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"12345678","signature":"c2ln"},{"type":"text","text":"1234"}]}"#,
        );
        assert_eq!((part.size.units, part.tokens), (4_004, 3));
        let user = read(r#"{"role":"user","reasoning_content":"12345678","content":"1234"}"#);
        assert_eq!(user.tokens, 1);
    }

    #[test]
    fn takes_off_the_services_own_member() {
        let text = r#"{"role":"user", "precis": {"id":"m1","usage":{"a":1.0}} ,"content":"x"}"#;
        let message = Message::read(text).unwrap();
        assert_eq!(message.body, r#"{"role":"user",  "content":"x"}"#);
        assert_eq!(message.annotations.id.as_deref(), Some("m1"));
        assert_eq!(message.annotations.usage.unwrap().get(), r#"{"a":1.0}"#);
    }

    #[test]
    fn calls_are_measured_as_written() {
        let calls = r#"[ {"id":"c1", "type":"function","function":{"name":"f","arguments":"{\"p\": \"\u00e4\"}"}} ]"#;
        let text = format!(r#"{{"role":"assistant","content":null,"tool_calls":{calls}}}"#);
        let message = Message::read(&text).unwrap();
        let tight = calls
            .replace("[ {", "[{")
            .replace(", \"type\"", ",\"type\"")
            .replace("} ]", "}]");
        assert_eq!(message.size.units, tight.encode_utf16().count() as u64);
        assert_eq!(message.calls.len(), 1);
    }

    #[test]
    fn an_erased_message_keeps_its_place_and_nothing_else() {
        let text = r#"{"role":"assistant","content":"my secret","x":1,"tool_calls":[{"id":"a\"","type":"function","function":{"name":"f","arguments":"{\"p\":\"secret\"}"}}]}"#;
        let message = Message::read(text).unwrap();
        let erased = Message::read(&message.erased()).unwrap();
        assert_eq!(message.changed_identity(&erased), None);
        assert!(!erased.body.contains("secret"));
        assert_eq!(erased.calls, message.calls);
        assert_eq!(Message::read(&erased.erased()).unwrap().body, erased.body);
        let result = Message::read(r#"{"role":"tool","tool_call_id":"a","content":"x"}"#).unwrap();
        assert_eq!(
            result.erased(),
            r#"{"role":"tool","tool_call_id":"a","content":"[erased]"}"#
        );
        assert_eq!(message.changed_identity(&result), Some(Identity::Role));
    }

    #[test]
    fn names_what_is_wrong() {
        let fault = |text: &str| match Message::read(text) {
            Err(MessageFault::Shape { pointer, .. }) => pointer,
            Err(MessageFault::Json(fault)) => fault.to_string(),
            Ok(_) => "fine".to_owned(),
        };
        assert_eq!(fault(r#"{"role":"robot"}"#), "/role");
        assert_eq!(fault(r#"{"role":"tool","content":""}"#), "/tool_call_id");
        assert_eq!(fault(r#"{"role":"user","content":5}"#), "/content");
        assert_eq!(
            fault(r#"{"role":"assistant","tool_calls":[{"id":"a"},{"id":"a"}]}"#),
            "/tool_calls/1/id"
        );
        assert!(fault(r#"{"role":"user","role":"user"}"#).contains("twice"));
        assert!(
            fault(r#"{"role":"assistant","tool_calls":[{"id":"a","id":"b"}]}"#).contains("twice")
        );
        assert_eq!(fault(r#"{"role":"user","x":1,"x":2}"#), "fine");
    }

    #[test]
    fn s22_arguments_are_never_parsed() {
        for arguments in [r#""{\"path\":\"src/ma""#, "\"\"", "\"[]\"", "\"null\""] {
            let text = format!(
                r#"{{"role":"assistant","tool_calls":[{{"id":"a","function":{{"name":"f","arguments":{arguments}}}}}]}}"#
            );
            let message = Message::read(&text).unwrap();
            let material = read_material(&message.body);
            assert_eq!(
                material.calls.first().unwrap().1,
                json::decode_string(arguments).unwrap()
            );
        }
    }
}
