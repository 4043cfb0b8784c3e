//! K10: order comes from numbers, never from time.

use std::collections::HashMap;

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;

use crate::support::messages::{self, user};
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s23_a_batch_of_one_instant_keeps_its_order(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let raws: Vec<String> = (0..50).map(|n| user(&format!("message {n}"))).collect();
    let id = app.create_with(&raws).await;
    let items = app.history(&id).await;
    let listed: Vec<&str> = items.iter().map(|item| item.message.get()).collect();
    assert_eq!(listed, raws, "the list has the order of the batch");
    let shown = messages::raws(&app.context(&id).await.messages);
    assert_eq!(shown, raws, "the context too");
    // Small pages must not choose other rows than one large one.
    let mut paged = Vec::new();
    for start in (0..50).step_by(7) {
        let path = format!("/sessions/{id}/messages?limit=7&afterSeq={start}");
        let page = app.get(&path).await.expect(200).page();
        paged.extend(page.data.iter().map(|item| item.message.get().to_owned()));
    }
    assert_eq!(paged, raws, "and so do small pages");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s23_two_clients_at_once_get_one_order(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let second = app.spawn_second().await;
    let id = app.create(&json!({})).await;
    let client = async |http: &crate::support::Http, name: &str| {
        let mut acknowledged = Vec::new();
        for n in 0..25 {
            let message = user(&format!("{name} {n}"));
            let answer = http.append(&id, std::slice::from_ref(&message)).await;
            acknowledged.push((answer[0]["seq"].as_u64().expect("a seq"), message));
        }
        acknowledged
    };
    let clients = join_all([client(app.http(), "left"), client(second.http(), "right")]).await;
    let mut by_seq = HashMap::new();
    for acknowledged in &clients {
        assert!(
            acknowledged.is_sorted_by_key(|(seq, _)| *seq),
            "each client's messages are in the order it sent them"
        );
        by_seq.extend(acknowledged.iter().cloned());
    }
    assert_eq!(by_seq.len(), 50, "no seq was given twice");
    for (index, item) in app.history(&id).await.iter().enumerate() {
        assert_eq!(
            item.seq,
            index as u64 + 1,
            "the list is ordered by seq, without a gap"
        );
        assert_eq!(
            Some(item.message.get()),
            by_seq.get(&item.seq).map(String::as_str),
            "each seq is the one that was acknowledged"
        );
    }
}
