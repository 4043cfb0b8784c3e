//! The requests that are measured, each with the session that it is made on.

use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Method;
use serde_json::{Value, json};

use crate::measure::Bench;
use crate::support::messages::{padded, result, turns, user};
use crate::support::{Http, Reply, TestApp};

/// A request, and what is special about its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// One message, behind a write of this process.
    Append,
    /// One message under an `Idempotency-Key` that is new.
    AppendUnderKey,
    /// One message to a session that another process wrote to last.
    AppendToUnknown,
    /// A hundred messages.
    AppendHundred,
    Create,
    CreateWithMessages,
    Session,
    /// A page of fifty messages.
    Messages,
    Context,
    /// With the tag of what the client has.
    ContextUnchanged,
    ContextWithSummary,
    ContextWithPlan,
    ContextWithItems,
    /// The first dispatch, which makes a plan.
    DispatchFirst,
    /// A dispatch under a plan that holds.
    DispatchCarried,
    /// A dry run.
    CompactionPlanned,
    Compaction,
}

/// Messages behind the summary.
pub const TAIL: usize = 50;
/// Tokens of them, 25 each.
const TAIL_TOKENS: usize = TAIL * 25;

/// Where requests are made.
pub struct Stage<'b> {
    bench: &'b Bench,
    /// Another process, as far as the service knows.
    other: TestApp,
    keys: AtomicUsize,
}

/// A session, and what its client knows of it.
#[derive(Clone, Default)]
pub struct Made {
    id: String,
    tag: String,
}

impl Made {
    pub fn of(id: String) -> Self {
        Self {
            id,
            tag: String::new(),
        }
    }
}

impl<'b> Stage<'b> {
    pub async fn new(bench: &'b Bench) -> Self {
        Self {
            bench,
            other: bench.app.spawn_second().await,
            keys: AtomicUsize::new(0),
        }
    }

    /// Makes the session that a request is made on.
    pub async fn prepare(&self, request: Request) -> Made {
        let app: &Http = &self.bench.app;
        let id = match request {
            Request::Create | Request::CreateWithMessages => String::new(),
            Request::AppendToUnknown => self.other.create_with(&turns(TAIL / 2, 100)).await,
            Request::ContextWithSummary | Request::CompactionPlanned | Request::Compaction => {
                summarised(app, TAIL).await
            }
            Request::ContextWithItems => conversation(app).await,
            Request::DispatchFirst => pruned(app, 0).await,
            Request::ContextWithPlan | Request::DispatchCarried => {
                let id = pruned(app, 0).await;
                dispatch(app, &id).await;
                id
            }
            _ => app.create_with(&turns(TAIL / 2, 100)).await,
        };
        let mut made = Made::of(id);
        if request == Request::ContextUnchanged {
            made.tag = app.etag(&made.id).await;
        }
        made
    }

    /// Makes the request, and sees that it does what it is to do.
    pub async fn make(&self, request: Request, made: Made) {
        let keyed = || self.keys.fetch_add(1, Ordering::Relaxed);
        make(&self.bench.app, request, &made, keyed).await;
    }
}

/// Makes a request, and sees that it does what it is to do. `number` is new each time.
pub async fn make(app: &Http, request: Request, made: &Made, number: impl Fn() -> usize) {
    let path = |rest: &str| format!("/sessions/{}{rest}", made.id);
    let one = || json!({"messages": [{"role": "user", "content": padded("", 100)}]});
    match request {
        Request::Append | Request::AppendToUnknown => {
            app.post(&path("/messages"), &one()).await.expect(201);
        }
        Request::AppendUnderKey => {
            let key = format!("key-{}", number());
            let headers = [
                ("content-type", "application/json"),
                ("idempotency-key", key.as_str()),
            ];
            let body = Some(one().to_string().into_bytes());
            app.send(Method::POST, &path("/messages"), &headers, body)
                .await
                .expect(201);
        }
        Request::AppendHundred => {
            app.append(&made.id, &turns(50, 100)).await;
        }
        Request::Create => {
            app.create(&json!({"title": "A session"})).await;
        }
        Request::CreateWithMessages => {
            app.create(&one()).await;
        }
        Request::Session => {
            app.session(&made.id).await;
        }
        Request::Messages => {
            let page = app.get(&path("/messages?limit=50&order=desc")).await;
            assert_eq!(page.expect(200).page().data.len(), 50);
        }
        Request::ContextUnchanged => {
            let headers = [("if-none-match", made.tag.as_str())];
            app.get_with(&path("/context"), &headers).await.expect(304);
        }
        Request::Context
        | Request::ContextWithSummary
        | Request::ContextWithPlan
        | Request::ContextWithItems => {
            app.get(&path("/context")).await.expect(200);
        }
        Request::DispatchFirst | Request::DispatchCarried => {
            dispatch(app, &made.id).await;
        }
        Request::CompactionPlanned => {
            let planned = app.compact(&made.id, &json!({"dryRun": true})).await;
            assert_eq!(planned.expect(200).json()["alreadyUpToDate"], false);
        }
        Request::Compaction => {
            let folded = app.compact(&made.id, &json!({})).await;
            assert_eq!(folded.expect(200).json()["alreadyUpToDate"], false);
        }
    }
}

/// Messages of which none says anything new, a thousand at once.
async fn fill(app: &Http, id: &str, mut count: usize) {
    while count > 0 {
        let now = count.min(1_000);
        app.append(id, &turns(now / 2, 100)).await;
        count -= now;
    }
}

/// A session with a summary of so many messages, and [`TAIL`] behind them.
pub async fn summarised(app: &Http, behind: usize) -> String {
    let id = app.create(&json!({})).await;
    fill(app, &id, behind + TAIL).await;
    let folded = app.compact(&id, &json!({"keepTokens": TAIL_TOKENS})).await;
    let folded = folded.expect(200).json();
    assert_eq!(folded["newSize"], behind, "{folded:#}");
    id
}

/// A session that is pruned when it is dispatched: [`TAIL`] messages and one, behind a summary of so many.
pub async fn pruned(app: &Http, behind: usize) -> String {
    let policy = json!({"enabled": true, "budgetTokens": 4_000});
    let id = app.create(&json!({"pruning": policy})).await;
    if behind > 0 {
        fill(app, &id, behind).await;
        let all = json!({"keepTokens": 0, "keepRecentTurns": 0});
        let folded = app.compact(&id, &all).await.expect(200).json();
        assert_eq!(folded["newSize"], behind, "{folded:#}");
    }
    let mut tail = vec![user("Read all of it.")];
    for step in 0..TAIL / 2 {
        let call = format!("call_{step}");
        let arguments = json!({"path": format!("src/{step}.rs")}).to_string();
        tail.push(
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": call,
                "type": "function", "function": {"name": "read", "arguments": arguments}}]})
            .to_string(),
        );
        tail.push(result(&call, &padded(&format!("{step} "), 6_000)));
    }
    app.append(&id, &tail).await;
    id
}

pub async fn dispatch(app: &Http, id: &str) -> Reply {
    let path = format!("/sessions/{id}/context");
    let sent = app.post(&path, &json!({})).await.expect(200);
    let tokens = &sent.json()["tokens"];
    let (before, after) = (tokens["before"].as_i64(), tokens["after"].as_i64());
    assert!(after < before, "a plan is in force: {tokens}");
    sent
}

/// Messages and calls that came as items; its id as a session's.
async fn conversation(app: &Http) -> String {
    let items: Vec<Value> = (0..TAIL / 5)
        .flat_map(|step| {
            let call = format!("call_{step}");
            [
                json!({"type": "message", "role": "user", "content": padded("", 100)}),
                json!({"type": "reasoning", "id": format!("rs_{step}"), "summary": []}),
                json!({"type": "function_call", "call_id": call, "name": "read", "arguments": "{}"}),
                json!({"type": "function_call_output", "call_id": call, "output": "It is empty."}),
                json!({"type": "message", "role": "assistant", "content": padded("", 100)}),
            ]
        })
        .collect();
    let made = app.post("/v1/conversations", &json!({})).await.expect(200);
    let made = made.json();
    let id = made["id"].as_str().expect("an id");
    for chunk in items.chunks(20) {
        let path = format!("/v1/conversations/{id}/items");
        app.post(&path, &json!({"items": chunk})).await.expect(200);
    }
    id.replace("conv_", "sess_")
}
