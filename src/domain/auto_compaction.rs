//! When a session is compacted without being asked for, and how much of it then stays: rules over sizes.
//!
//! Sizes are read by others, and so is the clock. What a run does is the plan's; here is only whether
//! there is to be one, what it should leave, and what is said if that was not enough.

use super::budget::{self, Sized};
use super::policy::AutoCompactPolicy;

/// What stands in the stored text of a policy that is on.
const ENABLED: &str = r#""enabled":true"#;
/// Runs in a row without progress after which a session is left alone.
const MOST_STALLS: i64 = 2;

/// How large a context is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Estimated tokens of all of it.
    pub tokens: i64,
    /// Messages of the tail.
    pub messages: i64,
}

/// What is known of a session before it is looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// It is due already.
    pub due: bool,
    /// It is due and waits for its prefix to become cold.
    pub waits: bool,
    /// Its size when runs without progress were given up.
    pub stalled_tokens: Option<i64>,
}

/// Runs in a row without progress, and the size at which they were given up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stall {
    /// How many.
    pub runs: i64,
    /// The size; `None` if they were not given up.
    pub tokens: Option<i64>,
}

impl Stall {
    /// Behind one more run without progress, which left so many tokens.
    #[must_use]
    pub fn after(runs: i64, tokens: i64) -> Self {
        let runs = runs.saturating_add(1);
        Self {
            runs,
            tokens: (runs >= MOST_STALLS).then_some(tokens),
        }
    }
}

/// What of a tail may stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Tokens.
    pub tokens: i64,
    /// Messages, if they are limited.
    pub messages: Option<i64>,
}

impl AutoCompactPolicy {
    /// Reads a policy as it is stored, if it is on. One that is off costs no reading.
    ///
    /// # Errors
    /// The text is no policy.
    pub fn read_if_enabled(stored: &str) -> serde_json::Result<Option<Self>> {
        if !stored.contains(ENABLED) {
            return Ok(None);
        }
        let policy: Self = serde_json::from_str(stored)?;
        Ok(Some(policy).filter(|policy| policy.enabled))
    }

    /// Whether a context has reached the trigger.
    #[must_use]
    pub fn is_reached(&self, load: Load) -> bool {
        load.tokens >= self.trigger_tokens
            || self
                .trigger_messages
                .is_some_and(|most| load.messages >= most)
    }

    /// Whether a context is so large that nothing is waited for.
    #[must_use]
    pub fn is_urgent(&self, load: Load) -> bool {
        self.hard_trigger_tokens
            .is_some_and(|most| load.tokens >= most)
    }

    /// Whether a session is to be looked at now that was not before.
    #[must_use]
    pub fn becomes_due(&self, standing: Standing, load: Load) -> bool {
        let has_grown = |stalled: i64| i128::from(load.tokens) * 10 >= i128::from(stalled) * 11;
        self.is_reached(load)
            && standing.stalled_tokens.is_none_or(has_grown)
            && (!standing.due || (standing.waits && self.is_urgent(load)))
    }

    /// What of the tail may stay, so that one compaction is enough. `fixed`: tokens of what stays anyway.
    #[must_use]
    pub fn allowance(&self, compact_count: i64, fixed: i64) -> Allowance {
        let share = |of: i64| {
            let share = i128::from(of) * i128::from(100 - compact_count) / 100;
            i64::try_from(share).unwrap_or(i64::MAX)
        };
        Allowance {
            tokens: (share(self.trigger_tokens) - fixed).max(0),
            messages: self.trigger_messages.map(share),
        }
    }

    /// Why a context is still over the trigger, as a line; `None` if it is not. `fixed`: tokens of instructions
    /// and summary.
    #[must_use]
    pub fn explain(&self, load: Load, fixed: i64) -> Option<String> {
        if load.tokens >= self.trigger_tokens {
            return Some(format!(
                "still about {} tokens, for a trigger of {}: {fixed} of them are instructions and summary, {} stand in \
                 messages that could not be folded in (the newest turns, or one that is not answered yet)",
                load.tokens,
                self.trigger_tokens,
                load.tokens - fixed
            ));
        }
        let most = self
            .trigger_messages
            .filter(|most| load.messages >= *most)?;
        Some(format!(
            "still {} messages, for a trigger of {most}: they could not be folded in (the newest turns, or one that is \
             not answered yet)",
            load.messages
        ))
    }
}

impl Allowance {
    /// The budget of tokens, as a plan measures them, that leaves no more of a tail than this. `saved`: what
    /// pruning saves of a message.
    #[must_use]
    pub fn budget(&self, tail: &[Sized], saved: impl Fn(i64) -> i64) -> i64 {
        let shown: Vec<i64> = tail
            .iter()
            .map(|message| message.tokens - saved(message.seq))
            .collect();
        let by_tokens = budget::fitting_end(&shown, self.tokens);
        let most = self
            .messages
            .and_then(|most| usize::try_from(most).ok())
            .unwrap_or(usize::MAX);
        let from = by_tokens.max(tail.len().saturating_sub(most));
        let (sizes, _) = budget::sizes(tail);
        sizes.iter().skip(from).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::budget::Usage;

    fn policy() -> AutoCompactPolicy {
        AutoCompactPolicy {
            enabled: true,
            trigger_tokens: 1_000,
            trigger_messages: Some(20),
            hard_trigger_tokens: Some(2_000),
            ..AutoCompactPolicy::default()
        }
    }

    fn load(tokens: i64, messages: i64) -> Load {
        Load { tokens, messages }
    }

    #[test]
    fn a_policy_is_read_only_if_it_is_on() {
        let text = |policy: &AutoCompactPolicy| serde_json::to_string(policy).unwrap();
        let read = |text: &str| AutoCompactPolicy::read_if_enabled(text).unwrap();
        assert_eq!(read(&text(&policy())), Some(policy()));
        assert_eq!(read(&text(&AutoCompactPolicy::default())), None);
        assert_eq!(read("not even JSON"), None);
        assert!(AutoCompactPolicy::read_if_enabled(r#"{"enabled":true"#).is_err());
    }

    #[test]
    fn tokens_or_messages_reach_the_trigger() {
        for (tokens, messages, expected) in [
            (999, 19, false),
            (1_000, 0, true),
            (0, 20, true),
            (0, 19, false),
        ] {
            let found = policy().is_reached(load(tokens, messages));
            assert_eq!(found, expected, "{tokens} tokens, {messages} messages");
        }
    }

    #[test]
    fn a_session_becomes_due_once_and_is_called_back_only_from_a_wait() {
        let due = Standing {
            due: true,
            ..Standing::default()
        };
        let waits = Standing { waits: true, ..due };
        for (standing, tokens, expected) in [
            (Standing::default(), 1_000, true),
            (due, 1_000, false),
            (due, 2_000, false),
            (waits, 1_999, false),
            (waits, 2_000, true),
        ] {
            let found = policy().becomes_due(standing, load(tokens, 1));
            assert_eq!(found, expected, "{standing:?} at {tokens}");
        }
    }

    #[test]
    fn what_stalled_twice_must_grow_by_a_tenth() {
        let first = Stall::after(0, 1_500);
        assert_eq!(first.tokens, None);
        let second = Stall::after(first.runs, 1_510);
        assert_eq!(second.tokens, Some(1_510));
        assert_eq!(Stall::after(second.runs, 9_000).tokens, Some(9_000));
        let standing = Standing {
            stalled_tokens: second.tokens,
            ..Standing::default()
        };
        assert!(!policy().becomes_due(standing, load(1_660, 1)));
        assert!(policy().becomes_due(standing, load(1_661, 1)));
    }

    #[test]
    fn the_allowance_is_a_share_of_the_trigger() {
        let allowance = policy().allowance(30, 100);
        assert_eq!(
            allowance,
            Allowance {
                tokens: 600,
                messages: Some(14)
            }
        );
        assert_eq!(policy().allowance(30, 5_000).tokens, 0);
    }

    #[test]
    fn the_budget_is_in_the_plans_own_measure() {
        let message = |seq, tokens, usage: Option<(i64, i64)>| Sized {
            seq,
            is_assistant: usage.is_some(),
            tokens,
            usage: usage.map(|(input, output)| Usage { input, output }),
        };
        let tail = [
            message(1, 100, None),
            message(2, 50, Some((400, 7))),
            message(3, 100, None),
            message(4, 50, Some((500, 9))),
        ];
        let allowance = |tokens, messages| Allowance { tokens, messages };
        // Counted: 100 50 100 50. By the provider: 100 7 93 9.
        assert_eq!(allowance(150, None).budget(&tail, |_| 0), 102);
        assert_eq!(allowance(149, None).budget(&tail, |_| 0), 9);
        assert_eq!(allowance(150, Some(1)).budget(&tail, |_| 0), 9);
        assert_eq!(allowance(0, None).budget(&tail, |_| 0), 0);
        // Message 3 is shown ninety tokens shorter.
        let saved = |seq| if seq == 3 { 90 } else { 0 };
        assert_eq!(allowance(110, None).budget(&tail, saved), 109);
    }

    #[test]
    fn what_is_still_over_is_explained() {
        assert_eq!(policy().explain(load(999, 19), 100), None);
        let line = policy().explain(load(1_400, 30), 100).unwrap();
        assert!(line.contains("1400") && line.contains("1300"), "{line}");
        let line = policy().explain(load(10, 30), 5).unwrap();
        assert!(
            line.contains("30 messages") && line.contains("of 20"),
            "{line}"
        );
    }
}
