//! What an agent's session says: calls with names and arguments, results in bulk, reasoning.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::support::messages::{result, user};

/// An assistant message that calls tools: id, name, arguments.
pub fn calling(calls: &[(&str, &str, &str)]) -> String {
    json!({"role": "assistant", "content": null, "tool_calls": self::calls(calls)}).to_string()
}

pub fn calls(calls: &[(&str, &str, &str)]) -> Value {
    let call = |(id, name, arguments): &(&str, &str, &str)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    Value::Array(calls.iter().map(call).collect())
}

/// A call of `read` for a path, and its result.
pub fn read(id: &str, path: &str, text: &str) -> [String; 2] {
    let arguments = json!({"path": path}).to_string();
    [calling(&[(id, "read", &arguments)]), result(id, text)]
}

/// Lines of a text that is the same for the same tag, about `bytes` long.
pub fn lines(tag: &str, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 64);
    let mut number = 0;
    while text.len() < bytes {
        number += 1;
        writeln!(text, "{tag} {number:05}: the quick brown fox is {number}")
            .expect("a string takes all");
    }
    text
}

/// Steps of a loop: an agent reads a new file each time and gets `bytes` of it.
pub fn steps(from: usize, to: usize, bytes: usize) -> Vec<String> {
    let step = |number: usize| {
        let path = format!("src/file_{number}.rs");
        read(&format!("call_{number}"), &path, &lines(&path, bytes))
    };
    (from..to).flat_map(step).collect()
}

/// A task, and a loop of `count` steps.
pub fn agent_loop(count: usize, bytes: usize) -> Vec<String> {
    let mut messages = vec![user("Read all of it and tell me what is wrong.")];
    messages.extend(steps(0, count, bytes));
    messages
}
