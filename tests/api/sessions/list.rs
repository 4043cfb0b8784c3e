//! `GET /sessions`: newest first, filtered, page by page.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Http, TestApp};

fn ids(list: &Value) -> Vec<String> {
    list["data"]
        .as_array()
        .expect("a list has `data`")
        .iter()
        .map(|session| session["id"].as_str().expect("an id").to_owned())
        .collect()
}

async fn listed(app: &Http, query: &str) -> Vec<String> {
    ids(&app
        .get(&format!("/sessions?{query}"))
        .await
        .expect(200)
        .json())
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn filters_choose_and_can_be_combined(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    app.put("/agents/coder", &json!({"name": "coder"})).await;
    let plain = app.create(&json!({})).await;
    let coder = app
        .create(&json!({"agentName": "coder", "metadata": {"project": "alpha"}}))
        .await;
    let task = app
        .create(&json!({"mode": "task", "metadata": {"project": "alpha", "a.b": "x y"}}))
        .await;
    let closed = app.create(&json!({"metadata": {"project": "beta"}})).await;
    app.post_empty(&format!("/sessions/{closed}/close"))
        .await
        .expect(200);

    let all = [closed.clone(), task.clone(), coder.clone(), plain.clone()];
    assert_eq!(listed(&app, "").await, all, "newest first");
    for (query, expected) in [
        ("status=active", vec![&task, &coder, &plain]),
        ("status=closed", vec![&closed]),
        ("agentName=coder", vec![&coder]),
        ("agentName=nobody", vec![]),
        ("mode=task", vec![&task]),
        ("mode=chat", vec![&closed, &coder, &plain]),
        ("metadata.project=alpha", vec![&task, &coder]),
        ("metadata.project=alph", vec![]),
        ("metadata.a.b=x%20y", vec![&task]),
        ("metadata.project=alpha&mode=chat", vec![&coder]),
        ("metadata.project=beta&status=active", vec![]),
    ] {
        let found = listed(&app, query).await;
        assert_eq!(
            found.iter().collect::<Vec<_>>(),
            expected,
            "sessions by `{query}`"
        );
    }
    for query in [
        "status=asleep",
        "mode=dream",
        "limit=0",
        "limit=1001",
        "limit=ten",
    ] {
        app.get(&format!("/sessions?{query}"))
            .await
            .problem(400, "INVALID_PARAMETER");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn pages_follow_each_other_while_sessions_are_added(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut expected = Vec::new();
    for n in 0..7 {
        let odd = json!({"metadata": {"odd": (n % 2 == 1).to_string()}});
        expected.insert(0, app.create(&odd).await);
    }
    let mut found = Vec::new();
    let mut path = "/sessions?limit=3".to_owned();
    let mut pages = 0;
    loop {
        let page = app.get(&path).await.expect(200).json();
        found.extend(ids(&page));
        pages += 1;
        // Whoever comes meanwhile is newer than all that is still to be read.
        app.create(&json!({})).await;
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/sessions?limit=3&cursor={cursor}"),
            None => break,
        }
        assert!(pages < 10, "the pages must come to an end");
    }
    assert_eq!(found, expected, "each session once, in order");
    assert_eq!(pages, 3, "7 sessions are 3 pages of 3");

    let page = app
        .get("/sessions?limit=2&metadata.odd=true")
        .await
        .expect(200)
        .json();
    let cursor = page["nextCursor"]
        .as_str()
        .expect("there is a third odd one");
    let rest = listed(&app, &format!("limit=2&metadata.odd=true&cursor={cursor}")).await;
    assert_eq!(
        rest,
        [expected[5].clone()],
        "a filter holds from page to page"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_or_malformed_cursor_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let messages: Vec<Value> = (0..3)
        .map(|n| json!({"role": "user", "content": n.to_string()}))
        .collect();
    let id = app.create(&json!({"messages": messages})).await;
    let page = app
        .get(&format!("/sessions/{id}/messages?limit=1"))
        .await
        .expect(200)
        .json();
    let foreign = page["nextCursor"]
        .as_str()
        .expect("there are more messages");
    for cursor in [foreign, "garbage", "%00", "AAAA", "-1", ""] {
        app.get(&format!("/sessions?cursor={cursor}"))
            .await
            .problem(400, "INVALID_PARAMETER");
    }
}
