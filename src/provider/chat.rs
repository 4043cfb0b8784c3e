//! The client: calls, and the attempts that a call is made of.
//!
//! An attempt has two halves. `open` sends the request and gives the answer's head, already
//! sorted into success and refusal; [`Body`] then hands out the answer piece by piece, under the
//! time limits and the size limit. `complete` reads all the pieces and parses them once, `turn`
//! reads them as they come.
//!
//! What does not belong here: whether an answer is good enough. An empty text, a cut-off one or
//! a refusal is an answer.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prometheus_client::metrics::counter::Counter;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Url};
use serde_json::value::RawValue;

use super::attempts::Attempts;
use super::body::{Body, Clock, LONGEST, Timeouts, connection_error};
use super::completion::{Completion, read_completion};
use super::endpoint::{Endpoint, address, check_url, is_loopback};
use super::error::{ProviderError, SetupError};
use super::request::{ChatRequest, TurnRequest};
use super::retry::RetryPolicy;
use super::stream::Ended;
use super::turn::{TurnAnswer, read_answer};
use crate::telemetry;

/// A client of one model server. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct ChatModel {
    inner: Arc<Inner>,
    /// Counts the tries behind the first.
    retries: Counter,
}

struct Inner {
    client: Client,
    url: Url,
    headers: HeaderMap,
    timeouts: Timeouts,
    retry: RetryPolicy,
}

impl fmt::Debug for ChatModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatModel")
            .field("url", &address(&self.inner.url))
            .field("timeouts", &self.inner.timeouts)
            .field("retry", &self.inner.retry)
            .finish_non_exhaustive()
    }
}

impl ChatModel {
    /// The longest answer that is read: 32 MiB. Of a streamed one, all its deltas together, and
    /// any single event.
    pub const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;

    /// The longest stream that is read, with all that is wrapped around the deltas: 256 MiB.
    pub const MAX_STREAM_BYTES: usize = 256 * 1024 * 1024;

    /// A client for that endpoint. Needs a process-wide rustls provider, also for plain HTTP.
    ///
    /// Proxies are taken from the environment as usual, except for a server on this machine.
    ///
    /// # Errors
    ///
    /// [`SetupError`], for a URL or key that cannot be used or for lack of TLS.
    pub fn new(
        endpoint: &Endpoint,
        timeouts: Timeouts,
        retry: RetryPolicy,
    ) -> Result<Self, SetupError> {
        check_url(&endpoint.base_url)?;
        // The library panics without one.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            return Err(SetupError::NoCryptoProvider);
        }
        let mut url = endpoint.chat_url();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = endpoint.key() {
            let mut value =
                HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| SetupError::ApiKey)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
            // Otherwise the library would add a second authorization from these.
            url.set_username("").map_err(|()| SetupError::BaseUrl)?;
            url.set_password(None).map_err(|()| SetupError::BaseUrl)?;
        }
        let mut client = Client::builder()
            .user_agent(concat!("precis/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .connect_timeout(timeouts.connect.min(LONGEST));
        if is_loopback(&url) {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|_| SetupError::Client)?;
        // What the library cannot make a request of is found now rather than at the first call.
        client
            .post(url.clone())
            .build()
            .map_err(|_| SetupError::BaseUrl)?;
        Ok(Self {
            inner: Arc::new(Inner {
                client,
                url,
                headers,
                timeouts,
                retry,
            }),
            retries: Counter::default(),
        })
    }

    /// The same client, whose tries behind the first are counted there.
    #[must_use]
    pub fn counting_retries(self, retries: Counter) -> Self {
        Self { retries, ..self }
    }

    /// Asks for a completion, not streamed, and tries again as the policy says.
    ///
    /// May be dropped at any time; a request under way is then cut off.
    ///
    /// # Errors
    ///
    /// The [`ProviderError`] of the last try. An answer without text is not an error, an answer
    /// without a message is.
    pub async fn complete(&self, request: &ChatRequest) -> Result<Completion, ProviderError> {
        let body = request.to_json()?;
        let mut attempts = Attempts::start(&self.inner.retry, &self.retries);
        loop {
            match self.try_complete(body.clone()).await {
                Ok(completion) => {
                    return Ok(Completion {
                        attempts: attempts.succeeded(None),
                        ..completion
                    });
                }
                Err(error) => attempts.failed(error, true).await?,
            }
        }
    }

    /// Asks for the answer of a turn, and tries again as the policy says, until the first delta
    /// was handed on.
    ///
    /// If a stream is asked for, `on_delta` gets the deltas of the first choice as they come, each
    /// the JSON text of an object with the bytes of the provider (there may be line breaks in
    /// it); those that add nothing, such as the role alone, are left out. A server that answers
    /// in one piece anyway gives one: the message. `on_delta` is called between two reads from the
    /// server and must not block; see [`into_channel`](super::into_channel). What was handed on
    /// is no promise: an error or an incomplete answer may still follow.
    ///
    /// May be dropped at any time; a request under way is then cut off.
    ///
    /// # Errors
    ///
    /// The [`ProviderError`] of the last try. Overflows and rate limits are found in refusals, in
    /// the body of a success and in a stream, there also after the first delta. A stream that
    /// breaks off for another reason is an answer if there is text in it (content or a refusal),
    /// and otherwise an error: thought alone, or half a tool call, is nothing to keep.
    pub async fn turn(
        &self,
        request: TurnRequest,
        mut on_delta: impl FnMut(&RawValue) + Send,
    ) -> Result<TurnAnswer, ProviderError> {
        let body = request.to_json();
        let stream = request.stream;
        // The messages may be megabytes, and now there are two of each.
        drop(request);
        let mut handed_on = false;
        let mut attempts = Attempts::start(&self.inner.retry, &self.retries);
        loop {
            let mut hand_on = |delta: &RawValue| {
                if stream {
                    handed_on = true;
                    on_delta(delta);
                }
            };
            match self.try_turn(body.clone(), stream, &mut hand_on).await {
                Ok((answer, broken)) => {
                    attempts.succeeded(broken.as_ref());
                    return Ok(answer);
                }
                Err(error) => attempts.failed(error, !handed_on).await?,
            }
        }
    }

    /// One attempt, read to its end.
    async fn try_complete(&self, body: Bytes) -> Result<Completion, ProviderError> {
        let mut answer = self.open(body, JSON).await?;
        let bytes = answer.read_all().await?;
        read_completion(&bytes)
    }

    /// One attempt, read to its end, deltas handed on as they come.
    async fn try_turn(
        &self,
        body: Bytes,
        stream: bool,
        on_delta: &mut (dyn FnMut(&RawValue) + Send),
    ) -> Result<Ended, ProviderError> {
        let accept = if stream { STREAM } else { JSON };
        let mut answer = self.open(body, accept).await?;
        read_answer(&mut answer, on_delta).await
    }

    /// The first half of an attempt: sends the request and gives the body of a successful
    /// answer. An answer with another status is read as far as needed and becomes the error.
    async fn open(&self, body: Bytes, accept: HeaderValue) -> Result<Body, ProviderError> {
        let inner = &self.inner;
        let clock = Clock::start(&inner.timeouts);
        let sending = inner
            .client
            .post(inner.url.clone())
            .headers(inner.headers.clone())
            .headers(telemetry::outgoing())
            .header(ACCEPT, accept)
            .body(body)
            .send();
        let response = clock
            .before_first_byte(sending)
            .await?
            .map_err(|error| connection_error(&error))?;
        let status = response.status();
        let body = Body::new(response, clock);
        if status.is_success() {
            Ok(body)
        } else {
            Err(body.into_refusal(status).await)
        }
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream, application/json");
