//! What must hold of every plan.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use serde_json::Value;

use super::super::*;
use super::histories::{history, policy};
use super::oracle::{Made, Oracle};
use super::support::{Outcome, Session, text_of};
use crate::domain::json;
use crate::domain::message::Message;
use crate::domain::reasoning;

type Checked = Result<(), TestCaseError>;

/// How much of what can be saved is asked for, in percent; above 100 it cannot be had.
fn share_to_save() -> impl Strategy<Value = i64> {
    0..=120_i64
}

fn total(made: &[Made]) -> i64 {
    made.iter().map(|made| made.3).sum()
}

/// The shortest front of what the oracle does that meets the target, by `seq`.
fn shortest(made: &[Made], mut estimate: i64, target: i64) -> Vec<(i64, Rule, Option<i64>)> {
    let mut needed = Vec::new();
    for (seq, rule, names, saved) in made {
        if estimate <= target {
            break;
        }
        estimate -= saved;
        needed.push((*seq, *rule, *names));
    }
    needed.sort_by_key(|made| made.0);
    needed
}

fn names(body: &str) -> Vec<String> {
    let members = json::members(body).into_iter();
    members.map(|member| member.name.into_owned()).collect()
}

/// An edit changes what its rule is about and nothing else.
fn check_edit(session: &Session, edit: &Elision) -> Checked {
    let (old, new) = (session.body(edit.seq), edit.replacement.as_str());
    prop_assert!(new.len() < old.len());
    prop_assert!(edit.saved > 0);
    let (before, after) = (Message::read(old).unwrap(), Message::read(new).unwrap());
    prop_assert_eq!(before.changed_identity(&after), None);
    let mut kept = names(old);
    kept.retain(|name| edit.rule != Rule::Reasoning || !reasoning::is_member(name));
    prop_assert_eq!(kept, names(new));
    let members = json::members(old);
    for member in json::members(new) {
        let same = members
            .iter()
            .find(|other| other.name == member.name)
            .unwrap();
        prop_assert!(member.name == "content" || member.value == same.value);
    }
    if edit.rule == Rule::Reasoning {
        return check_thoughts(old, new);
    }
    prop_assert!(text_of(new).len() < text_of(old).len());
    prop_assert!(text_of(new).contains("[precis: ") && !text_of(old).contains("[precis: "));
    let is_array = |body: &str| serde_json::from_str::<Value>(body).unwrap()["content"].is_array();
    prop_assert_eq!(is_array(old), is_array(new));
    Ok(())
}

fn check_thoughts(old: &str, new: &str) -> Checked {
    let mut value: Value = serde_json::from_str(old).unwrap();
    let members = value.as_object_mut().unwrap();
    members.retain(|name, _| !reasoning::is_member(name));
    if let Some(parts) = members["content"].as_array_mut() {
        parts.retain(|part| part["type"] == "text");
        if parts.is_empty() {
            members.insert("content".to_owned(), Value::Null);
        }
    }
    prop_assert_eq!(value, serde_json::from_str::<Value>(new).unwrap());
    Ok(())
}

/// No breadcrumb names a message that is a breadcrumb itself.
fn check_names(session: &Session) -> Checked {
    for edit in session.carried.values() {
        let Some(named) = edit.names else { continue };
        let rule = session.carried.get(&named).map(|edit| edit.rule);
        prop_assert!(matches!(rule, None | Some(Rule::Large)), "{:?}", edit.rule);
        prop_assert!(edit.replacement.contains(session.id(named)));
    }
    Ok(())
}

/// Nothing is asked for that cannot matter.
fn check_asked(session: &Session, policy: &PruningPolicy, outcome: &Outcome) -> Checked {
    let window = session.window(policy.protect_recent_turns);
    let rows = session.rows();
    let compares = policy.elide_superseded_reads;
    for seq in outcome.asked_for() {
        let row = rows.iter().find(|row| row.seq == seq).unwrap();
        let may_matter = match row.role {
            Role::Assistant => !row.calls.is_empty() || seq < window && policy.drop_stale_reasoning,
            Role::Tool => row.carried.is_none() && (seq < window || compares),
            _ => false,
        };
        prop_assert!(may_matter, "{seq}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn does_what_a_planner_written_another_way_does(
        bodies in history(), policy in policy(), share in share_to_save(), exact in any::<bool>()
    ) {
        let mut session = Session::new(bodies);
        if exact {
            session.counter = Counter::O200kBase;
        }
        let made = Oracle::run(&session, &policy);
        let all = session.plan(&policy, i64::MIN);
        prop_assert_eq!(all.summary(), shortest(&made, 0, i64::MIN));
        prop_assert_eq!(all.saved(), total(&made));
        let estimate = session.estimate();
        let target = estimate - total(&made) * share / 100;
        let some = session.plan(&policy, target);
        prop_assert_eq!(some.summary(), shortest(&made, estimate, target));
        if share <= 100 {
            prop_assert!(estimate - some.saved() <= target);
        }
        check_asked(&session, &policy, &some)?;
    }

    #[test]
    fn edits_shorten_and_keep_pairs_and_the_protected_window(
        bodies in history(), policy in policy()
    ) {
        let mut session = Session::new(bodies);
        let window = session.window(policy.protect_recent_turns);
        let before = session.estimate();
        let outcome = session.plan(&policy, i64::MIN);
        for edit in &outcome.edits {
            prop_assert!(edit.seq < window);
            check_edit(&session, edit)?;
        }
        session.carry(&outcome);
        check_names(&session)?;
        prop_assert_eq!(session.estimate(), before - outcome.saved());
        let rendered = Session::new(session.render());
        prop_assert_eq!(rendered.estimate(), session.estimate());
        for (old, new) in session.placed.iter().zip(&rendered.placed) {
            prop_assert_eq!(&old.tool_name, &new.tool_name);
            prop_assert_eq!(old.call_index, new.call_index);
            prop_assert_eq!(&old.fill, &new.fill);
        }
    }

    #[test]
    fn the_same_input_gives_the_same_plan(
        bodies in history(), policy in policy(), share in share_to_save()
    ) {
        let session = Session::new(bodies);
        let most = session.plan(&policy, i64::MIN).saved();
        let target = session.estimate() - most * share / 100;
        let outcome = session.plan(&policy, target);
        prop_assert_eq!(&session.plan(&policy, target), &outcome);
        let mut rows = session.rows();
        rows.reverse();
        prop_assert_eq!(&session.plan_rows(rows, &session.aim(&policy, target)), &outcome);
    }

    #[test]
    fn pruning_what_is_pruned_changes_nothing(
        bodies in history(), policy in policy(), share in 0..=100_i64
    ) {
        let mut session = Session::new(bodies);
        let most = session.plan(&policy, i64::MIN);
        let target = session.estimate() - most.saved() * share / 100;
        let mut carrying = session.clone();
        carrying.carry(&carrying.plan(&policy, target));
        prop_assert_eq!(carrying.plan(&policy, target).edits, []);
        let fresh = Session::new(carrying.render());
        prop_assert_eq!(fresh.plan(&policy, target).edits, []);
        session.carry(&most);
        prop_assert_eq!(session.plan(&policy, i64::MIN).edits, []);
        let fresh = Session::new(session.render());
        prop_assert_eq!(fresh.plan(&policy, i64::MIN).edits, []);
    }

    #[test]
    fn plans_only_grow(
        bodies in history(), policy in policy(), parts in 1..5_usize, share in share_to_save()
    ) {
        let mut carried = std::collections::BTreeMap::new();
        let mut before: Vec<String> = Vec::new();
        for part in 1..=parts {
            let mut session = Session::new(bodies[..bodies.len() * part / parts].to_vec());
            session.carried = carried;
            let most = total(&Oracle::run(&session, &policy));
            let target = session.estimate() - most * share / 100;
            let outcome = session.plan(&policy, target);
            let made = Oracle::run(&session, &policy);
            prop_assert_eq!(outcome.summary(), shortest(&made, session.estimate(), target));
            let edited: BTreeSet<_> = outcome.edits.iter().map(|edit| edit.seq).collect();
            prop_assert!(edited.iter().all(|seq| !session.carried.contains_key(seq)));
            session.carry(&outcome);
            check_names(&session)?;
            let sent = session.render();
            let first = edited.first().map_or(before.len(), |seq| usize::try_from(seq - 1).unwrap());
            let kept = first.min(before.len());
            prop_assert_eq!(&sent[..kept], &before[..kept]);
            before = sent;
            carried = session.carried;
        }
    }

    #[test]
    fn a_body_that_is_not_supplied_is_only_not_edited(
        bodies in history(), policy in policy(), missing in prop::collection::vec(any::<bool>(), 80)
    ) {
        let session = Session::new(bodies);
        let mut planner = Planner::new(session.rows(), &session.aim(&policy, i64::MIN));
        let is_missing = |seq: i64| missing[usize::try_from(seq).unwrap() % missing.len()];
        let edits = loop {
            match planner.step() {
                Step::Done(edits) => break edits,
                Step::Read(seqs) => for seq in seqs.into_iter().filter(|seq| !is_missing(*seq)) {
                    planner.supply(seq, session.body(seq));
                },
            }
        };
        for edit in edits {
            prop_assert!(!is_missing(edit.seq));
            check_edit(&session, &edit)?;
        }
    }
}
