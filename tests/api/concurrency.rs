//! Many clients: on PostgreSQL spread over two processes, on SQLite in one.

use std::collections::HashSet;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use rstest::rstest;
use serde_json::json;

use crate::support::backend::TestDatabase;
use crate::support::messages::{turns, user};
use crate::support::process::Process;
use crate::support::{Backend, History, ScriptedModel, chain};

fn servers(database: &TestDatabase, variables: &[(String, String)]) -> Vec<Process> {
    let count = match database.backend {
        Backend::Sqlite => 1,
        Backend::Postgres => 2,
    };
    (0..count)
        .map(|_| Process::start(database, variables))
        .collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn twenty_compactions_make_one_record_and_one_call(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    const COUNT: usize = 20;
    let model = ScriptedModel::start().await;
    let database = TestDatabase::create(backend).await;
    let servers = servers(&database, &model.variables());
    let raws = turns(20, 100);
    let id = servers[0].create_with(&raws).await;

    model.hold();
    let mut running: FuturesUnordered<_> = (0..COUNT)
        .map(|n| {
            let (server, id) = (&servers[n % servers.len()], &id);
            async move { server.compact(id, &json!({})).await }
        })
        .collect();
    let mut done = Vec::new();
    let mut answered = 0;
    while let Some(reply) = running.next().await {
        answered += 1;
        if answered == COUNT - 1 {
            model.release();
        }
        match reply.status {
            200 => done.push(reply.json()),
            _ => drop(reply.problem(409, "COMPACTION_IN_PROGRESS")),
        }
    }
    assert_eq!(
        done.len(),
        1,
        "one of twenty compactions is the one that runs"
    );
    assert_eq!(model.calls().len(), 1, "one summarizer call");
    let history = History::new(&raws);
    for server in &servers {
        let session = chain::check(server, &id, &history, "after twenty compactions").await;
        assert_eq!(session["compactionVersion"], 1, "one record");
        assert_eq!(session["compactSize"], 20, "one batch");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_appends_leave_no_gap_and_no_repeat(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    const CLIENTS: usize = 16;
    const APPENDS: usize = 150;
    let database = TestDatabase::create(backend).await;
    let servers = servers(&database, &[]);
    let id = servers[0].create(&json!({})).await;

    let client = async |number: usize| {
        // Each append goes to the next server, each read to the other one.
        let server = |n: usize| &servers[(number + n) % servers.len()];
        let mut acknowledged = Vec::new();
        for n in 0..APPENDS {
            let message = user(&format!("client {number} message {n}"));
            let answer = server(n).append(&id, std::slice::from_ref(&message)).await;
            acknowledged.push((answer[0]["seq"].as_u64().expect("a seq"), message));
            if n % 25 == 24 {
                let context = server(n + 1).context(&id).await;
                let shown: HashSet<&str> = context.messages.iter().map(|raw| raw.get()).collect();
                for (seq, message) in &acknowledged {
                    assert!(
                        shown.contains(message.as_str()),
                        "message {seq} was acknowledged and must be in the next context"
                    );
                }
            }
        }
        acknowledged
    };
    let acknowledged: Vec<(u64, String)> = join_all((0..CLIENTS).map(client))
        .await
        .into_iter()
        .flatten()
        .collect();

    let seqs: HashSet<u64> = acknowledged.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs.len(), CLIENTS * APPENDS, "no seq was given twice");
    let items = servers[0].history(&id).await;
    assert_eq!(
        items.len(),
        CLIENTS * APPENDS,
        "each message is stored once"
    );
    let stored: HashSet<(u64, &str)> = items
        .iter()
        .map(|item| (item.seq, item.message.get()))
        .collect();
    for (seq, message) in &acknowledged {
        assert!(
            stored.contains(&(*seq, message.as_str())),
            "message {seq} is stored under the number it was acknowledged with"
        );
    }
    for (index, item) in items.iter().enumerate() {
        assert_eq!(item.seq, index as u64 + 1, "no gap in seq");
        assert_eq!(item.position, Some(index), "no gap in position");
    }
    let raws: Vec<String> = items
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    chain::check(&servers[0], &id, &History::new(&raws), "after the appends").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn positions_stay_dense_when_instructions_come_between(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    const CLIENTS: usize = 8;
    const APPENDS: usize = 20;
    let database = TestDatabase::create(backend).await;
    let servers = servers(&database, &[]);
    let id = servers[0].create(&json!({})).await;
    let client = async |number: usize| {
        let server = &servers[number % servers.len()];
        for n in 0..APPENDS {
            let batch = [
                user(&format!("client {number} first {n}")),
                crate::support::messages::system(&format!("client {number} rule {n}")),
                user(&format!("client {number} second {n}")),
            ];
            let answer = server.append(&id, &batch).await;
            let seqs: Vec<_> = answer
                .iter()
                .filter_map(|item| item["seq"].as_u64())
                .collect();
            assert_eq!(
                seqs,
                [seqs[0], seqs[0] + 1, seqs[0] + 2],
                "the messages of one append stand together"
            );
        }
    };
    join_all((0..CLIENTS).map(client)).await;
    let items = servers[0].history(&id).await;
    assert_eq!(items.len(), CLIENTS * APPENDS * 3);
    let positions: Vec<usize> = items.iter().filter_map(|item| item.position).collect();
    assert_eq!(
        positions,
        (0..CLIENTS * APPENDS * 2).collect::<Vec<_>>(),
        "positions count the messages that are no instructions"
    );
    let raws: Vec<String> = items
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    chain::check(&servers[0], &id, &History::new(&raws), "after the appends").await;
}
