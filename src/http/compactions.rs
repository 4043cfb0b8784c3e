//! `/sessions/{id}/compact` and the chain of compactions.

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, get, post};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::cursor;
use super::extract::{Body, name, number};
use super::once;
use super::problem::{Problem, ProblemDocument};
use super::respond::{Page, json, raw, text, to_text};
use super::schema::Schema;
use super::sessions::SessionBody;
use crate::domain::plan::Reason;
use crate::service::{Answered, Caller, CompactOutcome, CompactRequest, Service, compaction_id};
use crate::storage::CompactionRow;

const TAG: &str = "Compaction";

/// A version of the summary, and how it came to be.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Compaction)]
pub struct CompactionBody {
    #[schema(example = "comp_019acf0b2a7c7d1e9f00aabbccddeeff")]
    id: String,
    /// 1, 2, … in the session.
    #[schema(example = 1)]
    version: i64,
    /// The version it built on; 0 for the first.
    based_on: i64,
    /// First position it folded in.
    from: i64,
    /// First position it did not fold in.
    to: i64,
    /// The summary; it stands for all positions before `to`.
    summary: Option<String>,
    /// SHA-256 of the digest of the version it built on and of the SHA-256 of each message of the batch, in hexadecimal.
    digest: String,
    /// Percentage that was asked for.
    compact_count: Option<i64>,
    /// Budget that was asked for instead.
    keep_tokens: Option<i64>,
    keep_recent_turns: i64,
    /// `turn` or `step`.
    #[schema(example = "turn")]
    boundary: String,
    /// What this run was told beside the prompt.
    instructions: Option<String>,
    /// `manual`, `auto` or `overflow`.
    #[schema(example = "manual")]
    trigger: String,
    /// `llm` or `extractive`.
    #[schema(example = "extractive")]
    method: String,
    /// The model that wrote the summary.
    model: Option<String>,
    /// The provider's `usage`, as it came.
    #[schema(value_type = Option<Object>)]
    usage: Option<Box<RawValue>>,
    /// Calls whose results were folded into it.
    parts: i64,
    /// Messages that were too large for any call and were shown shortened.
    shortened: i64,
    /// UTF-16 code units of the batch.
    batch_length: i64,
    /// UTF-16 code units of the summary.
    summary_length: i64,
    /// Estimated tokens of the summary.
    summary_tokens: i64,
    /// Why the context was still over the trigger of `autoCompact` behind it, if it was.
    note: Option<String>,
    duration_ms: i64,
    #[schema(example = "2026-11-29T21:21:28.000120Z")]
    created_at: String,
}

impl CompactionBody {
    /// A record as it is told.
    ///
    /// # Errors
    /// A stored part is not readable.
    pub fn of(row: CompactionRow) -> Result<Self, Problem> {
        use std::fmt::Write;
        let digest = row.digest.iter().fold(String::new(), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        Ok(Self {
            id: compaction_id(row.id),
            version: row.version,
            based_on: row.based_on,
            from: row.from_position,
            to: row.to_position,
            instructions: row.instructions(),
            model: row.model(),
            usage: raw(row.usage.as_deref())?,
            summary: row.summary,
            digest,
            compact_count: row.compact_count,
            keep_tokens: row.keep_tokens,
            keep_recent_turns: row.keep_recent_turns,
            boundary: row.boundary,
            trigger: row.cause,
            method: row.method,
            parts: row.parts,
            shortened: row.shortened,
            batch_length: row.batch_length,
            summary_length: row.summary_length,
            summary_tokens: row.summary_tokens,
            note: row.note,
            duration_ms: row.duration_ms,
            created_at: row.created_at.to_string(),
        })
    }
}

/// The plan in numbers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CompactionPlan)]
pub struct PlanBody {
    /// The pointer before: first position of the batch.
    from: i64,
    /// The cut: first position behind the batch; equal to `from` if there is nothing to do.
    to: i64,
    /// Messages of the batch.
    count: i64,
    /// UTF-16 code units of the batch.
    batch_length: i64,
    /// UTF-16 code units of the summary before.
    summary_length: i64,
    /// UTF-16 code units of the tail before.
    tail_length: i64,
}

/// What a compaction did.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CompactResult)]
pub struct CompactBody {
    session_id: String,
    /// Messages that were folded in (with `dryRun`: that would be).
    compacted_count: i64,
    /// `compactSize` now (with `dryRun`: what it would be).
    new_size: i64,
    /// There was nothing to do.
    already_up_to_date: bool,
    /// Why: `up_to_date`, `open_turn`, `protected`, `empty` or `within_budget`.
    reason: Option<&'static str>,
    /// Nothing was to be changed.
    dry_run: bool,
    /// What `keepTokens` was measured by: `usage`, `tokenizer` or `estimate`.
    tokens_by: Option<&'static str>,
    /// What was planned.
    plan: PlanBody,
    /// The record, if one was made.
    compaction: Option<CompactionBody>,
    /// The whole session as it stands now.
    session: SessionBody,
}

impl CompactBody {
    fn of(outcome: CompactOutcome) -> Result<Self, Problem> {
        let planned = outcome.planned;
        let count = planned.to - planned.from;
        Ok(Self {
            session_id: outcome.session.id.clone(),
            compacted_count: count,
            new_size: planned.to,
            already_up_to_date: outcome.reason.is_some(),
            reason: outcome.reason.map(Reason::as_str),
            dry_run: outcome.dry_run,
            tokens_by: planned.tokens_by,
            plan: PlanBody {
                from: planned.from,
                to: planned.to,
                count,
                batch_length: planned.batch_length,
                summary_length: planned.summary_length,
                tail_length: planned.tail_length,
            },
            compaction: outcome.compaction.map(CompactionBody::of).transpose()?,
            session: SessionBody::of(outcome.session)?,
        })
    }
}

/// Compact a session
///
/// Folds the oldest part of what is still verbatim into the rolling summary: a percentage of summary and tail, rounded
/// up to the end of a turn. The newest turns stay, a tool call is never parted from its results, and no message is
/// deleted. Where there is nothing to do the answer is 200 with a `reason`. With `dryRun` nothing changes and no model
/// is called.
#[utoipa::path(
    tag = TAG,
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    request_body(
        content = ref("#/components/schemas/CompactSession"),
        content_type = "application/json",
        example = json!({"compactCount": 50})
    ),
    responses(
        (status = 200, description = "Compacted, or nothing to do.", body = CompactBody),
        (status = 400, description = "The body is unreadable, the id is none, or the session is closed.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "A compaction is running (`COMPACTION_IN_PROGRESS`), or the session changed meanwhile (`COMPACTION_CONFLICT`). `Retry-After` says when to come back.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body or a message is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The body does not hold to its schema, or the summary would not be smaller.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 502, description = "The summarizer failed; the session is unchanged.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time, the summarizer is rate limited, or the server is shutting down. `Retry-After` says when to come back.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions/{id}/compact")]
pub async fn compact_session(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let mut compact: CompactRequest = body.read_optional(Schema::Compact)?;
    let key = body.key();
    compact.once = key.map(|key| (key.clone(), show as fn(CompactOutcome) -> Option<String>));
    let work = Box::pin(service.compact(caller, id, compact));
    match service.once_costly(caller, key, work).await? {
        Answered::First(outcome) => json(StatusCode::OK, &CompactBody::of(outcome)?),
        Answered::Again(kept) => Ok(once::again(text(StatusCode::OK, kept.answer))),
    }
}

/// The answer as it is kept.
fn show(outcome: CompactOutcome) -> Option<String> {
    to_text(&CompactBody::of(outcome).ok()?).ok()
}

/// List compactions
///
/// The chain, oldest first.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("limit" = Option<i64>, Query, description = "How many at most, 1 to 1,000; 100 unless given.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before."),
    ),
    responses(
        (status = 200, description = "A page of the chain.", body = Page<CompactionBody>),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/compactions")]
pub async fn list_compactions(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let scope = format!("compactions/{id}");
    let (after, limit) = cursor::page(&request, &scope)?;
    let after = after.unwrap_or(0);
    let (rows, more) = service.list_compactions(caller, id, after, limit).await?;
    let last = rows.last().filter(|_| more);
    let next_cursor = last.map(|last| cursor::encode(&scope, &last.version.to_string()));
    let data = rows.into_iter().map(CompactionBody::of);
    let data = data.collect::<Result<_, _>>()?;
    json(StatusCode::OK, &Page { data, next_cursor })
}

/// Read a compaction
///
/// One version of the chain, with its summary.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("version" = i64, Path, description = "The version.", example = 1, minimum = 1),
    ),
    responses(
        (status = 200, description = "The record.", body = CompactionBody),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session or version.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/compactions/{version}")]
pub async fn get_compaction(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let version = number(&request, "version")?;
    let row = service.load_compaction(caller, id, version).await?;
    json(StatusCode::OK, &CompactionBody::of(row)?)
}
