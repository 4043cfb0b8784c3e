//! Requests to the replicas, and what holds for every answer: a problem document for whatever is refused, only errors
//! that are documented, and no content in any of them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Client, Method, Response};
use serde_json::Value;
use tokio::time::sleep;

use crate::Outcome;
use crate::findings::Findings;
use crate::random::Random;
use crate::server::Replica;

/// Stands in the content of each message that the run sends.
pub const CONTENT_MARK: &str = "~CONTENT~";
/// Stands in each answer of the scripted model and summarizer.
pub const MODEL_MARK: &str = "~ANSWER~";
/// How long any request may take. Longer is a hang.
const PATIENCE: Duration = Duration::from_secs(90);

/// What came of a request.
#[derive(Debug)]
pub enum Reply {
    /// Success.
    Done(Bytes),
    /// A problem: its code.
    Refused(String),
    /// The connection broke, or none came about: nobody knows what became of the request.
    Broken,
    /// No replica runs: the request was not sent.
    Nobody,
}

impl Reply {
    /// The body of a success.
    pub fn json(&self) -> Option<Value> {
        match self {
            Self::Done(body) => serde_json::from_slice(body).ok(),
            _ => None,
        }
    }
}

/// A way to all replicas.
pub struct Web {
    client: Client,
    replicas: Vec<Arc<Replica>>,
    key: Option<String>,
    findings: Arc<Findings>,
}

/// A request.
pub struct Ask<'a> {
    /// Its name in the counts.
    pub name: &'a str,
    pub method: Method,
    pub path: String,
    pub body: Option<String>,
    pub headers: Vec<(&'static str, String)>,
    /// Codes of problems that may be the answer, beside `STORAGE_UNAVAILABLE`.
    pub codes: &'a [&'a str],
}

impl<'a> Ask<'a> {
    /// A reading request.
    pub fn get(name: &'a str, path: impl Into<String>) -> Self {
        Self {
            name,
            method: Method::GET,
            path: path.into(),
            body: None,
            headers: Vec::new(),
            codes: &[],
        }
    }

    /// A request with a body.
    pub fn post(
        name: &'a str,
        path: impl Into<String>,
        body: impl Into<String>,
        codes: &'a [&'a str],
    ) -> Self {
        Self {
            method: Method::POST,
            body: Some(body.into()),
            codes,
            ..Self::get(name, path)
        }
    }

    /// With a header.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

impl Web {
    /// A client of these replicas.
    pub fn new(
        replicas: Vec<Arc<Replica>>,
        key: Option<String>,
        findings: Arc<Findings>,
    ) -> Outcome<Self> {
        let client = Client::builder()
            .no_proxy()
            .connect_timeout(Duration::from_secs(10))
            .build()?;
        Ok(Self {
            client,
            replicas,
            key,
            findings,
        })
    }

    /// The header that a request of one's own needs, with its end of line; empty without a key.
    pub fn authorization(&self) -> String {
        let key = self.key.as_ref();
        key.map_or_else(String::new, |key| {
            format!("Authorization: Bearer {key}\r\n")
        })
    }

    /// The address of a replica that runs.
    pub fn address(&self, random: &mut Random) -> Option<String> {
        let first = random.below(self.replicas.len());
        let order = self.replicas.iter().cycle().skip(first);
        order
            .take(self.replicas.len())
            .find_map(|replica| replica.address())
    }

    /// Sends a request and gives the answer before its body.
    pub async fn open(&self, address: &str, ask: &Ask<'_>) -> reqwest::Result<Response> {
        let url = format!("http://{address}{}", ask.path);
        let mut request = self.client.request(ask.method.clone(), url);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        if let Some(body) = &ask.body {
            request = request
                .header("content-type", "application/json")
                .body(body.clone());
        }
        request.send().await
    }

    /// Sends a request to some replica and reads the answer.
    pub async fn ask(&self, random: &mut Random, ask: Ask<'_>) -> Reply {
        let Some(address) = self.address(random) else {
            sleep(Duration::from_millis(50)).await;
            return Reply::Nobody;
        };
        let work = async {
            match self.open(&address, &ask).await {
                Ok(response) => self.read(&ask, response).await,
                Err(_) => Reply::Broken,
            }
        };
        let reply = tokio::time::timeout(PATIENCE, work).await;
        let reply = reply.unwrap_or_else(|_| {
            let text = format!("{}: no answer within {PATIENCE:?}", ask.name);
            self.findings.violation(text);
            Reply::Broken
        });
        let outcome = match &reply {
            Reply::Done(_) => "done",
            Reply::Refused(code) => code.as_str(),
            Reply::Broken | Reply::Nobody => "broken",
        };
        self.findings.count(format!("{} {outcome}", ask.name));
        if matches!(reply, Reply::Broken) {
            // Whoever has just lost a replica does not run at the next at once.
            sleep(Duration::from_millis(20)).await;
        }
        reply
    }

    /// Reads an answer; a refusal is checked.
    pub async fn read(&self, ask: &Ask<'_>, response: Response) -> Reply {
        let status = response.status().as_u16();
        let is_problem = response
            .headers()
            .get("content-type")
            .is_some_and(|kind| kind == "application/problem+json");
        let retry = response.headers().contains_key("retry-after");
        let Ok(body) = response.bytes().await else {
            return Reply::Broken;
        };
        if (200..300).contains(&status) {
            return Reply::Done(body);
        }
        Reply::Refused(self.check_problem(ask, status, (is_problem, retry), &body))
    }

    /// Checks a problem document and gives its code.
    fn check_problem(
        &self,
        ask: &Ask<'_>,
        status: u16,
        (is_problem, retry): (bool, bool),
        body: &[u8],
    ) -> String {
        let document: Value = serde_json::from_slice(body).unwrap_or_default();
        let member = |name: &str| document.get(name).cloned().unwrap_or_default();
        let code = member("code").as_str().unwrap_or_default().to_owned();
        let text = String::from_utf8_lossy(body);
        let about = || format!("{} {}: {status} {text}", ask.name, ask.path);
        let is_whole = is_problem
            && member("status") == status
            && !code.is_empty()
            && member("requestId")
                .as_str()
                .is_some_and(|id| !id.is_empty());
        self.findings
            .check(is_whole, || format!("no problem document: {}", about()));
        let is_known = code == "STORAGE_UNAVAILABLE" || ask.codes.contains(&code.as_str());
        let is_known = is_known && (status < 500 || matches!(status, 502..=504));
        self.findings.check(is_known, || {
            format!("an answer that may not be: {}", about())
        });
        let asks_back = status == 503 || status == 429 || code.ends_with("_IN_PROGRESS");
        self.findings.check(retry || !asks_back, || {
            format!("no Retry-After: {}", about())
        });
        let leaks = text.contains(CONTENT_MARK) || text.contains(MODEL_MARK);
        self.findings
            .check(!leaks, || format!("content in a problem: {}", about()));
        code
    }
}
