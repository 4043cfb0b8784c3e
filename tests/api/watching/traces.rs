//! Traces: what reaches a collector, whose trace it is part of, and what never gets into it.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::support::backend::TestDatabase;
use crate::support::messages::padded;
use crate::support::model::{API_KEY, COMPACT};
use crate::support::process::Process;
use crate::support::stream_model::{Script, StreamModel};
use crate::support::{Backend, Reply};

/// How long a process may take to end. It waits for a collector for a few seconds only.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
/// Words of messages, of answers and of summaries: content, all of them.
const CONTENT: [&str; 3] = ["SECRET-QUESTION", "SECRET-ANSWER", "SECRET-SUMMARY"];

fn variables(model: &StreamModel, collector: &str) -> Vec<(String, String)> {
    let mut all = model.variables();
    for (name, value) in [
        ("PRECIS_COMPACTION_MODEL", COMPACT),
        ("PRECIS_OTLP_ENDPOINT", collector),
        ("PRECIS_LOG", "off"),
    ] {
        all.push((name.to_owned(), value.to_owned()));
    }
    all
}

async fn start_model() -> StreamModel {
    let model = StreamModel::start().await;
    let summary = padded("SECRET-SUMMARY", 60);
    model.script(COMPACT, [Script::Text(summary)]);
    let main = crate::support::model::MAIN;
    model.script(main, [Script::Text("SECRET-ANSWER".to_owned())]);
    model
}

/// Posts as part of a trace that was begun elsewhere.
async fn traced(process: &Process, path: &str, body: &Value) -> Reply {
    let traceparent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [
        ("content-type", "application/json"),
        ("traceparent", traceparent.as_str()),
    ];
    let body = body.to_string().into_bytes();
    process.send(Method::POST, path, &headers, Some(body)).await
}

async fn work(process: &Process) {
    let text = padded("SECRET-QUESTION", 900);
    let messages: Vec<_> = (0..6)
        .map(|n| json!({"role": if n % 2 == 0 { "user" } else { "assistant" }, "content": format!("{text} {n}")}))
        .collect();
    let id = process.create(&json!({})).await;
    let path = |rest: &str| format!("/sessions/{id}/{rest}");
    let append = json!({"messages": messages});
    traced(process, &path("messages"), &append)
        .await
        .expect(201);
    traced(process, &path("compact"), &json!({}))
        .await
        .expect(200);
    let turn = json!({"messages": [{"role": "user", "content": "SECRET-QUESTION again"}]});
    traced(process, &path("turns"), &turn).await.expect(200);
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn spans_join_the_trace_of_the_request_and_hold_no_content(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let collector = MockServer::builder().start().await;
    Mock::given(method("POST"))
        .and(path("/v1/traces"))
        .respond_with(ResponseTemplate::new(200))
        .mount(&collector)
        .await;
    let model = start_model().await;
    let database = TestDatabase::create(backend).await;
    let mut process = Process::start(&database, &variables(&model, &collector.uri()));
    work(&process).await;
    // What was not sent by then is sent at the end.
    process.terminate();
    assert!(process.ended_well(ENDS_WITHIN), "the process ends well");

    let requests = collector.received_requests().await.expect("requests");
    let mut spans = Vec::new();
    for request in &requests {
        assert_eq!(
            request
                .headers
                .get("content-type")
                .map(wiremock::http::HeaderValue::as_bytes),
            Some(&b"application/x-protobuf"[..])
        );
        let text = String::from_utf8_lossy(&request.body);
        for word in CONTENT.iter().chain(&[API_KEY]) {
            assert!(!text.contains(word), "`{word}` is in no span");
        }
        let sent = ExportTraceServiceRequest::decode(&request.body[..]).expect("OTLP");
        for resource in sent.resource_spans {
            let attributes = &resource.resource.as_ref().expect("a resource").attributes;
            let named = attributes.iter().any(|a| a.key == "service.name");
            assert!(named, "the resource names the service");
            spans.extend(
                resource
                    .scope_spans
                    .into_iter()
                    .flat_map(|scope| scope.spans),
            );
        }
    }
    check(&spans, &model);
}

fn check(spans: &[Span], model: &StreamModel) {
    let ours: Vec<_> = spans
        .iter()
        .filter(|span| hex(&span.trace_id) == TRACE)
        .collect();
    let named = |name: &str| {
        let found = ours.iter().find(|span| span.name == name);
        *found.unwrap_or_else(|| {
            let names: Vec<_> = ours.iter().map(|span| &span.name).collect();
            panic!("expected a span `{name}` among {names:?}")
        })
    };
    for route in ["messages", "compact", "turns"] {
        let server = named(&format!("POST /sessions/{{id}}/{route}"));
        assert_eq!(hex(&server.parent_span_id), PARENT, "{route}");
        let status = server
            .attributes
            .iter()
            .find(|a| a.key == "http.response.status_code");
        assert!(status.is_some(), "{route} says how it was answered");
    }
    let within = |inner: &Span, outer: &Span| {
        assert_eq!(
            hex(&inner.parent_span_id),
            hex(&outer.span_id),
            "{} within {}",
            inner.name,
            outer.name
        );
    };
    within(named("compaction"), named("POST /sessions/{id}/compact"));
    within(named("summarizer call"), named("compaction"));
    within(named("turn"), named("POST /sessions/{id}/turns"));
    within(named("dispatch"), named("turn"));
    within(named("model call"), named("turn"));
    named("write");

    // The model was told whose call it is.
    let told: Vec<_> = model
        .calls()
        .iter()
        .map(|call| call.header("traceparent").unwrap_or_default().to_owned())
        .collect();
    let expected = ["summarizer call", "model call"]
        .map(|name| format!("00-{TRACE}-{}-01", hex(&named(name).span_id)));
    assert_eq!(told, expected);
}

#[rstest]
#[case::nobody_there(false)]
#[case::nobody_answers(true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_takes_nothing_stops_nothing(#[case] accepts: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    let silent = accepts.then_some(listener);
    let model = start_model().await;
    let database = Arc::new(TestDatabase::create(Backend::Sqlite).await);
    let collector = format!("http://{address}");
    let mut process = Process::start(&database, &variables(&model, &collector));
    work(&process).await;
    process.terminate();
    assert!(process.ended_well(ENDS_WITHIN), "the process ends well");
    drop(silent);
}
