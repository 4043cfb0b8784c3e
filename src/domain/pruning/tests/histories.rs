//! Random histories of agents: parallel calls, ids used again, every kind of content and of reasoning.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::PruningPolicy;

/// Texts of results: few, so that they repeat.
fn text() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("let total = 7;\n".to_owned()),
        Just("漢字とかな 👩‍👩‍👧\n".to_owned()),
        Just("tab\t\"quote\" \\ \u{1}\n".to_owned()),
        Just("one endless line without an end ".to_owned()),
    ];
    let long = (line, 5..60_usize).prop_map(|(line, count)| line.repeat(count));
    prop_oneof![
        4 => long,
        1 => Just("Error: no such file".to_owned()),
        1 => Just(String::new()),
        1 => Just("ok".to_owned()),
        1 => Just("[precis: all of it left out]\nand more text, and more text".repeat(4)),
        1 => Just("fn main() {}\n".repeat(30) + "exit code 1"),
    ]
}

fn content() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => text().prop_map(Value::String),
        2 => prop::collection::vec(text(), 0..3).prop_map(|texts| {
            texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect()
        }),
        1 => text().prop_map(|text| json!([
            {"type": "text", "text": text},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ])),
        1 => Just(Value::Null),
    ]
}

/// Tool and arguments.
fn call() -> impl Strategy<Value = (String, String)> {
    let tool = prop_oneof![Just("read"), Just("read"), Just("grep")];
    let arguments = prop_oneof![
        6 => ("[ab]", prop::option::of(0..2_i32), prop::option::of(0..2_i32)).prop_map(
            |(path, offset, limit)| {
                let mut arguments = json!({ "file_path": path });
                if let Some(offset) = offset {
                    arguments["offset"] = offset.into();
                }
                if let Some(limit) = limit {
                    arguments["limit"] = limit.into();
                }
                arguments.to_string()
            }
        ),
        1 => Just(r#"{ "limit" : 0, "file_path": "\u0061" }"#.to_owned()),
        1 => Just(r#"{"limit":0}"#.to_owned()),
        1 => Just(r#"{"file_path":"src/ma"#.to_owned()),
        1 => Just("null".to_owned()),
    ];
    (tool.prop_map(str::to_owned), arguments)
}

fn with_reasoning(shape: usize, mut message: Value) -> String {
    let thought = "I should look at this again. ".repeat(4);
    let block = json!({"type": "thinking", "thinking": thought, "signature": "c2ln"});
    let hidden = json!({"type": "redacted_thinking", "data": "AAAA"});
    match shape {
        0 => message["reasoning_content"] = thought.into(),
        1 => message["reasoning"] = thought.into(),
        2 => message["reasoning_details"] = json!([{"type": "reasoning.text", "text": thought}]),
        3 => message["thinking_blocks"] = json!([block, hidden]),
        4 => {
            let said = message["content"].as_str().map(str::to_owned);
            let said = said.map(|said| json!({"type": "text", "text": said}));
            message["content"] = [block, hidden].into_iter().chain(said).collect();
        }
        _ => {}
    }
    message.to_string()
}

#[derive(Debug, Clone)]
enum Event {
    User(String),
    Says(usize, String),
    /// Calls with their results; the results in reverse if told so; some are missing.
    Step(usize, Vec<((String, String), Value)>, bool, bool),
    Instructions,
}

fn event() -> impl Strategy<Value = Event> {
    let steps = prop::collection::vec((call(), content()), 1..4);
    prop_oneof![
        2 => text().prop_map(Event::User),
        2 => (0..8_usize, text()).prop_map(|(shape, text)| Event::Says(shape, text)),
        8 => (0..9_usize, steps, any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(shape, steps, reversed, cut)| Event::Step(shape, steps, reversed, cut)),
        1 => Just(Event::Instructions),
    ]
}

fn write(event: Event, to: &mut Vec<String>) {
    match event {
        Event::User(text) => to.push(json!({"role": "user", "content": text}).to_string()),
        Event::Instructions => {
            to.push(r#"{"role":"system","content":"Mind the gap."}"#.to_owned());
        }
        Event::Says(shape, text) => {
            let message = json!({"role": "assistant", "content": text});
            to.push(with_reasoning(shape, message));
        }
        Event::Step(shape, steps, reversed, cut) => {
            let call = |(index, ((tool, arguments), _)): (usize, &((String, String), Value))| {
                json!({"id": format!("call_{index}"), "type": "function",
                       "function": {"name": tool, "arguments": arguments}})
            };
            let calls: Vec<_> = steps.iter().enumerate().map(call).collect();
            let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
            to.push(with_reasoning(shape, message));
            let mut results: Vec<_> = steps.into_iter().enumerate().collect();
            if reversed {
                results.reverse();
            }
            let kept = results.len() - usize::from(cut);
            to.extend(results.into_iter().take(kept).map(|(index, (_, content))| {
                json!({"vendor": 1.0, "role": "tool", "tool_call_id": format!("call_{index}"),
                       "content": content, "z": [1, 2]})
                .to_string()
            }));
        }
    }
}

pub fn history() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(event(), 1..24).prop_map(|events| {
        let mut bodies = Vec::new();
        for event in events {
            write(event, &mut bodies);
        }
        bodies
    })
}

pub fn policy() -> impl Strategy<Value = PruningPolicy> {
    let rules = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (0..6_i64, 0..500_i64, 0..200_i64, 0..200_i64, rules).prop_map(
        |(protect, large, head, tail, (all, duplicates, reads, reasoning))| PruningPolicy {
            enabled: true,
            protect_recent_turns: protect,
            max_tool_result_bytes: large,
            keep_head_bytes: head,
            keep_tail_bytes: tail,
            collapse_duplicate_results: all || duplicates,
            elide_superseded_reads: all || reads,
            drop_stale_reasoning: all || reasoning,
            ..PruningPolicy::default()
        },
    )
}
