//! Models that are not there, do not answer, or say no.

use rstest::rstest;
use serde_json::json;

use super::{Stage, Turn, body, is_usable, path, records, stored, stream, tells, turn};
use crate::shutdown::refuses_new_work;
use crate::support::messages::user;
use crate::support::raw_model::{Act, RawModel};
use crate::support::stream_model::Script;
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn without_a_model_nothing_is_stored(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("", r#","stream":true"#)] rest: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let reply = app.post_raw(&path(&id), body(&[user("hi")], rest)).await;
    reply.problem(503, "MODEL_NOT_CONFIGURED");
    assert!(stored(&app, &id).await.is_empty());
    assert!(records(&app, &id).await.is_empty());
    tells(&app, &id, &["session.created"]).await;
}

#[rstest]
#[case::with_a_wait(Some("7"), "7")]
#[case::without(None, "30")]
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_is_passed_on_with_its_wait(#[case] said: Option<&str>, #[case] wait: &str) {
    let stage = Stage::new(Backend::Sqlite).await;
    let text = json!({"error": {"message": "Too many tokens: this model's maximum context length of tokens per minute is exceeded", "code": "rate_limit_exceeded"}});
    let headers = said.map(|said| ("retry-after", said.to_owned()));
    stage.script([Script::Status(
        429,
        headers.into_iter().collect(),
        text.to_string(),
    )]);
    let id = stage.session_of(3).await;
    let reply = turn(&stage, &id, &[user("hi")]).await;
    let problem = reply.problem(503, "MODEL_FAILED");
    assert_eq!(problem["errors"][0]["code"], "rate_limited");
    assert_eq!(reply.header("retry-after"), Some(wait));
    assert_eq!(stage.summarised(), 0, "a rate limit is no overflow");
    assert_eq!(stored(&stage, &id).await.len(), 7);
    is_usable(&stage, &stage, &id).await;
}

#[rstest]
#[case::unavailable(Script::unavailable(), 502, "MODEL_FAILED", "unavailable", 3)]
#[case::refused(Script::Status(403, Vec::new(), "no".to_owned()), 502, "MODEL_FAILED", "refused", 1)]
#[case::hung_up(Script::HangUp, 502, "MODEL_FAILED", "connect", 3)]
#[case::silent(Script::Hang, 504, "MODEL_TIMEOUT", "timeout_first_byte", 2)]
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_fails_fails_the_turn(
    #[values(false, true)] streamed: bool,
    #[case] script: Script,
    #[case] status: u16,
    #[case] code: &str,
    #[case] kind: &str,
    #[case] calls: usize,
) {
    let limits = [
        ("PRECIS_PROVIDER__FIRST_BYTE_TIMEOUT_MS", "300"),
        (
            "PRECIS_PROVIDER__ATTEMPTS",
            if code == "MODEL_TIMEOUT" { "2" } else { "3" },
        ),
    ];
    let stage = Stage::with(Backend::Sqlite, &limits).await;
    stage.script([script]);
    let id = stage.create(&json!({})).await;
    let problem = if streamed {
        let frames = stream(&stage, &id, &[user("hi")]).await.rest().await;
        let last = frames.last().expect("an end");
        assert_eq!(last.event, "turn.failed");
        assert_eq!(last.data["status"], status);
        assert_eq!(last.data["code"], code);
        last.data.clone()
    } else {
        turn(&stage, &id, &[user("hi")]).await.problem(status, code)
    };
    assert_eq!(problem["errors"][0]["code"], kind);
    assert_eq!(stage.asked().len(), calls);
    assert_eq!(stored(&stage, &id).await, [user("hi")]);
    let failed = records(&stage, &id).await.remove(0);
    assert_eq!(
        (failed["status"].as_str(), failed["error"]["code"].as_str()),
        (Some("failed"), Some(code))
    );
    tells(
        &stage,
        &id,
        &[
            "session.created",
            "message.appended",
            "turn.started",
            "context.dispatched",
            "turn.failed",
        ],
    )
    .await;
    is_usable(&stage, &stage, &id).await;
}

/// Below HTTP: an answer that stalls, breaks off, or never comes.
#[rstest]
#[case::a_head_and_nothing(Act::HangAfterHead, "timeout_first_byte")]
#[case::a_trickle(Act::Trickle, "timeout_call")]
#[case::half_an_answer(Act::Cut, "connect")]
#[case::half_a_chunk(Act::CutChunk, "connect")]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_arrive_fails_the_turn(#[case] act: Act, #[case] kind: &str) {
    let model = RawModel::start([act]);
    let mut variables = model.variables();
    for (name, value) in [("FIRST_BYTE", "400"), ("IDLE", "400"), ("CALL", "800")] {
        variables.push((
            format!("PRECIS_PROVIDER__{name}_TIMEOUT_MS"),
            value.to_owned(),
        ));
    }
    let database = crate::support::backend::TestDatabase::create(Backend::Sqlite).await;
    let app = TestApp::on(std::sync::Arc::new(database), variables).await;
    let id = app.create(&json!({})).await;
    let reply = turn(&app, &id, &[user("hi")]).await;
    assert_eq!(reply.json()["errors"][0]["code"], kind, "{reply}");
    assert_eq!(stored(&app, &id).await, [user("hi")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_begins_no_turn() {
    let mut stage = Stage::new(Backend::Sqlite).await;
    let id = stage.create(&json!({})).await;
    stage.model.hold();
    let running = super::beside(&stage, &id, &[user("hi")]);
    stage.model.arrived(1).await;
    let other = stage.create(&json!({})).await;
    stage.stop();
    refuses_new_work(stage.address).await;
    // On a connection that is open still it is refused, and else there is none.
    let json = [("content-type", "application/json")];
    let text = body(&[user("late")], "").into_bytes();
    let sent = stage
        .try_send(reqwest::Method::POST, &path(&other), &json, Some(text))
        .await;
    if let Ok(reply) = sent {
        reply.problem(503, "STORAGE_UNAVAILABLE");
        assert!(reply.header("retry-after").is_some());
    }
    stage.model.release();
    assert_eq!(
        Turn::of(&running.await.expect("a reply")).status,
        "completed"
    );
    stage.app.ended().await;
    let again = stage.app.spawn_second().await;
    assert!(
        stored(&again, &other).await.is_empty(),
        "what is refused is not stored"
    );
}
