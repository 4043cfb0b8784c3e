//! Clients that read, compact and fork, and those that follow events across whatever breaks their line.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::context::{self, digest};
use crate::ledger::{Session, World};
use crate::random::Random;
use crate::sse::Frames;
use crate::web::{Ask, Reply};

/// How long a line of events may be silent; comments come every two seconds, a paused process takes some more.
const SILENCE: Duration = Duration::from_secs(40);
/// Forks of one session.
const FORKS: usize = 4;

/// What a compaction may be refused with.
pub const COMPACTION_CODES: &[&str] = &[
    "COMPACTION_IN_PROGRESS",
    "COMPACTION_CONFLICT",
    "SUMMARIZER_FAILED",
    "SUMMARY_NOT_SMALLER",
];

/// Reads contexts and has them dispatched until the load is over.
pub async fn read_contexts(world: Arc<World>, session: Arc<Session>) {
    let mut random = Random::of(world.seed, &format!("{} contexts", session.title));
    while !world.is_over() {
        let path = session.path("/context");
        let ask = if random.chance(50) {
            Ask::get("context", path)
        } else {
            Ask::post("dispatch", path, "{}", &[])
        };
        let dispatches = ask.name == "dispatch";
        if let Reply::Done(body) = world.web.ask(&mut random, ask).await {
            let about = format!(
                "{} {}",
                session.id,
                if dispatches { "dispatch" } else { "context" }
            );
            context::check(&world.findings, &about, &body);
            let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
            let n = answer.get("dispatch").and_then(Value::as_i64);
            if let Some(n) = n.filter(|_| dispatches) {
                session.ledger().dispatches.push((n, digest(&body)));
            }
        }
        sleep(random.millis(100, 900)).await;
    }
}

/// Compacts until the load is over.
pub async fn compact(world: Arc<World>, session: Arc<Session>) {
    let mut random = Random::of(world.seed, &format!("{} compactions", session.title));
    while !world.is_over() {
        let body = match random.below(5) {
            0 => json!({"compactCount": 30}),
            1 => json!({"keepTokens": 400}),
            2 => json!({"boundary": "step", "keepRecentTurns": 0}),
            3 => json!({"dryRun": true}),
            _ => json!({}),
        };
        let path = session.path("/compact");
        let ask = Ask::post("compact", path, body.to_string(), COMPACTION_CODES);
        let reply = world.web.ask(&mut random, ask).await;
        let answer = reply.json().unwrap_or_default();
        let made = answer.get("compaction").cloned().unwrap_or_default();
        let version = made.get("version").and_then(Value::as_i64);
        let digest = made.get("digest").and_then(Value::as_str);
        if let (Some(version), Some(digest)) = (version, digest) {
            let made = (version, digest.to_owned());
            session.ledger().compactions.push(made);
            world.findings.count("compactions acknowledged");
        }
        sleep(random.millis(300, 1_800)).await;
    }
}

/// Forks a session a few times.
pub async fn fork(world: Arc<World>, session: Arc<Session>) {
    let mut random = Random::of(world.seed, &format!("{} forks", session.title));
    let mut made = 0;
    while !world.is_over() && made < FORKS {
        sleep(random.millis(1_000, 6_000)).await;
        let ask = Ask::get("session", session.path(""));
        let reply = world.web.ask(&mut random, ask).await;
        let now = reply.json().unwrap_or_default();
        let Some(last) = now.get("lastSeq").and_then(Value::as_i64) else {
            continue;
        };
        let below = usize::try_from(last).unwrap_or_default() + 1;
        let at = i64::try_from(random.below(below)).unwrap_or_default();
        made += 1;
        let body = json!({"atSeq": at, "title": format!("fork {} {at}", session.id)});
        let ask = Ask::post("fork", session.path("/fork"), body.to_string(), &[]);
        let reply = world.web.ask(&mut random, ask).await;
        let fork = reply.json().unwrap_or_default();
        if let Some(id) = fork.get("id").and_then(Value::as_str) {
            session.ledger().forks.push((id.to_owned(), at));
        }
    }
}

/// Follows a session's events, going on behind the last one after each break.
pub async fn follow(world: Arc<World>, session: Arc<Session>) {
    let mut random = Random::of(world.seed, &format!("{} events", session.title));
    let mut last: Option<String> = None;
    while !world.is_over() {
        let Some(address) = world.web.address(&mut random) else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let mut ask = Ask::get("events", session.path("/events?after=0"));
        if let Some(last) = &last {
            ask = ask.with("last-event-id", last.clone());
        }
        let Ok(Ok(response)) = timeout(SILENCE, world.web.open(&address, &ask)).await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        if !response.status().is_success() {
            world.web.read(&ask, response).await;
            sleep(Duration::from_millis(100)).await;
            continue;
        }
        world.findings.count("event streams opened");
        let mut frames = Frames::new(response);
        let mut heard = Instant::now();
        while !world.is_over() {
            match timeout(Duration::from_millis(250), frames.next()).await {
                Ok(Some(frame)) => {
                    heard = Instant::now();
                    world.findings.check(frame.event != "resync", || {
                        format!("{}: an unasked resync: {}", session.id, frame.data)
                    });
                    if let Some(id) = frame.id {
                        let number = id.rsplit('_').next().and_then(|n| n.parse().ok());
                        session
                            .ledger()
                            .events
                            .push((number.unwrap_or(-1), frame.data));
                        last = Some(id);
                        world.findings.count("events followed");
                    }
                }
                Ok(None) => break,
                Err(_) if heard.elapsed() > SILENCE => {
                    let text = format!("{}: a line of events is silent", session.id);
                    world.findings.violation(text);
                    break;
                }
                Err(_) => {}
            }
        }
        sleep(random.millis(10, 300)).await;
    }
}
