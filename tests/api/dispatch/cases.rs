//! The fault cases of pruning, each a test named after its number.

use rstest::rstest;
use serde_json::{Value, json};

use super::sent::edits;
use super::talk::{calling, lines, read};
use crate::support::messages::{assistant, result, user};
use crate::support::{Backend, History, TestApp, conversation};

fn content(raw: &str) -> String {
    let message: Value = serde_json::from_str(raw).expect("JSON");
    message["content"].as_str().unwrap_or_default().to_owned()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s25_edits_are_repeated_byte_for_byte(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for floor in [1.0, 0.5] {
        edits_are_repeated(&app, floor).await;
    }
}

async fn edits_are_repeated(app: &TestApp, floor: f64) {
    let raws = conversation("02_coding_agent_60");
    let policy = json!({"enabled": true, "budgetTokens": 2_500, "floorRatio": floor,
        "maxToolResultBytes": 800, "keepHeadBytes": 150, "keepTailBytes": 150});
    let id = app.create_pruned(policy, &[]).await;
    let mut history = History::default();
    let mut before: Vec<String> = Vec::new();
    let mut old: Vec<usize> = Vec::new();
    for (index, raw) in raws.iter().enumerate() {
        let what = format!("after message {index}");
        history.push(raw);
        app.append(&id, std::slice::from_ref(raw)).await;
        let sent = app.dispatch(&id, &json!({})).await;
        let messages = sent.messages();
        let now = edits(&messages, &history.render(0, None), &what);
        assert!(
            old.iter().all(|edit| now.contains(edit)),
            "{what}: {old:?} stay in {now:?}"
        );
        let new: Vec<usize> = now
            .iter()
            .filter(|edit| !old.contains(edit))
            .copied()
            .collect();
        let stable = new
            .first()
            .copied()
            .unwrap_or(before.len())
            .min(before.len());
        assert_eq!(
            messages[..stable],
            before[..stable],
            "{what}: the cached prefix"
        );
        for edit in &old {
            assert_eq!(
                messages[*edit], before[*edit],
                "{what}: an edit is verbatim"
            );
        }
        // Results shortened for their size come behind all that were before.
        let is_large = |index: &usize| content(&messages[*index]).contains("left out here");
        let last = old.iter().filter(|index| is_large(index)).max();
        let first = new.iter().filter(|index| is_large(index)).min();
        assert!(
            first.is_none_or(|first| last.is_none_or(|last| first > last)),
            "{what}: {new:?}"
        );
        let again = app.dispatch(&id, &json!({})).await;
        assert_eq!(again.items(), sent.items(), "{what}: the same bytes");
        (before, old) = (messages, now);
    }
    assert!(old.len() >= 4, "something was pruned: {old:?}");
    // The same input gives the same bytes, but for the ids that the messages have.
    let stored: Vec<String> = history
        .render(0, None)
        .iter()
        .map(|_| String::new())
        .collect();
    assert_eq!(stored.len(), before.len());
}

/// What was pruned, stored as a history of its own and pruned again, is what it was.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s25_pruning_its_own_output_changes_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for name in ["02_coding_agent_60", "06_pathological"] {
        output_is_not_pruned_again(&app, name).await;
    }
}

async fn output_is_not_pruned_again(app: &TestApp, name: &str) {
    let policy = json!({"enabled": true, "budgetTokens": 1, "maxToolResultBytes": 800,
        "keepHeadBytes": 150, "keepTailBytes": 150});
    let id = app.create_pruned(policy.clone(), &conversation(name)).await;
    let pruned = app.dispatch(&id, &json!({})).await;
    assert!(
        pruned.tokens.after < pruned.tokens.before,
        "{name}: {:?}",
        pruned.tokens
    );
    let copy = app.create_pruned(policy, &pruned.messages()).await;
    let again = app.dispatch(&copy, &json!({})).await;
    assert_eq!(again.messages(), pruned.messages(), "{name}");
    let record = app.replay(&copy, again.dispatch).await.record;
    assert_eq!(record["added"], 0, "{name}: {record:#}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s26_only_what_is_told_elsewhere_is_left_out(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let page = |offset: usize| json!({"path": "a", "offset": offset, "limit": 100}).to_string();
    let shared = lines("shared", 1_500);
    let messages = [
        vec![user("go")],
        vec![
            calling(&[("c1", "read", &page(1))]),
            result("c1", &lines("page one", 1_500)),
        ],
        vec![
            calling(&[("c2", "read", &page(101))]),
            result("c2", &lines("page two", 1_500)),
        ],
        read("c3", "b", &lines("old b", 1_500)).to_vec(),
        read("c4", "b", &lines("new b", 1_500)).to_vec(),
        read("c5", "c", &lines("good c", 1_500)).to_vec(),
        read("c6", "c", "error: no such file or directory: c").to_vec(),
        vec![
            calling(&[("c7", "grep", r#"{"pattern":"x"}"#)]),
            result("c7", &shared),
        ],
        vec![
            calling(&[("c8", "list", r#"{"path":"y"}"#)]),
            result("c8", &shared),
        ],
        read("c9", "d", &lines("old d", 1_500)).to_vec(),
        vec![assistant("and again")],
        read("c10", "d", &lines("old d", 1_500)).to_vec(),
        read("c11", "d", &lines("new d", 1_500)).to_vec(),
        read("c12", "e", &lines("e", 1_500)).to_vec(),
        read("c13", "d", &lines("newest d", 1_500)).to_vec(),
    ]
    .concat();
    // Only the rules that compare: nothing is large enough for the third.
    let policy = json!({"enabled": true, "budgetTokens": 1, "protectRecentTurns": 4});
    let id = app.create_pruned(policy, &messages).await;
    let items = app.history(&id).await;
    let id_of = |index: usize| items[index].id.clone();
    let sent = app.dispatch(&id, &json!({})).await;
    let history = History::new(&messages);
    let shown = sent.messages();
    let edits = edits(&shown, &history.render(0, None), "s26");
    let at = |call: &str| {
        let answers = |raw: &String| {
            let message: Value = serde_json::from_str(raw).expect("JSON");
            message["tool_call_id"] == call
        };
        messages.iter().position(answers).expect("a result")
    };
    for call in ["c1", "c2", "c4", "c5", "c6", "c7", "c8", "c12", "c13"] {
        assert!(!edits.contains(&at(call)), "{call} stays: {edits:?}");
    }
    // The window is c10's caller and after: three reads and the one before them.
    assert!(!edits.contains(&at("c11")), "c11 is protected: {edits:?}");
    assert!(!edits.contains(&at("c10")), "c10 is protected: {edits:?}");
    assert_eq!(edits, [at("c3"), at("c9")], "the older b, the older d");
    let of_b = content(&shown[at("c3")]);
    let whole = lines("old b", 1_500);
    assert!(
        of_b.contains(&id_of(at("c4"))),
        "points to the newer one: {of_b}"
    );
    assert!(
        of_b.contains(&id_of(at("c3"))),
        "says how to get it back: {of_b}"
    );
    let size = format!("{} lines ({} bytes)", whole.lines().count(), whole.len());
    assert!(of_b.contains(&size), "says what is gone: {of_b}");
    let path = format!("/sessions/{id}/messages/{}", id_of(at("c3")));
    let back = app.get(&path).await.expect(200).json();
    assert_eq!(back["state"], "elided");
    assert_eq!(
        back["message"]["content"],
        whole.as_str(),
        "and there it is"
    );
}

/// A tail without room for the window: nothing may be touched, and nothing is.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s26_of_equal_results_the_first_stays(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let text = lines("same", 900);
    let mut messages = vec![user("go")];
    for number in 0..6 {
        let arguments = json!({"n": number}).to_string();
        let id = format!("c{number}");
        messages.push(calling(&[(&id, "poll", &arguments)]));
        messages.push(result(&id, &text));
    }
    let policy = json!({"enabled": true, "budgetTokens": 1, "protectRecentTurns": 2});
    let id = app.create_pruned(policy, &messages).await;
    let sent = app.dispatch(&id, &json!({})).await;
    let shown = sent.messages();
    let edits = edits(
        &shown,
        &History::new(&messages).render(0, None),
        "duplicates",
    );
    assert_eq!(edits, [4, 6, 8], "all but the first and the window");
    let first = &app.history(&id).await[2].id;
    for edit in edits {
        assert!(content(&shown[edit]).contains(first), "{}", shown[edit]);
    }
    let id = app
        .create_pruned(
            json!({"enabled": true, "budgetTokens": 1, "protectRecentTurns": 50}),
            &messages,
        )
        .await;
    let sent = app.dispatch(&id, &json!({})).await;
    assert_eq!(sent.messages(), messages, "all is protected");
    assert_eq!(sent.tokens.before, sent.tokens.after);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s36_reasoning_is_kept_or_dropped_as_a_whole(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for protect in [0, 1, 4] {
        reasoning_is_whole(&app, protect).await;
    }
}

async fn reasoning_is_whole(app: &TestApp, protect: usize) {
    let thinking = |text: &str, call: &str| {
        format!(
            r#"{{"x_vendor" : {{"b":1.0,"a":[]}},"role":"assistant","reasoning_content":"{text} {}","content":[ {{"type":"thinking","thinking":"{text}","signature":"c2ln"}},{{"data":"b3A=","type":"redacted_thinking"}}, {{"type":"text","text":"{text} says"}} ],"tool_calls":[{{"id":"{call}","type":"function","function":{{"name":"run","arguments":"{{}}"}}}}]}}"#,
            "hm ".repeat(200)
        )
    };
    let messages = vec![
        user("one"),
        thinking("oldest", "c1"),
        result("c1", "ok"),
        assistant("done"),
        user("two"),
        thinking("older", "c1"),
        result("c1", "ok"),
        thinking("newest", "c1"),
        result("c1", "ok"),
    ];
    let policy = json!({"enabled": true, "budgetTokens": 1, "protectRecentTurns": protect});
    let id = app.create_pruned(policy, &messages).await;
    assert_eq!(app.shown(&id).await, messages, "as stored");
    let shown = app.dispatch(&id, &json!({})).await.messages();
    let edited = edits(&shown, &History::new(&messages).render(0, None), "s36");
    assert_eq!(
        shown[7], messages[7],
        "the newest assistant message is never edited"
    );
    assert_eq!(edited, if protect == 4 { vec![1] } else { vec![1, 5] });
    for index in edited {
        for word in ["thinking", "c2ln", "b3A=", "reasoning", "hm "] {
            assert!(
                !shown[index].contains(word),
                "all or nothing: {}",
                shown[index]
            );
        }
        let rest = r#"{"x_vendor" : {"b":1.0,"a":[]},"role":"assistant""#;
        assert!(
            shown[index].starts_with(rest),
            "the rest is as it was: {}",
            shown[index]
        );
    }
}
