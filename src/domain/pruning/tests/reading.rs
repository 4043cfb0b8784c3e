//! How much a planner reads: little when little is needed, and few rounds whatever the history.

use super::super::*;
use super::support::*;

fn session(steps: impl IntoIterator<Item = [String; 2]>) -> Session {
    Session::new([user("go")].into_iter().chain(steps.into_iter().flatten()))
}

fn read(path: &str, offset: usize) -> String {
    format!(r#"{{"path":"{path}","offset":{offset}}}"#)
}

#[test]
fn a_small_excess_needs_few_bodies() {
    let session =
        session((0..500).map(|n| step("run", &read("x", n), &lines(&format!("out {n}"), 300))));
    let policy = policy();
    let outcome = session.plan(
        &PruningPolicy {
            elide_superseded_reads: false,
            ..policy
        },
        session.estimate() - 10,
    );
    assert_eq!(outcome.edits.len(), 1);
    assert_eq!(outcome.asked, [vec![3], vec![2]]);
}

#[test]
fn ten_thousand_pages_of_one_file_are_a_few_rounds() {
    let session = session((0..5_000).map(|n| step("read", &read("x", n), &format!("page {n}"))));
    let outcome = session.plan(&policy(), i64::MIN);
    assert_eq!(outcome.edits, []);
    let callers = session
        .rows()
        .iter()
        .filter(|row| !row.calls.is_empty())
        .count();
    // Nothing covers anything, so no result is looked at; then the assistant messages for reasoning.
    assert_eq!(outcome.asked_for().len(), callers);
    assert!(outcome.asked.len() <= 2 * callers.div_ceil(256) + 2);
}

#[test]
fn a_thousand_failures_are_a_few_rounds() {
    let good = step("read", r#"{"path":"x"}"#, &lines("good", 100));
    let better = step("read", r#"{"path":"x"}"#, &lines("better", 100));
    let failed = (0..1_000).map(|n| step("read", r#"{"path":"x"}"#, &format!("Error: {n}")));
    let session = session([good, better].into_iter().chain(failed));
    let policy = PruningPolicy {
        drop_stale_reasoning: false,
        max_tool_result_bytes: 10_000,
        ..policy()
    };
    let outcome = session.plan(&policy, i64::MIN);
    assert_eq!(outcome.summary(), [(3, Rule::Superseded, Some(5))]);
    assert!(outcome.asked.len() < 40, "{}", outcome.asked.len());
}

#[test]
fn every_call_may_invent_its_own_arguments() {
    let call = |n: usize| format!(r#"{{"path":"x","a{n}":1,"b{n}":2}}"#);
    let whole = step("read", r#"{"path":"x"}"#, &lines("whole", 50));
    let many = (0..2_000).map(|n| step("read", &call(n), &lines("part", 50)));
    // The newest call covers all; of the 2,000 sets of names only the newest are looked up.
    let session = session(many.chain([whole]));
    let outcome = session.plan(
        &PruningPolicy {
            collapse_duplicate_results: false,
            ..policy()
        },
        i64::MIN,
    );
    assert_eq!(outcome.edits.len(), 2_000);
    assert!(outcome.edits.iter().all(|edit| edit.names == Some(4_003)));
}

#[test]
fn a_giant_result_comes_alone() {
    let giant = lines("giant", 200_000);
    let session = session([
        step("run", r#"{"command":"a"}"#, &giant),
        step("run", r#"{"command":"b"}"#, &lines("small", 300)),
        step("run", r#"{"command":"c"}"#, &giant),
    ]);
    let policy = PruningPolicy {
        collapse_duplicate_results: false,
        ..policy()
    };
    let outcome = session.plan(&policy, i64::MIN);
    assert_eq!(outcome.edits.len(), 3);
    assert!(
        outcome
            .edits
            .iter()
            .all(|edit| edit.replacement.len() < 600)
    );
}
