//! Which results a session takes, and what a context makes of calls that never got one.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{a, calls, result, system, user};
use crate::support::{Backend, History, TestApp, chain};

#[rstest]
#[case::no_call_at_all(vec![user("q")], "c1")]
#[case::another_id(vec![user("q"), calls(&["c1", "c2"], 0)], "c9")]
#[case::a_second_result(vec![user("q"), calls(&["c1", "c2"], 0), result("c1", "once")], "c1")]
#[case::an_earlier_group(vec![user("q"), calls(&["c1"], 0), result("c1", "r"), calls(&["c2"], 0)], "c1")]
#[case::case_matters(vec![user("q"), calls(&["c1"], 0)], "C1")]
#[tokio::test(flavor = "multi_thread")]
async fn a_result_for_no_open_call_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] before: Vec<String>,
    #[case] call: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&before).await;
    let body = format!("[{},{}]", result(call, "late"), a(3));
    app.append_raw(&id, &body)
        .await
        .problem(422, "TOOL_CALL_NOT_FOUND");
    assert_eq!(
        app.history(&id).await.len(),
        before.len(),
        "nothing of the append is stored"
    );

    // Within one request it is no different.
    let body = json!({"messages": before.iter().map(|raw| serde_json::from_str(raw).expect("JSON"))
        .chain([json!({"role": "tool", "tool_call_id": call, "content": "late"})])
        .collect::<Vec<Value>>()});
    app.post("/sessions", &body)
        .await
        .problem(422, "TOOL_CALL_NOT_FOUND");
}

#[rstest]
#[case::by_the_user(user("never mind"))]
#[case::by_the_assistant(a(5))]
#[case::by_other_calls(calls(&["c7"], 0))]
#[tokio::test(flavor = "multi_thread")]
async fn a_late_result_is_told_who_interrupted_its_call(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] interruption: String,
) {
    let app = TestApp::spawn(backend).await;
    let mut raws = vec![user("q"), calls(&["c1", "c2"], 0), result("c2", "r2")];
    let id = app.create_with(&raws).await;
    let interrupting = app.append(&id, std::slice::from_ref(&interruption)).await;
    raws.push(interruption);

    let reply = app
        .append_raw(&id, &format!("[{}]", result("c1", "late")))
        .await;
    let problem = reply.problem(422, "TOOL_CALL_NOT_FOUND");
    let detail = problem["detail"].as_str().unwrap_or_default();
    let message_id = interrupting[0]["id"].as_str().expect("an id");
    let seq = interrupting[0]["seq"].to_string();
    assert!(
        detail.contains(message_id)
            || detail
                .split(|c: char| !c.is_ascii_digit())
                .any(|n| n == seq),
        "expected the detail to name message {message_id} (seq {seq}): {detail}"
    );

    // The strict check wants a made-up result for c1, after the result of c2.
    let history = History::new(&raws);
    chain::check(&app, &id, &history, "an interrupted call").await;
    let made = app.context(&id).await.messages[3].get().to_owned();
    assert_eq!(
        serde_json::from_str::<Value>(&made).expect("JSON"),
        json!({
            "role": "tool",
            "tool_call_id": "c1",
            "content": "[no result was recorded for this call]",
        }),
        "the context answers the interrupted call"
    );
    let stored = app.history(&id).await;
    assert_eq!(stored.len(), 4, "nothing is made up in storage");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn instructions_interrupt_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let raws = [
        user("q"),
        calls(&["c1", "c2"], 0),
        result("c1", "r1"),
        system("be brief"),
        result("c2", "r2"),
    ];
    let id = app.create_with(&raws).await;
    let context = app.context(&id).await;
    assert!(context.open_calls.is_empty(), "both calls were answered");
    chain::check(
        &app,
        &id,
        &History::new(&raws),
        "instructions between results",
    )
    .await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn open_calls_are_named_and_left_open(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let raws = [user("q"), calls(&["c1", "c2", "c3"], 0), result("c2", "r")];
    let id = app.create_with(&raws).await;
    let context = app.context(&id).await;
    assert_eq!(
        context.open_calls,
        ["c1", "c3"],
        "in the order of the calls"
    );
    assert_eq!(
        context.messages.len(),
        3,
        "open calls get no made-up results"
    );
}
