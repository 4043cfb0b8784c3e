//! K13: many writers on one database file.

use std::collections::HashSet;

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;

use crate::support::backend::TestDatabase;
use crate::support::messages::{assistant, user};
use crate::support::process::Process;
use crate::support::{Backend, History, chain};

const CLIENTS: usize = 16;
const APPENDS: usize = 50;
const SESSIONS: usize = 4;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s27_no_lock_reaches_a_client(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let database = TestDatabase::create(backend).await;
    let servers = [
        Process::start(&database, &[]),
        Process::start(&database, &[]),
    ];
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(servers[0].create(&json!({})).await);
    }

    let client = async |number: usize| {
        let server = &servers[number % servers.len()];
        let id = &sessions[number % SESSIONS];
        let mut sent = Vec::new();
        for n in 0..APPENDS {
            let text = format!("client {number} message {n} {}", ".".repeat(50));
            let message = if n % 2 == 0 {
                user(&text)
            } else {
                assistant(&text)
            };
            let answer = server.append(id, std::slice::from_ref(&message)).await;
            sent.push((answer[0]["seq"].as_u64().expect("a seq"), message));
            if n % 10 == 9 {
                let reply = server.compact(id, &json!({"compactCount": 30})).await;
                assert!(
                    [200, 409].contains(&reply.status),
                    "a compaction runs, or another one does: {reply}"
                );
            }
            if n % 10 == 4 {
                server.get("/sessions").await.expect(200);
                server
                    .get(&format!("/sessions/{id}/messages?order=desc&limit=20"))
                    .await
                    .expect(200);
            }
        }
        (id.clone(), sent)
    };
    // `append` and `expect` panic on any 5xx.
    let done = join_all((0..CLIENTS).map(client)).await;

    for id in &sessions {
        let sent: HashSet<(u64, String)> = done
            .iter()
            .filter(|(session, _)| session == id)
            .flat_map(|(_, sent)| sent.iter().cloned())
            .collect();
        assert_eq!(
            sent.len(),
            CLIENTS / SESSIONS * APPENDS,
            "no seq was given twice"
        );
        let items = servers[0].history(id).await;
        let stored: HashSet<(u64, String)> = items
            .iter()
            .map(|item| (item.seq, item.message.get().to_owned()))
            .collect();
        assert_eq!(
            stored, sent,
            "each acknowledged message is there under its seq"
        );
        let last = items.last().map_or(0, |item| item.seq);
        assert_eq!(last, items.len() as u64, "sequences have no gap");
        let raws: Vec<String> = items
            .iter()
            .map(|item| item.message.get().to_owned())
            .collect();
        let history = History::new(&raws);
        let session = chain::check(&servers[1], id, &history, "s27").await;
        assert!(
            session["compactionVersion"].as_u64() > Some(0),
            "compactions ran meanwhile"
        );
    }
}
