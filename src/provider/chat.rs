//! One call to a model server: what is sent, what comes back, and how long it may take.
//!
//! A call is made of attempts and an attempt of two halves. `open` sends the request and gives
//! the answer's head, already sorted into success and refusal; [`Body`] then hands out the
//! answer piece by piece, under the time limits and the size limit. `complete` reads all the
//! pieces and parses them once. (Whoever wants them as they come reads the same `Body`.)
//!
//! The retries here are the only ones: those of the HTTP library are off, redirects are not
//! followed, and so a server sees exactly the number of requests that the policy says.
//!
//! Answers are read leniently where servers differ (text as a string or in parts, `null` or
//! missing members, other members of any type) and strictly where nothing sensible could be
//! made of it. `usage` is kept as the bytes that came.
//!
//! What does not belong here: whether an answer is good enough. An empty text, a cut-off one or
//! a refusal is a completion.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::error::{ProviderError, SetupError, TimeoutKind};
use super::overflow::{self, Refusal};
use super::retry::{self, RetryPolicy};

/// Where a model server is and how to be let in.
///
/// `Debug` shows the address without user name, password and query, and not the key.
#[derive(Clone)]
pub struct Endpoint {
    /// The base of the API, such as `https://api.openai.com/v1`, with or without a `/` at its
    /// end. A query is kept (some servers want a version there). A user name and password are
    /// sent as basic authentication, unless there is a key.
    pub base_url: Url,
    /// Sent as `Authorization: Bearer …`. Blank counts as none.
    pub api_key: Option<SecretString>,
}

impl Endpoint {
    /// An endpoint from a base URL as text.
    ///
    /// # Errors
    ///
    /// [`SetupError::BaseUrl`] if the text is not an absolute `http` or `https` URL.
    pub fn parse(base_url: &str, api_key: Option<SecretString>) -> Result<Self, SetupError> {
        let base_url = Url::parse(base_url.trim()).map_err(|_| SetupError::BaseUrl)?;
        check_url(&base_url)?;
        Ok(Self { base_url, api_key })
    }

    /// The address of the chat-completions route.
    fn chat_url(&self) -> Url {
        let mut url = self.base_url.clone();
        let path = format!("{}/chat/completions", url.path().trim_end_matches('/'));
        url.set_path(&path);
        url.set_fragment(None);
        url
    }

    fn key(&self) -> Option<&str> {
        let key = self.api_key.as_ref()?.expose_secret().trim();
        (!key.is_empty()).then_some(key)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("base_url", &address(&self.base_url))
            .field("api_key", &self.key().map(|_| "set"))
            .finish()
    }
}

fn check_url(url: &Url) -> Result<(), SetupError> {
    if matches!(url.scheme(), "http" | "https") && url.has_host() {
        Ok(())
    } else {
        Err(SetupError::BaseUrl)
    }
}

/// The URL without anything that may be secret.
fn address(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    format!("{}://{host}{port}{}", url.scheme(), url.path())
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// How long an attempt may take. Each limit is at most one year; longer counts as that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Name lookup, TCP and TLS together.
    pub connect: Duration,
    /// From the start of the attempt, connecting included, to the first byte of the answer's
    /// body. For an answer that is not streamed this is nearly all of the model's work.
    pub first_byte: Duration,
    /// Between two pieces of the answer's body.
    pub idle: Duration,
    /// The whole attempt; an answer that trickles in does not extend it. Waits between the
    /// attempts of a call do not count.
    pub call: Duration,
}

/// One message of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PromptMessage {
    /// `system`, `user`, `assistant`, …
    pub role: &'static str,
    /// The text.
    pub content: String,
}

/// A limit on what the model may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputCap {
    /// Which member carries it.
    pub name: OutputCapName,
    /// In the model's tokens.
    pub tokens: u32,
}

/// The member that carries the output cap: newer models refuse the older name, and older servers
/// do not know the newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputCapName {
    /// `max_tokens`
    MaxTokens,
    /// `max_completion_tokens`
    MaxCompletionTokens,
}

/// A prompt for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatRequest {
    /// The model's name at the server.
    pub model: String,
    /// The prompt, in order.
    pub messages: Vec<PromptMessage>,
    /// Sent under its name; nothing is sent for `None`.
    pub output_cap: Option<OutputCap>,
}

impl ChatRequest {
    fn to_json(&self) -> Result<Bytes, ProviderError> {
        #[derive(Serialize)]
        struct Wire<'a> {
            model: &'a str,
            messages: &'a [PromptMessage],
            #[serde(skip_serializing_if = "Option::is_none")]
            max_tokens: Option<u32>,
            #[serde(skip_serializing_if = "Option::is_none")]
            max_completion_tokens: Option<u32>,
        }
        let cap = |name| {
            self.output_cap
                .filter(|cap| cap.name == name)
                .map(|cap| cap.tokens)
        };
        serde_json::to_vec(&Wire {
            model: &self.model,
            messages: &self.messages,
            max_tokens: cap(OutputCapName::MaxTokens),
            max_completion_tokens: cap(OutputCapName::MaxCompletionTokens),
        })
        .map(Bytes::from)
        // Strings and numbers always serialise; a variant of its own would never be seen.
        .map_err(|_| ProviderError::Malformed {
            what: "the request cannot be written as JSON",
        })
    }
}

/// What the model answered: the first choice of it.
#[derive(Debug, Clone)]
pub struct Completion {
    /// The text, as it came; parts of text joined without anything in between. May be empty.
    pub text: String,
    /// Why the model stopped, as the server spells it.
    pub finish: Option<String>,
    /// There is no text (or only white space), but there is reasoning: the model spent its
    /// output on thought.
    pub reasoning_only: bool,
    /// Why the model would not answer, if it said so in the place for that.
    pub refusal: Option<String>,
    /// Whether it called tools, unasked.
    pub has_tool_calls: bool,
    /// The server's count of tokens, byte for byte.
    pub usage: Option<Box<RawValue>>,
    /// The model that answered, as the server names it.
    pub model: Option<String>,
    /// How many tries it took, from 1.
    pub attempts: u32,
}

/// A client of one model server. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct ChatModel {
    inner: Arc<Inner>,
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
    /// The longest answer that is read: 32 MiB.
    pub const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;

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
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
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
        })
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
        let mut waited = Duration::ZERO;
        let mut attempt: u32 = 1;
        loop {
            let started = Instant::now();
            let outcome = self.try_complete(body.clone()).await;
            let elapsed_ms = millis(started.elapsed());
            let waited_ms = millis(waited);
            let error = match outcome {
                Ok(completion) => {
                    tracing::debug!(
                        attempt,
                        status = 200,
                        elapsed_ms,
                        waited_ms,
                        "model call succeeded"
                    );
                    return Ok(Completion {
                        attempts: attempt,
                        ..completion
                    });
                }
                Err(error) => error,
            };
            let next = retry::next_wait(&self.inner.retry, attempt, &error, waited, retry::roll());
            let (status, kind) = (error.status(), error.kind());
            let Some(wait) = next else {
                // Whoever asked decides whether this is a failure, and says so once.
                tracing::debug!(
                    attempt,
                    status,
                    kind,
                    elapsed_ms,
                    waited_ms,
                    "model call failed"
                );
                return Err(error);
            };
            tracing::debug!(
                attempt,
                status,
                kind,
                elapsed_ms,
                waited_ms,
                wait_ms = millis(wait),
                "model call failed and will be repeated"
            );
            tokio::time::sleep(wait).await;
            waited = waited.saturating_add(wait);
            attempt = attempt.saturating_add(1);
        }
    }

    /// One attempt, read to its end.
    async fn try_complete(&self, body: Bytes) -> Result<Completion, ProviderError> {
        let mut answer = self.open(body).await?;
        let bytes = answer.read_all().await?;
        read_completion(&bytes)
    }

    /// The first half of an attempt: sends the request and gives the body of a successful
    /// answer. An answer with another status is read as far as needed and becomes the error.
    async fn open(&self, body: Bytes) -> Result<Body, ProviderError> {
        let inner = &self.inner;
        let clock = Clock::start(&inner.timeouts);
        let sending = inner
            .client
            .post(inner.url.clone())
            .headers(inner.headers.clone())
            .body(body)
            .send();
        let response = clock
            .before_first_byte(sending)
            .await?
            .map_err(|error| connection_error(&error))?;
        let status = response.status();
        let mut body = Body {
            response,
            clock,
            begun: false,
            left: Self::MAX_ANSWER_BYTES,
        };
        if status.is_success() {
            Ok(body)
        } else {
            // With the verdict in hand, nothing is worth a long wait for its explanation.
            body.begun = true;
            Err(body.into_refusal(status).await)
        }
    }
}

/// The second half of an attempt: the answer, piece by piece.
struct Body {
    response: Response,
    clock: Clock,
    begun: bool,
    /// Bytes that may still come.
    left: usize,
}

impl Body {
    /// The next piece, or `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ProviderError> {
        let chunk = self.response.chunk();
        let piece = if self.begun {
            self.clock.between_bytes(chunk).await?
        } else {
            self.clock.before_first_byte(chunk).await?
        };
        let Some(piece) = piece.map_err(|error| connection_error(&error))? else {
            return Ok(None);
        };
        self.begun = self.begun || !piece.is_empty();
        self.left = self
            .left
            .checked_sub(piece.len())
            .ok_or(ProviderError::TooLarge)?;
        Ok(Some(piece))
    }

    async fn read_all(&mut self) -> Result<Vec<u8>, ProviderError> {
        let announced = self.response.content_length().unwrap_or(0);
        if usize::try_from(announced).map_or(true, |announced| announced > self.left) {
            return Err(ProviderError::TooLarge);
        }
        let mut all = Vec::new();
        while let Some(piece) = self.next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    /// The error that an answer with this status is. The status counts more than the text: if
    /// the text breaks off, stalls or is too long, what there is of it must do.
    async fn into_refusal(mut self, status: StatusCode) -> ProviderError {
        let retry_after = retry::retry_after(self.response.headers(), SystemTime::now());
        let mut text = Vec::new();
        while let Ok(Some(piece)) = self.next().await {
            text.extend_from_slice(&piece);
            if text.len() > overflow::MAX_ERROR_BYTES {
                break;
            }
        }
        refusal(status.as_u16(), retry_after, &text)
    }
}

/// When the limits of one attempt run out.
#[derive(Debug, Clone, Copy)]
struct Clock {
    first_byte: Instant,
    call: Instant,
    idle: Duration,
}

/// Adding more than this to a point in time could overflow it.
const LONGEST: Duration = Duration::from_hours(365 * 24);

impl Clock {
    fn start(timeouts: &Timeouts) -> Self {
        let now = Instant::now();
        Self {
            first_byte: now + timeouts.first_byte.min(LONGEST),
            call: now + timeouts.call.min(LONGEST),
            idle: timeouts.idle.min(LONGEST),
        }
    }

    async fn before_first_byte<F: Future>(&self, work: F) -> Result<F::Output, ProviderError> {
        self.bounded(work, self.first_byte, TimeoutKind::FirstByte)
            .await
    }

    async fn between_bytes<F: Future>(&self, work: F) -> Result<F::Output, ProviderError> {
        self.bounded(work, Instant::now() + self.idle, TimeoutKind::Idle)
            .await
    }

    async fn bounded<F: Future>(
        &self,
        work: F,
        until: Instant,
        which: TimeoutKind,
    ) -> Result<F::Output, ProviderError> {
        let (until, which) = if self.call <= until {
            (self.call, TimeoutKind::Call)
        } else {
            (until, which)
        };
        // A server that always has a byte ready would never let the timer have its turn.
        if Instant::now() >= until {
            return Err(ProviderError::Timeout { which });
        }
        timeout_at(until, work)
            .await
            .map_err(|_| ProviderError::Timeout { which })
    }
}

fn connection_error(error: &reqwest::Error) -> ProviderError {
    // The only timer that the library runs for us is the one for connecting.
    if error.is_connect() && error.is_timeout() {
        ProviderError::Timeout {
            which: TimeoutKind::Connect,
        }
    } else {
        ProviderError::Connect
    }
}

/// The error for a refusal with this status and text.
fn refusal(status: u16, retry_after: Option<Duration>, text: &[u8]) -> ProviderError {
    match overflow::classify(status, text) {
        Refusal::Overflow {
            prompt_tokens,
            window,
        } => ProviderError::Overflow {
            status,
            prompt_tokens,
            window,
        },
        Refusal::RateLimit => ProviderError::RateLimited {
            status,
            retry_after,
        },
        Refusal::Other if status >= 500 => ProviderError::Unavailable {
            status,
            retry_after,
        },
        Refusal::Other => ProviderError::Refused { status },
    }
}

fn malformed(what: &'static str) -> ProviderError {
    ProviderError::Malformed { what }
}

/// The members of an answer that are looked at, each left as it came until it is needed: a
/// member of a strange type spoils only itself.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow, default)]
    choices: Option<&'a RawValue>,
    #[serde(default)]
    usage: Option<Box<RawValue>>,
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(borrow, default)]
    finish_reason: Option<&'a RawValue>,
    /// Where `OpenRouter` reports an error of the server behind it.
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Value,
    #[serde(default)]
    reasoning_content: Value,
    #[serde(default)]
    reasoning: Value,
    #[serde(default)]
    refusal: Value,
    #[serde(default)]
    tool_calls: Value,
    #[serde(default)]
    function_call: Value,
}

/// Reads the body of an answer with a success status.
fn read_completion(bytes: &[u8]) -> Result<Completion, ProviderError> {
    let text = std::str::from_utf8(bytes).map_err(|_| malformed("the body is not UTF-8"))?;
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Err(malformed("the body is empty"));
    }
    if text.starts_with('<') {
        return Err(malformed("the body is a page, not JSON"));
    }
    if let Some(error) = error_in_success(text) {
        return Err(error);
    }
    let answer: Answer<'_> =
        serde_json::from_str(text).map_err(|_| malformed("the body is not a JSON object"))?;
    let choices: Vec<&RawValue> = answer
        .choices
        .and_then(|raw| serde_json::from_str(raw.get()).ok())
        .ok_or(malformed("there is no list of choices"))?;
    let first = choices
        .first()
        .ok_or(malformed("the list of choices is empty"))?;
    let choice: Choice<'_> = object(first).ok_or(malformed("the choice is not an object"))?;
    if let Some(error) = choice.error
        && let Some(error) = error_in_success(&format!("{{\"error\":{}}}", error.get()))
    {
        return Err(error);
    }
    let message = choice
        .message
        .ok_or(malformed("the choice has no message"))?;
    let message: Message = object(message).ok_or(malformed("the message is not an object"))?;
    let mut content = Content::default();
    content.read(&message.content)?;
    let reasoned =
        content.has_thought || speaks(&message.reasoning_content) || speaks(&message.reasoning);
    Ok(Completion {
        reasoning_only: content.text.trim().is_empty() && reasoned,
        text: content.text,
        finish: string(choice.finish_reason),
        refusal: nonblank(&message.refusal).or(content.refusal),
        has_tool_calls: overflow::says_something(&message.tool_calls)
            || overflow::says_something(&message.function_call),
        usage: answer.usage,
        model: string(answer.model),
        attempts: 1,
    })
}

/// The error that a body with a success status is, if it is one.
fn error_in_success(text: &str) -> Option<ProviderError> {
    /// Enough to tell, without building the rest of what may be a long answer.
    #[derive(Deserialize)]
    struct Head {
        #[serde(default)]
        error: Value,
        #[serde(default)]
        object: Value,
        #[serde(default, rename = "type")]
        kind: Value,
    }
    let head: Head = if text.starts_with('[') {
        let list: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        object(list.first()?)?
    } else {
        serde_json::from_str(text).ok()?
    };
    let is_error =
        overflow::says_something(&head.error) || head.object == "error" || head.kind == "error";
    is_error.then(|| {
        let body = text.as_bytes();
        let status = overflow::embedded_status(body).unwrap_or(200);
        refusal(status, None, body)
    })
}

/// Reads an object; serde alone would take a list for one, member by member.
fn object<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Option<T> {
    let text = raw.get();
    text.starts_with('{')
        .then(|| serde_json::from_str(text).ok())
        .flatten()
}

#[derive(Debug, Default)]
struct Content {
    text: String,
    refusal: Option<String>,
    has_thought: bool,
}

impl Content {
    fn read(&mut self, content: &Value) -> Result<(), ProviderError> {
        match content {
            Value::Null => {}
            Value::String(text) => self.text.push_str(text),
            Value::Array(parts) => parts.iter().for_each(|part| self.read_part(part)),
            _ => return Err(malformed("the content is neither text nor a list of parts")),
        }
        Ok(())
    }

    fn read_part(&mut self, part: &Value) {
        if let Value::String(text) = part {
            self.text.push_str(text);
            return;
        }
        let member = |name: &str| part.get(name);
        match member("type").and_then(Value::as_str) {
            Some("text" | "output_text") | None => {
                if let Some(text) = member("text").and_then(Value::as_str) {
                    self.text.push_str(text);
                }
            }
            Some("refusal") => {
                self.refusal = self.refusal.take().or(member("refusal").and_then(nonblank));
            }
            Some("thinking" | "reasoning" | "redacted_thinking") => self.has_thought = true,
            Some(_) => {}
        }
    }
}

fn nonblank(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    (!text.trim().is_empty()).then(|| text.to_owned())
}

/// Whether a member for reasoning holds any.
fn speaks(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(_) | Value::Object(_) => overflow::says_something(value),
        _ => false,
    }
}

fn string(raw: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(raw?.get()).ok()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
