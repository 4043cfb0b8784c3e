//! `POST …/compact`: its parameters, dry runs, its answer.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::chain;
use crate::support::messages::{turns, u};
use crate::support::{Backend, History, ScriptedModel, TestApp};

#[rstest]
#[case::zero(json!({"compactCount": 0}), "/compactCount")]
#[case::hundred(json!({"compactCount": 100}), "/compactCount")]
#[case::negative(json!({"compactCount": -5}), "/compactCount")]
#[case::fraction(json!({"compactCount": 50.5}), "/compactCount")]
#[case::text(json!({"compactCount": "50"}), "/compactCount")]
#[case::null(json!({"compactCount": null}), "/compactCount")]
#[case::huge(json!({"compactCount": 1e300}), "/compactCount")]
#[case::unknown(json!({"percentage": 50}), "/percentage")]
#[case::boundary(json!({"boundary": "word"}), "/boundary")]
#[case::keep(json!({"keepRecentTurns": -1}), "/keepRecentTurns")]
#[case::dry_run(json!({"dryRun": "yes"}), "/dryRun")]
#[case::instructions(json!({"instructions": 5}), "/instructions")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_parameter_is_refused_by_pointer(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] body: Value,
    #[case] pointer: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(5, 100)).await;
    let before = app.session(&id).await;
    app.compact(&id, &body).await.invalid(pointer);
    assert_eq!(app.session(&id).await, before, "nothing was compacted");
}

#[rstest]
#[case::no_body(None, 6)]
#[case::empty_object(Some("{}"), 6)]
#[case::as_a_float(Some(r#"{"compactCount":50.0}"#), 6)]
#[case::as_an_exponent(Some(r#"{"compactCount":5e1}"#), 6)]
#[case::ninety(Some(r#"{"compactCount":90}"#), 8)]
#[tokio::test(flavor = "multi_thread")]
async fn the_body_is_optional(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] body: Option<&str>,
    #[case] size: u64,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(5, 100)).await;
    let path = format!("/sessions/{id}/compact");
    let reply = match body {
        None => app.post_empty(&path).await,
        Some(body) => app.post_raw(&path, body).await,
    };
    assert_eq!(reply.expect(200).json()["newSize"], size);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_request_holds_for_its_run_alone(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({"compactCount": 10})).await;
    app.append(&id, &turns(5, 100)).await;
    let before = app.session(&id).await;

    let request = json!({"compactCount": 60, "keepRecentTurns": 2, "boundary": "step"});
    let answer = app.compact(&id, &request).await.expect(200).json();
    assert_eq!(answer["newSize"], 6, "60 of 1,000 by step: {answer:#}");
    for member in ["compactCount", "compaction"] {
        assert_eq!(
            answer["session"][member], before[member],
            "`{member}` of the session is not the request's"
        );
    }
    assert_eq!(
        answer["compaction"]["compactCount"], 60,
        "the record says what it ran with"
    );
    assert_eq!(answer["compaction"]["boundary"], "step");

    // The session's own percentage is what counts without one in the request.
    app.patch(&format!("/sessions/{id}"), &json!({"compactCount": 1}))
        .await
        .expect(200);
    let answer = app.compact(&id, &json!({})).await.expect(200).json();
    assert_eq!(answer["compaction"]["compactCount"], 1, "{answer:#}");
    assert_eq!(answer["newSize"], 8, "the smallest turn");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_of_the_session_decides_without_a_request(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let policy = json!({"keepRecentTurns": 4, "boundary": "turn", "maxSummaryTokens": 2000});
    let id = app
        .create(&json!({"compaction": policy, "compactCount": 99}))
        .await;
    app.append(&id, &turns(5, 100)).await;
    let answer = app.compact(&id, &json!({})).await.expect(200).json();
    assert_eq!(answer["newSize"], 2, "four turns are kept: {answer:#}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_calls_no_model_and_changes_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let raws = turns(5, 100);
    let id = app.create_with(&raws).await;
    let before = app.session(&id).await;

    let answer = app
        .compact(&id, &json!({"dryRun": true}))
        .await
        .expect(200)
        .json();
    assert_eq!(
        answer["newSize"], 6,
        "the cut that a run would make: {answer:#}"
    );
    assert_eq!(answer["compactedCount"], 6, "and how many it would take");
    assert_eq!(answer["reason"], Value::Null);
    assert_eq!(app.session(&id).await, before, "the session is as before");
    assert!(app.compactions(&id).await.is_empty(), "there is no record");
    assert_eq!(model.calls().len(), 0, "no model was called");

    let real = app.compact(&id, &json!({})).await.expect(200).json();
    assert_eq!(
        real["newSize"], answer["newSize"],
        "the run does what the plan said"
    );
    assert_eq!(model.calls().len(), 1, "one run, one call");
    chain::check(&app, &id, &History::new(&raws), "after the run").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_answer_holds_record_and_session(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(5, 100)).await;
    let answer = app.compact(&id, &json!({})).await.expect(200).json();
    assert_eq!(answer["sessionId"], id);
    assert_eq!(answer["compactedCount"], 6);
    assert_eq!(answer["alreadyUpToDate"], false);
    assert_eq!(
        answer["session"],
        app.session(&id).await,
        "the whole session as it is now"
    );
    assert_eq!(
        answer["compaction"],
        app.get(&format!("/sessions/{id}/compactions/1"))
            .await
            .expect(200)
            .json(),
        "the record as the chain has it"
    );
    assert_eq!(
        answer["compaction"]["method"], "extractive",
        "no model is configured"
    );

    app.append(&id, &[u(5)]).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 99}))
        .await
        .expect(200)
        .json();
    assert_eq!(
        answer["compactedCount"], 4,
        "positions 6–9, up to the new turn"
    );
}
