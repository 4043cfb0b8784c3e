//! `Idempotency-Key`: the key of a request that may be made again, and the answer to one that was.
//!
//! Whatever takes a POST reads its key here: a handler with a body asks its [`Body`](super::extract::Body)
//! for it, one without takes [`Unread`]. The rest is the use case's, through
//! [`Service::once`](crate::service::Service::once).

use std::future::Future;
use std::pin::Pin;

use actix_web::dev::Payload;
use actix_web::http::header::{HeaderName, HeaderValue, LOCATION};
use actix_web::http::{Method, StatusCode};
use actix_web::{FromRequest, HttpRequest, HttpResponse, web};
use sha2::{Digest, Sha256};

use super::intake::Intake;
use super::problem::{Code, Problem};
use super::respond::{json, text, to_text};
use super::sessions::SessionBody;
use crate::domain::ids::session_id;
use crate::service::{Answered, RequestKey, Session, Shown};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// Characters of a key at most.
const LONGEST: usize = 255;

/// The key of a request, before its body is there.
#[derive(Debug, Clone)]
pub struct Header {
    scope: [u8; 32],
    key: String,
}

impl Header {
    /// The key of a POST, if it has one.
    ///
    /// # Errors
    /// It is none: not 1 to 255 visible ASCII characters, or there are two.
    pub fn of(request: &HttpRequest) -> Result<Option<Self>, Problem> {
        if request.method() != Method::POST {
            return Ok(None);
        }
        let mut given = request.headers().get_all(KEY);
        let Some(value) = given.next() else {
            return Ok(None);
        };
        let is_key = (1..=LONGEST).contains(&value.len())
            && value.as_bytes().iter().all(u8::is_ascii_graphic);
        let key = value.to_str().ok().filter(|_| is_key);
        let (Some(key), None) = (key, given.next()) else {
            return Err(Problem::parameter(
                "Idempotency-Key",
                "must be one key of 1 to 255 visible ASCII characters",
            ));
        };
        let scope = Sha256::new()
            .chain_update(request.method().as_str())
            .chain_update(" ")
            // As the router reads it: another spelling of a path is no other path.
            .chain_update(request.match_info().as_str());
        Ok(Some(Self {
            scope: scope.finalize().into(),
            key: key.to_owned(),
        }))
    }

    /// The key with the body it came with.
    #[must_use]
    pub fn with_body(self, body: &[u8]) -> RequestKey {
        RequestKey {
            scope: self.scope,
            key: self.key,
            digest: Sha256::digest(body).into(),
        }
    }
}

/// The body of a request that takes none. It is looked at only if there is a key: another body is another
/// request.
#[derive(Debug)]
pub struct Unread(Option<RequestKey>);

impl Unread {
    /// The key, if there is one.
    #[must_use]
    pub fn key(&self) -> Option<&RequestKey> {
        self.0.as_ref()
    }
}

impl FromRequest for Unread {
    type Error = Problem;
    type Future = Pin<Box<dyn Future<Output = Result<Self, Problem>>>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let header = match Header::of(request) {
            Ok(Some(header)) => header,
            Ok(None) => return Box::pin(std::future::ready(Ok(Self(None)))),
            Err(problem) => return Box::pin(std::future::ready(Err(problem))),
        };
        let intake = request.app_data::<web::Data<Intake>>().cloned();
        let mut payload = payload.take();
        Box::pin(async move {
            let intake = intake
                .ok_or_else(|| Problem::new(Code::Internal, "The server takes in no bodies."))?;
            let taken = intake.read(&mut payload, None).await?;
            Ok(Self(Some(header.with_body(&taken.bytes))))
        })
    }
}

/// The key of a request that answers with a session.
pub fn session(key: Option<&RequestKey>) -> Option<Shown<'_, Session>> {
    let show = |session| to_text(&SessionBody::of(session).ok()?).ok();
    key.map(|key| (key, show as fn(Session) -> Option<String>))
}

/// Answers with a session.
///
/// # Errors
/// A stored part is not readable.
pub fn show_session(answered: Answered<Session>) -> Result<HttpResponse, Problem> {
    match answered {
        Answered::First(session) => json(StatusCode::OK, &SessionBody::of(session)?),
        Answered::Again(kept) => Ok(again(text(StatusCode::OK, kept.answer))),
    }
}

/// Answers with a session that was made, and its address.
///
/// # Errors
/// A stored part is not readable.
pub fn show_created(answered: Answered<Session>) -> Result<HttpResponse, Problem> {
    let (id, mut response) = match answered {
        Answered::First(session) => {
            let id = Some(session.id.clone());
            (id, json(StatusCode::CREATED, &SessionBody::of(session)?)?)
        }
        Answered::Again(kept) => {
            let id = kept.session.map(session_id);
            (id, again(text(StatusCode::CREATED, kept.answer)))
        }
    };
    let location = id.map(|id| HeaderValue::from_str(&format!("/sessions/{id}")));
    if let Some(Ok(location)) = location {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// Says of an answer that it was given before, if it was.
pub fn mark(response: HttpResponse, repeated: bool) -> HttpResponse {
    if repeated { again(response) } else { response }
}

/// Says of an answer that it was given before.
pub fn again(mut response: HttpResponse) -> HttpResponse {
    let headers = response.headers_mut();
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
