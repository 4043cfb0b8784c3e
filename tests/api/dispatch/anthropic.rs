//! The other form: both routes, every fixture, compacted and pruned, judged as that API would.

use rstest::rstest;
use serde_json::{Value, json};

use super::random::Story;
use super::sent::Sent;
use super::talk::{agent_loop, steps};
use crate::support::messages::{calls, r, result, system, user};
use crate::support::{Backend, Http, Reply, TestApp, conversation, strict_anthropic};

fn checked(reply: &Reply, what: &str) -> (Value, Value) {
    let body = reply.json();
    assert_eq!(body["format"], "anthropic", "{what}");
    strict_anthropic::check(&body["system"], &body["messages"], what);
    (body["system"].clone(), body["messages"].clone())
}

/// Both routes; they must say the same.
async fn both(http: &Http, id: &str, what: &str) -> Sent {
    let reply = http
        .post(
            &format!("/sessions/{id}/context"),
            &json!({"format": "anthropic"}),
        )
        .await;
    let dispatched = checked(&reply.expect(200), what);
    let reply = http
        .get(&format!("/sessions/{id}/context?format=anthropic"))
        .await;
    let shown = checked(&reply.expect(200), what);
    assert_eq!(shown, dispatched, "{what}: GET is the dispatch");
    let list = http
        .get(&format!("/sessions/{id}/dispatches?limit=1"))
        .await
        .expect(200)
        .json();
    let n = list["data"][0]["n"].as_u64().expect("a number");
    let again = http.dispatch(id, &json!({"format": "anthropic"})).await;
    assert_eq!(again.values(), dispatched, "{what}: again");
    http.replays_as(id, &again, what).await;
    let first = http.replay(id, n).await;
    assert_eq!(first.items, Some(again.items()), "{what}: the first too");
    again
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn fixtures_hold_compacted_and_pruned(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for name in [
        "01_plain_chat_12",
        "02_coding_agent_60",
        "03_cjk_emoji_rtl",
        "05_research_200",
        "06_pathological",
    ] {
        fixture_holds(&app, name).await;
    }
}

async fn fixture_holds(app: &TestApp, name: &str) {
    let policy = json!({"milestoneTokens": 1_000, "maxToolResultBytes": 600, "keepHeadBytes": 100, "keepTailBytes": 100});
    let id = app.create_pruned(policy, &conversation(name)).await;
    both(app, &id, name).await;
    for percent in [30, 50, 75, 99] {
        let fork = app.fork(&id, &json!({})).await.expect(201).json();
        let fork = fork["id"].as_str().expect("an id");
        let boundary = if percent == 50 { "step" } else { "turn" };
        app.compact(
            fork,
            &json!({"compactCount": percent, "boundary": boundary, "keepRecentTurns": 0}),
        )
        .await
        .expect(200);
        both(app, fork, &format!("{name}, compacted at {percent}")).await;
    }
    app.set_pruning(
        &id,
        json!({"enabled": true, "budgetTokens": 1, "protectRecentTurns": 1}),
    )
    .await;
    let pruned = both(app, &id, &format!("{name}, pruned")).await;
    if ["02_coding_agent_60", "06_pathological"].contains(&name) {
        assert!(
            pruned.tokens.after < pruned.tokens.before,
            "{name}: {:?}",
            pruned.tokens
        );
    }
    app.compact(&id, &json!({"compactCount": 30, "boundary": "step"}))
        .await
        .expect(200);
    both(app, &id, &format!("{name}, pruned and compacted")).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_place_is_named_and_nothing_is_recorded(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let raws = conversation("04_multimodal");
    let id = app
        .create_pruned(json!({"enabled": true, "budgetTokens": 1}), &raws)
        .await;
    let dispatch = format!("/sessions/{id}/context");
    let get = format!("/sessions/{id}/context?format=anthropic");
    let named = |reply: &Reply| {
        let problem = reply.problem(422, "VALIDATION_FAILED");
        let pointer = problem["errors"][0]["pointer"].as_str().expect("a pointer");
        let message = problem["errors"][0]["message"].as_str().expect("a text");
        (pointer.to_owned(), message.to_owned())
    };
    let at = |kind: &str| {
        raws.iter().enumerate().find_map(|(index, raw)| {
            let message: Value = serde_json::from_str(raw).expect("JSON");
            let parts = message["content"].as_array()?.clone();
            let part = parts.iter().position(|part| part["type"] == kind)?;
            Some((index, part))
        })
    };
    let mut found = Vec::new();
    for kind in ["input_audio", "x_point_cloud"] {
        let first = named(&app.get(&get).await);
        let second = named(&app.post(&dispatch, &json!({"format": "anthropic"})).await);
        assert_eq!(first, second, "both routes name the same");
        let (message, part) = at(kind).expect("a part of that kind");
        assert!(first.1.contains(kind), "{first:?}");
        assert!(
            first.0.ends_with(&format!("/{message}/content/{part}")),
            "{first:?}"
        );
        found.push(first.0);
        // What cannot be told in this form is taken out; the next is named.
        let item = &app.history(&id).await[message];
        app.erase(&id, &item.id).await.expect(204);
    }
    assert_eq!(
        app.stats(&id).await["dispatches"],
        0,
        "nothing was recorded: {found:?}"
    );
    assert_eq!(app.stats(&id).await["elisions"], 0);
    both(&app, &id, "without what has no place").await;
}

fn marks(value: &Value) -> usize {
    value.to_string().matches("cache_control").count()
}

fn unmarked(message: &Value) -> Value {
    let mut message = message.clone();
    for block in message["content"].as_array_mut().into_iter().flatten() {
        block
            .as_object_mut()
            .expect("a block")
            .remove("cache_control");
    }
    message
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn marks_stand_at_the_breakpoints(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages = [vec![system("one"), system("two")], agent_loop(12, 3_000)].concat();
    let id = app
        .create_pruned(json!({"milestoneTokens": 3_000}), &messages)
        .await;
    let sent = both(&app, &id, "marks").await;
    let (system, messages) = sent.values();
    assert_eq!(marks(&system), 1, "the end of the instructions");
    assert!(system[1]["cache_control"].is_object(), "the last of them");
    assert_eq!(
        marks(&messages),
        3,
        "two milestones and the last: {:?}",
        sent.cache_breakpoints
    );
    let list = messages.as_array().expect("a list");
    let marked: Vec<usize> = (0..list.len()).filter(|at| marks(&list[*at]) > 0).collect();
    let mut named = sent.cache_breakpoints.clone();
    named.dedup();
    assert_eq!(marked, named);
    assert_eq!(marked.last(), Some(&(list.len() - 1)));
    for at in &marked {
        let blocks = list[*at]["content"].as_array().expect("blocks");
        let last = blocks.last().expect("a block");
        assert!(last["cache_control"].is_object(), "the last block of {at}");
    }
    // The next turn says all of it again, and ends a prefix at a milestone of this one.
    app.append(&id, &steps(12, 13, 200)).await;
    let next = both(&app, &id, "the next turn").await;
    let (_, after) = next.values();
    for (at, message) in list.iter().enumerate() {
        assert_eq!(unmarked(&after[at]), unmarked(message), "message {at}");
    }
    let milestones = &marked[..marked.len() - 1];
    let again = |at: &&usize| next.cache_breakpoints.contains(*at);
    assert!(
        milestones.iter().any(|at| again(&at)),
        "{:?}",
        next.cache_breakpoints
    );
}

/// Calls cut off by the user, in every place, with a result that comes first or last.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_calls_and_repeated_ids_hold(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages = [
        calls(&["a", "b", "c"], 20),
        result("b", "second"),
        user("stop"),
        calls(&["a", "b"], 0),
        user("stop that too"),
        calls(&["a"], 0),
        system("late"),
        result("a", ""),
        calls(&["a", "b"], 0),
        result("b", "only b"),
    ];
    let id = app
        .create_pruned(json!({"milestoneTokens": 1_000}), &[])
        .await;
    for message in &messages {
        app.append(&id, std::slice::from_ref(message)).await;
        both(&app, &id, message).await;
    }
    assert_eq!(app.context(&id).await.open_calls, ["a"]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn random_sessions_hold(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    for seed in [1, 2, 3] {
        random_session_holds(&app, seed).await;
    }
}

async fn random_session_holds(app: &TestApp, seed: u64) {
    let policy = json!({"enabled": true, "budgetTokens": 2_500, "protectRecentTurns": 2, "maxToolResultBytes": 900,
        "keepHeadBytes": 120, "keepTailBytes": 80, "milestoneTokens": 1_000});
    let id = app.create_pruned(policy, &[]).await;
    let mut story = Story::new(seed);
    for step in 0..14 {
        let count = 1 + story.dice.below(6);
        let messages = story.go_on(count);
        app.append(&id, &messages).await;
        both(app, &id, &format!("seed {seed}, step {step}")).await;
        if step % 5 == 4 {
            let body = json!({"compactCount": 40, "boundary": "step", "keepRecentTurns": 0});
            app.compact(&id, &body).await.expect(200);
            both(app, &id, &format!("seed {seed}, step {step}, compacted")).await;
        }
    }
}

/// A context that is too large to be kept in the one form is whole in the other.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_large_context_holds_in_this_form(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut messages = agent_loop(3, 100);
    messages.push(calls(&["big", "bigger"], 0));
    messages.extend([r("big", 3 << 20), r("bigger", 2 << 20)]);
    let id = app.create_with(&messages).await;
    both(&app, &id, "large").await;
    app.set_pruning(&id, json!({"enabled": true, "protectRecentTurns": 0}))
        .await;
    let pruned = both(&app, &id, "large and pruned").await;
    assert!(pruned.items().concat().len() < 20_000, "pruned");
}
