//! Random histories through the whole service: parallel, interrupted and repeated calls, several
//! user messages in a row, instructions anywhere, compactions of every kind in between. Each step
//! is compared with the oracle, and each context is checked as a strict provider would.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::chain;
use crate::support::messages::{assistant, calls, result, user};
use crate::support::{Backend, Boundary, History, Http, Request, TestApp};

#[derive(Clone, Debug)]
enum Step {
    User(usize),
    Assistant(usize),
    /// So many parallel calls, with ids that other messages use too.
    Calls(usize, usize),
    /// Answers one of the open calls.
    Result(usize, usize),
    Instruction(bool),
    Compact(Request),
}

fn request() -> impl Strategy<Value = Request> {
    let boundary = prop_oneof![Just(Boundary::Turn), Just(Boundary::Step)];
    (1..=99_usize, boundary, 0..=3_usize).prop_map(|(percent, boundary, keep)| Request {
        percent,
        boundary,
        keep,
    })
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 6 => 1..200_usize, 1 => 200..3_000_usize]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => length().prop_map(Step::User),
        4 => length().prop_map(Step::Assistant),
        3 => (1..=3_usize, length()).prop_map(|(count, length)| Step::Calls(count, length)),
        6 => (0..3_usize, length()).prop_map(|(which, length)| Step::Result(which, length)),
        1 => any::<bool>().prop_map(Step::Instruction),
        2 => request().prop_map(Step::Compact),
    ]
}

/// A text of about this length that no other message has, or none at all.
fn text(number: usize, length: usize) -> String {
    if length == 0 {
        String::new()
    } else {
        format!("m{number} {}", "x".repeat(length))
    }
}

/// The message of a step, if it is one that can be appended now.
fn message(step: &Step, number: usize, history: &History) -> Option<String> {
    let message = match step {
        Step::User(length) => user(&text(number, *length)),
        Step::Assistant(length) => assistant(&text(number, *length)),
        Step::Calls(count, length) => {
            // Contents differ, ids don't.
            let ids = &["call_0", "call_1", "call_2"][..*count];
            calls(ids, *length)
        }
        Step::Result(which, length) => {
            let open = history.open_calls();
            let id = open.get(which % open.len().max(1))?;
            result(id, &text(number, *length))
        }
        Step::Instruction(developer) => {
            let role = if *developer { "developer" } else { "system" };
            json!({"role": role, "content": text(number, 20)}).to_string()
        }
        Step::Compact(_) => return None,
    };
    Some(message)
}

async fn run(http: &Http, steps: &[Step]) {
    let id = http.create(&json!({})).await;
    let mut history = History::default();
    let mut waiting: Vec<String> = Vec::new();
    let mut all: Vec<String> = Vec::new();
    // Ends with runs that reach for everything, whatever came before.
    let last = [
        Request::percent(30),
        Request::percent(99),
        Request::step(99),
    ]
    .map(Step::Compact);
    for (number, step) in steps.iter().chain(&last).enumerate() {
        if let Some(message) = message(step, number, &history) {
            history.push(&message);
            waiting.push(message);
        } else if let Step::Compact(request) = step {
            if !waiting.is_empty() {
                http.append(&id, &waiting).await;
                all.append(&mut waiting);
            }
            chain::compact_and_check(http, &id, &history, *request, "random history").await;
        }
    }
    let items = http.history(&id).await;
    let stored: Vec<&str> = items.iter().map(|item| item.message.get()).collect();
    assert_eq!(stored, all, "the history is what was appended");
    let lengths: Vec<usize> = items
        .iter()
        .filter(|item| item.position.is_some())
        .map(|item| item.length)
        .collect();
    let expected: Vec<usize> = history.messages.iter().map(|m| m.length).collect();
    assert_eq!(lengths, expected, "each length is the one of the contract");
    let deleted: Value = json!(http.delete(&format!("/sessions/{id}")).await.status);
    assert_eq!(deleted, 204, "the session can be deleted");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn plan_and_render_hold_for_random_histories(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut runner = TestRunner::new(Config {
        cases: 48,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let steps = prop::collection::vec(step(), 1..40);
    let handle = tokio::runtime::Handle::current();
    let outcome = tokio::task::block_in_place(|| {
        runner.run(&steps, |steps| {
            handle.block_on(run(&app, &steps));
            Ok(())
        })
    });
    if let Err(cause) = outcome {
        panic!("expected every history to hold, but: {cause}");
    }
}
