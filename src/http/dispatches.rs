//! Dispatches: what to send to the model, the record of it, and the statistics that follow from it.

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, get, post};
use serde::Serialize;
use utoipa::ToSchema;

use super::context::{ContextCompaction, send};
use super::cursor;
use super::extract::{Body, name, number};
use super::once;
use super::problem::{Problem, ProblemDocument};
use super::respond::{Page, json};
use super::schema::Schema;
use crate::service::{
    Answered, Caller, DispatchRecord, DispatchRequest, Dispatched, Replayed, Service, Stats,
};

const TAG: &str = "Context";

/// How large a dispatch is, in tokens; those reserved counted in.
#[derive(Debug, Serialize, ToSchema)]
struct DispatchTokens {
    /// Without any edit.
    before: i64,
    /// As it is sent.
    after: i64,
    /// How they were counted: `estimate` or `tokenizer`.
    by: String,
}

/// A model, and whether the context fits it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct JudgedCandidate {
    /// Its name.
    model: String,
    /// Its window, in tokens.
    context_window: i64,
    /// `raw` (as it is stored), `pruned` (with edits made, or that pruning may make), or `no` (too small even then).
    #[schema(value_type = String, example = "pruned")]
    fit: crate::service::Fit,
}

/// What to send to the model, and what is said of it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DispatchBody {
    session_id: String,
    /// The dispatch's number in the session, from 1: `GET …/dispatches/{n}` gives the same bytes again.
    dispatch: i64,
    /// The form of the messages.
    #[schema(example = "openai")]
    format: &'static str,
    /// The model it is for.
    model: Option<String>,
    /// The session's highest `seq` when it was built.
    last_seq: i64,
    /// The active summary; `null` without one.
    compaction: Option<ContextCompaction>,
    /// Index of the summary among the messages, in the chat-completions form.
    summary_at: Option<usize>,
    /// Ids of the tool calls that still wait for a result.
    open_calls: Vec<String>,
    tokens: DispatchTokens,
    /// Whether it fits the window; `null` if none was given.
    fits: Option<bool>,
    /// Of each candidate whether the context fits it.
    candidates: Vec<JudgedCandidate>,
    /// Why it looks as it does, a line each.
    reasons: Vec<String>,
    /// Indices of messages that the next turn will name again: where a provider should keep the prefix. Four at most.
    cache_breakpoints: Vec<usize>,
    /// SHA-256 of the messages as sent (Anthropic: `system`, then `messages`), joined by commas.
    sha256: String,
    /// System blocks; only in Anthropic's form.
    #[serde(skip)]
    #[schema(value_type = Option<Vec<Object>>)]
    #[expect(dead_code, reason = "written as text behind the rest")]
    system: (),
    /// What to send.
    #[serde(skip)]
    #[schema(value_type = Vec<Object>)]
    #[expect(dead_code, reason = "written as text behind the rest")]
    messages: (),
}

/// Something that was done to the history since.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Missing {
    /// `rewound` (everything behind `seq` is gone), `replaced` or `erased`.
    #[schema(example = "erased")]
    kind: String,
    /// Where.
    seq: i64,
    /// The message that was replaced or erased.
    message_id: Option<String>,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    at: crate::storage::Timestamp,
}

/// Whether a dispatch can be shown again.
#[derive(Debug, Serialize, ToSchema)]
struct Replay {
    /// It can, and `messages` has the bytes that were sent.
    possible: bool,
    /// Why not.
    reason: Option<String>,
    /// What was done to the history since; at most 20.
    missing: Vec<Missing>,
}

/// A past dispatch: its record, and its messages if they can be shown again.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReplayBody {
    #[serde(flatten)]
    record: DispatchRecord,
    replay: Replay,
    /// System blocks; only in Anthropic's form.
    #[serde(skip)]
    #[schema(value_type = Option<Vec<Object>>)]
    #[expect(dead_code, reason = "written as text behind the rest")]
    system: (),
    /// The messages as they were sent; absent if they cannot be shown.
    #[serde(skip)]
    #[schema(value_type = Option<Vec<Object>>)]
    #[expect(dead_code, reason = "written as text behind the rest")]
    messages: (),
}

/// Dispatch the context
///
/// What to send to the model now. Unlike reading the context this may prune (if the session's policy lets it): stale
/// tool output is shortened once the context is over its budget, each with a line that says how to get it back. What
/// has been dispatched shortened stays so, byte for byte. Every dispatch is recorded and can be replayed.
#[utoipa::path(
    tag = TAG,
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    request_body(
        content = ref("#/components/schemas/DispatchContext"),
        content_type = "application/json",
        example = json!({"contextWindow": 128_000, "maxOutputTokens": 8_000, "reservedTokens": 3_000})
    ),
    responses(
        (status = 200, description = "What to send. Large messages are streamed, `messages` being the last member.", body = DispatchBody),
        (status = 400, description = "The body is unreadable, the id is none, or the session is closed.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The body does not hold to its schema, or a message has no place in the form that was asked for; `errors` says where.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions/{id}/context")]
pub async fn dispatch_context(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let wanted: DispatchRequest = body.read_optional(Schema::Dispatch)?;
    let key = body.key();
    let work = Box::pin(service.dispatch(caller, id, &wanted, key));
    let (dispatched, repeated) = match service.once_costly(caller, key, work).await? {
        Answered::First(dispatched) => (dispatched, false),
        Answered::Again(kept) => (service.repeat_dispatch(caller, id, &kept).await?, true),
    };
    Ok(once::mark(show(id, dispatched)?, repeated))
}

fn show(id: &str, dispatched: Dispatched) -> Result<HttpResponse, Problem> {
    let Dispatched {
        candidates,
        compaction,
        rendered,
        ..
    } = dispatched;
    let head = DispatchBody {
        session_id: id.to_owned(),
        dispatch: dispatched.n,
        format: dispatched.format.as_str(),
        model: dispatched.model,
        last_seq: dispatched.last_seq,
        compaction: compaction.map(ContextCompaction::of),
        summary_at: dispatched.summary_at,
        open_calls: dispatched.open_calls,
        tokens: DispatchTokens {
            before: dispatched.tokens.before,
            after: dispatched.tokens.after,
            by: dispatched.tokens_by,
        },
        fits: dispatched.fits,
        candidates: candidates
            .into_iter()
            .map(|judged| JudgedCandidate {
                model: judged.candidate.model,
                context_window: judged.candidate.context_window,
                fit: judged.fit,
            })
            .collect(),
        reasons: dispatched.reasons,
        cache_breakpoints: dispatched.breakpoints,
        sha256: dispatched.digest,
        system: (),
        messages: (),
    };
    send(HttpResponse::build(StatusCode::OK), &head, rendered)
}

/// List dispatches
///
/// The records, newest first.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("limit" = Option<i64>, Query, description = "How many at most, 1 to 1,000; 100 unless given.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before."),
    ),
    responses(
        (status = 200, description = "A page of records.", body = Page<DispatchRecord>),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/dispatches")]
pub async fn list_dispatches(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let scope = format!("dispatches/{id}");
    let (before, limit) = cursor::page(&request, &scope)?;
    let before = before.unwrap_or(i64::MAX);
    let (rows, more) = service.list_dispatches(caller, id, before, limit).await?;
    let oldest = rows.last().filter(|_| more);
    let next_cursor = oldest.map(|oldest| cursor::encode(&scope, &oldest.n.to_string()));
    let data = rows
        .iter()
        .map(DispatchRecord::of)
        .collect::<Result<_, _>>()?;
    json(StatusCode::OK, &Page { data, next_cursor })
}

/// Replay a dispatch
///
/// The record, and the messages byte for byte as they were sent. If the history was rewritten since, `replay` says what
/// is missing and there are no messages.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("n" = i64, Path, description = "The dispatch's number.", example = 1, minimum = 1),
    ),
    responses(
        (status = 200, description = "The record.", body = ReplayBody),
        (status = 400, description = "A part of the path is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session or dispatch.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/dispatches/{n}")]
pub async fn get_dispatch(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let Replayed { record, outcome } = service.replay(caller, id, number(&request, "n")?).await?;
    let body = |possible, reason, missing| {
        Ok::<_, Problem>(ReplayBody {
            record: DispatchRecord::of(&record)?,
            replay: Replay {
                possible,
                reason,
                missing,
            },
            system: (),
            messages: (),
        })
    };
    match outcome {
        Ok(rendered) => {
            let head = body(true, None, Vec::new())?;
            send(HttpResponse::build(StatusCode::OK), &head, rendered)
        }
        Err((why, rewrites)) => {
            let missing = rewrites.into_iter().map(|row| Missing {
                kind: row.kind,
                seq: row.seq,
                message_id: row.message_id,
                at: row.created_at,
            });
            json(StatusCode::OK, &body(false, Some(why), missing.collect())?)
        }
    }
}

/// Read statistics
///
/// Sizes, what pruning saved, how stable the prefix was that a provider's prompt cache could know, and how often
/// something shortened was asked for again.
#[utoipa::path(
    tag = "Sessions",
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    responses(
        (status = 200, description = "The session in numbers.", body = Stats),
        (status = 400, description = "The id is none.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/stats")]
pub async fn get_stats(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    json(StatusCode::OK, &service.stats(caller, id).await?)
}
