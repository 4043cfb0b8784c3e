//! Everything that can be done to a session, in random order, against a plain list (`shadow`):
//! appends, compactions of both modes, restores, rewinds, forks, edits, erasures, resets, closing.
//! After each step the whole session is compared, and what was taken away is looked for everywhere.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{assistant, padded, result, user};
use crate::support::model::{MAIN, mark};
use crate::support::oracle::Message;
use crate::support::shadow::Shadow;
use crate::support::tokens::Budget;
use crate::support::{Answer, Backend, Boundary, Http, Request, ScriptedModel, TestApp};

/// No new case begins after this long.
const ENOUGH: Duration = Duration::from_secs(30);
/// Sessions of one case: the first and its forks.
const SESSIONS: usize = 3;

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
    Keep(Budget),
    /// One of the versions, none, or one that does not exist.
    Restore(usize),
    /// To a part of what there is, in per cent.
    Rewind(u64),
    Fork(Option<u64>),
    /// A message, by index from the end, and the new length.
    Edit(usize, usize),
    Erase(usize),
    Reset,
    CloseAndReopen,
    /// Goes on with another session.
    Switch(usize),
}

fn boundary() -> impl Strategy<Value = Boundary> {
    prop_oneof![Just(Boundary::Turn), Just(Boundary::Step)]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 10..200_usize, 1 => 200..2_000_usize]
}

fn step() -> impl Strategy<Value = Step> {
    let compact = (1..=99_usize, boundary(), 0..=2_usize).prop_map(|(percent, boundary, keep)| {
        Step::Compact(Request {
            percent,
            boundary,
            keep,
        })
    });
    let keep = (0..600_usize, boundary(), 0..=2_usize).prop_map(|(tokens, boundary, keep)| {
        Step::Keep(Budget {
            tokens,
            boundary,
            keep,
        })
    });
    prop_oneof![
        8 => length().prop_map(Step::User),
        8 => length().prop_map(Step::Assistant),
        4 => (1..=3_usize, length()).prop_map(|(count, length)| Step::Calls(count, length)),
        8 => (0..3_usize, length()).prop_map(|(which, length)| Step::Result(which, length)),
        1 => any::<bool>().prop_map(Step::Instruction),
        5 => compact,
        3 => keep,
        2 => (0..6_usize).prop_map(Step::Restore),
        2 => (0..=100_u64).prop_map(Step::Rewind),
        1 => prop::option::of(0..=100_u64).prop_map(Step::Fork),
        3 => (0..40_usize, length()).prop_map(|(which, length)| Step::Edit(which, length)),
        3 => (0..40_usize).prop_map(Step::Erase),
        1 => Just(Step::CloseAndReopen),
        2 => (0..SESSIONS).prop_map(Step::Switch),
    ]
}

/// Resets are rare, so that there is something to reset.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let long = prop::collection::vec(step(), 5..45);
    (long, prop::bool::weighted(0.2), 0..45_usize).prop_map(|(mut steps, reset, place)| {
        if reset {
            steps.insert(place.min(steps.len()), Step::Reset);
        }
        steps
    })
}

/// A text that no other message of any case has.
fn text(length: usize) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    padded(&format!("{} ", mark(number)), length.max(10))
}

fn calling(ids: &[String], text: &str) -> String {
    let calls: Vec<Value> = ids
        .iter()
        .map(|id| json!({"id": id, "type": "function", "function": {"name": "tool", "arguments": "{}"}}))
        .collect();
    json!({"role": "assistant", "content": text, "tool_calls": calls}).to_string()
}

/// The message of a step, if it is one that can be appended now.
fn message(step: &Step, shadow: &Shadow) -> Option<String> {
    Some(match step {
        Step::User(length) => user(&text(*length)),
        Step::Assistant(length) => assistant(&text(*length)),
        Step::Calls(count, length) => {
            let ids: Vec<String> = (0..*count).map(|n| format!("call_{n}")).collect();
            calling(&ids, &text(*length))
        }
        Step::Result(which, length) => {
            let open = shadow.history().open_calls();
            result(open.get(which % open.len().max(1))?, &text(*length))
        }
        Step::Instruction(developer) => {
            let role = if *developer { "developer" } else { "system" };
            json!({"role": role, "content": text(20)}).to_string()
        }
        _ => return None,
    })
}

/// Another message of the same shape.
fn edited(raw: &str, length: usize) -> String {
    let old = Message::read(raw);
    let text = text(length);
    match (old.answers, old.calls.as_slice()) {
        (Some(id), _) => result(&id, &text),
        (None, []) => json!({"role": old.role, "content": text}).to_string(),
        (None, ids) => calling(ids, &text),
    }
}

/// Whatever would write is refused while the session is closed; a fork is not a write.
async fn close_and_reopen(http: &Http, shadow: &mut Shadow) {
    let root = format!("/sessions/{}", shadow.id);
    http.post_empty(&format!("{root}/close")).await.expect(200);
    shadow.closed = true;
    let mut replies = vec![
        http.append_raw(&shadow.id, &format!("[{}]", user("late")))
            .await,
        http.compact(&shadow.id, &json!({})).await,
        http.rewind(&shadow.id, 0).await,
        http.restore(&shadow.id, 0).await,
        http.post_empty(&format!("{root}/reset")).await,
    ];
    if let Some(message) = shadow.messages.last() {
        replies.push(http.replace(&shadow.id, &message.id, &message.raw).await);
        replies.push(http.erase(&shadow.id, &message.id).await);
    }
    for reply in replies {
        reply.problem(400, "SESSION_CLOSED");
    }
    shadow.check(http, "closed").await;
    http.post_empty(&format!("{root}/reopen")).await.expect(200);
    shadow.closed = false;
}

async fn change(http: &Http, shadows: &mut Vec<Shadow>, current: &mut usize, step: &Step) {
    let count = shadows.len();
    let shadow = &mut shadows[*current];
    let nth = |percent: u64| shadow_seq(shadow, percent);
    match step {
        Step::Compact(request) => {
            let summary = shadow.summary().map_or(0, str::len);
            let plan = shadow.history().plan(shadow.size(), summary, *request);
            shadow
                .compact(http, &request.body(), plan, "percentage")
                .await;
        }
        Step::Keep(budget) => {
            let plan = shadow.history().plan_within(shadow.size(), *budget);
            shadow.compact(http, &budget.body(), plan, "budget").await;
        }
        Step::Restore(which) => {
            let highest = shadow.versions.iter().map(|v| v.number).max().unwrap_or(0);
            shadow.restore(http, *which as u64 % (highest + 2)).await;
        }
        Step::Rewind(percent) => {
            let to = nth(*percent);
            shadow.rewind(http, to).await;
        }
        Step::Fork(percent) if count < SESSIONS => {
            let at = percent.map(nth);
            let fork = shadow.fork(http, at).await;
            fork.check(http, "a fork as it was made").await;
            shadows.push(fork);
        }
        Step::Edit(which, length) => {
            if let Some(index) = from_the_end(shadow, *which)
                && !shadow.messages[index].erased
            {
                let raw = edited(&shadow.messages[index].raw, *length);
                shadow.edit(http, index, &raw).await;
            }
        }
        Step::Erase(which) => {
            if let Some(index) = from_the_end(shadow, *which)
                && !shadow.messages[index].erased
            {
                shadow.erase(http, index).await;
            }
        }
        Step::Reset => shadow.reset(http).await,
        Step::CloseAndReopen => close_and_reopen(http, shadow).await,
        Step::Switch(which) => *current = which % count,
        _ => {}
    }
}

/// The seq of a message so far from the start; 0 is before the first.
fn shadow_seq(shadow: &Shadow, percent: u64) -> u64 {
    let count = shadow.messages.len();
    let index = count * usize::try_from(percent).expect("a percentage") / 100;
    index
        .checked_sub(1)
        .map_or(0, |index| shadow.messages[index].seq)
}

fn from_the_end(shadow: &Shadow, which: usize) -> Option<usize> {
    let count = shadow.messages.len();
    count.checked_sub(1 + which % count.max(1))
}

async fn run(http: &Http, steps: &[Step]) {
    let mut shadows = vec![Shadow::create(http).await];
    let mut current = 0;
    for step in steps {
        if let Some(message) = message(step, &shadows[current]) {
            shadows[current].push(message);
            continue;
        }
        shadows[current].flush(http).await;
        change(http, &mut shadows, &mut current, step).await;
        let what = format!("after {step:?}");
        // The other sessions are compared at the end: what one does must not reach the others.
        shadows[current].check(http, &what).await;
        if matches!(
            step,
            Step::Rewind(_) | Step::Edit(..) | Step::Erase(_) | Step::Reset
        ) {
            shadows[current].check_traces(http, &what).await;
        }
    }
    for shadow in &mut shadows {
        shadow.flush(http).await;
        shadow.check(http, "at the end").await;
        let request = Request::step(99);
        let summary = shadow.summary().map_or(0, str::len);
        let plan = shadow.history().plan(shadow.size(), summary, request);
        shadow
            .compact(http, &request.body(), plan, "the last run")
            .await;
        shadow.check(http, "after the last run").await;
        shadow.check_traces(http, "after the last run").await;
    }
    for shadow in &shadows {
        http.delete(&format!("/sessions/{}", shadow.id))
            .await
            .expect(204);
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_what_was_done_to_it(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    model.script(MAIN, [Answer::Marks]);
    let app = TestApp::with_model(backend, &model, &[]).await;
    let mut runner = TestRunner::new(Config {
        cases: 64,
        max_shrink_iters: 100,
        failure_persistence: None,
        ..Config::default()
    });
    let handle = tokio::runtime::Handle::current();
    let started = Instant::now();
    let outcome = tokio::task::block_in_place(|| {
        runner.run(&steps(), |steps| {
            if started.elapsed() < ENOUGH {
                handle.block_on(run(&app, &steps));
            }
            Ok(())
        })
    });
    if let Err(cause) = outcome {
        panic!("expected every session to be what was done to it, but: {cause}");
    }
}
