//! The client of the tests: paths in, whole replies out, and assertions that say what was expected.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HeaderMap};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A running service, wherever it runs.
#[derive(Clone)]
pub struct Http {
    pub address: SocketAddr,
    client: reqwest::Client,
}

#[derive(Debug, Clone)]
pub struct Reply {
    /// Method and path, for messages.
    pub request: String,
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// `GET …/context`, its messages as the bytes that came.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Context {
    pub session_id: String,
    pub format: String,
    pub last_seq: u64,
    pub compaction: Option<ContextCompaction>,
    pub summary_at: Option<usize>,
    pub open_calls: Vec<String>,
    pub tokens: Value,
    pub messages: Vec<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
pub struct ContextCompaction {
    pub version: u64,
    pub size: usize,
}

/// One message of a list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    pub id: String,
    pub seq: u64,
    pub position: Option<usize>,
    pub length: usize,
    pub state: String,
    pub message: Box<RawValue>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    pub data: Vec<Item>,
    pub next_cursor: Option<String>,
}

impl Http {
    pub fn new(address: SocketAddr) -> Self {
        Self::sending(address, HeaderMap::new())
    }

    /// The same service, asked with a key.
    pub fn with_key(&self, key: &str) -> Self {
        let value = format!("Bearer {key}").parse().expect("a header's value");
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        Self::sending(self.address, headers)
    }

    /// A client that sends these headers with every request.
    fn sending(address: SocketAddr, headers: HeaderMap) -> Self {
        super::install_crypto();
        let client = reqwest::Client::builder()
            .no_proxy()
            .default_headers(headers)
            // Nothing here speaks TLS; reading the system's certificates takes longer than a test.
            .tls_certs_only([])
            .timeout(Duration::from_mins(1))
            .build()
            .expect("a client");
        Self { address, client }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// One request; `Err` only when there was no reply.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<Reply, reqwest::Error> {
        let mut request = self.client.request(method.clone(), self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let response = request.send().await?;
        let headers = response.headers().clone();
        let kind = headers
            .get("content-type")
            .map_or(&b""[..], |kind| kind.as_bytes());
        Ok(Reply {
            request: format!("{method} {path}"),
            status: response.status().as_u16(),
            // A stream of events has no end.
            body: if kind == b"text/event-stream" {
                Bytes::new()
            } else {
                response.bytes().await?
            },
            headers,
        })
    }

    /// The client for streams.
    pub fn streaming(&self) -> &reqwest::Client {
        &self.client
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Reply {
        self.try_send(method.clone(), path, headers, body)
            .await
            .unwrap_or_else(|cause| panic!("{method} {path} got no reply: {cause:?}"))
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], None).await
    }

    pub async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.send(Method::GET, path, headers, None).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.send(Method::DELETE, path, &[], None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send_json(Method::POST, path, body.to_string()).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Reply {
        self.send_json(Method::PATCH, path, body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Reply {
        self.send_json(Method::PUT, path, body.to_string()).await
    }

    /// A POST whose body is these bytes and no others.
    pub async fn post_raw(&self, path: &str, body: impl Into<Vec<u8>>) -> Reply {
        self.send_json(Method::POST, path, body).await
    }

    pub async fn post_empty(&self, path: &str) -> Reply {
        self.send(Method::POST, path, &[], None).await
    }

    async fn send_json(&self, method: Method, path: &str, body: impl Into<Vec<u8>>) -> Reply {
        let json = [("content-type", "application/json")];
        self.send(method, path, &json, Some(body.into())).await
    }

    /// A new session; its id.
    pub async fn create(&self, body: &Value) -> String {
        let reply = self.post("/sessions", body).await.expect(201);
        reply.json()["id"]
            .as_str()
            .unwrap_or_else(|| panic!("a created session has an id: {reply}"))
            .to_owned()
    }

    /// A new session that holds these messages; its id.
    pub async fn create_with(&self, messages: &[String]) -> String {
        let id = self.create(&json!({})).await;
        self.append(&id, messages).await;
        id
    }

    pub async fn session(&self, id: &str) -> Value {
        self.get(&format!("/sessions/{id}"))
            .await
            .expect(200)
            .json()
    }

    /// Appends a JSON array of messages, exactly these bytes.
    pub async fn append_raw(&self, id: &str, array: &str) -> Reply {
        let body = format!("{{\"messages\":{array}}}");
        self.post_raw(&format!("/sessions/{id}/messages"), body)
            .await
    }

    /// Appends and expects success; what the service says of each message.
    pub async fn append(&self, id: &str, messages: &[String]) -> Vec<Value> {
        let reply = self
            .append_raw(id, &format!("[{}]", messages.join(",")))
            .await
            .expect(201);
        reply.appended()
    }

    /// The whole history, page by page.
    pub async fn history(&self, id: &str) -> Vec<Item> {
        let mut items = Vec::new();
        let mut path = format!("/sessions/{id}/messages?limit=1000");
        loop {
            let page = self.get(&path).await.expect(200).page();
            items.extend(page.data);
            match page.next_cursor {
                Some(cursor) => {
                    path = format!("/sessions/{id}/messages?limit=1000&cursor={cursor}");
                }
                None => return items,
            }
        }
    }

    pub async fn context(&self, id: &str) -> Context {
        self.get(&format!("/sessions/{id}/context"))
            .await
            .expect(200)
            .context()
    }

    pub async fn compact(&self, id: &str, body: &Value) -> Reply {
        self.post(&format!("/sessions/{id}/compact"), body).await
    }

    pub async fn rewind(&self, id: &str, to: u64) -> Reply {
        self.post(&format!("/sessions/{id}/rewind"), &json!({"toSeq": to}))
            .await
    }

    pub async fn fork(&self, id: &str, body: &Value) -> Reply {
        self.post(&format!("/sessions/{id}/fork"), body).await
    }

    pub async fn restore(&self, id: &str, version: u64) -> Reply {
        self.post_empty(&format!("/sessions/{id}/compactions/{version}/restore"))
            .await
    }

    /// Puts a message in the place of another: exactly these bytes.
    pub async fn replace(&self, id: &str, message: &str, raw: &str) -> Reply {
        let path = format!("/sessions/{id}/messages/{message}");
        self.send_json(Method::PUT, &path, raw).await
    }

    pub async fn erase(&self, id: &str, message: &str) -> Reply {
        self.delete(&format!("/sessions/{id}/messages/{message}"))
            .await
    }

    /// The `ETag` of the context.
    pub async fn etag(&self, id: &str) -> String {
        let reply = self.get(&format!("/sessions/{id}/context")).await;
        let tag = reply.expect(200).header("etag").map(str::to_owned);
        tag.expect("a context has an ETag")
    }

    /// The chain, oldest version first.
    pub async fn compactions(&self, id: &str) -> Vec<Value> {
        let reply = self
            .get(&format!("/sessions/{id}/compactions?limit=1000"))
            .await
            .expect(200);
        let mut records = reply.json()["data"]
            .as_array()
            .unwrap_or_else(|| panic!("a list has `data`: {reply}"))
            .clone();
        records.sort_by_key(|record| record["version"].as_u64());
        records
    }

    /// A request line that no client library would send; the whole answer as text.
    pub fn raw_get(&self, target: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a time-out");
        let mut request = b"GET ".to_vec();
        request.extend_from_slice(target);
        request.extend_from_slice(b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(&request).expect("the request is sent");
        let mut answer = Vec::new();
        stream
            .read_to_end(&mut answer)
            .expect("the service answers and closes");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

impl Reply {
    /// The reply, if it has this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "expected status {status}: {self}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|cause| panic!("expected a JSON body ({cause}): {self}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    #[track_caller]
    pub fn page(&self) -> Page {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|cause| panic!("expected a page of messages ({cause}): {self}"))
    }

    #[track_caller]
    pub fn context(&self) -> Context {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|cause| panic!("expected a context ({cause}): {self}"))
    }

    /// What the answer to an append says of each message.
    #[track_caller]
    pub fn appended(&self) -> Vec<Value> {
        let body = self.json();
        // The contract fixes the items, not the name of the list.
        ["data", "messages"]
            .iter()
            .find_map(|name| body[*name].as_array())
            .unwrap_or_else(|| panic!("an append answers with a list of its messages: {self}"))
            .clone()
    }

    /// The problem document, which must have this status and code and all members of RFC 9457.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "expected {status} {code}, got: {self}");
        if self.is_v1() {
            return self.openai_error(code);
        }
        let media_type = self.header("content-type").unwrap_or_default();
        assert!(
            media_type.starts_with("application/problem+json"),
            "expected application/problem+json, got `{media_type}`: {self}"
        );
        let body = self.json();
        assert_eq!(body["code"], code, "expected the code {code}: {self}");
        assert_eq!(
            body["status"], status,
            "the member `status` repeats the status: {self}"
        );
        assert_eq!(
            body["type"],
            format!("/docs/errors#{code}"),
            "`type` points to the documentation of the code: {self}"
        );
        for member in ["title", "detail", "instance", "requestId"] {
            assert!(
                body[member].as_str().is_some_and(|text| !text.is_empty()),
                "a problem has a text `{member}`: {self}"
            );
        }
        assert_eq!(
            body["requestId"].as_str(),
            self.header("x-request-id"),
            "`requestId` is the x-request-id of the reply: {self}"
        );
        body
    }

    /// Whether it comes from a route that answers in the shape of OpenAI's API.
    pub fn is_v1(&self) -> bool {
        self.request.contains(" /v1/")
    }

    /// An error as OpenAI's clients read it, in the words of a problem.
    #[track_caller]
    fn openai_error(&self, code: &str) -> Value {
        let media_type = self.header("content-type");
        assert_eq!(media_type, Some("application/json"), "{self}");
        let body = self.json();
        let expected = match code {
            "UNAUTHENTICATED" => "invalid_api_key".to_owned(),
            "RATE_LIMITED" => "rate_limit_exceeded".to_owned(),
            code => code.to_ascii_lowercase(),
        };
        let error = &body["error"];
        assert_eq!(error["code"], expected.as_str(), "{self}");
        serde_json::json!({"code": code, "status": self.status, "detail": error["message"]})
    }

    /// A problem whose `errors` name this place.
    #[track_caller]
    pub fn invalid(&self, pointer: &str) -> Value {
        let body = self.problem(422, "VALIDATION_FAILED");
        let named = body["errors"].as_array().is_some_and(|errors| {
            errors.iter().any(|error| {
                error["pointer"] == pointer
                    && error["message"]
                        .as_str()
                        .is_some_and(|text| !text.is_empty())
            })
        });
        assert!(
            named,
            "expected an error at the pointer `{pointer}`: {self}"
        );
        body
    }
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy(&self.body);
        let shown: String = text.chars().take(1_500).collect();
        write!(f, "{} answered {} with: {shown}", self.request, self.status)
    }
}
