//! A long conversation with parallel calls and reasoning, compacted again and again: its items stay as
//! they were, and its context is one that a strict provider takes.

use rstest::rstest;
use serde_json::{Value, json};

use super::{all, append, call, create, output, says, user};
use crate::support::{Backend, History, TestApp, messages, strict};

/// The items of one turn, each group with the chat message that it is, if it is one.
fn turn(number: usize) -> Vec<(Vec<String>, Option<String>)> {
    let thought = json!({"type": "reasoning", "id": format!("rs_{number}_a"), "summary": [{"type": "summary_text", "text": format!("look at {number}")}]});
    let hidden = json!({"type": "reasoning", "id": format!("rs_{number}_b"), "summary": [], "encrypted_content": "gAAAA"});
    let function = |id: &str| {
        format!(
            r#"{{"id":"{id}","type":"function","function":{{"name":"look","arguments":"{{\"p\":1}}"}}}}"#
        )
    };
    let result = |id: &str| {
        format!(
            "result {id} of turn {number}: {}",
            "src/lib.rs line ".repeat(20)
        )
    };
    let tool = |id: &str| {
        format!(
            r#"{{"role":"tool","tool_call_id":"{id}","content":"{}"}}"#,
            result(id)
        )
    };
    vec![
        (
            vec![user(&format!("request {number}"))],
            Some(format!(r#"{{"role":"user","content":"request {number}"}}"#)),
        ),
        (
            vec![
                thought.to_string(),
                says("two at once"),
                call("a"),
                call("b"),
            ],
            Some(format!(
                r#"{{"role":"assistant","reasoning_content":"look at {number}","content":"two at once","tool_calls":[{},{}]}}"#,
                function("a"),
                function("b")
            )),
        ),
        (vec![output("b", &result("b"))], Some(tool("b"))),
        (vec![output("a", &result("a"))], Some(tool("a"))),
        // Nothing of it is shown.
        (vec![hidden.to_string()], None),
        (
            vec![says(&format!("answer {number}"))],
            Some(format!(
                r#"{{"role":"assistant","content":"answer {number}"}}"#
            )),
        ),
    ]
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn items_stay_and_contexts_are_sound(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("turn", "step")] boundary: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let mut chat: Vec<String> = Vec::new();
    // For each chat message the position behind its last item.
    let mut ends: Vec<usize> = Vec::new();
    let mut position = 0;
    let mut stored: Vec<String> = Vec::new();
    let mut versions = 0;
    for number in 0..60 {
        for (items, message) in turn(number) {
            stored.extend(append(&app, &id, &items).await.texts());
            position += items.len();
            if let Some(message) = message {
                chat.push(message);
                ends.push(position);
            }
        }
        if number % 6 != 5 {
            continue;
        }
        let body = json!({"compactCount": 50, "boundary": boundary, "keepRecentTurns": 1});
        let compacted = app.compact(&id, &body).await.expect(200).json();
        versions += i32::from(compacted["compactedCount"].as_i64() > Some(0));
        assert_eq!(all(&app, &id).await, stored, "items.list is unchanged");
        check(&app, &id, &chat, &ends, &format!("turn {number}")).await;
    }
    assert!(versions >= 8, "{versions} compactions");
}

async fn check(app: &TestApp, id: &str, chat: &[String], ends: &[usize], what: &str) {
    let session = app.session(id).await;
    let size = usize::try_from(session["compactSize"].as_u64().expect("a size")).expect("a size");
    // No cut is inside an answer, so each chat message is covered whole or not at all.
    let covered = ends.iter().filter(|end| **end <= size).count();
    let mut context = app.context(id).await;
    let compaction = context.compaction.as_mut().expect("it was compacted");
    assert_eq!(compaction.size, size);
    compaction.size = covered;
    let shown = messages::raws(&context.messages);
    let tail = &chat[covered..];
    assert_eq!(&shown[shown.len() - tail.len()..], tail, "{what}");
    let history = History::new(chat);
    let expectation = strict::Expectation {
        history: &history,
        size: covered,
        summary: session["compactSummary"].as_str(),
    };
    strict::check(&context, &expectation, what);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_prunes_items_and_is_replayed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("openai", "anthropic")] format: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    for number in 0..30 {
        let items: Vec<_> = turn(number)
            .into_iter()
            .flat_map(|(items, _)| items)
            .collect();
        append(&app, &id, &items).await;
    }
    let stored = all(&app, &id).await;
    let body = json!({"pruning": {"enabled": true, "budgetTokens": 2_000, "protectRecentTurns": 4, "maxToolResultBytes": 256, "keepHeadBytes": 64, "keepTailBytes": 64}});
    app.patch(&format!("/sessions/{id}"), &body)
        .await
        .expect(200);
    let path = format!("/sessions/{id}/context?format={format}");
    let before = app.get(&path).await.expect(200);
    let sent = app
        .post(
            &format!("/sessions/{id}/context"),
            &json!({"format": format}),
        )
        .await
        .expect(200);
    assert!(
        sent.body.len() < before.body.len(),
        "something was pruned: {sent}"
    );
    let messages = sent.json()["messages"].clone();
    let replayed = app
        .get(&format!("/sessions/{id}/dispatches/1"))
        .await
        .expect(200);
    let replayed: Value = replayed.json();
    assert_eq!(replayed["messages"], messages, "{replayed}");
    assert_eq!(
        app.get(&path).await.expect(200).json()["messages"],
        messages
    );
    assert_eq!(all(&app, &id).await, stored);
    let shown = serde_json::to_string(&messages).unwrap();
    assert!(shown.contains("[precis: "), "results are shortened");
    if format == "openai" {
        let list = messages.as_array().unwrap();
        assert_eq!(list.len(), 30 * 5);
        let marks = sent.json()["cacheBreakpoints"].clone();
        for mark in marks.as_array().into_iter().flatten() {
            assert!(mark.as_u64().unwrap() < 150, "{marks}");
        }
    }
}
