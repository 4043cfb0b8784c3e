//! Bodies that come slowly or many at once, and heads that are too large.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use super::{overloaded, until};
use crate::support::{Backend, Http, TestApp};

fn connect(app: &Http) -> TcpStream {
    let stream = TcpStream::connect(app.address).expect("a connection");
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).expect("a time-out");
    stream
}

/// Sends these bytes and no more; the first part of what is answered within a second, if anything is.
pub fn answer_to(app: &Http, request: &[u8]) -> String {
    let mut stream = connect(app);
    let patience = Some(Duration::from_secs(1));
    stream.set_read_timeout(patience).expect("a time-out");
    stream.write_all(request).expect("the request is sent");
    let mut answer = [0; 4_096];
    let length = stream.read(&mut answer).unwrap_or(0);
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

/// Sends these bytes and no more; all that is answered until the service closes.
fn whole_answer_to(app: &Http, request: &[u8]) -> String {
    let mut stream = connect(app);
    stream.write_all(request).expect("the request is sent");
    let mut answer = Vec::new();
    stream
        .read_to_end(&mut answer)
        .expect("the service answers and closes");
    String::from_utf8_lossy(&answer).into_owned()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stands_still_ends_in_a_time_out(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("content-length: 1000", "transfer-encoding: chunked")] length: &str,
) {
    let app = TestApp::with(backend, &[("PRECIS_HTTP__BODY_TIMEOUT_SECONDS", "1")]).await;
    let request = format!(
        "POST /sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{length}\r\n\r\n\
         5\r\n{{\"mes"
    );
    let answer = whole_answer_to(&app, request.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
    assert!(answer.contains("\"code\":\"REQUEST_TIMEOUT\""), "{answer}");
    assert!(answer.contains("http.body_timeout_seconds"), "{answer}");
    assert!(
        answer.to_ascii_lowercase().contains("connection: close"),
        "{answer}"
    );
    app.create(&json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_waits_for_room_and_not_for_ever() {
    let room = [("PRECIS_LIMITS__BODY_BYTES_IN_FLIGHT", "1048576")];
    let app = TestApp::with(Backend::Sqlite, &room).await;
    let mut holder = connect(&app);
    let head = "POST /sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 1048576\r\n\r\n{";
    holder.write_all(head.as_bytes()).expect("a head is sent");
    let nothing = json!({});
    let refused = until(503, || app.post("/sessions", &nothing)).await;
    overloaded(&refused, "limits.body_bytes_in_flight");
    // What has no body needs no room.
    app.get("/sessions").await.expect(200);
    drop(holder);
    until(201, || app.post("/sessions", &nothing)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_too_large_is_431() {
    use std::fmt::Write;
    let app = TestApp::spawn(Backend::Sqlite).await;
    let mut many = String::from("GET /agents HTTP/1.1\r\nhost: localhost\r\n");
    for number in 0..100 {
        write!(many, "x-{number}: 1\r\n").expect("a string");
    }
    many.push_str("\r\n");
    let large = format!(
        "GET /agents HTTP/1.1\r\nhost: localhost\r\nx-large: {}\r\n\r\n",
        "x".repeat(200 << 10)
    );
    for request in [many, large] {
        let answer = answer_to(&app, request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    // One that is large, but not too large.
    let fits = format!(
        "GET /agents HTTP/1.1\r\nhost: localhost\r\nx-large: {}\r\n\r\n",
        "x".repeat(100 << 10)
    );
    let answer = answer_to(&app, fits.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_an_end_that_nobody_reads_ends_the_connection() {
    let app = TestApp::spawn(Backend::Sqlite).await;
    let id = app.create(&json!({})).await;
    for (head, status) in [
        ("POST /nowhere".to_owned(), "404"),
        ("GET /agents".to_owned(), "200"),
        (format!("POST /sessions/{id}/close"), "200"),
        ("POST /sessions".to_owned(), "415"),
    ] {
        let request = format!(
            "{head} HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n\
             5\r\nhello\r\n"
        );
        // The answer comes, and then the end: more of the body is not waited for.
        let answer = whole_answer_to(&app, request.as_bytes());
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{head}: {answer}"
        );
    }
}
