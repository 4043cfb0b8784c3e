//! Limits: each is reached, refuses in the words of the contract, and lets work go on once there is room again.
//!
//! No test rests on how fast anything is: what heals by itself is waited for, and a rate is held against the time
//! that has passed.

mod bodies;
mod rates;
mod settings;
mod stored;
mod work;

use std::future::Future;
use std::time::Duration;

use crate::support::Reply;

/// Nothing in a test takes this long unless it is stuck.
const STUCK: Duration = Duration::from_mins(1);

/// The refusal of a tenant's limit, which says its name, how much it is, and when to come back.
#[track_caller]
fn limited(reply: &Reply, limit: &str, most: usize) {
    let problem = reply.problem(429, "RATE_LIMITED");
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(
        detail.contains(&format!("`{limit}` of {most} ")),
        "the limit and how much it is: {reply}"
    );
    comes_again(reply);
}

/// The refusal of a server that bears no more of something.
#[track_caller]
fn overloaded(reply: &Reply, setting: &str) {
    let problem = reply.problem(503, "OVERLOADED");
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(detail.contains(setting), "the setting's name: {reply}");
    comes_again(reply);
}

#[track_caller]
fn comes_again(reply: &Reply) {
    let wait = reply.header("retry-after").map(str::parse::<u64>);
    assert!(
        matches!(wait, Some(Ok(1..))),
        "whole seconds, one at least: {reply}"
    );
}

/// Asks again and again until the answer has this status.
async fn until<F: Future<Output = Reply>>(status: u16, mut ask: impl FnMut() -> F) -> Reply {
    let asking = async {
        loop {
            let reply = ask().await;
            if reply.status == status {
                return reply;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let asked = tokio::time::timeout(STUCK, asking).await;
    asked.unwrap_or_else(|_| panic!("never answered with {status}"))
}
