//! Plan, rendering and redaction on texts of growing length: what of a request is ours, without database and network.
//!
//! `cargo bench --bench plan_and_render`

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use precis::domain::context::{Opening, TailMessage, join_tail};
use precis::domain::message::{Message, Role};
use precis::domain::pairing::{Counters, Placement, Tail, place};
use precis::domain::plan::{Boundary, Landmarks, Mark, PlanRequest, plan_cut};

/// Turns of a question, two calls with their results, and an answer; some 500 bytes a message.
fn messages(count: usize) -> Vec<String> {
    let filler = "lorem ipsum dolor sit amet ".repeat(17);
    (0..count)
        .map(|number| match number % 5 {
            0 => format!(r#"{{"role":"user","content":"{number} {filler}"}}"#),
            1 => format!(
                r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"a","type":"function","function":{{"name":"f","arguments":"{filler}"}}}},{{"id":"b","type":"function","function":{{"name":"g","arguments":"{{}}"}}}}]}}"#
            ),
            2 => format!(r#"{{"role":"tool","tool_call_id":"b","content":"{number} {filler}"}}"#),
            3 => format!(r#"{{"role":"tool","tool_call_id":"a","content":"{number} {filler}"}}"#),
            _ => format!(r#"{{"role":"assistant","content":"{number} {filler}"}}"#),
        })
        .collect()
}

fn read(texts: &[String]) -> Vec<(String, Message)> {
    let one = |(index, text): (usize, &String)| {
        let message = Message::read(text).unwrap_or_else(|fault| unreachable!("{fault}"));
        (index.to_string(), message)
    };
    texts.iter().enumerate().map(one).collect()
}

fn placed(messages: Vec<(String, Message)>) -> Placement {
    place(Counters::default(), Tail::default(), messages)
        .unwrap_or_else(|(at, fault)| unreachable!("{at}: {fault}"))
}

fn marks(placement: &Placement) -> Vec<Mark> {
    let mark = |row: &precis::domain::pairing::Placed| Mark {
        seq: row.seq,
        length: row.message.size.units.try_into().unwrap_or(i64::MAX),
        starts_turn: row.starts_turn,
        starts_group: row.starts_group,
        is_assistant: row.message.role == Role::Assistant,
    };
    placement.rows.iter().map(mark).collect()
}

fn benchmarks(criterion: &mut Criterion) {
    for count in [100, 1_000, 10_000] {
        let texts = messages(count);
        let placement = placed(read(&texts));
        let marks = marks(&placement);
        let bytes = texts.iter().map(String::len).sum::<usize>() as u64;

        let mut group = criterion.benchmark_group("read_and_place");
        group.throughput(Throughput::Bytes(bytes));
        group.bench_with_input(BenchmarkId::from_parameter(count), &texts, |b, texts| {
            b.iter(|| placed(read(black_box(texts))));
        });
        group.finish();

        let mut group = criterion.benchmark_group("plan");
        let request = PlanRequest {
            compact_count: 50,
            keep_recent_turns: 1,
            boundary: Boundary::Turn,
        };
        let landmarks = Landmarks::of(&marks, 0, 0, &request, false, true);
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter(|| plan_cut(black_box(&landmarks), 1, 0));
        });
        group.finish();

        let mut group = criterion.benchmark_group("render");
        group.throughput(Throughput::Bytes(bytes));
        let tail: Vec<_> = placement
            .rows
            .iter()
            .map(|row| TailMessage {
                body: &row.message.body,
                fill: row.fill.as_deref(),
            })
            .collect();
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter(|| {
                let opening = Opening {
                    summary: Some("what was said before"),
                    ..Opening::default()
                };
                (opening.render(), join_tail(black_box(&tail)))
            });
        });
        group.finish();
    }
}

/// Redaction must stay linear, whatever a text holds: the time of twice the text is twice the time.
fn redaction(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("redact");
    group.sample_size(10);
    for (name, piece) in [
        ("prose", "The keeper of the keys wrote it down twice. "),
        (
            "arguments",
            r#"{\"path\": \"src/main.rs\", \"limit\": 100}, "#,
        ),
        ("trap", "token="),
    ] {
        for size in [1 << 18, 1 << 19] {
            let text = piece.repeat(size / piece.len());
            group.throughput(Throughput::Bytes(text.len() as u64));
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter(|| precis::domain::redact::redact(black_box(&text)).len());
            });
        }
    }
    group.finish();
}

criterion_group!(all, benchmarks, redaction);
criterion_main!(all);
