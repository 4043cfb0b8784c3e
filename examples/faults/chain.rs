//! The checks of what follows from the messages: compactions, turns, dispatches, events.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};

use crate::check::{insist, read_all};
use crate::context::{digest, hex};
use crate::ledger::{Listed, Session, World};
use crate::random::Random;
use crate::sse::Frames;
use crate::web::{Ask, Reply};

/// How long the events of a session may take to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// An event as it is stored.
struct Event {
    number: i64,
    kind: String,
    data: String,
    body: Value,
}

impl Event {
    fn text(&self, name: &str) -> &str {
        text(&self.body, name)
    }

    fn number(&self, name: &str) -> i64 {
        number(&self.body, name)
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, name: &str) -> i64 {
    value.get(name).and_then(Value::as_i64).unwrap_or(-1)
}

/// Checks the records of a session, and the events that tell of them.
pub async fn check(
    world: &World,
    session: &Session,
    now: &Value,
    messages: &[Listed],
    last_seq: i64,
) {
    let records: Vec<Value> = read_all(world, &session.path("/compactions")).await;
    check_records(world, session, now, messages, &records);
    let turns: Vec<Value> = read_all(world, &session.path("/turns")).await;
    check_turns(world, session, &turns);
    let dispatches: Vec<Value> = read_all(world, &session.path("/dispatches")).await;
    check_dispatches(world, session, &dispatches).await;
    let path = session.path("/stats");
    let stats = insist(world, &path, || Ask::get("stats", path.clone())).await;
    let count = |len: usize| i64::try_from(len).unwrap_or_default();
    for (name, expected) in [
        ("messages", count(messages.len())),
        ("compactions", count(records.len())),
        ("dispatches", count(dispatches.len())),
        ("summarisedMessages", number(now, "compactSize")),
        ("compactionVersion", number(now, "compactionVersion")),
    ] {
        let told = number(&stats, name);
        world.findings.check(told == expected, || {
            format!(
                "{}: stats say {name} {told}, there are {expected}",
                session.id
            )
        });
    }
    let events = read_events(world, session, last_seq).await;
    check_order(world, session, &events);
    check_appends(world, session, &events, messages);
    check_compactions(world, session, &events, &records);
    check_turn_events(world, session, &events, &turns);
    let told = events
        .iter()
        .filter(|event| event.kind == "context.dispatched");
    let told: Vec<i64> = told.map(|event| event.number("n")).collect();
    let expected: Vec<i64> = (1..=count(dispatches.len())).collect();
    world.findings.check(told == expected, || {
        format!(
            "{}: events tell of dispatches {told:?}, there are {}",
            session.id,
            expected.len()
        )
    });
}

/// Versions without a gap, which cover each message once up to where the session says.
fn check_records(
    world: &World,
    session: &Session,
    now: &Value,
    messages: &[Listed],
    records: &[Value],
) {
    let fail = |text: String| world.findings.violation(format!("{}: {text}", session.id));
    let placed: Vec<&Listed> = messages
        .iter()
        .filter(|listed| listed.position.is_some())
        .collect();
    let mut reached = 0;
    let mut before: Vec<u8> = Vec::new();
    for (record, version) in records.iter().zip(1..) {
        let (from, to) = (number(record, "from"), number(record, "to"));
        if number(record, "version") != version || number(record, "basedOn") != version - 1 {
            fail(format!("version {version} is {record}"));
        }
        if from != reached || to <= from {
            fail(format!(
                "version {version} covers {from} to {to}, the one before reached {reached}"
            ));
        }
        reached = to;
        let range =
            usize::try_from(from).unwrap_or_default()..usize::try_from(to).unwrap_or_default();
        let batch = placed.get(range).unwrap_or_default();
        let length: i64 = batch.iter().map(|listed| listed.length).sum();
        let summary = text(record, "summary");
        let units = i64::try_from(summary.encode_utf16().count()).unwrap_or_default();
        if length != number(record, "batchLength") || units != number(record, "summaryLength") {
            fail(format!(
                "version {version}: lengths {length} and {units}, not those of {record}"
            ));
        }
        if summary.is_empty() || summary.trim() != summary {
            fail(format!("version {version}: its summary is {summary:?}"));
        }
        let mut sum = Sha256::new().chain_update(&before);
        for listed in batch {
            sum.update(Sha256::digest(listed.message.get().as_bytes()));
        }
        before = sum.finalize().to_vec();
        if hex(&before) != text(record, "digest") {
            fail(format!(
                "version {version}: its digest is not that of what it covers"
            ));
        }
        world.findings.count("compactions checked");
    }
    let last = records.last();
    let summary = last.map_or("", |last| text(last, "summary"));
    let count = i64::try_from(records.len()).unwrap_or_default();
    if number(now, "compactSize") != reached
        || number(now, "compactionVersion") != count
        || text(now, "compactSummary") != summary
    {
        fail(format!(
            "the session does not stand where version {count} left it"
        ));
    }
    for (version, digest) in &session.ledger().compactions {
        let index = usize::try_from(version - 1).unwrap_or(usize::MAX);
        let there = records.get(index).map(|record| text(record, "digest"));
        if there != Some(digest) {
            fail(format!(
                "version {version} was acknowledged, and is not there"
            ));
        }
    }
}

/// Every turn has ended, as its client was told.
fn check_turns(world: &World, session: &Session, turns: &[Value]) {
    let mut statuses: HashMap<&str, &str> = HashMap::new();
    for turn in turns {
        let (id, status) = (text(turn, "id"), text(turn, "status"));
        let known = matches!(status, "completed" | "requires_tool_results" | "failed");
        world
            .findings
            .check(known, || format!("{}: {id} is {status}", session.id));
        let again = statuses.insert(id, status);
        world
            .findings
            .check(again.is_none(), || format!("{id} is listed twice"));
        world.findings.count(format!("turns checked: {status}"));
    }
    for (id, status) in &session.ledger().turns {
        let there = statuses.get(id.as_str()).copied();
        world.findings.check(there == Some(status), || {
            format!(
                "{}: {id} was told to be {status}, and is {there:?}",
                session.id
            )
        });
    }
}

/// Numbers without a gap; what was handed out is given again, byte for byte.
async fn check_dispatches(world: &World, session: &Session, dispatches: &[Value]) {
    let mut numbers: Vec<i64> = dispatches.iter().map(|one| number(one, "n")).collect();
    numbers.sort_unstable();
    let dense = numbers.iter().zip(1..).all(|(n, expected)| *n == expected);
    world
        .findings
        .check(dense, || format!("{}: dispatches {numbers:?}", session.id));
    let known = session.ledger().dispatches.clone();
    let mut random = Random::new(world.seed);
    // Not each: they are read whole.
    for (n, expected) in known.iter().rev().step_by(5) {
        let ask = Ask::get("replay", session.path(&format!("/dispatches/{n}")));
        let Reply::Done(body) = world.web.ask(&mut random, ask).await else {
            world
                .findings
                .violation(format!("{}: dispatch {n} cannot be read", session.id));
            continue;
        };
        world.findings.check(digest(&body) == *expected, || {
            format!("{}: dispatch {n} is replayed with other bytes", session.id)
        });
        world.findings.count("dispatches replayed");
    }
}

/// All events from the first, up to that of the last append.
async fn read_events(world: &World, session: &Session, last_seq: i64) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    let began = Instant::now();
    let mut random = Random::new(world.seed);
    let ask = Ask::get("events", session.path("/events?after=0"));
    let Some(address) = world.web.address(&mut random) else {
        return events;
    };
    let Ok(response) = world.web.open(&address, &ask).await else {
        world
            .findings
            .violation(format!("{}: no events at the end", session.id));
        return events;
    };
    let mut frames = Frames::new(response);
    while began.elapsed() < PATIENCE {
        let Ok(Some(frame)) = timeout(PATIENCE, frames.next()).await else {
            break;
        };
        let Some(id) = frame.id else { continue };
        let body: Value = serde_json::from_str(&frame.data).unwrap_or_default();
        let is_last = frame.event == "message.appended" && number(&body, "lastSeq") == last_seq;
        events.push(Event {
            number: id
                .rsplit('_')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(-1),
            kind: frame.event,
            data: frame.data,
            body,
        });
        if is_last {
            return events;
        }
    }
    world.findings.violation(format!(
        "{}: the event of the last append does not come",
        session.id
    ));
    events
}

/// Numbers rise by one from 1, and whoever followed saw the same.
fn check_order(world: &World, session: &Session, events: &[Event]) {
    world.findings.add("events checked", events.len());
    for (event, expected) in events.iter().zip(1..) {
        world.findings.check(event.number == expected, || {
            format!(
                "{}: event {} where {expected} belongs",
                session.id, event.number
            )
        });
    }
    let created = events
        .iter()
        .filter(|event| event.kind == "session.created")
        .count();
    world.findings.check(created == 1, || {
        format!("{}: made {created} times", session.id)
    });
    let ledger = session.ledger();
    for ((number, data), expected) in ledger.events.iter().zip(1..) {
        world.findings.check(*number == expected, || {
            format!(
                "{}: a follower got event {number} where {expected} belongs",
                session.id
            )
        });
        let index = usize::try_from(number - 1).unwrap_or(usize::MAX);
        // Those behind the last append are not read again.
        let same = events.get(index).is_none_or(|event| event.data == *data);
        world.findings.check(same, || {
            format!("{}: event {number} is told in two ways", session.id)
        });
    }
}

/// The events of appends cover each message once.
fn check_appends(world: &World, session: &Session, events: &[Event], messages: &[Listed]) {
    let mut next = 1;
    for event in events
        .iter()
        .filter(|event| event.kind == "message.appended")
    {
        let (first, last) = (event.number("firstSeq"), event.number("lastSeq"));
        let good = first == next && event.number("count") == last - first + 1;
        world.findings.check(good, || {
            format!("{}: {} where seq {next} belongs", session.id, event.data)
        });
        next = last + 1;
    }
    let count = i64::try_from(messages.len()).unwrap_or_default();
    world.findings.check(next == count + 1, || {
        format!(
            "{}: events tell of {} messages, there are {count}",
            session.id,
            next - 1
        )
    });
}

/// Each compaction that began ended once; each that was stored has its record.
fn check_compactions(world: &World, session: &Session, events: &[Event], records: &[Value]) {
    let mut runs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut completed: HashMap<&str, i64> = HashMap::new();
    for event in events {
        let is_one =
            event.kind.starts_with("compaction.") || event.kind == "context.defaultCompacted";
        if !is_one {
            continue;
        }
        let id = event.text("compactionId");
        runs.entry(id).or_default().push(&event.kind);
        if event.kind == "context.defaultCompacted" {
            completed.insert(id, event.number("version"));
        }
        if event.kind != "compaction.started" {
            let reason = event.text("reason");
            world
                .findings
                .count(format!("ends of compactions: {} {reason}", event.kind));
        }
    }
    for (id, kinds) in &runs {
        let good = kinds.len() == 2
            && kinds.first() == Some(&"compaction.started")
            && kinds.get(1) != Some(&"compaction.started");
        world
            .findings
            .check(good, || format!("{}: {id} went {kinds:?}", session.id));
    }
    world.findings.check(completed.len() == records.len(), || {
        format!(
            "{}: {} events of compactions, {} records",
            session.id,
            completed.len(),
            records.len()
        )
    });
    for record in records {
        let told = completed.get(text(record, "id")).copied();
        world
            .findings
            .check(told == Some(number(record, "version")), || {
                format!("{}: record {} has no event", session.id, text(record, "id"))
            });
    }
}

/// Each turn began once and ended once, as its record says.
fn check_turn_events(world: &World, session: &Session, events: &[Event], turns: &[Value]) {
    let mut runs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for event in events
        .iter()
        .filter(|event| event.kind.starts_with("turn."))
    {
        runs.entry(event.text("turnId"))
            .or_default()
            .push(&event.kind);
    }
    for turn in turns {
        let end = if text(turn, "status") == "failed" {
            "turn.failed"
        } else {
            "turn.completed"
        };
        let kinds = runs.remove(text(turn, "id")).unwrap_or_default();
        world.findings.check(kinds == ["turn.started", end], || {
            format!(
                "{}: {} went {kinds:?}, its record says {end}",
                session.id,
                text(turn, "id")
            )
        });
        let code = turn.get("error").map_or("", |error| text(error, "code"));
        if !code.is_empty() {
            world.findings.count(format!("turns failed: {code}"));
        }
    }
    world.findings.check(runs.is_empty(), || {
        format!("{}: turns without records: {runs:?}", session.id)
    });
}
