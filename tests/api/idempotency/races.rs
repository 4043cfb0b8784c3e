//! First uses of a key that come at once: one of them is done, the others repeat it.

use std::sync::Arc;

use rstest::rstest;
use serde_json::json;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::{keyed, messages, sessions, stored};
use crate::support::messages::{assistant, user};
use crate::support::{Backend, Http, Reply, TestApp};

const AT_ONCE: usize = 12;

/// Posts the same request many times at once, spread over these services.
async fn at_once(replicas: &[Http], path: &str, key: &str, body: &str) -> Vec<Reply> {
    let barrier = Arc::new(Barrier::new(AT_ONCE));
    let mut requests = JoinSet::new();
    for number in 0..AT_ONCE {
        let http = replicas[number % replicas.len()].clone();
        let (path, key, body) = (path.to_owned(), key.to_owned(), body.to_owned());
        let barrier = Arc::clone(&barrier);
        requests.spawn(async move {
            barrier.wait().await;
            keyed(&http, &path, &key, &body).await
        });
    }
    requests.join_all().await
}

/// One was first, and all say the same.
fn are_one(replies: &[Reply], status: u16) {
    let first = replies
        .iter()
        .filter(|reply| reply.header("idempotency-replayed").is_none());
    for reply in replies {
        assert_eq!(reply.status, status, "{reply}");
        assert!(reply.body == replies[0].body, "{reply}\n\n{}", replies[0]);
    }
    assert_eq!(first.count(), 1, "one is no repeat");
}

/// One service; or two on one database, which only PostgreSQL is for.
async fn replicas(backend: Backend, count: usize) -> (Vec<TestApp>, Vec<Http>) {
    let first = TestApp::spawn(backend).await;
    let mut apps = vec![first];
    while apps.len() < count {
        apps.push(apps[0].spawn_second().await);
    }
    let https = apps.iter().map(|app| app.http().clone()).collect();
    (apps, https)
}

#[rstest]
#[case::sqlite(Backend::Sqlite, 1)]
#[case::postgres(Backend::Postgres, 1)]
#[case::two_replicas(Backend::Postgres, 2)]
#[tokio::test(flavor = "multi_thread")]
async fn parallel_first_uses_give_one_row(#[case] backend: Backend, #[case] count: usize) {
    let (apps, https) = replicas(backend, count).await;
    let id = apps[0].create(&json!({})).await;
    let path = format!("/sessions/{id}/messages");
    for round in 0..8_usize {
        let new = [user(&format!("question {round}")), assistant("answer")];
        // Every other time with a condition that only the first can meet.
        let body = match round % 2 {
            0 => messages(&new),
            _ => format!(
                "{{\"expectedLastSeq\":{},\"messages\":[{}]}}",
                round * 2,
                new.join(",")
            ),
        };
        let replies = at_once(&https, &path, &format!("key-{round}"), &body).await;
        are_one(&replies, 201);
        assert_eq!(stored(&apps[0], &id).await.len(), (round + 1) * 2);
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite, 1)]
#[case::postgres(Backend::Postgres, 1)]
#[case::two_replicas(Backend::Postgres, 2)]
#[tokio::test(flavor = "multi_thread")]
async fn parallel_first_uses_make_one_session_one_copy_one_dispatch(
    #[case] backend: Backend,
    #[case] count: usize,
) {
    let (apps, https) = replicas(backend, count).await;
    are_one(&at_once(&https, "/sessions", "k", "{}").await, 201);
    let made = sessions(&apps[0]).await;
    assert_eq!(made.len(), 1);
    let id = made[0]["id"].as_str().expect("an id");
    apps[0].append(id, &[user("a"), assistant("b")]).await;

    let fork = format!("/sessions/{id}/fork");
    are_one(&at_once(&https, &fork, "k", "{}").await, 201);
    assert_eq!(sessions(&apps[0]).await.len(), 2);

    let context = format!("/sessions/{id}/context");
    are_one(&at_once(&https, &context, "k", "{}").await, 200);
    let dispatches = apps[0].get(&format!("/sessions/{id}/dispatches")).await;
    let dispatches = dispatches.expect(200).json();
    assert_eq!(dispatches["data"].as_array().map(Vec::len), Some(1));

    let close = format!("/sessions/{id}/close");
    are_one(&at_once(&https, &close, "k", "").await, 200);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn of_two_bodies_one_is_done(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let (apps, https) = replicas(backend, 1).await;
    let id = apps[0].create(&json!({})).await;
    let path = format!("/sessions/{id}/messages");
    for round in 0..8_usize {
        let barrier = Arc::new(Barrier::new(2));
        let mut requests = JoinSet::new();
        for number in 0..2 {
            let (http, path) = (https[0].clone(), path.clone());
            let barrier = Arc::clone(&barrier);
            requests.spawn(async move {
                let body = messages(&[user(&format!("{round} {number}"))]);
                barrier.wait().await;
                keyed(&http, &path, &format!("key-{round}"), &body).await
            });
        }
        let mut replies = requests.join_all().await;
        replies.sort_by_key(|reply| reply.status);
        assert_eq!(replies[0].status, 201, "{}", replies[0]);
        replies[1].problem(409, "IDEMPOTENCY_CONFLICT");
        assert_eq!(stored(&apps[0], &id).await.len(), round + 1);
    }
}

/// Unkeyed requests beside them are not held up, and each group of equal ones is one.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn many_keys_at_once_are_all_stored(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let (apps, https) = replicas(backend, 1).await;
    let id = apps[0].create(&json!({})).await;
    let mut requests = JoinSet::new();
    for number in 0..60_usize {
        let (http, path) = (https[0].clone(), format!("/sessions/{id}/messages"));
        requests.spawn(async move {
            let key = number / 3;
            let body = messages(&[user(&format!("message {key}"))]);
            keyed(&http, &path, &format!("key-{key}"), &body).await
        });
    }
    let replies = requests.join_all().await;
    assert!(replies.iter().all(|reply| reply.status == 201));
    let mut all = stored(&apps[0], &id).await;
    all.sort_unstable();
    let mut expected: Vec<_> = (0..20).map(|key| user(&format!("message {key}"))).collect();
    expected.sort_unstable();
    assert_eq!(all, expected);
}

#[rstest]
#[case::sqlite(Backend::Sqlite, 1)]
#[case::postgres(Backend::Postgres, 1)]
#[case::two_replicas(Backend::Postgres, 2)]
#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_answer_expired_is_free_for_one(
    #[case] backend: Backend,
    #[case] count: usize,
) {
    let (apps, https) = replicas(backend, count).await;
    let id = apps[0].create(&json!({})).await;
    let path = format!("/sessions/{id}/messages");
    for round in 0..8_usize {
        let body = messages(&[user("question"), assistant("answer")]);
        keyed(&https[0], &path, "key", &body).await.expect(201);
        let past = "UPDATE idempotency SET expires_at = created_at";
        apps[0].database.execute(past, past).await;
        are_one(&at_once(&https, &path, "key", &body).await, 201);
        assert_eq!(stored(&apps[0], &id).await.len(), (round + 1) * 4);
        apps[0].database.execute(past, past).await;
    }
}
