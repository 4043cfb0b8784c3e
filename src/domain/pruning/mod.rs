//! Pruning: which stale bulk of a tail is shortened, so that a context fits without a model's help.
//!
//! No message is removed and no pair is broken: tool results lose text and leave a breadcrumb, old
//! assistant messages lose their reasoning. The plan is made of metadata; the few bodies that it needs
//! it asks for, a bounded number at a time, so [`Planner`] is a state machine that does no reading
//! itself. Storing a plan, checking that what it edits is still what it was, and rendering a context
//! under it are the service's and the storage's work.
//!
//! What is planned depends on the rows and on the bodies alone, never on how reading was divided.

mod arguments;
mod edit;
mod failure;
mod history;
mod planner;
mod reads;
mod thoughts;

#[cfg(test)]
mod tests;

pub use arguments::{call_arguments, is_same_resource, tail_calls};
pub use planner::Planner;

use crate::domain::message::{Call, Digest256, Role};
use crate::domain::policy::PruningPolicy;
use crate::domain::tokens::Counter;

/// Why a message is edited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The same result of the same tool stands above.
    Duplicate,
    /// A newer result for the same resource stands below.
    Superseded,
    /// The result is large and old.
    Large,
    /// The reasoning of an old assistant message.
    Reasoning,
}

impl Rule {
    /// The name in records and answers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Superseded => "superseded",
            Self::Large => "large",
            Self::Reasoning => "reasoning",
        }
    }

    /// The rule of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [
            Self::Duplicate,
            Self::Superseded,
            Self::Large,
            Self::Reasoning,
        ]
        .into_iter()
        .find(|rule| rule.as_str() == name)
    }
}

/// One message of the tail, as metadata.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its `seq`.
    pub seq: i64,
    /// The id that a breadcrumb names it by.
    pub id: String,
    /// Who speaks.
    pub role: Role,
    /// It adds no message of its own: it goes on with the answer before it, or shows nothing.
    pub joins: bool,
    /// Tokens of the stored body, as counted at the append.
    pub tokens: i64,
    /// Bytes of the stored body.
    pub bytes: i64,
    /// Tool results: which call of the newest assistant message with calls before it, from 0.
    pub call_index: Option<i64>,
    /// Tool results: the called tool.
    pub tool_name: Option<String>,
    /// Assistant messages: the calls, in order.
    pub calls: Vec<Call>,
    /// SHA-256 of the content value's JSON text.
    pub content_digest: Digest256,
    /// Whether its content was erased.
    pub erased: bool,
    /// The edit that the plan already holds for it.
    pub carried: Option<Carried>,
}

/// An edit that was dispatched: it stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// Why it was made.
    pub rule: Rule,
    /// `seq` of the message that its breadcrumb names.
    pub names: Option<i64>,
}

/// What a plan is for.
#[derive(Debug, Clone, Copy)]
pub struct Aim<'a> {
    /// Rules and their limits.
    pub policy: &'a PruningPolicy,
    /// Tokens of everything that is sent, carried edits counted in.
    pub estimate: i64,
    /// Prune down to this many tokens; `i64::MIN` does everything that the rules may do.
    pub target: i64,
    /// The newest assistant message that calls this tool is protected, and so are its results.
    pub tool_choice: Option<&'a str>,
    /// Counts a message after its edit.
    pub counter: Counter,
}

/// What a planner wants next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The stored bodies of these messages (`seq`), at least one: at most 256, and about a megabyte
    /// unless a single one is larger. A message that is not supplied is not edited.
    Read(Vec<i64>),
    /// The new edits, by `seq`. The carried ones are not among them.
    Done(Vec<Elision>),
}

/// A new edit of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elision {
    /// The edited message.
    pub seq: i64,
    /// Why.
    pub rule: Rule,
    /// `seq` of the message that the breadcrumb names, if it names another.
    pub names: Option<i64>,
    /// The whole edited body.
    pub replacement: String,
    /// Its tokens.
    pub tokens: i64,
    /// Tokens that it saves, more than 0.
    pub saved: i64,
    /// The arguments of the call whose result was edited, as [`call_arguments`] gives them; empty if they
    /// are unknown, cannot be compared, or there is no call.
    pub arguments: Vec<i64>,
}

/// How far to prune a context of `estimate` tokens: `None` if nothing asks for it.
///
/// `window_limit` is given if the policy fits to a window and the request names one, see [`window_limit`].
#[must_use]
pub fn target(policy: &PruningPolicy, estimate: i64, window_limit: Option<i64>) -> Option<i64> {
    if !policy.enabled {
        return None;
    }
    let exceeded = window_limit.filter(|limit| estimate > *limit);
    if estimate <= policy.budget_tokens && exceeded.is_none() {
        return None;
    }
    let floor = share(policy.budget_tokens, policy.floor_ratio);
    Some(exceeded.map_or(floor, |limit| limit.min(floor)))
}

/// Tokens that a request may have: the policy's share of the window, less the answer. It may be negative.
#[must_use]
pub fn window_limit(
    policy: &PruningPolicy,
    context_window: i64,
    max_output_tokens: Option<i64>,
) -> i64 {
    share(context_window, policy.headroom).saturating_sub(max_output_tokens.unwrap_or(0))
}

/// `ratio` of `tokens`, rounded down.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "token counts are far below 2^53, and the cast saturates"
)]
fn share(tokens: i64, ratio: f64) -> i64 {
    (tokens as f64 * ratio).floor() as i64
}
