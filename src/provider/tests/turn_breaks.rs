//! A turn's call over a line that stalls, breaks or never ends.

use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use rstest::rstest;

use super::server::{RawServer, head, send};
use super::support::{RETRY, TIMEOUTS, model, model_with};
use super::turn::{DONE, Deltas, FINISH, chunk, request};
use crate::provider::{ChatModel, ProviderError, TimeoutKind, Timeouts};

const HELLO: &str = r#"{"role":"assistant","content":"Hello"}"#;

fn begin(connection: &mut TcpStream) {
    send(
        connection,
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
}

/// Sends a piece of a chunked body.
fn piece(connection: &mut TcpStream, bytes: &[u8]) -> bool {
    let mut all = format!("{:x}\r\n", bytes.len()).into_bytes();
    all.extend_from_slice(bytes);
    all.extend_from_slice(b"\r\n");
    send(connection, &all)
}

fn end(connection: &mut TcpStream) {
    send(connection, b"0\r\n\r\n");
}

/// Until the other side hangs up, or long enough for any test.
fn hang(connection: &mut TcpStream) {
    use std::io::Read;
    connection
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let _ = connection.read(&mut [0_u8; 1]);
}

fn timeout(which: TimeoutKind) -> ProviderError {
    ProviderError::Timeout { which }
}

#[tokio::test]
async fn deltas_arrive_while_the_answer_is_being_written() {
    // The server sends each piece only when the one before has been handed on.
    let (handed_on, seen) = mpsc::channel::<()>();
    let seen = std::sync::Mutex::new(seen);
    let server = RawServer::start(move |connection, _| {
        begin(connection);
        for text in ["H", "el", "lo"] {
            piece(connection, chunk(text).as_bytes());
            let seen = seen.lock().unwrap();
            seen.recv_timeout(Duration::from_secs(20)).unwrap();
        }
        piece(connection, FINISH.as_bytes());
        end(connection);
    });
    let answer = model(&server.url())
        .turn(request(true), move |_| handed_on.send(()).unwrap())
        .await;
    assert_eq!(answer.unwrap().message, HELLO);
}

#[tokio::test]
async fn a_stream_byte_by_byte() {
    let text = format!("{}{}{FINISH}{DONE}", chunk("H\u{e9}"), chunk("\u{1f980}"));
    let server = RawServer::start(move |connection, _| {
        begin(connection);
        for byte in text.as_bytes() {
            piece(connection, &[*byte]);
        }
        end(connection);
    });
    let answer = model(&server.url()).turn(request(true), |_| {}).await;
    let expected = "{\"role\":\"assistant\",\"content\":\"H\u{e9}\u{1f980}\"}";
    assert_eq!(answer.unwrap().message, expected);
}

/// What the server does behind `Hel`, `lo`.
#[derive(Clone, Copy)]
enum Break {
    Cut,
    CutInAChunk,
    Close,
    Hang,
}

#[rstest]
#[case(Break::Cut)]
#[case(Break::CutInAChunk)]
#[case(Break::Close)]
#[case(Break::Hang)]
#[tokio::test]
async fn a_stream_that_breaks_off_is_kept_so_far(#[case] how: Break) {
    let server = RawServer::start(move |connection, _| {
        begin(connection);
        // In one piece, so that no pause of this thread comes before the break.
        let call = "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c1\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}}]}\n\n";
        piece(connection, (chunk("Hel") + &chunk("lo") + call).as_bytes());
        match how {
            Break::Cut => {}
            Break::CutInAChunk => {
                send(connection, b"ff\r\ndata: {\"choices\"");
            }
            Break::Close => end(connection),
            Break::Hang => hang(connection),
        }
    });
    let timeouts = Timeouts {
        idle: Duration::from_millis(300),
        ..TIMEOUTS
    };
    let deltas = Deltas::default();
    let answer = model_with(&server.url(), timeouts, RETRY)
        .turn(request(true), deltas.keep())
        .await
        .unwrap();
    assert!(answer.incomplete);
    assert_eq!(answer.message, HELLO);
    assert_eq!(answer.finish, None);
    assert_eq!(deltas.all().len(), 3);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn the_limit_of_the_call_breaks_a_stream_off() {
    let server = RawServer::start(|connection, _| {
        begin(connection);
        piece(connection, chunk("Hello").as_bytes());
        while piece(connection, chunk("").as_bytes()) {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let timeouts = Timeouts {
        call: Duration::from_secs(1),
        ..TIMEOUTS
    };
    let answer = model_with(&server.url(), timeouts, RETRY)
        .turn(request(true), |_| {})
        .await
        .unwrap();
    assert_eq!((answer.message.as_str(), answer.incomplete), (HELLO, true));
    assert_eq!(server.connections(), 1);
}

#[rstest]
#[case::nothing("", 3)]
#[case::comments(": wait\n\n", 3)]
#[case::role(
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
    3
)]
#[case::thought("data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm\"}}]}\n\n", 1)]
#[case::half_a_call(
    "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c1\",\"function\":{\"name\":\"f\"}}]}}]}\n\n",
    1
)]
#[tokio::test]
async fn a_stream_that_breaks_off_before_any_text(#[case] text: &'static str, #[case] tries: u32) {
    let server = RawServer::start(move |connection, _| {
        begin(connection);
        if !text.is_empty() {
            piece(connection, text.as_bytes());
        }
    });
    let answer = model(&server.url()).turn(request(true), |_| {}).await;
    assert_eq!(answer.unwrap_err(), ProviderError::Connect);
    assert_eq!(server.connections(), tries);
}

#[tokio::test]
async fn a_stream_that_breaks_off_early_is_begun_anew() {
    let server = RawServer::start(|connection, number| {
        begin(connection);
        piece(connection, chunk("").as_bytes());
        if number == 2 {
            piece(connection, chunk("Hello").as_bytes());
            piece(connection, FINISH.as_bytes());
            end(connection);
        }
    });
    let deltas = Deltas::default();
    let answer = model(&server.url())
        .turn(request(true), deltas.keep())
        .await
        .unwrap();
    assert_eq!((answer.message.as_str(), answer.incomplete), (HELLO, false));
    assert_eq!(deltas.all(), [r#"{"content":"Hello"}"#]);
    assert_eq!(server.connections(), 2);
}

#[rstest]
#[case::cut(false)]
#[case::hung(true)]
#[tokio::test]
async fn an_answer_that_ended_by_itself_is_whole(#[case] hung: bool) {
    let server = RawServer::start(move |connection, _| {
        begin(connection);
        piece(connection, (chunk("Hello") + FINISH).as_bytes());
        if hung {
            hang(connection);
        }
    });
    let timeouts = Timeouts {
        idle: Duration::from_millis(300),
        ..TIMEOUTS
    };
    let answer = model_with(&server.url(), timeouts, RETRY)
        .turn(request(true), |_| {})
        .await
        .unwrap();
    assert_eq!((answer.message.as_str(), answer.incomplete), (HELLO, false));
    assert_eq!(answer.finish.as_deref(), Some("stop"));
}

#[tokio::test]
async fn nothing_is_waited_for_after_the_end() {
    let (answered, seen) = mpsc::channel::<()>();
    let seen = std::sync::Mutex::new(seen);
    let server = RawServer::start(move |connection, _| {
        begin(connection);
        piece(connection, (chunk("Hello") + DONE).as_bytes());
        // Holds the line until the answer was there without its end.
        let _ = seen.lock().unwrap().recv();
    });
    let hour = Duration::from_hours(1);
    let patient = Timeouts {
        idle: hour,
        call: hour,
        ..TIMEOUTS
    };
    let answer = model_with(&server.url(), patient, RETRY)
        .turn(request(true), |_| {})
        .await;
    assert_eq!(answer.unwrap().message, HELLO);
    answered.send(()).unwrap();
}

#[rstest]
#[case::no_head(false)]
#[case::head_only(true)]
#[tokio::test]
async fn a_first_byte_that_does_not_come_is_asked_for_again(#[case] with_head: bool) {
    let server = RawServer::start(move |connection, _| {
        if with_head {
            begin(connection);
        }
        hang(connection);
    });
    let timeouts = Timeouts {
        first_byte: Duration::from_millis(200),
        ..TIMEOUTS
    };
    let answer = model_with(&server.url(), timeouts, RETRY)
        .turn(request(true), |_| {})
        .await;
    assert_eq!(answer.unwrap_err(), timeout(TimeoutKind::FirstByte));
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_stream_that_stalls_before_any_text_is_paid_for_once() {
    let server = RawServer::start(|connection, _| {
        begin(connection);
        piece(connection, b": wait\n\n");
        hang(connection);
    });
    let timeouts = Timeouts {
        idle: Duration::from_millis(200),
        ..TIMEOUTS
    };
    let answer = model_with(&server.url(), timeouts, RETRY)
        .turn(request(true), |_| {})
        .await;
    assert_eq!(answer.unwrap_err(), timeout(TimeoutKind::Idle));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn an_announced_flood_is_not_read() {
    let server = RawServer::start(|connection, _| {
        send(connection, &head("200 OK", ChatModel::MAX_ANSWER_BYTES + 1));
        send(connection, b"{");
        hang(connection);
    });
    let answer = model(&server.url()).turn(request(true), |_| {}).await;
    assert_eq!(answer.unwrap_err(), ProviderError::TooLarge);
    assert_eq!(server.connections(), 1);
}

/// A long comment: with short ones, this would mostly measure how fast lines are read.
const COMMENT: &str = concat!(
    ": 0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890",
    "1234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901\n"
);

/// More than may come, in pieces of a mebibyte: white space, comments, or one long answer.
#[rstest]
#[case::blank(b"", b"\n")]
#[case::whole(b"{", b" ")]
#[case::comments(b":\n", COMMENT.as_bytes())]
#[tokio::test]
async fn a_flood_is_cut_off(#[case] first: &'static [u8], #[case] more: &'static [u8]) {
    let server = RawServer::start(move |connection, _| {
        begin(connection);
        if !first.is_empty() {
            piece(connection, first);
        }
        let flood = more.repeat(0x10_0000 / more.len());
        for _ in 0..300 {
            if !piece(connection, &flood) {
                return;
            }
        }
        end(connection);
    });
    // Time is not what is to run out here, however slow the machine.
    let patient = Timeouts {
        call: Duration::from_mins(10),
        ..TIMEOUTS
    };
    let answer = model_with(&server.url(), patient, RETRY)
        .turn(request(true), |_| {})
        .await;
    assert_eq!(answer.unwrap_err(), ProviderError::TooLarge);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_stream_may_have_more_around_it_than_an_answer_may_have_in_it() {
    let server = RawServer::start(|connection, _| {
        begin(connection);
        // White space first, behind a mark: none of it is kept.
        piece(connection, b"\xef\xbb");
        piece(connection, b"\xbf\n");
        let comments = COMMENT.repeat(0x20_0000 / COMMENT.len());
        for _ in 0..20 {
            piece(connection, comments.as_bytes());
        }
        piece(connection, (chunk("Hello") + FINISH).as_bytes());
        end(connection);
    });
    let patient = Timeouts {
        call: Duration::from_mins(10),
        ..TIMEOUTS
    };
    let answer = model_with(&server.url(), patient, RETRY)
        .turn(request(true), |_| {})
        .await;
    assert_eq!(answer.unwrap().message, HELLO);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_is_cut_off() {
    let (hung_up, gone) = mpsc::channel::<()>();
    let server = RawServer::start(move |connection, _| {
        begin(connection);
        piece(connection, chunk("Hel").as_bytes());
        hang(connection);
        hung_up.send(()).unwrap();
    });
    let model = model(&server.url());
    let (first, handed_on) = tokio::sync::oneshot::channel();
    let mut first = Some(first);
    let turn = model.turn(request(true), move |_| {
        if let Some(first) = first.take() {
            first.send(()).unwrap();
        }
    });
    tokio::select! {
        _ = turn => panic!("the server holds the line"),
        seen = handed_on => seen.unwrap(),
    }
    // The server notices; well before its own patience is at an end.
    gone.recv_timeout(Duration::from_secs(10)).unwrap();
}

#[tokio::test]
async fn a_connection_serves_the_next_turn() {
    // The body ends a moment after the answer in it.
    let server = RawServer::start(|connection, _| {
        for _ in 0..5 {
            begin(connection);
            piece(connection, (chunk("Hello") + FINISH + DONE).as_bytes());
            std::thread::sleep(Duration::from_millis(10));
            end(connection);
            super::server::read_request(connection);
        }
    });
    let model = model(&server.url());
    for _ in 0..5 {
        let answer = model.turn(request(true), |_| {}).await;
        assert_eq!(answer.unwrap().message, HELLO);
    }
    // On a busy machine the moment may be too long now and then.
    assert!(server.connections() < 5);
}
