//! A model that does what a test says, records what it is sent, and can be held still.
//!
//! Holding replaces sleeping: a test starts a compaction, waits until its call has *arrived*, does
//! what it wants to do meanwhile, and lets the answer go.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

/// The key that must never be seen outside the request's header.
pub const API_KEY: &str = "sk-test-3f9c1d-secret";
/// The model of sessions that name none.
pub const MAIN: &str = "main-model";
/// The model that summarises first, where a test configures one.
pub const COMPACT: &str = "compact-model";

/// Nothing in a test takes this long unless it is stuck.
const STUCK: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub enum Answer {
    /// An acceptable summary, numbered by call.
    Summary,
    /// This text, complete.
    Text(String),
    /// A text and the reason why it ended.
    Finished(String, &'static str),
    /// A whole body with status 200.
    Body(Value),
    /// A failure: status, headers, body.
    Status(u16, Vec<(&'static str, String)>, String),
    /// Another answer, later.
    Slow(Duration, Box<Answer>),
    /// A summary that is the list of all marks (see `marks`) in the material, those of the previous
    /// summary among them.
    Marks,
    /// Another answer, if the prompt has no more characters than this; else what a provider says
    /// whose context window is too small.
    Within(usize, Box<Answer>),
}

/// A text of a message that no other message has: `mk` and six digits.
pub fn mark(number: usize) -> String {
    format!("mk{number:06}")
}

/// The marks in a text, in order of their first appearance.
pub fn marks(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (at, _) in text.match_indices("mk") {
        let digits = text.get(at + 2..at + 8);
        if digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit())) {
            let mark = text[at..at + 8].to_owned();
            if !found.contains(&mark) {
                found.push(mark);
            }
        }
    }
    found
}

#[derive(Clone, Debug)]
pub struct Call {
    pub authorization: Option<String>,
    pub body: Value,
}

pub struct ScriptedModel {
    server: MockServer,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    released: Condvar,
    arrived: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    scripts: HashMap<String, VecDeque<Answer>>,
    held: bool,
}

impl ScriptedModel {
    pub async fn start() -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            released: Condvar::new(),
            arrived: watch::Sender::new(0),
        });
        // Not from wiremock's pool: a held server must never be handed to another test.
        let server = MockServer::builder().start().await;
        Mock::given(method("POST"))
            .and(path("/v1/chat/completions"))
            .respond_with(Script(Arc::clone(&shared)))
            .mount(&server)
            .await;
        Self { server, shared }
    }

    /// Settings that make this the model of the service, with short waits.
    pub fn variables(&self) -> Vec<(String, String)> {
        let base = format!("{}/v1", self.server.uri());
        [
            ("PRECIS_MODEL_BASE_URL", base.as_str()),
            ("PRECIS_MODEL", MAIN),
            ("PRECIS_MODEL_API_KEY", API_KEY),
            ("PRECIS_PROVIDER__ATTEMPTS", "3"),
            ("PRECIS_PROVIDER__BACKOFF_INITIAL_MS", "1"),
            ("PRECIS_PROVIDER__BACKOFF_MAX_MS", "5"),
            ("PRECIS_PROVIDER__RETRY_AFTER_MAX_MS", "200"),
            ("PRECIS_PROVIDER__RETRY_WAIT_TOTAL_MS", "400"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
    }

    /// What the model of this name answers, call by call; the last answer stays.
    pub fn script(&self, model: &str, answers: impl IntoIterator<Item = Answer>) {
        self.shared
            .lock()
            .scripts
            .insert(model.to_owned(), answers.into_iter().collect());
    }

    /// From now on calls arrive and are not answered.
    pub fn hold(&self) {
        self.shared.lock().held = true;
    }

    pub fn release(&self) {
        self.shared.lock().held = false;
        self.shared.released.notify_all();
    }

    /// Waits until this many calls have arrived since the start.
    pub async fn arrived(&self, count: usize) {
        let mut arrived = self.shared.arrived.subscribe();
        let waiting = arrived.wait_for(|now| *now >= count);
        tokio::time::timeout(STUCK, waiting)
            .await
            .unwrap_or_else(|_| panic!("expected {count} calls to reach the model"))
            .expect("the model is there");
    }

    pub fn calls(&self) -> Vec<Call> {
        self.shared.lock().calls.clone()
    }

    /// The names of the models that were called, in order.
    pub fn models(&self) -> Vec<String> {
        self.calls()
            .iter()
            .map(|call| call.body["model"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// The newest call.
    pub fn last(&self) -> Call {
        self.calls()
            .pop()
            .expect("expected the model to have been called")
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.release();
    }
}

impl Call {
    /// The compaction prompt.
    pub fn system(&self) -> &str {
        self.content(0, "system")
    }

    /// The material.
    pub fn user(&self) -> &str {
        self.content(1, "user")
    }

    /// The material without the previous summary.
    pub fn transcript(&self) -> String {
        let material = self.user();
        let (open, close) = ("<previous-summary>", "</previous-summary>");
        match (material.find(open), material.find(close)) {
            (Some(from), Some(to)) => {
                format!("{}{}", &material[..from], &material[to + close.len()..])
            }
            _ => material.to_owned(),
        }
    }

    /// What stands in `<previous-summary>`, of which there is at most one.
    pub fn previous(&self) -> Option<&str> {
        let material = self.user();
        let count = material.matches("<previous-summary>").count();
        assert!(count <= 1, "at most one previous summary: {material:.2000}");
        let (_, rest) = material.split_once("<previous-summary>")?;
        let (summary, _) = rest
            .split_once("</previous-summary>")
            .expect("the previous summary ends");
        Some(summary.trim())
    }

    /// The characters of the prompt.
    pub fn size(&self) -> usize {
        self.system().chars().count() + self.user().chars().count()
    }

    fn content(&self, index: usize, role: &str) -> &str {
        let message = &self.body["messages"][index];
        assert_eq!(
            message["role"], role,
            "message {index} of the request to the summarizer has the role {role}"
        );
        message["content"]
            .as_str()
            .expect("the summarizer is sent plain texts")
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits on the mock server's own thread, which serves nobody else.
    fn wait_while_held(&self) {
        let state = self.lock();
        drop(
            self.released
                .wait_timeout_while(state, STUCK, |state| state.held)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

struct Script(Arc<Shared>);

impl Respond for Script {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let model = body["model"].as_str().unwrap_or_default().to_owned();
        let authorization = request
            .headers
            .get("authorization")
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let call = Call {
            authorization,
            body,
        };
        let (number, answer) = {
            let mut state = self.0.lock();
            state.calls.push(call.clone());
            let answer = match state.scripts.get_mut(&model) {
                Some(script) if script.len() > 1 => script.pop_front(),
                Some(script) => script.front().cloned(),
                None => None,
            };
            (state.calls.len(), answer.unwrap_or(Answer::Summary))
        };
        self.0.arrived.send_replace(number);
        self.0.wait_while_held();
        template(answer, number, &call)
    }
}

fn template(answer: Answer, number: usize, call: &Call) -> ResponseTemplate {
    let model = call.body["model"].as_str().unwrap_or_default();
    match answer {
        Answer::Marks => completion(model, &list_of_marks(&marks(call.user())), "stop"),
        Answer::Within(most, _) if call.size() > most => too_long(),
        Answer::Within(_, answer) => template(*answer, number, call),
        Answer::Summary => completion(model, &summary(number), "stop"),
        Answer::Text(text) => completion(model, &text, "stop"),
        Answer::Finished(text, reason) => completion(model, &text, reason),
        Answer::Body(body) => ResponseTemplate::new(200).set_body_json(body),
        Answer::Status(status, headers, body) => headers
            .into_iter()
            .fold(ResponseTemplate::new(status), |template, (name, value)| {
                template.insert_header(name, value.as_str())
            })
            .set_body_raw(body, "application/json"),
        Answer::Slow(delay, answer) => template(*answer, number, call).set_delay(delay),
    }
}

/// What a provider says to a prompt that exceeds its context window.
pub fn too_long() -> ResponseTemplate {
    ResponseTemplate::new(400).set_body_json(json!({"error": {
        "message": "This model's maximum context length was exceeded. Please reduce the length of the messages.",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }}))
}

fn list_of_marks(marks: &[String]) -> String {
    format!(
        "The scripted model was shown these marks, one for each message: {}",
        marks.join(" ")
    )
}

/// Long enough for any batch, short enough for all over the limit below which size is free.
fn summary(number: usize) -> String {
    format!(
        "SUMMARY {number}: decisions, findings, files and open problems of the conversation so far, \
         written down by the scripted model."
    )
}

fn completion(model: &str, text: &str, reason: &str) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(json!({
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": reason,
        }],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }))
}
