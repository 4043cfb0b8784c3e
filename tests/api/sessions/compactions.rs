//! `GET …/compactions`: the chain, one by one and page by page.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::turns;
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_chain_can_be_read(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(5, 100)).await;
    let path = format!("/sessions/{id}/compactions");
    let empty = app.get(&path).await.expect(200).json();
    assert_eq!(
        empty,
        json!({"data": [], "nextCursor": null}),
        "no compaction yet"
    );

    let request = json!({"compactCount": 1, "instructions": "Mind the numbers."});
    for _ in 0..4 {
        app.compact(&id, &request).await.expect(200);
    }
    let chain = app.compactions(&id).await;
    assert_eq!(chain.len(), 4, "a record for each run");
    for (index, record) in chain.iter().enumerate() {
        let version = index + 1;
        assert_eq!(record["version"], version);
        assert_eq!(
            (&record["from"], &record["to"]),
            (&json!(index * 2), &json!(index * 2 + 2))
        );
        assert_eq!(record["compactCount"], 1);
        assert_eq!(record["boundary"], "turn");
        assert_eq!(record["trigger"], "manual");
        assert_eq!(record["method"], "extractive");
        assert_eq!(record["instructions"], "Mind the numbers.");
        assert_eq!(record["keepTokens"], Value::Null);
        assert!(
            record["digest"]
                .as_str()
                .is_some_and(|digest| digest.len() >= 64),
            "a SHA-256 of what was summarised: {record:#}"
        );
        let one = app
            .get(&format!("{path}/{version}"))
            .await
            .expect(200)
            .json();
        assert_eq!(&one, record, "one alone is the same as in the list");
    }
    let digests: Vec<&Value> = chain.iter().map(|record| &record["digest"]).collect();
    for (index, digest) in digests.iter().enumerate() {
        assert!(
            !digests[..index].contains(digest),
            "each digest builds on the one before"
        );
    }

    for version in ["5", "0"] {
        app.get(&format!("{path}/{version}"))
            .await
            .problem(404, "COMPACTION_NOT_FOUND");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_chain_has_pages(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(6, 100)).await;
    for _ in 0..5 {
        app.compact(&id, &json!({"compactCount": 1}))
            .await
            .expect(200);
    }
    let mut versions = Vec::new();
    let mut path = format!("/sessions/{id}/compactions?limit=2");
    loop {
        let page = app.get(&path).await.expect(200).json();
        let records = page["data"].as_array().expect("a list").clone();
        assert!(records.len() <= 2, "a page is no longer than its limit");
        versions.extend(
            records
                .iter()
                .filter_map(|record| record["version"].as_u64()),
        );
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/sessions/{id}/compactions?limit=2&cursor={cursor}"),
            None => break,
        }
        assert!(versions.len() <= 5, "the pages must come to an end");
    }
    assert!(
        versions.is_sorted() || versions.iter().rev().is_sorted(),
        "the chain is in order: {versions:?}"
    );
    versions.sort_unstable();
    assert_eq!(versions, [1, 2, 3, 4, 5], "each version once");
    app.get(&format!("/sessions/{id}/compactions?cursor=garbage"))
        .await
        .problem(400, "INVALID_PARAMETER");
}
