//! What goes wrong below HTTP, and the limits on time and size.

use std::time::{Duration, Instant};

use rstest::rstest;

use super::server::{RawServer, head, send};
use super::support::{RETRY, TIMEOUTS, answer, base, model, model_with, ok, request, scripted};
use crate::provider::{ChatModel, ProviderError, TimeoutKind, Timeouts};

#[tokio::test]
async fn nobody_listens() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let error = model(&format!("http://127.0.0.1:{port}/v1"))
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(error, ProviderError::Connect);
    assert_eq!(error.status(), None);
}

#[tokio::test]
async fn a_hung_handshake_is_a_connect_timeout() {
    let server = RawServer::start(|_, _| std::thread::sleep(Duration::from_secs(2)));
    let timeouts = Timeouts {
        connect: Duration::from_millis(80),
        ..TIMEOUTS
    };
    let url = format!("https://127.0.0.1:{}/v1", server.port);
    let error = model_with(&url, timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::Connect
        }
    );
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_server_that_hangs_first_is_asked_again() {
    let body = answer("second").to_string();
    let server = RawServer::start(move |connection, number| {
        if number == 1 {
            std::thread::sleep(Duration::from_secs(2));
        }
        send(connection, &head("200 OK", body.len()));
        send(connection, body.as_bytes());
    });
    let timeouts = Timeouts {
        first_byte: Duration::from_millis(700),
        ..TIMEOUTS
    };
    let done = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap();
    assert_eq!((done.text.as_str(), done.attempts), ("second", 2));
}

#[tokio::test]
async fn a_head_without_a_body_is_no_first_byte() {
    let server = RawServer::start(|connection, _| {
        send(connection, &head("200 OK", 50));
        std::thread::sleep(Duration::from_secs(2));
    });
    let timeouts = Timeouts {
        first_byte: Duration::from_millis(120),
        ..TIMEOUTS
    };
    let error = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::FirstByte
        }
    );
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_stalled_answer_is_not_asked_for_again() {
    let server = RawServer::start(|connection, _| {
        send(connection, &head("200 OK", 50));
        send(connection, b"{\"choices\"");
        std::thread::sleep(Duration::from_secs(2));
    });
    let timeouts = Timeouts {
        idle: Duration::from_millis(100),
        ..TIMEOUTS
    };
    let error = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::Idle
        }
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_trickle_does_not_extend_the_call() {
    let server = RawServer::start(|connection, _| {
        send(connection, &head("200 OK", 100_000));
        while send(connection, b" ") {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let timeouts = Timeouts {
        idle: Duration::from_millis(600),
        call: Duration::from_millis(900),
        ..TIMEOUTS
    };
    let started = Instant::now();
    let error = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::Call
        }
    );
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_flood_does_not_extend_the_call() {
    let server = RawServer::start(|connection, _| {
        send(
            connection,
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        let started = Instant::now();
        while send(connection, b"1\r\n \r\n") && started.elapsed() < Duration::from_secs(5) {}
    });
    let timeouts = Timeouts {
        call: Duration::from_millis(300),
        ..TIMEOUTS
    };
    let started = Instant::now();
    let error = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::Call
        }
    );
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn a_cut_answer_is_asked_for_again() {
    let body = answer("whole").to_string();
    let server = RawServer::start(move |connection, number| {
        send(connection, &head("200 OK", body.len()));
        let part = if number < 3 {
            body.get(..20).unwrap()
        } else {
            &body
        };
        send(connection, part.as_bytes());
    });
    let done = model(&server.url()).complete(&request()).await.unwrap();
    assert_eq!((done.text.as_str(), done.attempts), ("whole", 3));
}

#[rstest]
#[case(b"")]
#[case(b"HTTP/1.1 200 OK\r\ncontent-le")]
#[case(b"SSH-2.0-OpenSSH_9.9\r\n")]
#[tokio::test]
async fn what_is_not_http_is_a_connection_error(#[case] bytes: &'static [u8]) {
    let server = RawServer::start(move |connection, _| {
        send(connection, bytes);
    });
    assert_eq!(
        model(&server.url()).complete(&request()).await.unwrap_err(),
        ProviderError::Connect
    );
    assert_eq!(server.connections(), 3);
}

#[rstest]
#[case::cut(false)]
#[case::hung(true)]
#[tokio::test]
async fn the_status_of_a_refusal_survives_its_body(#[case] hang: bool) {
    let server = RawServer::start(move |connection, _| {
        send(
            connection,
            b"HTTP/1.1 429 Too Many\r\nretry-after: 99\r\ncontent-length: 5000\r\n\r\n{\"err",
        );
        if hang {
            std::thread::sleep(Duration::from_secs(2));
        }
    });
    let timeouts = Timeouts {
        idle: Duration::from_millis(100),
        ..TIMEOUTS
    };
    let error = model_with(&server.url(), timeouts, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::RateLimited {
            status: 429,
            retry_after: Some(Duration::from_secs(99))
        }
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn an_announced_flood_is_not_read() {
    let server = RawServer::start(|connection, _| {
        send(connection, &head("200 OK", ChatModel::MAX_ANSWER_BYTES + 1));
        std::thread::sleep(Duration::from_secs(2));
    });
    let started = Instant::now();
    assert_eq!(
        model(&server.url()).complete(&request()).await.unwrap_err(),
        ProviderError::TooLarge
    );
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(server.connections(), 1);
}

#[rstest]
#[case("200 OK", ProviderError::TooLarge)]
#[case("418 Teapot", ProviderError::Refused { status: 418 })]
#[tokio::test]
async fn a_flood_is_cut_off(#[case] status: &'static str, #[case] expected: ProviderError) {
    let server = RawServer::start(move |connection, _| {
        send(
            connection,
            format!("HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n\r\n").as_bytes(),
        );
        let mut piece = b"100000\r\n".to_vec();
        piece.extend(vec![b' '; 0x0010_0000]);
        piece.extend(b"\r\n");
        for _ in 0..200 {
            if !send(connection, &piece) {
                return;
            }
        }
    });
    assert_eq!(
        model(&server.url()).complete(&request()).await.unwrap_err(),
        expected
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn limits_without_end_do_not_overflow() {
    let endless = Timeouts {
        connect: Duration::MAX,
        first_byte: Duration::MAX,
        idle: Duration::MAX,
        call: Duration::MAX,
    };
    let server = scripted(vec![ok("there")]).await;
    model_with(&base(&server), endless, RETRY)
        .complete(&request())
        .await
        .unwrap();
    let none = Timeouts {
        call: Duration::ZERO,
        ..TIMEOUTS
    };
    let error = model_with(&base(&server), none, RETRY)
        .complete(&request())
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ProviderError::Timeout {
            which: TimeoutKind::Call
        }
    );
}
