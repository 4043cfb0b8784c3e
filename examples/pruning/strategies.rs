//! Ways to prune a growing session, and what a prompt cache makes of them.
//!
//! The service carries its plan from dispatch to dispatch and shortens the oldest results first. The other two ways
//! exist here only: planning anew each time, and shortening whatever saves most.

use std::cmp::Reverse;

use precis::domain::policy::PruningPolicy;
use precis::domain::pruning::{Aim, Elision, target};
use precis::domain::tokens::Counter;

use super::history::{Plan, Session};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Carried,
    Anew,
    LargestFirst,
}

/// A way to prune and how far.
#[derive(Debug, Clone, Copy)]
pub struct Strategy {
    pub name: &'static str,
    pub floor_ratio: f64,
    way: Way,
}

/// One request to the model.
pub struct Dispatch {
    pub is_over_budget: bool,
    pub is_changed: bool,
    /// Share of its bytes that begin the dispatch before.
    pub seen: f64,
    pub tokens: i64,
}

/// A loop from its first dispatch to its last.
pub struct Run {
    pub strategy: Strategy,
    pub dispatches: Vec<Dispatch>,
    pub over_budget: usize,
    pub changes: usize,
    pub tokens_sent: i64,
}

impl Strategy {
    /// The service's own: edits are carried, oldest first.
    pub const fn carried(floor_ratio: f64) -> Self {
        Self {
            name: "carried plan",
            floor_ratio,
            way: Way::Carried,
        }
    }

    /// Each dispatch plans from the unedited history.
    pub const fn anew(floor_ratio: f64) -> Self {
        Self {
            name: "planned anew",
            floor_ratio,
            way: Way::Anew,
        }
    }

    /// Edits are carried, but the largest saving comes first.
    pub const fn largest_first(floor_ratio: f64) -> Self {
        Self {
            name: "largest first",
            floor_ratio,
            way: Way::LargestFirst,
        }
    }

    /// A dispatch after every result.
    pub fn run(self, whole: &Session, budget: i64, reserved: i64) -> Run {
        let policy = PruningPolicy {
            enabled: true,
            budget_tokens: budget,
            floor_ratio: self.floor_ratio,
            ..PruningPolicy::default()
        };
        let mut plan = Plan::new();
        let mut before = String::new();
        let mut dispatches = Vec::new();
        for count in (3..=whole.len()).step_by(2) {
            let session = whole.first(count);
            let next = self.extend(&session, &policy, reserved, &plan);
            let sent = session.render(&next);
            dispatches.push(Dispatch {
                is_over_budget: session.tokens(&Plan::new()) + reserved > budget,
                is_changed: next != plan,
                seen: share(common_prefix(&before, &sent), sent.len()),
                tokens: session.tokens(&next) + reserved,
            });
            plan = next;
            before = sent;
        }
        Run {
            strategy: self,
            over_budget: dispatches.iter().filter(|one| one.is_over_budget).count(),
            changes: dispatches.iter().filter(|one| one.is_changed).count(),
            tokens_sent: dispatches.iter().map(|one| one.tokens).sum(),
            dispatches,
        }
    }

    fn extend(self, session: &Session, policy: &PruningPolicy, reserved: i64, plan: &Plan) -> Plan {
        let carried = match self.way {
            Way::Anew => Plan::new(),
            Way::Carried | Way::LargestFirst => plan.clone(),
        };
        let estimate = session.tokens(&carried) + reserved;
        let Some(target) = target(policy, estimate, None) else {
            return carried;
        };
        let aim = |target: i64| Aim {
            policy,
            estimate,
            target,
            tool_choice: None,
            counter: Counter::Estimate,
        };
        let rows = session.rows(&carried);
        let edits = match self.way {
            Way::Carried | Way::Anew => session.plan(rows, &aim(target)),
            Way::LargestFirst => largest(session.plan(rows, &aim(i64::MIN)), estimate - target),
        };
        let edits = edits.into_iter().map(|edit| (edit.seq, edit));
        carried.into_iter().chain(edits).collect()
    }
}

/// Of all possible edits those that save most, until they save `excess`.
fn largest(mut edits: Vec<Elision>, excess: i64) -> Vec<Elision> {
    edits.sort_by_key(|edit| Reverse(edit.saved));
    let mut saved = 0;
    let is_needed = |edit: &Elision| {
        let is_needed = saved < excess;
        saved += edit.saved;
        is_needed
    };
    let mut is_needed = is_needed;
    edits
        .into_iter()
        .take_while(|edit| is_needed(edit))
        .collect()
}

impl Run {
    /// All but the first dispatch, before which nothing was seen.
    fn later(&self) -> impl Iterator<Item = &Dispatch> {
        self.dispatches.iter().skip(1)
    }

    pub fn mean_seen(&self) -> f64 {
        let sum: f64 = self.later().map(|dispatch| dispatch.seen).sum();
        sum / float(self.later().count().max(1))
    }

    pub fn least_seen(&self) -> f64 {
        self.later()
            .map(|dispatch| dispatch.seen)
            .fold(1.0, f64::min)
    }

    /// Tokens that no earlier dispatch began with, by the shares of bytes.
    pub fn tokens_unseen(&self) -> i64 {
        let unseen = |dispatch: &Dispatch| scaled(dispatch.tokens, 1.0 - dispatch.seen);
        self.dispatches.iter().map(unseen).sum()
    }
}

fn common_prefix(one: &str, other: &str) -> usize {
    let pairs = one.bytes().zip(other.bytes());
    pairs.take_while(|(one, other)| one == other).count()
}

fn share(part: usize, whole: usize) -> f64 {
    float(part) / float(whole.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn float(number: usize) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "far below 2^53"
)]
fn scaled(tokens: i64, share: f64) -> i64 {
    (tokens as f64 * share).round() as i64
}
