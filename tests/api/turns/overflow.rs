//! A context that does not fit: made smaller once, sent once more, and never more than that.

use rstest::rstest;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Stage, Turn, beside, gated_summary, is_strict, is_usable, load, records, running, sent, stored,
    tells, turn,
};
use crate::support::messages::{a, system, turns, u, user};
use crate::support::model::COMPACT;
use crate::support::stream_model::Script;
use crate::support::{Backend, History, chain, fixture};

const QUESTION: &str = "the question that is asked now";

#[rstest]
#[case::refused(Script::overflow())]
#[case::inside_a_success(Script::overflow_inside())]
#[tokio::test(flavor = "multi_thread")]
async fn an_overflow_compacts_once_and_is_sent_again(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] refusal: Script,
) {
    let stage = Stage::new(backend).await;
    stage.script([refusal, Script::Text("the answer".to_owned())]);
    let id = stage.session_of(4).await;
    let before = stored(&stage, &id).await;
    let made = Turn::of(&turn(&stage, &id, &[user(QUESTION)]).await);
    assert_eq!(made.status, "completed");
    assert_eq!(made.compaction_version, Some(1));
    assert_eq!(made.compaction["version"], 1);
    assert_eq!(
        made.compaction["trigger"], "overflow",
        "{}",
        made.compaction
    );
    assert_eq!(made.dispatch, Some(2), "the one that was answered");
    assert_eq!(made.messages.len(), 2);

    let asked = stage.asked();
    assert_eq!((asked.len(), stage.summarised()), (2, 1));
    let after = stored(&stage, &id).await;
    assert_eq!(after[..8], before[..], "a compaction changes no message");
    assert_eq!(after.len(), 10);
    assert_eq!(after[8], user(QUESTION));
    assert_eq!(sent(&asked[0]), after[..9]);
    let session = stage.session(&id).await;
    is_strict(&asked[1], &after[..9], &session, "the second request");
    assert_eq!(sent(&asked[1]).last(), Some(&user(QUESTION)));
    assert!(asked[1].raw.len() < asked[0].raw.len());
    chain::check(&stage, &id, &History::new(&after), "after the recovery").await;
    assert_eq!(
        load(&stage, &id, &made.id).await.compaction,
        made.compaction
    );
    let frames = tells(
        &stage,
        &id,
        &[
            "session.created",
            "message.appended",
            "message.appended",
            "turn.started",
            "context.dispatched",
            "compaction.started",
            "context.defaultCompacted",
            "context.dispatched",
            "message.appended",
            "turn.completed",
        ],
    )
    .await;
    assert_eq!(frames[5].data["trigger"], "overflow");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_second_overflow_is_the_end_of_the_turn_and_blocks_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    let told = json!({"error": {"message": "request (66202 tokens) exceeds the available context size (65536 tokens), try increasing it", "type": "exceed_context_size_error", "n_prompt_tokens": 66202, "n_ctx": 65536}});
    stage.script([Script::Status(400, Vec::new(), told.to_string())]);
    let id = stage.session_of(6).await;
    let problem = turn(&stage, &id, &[user(QUESTION)])
        .await
        .problem(422, "CONTEXT_OVERFLOW");
    let detail = problem["detail"].as_str().expect("a text");
    assert!(
        detail.contains("66202") && detail.contains("65536"),
        "the sizes: {detail}"
    );
    assert_eq!((stage.asked().len(), stage.summarised()), (2, 1));
    let failed = records(&stage, &id).await.remove(0);
    assert_eq!(failed["error"]["code"], "CONTEXT_OVERFLOW");
    assert_eq!(
        (
            failed["dispatch"].as_u64(),
            failed["compactionVersion"].as_u64()
        ),
        (Some(2), Some(1))
    );

    // Each turn has its own allowance.
    turn(&stage, &id, &[])
        .await
        .problem(422, "CONTEXT_OVERFLOW");
    assert_eq!((stage.asked().len(), stage.summarised()), (4, 2));
    let raws = stored(&stage, &id).await;
    assert_eq!(raws.iter().filter(|raw| **raw == user(QUESTION)).count(), 1);
    stage.script([Script::Text("it fits".to_owned())]);
    assert_eq!(Turn::of(&turn(&stage, &id, &[]).await).status, "completed");
    let raws = stored(&stage, &id).await;
    assert_eq!(raws.len(), 14);
    chain::check(&stage, &id, &History::new(&raws), "after two failures").await;
}

#[rstest]
#[case::one_message(vec![])]
#[case::only_instructions(vec![system("rules"), system("more rules")])]
#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_can_be_freed_nothing_is_sent_again(#[case] before: Vec<String>) {
    let stage = Stage::new(Backend::Sqlite).await;
    stage.script([Script::overflow()]);
    let id = stage.create(&json!({})).await;
    if !before.is_empty() {
        stage.append(&id, &before).await;
    }
    let problem = turn(&stage, &id, &[u(4_000)])
        .await
        .problem(422, "CONTEXT_OVERFLOW");
    let detail = problem["detail"].as_str().expect("a text");
    assert!(
        detail.contains("about 100"),
        "a thousand tokens and the instructions: {detail}"
    );
    assert_eq!((stage.asked().len(), stage.summarised()), (1, 0));
    assert_eq!(stored(&stage, &id).await.len(), before.len() + 1);
    assert!(stage.compactions(&id).await.is_empty());
    is_usable(&stage, &stage, &id).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s35_endless_compaction_without_progress(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    stage.script([Script::overflow()]);
    let fixed = system(&"x".repeat(400_000));
    let mut history = vec![fixed.clone()];
    history.extend(turns(4, 200));
    let id = stage.create_with(&history).await;
    let problem = turn(&stage, &id, &[user(QUESTION)])
        .await
        .problem(422, "CONTEXT_OVERFLOW");
    let detail = problem["detail"].as_str().expect("a text");
    assert!(
        detail.contains("100"),
        "about a hundred thousand tokens: {detail}"
    );
    assert_eq!(
        (stage.asked().len(), stage.summarised()),
        (2, 1),
        "two calls, one compaction"
    );
    assert_eq!(stage.compactions(&id).await.len(), 1);
    assert!(stage.asked().iter().all(|call| sent(call)[0] == fixed));
    history.push(user(QUESTION));
    assert_eq!(stored(&stage, &id).await, history);

    let open = stage.create_with(&[fixed]).await;
    turn(&stage, &open, &[user(QUESTION)])
        .await
        .problem(422, "CONTEXT_OVERFLOW");
    assert_eq!(
        (stage.asked().len(), stage.summarised()),
        (3, 1),
        "an open tail is not sent again"
    );
}

#[derive(Deserialize)]
struct Row {
    provider: String,
    http_status: u16,
    body: Value,
    is_context_overflow: bool,
}

/// S34: every row of the table, through a turn.
#[tokio::test(flavor = "multi_thread")]
async fn s34_only_an_overflow_is_taken_for_one() {
    let rows: Vec<Row> = serde_json::from_str(&fixture("overflow-errors.json")).expect("the table");
    assert!(rows.len() > 30);
    let stage = Stage::new(Backend::Sqlite).await;
    for (index, row) in rows.iter().enumerate() {
        let what = format!("row {index}, {} {}", row.provider, row.http_status);
        let refusal = Script::Status(row.http_status, Vec::new(), row.body.to_string());
        let id = stage.session_of(2).await;
        let (asked, summarised) = (stage.asked().len(), stage.summarised());
        if row.is_context_overflow {
            stage.script([refusal, Script::Text("fine".to_owned())]);
            let reply = turn(&stage, &id, &[user(QUESTION)]).await;
            assert_eq!(reply.status, 200, "{what}: {reply}");
            assert_eq!(Turn::of(&reply).compaction_version, Some(1), "{what}");
            assert_eq!(stage.asked().len(), asked + 2, "{what}");
            continue;
        }
        stage.script([refusal]);
        let reply = turn(&stage, &id, &[user(QUESTION)]).await;
        assert_eq!(stage.summarised(), summarised, "{what}: no compaction");
        assert!(stage.compactions(&id).await.is_empty(), "{what}");
        match row.http_status {
            200 => assert_eq!(Turn::of(&reply).status, "completed"),
            429 => {
                reply.problem(503, "MODEL_FAILED");
                assert!(reply.header("retry-after").is_some(), "{what}: {reply}");
            }
            _ => assert_eq!(reply.json()["code"], "MODEL_FAILED", "{what}: {reply}"),
        }
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        for word in [
            "org-example",
            "report context_length",
            "example:7b",
            "ExampleHost",
        ] {
            assert!(
                !text.contains(word),
                "{what}: the provider's words are not handed on: {text}"
            );
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_runs_already_is_waited_for_and_used(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    stage.script([Script::overflow(), Script::Text("fine".to_owned())]);
    stage.model.script(COMPACT, [gated_summary()]);
    let id = stage.session_of(5).await;
    let (http, session) = (stage.http().clone(), id.clone());
    let manual = tokio::spawn(async move { http.compact(&session, &json!({})).await });
    stage.model.at_gate(1).await;
    let asked = beside(&stage, &id, &[user(QUESTION)]);
    stage.model.arrived(2).await;
    assert_eq!(
        records(&stage, &id).await[0]["id"],
        running(&stage, &id).await
    );
    stage.model.open_gate();
    // In case it has begun one of its own, which it should not have.
    stage.model.open_gate();
    manual.await.expect("a reply").expect(200);
    let made = Turn::of(&asked.await.expect("a reply"));
    assert_eq!(
        (made.status.as_str(), made.compaction_version),
        ("completed", Some(1))
    );
    assert_eq!(
        (stage.asked().len(), stage.summarised()),
        (2, 1),
        "one summary served both"
    );
    let raws = stored(&stage, &id).await;
    let session = chain::check(&stage, &id, &History::new(&raws), "one for both").await;
    is_strict(
        &stage.asked()[1],
        &raws[..11],
        &session,
        "the second request",
    );
}

#[rstest]
#[case::the_summarizer_fails(Script::Status(400, Vec::new(), String::new()))]
#[case::the_summary_is_none(Script::Text(String::new()))]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_fails_is_named(#[case] failure: Script) {
    let stage = Stage::new(Backend::Postgres).await;
    // The model that answers is asked for the summary where the other one fails.
    stage.script([Script::overflow(), failure.clone()]);
    stage.model.script(COMPACT, [failure]);
    let id = stage.session_of(4).await;
    let problem = turn(&stage, &id, &[user(QUESTION)])
        .await
        .problem(422, "CONTEXT_OVERFLOW");
    let detail = problem["detail"].as_str().expect("a text");
    assert!(
        detail.contains("window") && detail.contains("summarizer"),
        "both causes: {detail}"
    );
    assert_eq!(stage.asked().len(), 1, "nothing was freed");
    assert_eq!(stored(&stage, &id).await.len(), 9);
    tells(
        &stage,
        &id,
        &[
            "session.created",
            "message.appended",
            "message.appended",
            "turn.started",
            "context.dispatched",
            "compaction.started",
            "compaction.failed",
            "turn.failed",
        ],
    )
    .await;
    stage
        .model
        .script(COMPACT, [Script::Text(super::SUMMARY.to_owned())]);
    stage.script([Script::overflow(), Script::Text("fine".to_owned())]);
    assert_eq!(
        Turn::of(&turn(&stage, &id, &[]).await).compaction_version,
        Some(1)
    );
}

/// The newest question may be larger than all that came before it; it is sent whole all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_other_failures_say_after_an_overflow_is_their_own() {
    let stage = Stage::new(Backend::Sqlite).await;
    stage.script([
        Script::overflow(),
        Script::Status(401, Vec::new(), "{}".to_owned()),
        Script::Text("fine".to_owned()),
    ]);
    let id = stage.create_with(&[u(300), a(300), u(300), a(300)]).await;
    let problem = turn(&stage, &id, &[user(QUESTION)])
        .await
        .problem(502, "MODEL_FAILED");
    assert_eq!(problem["errors"][0]["code"], "refused");
    let failed = records(&stage, &id).await.remove(0);
    assert_eq!(failed["compactionVersion"], 1, "what was made is kept");
    assert_eq!(Turn::of(&turn(&stage, &id, &[]).await).status, "completed");
    assert_eq!((stage.asked().len(), stage.summarised()), (3, 1));
}
