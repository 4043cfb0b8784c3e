//! A summarizer that does everything wrong, and a service that stays well: each run ends in time,
//! nothing is changed by one that fails, and everybody else is answered meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::backend::TestDatabase;
use crate::support::messages::{turns, u};
use crate::support::raw_model::{Act, RawModel};
use crate::support::{Backend, History, Reply, TestApp, chain};

/// Far more than any answer needs that does not wait for a model, on a busy machine too.
const QUICK: Duration = Duration::from_secs(1);
/// Far less than any of these answers would take if it were waited for.
const BOUNDED: Duration = Duration::from_secs(10);

async fn app_with(backend: Backend, model: &RawModel, more: &[(&str, &str)]) -> TestApp {
    let mut variables = model.variables();
    let more = more
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    variables.extend(more);
    // Later ones win.
    variables.reverse();
    let mut seen = Vec::new();
    variables.retain(|(name, _)| {
        let first = !seen.contains(name);
        seen.push(name.clone());
        first
    });
    TestApp::on(Arc::new(TestDatabase::create(backend).await), variables).await
}

/// One compaction of five turns; what it was answered, and how long that took. If it failed, that
/// nothing has changed, that the session is free at once, and that the next run works.
async fn one_run(app: &TestApp, model: &RawModel) -> (Reply, Duration, usize) {
    let raws = turns(5, 100);
    let history = History::new(&raws);
    let id = app.create_with(&raws).await;
    let (session, tag) = (app.session(&id).await, app.etag(&id).await);
    let started = Instant::now();
    let reply = app.compact(&id, &json!({})).await;
    let elapsed = started.elapsed();
    let calls = model.calls();
    if reply.status != 200 {
        assert_eq!(
            app.session(&id).await,
            session,
            "nothing has changed: {reply}"
        );
        assert_eq!(app.etag(&id).await, tag, "no other context: {reply}");
        assert!(app.compactions(&id).await.is_empty(), "no record: {reply}");
        model.script([Act::Summary]);
        app.compact(&id, &json!({})).await.expect(200);
    }
    chain::check(app, &id, &history, "after the chaos").await;
    (reply, elapsed, calls)
}

#[track_caller]
fn failed(reply: &Reply) -> Value {
    match reply.status {
        504 => reply.problem(504, "MODEL_TIMEOUT"),
        503 => reply.problem(503, "SUMMARIZER_FAILED"),
        _ => reply.problem(502, "SUMMARIZER_FAILED"),
    }
}

#[rstest]
#[case::silence(Act::Hang)]
#[case::a_head_and_silence(Act::HangAfterHead)]
#[case::a_trickle(Act::Trickle)]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_takes_no_longer_than_it_may(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] act: Act,
) {
    let model = RawModel::start([act]);
    let limits = [
        ("PRECIS_PROVIDER__CALL_TIMEOUT_MS", "300"),
        ("PRECIS_PROVIDER__ATTEMPTS", "2"),
    ];
    let app = app_with(backend, &model, &limits).await;
    let (reply, elapsed, calls) = one_run(&app, &model).await;
    failed(&reply);
    assert!(elapsed < BOUNDED, "two calls of 300 ms took {elapsed:?}");
    assert!(calls <= 2, "at most two calls, got {calls}");
}

#[rstest]
#[case::silence(Act::Hang)]
#[case::a_head_and_silence(Act::HangAfterHead)]
#[case::a_trickle(Act::Trickle)]
#[case::retries_without_end(Act::Status(503, vec![("retry-after", "1".to_owned())], "text/plain", "later".to_owned()))]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_takes_no_longer_than_it_may(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] act: Act,
) {
    let model = RawModel::start([act]);
    let limits = [
        ("PRECIS_COMPACTION__DEADLINE_SECONDS", "1"),
        ("PRECIS_PROVIDER__ATTEMPTS", "10"),
        ("PRECIS_PROVIDER__RETRY_AFTER_MAX_MS", "60000"),
        ("PRECIS_PROVIDER__RETRY_WAIT_TOTAL_MS", "600000"),
        ("PRECIS_COMPACTION_MODEL", "another-model"),
    ];
    let app = app_with(backend, &model, &limits).await;
    let (reply, elapsed, _) = one_run(&app, &model).await;
    failed(&reply);
    assert!(
        elapsed < BOUNDED,
        "a deadline of one second took {elapsed:?}"
    );
}

#[rstest]
#[case::cut(Act::Cut)]
#[case::cut_in_a_chunk(Act::CutChunk)]
#[case::hung_up(Act::HangUp)]
#[tokio::test(flavor = "multi_thread")]
async fn half_an_answer_is_asked_for_again(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] act: Act,
) {
    let model = RawModel::start([act.clone(), act.clone(), Act::Summary]);
    let app = app_with(backend, &model, &[]).await;
    let (reply, _, calls) = one_run(&app, &model).await;
    reply.expect(200);
    assert_eq!(calls, 3, "two failures that pass, and a success");

    let model = RawModel::start([act]);
    let app = app_with(backend, &model, &[]).await;
    let (reply, elapsed, calls) = one_run(&app, &model).await;
    reply.problem(502, "SUMMARIZER_FAILED");
    assert_eq!(calls, 3, "as often as is configured");
    assert!(elapsed < BOUNDED, "took {elapsed:?}");
}

fn page(status: u16) -> Act {
    let html = "<!doctype html><html><body><h1>Sign in</h1></body></html>";
    Act::Status(status, vec![], "text/html", html.to_owned())
}

#[rstest]
#[case::html(page(200))]
#[case::html_that_says_json(Act::Status(200, vec![], "application/json", "<html>busy</html>".to_owned()))]
#[case::nothing(Act::Status(200, vec![], "application/json", String::new()))]
#[case::another_json(Act::Status(200, vec![], "application/json", "[1,2]".to_owned()))]
#[case::an_error_with_200(Act::Status(200, vec![], "application/json", r#"{"error":{"message":"no"}}"#.to_owned()))]
#[case::no_content(Act::Status(204, vec![], "application/json", String::new()))]
#[case::a_redirect(Act::Status(302, vec![("location", "http://127.0.0.1:9/".to_owned())], "text/html", String::new()))]
#[case::a_page_for_an_error(page(403))]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_answer_is_no_summary(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] act: Act,
) {
    let model = RawModel::start([act]);
    let app = app_with(backend, &model, &[]).await;
    let (reply, elapsed, calls) = one_run(&app, &model).await;
    let problem = reply.problem(502, "SUMMARIZER_FAILED");
    assert!(
        !problem.to_string().contains("<h1>"),
        "no foreign page in ours: {problem}"
    );
    assert!((1..=3).contains(&calls), "got {calls} calls");
    assert!(elapsed < BOUNDED, "took {elapsed:?}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn twice_busy_and_then_fine_is_fine(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let busy = Act::Status(503, vec![], "text/html", "<html>busy</html>".to_owned());
    let model = RawModel::start([busy.clone(), busy, Act::Summary]);
    let app = app_with(backend, &model, &[]).await;
    let (reply, _, calls) = one_run(&app, &model).await;
    assert_eq!(reply.expect(200).json()["newSize"], 6);
    assert_eq!(calls, 3);
}

/// A moment as HTTP writes it.
fn date(ahead: i64) -> String {
    let shift = Duration::from_secs(ahead.unsigned_abs());
    let now = SystemTime::now();
    httpdate::fmt_http_date(if ahead < 0 { now - shift } else { now + shift })
}

#[rstest]
#[case::none(None)]
#[case::now(Some("0".to_owned()))]
#[case::a_second(Some("1".to_owned()))]
#[case::a_day(Some("86400".to_owned()))]
#[case::for_ever(Some("99999999999999999999999".to_owned()))]
#[case::negative(Some("-5".to_owned()))]
#[case::a_fraction(Some("1.5".to_owned()))]
#[case::empty(Some(String::new()))]
#[case::a_word(Some("soon".to_owned()))]
#[case::not_ascii(Some("1\u{661}".to_owned()))]
#[case::a_date_ahead(Some(date(2)))]
#[case::a_date_far_ahead(Some(date(1_000_000_000)))]
#[case::a_date_that_has_passed(Some(date(-3_600)))]
#[case::a_date_that_is_none(Some("Fri, 99 Foo 2031 25:61:61 GMT".to_owned()))]
#[tokio::test(flavor = "multi_thread")]
async fn no_retry_after_holds_a_compaction_up(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] retry_after: Option<String>,
) {
    let headers: Vec<_> = retry_after
        .map(|value| ("retry-after", value))
        .into_iter()
        .collect();
    let body = r#"{"error":{"message":"Rate limit reached","type":"rate_limit_error"}}"#;
    let limited = Act::Status(429, headers, "application/json", body.to_owned());

    let model = RawModel::start([limited.clone()]);
    let app = app_with(backend, &model, &[]).await;
    let (reply, elapsed, calls) = one_run(&app, &model).await;
    reply.problem(503, "SUMMARIZER_FAILED");
    let after = reply.header("retry-after").unwrap_or_default();
    assert!(
        after
            .parse::<u64>()
            .is_ok_and(|after| (1..=86_400).contains(&after)),
        "a sane Retry-After for our caller, got `{after}`"
    );
    assert!((1..=3).contains(&calls), "got {calls} calls");
    assert!(elapsed < BOUNDED, "waits of 400 ms in all took {elapsed:?}");

    // Once limited and then fine: waited for if the wait was short, else given up at once.
    let model = RawModel::start([limited, Act::Summary]);
    let app = app_with(backend, &model, &[]).await;
    let (reply, elapsed, _) = one_run(&app, &model).await;
    assert!([200, 503].contains(&reply.status), "{reply}");
    assert!(elapsed < BOUNDED, "took {elapsed:?}");
}

/// Ten compactions hang in their model calls; a pool of three connections serves everybody else.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn ten_slow_compactions_slow_nobody_down(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    const SLOW: usize = 10;
    let model = RawModel::start([Act::Held]);
    let limits = [
        ("PRECIS_DATABASE__MAX_CONNECTIONS", "3"),
        ("PRECIS_DATABASE__READERS", "3"),
        ("PRECIS_DATABASE__ACQUIRE_TIMEOUT_SECONDS", "1"),
        // Renewed again and again while the calls are held.
        ("PRECIS_COMPACTION__LEASE_SECONDS", "1"),
    ];
    let app = app_with(backend, &model, &limits).await;
    let mut raws = turns(5, 100);
    let mut ids = Vec::new();
    for _ in 0..SLOW {
        ids.push(app.create_with(&raws).await);
    }
    let running: Vec<_> = ids
        .iter()
        .map(|id| {
            let (http, id) = (app.http().clone(), id.clone());
            tokio::spawn(async move { http.compact(&id, &json!({})).await })
        })
        .collect();
    model.arrived(SLOW).await;

    let mut slowest = (Duration::ZERO, String::new());
    let mut note = |started: Instant, reply: Reply| {
        assert!(reply.status < 300, "the pool is not exhausted: {reply}");
        let elapsed = started.elapsed();
        if elapsed > slowest.0 {
            slowest = (elapsed, reply.request);
        }
    };
    let until = Instant::now() + Duration::from_millis(1_500);
    let mut rounds = 0;
    while Instant::now() < until || rounds < 3 {
        rounds += 1;
        let more = format!("[{}]", u(rounds));
        raws.push(u(rounds));
        for id in &ids {
            let started = Instant::now();
            note(started, app.append_raw(id, &more).await);
            for path in ["", "/context", "/messages?limit=5", "/compactions"] {
                let started = Instant::now();
                note(started, app.get(&format!("/sessions/{id}{path}")).await);
            }
        }
    }
    assert!(
        running.iter().all(|run| !run.is_finished()),
        "all ten still wait for their model"
    );
    assert!(
        slowest.0 < QUICK,
        "the slowest answer took {:?}: {}",
        slowest.0,
        slowest.1
    );

    model.release();
    for (run, id) in running.into_iter().zip(&ids) {
        let answer = run.await.expect("an answer").expect(200).json();
        assert_eq!(answer["newSize"], 6, "the batch as it was planned");
        chain::check(&app, id, &History::new(&raws), "after ten slow compactions").await;
    }
    assert_eq!(model.calls(), SLOW, "one call for each");
}
