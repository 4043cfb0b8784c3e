//! How much of a long conversation survives a chain of compactions? Scores the planted statements of a fixture.
//!
//! ```text
//! cargo build --release && cargo run --release --example probes
//! PRECIS_MODEL_BASE_URL=… PRECIS_MODEL=… cargo run --release --example probes      # any configured model
//! ```
//!
//! The conversation is compacted again and again until it is up to date. A probe holds if every string it asks for is
//! in the summary or in what is still verbatim, and none of the values that were corrected later stands there as
//! current (it may stand behind "replaced"). Two baselines of the same total length are scored in the same run: the
//! newest messages, and the first sentence of each message.

#![expect(
    clippy::indexing_slicing,
    reason = "an index into JSON that is not there gives null"
)]

mod support;

use serde::Deserialize;
use serde_json::Value;

use support::{Client, Outcome, Server};

#[derive(Deserialize)]
struct Probe {
    id: String,
    kind: String,
    must_contain: Vec<String>,
    superseded: Vec<String>,
}

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/");
const NAME: &str = "05_research_200";

fn main() -> Outcome<()> {
    let conversation = std::fs::read_to_string(format!("{FIXTURES}{NAME}.json"))?;
    let probes = std::fs::read_to_string(format!("{FIXTURES}{NAME}.probes.json"))?;
    let probes: Vec<Probe> = serde_json::from_str(&probes)?;
    let texts: Vec<String> = serde_json::from_str::<Vec<Value>>(&conversation)?
        .iter()
        .filter(|message| message.get("role").is_none_or(|role| role != "system"))
        .map(text)
        .collect();
    println!(
        "{:<34} {:>6} {:>8} {:>6}  lost",
        "", "runs", "units", "held"
    );
    for percentage in [30, 75] {
        let server = Server::start(false, &[])?;
        let run = compact(&server, &conversation, percentage)?;
        let length = run.summary.chars().count() + run.tail.chars().count();
        let all = format!("{}\n{}", run.summary, run.tail);
        report(
            &format!("{} at {percentage}", run.method),
            run.count,
            &all,
            &probes,
        );
        if run.summary_tokens > run.max_summary_tokens {
            return Err(format!("a summary of {} tokens", run.summary_tokens).into());
        }
        report("  newest messages", 0, &newest(&texts, length), &probes);
        report(
            "  first sentences",
            0,
            &first_sentences(&texts, length),
            &probes,
        );
    }
    Ok(())
}

/// A chain of compactions, and what is left.
struct Run {
    method: String,
    count: usize,
    summary: String,
    tail: String,
    summary_tokens: i64,
    max_summary_tokens: i64,
}

fn compact(server: &Server, conversation: &str, percentage: u8) -> Outcome<Run> {
    let mut client = Client::new(&server.address);
    let body = format!(r#"{{"compactCount":{percentage},"messages":{conversation}}}"#);
    let mut ask = |method: &str, path: &str, body: &str| -> Outcome<Value> {
        client.call(method, path, body)?;
        Ok(serde_json::from_slice(&client.body)?)
    };
    let session = ask("POST", "/sessions", &body)?;
    let id = session["id"].as_str().ok_or("no id")?.to_owned();
    let mut run = Run {
        method: String::new(),
        count: 0,
        summary: String::new(),
        tail: String::new(),
        summary_tokens: 0,
        max_summary_tokens: session["compaction"]["maxSummaryTokens"]
            .as_i64()
            .unwrap_or(0),
    };
    loop {
        let done = ask("POST", &format!("/sessions/{id}/compact"), "")?;
        if done["alreadyUpToDate"] == true {
            break;
        }
        run.count += 1;
        let record = &done["compaction"];
        run.method = match record["model"].as_str() {
            Some(model) => model.to_owned(),
            None => record["method"].as_str().unwrap_or_default().to_owned(),
        };
        record["summary"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut run.summary);
        run.summary_tokens = record["summaryTokens"].as_i64().unwrap_or(0);
    }
    let context = ask("GET", &format!("/sessions/{id}/context"), "")?;
    let skip = context["summaryAt"].as_u64().map_or(0, |at| at + 2);
    let messages = context["messages"].as_array().into_iter().flatten();
    let tail: Vec<_> = messages.skip(usize::try_from(skip)?).map(text).collect();
    run.tail = tail.join("\n");
    Ok(run)
}

/// The text of a message: its content, and the arguments of its calls.
fn text(message: &Value) -> String {
    let content = message
        .get("content")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let calls = message
        .get("tool_calls")
        .map(Value::to_string)
        .unwrap_or_default();
    format!("{content}{calls}")
}

/// The newest messages that fit into a length.
fn newest(texts: &[String], length: usize) -> String {
    let mut left = length;
    let fits = |text: &&String| {
        let size = text.chars().count();
        let fits = size <= left;
        left = left.saturating_sub(size);
        fits
    };
    let kept: Vec<_> = texts.iter().rev().take_while(fits).cloned().collect();
    kept.join("\n")
}

/// The first sentence of each message, as far as they fit into a length.
fn first_sentences(texts: &[String], length: usize) -> String {
    let sentence = |text: &String| {
        text.split_inclusive(". ")
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let all: Vec<_> = texts.iter().map(sentence).collect();
    all.join("\n").chars().take(length).collect()
}

/// Whether a probe holds in a text.
fn holds(probe: &Probe, text: &str) -> bool {
    let stale = |value: &String| {
        text.match_indices(value.as_str()).any(|(at, _)| {
            let before: Vec<char> = text
                .get(..at)
                .unwrap_or_default()
                .chars()
                .rev()
                .take(40)
                .collect();
            let before: String = before.into_iter().rev().collect();
            !before.to_lowercase().contains("replaced")
        })
    };
    probe.must_contain.iter().all(|value| text.contains(value))
        && !probe.superseded.iter().any(stale)
}

fn report(name: &str, runs: usize, text: &str, probes: &[Probe]) {
    let lost: Vec<_> = probes
        .iter()
        .filter(|probe| !holds(probe, text))
        .map(|probe| format!("{} ({})", probe.id, probe.kind))
        .collect();
    let held = probes.len() - lost.len();
    let runs = if runs == 0 {
        String::new()
    } else {
        runs.to_string()
    };
    println!(
        "{name:<34} {runs:>6} {:>8} {held:>3}/{}  {}",
        text.encode_utf16().count(),
        probes.len(),
        lost.join(", ")
    );
}
