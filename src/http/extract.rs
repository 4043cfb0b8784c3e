//! What a request brings: its body, parts of its path, its query. Each refusal is a problem document.

use std::future::Future;
use std::pin::Pin;

use actix_web::dev::Payload;
use actix_web::http::header;
use actix_web::{FromRequest, HttpRequest, web};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::intake::{Intake, Taken};
use super::once::Header;
use super::problem::{Code, FieldError, Problem};
use super::schema::{self, Schema};
use crate::domain::json::{self, JsonFault};
use crate::domain::message::shallow_view;
use crate::service::{RequestKey, Service};

/// A request body: JSON text that can be stored as it is, not yet read; and the key it came with. It holds its part of
/// the room for bodies until its request is answered.
#[derive(Debug)]
pub struct Body {
    taken: Taken,
    key: Option<RequestKey>,
}

impl FromRequest for Body {
    type Error = Problem;
    type Future = Pin<Box<dyn Future<Output = Result<Self, Problem>>>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let intake = request.app_data::<web::Data<Intake>>().cloned();
        let announced = text(request, header::CONTENT_LENGTH).and_then(|n| n.parse().ok());
        let checked = check_head(request, announced);
        let header = Header::of(request);
        let (mut payload, request) = (payload.take(), request.clone());
        Box::pin(async move {
            let intake = intake
                .ok_or_else(|| Problem::new(Code::Internal, "The server takes in no bodies."))?;
            intake.check(announced)?;
            checked?;
            let header = header?;
            let taken = intake.read(&mut payload, announced).await;
            let refused = taken.as_ref().err().map(|problem| problem.code);
            if refused == Some(Code::RequestTimeout) {
                count_refusal(&request, "body_timeout");
            } else if refused == Some(Code::Overloaded) {
                count_refusal(&request, "body_bytes_in_flight");
            }
            let taken = taken?;
            Ok(Self {
                key: header.map(|header| header.with_body(&taken.bytes)),
                taken,
            })
        })
    }
}

fn text(request: &HttpRequest, name: header::HeaderName) -> Option<String> {
    let value = request.headers().get(name)?;
    Some(value.to_str().unwrap_or_default().to_ascii_lowercase())
}

fn count_refusal(request: &HttpRequest, limit: &'static str) {
    if let Some(service) = request.app_data::<web::Data<Service>>() {
        service.count_refusal(limit);
    }
}

fn check_head(request: &HttpRequest, announced: Option<usize>) -> Result<(), Problem> {
    let encoding = text(request, header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| encoding != "identity") {
        return Err(Problem::new(
            Code::UnsupportedMediaType,
            "Compressed bodies are not taken; send the JSON as it is.",
        ));
    }
    let Some(kind) = text(request, header::CONTENT_TYPE) else {
        return Ok(());
    };
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_json =
        kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json");
    if is_json || announced == Some(0) {
        return Ok(());
    }
    Err(Problem::new(
        Code::UnsupportedMediaType,
        "The body must be JSON: send `Content-Type: application/json`.",
    ))
}

impl From<JsonFault> for Problem {
    fn from(fault: JsonFault) -> Self {
        Self::new(
            Code::InvalidJson,
            format!("The body cannot be taken: {fault}."),
        )
    }
}

/// An envelope: its members, with `messages` apart and unread.
struct Envelope<'a> {
    members: Map<String, Value>,
    messages: Option<Vec<&'a RawValue>>,
}

impl Body {
    /// The key of a POST that may be made again, if it has one.
    #[must_use]
    pub fn key(&self) -> Option<&RequestKey> {
        self.key.as_ref()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.taken.bytes.iter().all(u8::is_ascii_whitespace)
    }

    /// The text, once it is known to be acceptable JSON.
    ///
    /// # Errors
    /// It is not.
    pub fn text(&self) -> Result<&str, Problem> {
        let text = json::check_text(&self.taken.bytes)?;
        if text.starts_with('\u{feff}') {
            return Err(Problem::new(
                Code::InvalidJson,
                "The body begins with a byte order mark; send it without.",
            ));
        }
        if text.trim().is_empty() {
            return Err(Problem::new(
                Code::InvalidJson,
                "The body is empty; send a JSON object.",
            ));
        }
        // The whole of it, so that a fault anywhere is named with its line and column.
        serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(JsonFault::from)?;
        Ok(text)
    }

    /// Reads a body that must hold to a schema.
    ///
    /// # Errors
    /// It is no JSON, or does not hold to it; every fault is named.
    pub fn read<'a, T: Deserialize<'a>>(&'a self, schema: Schema) -> Result<T, Problem> {
        let text = self.text()?;
        let envelope = read_envelope(text)?;
        let count = envelope.messages.as_ref().map(Vec::len);
        let value = schema::envelope(envelope.members, count);
        let mut faults = schema::faults(schema, &value, "");
        for (index, message) in envelope.messages.iter().flatten().enumerate() {
            let view = shallow_view(message.get())?;
            let prefix = format!("/messages/{index}");
            faults.extend(schema::faults(Schema::Message, &view, &prefix));
        }
        schema::refuse(faults)?;
        serde_json::from_str(text).map_err(|error| JsonFault::from(error).into())
    }

    /// Reads a body that is one message; gives its text.
    ///
    /// # Errors
    /// It is no JSON, or no message; every fault is named.
    pub fn read_message(&self) -> Result<&str, Problem> {
        let text = self.text()?.trim();
        schema::refuse(schema::faults(Schema::Message, &shallow_view(text)?, ""))?;
        Ok(text)
    }

    /// As [`Body::read`], but no body at all stands for an empty object.
    ///
    /// # Errors
    /// As there.
    pub fn read_optional<'a, T: Deserialize<'a> + Default>(
        &'a self,
        schema: Schema,
    ) -> Result<T, Problem> {
        if self.is_blank() {
            return Ok(T::default());
        }
        self.read(schema)
    }
}

fn read_envelope(text: &str) -> Result<Envelope<'_>, Problem> {
    if !text.trim_start().starts_with('{') {
        return Err(
            Problem::new(Code::ValidationFailed, "The body must be a JSON object.")
                .with_errors(vec![FieldError::new("", "must be an object")]),
        );
    }
    let mut envelope = Envelope {
        members: Map::new(),
        messages: None,
    };
    for member in json::members(text) {
        let name = member.name.into_owned();
        let repeated = envelope.members.contains_key(&name)
            || name == "messages" && envelope.messages.is_some();
        if repeated {
            return Err(JsonFault::DuplicateName { name }.into());
        }
        if name == "messages" && member.value.starts_with('[') {
            envelope.messages = Some(serde_json::from_str(member.value).map_err(JsonFault::from)?);
        } else {
            // Kept as it came, so also with numbers that a parser has no room for.
            let value = match name.as_str() {
                "modelThinking" | "tools" => json::kind_only(member.value),
                // Names and kinds are enough for its schema.
                "metadata" | "parameters" => shallow_object(member.value),
                _ => serde_json::from_str(member.value).map_err(JsonFault::from)?,
            };
            envelope.members.insert(name, value);
        }
    }
    Ok(envelope)
}

/// An object with its members' kinds in place of their values.
fn shallow_object(value: &str) -> Value {
    if !value.starts_with('{') {
        return json::kind_only(value);
    }
    json::members(value)
        .into_iter()
        .map(|member| (member.name.into_owned(), json::kind_only(member.value)))
        .collect::<Map<_, _>>()
        .into()
}

/// A part of the path that names something: letters, digits, `_` and `-`, 1 to 128 of them.
///
/// # Errors
/// It is anything else.
pub fn name<'r>(request: &'r HttpRequest, part: &str) -> Result<&'r str, Problem> {
    let value = request.match_info().get(part).unwrap_or_default();
    let is_name = (1..=128).contains(&value.len())
        && value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if is_name {
        return Ok(value);
    }
    Err(Problem::parameter(
        part,
        "must be 1 to 128 letters, digits, `_` or `-`",
    ))
}

/// A part of the path that is a number.
///
/// # Errors
/// It is no whole number.
pub fn number(request: &HttpRequest, part: &str) -> Result<i64, Problem> {
    name(request, part)?
        .parse::<i64>()
        .ok()
        .filter(|number| *number >= 0)
        .ok_or_else(|| Problem::parameter(part, "must be a whole number"))
}

/// The parameters of a query, read by name; what is left over is refused.
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Reads the query of a request.
    ///
    /// # Errors
    /// It is no query, or names a parameter twice.
    pub fn of(request: &HttpRequest) -> Result<Self, Problem> {
        Self::letting(request, &[])
    }

    /// As [`Query::of`], but parameters of these names are let pass, and may be given several times.
    ///
    /// # Errors
    /// As there.
    pub fn letting(request: &HttpRequest, names: &[&str]) -> Result<Self, Problem> {
        let mut pairs = web::Query::<Vec<(String, String)>>::from_query(request.query_string())
            .map_err(|_| Problem::new(Code::InvalidParameter, "The query cannot be read."))?
            .into_inner();
        pairs.retain(|(name, _)| !names.contains(&name.as_str()));
        for (index, (name, _)) in pairs.iter().enumerate() {
            if pairs.iter().take(index).any(|(earlier, _)| earlier == name) {
                return Err(Problem::parameter(&printable(name), "is given twice"));
            }
        }
        Ok(Self { pairs })
    }

    /// Takes a parameter.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let index = self.pairs.iter().position(|(given, _)| given == name)?;
        Some(self.pairs.swap_remove(index).1)
    }

    /// Takes a parameter that one of these words.
    ///
    /// # Errors
    /// It is another word.
    pub fn take_word(
        &mut self,
        name: &str,
        words: &[&'static str],
    ) -> Result<Option<&'static str>, Problem> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let word = words.iter().find(|word| **word == value).copied();
        word.map(Some)
            .ok_or_else(|| Problem::parameter(name, format!("must be one of {}", words.join(", "))))
    }

    /// Takes a whole number within bounds.
    ///
    /// # Errors
    /// It is anything else.
    pub fn take_number(&mut self, name: &str, min: i64, max: i64) -> Result<Option<i64>, Problem> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let number = value.parse().ok().filter(|n| (min..=max).contains(n));
        number.map(Some).ok_or_else(|| {
            Problem::parameter(name, format!("must be a whole number from {min} to {max}"))
        })
    }

    /// Takes `limit`: 1 to 1,000, 100 unless given.
    ///
    /// # Errors
    /// It is out of bounds.
    pub fn take_limit(&mut self) -> Result<usize, Problem> {
        let limit = self.take_number("limit", 1, 1_000)?.unwrap_or(100);
        Ok(usize::try_from(limit).unwrap_or(100))
    }

    /// Takes every parameter whose name begins so; gives what follows it, and the value.
    pub fn take_prefixed(&mut self, prefix: &str) -> Vec<(String, String)> {
        let mut taken = Vec::new();
        self.pairs
            .retain(|(name, value)| match name.strip_prefix(prefix) {
                Some(rest) => {
                    taken.push((rest.to_owned(), value.clone()));
                    false
                }
                None => true,
            });
        taken
    }

    /// Refuses what nobody took.
    ///
    /// # Errors
    /// There is something.
    pub fn finish(self) -> Result<(), Problem> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => Err(Problem::parameter(
                &printable(name),
                "is no parameter of this route",
            )),
        }
    }
}

fn printable(name: &str) -> String {
    name.chars()
        .take(64)
        .filter(char::is_ascii_graphic)
        .collect()
}
