//! Made-up bytes, JSON, messages and histories.

use std::fmt::{self, Debug, Formatter};

use precis::domain::message::Message;
use precis::domain::pairing::{Counters, Placed, Tail, place};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

/// Bytes that are shown as text.
#[derive(Clone)]
pub struct Bytes(pub Vec<u8>);

impl Debug for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// Pieces that something may stumble over.
const PIECES: [&str; 40] = [
    "\"",
    "\\",
    "\\\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    " ",
    "\n",
    "\r",
    "\t",
    "\\u0000",
    "\\ud83e",
    "\\udd80",
    "\\ud83e\\udd80",
    "\\uD800",
    "\\u00",
    "\u{feff}",
    "\u{2028}",
    "é",
    "漢",
    "🦀",
    "null",
    "true",
    "-0",
    "1e400",
    "1.0E+2",
    "123456789012345678901234567890",
    "\"role\"",
    "\"role\":\"user\",",
    "\"content\":",
    "\"precis\":{},",
    "\"precis\":{\"id\":\"a\"},",
    "\"tool_call_id\":\"a\",",
    "\"\\u0072ole\":\"tool\",",
    "[[[[[[[[",
    "]]]]]]]]",
    "{\"a\":",
];

fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => select(&PIECES[..]).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
        1 => (1..140_usize).prop_map(|depth| b"[".repeat(depth)),
    ]
}

#[derive(Debug, Clone)]
enum Change {
    Insert(Index, Vec<u8>),
    Replace(Index, u8),
    Remove(Index, usize),
    Repeat(Index, usize),
    Cut(Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (any::<Index>(), piece()).prop_map(|(at, piece)| Change::Insert(at, piece)),
        2 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Replace(at, byte)),
        2 => (any::<Index>(), 1..20_usize).prop_map(|(at, count)| Change::Remove(at, count)),
        2 => (any::<Index>(), 1..60_usize).prop_map(|(at, count)| Change::Repeat(at, count)),
        1 => any::<Index>().prop_map(Change::Cut),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: Change) {
    let place = |at: Index| at.index(bytes.len() + 1);
    match change {
        Change::Insert(at, piece) => {
            let at = place(at);
            bytes.splice(at..at, piece);
        }
        Change::Replace(at, byte) => {
            let at = place(at);
            if let Some(old) = bytes.get_mut(at) {
                *old = byte;
            }
        }
        Change::Remove(at, count) => {
            let at = place(at);
            bytes.drain(at..(at + count).min(bytes.len()));
        }
        Change::Repeat(at, count) => {
            let at = place(at);
            let again = bytes[at..(at + count).min(bytes.len())].to_vec();
            bytes.splice(at..at, again);
        }
        Change::Cut(at) => bytes.truncate(place(at)),
    }
}

/// Those bytes with some things wrong with them.
pub fn mutated(bytes: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (bytes, vec(change(), 0..5)).prop_map(|(mut bytes, changes)| {
        for change in changes {
            apply(&mut bytes, change);
        }
        bytes
    })
}

/// The text of a string literal, spelled in every way; often with text that means something elsewhere.
fn literal() -> impl Strategy<Value = String> {
    let inside = prop_oneof![
        4 => "[a-z ]{0,12}",
        1 => select(&[
            "\\u0000", "\\n", "\\\"", "\\\\", "\\/", "\\ud83e\\udd80", "\\u00e9", "é", "漢字", "🦀", "{\\\"a\\\":1}",
            "[precis: x]", "data:image/png;base64,AAAA", "https://example.com/a?b=c", "</transcript>", "\u{7f}", "\u{2028}",
        ][..]).prop_map(ToOwned::to_owned),
    ];
    vec(inside, 0..4).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn space() -> impl Strategy<Value = &'static str> {
    prop_oneof![8 => Just(""), 1 => Just(" "), 1 => Just("\r\n\t")]
}

fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => literal(),
        2 => select(&["null", "true", "false", "0", "-1.5e-7", "18446744073709551616", "1E400", "0.0"][..])
            .prop_map(ToOwned::to_owned),
    ]
}

fn object(members: Vec<(String, String)>, space: &str) -> String {
    let members: Vec<_> = members
        .into_iter()
        .map(|(name, value)| format!("{name}{space}:{space}{value}{space}"))
        .collect();
    format!("{{{space}{}}}", members.join(","))
}

/// The text of any JSON value.
pub fn json_text() -> impl Strategy<Value = String> {
    scalar().prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            (vec(inner.clone(), 0..5), space()).prop_map(|(items, space)| format!(
                "[{space}{}{space}]",
                items.join(&format!("{space},"))
            )),
            (vec((literal(), inner), 0..5), space())
                .prop_map(|(members, space)| object(members, space)),
        ]
    })
}

fn part() -> impl Strategy<Value = String> {
    let kind = select(
        &[
            "text",
            "refusal",
            "image_url",
            "input_audio",
            "file",
            "thinking",
            "x",
        ][..],
    );
    let name = select(
        &[
            "text",
            "refusal",
            "image_url",
            "file",
            "thinking",
            "signature",
            "data",
            "n",
        ][..],
    );
    prop_oneof![
        3 => literal().prop_map(|text| format!(r#"{{"type":"text","text":{text}}}"#)),
        1 => (kind, name, json_text())
            .prop_map(|(kind, name, value)| format!(r#"{{"type":"{kind}","{name}":{value}}}"#)),
        1 => literal().prop_map(|url| format!(r#"{{"type":"image_url","image_url":{{"url":{url}}}}}"#)),
        1 => json_text(),
    ]
}

fn content() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => literal(),
        3 => (vec(part(), 0..4), space()).prop_map(|(parts, space)| format!("[{space}{}]", parts.join(","))),
        1 => Just("null".to_owned()),
        1 => json_text(),
    ]
}

const IDS: [&str; 4] = ["a", "b", "call_2", "\\u0061c"];

fn call(id: &'static str) -> impl Strategy<Value = String> {
    let arguments = prop_oneof![3 => literal(), 1 => Just("\"{\\\"path\\\": \\\"a\\\"}\"".to_owned()), 1 => json_text()];
    let name = prop_oneof![3 => Just("\"read\"".to_owned()), 1 => literal(), 1 => json_text()];
    (name, arguments, select(&["function", "custom"][..])).prop_map(move |(name, arguments, kind)| {
        format!(r#"{{"id":"{id}","type":"{kind}","{kind}":{{"name":{name},"arguments":{arguments}}}}}"#)
    })
}

fn calls() -> impl Strategy<Value = String> {
    let call = select(&IDS[..]).prop_flat_map(call);
    prop_oneof![
        5 => vec(call, 0..4).prop_map(|calls| format!("[{}]", calls.join(","))),
        1 => json_text(),
    ]
}

fn annotations() -> impl Strategy<Value = String> {
    let members = prop_oneof![
        literal().prop_map(|id| format!("\"id\":{id}")),
        json_text().prop_map(|usage| format!("\"usage\":{usage}")),
        Just("\"incomplete\":true".to_owned()),
    ];
    prop_oneof![
        4 => vec(members, 0..3).prop_map(|members| format!("{{{}}}", members.join(","))),
        1 => json_text(),
    ]
}

fn member() -> impl Strategy<Value = (String, String)> {
    let named = |name: &'static str| move |value: String| (format!("\"{name}\""), value);
    prop_oneof![
        4 => content().prop_map(named("content")),
        2 => calls().prop_map(named("tool_calls")),
        2 => select(&IDS[..]).prop_map(|id| ("\"tool_call_id\"".to_owned(), format!("\"{id}\""))),
        1 => annotations().prop_map(named("precis")),
        1 => annotations().prop_map(named("\\u0070recis")),
        1 => content().prop_map(named("reasoning_content")),
        1 => content().prop_map(named("reasoning")),
        1 => json_text().prop_map(named("reasoning_details")),
        1 => vec(part(), 0..3).prop_map(|parts| ("\"thinking_blocks\"".to_owned(), format!("[{}]", parts.join(",")))),
        1 => content().prop_map(named("refusal")),
        1 => (literal(), json_text()),
    ]
}

/// The text of something much like a message.
pub fn message_text() -> impl Strategy<Value = String> {
    let role = select(
        &[
            "user",
            "assistant",
            "tool",
            "system",
            "developer",
            "ass\\u0069stant",
            "function",
        ][..],
    );
    (role, vec(member(), 0..5), any::<Index>(), space()).prop_map(
        |(role, mut members, at, space)| {
            let at = at.index(members.len() + 1);
            members.insert(at, ("\"role\"".to_owned(), format!("\"{role}\"")));
            object(members, space)
        },
    )
}

/// Bytes as a client may send them for a message.
pub fn message_bytes() -> impl Strategy<Value = Bytes> {
    let text = || prop_oneof![4 => message_text(), 1 => json_text()];
    prop_oneof![
        2 => text().prop_map(String::into_bytes),
        4 => mutated(text().prop_map(String::into_bytes)),
        1 => vec(any::<u8>(), 0..60),
        1 => vec(piece(), 0..20).prop_map(|pieces| pieces.concat()),
        1 => (120..140_usize, any::<bool>()).prop_map(|(depth, is_array)| {
            let (open, close) = if is_array { ("[", "]") } else { ("{\"a\":", "}") };
            format!("{{\"role\":\"user\",\"content\":{}1{}}}", open.repeat(depth), close.repeat(depth)).into_bytes()
        }),
    ]
    .prop_map(Bytes)
}

/// The text of a result: few, so that they repeat, and some of them long.
fn result_text() -> impl Strategy<Value = String> {
    let line = select(
        &[
            "let total = 7;\n",
            "漢字とかな 🦀\n",
            "tab\t\"quote\" \\ \u{1}\n",
            "no line end ",
        ][..],
    );
    prop_oneof![
        4 => (line, 1..50_usize).prop_map(|(line, count)| line.repeat(count)),
        1 => select(&["", "ok", "Error: no such file", "[precis: all of it]", "exit code 1"][..])
            .prop_map(ToOwned::to_owned),
        1 => "\\PC{0,60}",
    ]
}

#[derive(Debug, Clone)]
pub enum Step {
    Wild(String),
    User(String),
    Says(String, Option<String>),
    /// Calls with tool, path and result; which results come, and in which order.
    Calls(Vec<(usize, String, Value)>, Vec<Index>),
    Instruction(String),
}

fn step(wildness: u32) -> impl Strategy<Value = Step> {
    let result = prop_oneof![
        4 => result_text().prop_map(Value::from),
        1 => vec(result_text(), 0..3).prop_map(|texts| {
            texts.into_iter().map(|text| json!({"type": "text", "text": text})).collect()
        }),
        1 => Just(json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])),
        1 => Just(Value::Null),
    ];
    let arguments = prop_oneof![
        4 => ("[ab]", prop::option::of(0..2_i32)).prop_map(|(path, limit)| match limit {
            Some(limit) => json!({"file_path": path, "limit": limit}).to_string(),
            None => json!({"file_path": path}).to_string(),
        }),
        1 => select(&["", "null", "{\"file_path\":", "[1]"][..]).prop_map(ToOwned::to_owned),
    ];
    let one = (0..2_usize, arguments, result);
    prop_oneof![
        wildness => message_text().prop_map(Step::Wild),
        2 => result_text().prop_map(Step::User),
        2 => (result_text(), prop::option::of(result_text())).prop_map(|(text, thought)| Step::Says(text, thought)),
        6 => (vec(one, 1..4), vec(any::<Index>(), 0..4)).prop_map(|(calls, order)| Step::Calls(calls, order)),
        1 => result_text().prop_map(Step::Instruction),
    ]
}

fn write(step: Step, to: &mut Vec<String>) {
    match step {
        Step::Wild(text) => to.push(text),
        Step::User(text) => to.push(json!({"role": "user", "content": text}).to_string()),
        Step::Instruction(text) => to.push(json!({"role": "system", "content": text}).to_string()),
        Step::Says(text, thought) => {
            let mut message = json!({"role": "assistant", "content": text});
            if let Some(thought) = thought {
                message["reasoning_content"] = thought.into();
            }
            to.push(message.to_string());
        }
        Step::Calls(steps, order) => {
            let call = |(index, (tool, arguments, _)): (usize, &(usize, String, Value))| {
                let tool = ["read", "grep"][*tool];
                json!({"id": format!("call_{index}"), "type": "function",
                       "function": {"name": tool, "arguments": arguments}})
            };
            let calls: Vec<_> = steps.iter().enumerate().map(call).collect();
            to.push(json!({"role": "assistant", "content": null, "tool_calls": calls}).to_string());
            for at in order {
                let index = at.index(steps.len());
                let content = &steps[index].2;
                let result = json!({"role": "tool", "tool_call_id": format!("call_{index}"), "content": content});
                to.push(result.to_string());
            }
        }
    }
}

/// Messages with their places: what is left of `texts` when each that the service refuses is left out.
pub fn accepted(texts: Vec<String>) -> Vec<Placed> {
    let mut rows = Vec::new();
    let (mut counters, mut tail) = (Counters::default(), Tail::default());
    for text in texts {
        // Numbers without bounds and the like are for another target; a checker must be able to read these.
        if serde_json::from_str::<Value>(&text).is_err() {
            continue;
        }
        let Ok(message) = Message::read(&text) else {
            continue;
        };
        let one = vec![(format!("msg_{:03}", rows.len() + 1), message)];
        if let Ok(placed) = place(counters, tail.clone(), one) {
            (counters, tail) = (placed.counters, placed.tail);
            rows.extend(placed.rows);
        }
    }
    rows
}

/// A history as an agent and its provider write it, with so many in ten wild ones.
pub fn history(wildness: u32) -> impl Strategy<Value = Vec<String>> {
    vec(step(wildness), 1..24).prop_map(|steps| {
        let mut texts = Vec::new();
        for step in steps {
            write(step, &mut texts);
        }
        texts
    })
}
