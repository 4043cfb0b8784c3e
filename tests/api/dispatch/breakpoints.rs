//! Where a prefix ends that the next turn will name again.

use rstest::rstest;
use serde_json::{Value, json};

use super::sent::Sent;
use super::talk::{agent_loop, lines, steps};
use crate::support::messages::{assistant, calls, result, system, user};
use crate::support::{Backend, TestApp, tokens};

/// The first message with which each multiple of the distance is reached, told plainly.
fn milestones(shown: &[String], opening: usize, distance: usize) -> Vec<usize> {
    let mut total = 0;
    let mut found = Vec::new();
    for (index, raw) in shown.iter().enumerate() {
        let before = total;
        let is_fill = raw.contains("[no result was recorded for this call]");
        total += if is_fill { 0 } else { tokens::estimate(raw) };
        if index >= opening && total / distance > before / distance {
            found.push(index);
        }
    }
    found
}

/// The end of the instructions, the newest milestones, the last message: four at most.
pub fn expected(shown: &[String], instructions: usize, distance: usize) -> Vec<usize> {
    let mut expected: Vec<usize> = instructions.checked_sub(1).into_iter().collect();
    expected.push(shown.len() - 1);
    expected.dedup();
    for index in milestones(shown, instructions, distance).into_iter().rev() {
        if expected.len() < 4 && !expected.contains(&index) {
            expected.push(index);
        }
    }
    expected.sort_unstable();
    expected
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_growing_session_names_them_again(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let policy = json!({"enabled": true, "budgetTokens": 9_000, "floorRatio": 0.5, "milestoneTokens": 1_500,
        "maxToolResultBytes": 1_000, "keepHeadBytes": 200, "keepTailBytes": 200});
    let start = [
        vec![system("be brief"), system("be kind")],
        agent_loop(2, 1_500),
    ]
    .concat();
    let id = app.create_pruned(policy, &start).await;
    let mut before: Option<Sent> = None;
    let mut repeated = 0;
    for number in 2..24 {
        let mut more = match number % 5 {
            // Interrupted calls: the results that are shown for them shift what follows.
            0 => vec![
                calls(&["x", "y", "z"], 10),
                result("y", &lines("y", 500)),
                user("stop"),
            ],
            1 => vec![assistant("so far so good"), user("go on")],
            _ => Vec::new(),
        };
        more.extend(steps(number, number + 1, 1_500 + 100 * (number % 7)));
        app.append(&id, &more).await;
        let sent = app.dispatch(&id, &json!({})).await;
        let shown = sent.messages();
        assert_eq!(
            sent.cache_breakpoints,
            expected(&shown, 2, 1_500),
            "step {number}"
        );
        if let Some(before) = before {
            let old = before.messages();
            let is_append = shown.starts_with(&old);
            let again = before
                .cache_breakpoints
                .iter()
                .filter(|at| sent.cache_breakpoints.contains(at));
            let again = again.count();
            // Appends alone: the instructions and a milestone, if there was one, are named again.
            let least = before.cache_breakpoints.len().min(3) - 1;
            assert!(
                !is_append || again >= least,
                "step {number}: {:?}",
                sent.cache_breakpoints
            );
            repeated += usize::from(is_append);
        }
        before = Some(sent);
    }
    assert!(repeated > 10, "mostly nothing but appends: {repeated}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn small_sessions_have_few(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let empty = app.dispatch(&id, &json!({})).await;
    assert!(empty.cache_breakpoints.is_empty() && empty.messages().is_empty());
    app.append(&id, &[system("s")]).await;
    assert_eq!(app.dispatch(&id, &json!({})).await.cache_breakpoints, [0]);
    app.append(&id, &[user("u")]).await;
    assert_eq!(
        app.dispatch(&id, &json!({})).await.cache_breakpoints,
        [0, 1]
    );
    // An instruction that comes late stands at the front.
    app.append(&id, &[assistant("a"), system("late")]).await;
    let sent = app.dispatch(&id, &json!({})).await;
    assert_eq!(sent.cache_breakpoints, [1, 3]);
    assert_eq!(sent.messages()[1], system("late"));
}

/// Behind a summary, with carried messages before the tail and fills in it.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn they_are_right_behind_a_summary(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages = [
        vec![system("s")],
        agent_loop(14, 2_000),
        vec![calls(&["p", "q"], 5), user("and?")],
        steps(20, 26, 2_000),
    ]
    .concat();
    let id = app
        .create_pruned(json!({"milestoneTokens": 2_000}), &messages)
        .await;
    app.compact(&id, &json!({"compactCount": 20, "boundary": "step"}))
        .await
        .expect(200);
    let sent = app.dispatch(&id, &json!({})).await;
    let shown = sent.messages();
    let first: Value = serde_json::from_str(&shown[1]).expect("JSON");
    let summary = first["content"].as_str().expect("a text");
    let heading = "[Summary of previous conversation]\n\n";
    assert!(summary.starts_with(heading));
    assert_eq!(shown[3], messages[1], "the carried request");
    // The pair is counted as a heading, a text and a message.
    let count = |text: &str| tokens::estimate(&user(text));
    let pair = count(heading) + count(&summary[heading.len()..]) + count(&shown[2]);
    let sizes: Vec<usize> = shown
        .iter()
        .enumerate()
        .map(|(index, raw)| match index {
            1 => pair,
            2 => 0,
            _ if raw.contains("[no result was recorded") => 0,
            _ => tokens::estimate(raw),
        })
        .collect();
    let total: usize = sizes.iter().sum();
    assert_eq!(
        sent.tokens.after,
        i64::try_from(total).expect("small"),
        "tokens"
    );
    let mut newest = Vec::new();
    for multiple in (1..=total / 2_000).rev() {
        let mut sum = 0;
        let at = sizes.iter().position(|size| {
            sum += size;
            sum >= multiple * 2_000
        });
        let at = at.expect("it is reached");
        if at > 3 && at < shown.len() - 1 && newest.len() < 2 && !newest.contains(&at) {
            newest.insert(0, at);
        }
    }
    let expected = [vec![0], newest, vec![shown.len() - 1]].concat();
    assert_eq!(sent.cache_breakpoints, expected);
}

/// A message that is thousands of milestones long costs no more than another.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_milestone_at_every_token_is_no_work(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages = [agent_loop(4, 400_000), vec![assistant("done")]].concat();
    let id = app
        .create_pruned(json!({"milestoneTokens": 1}), &messages)
        .await;
    let sent = app.dispatch(&id, &json!({})).await;
    assert!(sent.tokens.after > 400_000, "{:?}", sent.tokens);
    assert_eq!(sent.cache_breakpoints, [6, 7, 8, 9]);
}
