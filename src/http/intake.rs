//! Taking in bodies: not larger than allowed, within time, and not more at once than there is room for.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::HttpMessage;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{Payload, ServiceRequest};
use actix_web::error::PayloadError;
use actix_web::http::{StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::problem::{Code, Problem};
use crate::service::ServiceError;

/// Room is given out in pieces of this many bytes.
const PIECE: usize = 1_024;
/// How much room is taken at a time for a body whose length was not announced.
const STEP: usize = 64 << 10;
/// How long a body waits for room.
const PATIENCE: Duration = Duration::from_secs(5);
/// When a client whose body found no room may come again.
const COME_AGAIN: Duration = Duration::from_secs(1);
/// So many bytes within the time-out are progress.
const PROGRESS: usize = 16 << 10;

/// A request's body as the service reads it, if it does.
struct Source {
    payload: Payload,
    has_ended: bool,
}

/// The body of a request, watched from outside of whoever reads it. One that was not read to its end and goes on without
/// bound, or that came too slowly, is kept beside the answer: as long as the server knows of somebody who might still
/// read it, it closes the connection behind the answer, and else it would go on reading for as long as that lasts.
pub struct Watched {
    source: Rc<RefCell<Source>>,
    is_chunked: bool,
}

/// What a handler reads a watched body through.
struct Reader(Rc<RefCell<Source>>);

impl Stream for Reader {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let source = &mut *self.0.borrow_mut();
        let polled = Pin::new(&mut source.payload).poll_next(context);
        source.has_ended |= matches!(polled, Poll::Ready(None));
        polled
    }
}

impl Watched {
    /// Watches the body of a request; `None` if it announces none.
    pub fn of(request: &mut ServiceRequest) -> Option<Self> {
        let headers = request.headers();
        let is_chunked = headers.contains_key(header::TRANSFER_ENCODING);
        if !is_chunked && !headers.contains_key(header::CONTENT_LENGTH) {
            return None;
        }
        let source = Rc::new(RefCell::new(Source {
            payload: request.take_payload(),
            has_ended: false,
        }));
        request.set_payload(Payload::Stream {
            payload: Box::pin(Reader(Rc::clone(&source))),
        });
        Some(Self { source, is_chunked })
    }

    /// The answer of this status, with the body beside it if it is to be kept.
    #[must_use]
    pub fn beside(self, status: StatusCode, answer: BoxBody) -> BoxBody {
        let goes_on = self.is_chunked || status == StatusCode::REQUEST_TIMEOUT;
        if !goes_on || self.source.borrow().has_ended {
            return answer;
        }
        BoxBody::new(Beside {
            answer,
            _body: self,
        })
    }
}

/// An answer with the body that was not read.
struct Beside {
    answer: BoxBody,
    _body: Watched,
}

impl MessageBody for Beside {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.answer.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.get_mut().answer).poll_next(context)
    }
}

/// The bounds of what is taken in, and the room that there is, shared by all workers.
#[derive(Debug)]
pub struct Intake {
    /// The largest body, in bytes.
    limit: usize,
    /// Bytes of all bodies at once.
    most: usize,
    room: Arc<Semaphore>,
    time: Duration,
    patience: Duration,
}

/// A body, and its part of the room, which is given back with it.
#[derive(Debug)]
pub struct Taken {
    /// The bytes.
    pub bytes: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

impl Intake {
    /// Bodies of `limit` bytes each and `most` at once, each 16 KiB of which take at most `time`.
    #[must_use]
    pub fn new(limit: usize, most: usize, time: Duration) -> Self {
        Self {
            limit,
            most,
            room: Arc::new(Semaphore::new(pieces(most))),
            time,
            patience: PATIENCE,
        }
    }

    /// Refuses a body that is announced as larger than allowed.
    ///
    /// # Errors
    /// It is.
    pub fn check(&self, announced: Option<usize>) -> Result<(), Problem> {
        if announced.is_some_and(|bytes| bytes > self.limit) {
            return Err(self.too_large());
        }
        Ok(())
    }

    /// Reads a body, once there is room for as much of it as is announced.
    ///
    /// # Errors
    /// It is too large, there was no room in time, or the client was too slow or went away.
    pub async fn read(
        &self,
        payload: &mut Payload,
        announced: Option<usize>,
    ) -> Result<Taken, Problem> {
        let mut room = self.reserve(announced.unwrap_or(0)).await?;
        let mut reserved = announced.unwrap_or(0);
        let mut body = BytesMut::with_capacity(reserved.min(STEP));
        let mut due = (Instant::now() + self.time, PROGRESS);
        loop {
            let chunk = timeout_at(due.0, payload.next());
            let Some(chunk) = chunk.await.map_err(|_| self.too_slow())? else {
                break;
            };
            let chunk = chunk.map_err(|_| {
                Problem::new(Code::InvalidJson, "The body broke off before its end.")
            })?;
            let length = body.len() + chunk.len();
            if length > self.limit {
                return Err(self.too_large());
            }
            if length > reserved {
                let more = STEP.max(length - reserved);
                merge(&mut room, self.reserve(more).await?);
                reserved += more;
            }
            body.extend_from_slice(&chunk);
            if length >= due.1 {
                due = (Instant::now() + self.time, length + PROGRESS);
            }
        }
        Ok(Taken {
            bytes: body.freeze(),
            _room: room,
        })
    }

    /// Waits for room. A body for which there never is enough takes all there is.
    async fn reserve(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, Problem> {
        let wanted = pieces(bytes.min(self.most));
        if wanted == 0 {
            return Ok(None);
        }
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(wanted);
        match timeout(self.patience, room).await {
            Ok(Ok(room)) => Ok(Some(room)),
            Ok(Err(_)) | Err(_) => Err(ServiceError::Overloaded {
                limit: "limits.body_bytes_in_flight",
                what: "bytes of request bodies are being handled",
                most: self.most,
                retry_after: COME_AGAIN,
            }
            .into()),
        }
    }

    fn too_large(&self) -> Problem {
        let limit = self.limit;
        Problem::new(
            Code::PayloadTooLarge,
            format!(
                "The body is larger than {limit} bytes (limits.body_bytes). Send it in several requests, or raise the limit."
            ),
        )
    }

    fn too_slow(&self) -> Problem {
        let seconds = self.time.as_secs();
        Problem::new(
            Code::RequestTimeout,
            format!(
                "Less than 16 KiB of the body came within {seconds} s (http.body_timeout_seconds)."
            ),
        )
    }
}

fn pieces(bytes: usize) -> usize {
    bytes.div_ceil(PIECE)
}

fn merge(room: &mut Option<OwnedSemaphorePermit>, more: Option<OwnedSemaphorePermit>) {
    match (room.as_mut(), more) {
        (Some(room), Some(more)) => room.merge(more),
        (None, more) => *room = more,
        (Some(_), None) => {}
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn body(chunks: &[usize]) -> Payload {
        let chunks: Vec<_> = chunks
            .iter()
            .map(|length| Ok(Bytes::from(vec![b'x'; *length])))
            .collect();
        Payload::Stream {
            payload: Box::pin(stream::iter(chunks)),
        }
    }

    fn intake(limit: usize, most: usize) -> Intake {
        Intake {
            patience: Duration::ZERO,
            ..Intake::new(limit, most, Duration::from_mins(1))
        }
    }

    #[tokio::test]
    async fn room_is_held_until_the_body_is_dropped() {
        let intake = intake(1 << 20, 256 << 10);
        let first = intake.read(&mut body(&[200 << 10]), Some(200 << 10)).await;
        let refused = intake.read(&mut body(&[100 << 10]), Some(100 << 10)).await;
        assert_eq!(refused.unwrap_err().code, Code::Overloaded);
        drop(first);
        let second = intake.read(&mut body(&[100 << 10]), Some(100 << 10)).await;
        assert_eq!(second.unwrap().bytes.len(), 100 << 10);
        assert_eq!(intake.room.available_permits(), 256);
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_takes_room_as_it_grows() {
        let intake = intake(1 << 20, 256 << 10);
        let taken = intake.read(&mut body(&[1_000; 100]), None).await.unwrap();
        assert_eq!(taken.bytes.len(), 100_000);
        assert_eq!(intake.room.available_permits(), 128);
        let refused = intake.read(&mut body(&[1_000; 200]), None).await;
        assert_eq!(refused.unwrap_err().code, Code::Overloaded);
        drop(taken);
        assert_eq!(intake.room.available_permits(), 256);
    }

    #[tokio::test]
    async fn one_that_is_larger_than_all_room_takes_all_of_it() {
        let intake = intake(1 << 20, 64 << 10);
        let taken = intake.read(&mut body(&[500 << 10]), Some(500 << 10)).await;
        assert_eq!(taken.unwrap().bytes.len(), 500 << 10);
        assert_eq!(intake.room.available_permits(), 64);
    }

    #[tokio::test]
    async fn a_body_may_not_lie_about_its_length() {
        let intake = intake(1_000, 1 << 20);
        assert!(intake.check(Some(1_000)).is_ok());
        let refused = intake.check(Some(1_001)).unwrap_err();
        assert_eq!(refused.code, Code::PayloadTooLarge);
        let refused = intake.read(&mut body(&[600, 600]), Some(10)).await;
        assert_eq!(refused.unwrap_err().code, Code::PayloadTooLarge);
        assert_eq!(intake.room.available_permits(), 1_024);
    }
}
