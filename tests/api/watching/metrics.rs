//! The metrics after a load that is known.

use std::sync::Arc;

use reqwest::Method;
use rstest::rstest;
use serde_json::json;

use super::exposition::Scrape;
use crate::support::backend::TestDatabase;
use crate::support::messages::{a, u, user};
use crate::support::model::{COMPACT, MAIN};
use crate::support::stream_model::{Script, StreamModel};
use crate::support::{Backend, Http, TestApp};

const SUMMARY: &str =
    "SUMMARY of what was said: decisions, findings, files and open problems so far.";
/// What a client calls its session, its model and itself, which no label may repeat.
const CLIENT_WORD: &str = "client-chosen-word";

async fn start(backend: Backend) -> (TestApp, StreamModel) {
    let model = StreamModel::start().await;
    model.script(COMPACT, [Script::Text(SUMMARY.to_owned())]);
    let mut variables = model.variables();
    variables.push(("PRECIS_COMPACTION_MODEL".to_owned(), COMPACT.to_owned()));
    variables.push(("PRECIS_METRICS_LISTEN".to_owned(), "127.0.0.1:0".to_owned()));
    let database = Arc::new(TestDatabase::create(backend).await);
    (TestApp::on(database, variables).await, model)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_known_load_is_counted(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let (app, model) = start(backend).await;
    load(&app, &model).await;

    let scrape = Scrape::of(&app).await;
    requests(&scrape);
    work(&scrape);
    calls(&scrape);
    database(&scrape, backend);
    for series in scrape.samples.keys() {
        assert!(
            !series.contains("sess_"),
            "no label names a session: {series}"
        );
        assert!(
            !series.contains(CLIENT_WORD),
            "{series} is the client's word"
        );
    }
    let resident = scrape.value("process_resident_memory_bytes");
    assert!(resident > 1e6, "memory in bytes: {resident}");
    assert!(scrape.value("process_open_fds") > 5.0);
    assert!(scrape.value("process_start_time_seconds") > 1.7e9);
    let version = format!(
        "precis_build_info{{version=\"{}\"}}",
        env!("CARGO_PKG_VERSION")
    );
    scrape.expect(&version, 1.0);
}

/// Six turns, a compaction and one that has nothing to do, three turns of the model, a stream of events,
/// and requests that are nobody's.
async fn load(app: &TestApp, model: &StreamModel) {
    let messages: Vec<_> = (0..6).flat_map(|n| [u(400 + n), a(500 + n)]).collect();
    let id = app.create_with(&messages).await;
    app.compact(&id, &json!({})).await.expect(200);
    let empty = app.create(&json!({})).await;
    app.compact(&empty, &json!({})).await.expect(200);

    model.script(
        MAIN,
        [Script::rate_limit(None), Script::Text("first".to_owned())],
    );
    let turns = format!("/sessions/{id}/turns");
    let turn = json!({"messages": [{"role": "user", "content": "go on"}]});
    app.post(&turns, &turn).await.expect(200);
    model.script(CLIENT_WORD, [Script::Text("second".to_owned())]);
    let other = json!({"messages": turn["messages"], "model": CLIENT_WORD});
    app.post(&turns, &other).await.expect(200);

    let mut events = app.events(&id, None).await;
    app.append(&id, &[user("told of")]).await;
    events.take(1).await;
    // While it is open.
    let open = Scrape::of(app).await;
    open.expect("precis_event_streams{kind=\"session\"}", 1.0);
    drop(events);

    let path = format!("/sessions/{CLIENT_WORD}");
    app.get(&path).await.expect(404);
    app.get(&format!("/{CLIENT_WORD}")).await.expect(404);
    let method = Method::from_bytes(b"BREW").expect("a method");
    app.send(method, "/sessions", &[], None).await.expect(405);
}

fn requests(scrape: &Scrape) {
    let of = |method: &str, route: &str, status: &str| {
        format!(
            "precis_http_requests_total{{method=\"{method}\",route=\"{route}\",status=\"{status}\"}}"
        )
    };
    scrape.expect(&of("GET", "/sessions/{id}", "404"), 1.0);
    scrape.expect(&of("GET", "none", "404"), 1.0);
    scrape.expect(&of("other", "/sessions", "405"), 1.0);
    scrape.expect(&of("POST", "/sessions/{id}/compact", "200"), 2.0);
    scrape.expect(&of("POST", "/sessions/{id}/turns", "200"), 2.0);
    scrape.expect(&of("GET", "/sessions/{id}/events", "200"), 1.0);
    // The one that shows it is still on its way.
    scrape.expect("precis_http_requests_in_flight", 1.0);
    scrape.expect(
        "precis_http_request_duration_seconds_count{method=\"POST\",route=\"/sessions/{id}/compact\"}",
        2.0,
    );
}

fn work(scrape: &Scrape) {
    // The first messages, two of turns, one behind them.
    scrape.expect("precis_appended_messages_total", 15.0);
    assert!(scrape.value("precis_appended_bytes_total") > 12.0 * 400.0);
    let compactions = |outcome: &str, method: &str| {
        format!(
            "precis_compactions_total{{cause=\"manual\",method=\"{method}\",outcome=\"{outcome}\"}}"
        )
    };
    scrape.expect(&compactions("compacted", "llm"), 1.0);
    scrape.expect(&compactions("nothing", "none"), 1.0);
    scrape.expect(
        "precis_compaction_duration_seconds_count{outcome=\"compacted\"}",
        1.0,
    );
    assert!(scrape.value("precis_compaction_tokens_saved_total") > 100.0);
    scrape.expect("precis_compactions_running", 0.0);
    scrape.expect("precis_turns_total{status=\"completed\"}", 2.0);
    scrape.expect("precis_turns_running", 0.0);
    scrape.expect("precis_dispatches_total", 2.0);
    scrape.expect("precis_event_lag_seconds_count{kind=\"session\"}", 1.0);
    scrape.expect("precis_due_sessions", 0.0);
}

fn calls(scrape: &Scrape) {
    let calls = |purpose: &str, model: &str, outcome: &str| {
        format!(
            "precis_model_calls_total{{model=\"{model}\",outcome=\"{outcome}\",purpose=\"{purpose}\"}}"
        )
    };
    scrape.expect(&calls("turn", MAIN, "ok"), 1.0);
    scrape.expect(&calls("turn", "other", "ok"), 1.0);
    scrape.expect(&calls("summary", COMPACT, "ok"), 1.0);
    scrape.expect("precis_model_call_retries_total{purpose=\"turn\"}", 1.0);
    scrape.expect("precis_model_call_retries_total{purpose=\"summary\"}", 0.0);
    scrape.expect(
        &format!("precis_model_call_duration_seconds_count{{model=\"{MAIN}\",purpose=\"turn\"}}"),
        1.0,
    );
    let tokens = scrape.sum("precis_model_tokens_total");
    assert!(tokens > 0.0, "what the models said they took");
}

fn database(scrape: &Scrape, backend: Backend) {
    assert!(scrape.value("precis_database_acquire_seconds_count") > 5.0);
    assert!(scrape.value("precis_database_commit_seconds_count") > 5.0);
    scrape.expect("precis_database_acquire_timeouts_total", 0.0);
    scrape.expect("precis_database_write_failures_total", 0.0);
    scrape.expect("precis_writer_failing", 0.0);
    let (idle, in_use) = (
        scrape.value("precis_database_connections{state=\"idle\"}"),
        scrape.value("precis_database_connections{state=\"in_use\"}"),
    );
    let most = scrape.value("precis_database_connections_max");
    assert!(
        idle + in_use >= 1.0 && idle + in_use <= most,
        "{idle} + {in_use}"
    );
    match backend {
        Backend::Sqlite => {
            assert!(scrape.families.contains_key("precis_writer_queue_length"));
            assert!(scrape.value("precis_writer_group_writes_count") > 5.0);
            assert!((most - 4.0).abs() < 0.1, "as many readers as there may be");
        }
        Backend::Postgres => {
            assert!(!scrape.families.contains_key("precis_writer_queue_length"));
            scrape.expect("precis_listener_connected", 1.0);
            assert!((most - 5.0).abs() < 0.1, "as many as the settings say");
        }
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn failures_of_models_are_told_apart(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let (app, model) = start(backend).await;
    let id = app.create_with(&[user("hello")]).await;
    model.script(MAIN, [Script::unavailable()]);
    let turns = format!("/sessions/{id}/turns");
    app.post(&turns, &json!({"messages": []}))
        .await
        .problem(502, "MODEL_FAILED");

    let scrape = Scrape::of(&app).await;
    let series = format!(
        "precis_model_calls_total{{model=\"{MAIN}\",outcome=\"unavailable\",purpose=\"turn\"}}"
    );
    scrape.expect(&series, 1.0);
    scrape.expect("precis_model_call_retries_total{purpose=\"turn\"}", 2.0);
    scrape.expect("precis_turns_total{status=\"failed\"}", 1.0);

    let ready = app.get("/health/ready").await.expect(200).json();
    assert_eq!(ready["status"], "degraded", "{ready}");
    let told = ready["checks"]["model"].as_str().unwrap_or_default();
    assert!(told.starts_with("failing since 20"), "{ready}");

    model.script(MAIN, [Script::Text("again".to_owned())]);
    app.post(&turns, &json!({"messages": []})).await.expect(200);
    let ready = app.get("/health/ready").await.expect(200).json();
    assert_eq!(ready["checks"]["model"], "ok", "{ready}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_have_an_address_of_their_own_and_nothing_else_there(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let (app, _model) = start(backend).await;
    let own = Http::new(app.metrics_address.expect("an address for the metrics"));
    let scrape = Scrape::of(&own).await;
    assert!(scrape.families.contains_key("precis_dispatches"));
    own.get("/health/live").await.expect(200);
    own.get("/health/ready").await.expect(200);
    for path in ["/", "/sessions", "/agents", "/docs/", "/openapi.json"] {
        own.get(path).await.problem(404, "ROUTE_NOT_FOUND");
    }
    own.post("/sessions", &json!({}))
        .await
        .problem(404, "ROUTE_NOT_FOUND");
}
