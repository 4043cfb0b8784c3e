//! Plans of pruning: they shorten and do nothing else, and what was planned once stays planned.

use std::collections::{BTreeMap, BTreeSet};

use precis::domain::json;
use precis::domain::message::{Message, Role};
use precis::domain::pairing::Placed;
use precis::domain::policy::PruningPolicy;
use precis::domain::pruning::{Aim, Carried, Elision, Planner, Row, Rule, Step};
use precis::domain::reasoning;
use precis::domain::tokens::Counter;
use proptest::prelude::*;
use serde_json::Value;

use crate::generate::{accepted, history};
use crate::runner::{Verdict, fuzz};

struct Session {
    placed: Vec<Placed>,
    carried: BTreeMap<i64, Elision>,
    /// Messages whose content was erased.
    erased: BTreeSet<i64>,
}

impl Session {
    fn body(&self, seq: i64) -> String {
        let message = &self.placed[usize::try_from(seq - 1).expect("a seq")].message;
        if self.erased.contains(&seq) {
            message.erased()
        } else {
            message.body.clone()
        }
    }

    fn rows(&self) -> Vec<Row> {
        let row = |placed: &Placed| {
            let message = Message::read(&self.body(placed.seq)).expect("a message");
            Row {
                seq: placed.seq,
                id: placed.id.clone(),
                role: message.role,
                tokens: i64::try_from(message.tokens).expect("a size"),
                bytes: i64::try_from(message.body.len()).expect("a size"),
                call_index: placed.call_index,
                tool_name: placed.tool_name.clone(),
                calls: message.calls,
                content_digest: message.content_digest,
                joins: message.role == Role::Assistant && !placed.starts_group,
                erased: self.erased.contains(&placed.seq),
                carried: self.carried.get(&placed.seq).map(|edit| Carried {
                    rule: edit.rule,
                    names: edit.names,
                }),
            }
        };
        self.placed
            .iter()
            .filter(|placed| placed.position.is_some())
            .map(row)
            .collect()
    }

    fn estimate(&self) -> i64 {
        let tokens = |row: Row| {
            self.carried
                .get(&row.seq)
                .map_or(row.tokens, |edit| edit.tokens)
        };
        self.rows().into_iter().map(tokens).sum()
    }

    fn plan(&self, policy: &PruningPolicy, target: i64) -> Vec<Elision> {
        self.plan_rows(self.rows(), policy, target, false)
    }

    fn plan_rows(
        &self,
        rows: Vec<Row>,
        policy: &PruningPolicy,
        target: i64,
        backwards: bool,
    ) -> Vec<Elision> {
        let estimate = self.estimate();
        let aim = Aim {
            policy,
            estimate,
            target,
            tool_choice: None,
            counter: Counter::Estimate,
        };
        let mut planner = Planner::new(rows, &aim);
        loop {
            match planner.step() {
                Step::Done(edits) => return edits,
                Step::Read(mut seqs) => {
                    assert!((1..=256).contains(&seqs.len()));
                    if backwards {
                        seqs.reverse();
                    }
                    for seq in seqs {
                        planner.supply(seq, &self.body(seq));
                    }
                }
            }
        }
    }

    fn carry(&mut self, edits: &[Elision]) {
        self.carried
            .extend(edits.iter().map(|edit| (edit.seq, edit.clone())));
    }

    /// The first `seq` of the protected window.
    fn window(&self, protect: i64) -> i64 {
        let speaks = |row: &&Placed| matches!(row.message.role, Role::User | Role::Assistant);
        let speaking: Vec<_> = self
            .placed
            .iter()
            .filter(speaks)
            .map(|row| row.seq)
            .collect();
        let protect = usize::try_from(protect).expect("a number");
        match (protect, speaking.len().checked_sub(protect)) {
            (0, _) => i64::MAX,
            (_, Some(first)) => speaking[first],
            (_, None) => 0,
        }
    }
}

fn policy() -> impl Strategy<Value = PruningPolicy> {
    let numbers = (0..6_i64, 0..500_i64, 0..200_i64, 0..200_i64);
    (numbers, any::<[bool; 4]>()).prop_map(
        |((protect, large, head, tail), [all, same, reads, thoughts])| PruningPolicy {
            enabled: true,
            protect_recent_turns: protect,
            max_tool_result_bytes: large,
            keep_head_bytes: head,
            keep_tail_bytes: tail,
            collapse_duplicate_results: all || same,
            elide_superseded_reads: all || reads,
            drop_stale_reasoning: all || thoughts,
            ..PruningPolicy::default()
        },
    )
}

fn members(body: &str) -> Vec<(String, String)> {
    json::members(body)
        .into_iter()
        .map(|member| (member.name.into_owned(), member.value.to_owned()))
        .collect()
}

/// An edit shortens what its rule is about, in a message that it may touch, and leaves every other byte.
fn check_edit(session: &Session, policy: &PruningPolicy, edit: &Elision) -> Verdict {
    let old = session.body(edit.seq);
    prop_assert!(
        edit.seq < session.window(policy.protect_recent_turns),
        "protected"
    );
    prop_assert!(!session.erased.contains(&edit.seq) && !session.carried.contains_key(&edit.seq));
    prop_assert!(edit.replacement.len() < old.len() && edit.saved > 0);
    let (before, after) = (
        Message::read(&old).expect("a message"),
        Message::read(&edit.replacement).expect("a message"),
    );
    prop_assert_eq!(before.changed_identity(&after), None);
    prop_assert_eq!(i64::try_from(after.tokens).expect("a size"), edit.tokens);
    prop_assert_eq!(
        i64::try_from(before.tokens).expect("a size") - edit.tokens,
        edit.saved
    );
    serde_json::from_str::<Value>(&edit.replacement).expect("JSON");
    let is_allowed = match edit.rule {
        Rule::Duplicate => policy.collapse_duplicate_results && before.role == Role::Tool,
        Rule::Superseded => policy.elide_superseded_reads && before.role == Role::Tool,
        Rule::Large => before.role == Role::Tool,
        Rule::Reasoning => policy.drop_stale_reasoning && before.role == Role::Assistant,
    };
    prop_assert!(is_allowed, "{:?} of a {:?}", edit.rule, before.role);
    let kept = |(name, _): &(String, String)| {
        name != "content" && (edit.rule != Rule::Reasoning || !reasoning::is_member(name))
    };
    let (old, new): (Vec<_>, Vec<_>) = (
        members(&old).into_iter().filter(kept).collect(),
        members(&edit.replacement)
            .into_iter()
            .filter(kept)
            .collect(),
    );
    prop_assert_eq!(old, new);
    Ok(())
}

fn seqs(edits: &[Elision]) -> Vec<(i64, Rule, &str)> {
    edits
        .iter()
        .map(|edit| (edit.seq, edit.rule, edit.replacement.as_str()))
        .collect()
}

fn plans_of(
    texts: Vec<String>,
    policy: &PruningPolicy,
    shares: (i64, i64),
    erased: &[bool],
) -> Verdict {
    let placed = accepted(texts);
    let is_erased = |row: &&Placed| erased[row.message.body.len() % erased.len()];
    let erased = placed.iter().filter(is_erased).map(|row| row.seq).collect();
    let mut session = Session {
        placed,
        carried: BTreeMap::new(),
        erased,
    };
    let estimate = session.estimate();
    let all = session.plan(policy, i64::MIN);
    for edit in &all {
        check_edit(&session, policy, edit)?;
    }
    let most: i64 = all.iter().map(|edit| edit.saved).sum();
    let (less, more) = (shares.0.min(shares.1), shares.0.max(shares.1));
    let target = |share: i64| estimate - most * share / 100;
    // Monotone: who asks for more gets all that they would have got, and more; nobody gets more than there is.
    let (few, many) = (
        session.plan(policy, target(less)),
        session.plan(policy, target(more)),
    );
    for (some, others) in [(&few, &many), (&many, &all)] {
        let others = seqs(others);
        prop_assert!(seqs(some).iter().all(|edit| others.contains(edit)));
    }
    let saved: i64 = few.iter().map(|edit| edit.saved).sum();
    prop_assert!(estimate - saved <= target(less) || less > 100);
    // The same, in whatever order it is asked.
    let mut rows = session.rows();
    rows.reverse();
    prop_assert_eq!(&session.plan_rows(rows, policy, target(less), true), &few);
    // Once it is done there is nothing to do; and what was done stays when more is asked for.
    session.carry(&few);
    prop_assert_eq!(session.estimate(), estimate - saved);
    prop_assert_eq!(session.plan(policy, target(less.min(100))), []);
    let rest = session.plan(policy, i64::MIN);
    for edit in &rest {
        check_edit(&session, policy, edit)?;
    }
    session.carry(&rest);
    prop_assert_eq!(session.plan(policy, i64::MIN), []);
    Ok(())
}

#[test]
fn plans() {
    let erased = prop_oneof![3 => Just(vec![false]), 1 => prop::collection::vec(prop::bool::weighted(0.2), 8)];
    let case = (history(2), policy(), (0..=120_i64, 0..=120_i64), erased);
    fuzz("plans", 60, &case, |(texts, policy, shares, erased)| {
        plans_of(texts, &policy, shares, &erased)
    });
}
