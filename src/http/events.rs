//! `GET /sessions/{id}/events` and `GET /events`: server-sent events.
//!
//! What is sent and when is the service's; here it becomes frames. Every frame that can be resumed
//! behind has an `id`; a client that comes again sends the last one back in `Last-Event-ID`.

use std::convert::Infallible;
use std::fmt::Write;

use actix_web::http::header::{self, HeaderName};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, get};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;

use super::access::bearer;
use super::extract::{Query, name};
use super::problem::{Problem, ProblemDocument};
use crate::domain::event::{MESSAGE_DELTA, RESYNC};
use crate::service::{Caller, SentEvent, Service, ServiceError, StreamItem};

/// A comment that keeps the line open.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

const TAG: &str = "Events";
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Read a session's events
///
/// Server-sent events. Each has an `id`, the type as `event`, and `data`, a JSON object of one line with `id`, `type`,
/// `sessionId`, `createdAt` and what the type tells: ids and numbers, never content. Numbers at the end of the ids rise
/// by one in a session. With `Last-Event-ID` (or `after`) everything behind that event is sent, then what happens from
/// now on; without, only what happens from now on; `after=0` begins with the oldest event that is kept. If the id is
/// too old, unknown, another session's or none at all, one event `resync` comes first, with the `reason`, and the
/// stream goes on behind its `lastEventId`: read the session anew. Comments keep the line open. The stream ends when
/// the session is deleted.
#[utoipa::path(
    tag = TAG,
    params(
        ("id" = String, Path, description = "The session's id.", example = "sess_019acf0b2a7c7d1e9f00aabbccddeeff"),
        ("after" = Option<String>, Query, description = "Id, or number, of the last event that is known; `0` for all that are kept.", example = "evt_ccddeeff_17"),
        ("Last-Event-ID" = Option<String>, Header, description = "As `after`, and wins over it: clients send it when they come again."),
    ),
    responses(
        (status = 200, description = "The stream. It has no end of its own.", body = String, content_type = "text/event-stream"),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 404, description = "There is no such session.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time, or the server is shutting down.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/sessions/{id}/events")]
pub async fn session_events(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    let id = name(&request, "id")?;
    let mut query = Query::of(&request)?;
    let after = query.take("after");
    query.finish()?;
    let last = last_event_id(&request).or(after);
    let events = service.read_events(caller, id, last.as_deref()).await?;
    let frames = stream::unfold(events, async |mut events| {
        let item = events.next().await?;
        Some((frame(&item), events))
    });
    Ok(respond(service, &request, frames))
}

/// Follow all events
///
/// Server-sent events of all sessions, from now on, as they happen; the frames are those of one session's stream. Nothing
/// is replayed: a client that comes again with a `Last-Event-ID`, or that is too slow, gets one event `resync` and then
/// what happens next. Whoever needs each event reads the stream of its session.
#[utoipa::path(
    tag = TAG,
    params(
        ("Last-Event-ID" = Option<String>, Header, description = "Says that the client was here before."),
    ),
    responses(
        (status = 200, description = "The stream. It has no end of its own.", body = String, content_type = "text/event-stream"),
        (status = 400, description = "A part of the path or the query is not what it must be.", body = ProblemDocument, content_type = "application/problem+json"),
        (status = 503, description = "The database gave no answer in time, or the server is shutting down.", body = ProblemDocument, content_type = "application/problem+json"),
    )
)]
#[get("/events")]
pub async fn all_events(
    service: Data<Service>,
    caller: Caller,
    request: HttpRequest,
) -> Result<HttpResponse, Problem> {
    Query::of(&request)?.finish()?;
    let reconnected = last_event_id(&request).is_some();
    let events = service.follow_events(caller, reconnected).await?;
    let frames = stream::unfold(events, async |mut events| {
        let item = events.next().await?;
        Some((frame(&item), events))
    });
    Ok(respond(service, &request, frames))
}

/// What the client got last, if it says so. Bytes that are no text are no id, but something was sent.
fn last_event_id(request: &HttpRequest) -> Option<String> {
    let given = request.headers().get(LAST_EVENT_ID)?;
    let text = String::from_utf8_lossy(given.as_bytes());
    Some(text.into_owned()).filter(|text| !text.is_empty())
}

/// A stream goes on for as long as the key that opened it counts: it is asked anew before each frame.
fn respond(
    service: Data<Service>,
    request: &HttpRequest,
    frames: impl Stream<Item = Bytes> + 'static,
) -> HttpResponse {
    let key = bearer(request.headers()).map(SecretString::from);
    let counts = move |_: &Bytes| {
        let (service, key) = (service.clone(), key.clone());
        async move {
            let known = service.identify(key.as_ref().map(ExposeSecret::expose_secret));
            !matches!(known.await, Err(ServiceError::Unauthenticated))
        }
    };
    event_stream(frames.take_while(counts).map(Ok))
}

/// Server-sent events; nothing on the way may hold them back.
pub fn event_stream(
    frames: impl Stream<Item = Result<Bytes, Infallible>> + 'static,
) -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .insert_header((ACCEL_BUFFERING, "no"))
        .streaming(frames)
}

/// What every event's `data` begins with.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    id: &'a str,
    r#type: &'a str,
    session_id: &'a str,
    created_at: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeltaHead<'a> {
    r#type: &'static str,
    session_id: &'a str,
    created_at: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResyncData<'a> {
    r#type: &'static str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_event_id: Option<&'a str>,
}

fn frame(item: &StreamItem) -> Bytes {
    let text = match item {
        StreamItem::KeepAlive => return Bytes::from_static(KEEP_ALIVE),
        StreamItem::Event(event) => write_frame(Some(&event.id), &event.kind, &data_of(event)),
        StreamItem::Delta {
            session_id,
            created_at,
            text,
        } => {
            let head = DeltaHead {
                r#type: MESSAGE_DELTA,
                session_id,
                created_at: created_at.to_string(),
            };
            let data = with_members(json(&head), &one_line(text));
            // Without an id: it cannot be resumed behind.
            write_frame(None, MESSAGE_DELTA, &data)
        }
        StreamItem::Resync {
            reason,
            session_id,
            last_event_id,
        } => {
            let data = ResyncData {
                r#type: RESYNC,
                reason: reason.as_str(),
                session_id: session_id.as_deref(),
                last_event_id: last_event_id.as_deref(),
            };
            write_frame(last_event_id.as_deref(), RESYNC, &json(&data))
        }
    };
    Bytes::from(text)
}

/// The head and the stored members as one object.
fn data_of(event: &SentEvent) -> String {
    let head = json(&Head {
        id: &event.id,
        r#type: &event.kind,
        session_id: &event.session_id,
        created_at: event.created_at.to_string(),
    });
    with_members(head, &event.data)
}

/// An object with the members of another behind its own.
fn with_members(mut object: String, other: &str) -> String {
    let members = other.strip_prefix('{').unwrap_or_default();
    if members.len() > 1 {
        object.pop();
        object.push(',');
        object.push_str(members);
    }
    object
}

fn json(value: &impl Serialize) -> String {
    // Names and texts only, which cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// JSON has line breaks only between its tokens, where a space does as well.
pub fn one_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}

/// One event.
pub fn write_frame(id: Option<&str>, kind: &str, data: &str) -> String {
    let mut text = String::with_capacity(data.len() + 96);
    // Writing to a string does not fail.
    if let Some(id) = id {
        let _ = writeln!(text, "id: {id}");
    }
    let _ = write!(text, "event: {kind}\ndata: {data}\n\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::Resync;
    use crate::storage::Timestamp;

    fn event(data: &str) -> StreamItem {
        StreamItem::Event(SentEvent {
            id: "evt_ccddeeff_3".to_owned(),
            session_id: "sess_x".to_owned(),
            kind: "message.appended".to_owned(),
            created_at: Timestamp(0),
            data: data.to_owned(),
        })
    }

    #[test]
    fn frames_are_whole_and_of_one_line_each() {
        let head = "id: evt_ccddeeff_3\nevent: message.appended\ndata: {\"id\":\"evt_ccddeeff_3\",\
                    \"type\":\"message.appended\",\"sessionId\":\"sess_x\",\
                    \"createdAt\":\"1970-01-01T00:00:00.000000Z\"";
        assert_eq!(
            frame(&event("{\"count\":1}")),
            format!("{head},\"count\":1}}\n\n")
        );
        assert_eq!(frame(&event("{}")), format!("{head}}}\n\n"));
        assert_eq!(frame(&StreamItem::KeepAlive), ": keep-alive\n\n");
    }

    #[test]
    fn a_piece_cannot_break_out_of_its_frame_and_has_no_id() {
        let item = StreamItem::Delta {
            session_id: "sess_x".to_owned(),
            created_at: Timestamp(0),
            text: "a\n\nevent: forged\r\ndata: {}".into(),
        };
        let text = frame(&item);
        let text = std::str::from_utf8(&text).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.starts_with("event: message.delta\ndata: {"));
    }

    #[test]
    fn a_piece_is_shown_as_the_object_that_it_is() {
        let item = StreamItem::Delta {
            session_id: "sess_x".to_owned(),
            created_at: Timestamp(0),
            text: "{\"turnId\":\"turn_x\",\"delta\":{\"content\":\n\"a\\nb\", \"n\":1.0}}".into(),
        };
        let text = frame(&item);
        let text = std::str::from_utf8(&text).unwrap();
        assert!(
            text.ends_with(
                ",\"turnId\":\"turn_x\",\"delta\":{\"content\": \"a\\nb\", \"n\":1.0}}\n\n"
            ),
            "{text}"
        );
        assert_eq!(text.lines().count(), 3, "{text}");
    }

    #[test]
    fn a_resync_is_resumed_behind_like_an_event() {
        let item = StreamItem::Resync {
            reason: Resync::TooOld,
            session_id: Some("sess_x".to_owned()),
            last_event_id: Some("evt_ccddeeff_9".to_owned()),
        };
        assert_eq!(
            frame(&item),
            "id: evt_ccddeeff_9\nevent: resync\ndata: {\"type\":\"resync\",\"reason\":\"too_old\",\
             \"sessionId\":\"sess_x\",\"lastEventId\":\"evt_ccddeeff_9\"}\n\n"
        );
    }
}
