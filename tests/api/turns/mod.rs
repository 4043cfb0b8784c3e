//! Turns: the model is asked through the service, streamed and not, with overflows, cancellations,
//! crashes, and every word that is told of them.

mod answers;
mod crash;
mod events;
mod exclusive;
mod handed_on;
mod overflow;
mod overflow_pruned;
mod refusals;
mod stopping;
mod streaming;
mod verbatim;

use std::ops::Deref;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::support::backend::TestDatabase;
use crate::support::http::{Context, ContextCompaction, Item};
use crate::support::messages::{a, raws, u};
use crate::support::model::{COMPACT, MAIN};
use crate::support::sse::{Frame, Reader};
use crate::support::stream_model::{Piece, Script, StreamCall, StreamModel};
use crate::support::strict::{self, Expectation};
use crate::support::{Backend, History, Http, Reply, TestApp};

/// A service, and the model that it asks. Summaries come from a model of another name.
struct Stage {
    model: StreamModel,
    app: TestApp,
}

impl Deref for Stage {
    type Target = TestApp;

    fn deref(&self) -> &TestApp {
        &self.app
    }
}

const SUMMARY: &str = "SUMMARY of what was said: decisions, findings, files and open problems of the conversation so far.";

/// Settings for this model, with another name for the one that summarises.
fn variables(model: &StreamModel, extra: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut all = model.variables();
    let compact = [("PRECIS_COMPACTION_MODEL", COMPACT)];
    for (name, value) in compact.iter().chain(extra) {
        all.retain(|(known, _)| known != name);
        all.push(((*name).to_owned(), (*value).to_owned()));
    }
    all
}

/// A model whose summaries are acceptable.
async fn start_model() -> StreamModel {
    let model = StreamModel::start().await;
    model.script(COMPACT, [Script::Text(SUMMARY.to_owned())]);
    model
}

impl Stage {
    async fn new(backend: Backend) -> Self {
        Self::with(backend, &[]).await
    }

    async fn with(backend: Backend, extra: &[(&str, &str)]) -> Self {
        let model = start_model().await;
        let database = Arc::new(TestDatabase::create(backend).await);
        let app = TestApp::on(database, variables(&model, extra)).await;
        Self { model, app }
    }

    /// What the model that answers does, call by call.
    fn script(&self, scripts: impl IntoIterator<Item = Script>) {
        self.model.script(MAIN, scripts);
    }

    /// Calls for an answer. Those for a summary have a cap on what is written, also where they are made of
    /// the model that answers because the other one failed.
    fn asked(&self) -> Vec<StreamCall> {
        let calls = self.model.calls().into_iter();
        calls.filter(|call| !is_for_a_summary(call)).collect()
    }

    /// Calls for a summary.
    fn summarised(&self) -> usize {
        let calls = self.model.calls();
        calls.iter().filter(|call| is_for_a_summary(call)).count()
    }

    /// A session of so many turns behind it.
    async fn session_of(&self, turns: usize) -> String {
        self.create_with(&conversation(turns)).await
    }
}

fn is_for_a_summary(call: &StreamCall) -> bool {
    call.body["max_tokens"].is_number()
}

/// Turns whose messages are all different, long enough for a summary to be worth it.
fn conversation(turns: usize) -> Vec<String> {
    (0..turns).flat_map(|n| [u(400 + n), a(500 + n)]).collect()
}

/// A turn as it is answered.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Turn {
    id: String,
    status: String,
    open_calls: Vec<String>,
    usage: Option<Box<RawValue>>,
    finish_reason: Option<String>,
    incomplete: bool,
    dispatch: Option<u64>,
    compaction_version: Option<u64>,
    error: Value,
    compaction: Value,
    messages: Vec<Item>,
}

impl Turn {
    #[track_caller]
    fn of(reply: &Reply) -> Self {
        assert_eq!(reply.status, 200, "expected a turn: {reply}");
        serde_json::from_slice(&reply.body)
            .unwrap_or_else(|cause| panic!("expected a turn ({cause}): {reply}"))
    }

    #[track_caller]
    fn read(data: &Value) -> Self {
        serde_json::from_value(data.clone())
            .unwrap_or_else(|cause| panic!("expected a turn ({cause}): {data}"))
    }

    /// The messages as texts.
    fn texts(&self) -> Vec<&str> {
        self.messages
            .iter()
            .map(|item| item.message.get())
            .collect()
    }
}

fn path(id: &str) -> String {
    format!("/sessions/{id}/turns")
}

/// The body of a turn with these messages; `rest` is further members, each with its comma in front.
fn body(messages: &[String], rest: &str) -> String {
    format!("{{\"messages\":[{}]{rest}}}", messages.join(","))
}

/// Runs a turn.
async fn turn(http: &Http, id: &str, messages: &[String]) -> Reply {
    http.post_raw(&path(id), body(messages, "")).await
}

/// Runs a streamed turn; the reader of it.
async fn stream(http: &Http, id: &str, messages: &[String]) -> Reader {
    http.post_for_events(&path(id), body(messages, r#","stream":true"#))
        .await
}

/// Runs a turn beside the test.
fn beside(http: &Http, id: &str, messages: &[String]) -> tokio::task::JoinHandle<Reply> {
    let (http, id, messages) = (http.clone(), id.to_owned(), messages.to_vec());
    tokio::spawn(async move { turn(&http, &id, &messages).await })
}

async fn load(http: &Http, id: &str, turn: &str) -> Turn {
    Turn::of(&http.get(&format!("{}/{turn}", path(id))).await)
}

async fn cancel(http: &Http, id: &str, turn: &str) -> Reply {
    http.post_empty(&format!("{}/{turn}/cancel", path(id)))
        .await
}

/// The records of a session's turns, newest first.
async fn records(http: &Http, id: &str) -> Vec<Value> {
    let reply = http.get(&path(id)).await.expect(200);
    reply.json()["data"].as_array().expect("a list").clone()
}

/// The id of the turn that runs in a session.
async fn running(http: &Http, id: &str) -> String {
    let newest = records(http, id).await.remove(0);
    assert_eq!(newest["status"], "in_progress", "{newest}");
    newest["id"].as_str().expect("an id").to_owned()
}

/// Texts as what they stand for: what comes through a stream is compared so.
fn values(texts: &[impl AsRef<str>]) -> Vec<Value> {
    let read = |text: &str| serde_json::from_str(text).expect("a message");
    texts.iter().map(|text| read(text.as_ref())).collect()
}

/// The stored messages as texts.
async fn stored(http: &Http, id: &str) -> Vec<String> {
    let items = http.history(id).await;
    items
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect()
}

/// The messages that a model was sent, byte for byte.
fn sent(call: &StreamCall) -> Vec<String> {
    #[derive(Deserialize)]
    struct Sent {
        messages: Vec<Box<RawValue>>,
    }
    let sent: Sent = serde_json::from_slice(&call.raw).expect("a request");
    raws(&sent.messages)
}

fn kinds(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.event.as_str()).collect()
}

/// That a session has told of exactly these, in this order and without a gap, and of nothing else.
async fn tells(http: &Http, id: &str, expected: &[&str]) -> Vec<Frame> {
    let reply = http
        .patch(&format!("/sessions/{id}"), &json!({"title": "the end"}))
        .await;
    reply.expect(200);
    let updates = expected.iter().filter(|kind| **kind == "session.updated");
    let mut left = updates.count();
    let mut reader = http.events(id, Some("0")).await;
    let mut frames = Vec::new();
    loop {
        let frame = reader.next().await.expect("the stream goes on");
        if frame.event == "session.updated" {
            if left == 0 {
                break;
            }
            left -= 1;
        }
        frames.push(frame);
    }
    assert_eq!(kinds(&frames), expected, "{frames:?}");
    for (number, frame) in (1..).zip(&frames) {
        assert_eq!(frame.number(), number, "no gap: {frames:?}");
    }
    frames
}

/// That the session is as usable as any: a turn without a fault is answered.
async fn is_usable(stage: &Stage, http: &Http, id: &str) {
    stage.script([Script::Text("It goes on.".to_owned())]);
    let message = crate::support::messages::user("does it go on?");
    let turn = Turn::of(&turn(http, id, &[message]).await);
    assert_eq!(turn.status, "completed");
}

/// An acceptable summary that waits at a gate.
fn gated_summary() -> Script {
    let body = json!({"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": SUMMARY}}]});
    Script::Stream(vec![Piece::Gate, Piece::Raw(body.to_string().into_bytes())])
}

/// That a request is one that a strict provider takes, made from this history under this pointer.
#[track_caller]
fn is_strict(call: &StreamCall, history: &[String], session: &Value, what: &str) {
    let history = History::new(history);
    let size = session["compactSize"].as_u64().expect("a size");
    let version = session["compactionVersion"].as_u64().expect("a version");
    let size = usize::try_from(size).expect("a small number");
    let context = Context {
        session_id: String::new(),
        format: "openai".to_owned(),
        last_seq: 0,
        compaction: (version > 0).then_some(ContextCompaction { version, size }),
        summary_at: (version > 0).then_some(history.instructions.len()),
        open_calls: Vec::new(),
        tokens: Value::Null,
        messages: sent(call)
            .into_iter()
            .map(|raw| RawValue::from_string(raw).expect("a message"))
            .collect(),
    };
    let expected = Expectation {
        history: &history,
        size,
        summary: session["compactSummary"].as_str(),
    };
    strict::check(&context, &expected, what);
}
