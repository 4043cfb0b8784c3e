//! `GET …/messages`: order, bounds, roles, pages.

use rstest::rstest;
use serde_json::json;

use crate::support::http::Page;
use crate::support::messages::{a, calls, r, system, turns, u};
use crate::support::{Backend, Http, TestApp};

async fn page(app: &Http, id: &str, query: &str) -> Page {
    app.get(&format!("/sessions/{id}/messages?{query}"))
        .await
        .expect(200)
        .page()
}

fn seqs(page: &Page) -> Vec<u64> {
    page.data.iter().map(|item| item.seq).collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn bounds_order_and_roles_choose(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app
        .create_with(&[
            system("s"),
            u(1),
            calls(&["c1"], 0),
            r("c1", 1),
            a(1),
            u(2),
            a(2),
        ])
        .await;
    for (query, expected) in [
        ("", vec![1, 2, 3, 4, 5, 6, 7]),
        ("order=asc", vec![1, 2, 3, 4, 5, 6, 7]),
        ("order=desc", vec![7, 6, 5, 4, 3, 2, 1]),
        ("afterSeq=5", vec![6, 7]),
        ("beforeSeq=3", vec![1, 2]),
        ("afterSeq=2&beforeSeq=6", vec![3, 4, 5]),
        ("afterSeq=2&beforeSeq=6&order=desc", vec![5, 4, 3]),
        ("afterSeq=7", vec![]),
        ("role=user", vec![2, 6]),
        ("role=tool", vec![4]),
        ("role=system", vec![1]),
        ("role=developer", vec![]),
        ("role=assistant&order=desc", vec![7, 5, 3]),
        ("limit=2", vec![1, 2]),
        ("limit=2&order=desc", vec![7, 6]),
    ] {
        assert_eq!(
            seqs(&page(&app, &id, query).await),
            expected,
            "messages by `{query}`"
        );
    }
    for query in [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=x",
        "order=sideways",
        "role=wizard",
        "afterSeq=x",
        "beforeSeq=-1",
    ] {
        app.get(&format!("/sessions/{id}/messages?{query}"))
            .await
            .problem(400, "INVALID_PARAMETER");
    }
    app.get(&format!("/sessions/{id}/messages/msg_none"))
        .await
        .problem(404, "MESSAGE_NOT_FOUND");
    let other = app.create_with(&[u(1)]).await;
    let foreign = &page(&app, &other, "").await.data[0].id;
    app.get(&format!("/sessions/{id}/messages/{foreign}"))
        .await
        .problem(404, "MESSAGE_NOT_FOUND");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn pages_follow_each_other_while_messages_are_added(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("asc", "desc")] order: &str,
    #[values("", "&role=user")] filter: &str,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(5, 10)).await;
    let mut expected: Vec<u64> = (1..=10)
        .filter(|seq| filter.is_empty() || seq % 2 == 1)
        .collect();
    if order == "desc" {
        expected.reverse();
    }
    let query = format!("limit=3&order={order}{filter}");
    let mut found = Vec::new();
    let mut next = page(&app, &id, &query).await;
    loop {
        found.extend(seqs(&next));
        assert!(next.data.len() <= 3, "a page is no longer than its limit");
        if found.len() >= expected.len() {
            break;
        }
        let cursor = next.next_cursor.as_ref().expect("there is more to read");
        next = page(&app, &id, &format!("{query}&cursor={cursor}")).await;
        // Backwards, whatever comes meanwhile is behind the reader.
        if order == "desc" {
            app.append(&id, &[a(1)]).await;
        }
    }
    assert_eq!(found, expected, "each message once, in order");
    assert_eq!(next.next_cursor, None, "after the last page there is none");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_or_malformed_cursor_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(2, 10)).await;
    let other = app.create_with(&turns(2, 10)).await;
    app.create(&json!({})).await;
    let foreign = page(&app, &other, "limit=1").await.next_cursor;
    let foreign = foreign.expect("the other session has more");
    let sessions = app.get("/sessions?limit=1").await.expect(200).json();
    let of_sessions = sessions["nextCursor"]
        .as_str()
        .expect("there are more sessions");
    for cursor in [
        &foreign,
        of_sessions,
        "garbage",
        "%00",
        "AAAA",
        "-1",
        "%F0%9F%98%80",
    ] {
        app.get(&format!("/sessions/{id}/messages?cursor={cursor}"))
            .await
            .problem(400, "INVALID_PARAMETER");
    }
}
