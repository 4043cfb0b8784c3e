//! Turns: running the model, reading what came of it, stopping it.

use std::convert::Infallible;

use actix_web::http::StatusCode;
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, get, post};
use bytes::Bytes;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::timeout;
use utoipa::ToSchema;
use uuid::Uuid;

use super::compactions::CompactionBody;
use super::cursor;
use super::events::{KEEP_ALIVE, event_stream, one_line, write_frame};
use super::extract::{Body, name};
use super::finish::{log, request_id};
use super::messages::{render as render_message, render_all};
use super::once::{self, Unread};
use super::problem::{Problem, ProblemDocument};
use super::respond::{Page, json, raw, text, to_text, with_last_member};
use super::schema::Schema;
use crate::domain::event::MESSAGE_DELTA;
use crate::domain::ids::turn_id;
use crate::service::{
    Answered, Caller, ListedMessage, Progress, RequestKey, Running, Service, ServiceError,
    Template, Turn, TurnAgain, TurnRequest,
};
use crate::storage::{Kept, TurnRow};

const TAG: &str = "Turns";

/// Why a turn failed.
#[derive(Debug, Serialize, ToSchema)]
struct TurnError {
    /// The error's code.
    #[schema(example = "MODEL_FAILED")]
    code: String,
    /// What happened, and what to do.
    detail: String,
}

/// A turn without its messages.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TurnRecord)]
pub struct TurnRecord {
    /// Its id.
    #[schema(example = "turn_019acf0b2a7c7d1e9f00aabbccddeeff")]
    id: String,
    session_id: String,
    /// `in_progress`, `completed`, `requires_tool_results` or `failed`.
    #[schema(example = "completed")]
    status: String,
    /// The model that was asked.
    model: Option<String>,
    /// Tool calls that wait for results: run them, and send a turn with those.
    open_calls: Vec<String>,
    /// What the provider counted, as it came.
    #[schema(value_type = Option<Object>)]
    usage: Option<Box<RawValue>>,
    /// Why the model stopped, as its server spells it.
    finish_reason: Option<String>,
    /// The answer broke off; what had come of it is stored.
    incomplete: bool,
    /// Number of the dispatch whose answer it is: `GET …/dispatches/{n}` shows what was sent.
    dispatch: Option<i64>,
    /// Version of the compaction that was made on the way.
    compaction_version: Option<i64>,
    /// Why it failed.
    error: Option<TurnError>,
    #[schema(value_type = String, format = DateTime)]
    created_at: crate::storage::Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<crate::storage::Timestamp>,
}

impl TurnRecord {
    fn of(session: &str, row: &TurnRow) -> Result<Self, Problem> {
        let open = row.open_calls.as_deref().map(serde_json::from_str);
        Ok(Self {
            id: turn_id(row.id),
            session_id: session.to_owned(),
            status: row.status.clone(),
            model: row.model(),
            open_calls: open.transpose().ok().flatten().unwrap_or_default(),
            usage: raw(row.usage.as_deref())?,
            finish_reason: row.finish(),
            incomplete: row.incomplete,
            dispatch: row.dispatch,
            compaction_version: row.compaction,
            error: row.error_code.clone().map(|code| TurnError {
                code,
                detail: row.error_detail().unwrap_or_default(),
            }),
            created_at: row.created_at,
            ended_at: row.ended_at,
        })
    }
}

/// A turn.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Turn)]
pub struct TurnBody {
    #[serde(flatten)]
    record: TurnRecord,
    /// The compaction that was made on the way; `null` without one.
    compaction: Option<CompactionBody>,
    /// The messages that it added, the model's last.
    #[serde(skip)]
    #[schema(value_type = Vec<super::messages::MessageBody>)]
    #[expect(dead_code, reason = "written as text behind the rest")]
    messages: (),
}

fn head(session: &str, turn: &Turn) -> Result<TurnBody, Problem> {
    Ok(TurnBody {
        record: TurnRecord::of(session, &turn.row)?,
        compaction: turn
            .compaction
            .clone()
            .map(CompactionBody::of)
            .transpose()?,
        messages: (),
    })
}

fn render(session: &str, turn: &Turn) -> Result<String, Problem> {
    with_last_member(
        &head(session, turn)?,
        "messages",
        &render_all(&turn.messages)?,
    )
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TurnRequestBody<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(default)]
    model: Option<String>,
    #[serde(borrow, default)]
    tools: Option<&'a RawValue>,
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
    #[serde(default)]
    stream: bool,
    #[serde(default, deserialize_with = "crate::service::whole")]
    context_window: Option<i64>,
    #[serde(default, deserialize_with = "crate::service::whole")]
    max_output_tokens: Option<i64>,
}

/// Run a turn
///
/// Appends the new messages, builds the context, asks the model, and stores its answer. The service runs no tools: on
/// `requires_tool_results` run the `openCalls` and send a turn with the results; while calls are open the model is not
/// asked. One turn runs at a time in a session. A client that goes away does not stop it. If the provider says that the
/// context is too long, it is compacted and sent once more.
///
/// With `stream: true` the answer is server-sent events: `turn.started` (the turn), `message.delta` (a piece as the
/// provider sent it, in `delta`), `turn.restarted` (what came so far does not count: the context had to be made
/// smaller), then `turn.completed` (the turn) or `turn.failed` (a problem document).
#[utoipa::path(
    tag = TAG,
    params(("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),),
    request_body(
        content = ref("#/components/schemas/RunTurn"),
        content_type = "application/json",
        example = json!({"messages": [{"role": "user", "content": "What grows in shade?"}], "parameters": {"temperature": 0.2}})
    ),
    responses(
        (status = 200, description = "The turn; with `stream: true` its events.", content((TurnBody = "application/json"), (String = "text/event-stream"))),
        (status = 400, description = "The body is unreadable, the id is none, or the session is closed.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 409, description = "A turn runs already (`TURN_IN_PROGRESS`), it was stopped (`TURN_CANCELLED`), or another message has the id (`IDEMPOTENCY_CONFLICT`).", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 413, description = "The body or a message is too large.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 415, description = "The body is not JSON.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 422, description = "The body does not hold to its schema, a tool result answers no open call, there is nothing to answer, or the context does not fit the model (`CONTEXT_OVERFLOW`).", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 502, description = "The model gave no usable answer; the new messages are stored.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "No model is configured, it limits the rate of requests, or the database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 504, description = "The model took too long; the new messages are stored.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions/{id}/turns")]
pub async fn run_turn(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Body,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let read: TurnRequestBody<'_> = body.read(Schema::Turn)?;
    let stream = read.stream;
    let parameters = read.parameters.map_or("", RawValue::get);
    let turn = TurnRequest {
        messages: read.messages,
        model: read.model,
        tools: read.tools,
        parameters: members(parameters)?,
        stream,
        context_window: read.context_window,
        max_output_tokens: read.max_output_tokens,
    };
    let keeper = Keeper {
        service: service.clone(),
        caller,
        key: body.key().cloned(),
    };
    let work = service.begin_turn(caller, id, turn, body.key());
    let running = match service.once(caller, body.key(), work).await? {
        Answered::First(running) => running,
        Answered::Again(kept) => return keeper.repeat(id, &kept, stream).await,
    };
    if stream {
        keeper.keep(id, &running.begun).await;
        let answer = Streamed::new(id, request_id(&request), request.path(), running, keeper)?;
        return Ok(event_stream(stream::unfold(answer, Streamed::next)));
    }
    if running.begun.row.ended_at.is_some() {
        keeper.keep(id, &running.begun).await;
        return Ok(text(StatusCode::OK, render(id, &running.begun)?));
    }
    let turn = ended(running.end.await)?;
    keeper.keep(id, &turn).await;
    Ok(text(StatusCode::OK, render(id, &turn)?))
}

/// The members of an object, in their order.
fn members(object: &str) -> Result<Vec<(String, &RawValue)>, Problem> {
    crate::domain::json::members(object)
        .into_iter()
        .map(|member| {
            let value =
                serde_json::from_str(member.value).map_err(crate::domain::json::JsonFault::from)?;
            Ok((member.name.into_owned(), value))
        })
        .collect()
}

/// A task that ends without a word had a fault.
fn ended(
    end: Result<Result<Turn, ServiceError>, tokio::sync::oneshot::error::RecvError>,
) -> Result<Turn, ServiceError> {
    end.unwrap_or(Err(ServiceError::Internal(
        "a turn ended without an outcome",
    )))
}

/// All events of a turn that is over.
fn whole_stream(turn: &str) -> String {
    let started = write_frame(None, "turn.started", turn);
    started + &write_frame(None, "turn.completed", turn)
}

/// Keeps the answer of a turn under the key of its request.
struct Keeper {
    service: Data<Service>,
    caller: Caller,
    key: Option<RequestKey>,
}

impl Keeper {
    /// Keeps the answer if there is a key and the turn is over.
    async fn keep(&self, session: &str, turn: &Turn) {
        let over = turn.row.ended_at.is_some();
        if let Some(key) = self.key.as_ref().filter(|_| over)
            && let Ok(template) = template(session, turn)
        {
            self.service
                .settle_turn(self.caller, key, turn, &template)
                .await;
        }
    }

    /// Answers a request that was made again.
    async fn repeat(
        &self,
        session: &str,
        kept: &Kept,
        stream: bool,
    ) -> Result<HttpResponse, Problem> {
        let told = self.service.repeat_turn(self.caller, session, kept);
        let answer = match told.await? {
            TurnAgain::Text(text) => text,
            TurnAgain::Turn(turn) => {
                self.keep(session, &turn).await;
                render(session, &turn)?
            }
        };
        if !stream {
            return Ok(once::again(text(StatusCode::OK, answer)));
        }
        let frames = Bytes::from(whole_stream(&one_line(&answer)));
        Ok(once::again(event_stream(stream::iter([Ok(frames)]))))
    }
}

/// A turn's answer with its messages left out.
fn template(session: &str, turn: &Turn) -> Result<Template, Problem> {
    let mut template = Template::default();
    let mut piece = with_last_member(&head(session, turn)?, "messages", "[")?;
    // Each brace that closes what stands before a message belongs behind it.
    piece.pop();
    for (index, message) in turn.messages.iter().enumerate() {
        if index > 0 {
            piece.push_str("},");
        }
        let bare = ListedMessage {
            message: String::new(),
            ..message.clone()
        };
        piece.push_str(&render_message(&bare)?);
        piece.pop();
        template.pieces.push(std::mem::take(&mut piece));
        template.seqs.push(message.seq);
    }
    piece.push_str(if turn.messages.is_empty() {
        "]}"
    } else {
        "}]}"
    });
    template.pieces.push(piece);
    Ok(template)
}

/// A turn on its way to a client.
struct Streamed {
    session: String,
    request_id: String,
    path: String,
    running: Option<Running>,
    keeper: Keeper,
    /// What is to be sent first.
    first: Option<String>,
}

impl Streamed {
    fn new(
        session: &str,
        request_id: String,
        path: &str,
        running: Running,
        keeper: Keeper,
    ) -> Result<Self, Problem> {
        let begun = one_line(&render(session, &running.begun)?);
        let is_over = running.begun.row.ended_at.is_some();
        let first = if is_over {
            whole_stream(&begun)
        } else {
            write_frame(None, "turn.started", &begun)
        };
        Ok(Self {
            session: session.to_owned(),
            request_id,
            path: path.to_owned(),
            running: (!is_over).then_some(running),
            keeper,
            first: Some(first),
        })
    }

    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        if let Some(first) = self.first.take() {
            return Some((Ok(first.into()), self));
        }
        let mut running = self.running.take()?;
        let Ok(progress) = timeout(self.keeper.service.keep_alive(), running.progress.recv()).await
        else {
            // The model thinks; what is in between may not take the line for dead.
            self.running = Some(running);
            return Some((Ok(Bytes::from_static(KEEP_ALIVE)), self));
        };
        let frame = match progress {
            Some(Progress::Delta(delta)) => {
                self.running = Some(running);
                let data = format!(r#"{{"delta":{}}}"#, one_line(delta.get()));
                write_frame(None, MESSAGE_DELTA, &data)
            }
            Some(Progress::Restart) => {
                self.running = Some(running);
                write_frame(None, "turn.restarted", "{}")
            }
            None => self.last(ended(running.end.await)).await,
        };
        Some((Ok(frame.into()), self))
    }

    async fn last(&self, end: Result<Turn, ServiceError>) -> String {
        if let Ok(turn) = &end {
            self.keeper.keep(&self.session, turn).await;
        }
        let rendered = end.map_err(Problem::from);
        match rendered.and_then(|turn| render(&self.session, &turn)) {
            Ok(turn) => write_frame(None, "turn.completed", &one_line(&turn)),
            Err(problem) => {
                log(&problem, &self.request_id);
                let document = problem.document(&self.path, &self.request_id);
                write_frame(None, "turn.failed", &to_text(&document).unwrap_or_default())
            }
        }
    }
}

/// List turns
///
/// The records, newest first, without their messages.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("limit" = Option<i64>, Query, description = "How many at most, 1 to 1,000; 100 unless given.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The `nextCursor` of the page before."),
    ),
    responses(
        (status = 200, description = "A page of turns.", body = Page<TurnRecord>),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/turns")]
pub async fn list_turns(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let scope = format!("turns/{id}");
    let (before, limit) = cursor::page(&request, &scope)?;
    let before = before.unwrap_or(Uuid::max());
    let (rows, more) = service.list_turns(caller, id, before, limit).await?;
    let oldest = rows.last().filter(|_| more);
    let next_cursor = oldest.map(|oldest| cursor::encode(&scope, &oldest.id.to_string()));
    let data = rows.iter().map(|row| TurnRecord::of(id, row));
    let data = data.collect::<Result<_, _>>()?;
    json(StatusCode::OK, &Page { data, next_cursor })
}

/// Read a turn
///
/// Also while it runs, and also if the client that began it went away.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("turnId" = String, Path, description = "The turn's id.", example = "turn_019acf0b2a7c7d1e9f00aabbccddeeff"),
    ),
    responses(
        (status = 200, description = "The turn.", body = TurnBody),
        (status = 400, description = "A part of the path is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session or turn.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/turns/{turnId}")]
pub async fn get_turn(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let turn = service
        .load_turn(caller, id, name(&request, "turnId")?)
        .await?;
    Ok(text(StatusCode::OK, render(id, &turn)?))
}

/// Stop a turn
///
/// It fails with the code `TURN_CANCELLED`, and no answer is stored. A turn that is over stays as it is.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("turnId" = String, Path, description = "The turn's id.", example = "turn_019acf0b2a7c7d1e9f00aabbccddeeff"),
    ),
    responses(
        (status = 200, description = "The turn as it stands now.", body = TurnBody),
        (status = 400, description = "A part of the path is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session or turn.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[post("/sessions/{id}/turns/{turnId}/cancel")]
pub async fn cancel_turn(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
    body: Unread,
) -> Result<HttpResponse, Problem> {
    let (id, turn) = (name(&request, "id")?, name(&request, "turnId")?);
    // Done twice it does nothing more, so its answer may be kept behind it.
    let work = Box::pin(async {
        let turn = service.cancel_turn(caller, id, turn).await?;
        if let Some(key) = body.key() {
            let template = template(id, &turn)
                .map_err(|_| ServiceError::Internal("a turn could not be written"))?;
            service.keep_answer(caller, id, key, &template).await?;
        }
        Ok(turn)
    });
    match service.once_costly(caller, body.key(), work).await? {
        Answered::First(turn) => Ok(text(StatusCode::OK, render(id, &turn)?)),
        Answered::Again(kept) => {
            let answer = service.fill(caller, id, &kept).await?;
            Ok(once::again(text(StatusCode::OK, answer)))
        }
    }
}
