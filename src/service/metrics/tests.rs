//! The page of the metrics, the dashboard, and what is really there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::provider::ProviderError;
use crate::storage::{Database, NewDispatch, Options, Url};

const PAGE: &str = include_str!("../../../docs/observability.md");
const DASHBOARD: &str = include_str!("../../../docs/grafana-dashboard.json");

/// Metrics of which each has counted something.
async fn busy(directory: &std::path::Path) -> Metrics {
    let file = directory.join("precis.db");
    let url = Url::parse(&format!("sqlite://{}", file.display())).unwrap();
    let options = Options {
        max_connections: 1,
        readers: 1,
        acquire_timeout: Duration::from_secs(1),
        busy_timeout: Duration::from_secs(1),
        synced: true,
    };
    let database = Database::open(&url, &options).await.unwrap();
    let live = Live {
        database: Some(database),
        ..Live::default()
    };
    let metrics = Metrics::new(live, vec!["known".to_owned()]);
    metrics.count_dispatch(&NewDispatch::default(), 1);
    metrics.count_refusal("requests_per_second");
    metrics.count_replay();
    metrics.count_append(1, 10);
    metrics.count_compaction("compacted", "llm", "auto", Duration::from_secs(1));
    metrics.count_turn("completed");
    metrics.note_event_lag(StreamKind::Session, Duration::from_millis(3));
    metrics.begin_request("/agents".to_owned(), "GET").end(200);
    let usage =
        r#"{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":3}}"#;
    let call = metrics.begin_call(Purpose::Turn, "known");
    call.answered("ok", Some(usage));
    metrics
}

/// The families of a text, with their types.
fn families(text: &str) -> BTreeMap<String, String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let pair = types.filter_map(|line| line.split_once(' '));
    pair.map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect()
}

/// The name under which a family is asked for.
fn asked_for(name: &str, kind: &str) -> String {
    match kind {
        "counter" => format!("{name}_total"),
        "info" => format!("{name}_info"),
        _ => name.to_owned(),
    }
}

/// The rows of the page's tables: name and type.
fn documented() -> BTreeMap<String, String> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    let row = rows.filter_map(|row| {
        let (name, rest) = row.split_once('`')?;
        let kind = rest.split('|').nth(1)?.trim();
        let is_metric = name.starts_with("precis_") || name.starts_with("process_");
        is_metric.then(|| (name.to_owned(), kind.to_owned()))
    });
    row.collect()
}

#[tokio::test]
async fn the_page_describes_each_metric_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let text = busy(directory.path()).await.render().unwrap();
    let there: BTreeMap<_, _> = families(&text)
        .into_iter()
        .map(|(name, kind)| (asked_for(&name, &kind), kind))
        .collect();
    assert_eq!(documented(), there);
}

#[test]
fn the_dashboard_asks_for_each_metric_and_no_other() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut asked = BTreeSet::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{} shows something", panel["title"]);
        for target in targets {
            let source = &target["datasource"]["uid"];
            assert_eq!(source, "${datasource}", "{}", panel["title"]);
            asked.extend(names(target["expr"].as_str().unwrap()));
        }
    }
    let there: BTreeSet<_> = documented().into_keys().collect();
    assert_eq!(asked, there);
}

/// The metrics of an expression, histograms by their own name.
fn names(expression: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expression
        .split(|c| !is_part(c))
        .filter(|word| word.starts_with("precis_") || word.starts_with("process_"))
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned())
        .collect()
}

#[tokio::test]
async fn a_call_is_counted_once_however_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let metrics = busy(directory.path()).await;
    assert_eq!(metrics.failing_since(Purpose::Turn), None);

    let overflow = ProviderError::Overflow {
        status: 400,
        prompt_tokens: None,
        window: None,
    };
    metrics.begin_call(Purpose::Turn, "known").failed(&overflow);
    assert_eq!(metrics.failing_since(Purpose::Turn), None, "it works");
    let call = metrics.begin_call(Purpose::Turn, "a client's word");
    call.failed(&ProviderError::Connect);
    let since = metrics.failing_since(Purpose::Turn);
    assert!(since.is_some());
    drop(metrics.begin_call(Purpose::Turn, "known"));
    assert_eq!(metrics.failing_since(Purpose::Turn), since);
    assert_eq!(metrics.failing_since(Purpose::Summary), None);

    let text = metrics.render().unwrap();
    for line in [
        r#"precis_model_calls_total{purpose="turn",model="known",outcome="ok"} 1"#,
        r#"precis_model_calls_total{purpose="turn",model="known",outcome="overflow"} 1"#,
        r#"precis_model_calls_total{purpose="turn",model="other",outcome="connect"} 1"#,
        r#"precis_model_calls_total{purpose="turn",model="known",outcome="cancelled"} 1"#,
        r#"precis_model_tokens_total{purpose="turn",model="known",kind="input"} 7"#,
        r#"precis_model_tokens_total{purpose="turn",model="known",kind="output"} 5"#,
        r#"precis_model_tokens_total{purpose="turn",model="known",kind="cached_input"} 3"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

#[tokio::test]
async fn what_is_dropped_before_its_end_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let metrics = busy(directory.path()).await;
    let request = metrics.begin_request("/agents".to_owned(), "GET");
    let running = metrics.begin_compaction();
    let text = metrics.render().unwrap();
    assert!(text.contains("\nprecis_http_requests_in_flight 1\n"));
    assert!(text.contains("\nprecis_compactions_running 1\n"));
    drop((request, running));
    let text = metrics.render().unwrap();
    assert!(text.contains("\nprecis_http_requests_in_flight 0\n"));
    assert!(text.contains("\nprecis_compactions_running 0\n"));
    assert!(text.contains(r#"route="/agents",method="GET",status="dropped"} 1"#));
}
