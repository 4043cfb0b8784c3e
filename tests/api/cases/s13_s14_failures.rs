//! K6: summariser failures, and a commit that fails.

use std::time::{Duration, Instant, SystemTime};

use rstest::rstest;
use serde_json::json;

use crate::support::messages::turns;
use crate::support::model::{COMPACT, MAIN};
use crate::support::{Answer, Backend, History, ScriptedModel, TestApp, chain};

/// Triggers that make one of the writes of a commit fail, and how to take them away.
struct Sabotage {
    table: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

static RECORD: Sabotage = Sabotage {
    table: "compactions",
    sqlite: "CREATE TRIGGER sabotage BEFORE INSERT ON compactions
             BEGIN SELECT RAISE(ABORT, 'the disk is full'); END",
    postgres: "CREATE FUNCTION sabotage() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'the disk is full'; END $$;
               CREATE TRIGGER sabotage BEFORE INSERT ON compactions
               FOR EACH ROW EXECUTE FUNCTION sabotage()",
};

static POINTER: Sabotage = Sabotage {
    table: "sessions",
    sqlite: "CREATE TRIGGER sabotage BEFORE UPDATE ON sessions
             WHEN NEW.compact_size IS NOT OLD.compact_size
             BEGIN SELECT RAISE(ABORT, 'the disk is full'); END",
    postgres: "CREATE FUNCTION sabotage() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'the disk is full'; END $$;
               CREATE TRIGGER sabotage BEFORE UPDATE ON sessions
               FOR EACH ROW WHEN (NEW.compact_size IS DISTINCT FROM OLD.compact_size)
               EXECUTE FUNCTION sabotage()",
};

#[rstest]
#[case::the_record_cannot_be_written(&RECORD)]
#[case::the_pointer_cannot_be_moved(&POINTER)]
#[tokio::test(flavor = "multi_thread")]
async fn s13_a_failed_commit_loses_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] sabotage: &Sabotage,
) {
    let app = TestApp::spawn(backend).await;
    let raws = turns(5, 100);
    let id = app.create_with(&raws).await;
    let before = app.session(&id).await;
    let messages = app.get(&format!("/sessions/{id}/messages")).await.body;
    let context = app.get(&format!("/sessions/{id}/context")).await.body;

    app.database
        .execute(sabotage.sqlite, sabotage.postgres)
        .await;
    let reply = app.compact(&id, &json!({})).await;
    match reply.status {
        503 => reply.problem(503, "STORAGE_UNAVAILABLE"),
        _ => reply.problem(500, "INTERNAL"),
    };
    assert!(
        !String::from_utf8_lossy(&reply.body).contains("disk is full"),
        "the driver's text is for the log alone: {reply}"
    );

    assert_eq!(app.session(&id).await, before, "the session is unchanged");
    assert!(app.compactions(&id).await.is_empty(), "there is no record");
    let after = app.get(&format!("/sessions/{id}/messages")).await.body;
    assert_eq!(
        after, messages,
        "every message is there, with the same bytes"
    );
    let after = app.get(&format!("/sessions/{id}/context")).await.body;
    assert_eq!(after, context, "the context has the same bytes");

    app.database
        .execute(
            "DROP TRIGGER sabotage",
            &format!("DROP TRIGGER sabotage ON {}", sabotage.table),
        )
        .await;
    app.compact(&id, &json!({})).await.expect(200);
    chain::check(
        &app,
        &id,
        &History::new(&raws),
        "s13, once the disk has room",
    )
    .await;
}

/// A moment as HTTP writes it.
fn http_date(ahead: i64) -> String {
    let shift = Duration::from_secs(ahead.unsigned_abs());
    let moment = if ahead < 0 {
        SystemTime::now() - shift
    } else {
        SystemTime::now() + shift
    };
    httpdate::fmt_http_date(moment)
}

fn rate_limited(retry_after: Option<String>) -> Answer {
    let headers = retry_after.map(|value| ("retry-after", value));
    let body = json!({"error": {"message": "Rate limit reached", "type": "rate_limit_error"}});
    Answer::Status(429, headers.into_iter().collect(), body.to_string())
}

#[rstest]
#[case::seconds(Some("1".to_owned()))]
#[case::a_date_ahead(Some(http_date(2)))]
#[case::a_date_that_has_passed(Some(http_date(-3_600)))]
#[case::a_day(Some("86400".to_owned()))]
#[case::nonsense(Some("abc".to_owned()))]
#[case::nothing(None)]
#[tokio::test(flavor = "multi_thread")]
async fn s14_a_rate_limit_is_waited_for_briefly_and_then_gone_around(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] retry_after: Option<String>,
) {
    let model = ScriptedModel::start().await;
    model.script(COMPACT, [rate_limited(retry_after)]);
    let variables = [("PRECIS_COMPACTION_MODEL", COMPACT)];
    let app = TestApp::with_model(backend, &model, &variables).await;
    let id = app.create_with(&turns(5, 100)).await;

    let started = Instant::now();
    let answer = app.compact(&id, &json!({})).await.expect(200).json();
    let elapsed = started.elapsed();
    assert!(
        elapsed < Duration::from_secs(5),
        "waits are capped at 400 ms in total, this took {elapsed:?}"
    );
    assert_eq!(
        answer["compaction"]["model"], MAIN,
        "the record says which model wrote it"
    );
    let models = model.models();
    let tries = models.iter().filter(|name| *name == COMPACT).count();
    assert!(
        (1..=3).contains(&tries),
        "expected at most 3 tries at the limited model, got {tries}"
    );
    assert_eq!(
        models.last().map(String::as_str),
        Some(MAIN),
        "then the session's own"
    );
    assert_eq!(models.len(), tries + 1, "once");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s14_a_rate_limit_everywhere_is_a_503(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("1", "86400", "abc")] retry_after: &str,
) {
    let model = ScriptedModel::start().await;
    model.script(COMPACT, [rate_limited(Some(retry_after.to_owned()))]);
    model.script(MAIN, [rate_limited(Some(retry_after.to_owned()))]);
    let variables = [("PRECIS_COMPACTION_MODEL", COMPACT)];
    let app = TestApp::with_model(backend, &model, &variables).await;
    let id = app.create_with(&turns(5, 100)).await;
    let before = app.session(&id).await;

    let reply = app.compact(&id, &json!({})).await;
    reply.problem(503, "SUMMARIZER_FAILED");
    let seconds = reply.header("retry-after").unwrap_or_default();
    assert!(
        seconds
            .parse::<u64>()
            .is_ok_and(|seconds| (1..=3_600).contains(&seconds)),
        "expected a sane Retry-After, got `{seconds}`"
    );
    assert!(
        model.calls().len() <= 6,
        "at most three tries at each model"
    );
    assert_eq!(app.session(&id).await, before, "the session is unchanged");
}
