//! `kill -9` of the real binary. What was acknowledged is there, what was not is there whole or
//! not at all, and the next compaction has to wait for nothing but the lease.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use tokio::sync::Notify;

use crate::support::backend::TestDatabase;
use crate::support::chain;
use crate::support::messages::{turns, user};
use crate::support::process::Process;
use crate::support::{Backend, History, Http, ScriptedModel};

/// What a client waits beyond the lease: requests and the granularity of its clock.
const MARGIN: Duration = Duration::from_secs(3);

fn lease(seconds: u64) -> (String, String) {
    (
        "PRECIS_COMPACTION__LEASE_SECONDS".to_owned(),
        seconds.to_string(),
    )
}

/// The stored history, as its messages are written.
async fn stored(http: &Http, id: &str) -> Vec<String> {
    http.history(id)
        .await
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect()
}

/// Compacts as soon as the lease of the dead process lets it.
async fn compacts_within(http: &Http, id: &str, lease: Duration) {
    let deadline = Instant::now() + lease + MARGIN;
    loop {
        let reply = http.compact(id, &json!({})).await;
        if reply.status == 200 {
            return;
        }
        reply.problem(409, "COMPACTION_IN_PROGRESS");
        assert!(
            Instant::now() < deadline,
            "expected a compaction to work within {lease:?} of the kill"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_appends_loses_nothing_acknowledged(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    const CLIENTS: usize = 8;
    const BEFORE_THE_KILL: usize = 200;
    const PARTS: usize = 3;
    let database = TestDatabase::create(backend).await;
    let mut process = Process::start(&database, &[]);
    let id = process.create(&json!({})).await;
    let (count, enough) = (AtomicUsize::new(0), Notify::new());

    let http = (*process).clone();
    let path = format!("/sessions/{id}/messages");
    let client = async |number: usize| {
        let json = [("content-type", "application/json")];
        let mut acknowledged = Vec::new();
        for n in 0.. {
            let parts: Vec<String> = (0..PARTS)
                .map(|part| user(&format!("client {number} append {n} part {part}")))
                .collect();
            let body = format!("{{\"messages\":[{}]}}", parts.join(","));
            let sent = http.try_send(Method::POST, &path, &json, Some(body.into()));
            let Ok(reply) = sent.await else { break };
            for (answer, part) in reply.expect(201).appended().iter().zip(parts) {
                acknowledged.push((answer["seq"].as_u64().expect("a seq"), part));
            }
            if count.fetch_add(1, Ordering::Relaxed) + 1 == BEFORE_THE_KILL {
                enough.notify_one();
            }
        }
        acknowledged
    };
    let kill = async {
        enough.notified().await;
        process.kill();
    };
    let (acknowledged, ()) =
        futures_util::future::join(join_all((0..CLIENTS).map(client)), kill).await;

    let process = Process::start(&database, &[]);
    let items = process.history(&id).await;
    let by_seq: HashMap<u64, &str> = items
        .iter()
        .map(|item| (item.seq, item.message.get()))
        .collect();
    let acknowledged: Vec<_> = acknowledged.into_iter().flatten().collect();
    assert!(
        acknowledged.len() >= BEFORE_THE_KILL * PARTS,
        "the kill came after {BEFORE_THE_KILL} appends"
    );
    for (seq, message) in &acknowledged {
        assert_eq!(
            by_seq.get(seq),
            Some(&message.as_str()),
            "message {seq} was acknowledged and must be there"
        );
    }
    for (index, item) in items.iter().enumerate() {
        assert_eq!(item.seq, index as u64 + 1, "no gap in seq after the kill");
    }
    assert_eq!(
        items.len() % PARTS,
        0,
        "an append is there whole or not at all"
    );
    for append in items.chunks(PARTS) {
        let texts: Vec<&str> = append
            .iter()
            .map(|item| item.message.get().rsplit_once(" part ").expect("a part").0)
            .collect();
        assert!(
            texts.iter().all(|text| *text == texts[0]),
            "the parts of an append stand together: {texts:?}"
        );
    }
    let raws = stored(&process, &id).await;
    let session = chain::check(&process, &id, &History::new(&raws), "after the kill").await;
    assert_eq!(
        session["lastSeq"],
        items.len(),
        "lastSeq is that of the newest message"
    );
    assert_eq!(
        session["messageCount"],
        items.len(),
        "the count is the number of messages"
    );
    process.append(&id, &[user("and on it goes")]).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_a_compaction_changes_nothing(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let database = TestDatabase::create(backend).await;
    let mut variables = model.variables();
    variables.push(lease(2));
    let mut process = Process::start(&database, &variables);
    let raws = turns(10, 100);
    let id = process.create_with(&raws).await;
    let history = History::new(&raws);
    let before = chain::check(&process, &id, &history, "before the kill").await;
    let context = process.get(&format!("/sessions/{id}/context")).await.body;

    model.hold();
    let http = (*process).clone();
    let session = id.clone();
    let running = tokio::spawn(async move {
        let json = [("content-type", "application/json")];
        let path = format!("/sessions/{session}/compact");
        http.try_send(Method::POST, &path, &json, Some(b"{}".to_vec()))
            .await
    });
    model.arrived(1).await;
    process.kill();
    let answer = running.await.expect("the client's task ends");
    assert!(answer.is_err(), "a killed server answers nobody");
    model.release();

    let process = Process::start(&database, &variables);
    let after = chain::check(&process, &id, &history, "after the kill").await;
    assert_eq!(after, before, "pointer and summary are as before");
    let bytes = process.get(&format!("/sessions/{id}/context")).await.body;
    assert_eq!(bytes, context, "the context has the same bytes");

    compacts_within(&process, &id, Duration::from_secs(2)).await;
    let session = chain::check(&process, &id, &history, "compacted after the kill").await;
    assert_eq!(
        session["compactSize"], 10,
        "the batch of the run that was killed"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_moment_leaves_the_state_before_or_after(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let database = TestDatabase::create(backend).await;
    let variables = [lease(1)];
    let mut id = String::new();
    let mut versions = 0;
    for round in 0..4_u64 {
        let mut process = Process::start(&database, &variables);
        if round == 0 {
            id = process.create_with(&turns(20, 100)).await;
        }
        compacts_within(&process, &id, Duration::from_secs(1)).await;
        let first = process.session(&id).await["compactionVersion"].as_u64();
        let finished = Notify::new();
        let http = (*process).clone();
        // Compacts and appends until the server is gone; the number of versions that were answered.
        let busy = async {
            let json = [("content-type", "application/json")];
            let more = format!("{{\"messages\":[{}]}}", turns(2, 100).join(","));
            let mut newest = first.expect("a version");
            let mut runs = 0_u64;
            for (path, body) in [
                (format!("/sessions/{id}/messages"), more.as_str()),
                (format!("/sessions/{id}/compact"), "{\"compactCount\":1}"),
                (format!("/sessions/{id}/compact"), "{\"compactCount\":1}"),
            ]
            .iter()
            .cycle()
            {
                let body = Some(body.as_bytes().to_vec());
                let Ok(reply) = http.try_send(Method::POST, path, &json, body).await else {
                    break;
                };
                assert!(
                    [200, 201].contains(&reply.status),
                    "expected success: {reply}"
                );
                if let Some(version) = reply.json()["compaction"]["version"].as_u64() {
                    newest = version;
                }
                runs += 1;
                if runs == 5 + round {
                    finished.notify_one();
                }
            }
            newest
        };
        let kill = async {
            finished.notified().await;
            // Somewhere inside the next requests, elsewhere in each round.
            tokio::time::sleep(Duration::from_millis(3 * round)).await;
            process.kill();
        };
        let (newest, ()) = futures_util::future::join(busy, kill).await;

        let process = Process::start(&database, &variables);
        let raws = stored(&process, &id).await;
        let what = format!("after kill {round}");
        let session = chain::check(&process, &id, &History::new(&raws), &what).await;
        let version = session["compactionVersion"].as_u64().expect("a version");
        assert!(
            version == newest || version == newest + 1,
            "{what}: version {newest} was answered, the next may have been committed; got {version}"
        );
        assert!(
            version > versions,
            "{what}: the chain grows from round to round"
        );
        versions = version;
    }
}
