//! How the messages of a context lie: how many there are, and which end a prefix worth caching.
//!
//! The newest turns change what is sent only behind its last message, so a provider can go on from
//! any message that it has seen at the end of a prefix before. The milestones stand at fixed
//! multiples of tokens, so that every turn names the same ones again until the plan changes.

use super::context::Frame;
use super::{Service, ServiceError};
use crate::domain::json;
use crate::domain::policy::PruningPolicy;
use crate::storage::{ContextHead, SessionKey, StorageError};

/// Breakpoints that a provider takes at most.
const MOST_BREAKPOINTS: usize = 4;

/// How the messages of a context lie.
pub(super) struct Layout {
    /// How many messages are shown.
    pub(super) count: usize,
    /// Indices of messages that the next turn will name again, rising.
    pub(super) breakpoints: Vec<usize>,
}

impl ContextHead {
    /// The session's policy.
    pub(super) fn pruning_policy(&self) -> Result<PruningPolicy, ServiceError> {
        Ok(serde_json::from_str(&self.pruning)
            .map_err(|_| StorageError::Corrupt("sessions.pruning"))?)
    }
}

/// What it takes to find a place by the tokens before it.
struct Ruler<'a> {
    key: SessionKey,
    frame: &'a Frame,
    /// Tokens before the tail, less those behind the pointer, which running totals count in.
    offset: i64,
    /// What edits save, as running totals by `seq`.
    saved: Vec<(i64, i64)>,
}

impl Ruler<'_> {
    /// Tokens shown up to and with a message, given its running total.
    fn shown(&self, seq: i64, total: i64) -> i64 {
        let behind = self.saved.partition_point(|(edited, _)| *edited <= seq);
        let saved = behind.checked_sub(1).and_then(|at| self.saved.get(at));
        self.offset + total - saved.map_or(0, |(_, saved)| *saved)
    }
}

impl Service {
    /// The layout of a context. `saved`: what each edit saves, in the order of `seq`.
    pub(super) async fn load_layout(
        &self,
        key: SessionKey,
        head: &ContextHead,
        frame: &Frame,
        saved: Vec<(i64, i64)>,
    ) -> Result<Layout, ServiceError> {
        let view = &frame.view;
        let fills = self
            .database()
            .load_fills(key, view.compact_seq, view.last_seq, view.compact_size)
            .await?;
        let fills: Vec<_> = fills
            .iter()
            .map(|(seq, fill)| (*seq, json::elements(&format!("[{fill}]")).len()))
            .collect();
        let filled: usize = fills.iter().map(|(_, count)| count).sum();
        let joined = if view.joins {
            let (after, up_to) = (view.compact_seq, view.last_seq);
            self.database().load_joined(key, after, up_to).await?
        } else {
            Vec::new()
        };
        let in_tail = usize::try_from(head.position_count - head.compact_size).unwrap_or(0);
        let count = (frame.opening_count + in_tail + filled).saturating_sub(joined.len());
        let milestone = head.pruning_policy()?.milestone_tokens.max(1);
        let mut total = 0;
        let ruler = Ruler {
            key,
            frame,
            offset: head.instruction_tokens + frame.added_tokens - head.compact_tokens,
            saved: saved
                .into_iter()
                .map(|(seq, tokens)| {
                    total += tokens;
                    (seq, total)
                })
                .collect(),
        };
        let instructions = frame.instruction_count.checked_sub(1);
        let mut breakpoints: Vec<_> = instructions
            .into_iter()
            .chain(count.checked_sub(1))
            .collect();
        breakpoints.dedup();
        let shown = frame.tokens(head) - total;
        let before_tail = head.instruction_tokens + frame.added_tokens;
        let mut number = shown / milestone;
        while breakpoints.len() < MOST_BREAKPOINTS && number * milestone > before_tail {
            let place = self.find_milestone(&ruler, number * milestone).await?;
            let Some((seq, position)) = place else { break };
            let filled = fills.iter().take_while(|(at, _)| *at <= seq);
            let filled: usize = filled.map(|(_, count)| count).sum();
            let behind = usize::try_from(position - view.compact_size).unwrap_or(0);
            let joined = joined.partition_point(|at| *at <= seq);
            let index = (frame.opening_count + behind + filled).saturating_sub(joined);
            if !breakpoints.contains(&index) {
                breakpoints.push(index);
            }
            // A large message reaches many milestones; the next that counts is reached before it.
            let before = self
                .database()
                .find_tokens_at(key, view.compact_seq, seq - 1)
                .await?;
            let before = before.map_or(0, |(seq, _, total)| ruler.shown(seq, total));
            number = before / milestone;
        }
        breakpoints.sort_unstable();
        Ok(Layout { count, breakpoints })
    }

    /// The first message with which so many tokens are reached: `seq` and position. Found by bisection.
    async fn find_milestone(
        &self,
        ruler: &Ruler<'_>,
        tokens: i64,
    ) -> Result<Option<(i64, i64)>, ServiceError> {
        // No message at or before `low` reaches it; `found` does, and is the first behind `high` if there is one.
        let (mut low, mut high) = (ruler.frame.view.compact_seq, ruler.frame.view.last_seq);
        let mut found = None;
        while low < high {
            let middle = low + (high - low + 1) / 2;
            let place = self
                .database()
                .find_tokens_at(ruler.key, low, middle)
                .await?;
            match place {
                Some((seq, position, total)) if ruler.shown(seq, total) >= tokens => {
                    found = Some((seq, position));
                    high = seq - 1;
                }
                _ => low = middle,
            }
        }
        Ok(found)
    }
}
