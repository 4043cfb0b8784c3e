//! The cases of the fault list, and the decisions that no law shows.

use super::super::*;
use super::support::*;

const CODING: &str = include_str!("../../../../tests/fixtures/02_coding_agent_60.json");
const PATHOLOGICAL: &str = include_str!("../../../../tests/fixtures/06_pathological.json");

fn flat(steps: impl IntoIterator<Item = [String; 2]>) -> Session {
    Session::new([user("go")].into_iter().chain(steps.into_iter().flatten()))
}

#[test]
fn s25_growth_never_rewrites_what_was_sent() {
    for floor_ratio in [1.0, 0.75] {
        let policy = PruningPolicy {
            enabled: true,
            budget_tokens: 4_000,
            floor_ratio,
            max_tool_result_bytes: 1_024,
            keep_head_bytes: 128,
            keep_tail_bytes: 128,
            ..PruningPolicy::default()
        };
        let bodies = Session::of_fixture(CODING).bodies;
        let mut carried = std::collections::BTreeMap::new();
        let mut before: Vec<String> = Vec::new();
        let mut changes = 0;
        for count in 1..=bodies.len() {
            let mut session = Session::new(bodies[..count].to_vec());
            session.carried = carried;
            let last = session.carried.values();
            let last = last
                .filter(|edit| edit.rule == Rule::Large)
                .map(|edit| edit.seq)
                .max();
            if let Some(target) = target(&policy, session.estimate(), None) {
                let outcome = session.plan(&policy, target);
                let large = outcome.edits.iter().filter(|edit| edit.rule == Rule::Large);
                let met = session.estimate() - outcome.saved() <= target;
                assert!(!met || large.clone().all(|edit| Some(edit.seq) > last));
                changes += usize::from(!outcome.edits.is_empty());
                assert_eq!(outcome, session.plan(&policy, target));
                session.carry(&outcome);
                let first = outcome
                    .edits
                    .first()
                    .map_or(before.len(), |edit| usize::try_from(edit.seq - 1).unwrap());
                assert_eq!(session.render()[..first], before[..first]);
            } else {
                assert_eq!(session.render()[..before.len()], before);
            }
            before = session.render();
            let fresh = Session::new(before.clone());
            let again = target_or_none(&policy, &fresh);
            assert_eq!(again, Vec::new());
            carried = session.carried;
        }
        assert!(changes > 1, "{changes}");
    }
}

fn target_or_none(policy: &PruningPolicy, session: &Session) -> Vec<Elision> {
    let met = target(policy, session.estimate(), None).is_none();
    if met {
        return Vec::new();
    }
    session.plan(policy, i64::MIN).edits
}

#[test]
fn s25_an_older_result_is_shortened_only_if_nothing_else_helps() {
    let big = |word: &str| lines(word, 400);
    let steps = ["one", "two", "three"]
        .map(|word| step("run", &format!(r#"{{"command":"{word}"}}"#), &big(word)));
    let mut session = flat(steps);
    let all = session.plan(&policy(), i64::MIN);
    assert_eq!(all.edits.len(), 3);
    // The plan holds the second already: the third comes next, the first only when that is not enough.
    session.carried.insert(5, all.edits[1].clone());
    let estimate = session.estimate();
    assert_eq!(
        session.plan(&policy(), estimate - 1).summary(),
        [(7, Rule::Large, None)]
    );
    let both = session.plan(&policy(), i64::MIN).summary();
    assert_eq!(both, [(3, Rule::Large, None), (7, Rule::Large, None)]);
}

#[test]
fn s26_only_the_same_resource_and_only_what_worked() {
    let page = |offset| format!(r#"{{"path":"a","offset":{offset},"limit":100}}"#);
    let session = flat([
        step("read", &page(1), &lines("first page", 40)), // 3
        step("read", &page(101), &lines("second page", 40)), // 5
        step("read", r#"{"path":"b"}"#, &lines("old b", 40)), // 7
        step("read", r#"{"path":"b"}"#, &lines("new b", 40)), // 9
        step("read", r#"{"path":"c"}"#, &lines("c", 40)), // 11
        step("read", r#"{"path":"c"}"#, "Error: ENOENT: no such file"), // 13
        step("read", r#"{"path":"d"}"#, &lines("same text", 40)), // 15
        step("fetch", r#"{"url":"d"}"#, &lines("same text", 40)), // 17
    ]);
    let outcome = session.plan(&policy(), i64::MIN);
    assert_eq!(outcome.summary(), [(7, Rule::Superseded, Some(9))]);
    assert_eq!(
        text_of(&outcome.edits[0].replacement),
        "[precis: all 40 lines (440 bytes) left out: message msg_009 below holds a newer result for the same \
         (the old one: GET …/messages/msg_007)]"
    );
    let arguments = call_arguments("read", r#"{ "path": "b" }"#).unwrap();
    assert_eq!(outcome.edits[0].arguments, arguments);
    let protected = PruningPolicy {
        protect_recent_turns: 6,
        ..policy()
    };
    assert_eq!(session.plan(&protected, i64::MIN).edits, []);
}

#[test]
fn s26_a_whole_file_stands_for_its_pages_and_a_protected_one_too() {
    let session = flat([
        step("read", r#"{"path":"a","offset":1}"#, &lines("page", 40)), // 3
        step("read", r#"{"path":"a"}"#, &lines("whole", 80)),           // 5
        step("read", r#"{"path":"a","offset":2}"#, &lines("page two", 40)), // 7
    ]);
    let protected = PruningPolicy {
        protect_recent_turns: 2,
        ..policy()
    };
    let outcome = session.plan(&protected, i64::MIN);
    assert_eq!(outcome.summary(), [(3, Rule::Superseded, Some(5))]);
}

#[test]
fn s26_duplicates_name_the_first_which_then_stays() {
    let text = lines("same", 40);
    let session = flat([
        step("read", r#"{"path":"a"}"#, &text),               // 3
        step("read", r#"{"path":"copy of a"}"#, &text),       // 5
        step("read", r#"{"path":"a"}"#, &lines("new a", 40)), // 7
    ]);
    let outcome = session.plan(&policy(), i64::MIN);
    assert_eq!(outcome.summary(), [(5, Rule::Duplicate, Some(3))]);
    assert_eq!(
        text_of(&outcome.edits[0].replacement),
        "[precis: all 40 lines (400 bytes) left out: the same result as message msg_003 above \
         (GET …/messages/msg_003 shows it whole, or run the tool again)]"
    );
    let mut carrying = session.clone();
    carrying.carry(&outcome);
    assert_eq!(carrying.plan(&policy(), i64::MIN).edits, []);
    // Also where nothing but the text of the breadcrumb says whom it names.
    let fresh = Session::new(carrying.render());
    assert_eq!(fresh.plan(&policy(), i64::MIN).edits, []);
}

#[test]
fn s26_three_identical_results_and_a_failing_newest_read() {
    let session = Session::of_fixture(PATHOLOGICAL);
    let loose = PruningPolicy {
        max_tool_result_bytes: 4_096,
        ..policy()
    };
    let outcome = session.plan(&loose, i64::MIN);
    let count = |rule| {
        outcome
            .edits
            .iter()
            .filter(|edit| edit.rule == rule)
            .count()
    };
    assert_eq!(count(Rule::Duplicate), 2, "{:?}", outcome.summary());
    for edit in &outcome.edits {
        if let (Rule::Superseded, Some(newer)) = (edit.rule, edit.names) {
            assert!(!failure::is_failed(session.body(newer)));
        }
    }
}

#[test]
fn s36_reasoning_goes_whole_or_not_at_all() {
    let thought = "Let me think about this. ".repeat(20);
    let with_blocks = |text: &str| {
        serde_json::json!({"role": "assistant", "content": [
            {"type": "thinking", "thinking": thought, "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "AAAA"},
            {"type": "text", "text": text}], "x_vendor": {"b": 1, "a": 2}})
        .to_string()
    };
    let bodies = [
        user("one"),
        with_blocks("first"),
        user("two"),
        format!(r#"{{ "role":"assistant", "reasoning_content":"{thought}" , "content":"second"}}"#),
        user("three"),
        with_blocks("third"),
    ];
    let session = Session::new(bodies);
    let outcome = session.plan(&policy(), i64::MIN);
    let summary = [(2, Rule::Reasoning, None), (4, Rule::Reasoning, None)];
    assert_eq!(outcome.summary(), summary, "the newest is never edited");
    assert_eq!(
        outcome.edits[0].replacement,
        r#"{"content":[{"text":"first","type":"text"}],"role":"assistant","x_vendor":{"a":2,"b":1}}"#
    );
    assert_eq!(
        outcome.edits[1].replacement,
        r#"{ "role":"assistant" , "content":"second"}"#
    );
}

#[test]
fn the_chosen_tool_is_protected() {
    let session = flat([
        step("think", r#"{"path":"x"}"#, &lines("old", 400)),
        step("think", r#"{"path":"y"}"#, &lines("new", 400)),
        step("run", r#"{"command":"z"}"#, &lines("run", 400)),
    ]);
    let policy = policy();
    let aim = Aim {
        tool_choice: Some("think"),
        ..session.aim(&policy, i64::MIN)
    };
    let outcome = session.plan_rows(session.rows(), &aim);
    assert_eq!(
        outcome.summary(),
        [(3, Rule::Large, None), (7, Rule::Large, None)]
    );
}

#[test]
fn erased_messages_are_neither_edited_nor_named() {
    let text = lines("same", 40);
    let session = flat([
        step("read", r#"{"path":"a"}"#, &text),
        step("read", r#"{"path":"b"}"#, &text),
        step("read", r#"{"path":"b"}"#, &lines("b", 60)),
    ]);
    let mut rows = session.rows();
    rows[2].erased = true;
    rows[6].erased = true;
    let policy = policy();
    let outcome = session.plan_rows(rows, &session.aim(&policy, i64::MIN));
    assert_eq!(outcome.edits, []);
}

#[test]
fn what_arms_it_and_how_far_it_goes() {
    let policy = PruningPolicy {
        enabled: true,
        budget_tokens: 1_001,
        floor_ratio: 0.75,
        headroom: 0.9,
        ..PruningPolicy::default()
    };
    assert_eq!(window_limit(&policy, 1_000, Some(100)), 800);
    assert_eq!(window_limit(&policy, 100, Some(1_000)), -910);
    assert_eq!(window_limit(&policy, 1_000, None), 900);
    assert_eq!(target(&policy, 1_001, None), None);
    assert_eq!(target(&policy, 1_002, None), Some(750));
    assert_eq!(target(&policy, 1_002, Some(2_000)), Some(750));
    assert_eq!(target(&policy, 1_000, Some(999)), Some(750));
    assert_eq!(target(&policy, 1_000, Some(700)), Some(700));
    assert_eq!(target(&policy, 1_002, Some(-5)), Some(-5));
    let off = PruningPolicy::default();
    assert_eq!(target(&off, i64::MAX, None), None);
}

#[test]
fn rules_have_names() {
    let all = [
        Rule::Duplicate,
        Rule::Superseded,
        Rule::Large,
        Rule::Reasoning,
    ];
    for rule in all {
        assert_eq!(Rule::parse(rule.as_str()), Some(rule));
    }
    assert_eq!(Rule::parse("other"), None);
}
