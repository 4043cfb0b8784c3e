//! K13: giant messages.

use rstest::rstest;
use serde_json::json;

use crate::support::messages::{calls, padded, result, user};
use crate::support::{Backend, TestApp};

const ENVELOPE: usize = r#"{"messages":[]}"#.len();

/// A message that makes the body of its append this long.
fn filling(body: usize) -> String {
    user(&padded("", body - ENVELOPE - user("").len()))
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s29_large_bodies_are_taken_by_default(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for bytes in [1_900_000, 2_100_000, 9_000_000] {
        let message = filling(bytes);
        let id = app.create_with(std::slice::from_ref(&message)).await;
        let items = app.history(&id).await;
        assert!(
            items[0].message.get() == message,
            "{bytes} bytes come back unchanged"
        );
        let context = app.context(&id).await;
        assert!(
            context.messages[0].get() == message,
            "a context of {bytes} bytes is whole and unchanged"
        );
    }
    let line = result("c1", &padded("one line ", 1_000_000));
    let id = app
        .create_with(&[user("q"), calls(&["c1"], 0), line.clone()])
        .await;
    let items = app.history(&id).await;
    assert!(
        items[2].message.get() == line,
        "a line of 1 MB comes back unchanged"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s29_one_byte_over_the_limit_is_a_413(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[("PRECIS_LIMITS__BODY_BYTES", "3000000")]).await;
    let id = app.create(&json!({})).await;
    app.append(&id, &[filling(3_000_000)]).await;
    let reply = app
        .append_raw(&id, &format!("[{}]", filling(3_000_001)))
        .await;
    let problem = reply.problem(413, "PAYLOAD_TOO_LARGE");
    assert!(
        problem.to_string().contains("3000000"),
        "expected the limit in the answer: {problem}"
    );
    assert_eq!(app.history(&id).await.len(), 1, "nothing was stored");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s29_a_large_context_is_streamed_whole(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    // 1,000 messages of 10 kB: more than any page of a long read.
    let raws: Vec<String> = (0..1_000)
        .map(|n| user(&padded(&format!("message {n} "), 10_000)))
        .collect();
    app.append(&id, &raws).await;
    let context = app.context(&id).await;
    let shown = crate::support::messages::raws(&context.messages);
    assert!(shown == raws, "every message, in order, unchanged");
    let listed: Vec<String> = app
        .history(&id)
        .await
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    assert!(listed == raws, "and in the list");
}
