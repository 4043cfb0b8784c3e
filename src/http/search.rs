//! `/sessions/{id}/search`: words in the whole history of a session.

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, get};
use serde::Serialize;
use utoipa::ToSchema;

use super::cursor;
use super::extract::{Query, name};
use super::problem::{Problem, ProblemDocument};
use super::respond::json;
use crate::domain::search::SearchQuery;
use crate::service::{Caller, Hit, SearchRequest, Service};

const TAG: &str = "Messages";

/// A message in which the words were found.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchHit {
    /// The message's id.
    #[schema(example = "msg_019acf0b2a7c7d1e9f00aabbccddeeff")]
    message_id: String,
    /// Its place among all messages of the session.
    #[schema(example = 17)]
    seq: i64,
    /// Its place among those that are no instructions; `null` for instructions.
    position: Option<i64>,
    /// Who speaks.
    #[schema(example = "assistant")]
    role: String,
    /// How it stands in the context: `verbatim`, `summarised` or `elided`.
    #[schema(example = "summarised")]
    state: &'static str,
    /// Some 160 characters of its text around the first place; `…` where it is cut.
    #[schema(example = "…the last ferry leaves at 18:10, so be at the pier by…")]
    snippet: String,
}

impl From<Hit> for SearchHit {
    fn from(hit: Hit) -> Self {
        Self {
            message_id: hit.message_id,
            seq: hit.seq,
            position: hit.position,
            role: hit.role,
            state: hit.state.as_str(),
            snippet: hit.snippet,
        }
    }
}

/// What was found, and how much of the history was looked at.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchResult {
    /// Newest first.
    data: Vec<SearchHit>,
    /// Pass it as `cursor` to go on; `null` on the last page.
    next_cursor: Option<String>,
    /// Everything up to this `seq` is in the index. What lies behind it may not be found yet.
    #[schema(example = 420)]
    indexed_seq: i64,
    /// The session's highest `seq`. If `indexedSeq` is smaller, the index is being brought up to date: ask again.
    #[schema(example = 420)]
    last_seq: i64,
}

/// Search a session's history
///
/// Finds words in everything that was said, thought, refused and called, whatever the summary covers; never in what
/// was erased. `q` is words: each piece between white space is a phrase, all of them must stand in the message (in the
/// same part of a very long one), and no character has a meaning of its own. Case, accents of Latin, Greek and Cyrillic,
/// and full or half width make no difference. Words are found whole; Chinese, Japanese, Korean, Thai, Lao, Khmer and
/// Burmese by any piece of a text. New messages are indexed by the first search that comes after them.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("q" = String, Query, description = "What to look for: at most 32 words or phrases, at most 1,000 characters.", example = "last ferry"),
        ("limit" = Option<i64>, Query, description = "How many at most, 1 to 1,000; 100 unless given.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before."),
    ),
    responses(
        (status = 200, description = "A page of messages that were found.", body = SearchResult),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/search")]
pub async fn search_session(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let (search, scope) = read_search(id, Query::of(&request)?)?;
    let page = service.search(caller, id, search).await?;
    let result = SearchResult {
        data: page.hits.into_iter().map(SearchHit::from).collect(),
        next_cursor: page
            .next
            .map(|seq| cursor::encode(&scope, &seq.to_string())),
        indexed_seq: page.indexed_seq,
        last_seq: page.last_seq,
    };
    json(StatusCode::OK, &result)
}

fn read_search(id: &str, mut query: Query) -> Result<(SearchRequest, String), Problem> {
    let missing = || Problem::parameter("q", "must be given: the words to look for");
    let words = query.take("q").ok_or_else(missing)?;
    let limit = query.take_limit()?;
    let read = SearchQuery::read(&words);
    let read = read.map_err(|fault| Problem::parameter("q", fault.to_string()))?;
    // A cursor is of one list, so of one query; its words need not be in it.
    let scope = format!("search/{id}/{}", digest(&words));
    let before_seq = cursor::take(&mut query, &scope)?.unwrap_or(i64::MAX);
    query.finish()?;
    let request = SearchRequest {
        query: read,
        before_seq,
        limit,
    };
    Ok((request, scope))
}

/// Tells queries apart.
fn digest(words: &str) -> String {
    use base64::Engine;
    use sha2::{Digest, Sha256};
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(Sha256::digest(words))
}
