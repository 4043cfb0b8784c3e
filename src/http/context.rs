//! `GET /sessions/{id}/context`: what the model should see now.

use actix_web::body::SizedStream;
use actix_web::http::{StatusCode, header};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, get};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::{Query, name};
use super::problem::{Problem, ProblemDocument};
use super::respond::to_text;
use crate::service::{Caller, ContextMeta, Format, LoadedContext, Rendered, Service, TailReader};

const TAG: &str = "Context";

/// Which summary stands in the context.
#[derive(Debug, Serialize, ToSchema)]
pub struct ContextCompaction {
    /// The active version.
    version: i64,
    /// How many positions it stands for.
    size: i64,
}

impl ContextCompaction {
    /// A version and its size.
    #[must_use]
    pub fn of((version, size): (i64, i64)) -> Self {
        Self { version, size }
    }
}

/// How large the messages are.
#[derive(Debug, Serialize, ToSchema)]
pub struct ContextTokens {
    /// Tokens, as they were counted when the messages were appended.
    estimate: i64,
    /// How they were counted: `estimate` (ASCII bytes / 4 + other UTF-8 bytes / 3) or `tokenizer`.
    by: &'static str,
}

/// What is said of a context; its messages follow as the last member.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Context)]
pub struct ContextHead {
    session_id: String,
    /// The form of the messages.
    #[schema(example = "openai")]
    format: &'static str,
    /// The session's highest `seq` when the context was read.
    last_seq: i64,
    /// The active summary; `null` without one.
    compaction: Option<ContextCompaction>,
    /// Index of the summary among the messages.
    summary_at: Option<usize>,
    /// Ids of the tool calls that still wait for a result.
    open_calls: Vec<String>,
    tokens: ContextTokens,
    /// System blocks; only with `format=anthropic`, where `messages` has none.
    #[serde(skip)]
    #[schema(value_type = Option<Vec<Object>>)]
    #[expect(dead_code, reason = "written as text behind the head")]
    system: (),
    /// What to send to the model, stored messages byte for byte.
    #[serde(skip)]
    #[schema(value_type = Vec<Object>)]
    #[expect(dead_code, reason = "written as text behind the head")]
    messages: (),
}

impl ContextHead {
    fn of(session_id: &str, meta: &ContextMeta) -> Self {
        Self {
            session_id: session_id.to_owned(),
            format: meta.format.as_str(),
            last_seq: meta.last_seq,
            compaction: meta.compaction.map(ContextCompaction::of),
            summary_at: meta.summary_at,
            open_calls: meta.open_calls.clone(),
            tokens: ContextTokens {
                estimate: meta.tokens,
                by: meta.tokens_by,
            },
            system: (),
            messages: (),
        }
    }
}

/// Read the context
///
/// Instructions first, then the summary of what was compacted, then every message that is still verbatim, byte for
/// byte as it came: `messages` can be posted to a model as it is. The plan of pruning is applied as it stands. Reading
/// changes nothing. `ETag` is strong: with
/// `If-None-Match` an unchanged context costs one row. A large context is streamed; if the history is rewritten
/// meanwhile the connection is cut, never completed with mixed content.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("format" = Option<String>, Query, description = "The form of the messages: `openai`, the default, or `anthropic`: `system` blocks and messages as that API takes them, with `cache_control` at the breakpoints.", example = "openai"),
        ("If-None-Match" = Option<String>, Header, description = "Validators that are known already."),
    ),
    responses(
        (status = 200, description = "The context.", body = ContextHead, headers(("ETag" = String, description = "The strong validator."))),
        (status = 304, description = "The context is unchanged."),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "A message has no place in the form that was asked for; `errors` says which and where.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/context")]
pub async fn get_context(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let mut query = Query::of(&request)?;
    let format = query.take_word("format", &["openai", "anthropic"])?;
    let format = format.and_then(Format::parse).unwrap_or_default();
    query.finish()?;
    let asks = request.headers().contains_key(header::IF_NONE_MATCH);
    let known = asks.then_some(|etag: &str| matches_known(&request, etag));
    match service.load_context(caller, id, format, known).await? {
        Err(etag) => Ok(HttpResponse::NotModified()
            .insert_header((header::ETAG, etag))
            .finish()),
        Ok(context) => respond(id, context),
    }
}

/// Whether `If-None-Match` names this validator. Weak comparison, as RFC 9110 asks.
fn matches_known(request: &HttpRequest, etag: &str) -> bool {
    let known = request.headers().get_all(header::IF_NONE_MATCH);
    known
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|tag| tag.trim().trim_start_matches("W/"))
        .any(|tag| tag == "*" || tag == etag)
}

fn respond(id: &str, context: LoadedContext) -> Result<HttpResponse, Problem> {
    let head = ContextHead::of(id, &context.meta);
    let mut response = HttpResponse::build(StatusCode::OK);
    response.insert_header((header::ETAG, context.meta.etag));
    send(response, &head, context.rendered)
}

/// Writes an answer that ends with messages; a large one is streamed.
///
/// # Errors
/// The head cannot be written, which is a mistake of ours.
pub fn send(
    mut response: HttpResponseBuilder,
    head: &impl Serialize,
    rendered: Rendered,
) -> Result<HttpResponse, Problem> {
    response.content_type("application/json");
    let mut start = to_text(head)?;
    // The closing brace makes room for more members.
    start.pop();
    if let Some(system) = &rendered.system {
        for piece in [r#","system":["#, system, "]"] {
            start.push_str(piece);
        }
    }
    start.push_str(r#","messages":["#);
    let Some(rest) = rendered.rest else {
        if rendered.messages.len() <= COPIED {
            start.push_str(&rendered.messages);
            start.push_str("]}");
            return Ok(response.body(start));
        }
        let parts = [start, rendered.messages, "]}".to_owned()].map(Bytes::from);
        let length: usize = parts.iter().map(Bytes::len).sum();
        let parts = stream::iter(parts.map(Ok::<_, Problem>));
        return Ok(response.body(SizedStream::new(length as u64, parts)));
    };
    // The end of the object is written when all messages are.
    let start = Part::Start(Bytes::from(start), Bytes::from(rendered.messages), rest);
    Ok(response.streaming(stream::unfold(start, next_part)))
}

/// Bytes of messages up to which copying them is cheaper than sending them as a part of their own.
const COPIED: usize = 64 << 10;

/// What of a streamed body is to be sent next.
enum Part {
    Start(Bytes, Bytes, TailReader),
    Messages(Bytes, TailReader),
    Pages(TailReader),
    Done,
}

async fn next_part(part: Part) -> Option<(Result<Bytes, Problem>, Part)> {
    let mut reader = match part {
        Part::Done => return None,
        Part::Start(start, messages, reader) => {
            return Some((Ok(start), Part::Messages(messages, reader)));
        }
        Part::Messages(messages, reader) => return Some((Ok(messages), Part::Pages(reader))),
        Part::Pages(reader) => reader,
    };
    loop {
        return match reader.next_behind().await {
            // An error cuts the connection: the client never takes half a context for a whole one.
            Err(error) => Some((Err(error.into()), Part::Done)),
            Ok(None) => Some((Ok(Bytes::from_static(b"]}")), Part::Done)),
            // A page of instructions alone. An empty chunk would end the body.
            Ok(Some(page)) if page.is_empty() => continue,
            Ok(Some(page)) => Some((Ok(Bytes::from(page)), Part::Pages(reader))),
        };
    }
}
