//! Reads everything when the load is over, and holds it against what the clients know.
//!
//! Here: messages, counters, contexts, forks. Compactions, turns and events are in `chain`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::chain;
use crate::context::{self, NO_RESULT, texts};
use crate::ledger::{Draft, Ledger, Listed, Page, Session, World};
use crate::random::Random;
use crate::readers::COMPACTION_CODES;
use crate::web::{Ask, CONTENT_MARK, MODEL_MARK, Reply};

/// How long what a dead process held may stay held: the lease, and what a slow machine adds.
const PATIENCE: Duration = Duration::from_secs(40);

/// Checks everything. The replicas run, the model is well.
pub async fn check(world: &Arc<World>) {
    let sessions = world.sessions();
    let checks = sessions.iter().map(|session| check_session(world, session));
    join_all(checks).await;
    check_list(world, &sessions).await;
    check_logs(world);
}

/// Asks until there is a good answer, or for too long.
async fn insist_on(world: &World, about: &str, make: impl Fn() -> Ask<'static>) -> Option<Bytes> {
    let mut random = Random::of(world.seed, about);
    let began = Instant::now();
    let mut last = String::new();
    while began.elapsed() < PATIENCE {
        match world.web.ask(&mut random, make()).await {
            Reply::Done(body) => return Some(body),
            other => last = format!("{other:?}"),
        }
        sleep(Duration::from_millis(200)).await;
    }
    world.findings.violation(format!(
        "{about}: not within {PATIENCE:?} of the end; last: {last}"
    ));
    None
}

/// The same, as JSON; null if there was no good answer.
pub async fn insist(world: &World, about: &str, make: impl Fn() -> Ask<'static>) -> Value {
    let body = insist_on(world, about, make).await;
    body.and_then(|body| serde_json::from_slice(&body).ok())
        .unwrap_or_default()
}

/// Reads all pages of a list.
pub async fn read_all<T: DeserializeOwned>(world: &World, path: &str) -> Vec<T> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = format!("{path}?limit=1000{cursor}");
        let Some(body) = insist_on(world, path, || Ask::get("list", page.clone())).await else {
            return all;
        };
        let Ok(page) = serde_json::from_slice::<Page<T>>(&body) else {
            world.findings.violation(format!("{path} is unreadable"));
            return all;
        };
        all.extend(page.data);
        match page.next_cursor {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

async fn check_session(world: &Arc<World>, session: &Arc<Session>) {
    let id = &session.id;
    let path = session.path("");
    let off = json!({"autoCompact": {"enabled": false}}).to_string();
    let change = || Ask {
        method: reqwest::Method::PATCH,
        ..Ask::post("patch", path.clone(), off.clone(), &[])
    };
    insist(world, &format!("{id}: settings can be changed"), change).await;
    // No lease is left: a compaction works, and so does an append, which no turn keeps out.
    let compact = || Ask::post("compact", session.path("/compact"), "{}", COMPACTION_CODES);
    insist(world, &format!("{id}: a compaction works"), compact).await;
    let last = Draft::new(
        format!(
            r#"{{"role":"user","content":"{CONTENT_MARK}{}.last"}}"#,
            session.title
        ),
        Some("the-last"),
    );
    let body = format!(r#"{{"messages":[{}]}}"#, last.sent);
    let append = || {
        Ask::post(
            "append",
            session.path("/messages"),
            body.clone(),
            &["TURN_IN_PROGRESS"],
        )
    };
    let answer = insist(world, &format!("{id}: an append works"), append).await;
    let last_seq = answer
        .get("lastSeq")
        .and_then(Value::as_i64)
        .unwrap_or_default();
    session.ledger().certain.push(last.stored);

    let messages: Vec<Listed> = read_all(world, &session.path("/messages")).await;
    check_messages(world, session, &messages);
    let now = insist(world, &format!("{id}: it can be read"), || {
        Ask::get("session", path.clone())
    })
    .await;
    check_counters(world, session, &now, &messages);
    check_context(world, session, &now, &messages).await;
    chain::check(world, session, &now, &messages, last_seq).await;
    let forks = session.ledger().forks.clone();
    for (fork, at) in forks {
        check_fork(world, &fork, at, &messages).await;
    }
}

/// No message lost, doubled or moved; none that was refused; each byte as it was sent.
fn check_messages(world: &World, session: &Session, messages: &[Listed]) {
    let findings = &world.findings;
    let id = &session.id;
    findings.add("messages checked", messages.len());
    let gap = messages
        .iter()
        .zip(1..)
        .find(|(listed, expected)| listed.seq != *expected);
    if let Some((listed, expected)) = gap {
        findings.violation(format!("{id}: seq {} where {expected} belongs", listed.seq));
    }
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, listed) in messages.iter().enumerate() {
        places.entry(listed.message.get()).or_default().push(index);
    }
    for (text, at) in &places {
        findings.check(at.len() == 1, || {
            format!("{id}: a message is there {} times: {text}", at.len())
        });
    }
    let ledger = session.ledger();
    check_acknowledged(world, id, &ledger, messages);
    for text in &ledger.certain {
        let times = places.get(text.as_str()).map_or(0, Vec::len);
        findings.check(times == 1, || {
            format!("{id}: {times} times there, certainly stored once: {text}")
        });
    }
    for text in &ledger.never {
        findings.check(!places.contains_key(text.as_str()), || {
            format!("{id}: refused, and there: {text}")
        });
    }
    for group in &ledger.maybe {
        check_group(world, id, group, &places);
    }
    findings.add("appends of unknown outcome", ledger.maybe.len());
    check_known(world, id, &ledger, messages);
}

fn check_acknowledged(world: &World, id: &str, ledger: &Ledger, messages: &[Listed]) {
    let findings = &world.findings;
    let by_seq: HashMap<i64, &Listed> =
        messages.iter().map(|listed| (listed.seq, listed)).collect();
    let mut newest: HashMap<usize, i64> = HashMap::new();
    for told in &ledger.acknowledged {
        let there = by_seq.get(&told.seq);
        let same =
            there.is_some_and(|listed| listed.id == told.id && listed.message.get() == told.stored);
        findings.check(same, || {
            let found = there.map(|listed| listed.message.get());
            format!(
                "{id}: seq {} was acknowledged as {}, and is {found:?}",
                told.seq, told.stored
            )
        });
        // What a writer sent later stands later. What it was told twice counts once.
        if told.stored.contains(CONTENT_MARK) {
            let before = newest.entry(told.writer).or_default();
            let moved = told.seq < *before
                && !ledger
                    .acknowledged
                    .iter()
                    .any(|other| other.seq == told.seq && !std::ptr::eq(other, told));
            findings.check(!moved, || {
                format!(
                    "{id}: seq {} of writer {} was sent after {before}",
                    told.seq, told.writer
                )
            });
            *before = told.seq.max(*before);
        }
    }
}

/// An append of which nobody knows is there as a whole, in one piece, or not at all.
fn check_group(world: &World, id: &str, group: &[String], places: &HashMap<&str, Vec<usize>>) {
    let at: Vec<Option<usize>> = group
        .iter()
        .map(|text| places.get(text.as_str())?.first().copied())
        .collect();
    let first = at.first().copied().flatten();
    let whole = first.is_some_and(|first| {
        at.iter()
            .enumerate()
            .all(|(index, at)| *at == Some(first + index))
    });
    let absent = at.iter().all(Option::is_none);
    world.findings.check(whole || absent, || {
        format!("{id}: an append is there in part: {at:?} of {group:?}")
    });
    if whole {
        world
            .findings
            .count("appends of unknown outcome that are there");
    }
}

/// Every message there is was sent by somebody, or is what the model answered.
fn check_known(world: &World, id: &str, ledger: &Ledger, messages: &[Listed]) {
    let mut known: HashSet<&str> = ledger.certain.iter().map(String::as_str).collect();
    known.extend(ledger.acknowledged.iter().map(|told| told.stored.as_str()));
    known.extend(ledger.maybe.iter().flatten().map(String::as_str));
    for listed in messages {
        let text = listed.message.get();
        let is_answer = text.contains(MODEL_MARK);
        if is_answer {
            check_answer(world, id, listed);
        }
        let is_ours = known.contains(text) || text.contains("instructions of the run");
        world
            .findings
            .check(is_ours || is_answer || listed.incomplete, || {
                format!("{id}: seq {} was sent by nobody: {text}", listed.seq)
            });
        let state = listed.state.as_str();
        let good = matches!(state, "verbatim" | "summarised" | "elided");
        world
            .findings
            .check(good, || format!("{id}: seq {} is {state}", listed.seq));
    }
}

/// A stored answer is what the model sent; one that was cut off is marked.
fn check_answer(world: &World, id: &str, listed: &Listed) {
    let text = listed.message.get();
    let stored: Value = serde_json::from_str(text).unwrap_or_default();
    let content = stored
        .get("content")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let Some(sent) = world.model.sent(text) else {
        // Broken off before its number was over.
        world.findings.check(listed.incomplete, || {
            format!(
                "{id}: seq {} is an answer that nobody gave: {text}",
                listed.seq
            )
        });
        return;
    };
    let as_sent = if sent.streamed {
        content == sent.text
    } else {
        text == sent.message
    };
    let cut = listed.incomplete && sent.text.starts_with(content);
    world.findings.check(as_sent || cut, || {
        format!(
            "{id}: seq {} is {text}, the model sent {}",
            listed.seq, sent.message
        )
    });
}

fn check_counters(world: &World, session: &Session, now: &Value, messages: &[Listed]) {
    let count = i64::try_from(messages.len()).unwrap_or_default();
    let placed: Vec<i64> = messages
        .iter()
        .filter_map(|listed| listed.position)
        .collect();
    let history: i64 = messages
        .iter()
        .filter(|listed| listed.position.is_some())
        .map(|listed| listed.length)
        .sum();
    let is_dense = placed
        .iter()
        .zip(0..)
        .all(|(place, expected)| *place == expected);
    world
        .findings
        .check(is_dense, || format!("{}: positions have gaps", session.id));
    for (name, expected) in [
        ("messageCount", count),
        ("lastSeq", count),
        ("historyLength", history),
    ] {
        let told = now.get(name).and_then(Value::as_i64);
        world.findings.check(told == Some(expected), || {
            format!(
                "{}: {name} is {told:?}, the messages make {expected}",
                session.id
            )
        });
    }
}

/// The context is sound, and behind the summary it shows what is stored, byte for byte.
async fn check_context(world: &World, session: &Session, now: &Value, messages: &[Listed]) {
    let mut random = Random::new(world.seed);
    let ask = Ask::get("context", session.path("/context"));
    let Reply::Done(body) = world.web.ask(&mut random, ask).await else {
        world
            .findings
            .violation(format!("{}: no context at the end", session.id));
        return;
    };
    context::check(&world.findings, &session.id, &body);
    if session.prunes {
        return;
    }
    let size = now
        .get("compactSize")
        .and_then(Value::as_i64)
        .unwrap_or_default();
    let tail = messages
        .iter()
        .filter(|listed| listed.position.is_some_and(|position| position >= size));
    let tail: Vec<&str> = tail.map(|listed| listed.message.get()).collect();
    let shown = texts(&body);
    let shown: Vec<&str> = shown
        .iter()
        .map(String::as_str)
        .filter(|text| !text.contains(NO_RESULT))
        .collect();
    let end = shown.len().saturating_sub(tail.len());
    let same = shown.get(end..) == Some(tail.as_slice());
    world.findings.check(same, || {
        format!(
            "{}: the context does not end with the {} messages behind the summary",
            session.id,
            tail.len()
        )
    });
}

/// A fork has what its session had, up to where it was made.
async fn check_fork(world: &World, fork: &str, at: i64, messages: &[Listed]) {
    let copied: Vec<Listed> = read_all(world, &format!("/sessions/{fork}/messages")).await;
    let expected = usize::try_from(at).unwrap_or_default();
    let same = copied.len() == expected
        && copied.iter().zip(messages).all(|(copy, original)| {
            copy.seq == original.seq
                && copy.id == original.id
                && copy.message.get() == original.message.get()
        });
    world.findings.check(same, || {
        format!(
            "fork {fork} at {at} has {} messages, or others",
            copied.len()
        )
    });
    world.findings.count("forks checked");
}

/// Every session there is was made by somebody, and none is missing.
async fn check_list(world: &World, sessions: &[Arc<Session>]) {
    let listed: Vec<Value> = read_all(world, "/sessions").await;
    let text = |value: &Value, name: &str| {
        value
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let ids: HashSet<String> = listed.iter().map(|session| text(session, "id")).collect();
    world.findings.check(ids.len() == listed.len(), || {
        "a session is listed twice".to_owned()
    });
    for session in sessions {
        world.findings.check(ids.contains(&session.id), || {
            format!("{} is not listed", session.id)
        });
    }
    // Forks and new sessions whose answer was lost are whole.
    for session in &listed {
        let (id, title) = (text(session, "id"), text(session, "title"));
        let words: Vec<&str> = title.split(' ').collect();
        match words.as_slice() {
            ["main", ..] => {}
            ["fork", of, at] => {
                let messages: Vec<Listed> =
                    read_all(world, &format!("/sessions/{of}/messages")).await;
                check_fork(world, &id, at.parse().unwrap_or(-1), &messages).await;
            }
            ["new", count] => {
                let told = session.get("messageCount").and_then(Value::as_i64);
                let expected = count.parse().ok();
                world.findings.check(told == expected, || {
                    format!("{id}: {told:?} messages of {count}")
                });
            }
            _ => world
                .findings
                .violation(format!("{id} ({title}) was made by nobody")),
        }
    }
    world.findings.add("sessions checked", listed.len());
}

/// No log tells of a panic, and none holds content.
fn check_logs(world: &World) {
    for replica in &world.replicas {
        let log = std::fs::read_to_string(&replica.log).unwrap_or_default();
        for line in log.lines() {
            let bad = [CONTENT_MARK, MODEL_MARK, "panicked", "key-of-the-model"];
            if let Some(what) = bad.iter().find(|what| line.contains(**what)) {
                let start: String = line.chars().take(400).collect();
                world
                    .findings
                    .violation(format!("a log line has {what}: {start}"));
            }
            if line.contains("ERROR") {
                world.findings.count("log lines: error");
                let start: String = line.chars().take(300).collect();
                if world.findings.counted("log lines: error") < 6 {
                    eprintln!("log: {start}");
                }
            } else if line.contains("WARN") {
                world.findings.count("log lines: warning");
            }
        }
    }
}

/// Makes sessions of their own, whose answers may be lost.
pub async fn make_sessions(world: Arc<World>) {
    let mut random = Random::of(world.seed, "new sessions");
    while !world.is_over() {
        let count = 1 + random.below(5);
        let messages: Vec<String> = (0..count)
            .map(|n| format!(r#"{{"role":"user","content":"{CONTENT_MARK}new {n}"}}"#))
            .collect();
        let body = format!(
            r#"{{"title":"new {count}","messages":[{}]}}"#,
            messages.join(",")
        );
        let ask = Ask::post("create", "/sessions", body, &[]);
        world.web.ask(&mut random, ask).await;
        sleep(random.millis(300, 1_500)).await;
    }
}
