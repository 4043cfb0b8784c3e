//! What the deltas of a stream add up to, whoever sends them.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use crate::provider::assembly::Assembly;

fn grown(deltas: &[&str]) -> Assembly {
    let mut message = Assembly::default();
    for delta in deltas {
        message.grow(delta);
    }
    message
}

fn message(deltas: &[&str]) -> String {
    grown(deltas).write()
}

#[rstest]
#[case::nothing(&[], r#"{"role":"assistant","content":""}"#)]
#[case::text(
    &[r#"{"role":"assistant","content":""}"#, r#"{"content":"Hel"}"#, r#"{"content":"lo"}"#, "{}"],
    r#"{"role":"assistant","content":"Hello"}"#
)]
#[case::null_says_nothing(
    &[r#"{"content":"a","refusal":null,"tool_calls":null}"#, r#"{"content":null}"#],
    r#"{"role":"assistant","content":"a"}"#
)]
#[case::another_role(&[r#"{"role":"model","content":"a"}"#], r#"{"role":"assistant","content":"a"}"#)]
#[case::refusal(
    &[r#"{"refusal":"I "}"#, r#"{"refusal":"will not."}"#],
    r#"{"role":"assistant","content":"","refusal":"I will not."}"#
)]
#[case::reasoning(
    &[r#"{"reasoning_content":"h"}"#, r#"{"reasoning_content":"m"}"#, r#"{"reasoning":"x","content":"a"}"#, r#"{"reasoning":""}"#],
    r#"{"role":"assistant","content":"a","reasoning_content":"hm","reasoning":"x"}"#
)]
#[case::unknown_strings_are_joined(
    &[r#"{"x_note":"a"}"#, r#"{"x_note":"b"}"#],
    r#"{"role":"assistant","content":"","x_note":"ab"}"#
)]
#[case::what_identifies_is_not(
    &[r#"{"id":"m1","type":"x"}"#, r#"{"id":"m1","type":""}"#, r#"{"id":"m2"}"#],
    r#"{"role":"assistant","content":"","id":"m2","type":"x"}"#
)]
#[case::other_values_are_replaced(
    &[r#"{"x":1.0,"y":true}"#, r#"{"x":1e400,"y":null}"#],
    r#"{"role":"assistant","content":"","x":1e400,"y":true}"#
)]
#[case::lists_are_appended_to_as_they_came(
    &[
        r#"{"reasoning_details":[{"type":"reasoning.text", "text":"a","n":12345678901234567890123}]}"#,
        r#"{"reasoning_details":[{"z":1,"a":2},{"type":"reasoning.encrypted","data":"=="}]}"#,
        r#"{"reasoning_details":[]}"#,
    ],
    r#"{"role":"assistant","content":"","reasoning_details":[{"type":"reasoning.text", "text":"a","n":12345678901234567890123},{"z":1,"a":2},{"type":"reasoning.encrypted","data":"=="}]}"#
)]
#[case::objects_grow(
    &[r#"{"audio":{"id":"a1","transcript":"o"}}"#, r#"{"audio":{"transcript":"k","expires_at":5}}"#],
    r#"{"role":"assistant","content":"","audio":{"id":"a1","transcript":"ok","expires_at":5}}"#
)]
#[case::the_old_kind_of_call(
    &[r#"{"function_call":{"name":"f","arguments":""}}"#, r#"{"function_call":{"arguments":"{}"}}"#],
    r#"{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}"#
)]
#[case::a_kind_that_changes(&[r#"{"x":"a"}"#, r#"{"x":[1]}"#], r#"{"role":"assistant","content":"","x":[1]}"#)]
#[case::parts(
    &[r#"{"content":[{"type":"text","text":"a"}]}"#, r#"{"content":[{"type":"text","text":"b"},{"type":"image_url","image_url":{}}]}"#, r#"{"content":"c"}"#],
    r#"{"role":"assistant","content":[{"type":"text","text":"ab"},{"type":"image_url","image_url":{}},{"type":"text","text":"c"}]}"#
)]
#[case::text_then_parts(
    &[r#"{"content":"a"}"#, r#"{"content":[{"type":"text","text":"b","annotations":[]}]}"#],
    r#"{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b","annotations":[]}]}"#
)]
#[case::empty_text_then_parts(
    &[r#"{"content":""}"#, r#"{"content":[{"type":"text","text":"b"}]}"#],
    r#"{"role":"assistant","content":[{"type":"text","text":"b"}]}"#
)]
#[case::a_part_without_a_list(&[r#"{"content":{"text":"b"}}"#], r#"{"role":"assistant","content":[{"type":"text","text":"b"}]}"#)]
#[case::escapes(
    &[r#"{"content":"a\u0000\"\\\/\n\ud83e\udd80"}"#],
    "{\"role\":\"assistant\",\"content\":\"a\\u0000\\\"\\\\/\\n\u{1f980}\"}"
)]
#[case::a_character_in_two_halves(
    &[r#"{"content":"a\ud83e"}"#, r#"{"content":""}"#, r#"{"content":"\udd80\tb"}"#],
    "{\"role\":\"assistant\",\"content\":\"a\u{1f980}\\tb\"}"
)]
#[case::halves_that_find_no_other(
    &[r#"{"content":"\udd80a\ud83e"}"#, r#"{"content":"b\ud83e\ud83e"}"#, r#"{"content":"\udd80\ud83e"}"#],
    "{\"role\":\"assistant\",\"content\":\"\u{fffd}a\u{fffd}b\u{fffd}\u{1f980}\u{fffd}\"}"
)]
fn members(#[case] deltas: &[&str], #[case] expected: &str) {
    assert_eq!(message(deltas), expected);
}

fn calls(deltas: &[&str]) -> Value {
    let deltas: Vec<String> = deltas
        .iter()
        .map(|calls| format!("{{\"tool_calls\":{calls}}}"))
        .collect();
    let deltas: Vec<&str> = deltas.iter().map(String::as_str).collect();
    let message: Value = serde_json::from_str(&message(&deltas)).unwrap();
    assert_eq!(message["content"], Value::Null);
    message["tool_calls"].clone()
}

fn call(id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

#[rstest]
#[case::by_the_book(
    &[
        r#"[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]"#,
        r#"[{"index":0,"function":{"arguments":"{\"a\""}}]"#,
        r#"[{"index":0,"function":{"arguments":":1}"}}]"#,
    ],
    json!([call("c1", "f", "{\"a\":1}")])
)]
#[case::interleaved(
    &[
        r#"[{"index":1,"id":"c2","type":"function","function":{"name":"g","arguments":""}}]"#,
        r#"[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{"}}]"#,
        r#"[{"index":1,"function":{"arguments":"[1"}},{"index":0,"function":{"arguments":"}"}}]"#,
        r#"[{"index":1,"function":{"arguments":"]"}}]"#,
    ],
    json!([call("c1", "f", "{}"), call("c2", "g", "[1]")])
)]
#[case::id_and_name_in_every_piece(
    &[
        r#"[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{"}}]"#,
        r#"[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"}"}}]"#,
        r#"[{"index":1,"id":"c2","type":"function","function":{"name":"f","arguments":"{"}}]"#,
        r#"[{"index":1,"id":"c2","type":"function","function":{"name":"f","arguments":"}"}}]"#,
    ],
    json!([call("c1", "f", "{}"), call("c2", "f", "{}")])
)]
#[case::a_name_in_pieces(
    &[
        r#"[{"index":0,"id":"c1","function":{"name":"get_"}}]"#,
        r#"[{"index":0,"function":{"name":"weather","arguments":"{}"}}]"#,
    ],
    json!([call("c1", "get_weather", "{}")])
)]
#[case::a_name_that_is_sent_longer(
    &[r#"[{"index":0,"id":"c1","function":{"name":"get"}}]"#, r#"[{"index":0,"id":"c1","function":{"name":"get_it","arguments":"{}"}}]"#],
    json!([call("c1", "get_it", "{}")])
)]
#[case::whole_calls_without_index(
    &[r#"[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]"#, r#"[{"id":"c2","function":{"name":"f","arguments":"{}"}}]"#],
    json!([call("c1", "f", "{}"), call("c2", "f", "{}")])
)]
#[case::whole_calls_in_one_piece(
    &[r#"[{"id":"c1","function":{"name":"f","arguments":"{}"}},{"id":"c2","function":{"name":"g","arguments":"[]"}}]"#],
    json!([call("c1", "f", "{}"), call("c2", "g", "[]")])
)]
#[case::pieces_without_index(
    &[
        r#"[{"id":"c1","function":{"name":"f","arguments":""}}]"#,
        r#"[{"function":{"arguments":"{"}}]"#,
        r#"[{"id":"","function":{"name":"","arguments":"}"}}]"#,
        r#"[{"id":"c2","function":{"name":"g","arguments":"{"}}]"#,
        r#"[{"id":"c2","function":{"arguments":"}"}}]"#,
        r#"[{"id":"c1","function":{"arguments":" "}}]"#,
    ],
    json!([call("c1", "f", "{} "), call("c2", "g", "{}")])
)]
#[case::neither_index_nor_id(
    &[
        r#"[{"function":{"name":"f","arguments":"{}"}},{"function":{"name":"f","arguments":"{}"}}]"#,
        r#"[{"function":{"name":"g","arguments":"{"}}]"#,
        r#"[{"function":{"name":"g","arguments":"}"}}]"#,
    ],
    json!([call("call_1", "f", "{}"), call("call_2", "f", "{}"), call("call_3", "g", "{}")])
)]
#[case::made_up_ids_avoid_given_ones(
    &[r#"[{"index":0,"function":{"name":"f","arguments":"{}"}},{"index":1,"id":"call_1","function":{"name":"g","arguments":"{}"}}]"#],
    json!([call("call_2", "f", "{}"), call("call_1", "g", "{}")])
)]
#[case::counted_from_one(
    &[r#"[{"index":1,"id":"c1","function":{"name":"f","arguments":"{"}}]"#, r#"[{"index":1,"function":{"arguments":"}"}}]"#],
    json!([call("c1", "f", "{}")])
)]
#[case::the_head_of_the_second_has_the_index_of_the_first(
    &[
        r#"[{"index":0,"id":"c1","function":{"name":"f","arguments":"{}"}}]"#,
        r#"[{"index":0,"id":"c2","function":{"name":"g","arguments":"["}}]"#,
        r#"[{"index":1,"function":{"arguments":"1"}}]"#,
        r#"[{"index":0,"function":{"arguments":"]"}}]"#,
    ],
    json!([call("c1", "f", "{}"), call("c2", "g", "[1]")])
)]
#[case::another_id_in_every_piece(
    &[
        r#"[{"index":0,"id":"x1","function":{"name":"f","arguments":"{"}}]"#,
        r#"[{"index":0,"id":"x2","function":{"arguments":"}"}}]"#,
    ],
    json!([call("x2", "f", "{}")])
)]
#[case::arguments_as_an_object(
    &[r#"[{"index":0,"id":"c1","function":{"name":"f","arguments":{"a": 1.0}}}]"#],
    json!([call("c1", "f", "{\"a\": 1.0}")])
)]
#[case::no_arguments(&[r#"[{"index":0,"id":"c1","function":{"name":"f"}}]"#], json!([call("c1", "f", "")]))]
#[case::cut_off(&[r#"[{"index":0,"id":"c1","function":{"name":"f","arguments":"{\"a"}}]"#], json!([call("c1", "f", "{\"a")]))]
#[case::more_members(
    &[r#"[{"index":0,"id":"c1","function":{"name":"f","arguments":"{}","x":1},"extra_content":{"google":{"thought_signature":"c2ln"}}}]"#],
    json!([{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}", "x": 1}, "extra_content": {"google": {"thought_signature": "c2ln"}}}])
)]
#[case::custom(
    &[r#"[{"index":0,"id":"c1","type":"custom","custom":{"name":"f","input":"a"}}]"#, r#"[{"index":0,"custom":{"input":"b"}}]"#],
    json!([{"id": "c1", "type": "custom", "custom": {"name": "f", "input": "ab"}}])
)]
#[case::empty_ones_are_none(
    &[r#"[{"index":0,"id":"c1","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"","type":"function","function":{"name":"","arguments":""}},null,5]"#],
    json!([call("c1", "f", "{}")])
)]
fn tool_calls(#[case] deltas: &[&str], #[case] expected: Value) {
    assert_eq!(calls(deltas), expected);
}

#[test]
fn a_message_with_calls_and_text_has_both() {
    let text = message(&[
        r#"{"content":"I look."}"#,
        r#"{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{}"}}],"x":"y"}"#,
    ]);
    assert_eq!(
        text,
        r#"{"role":"assistant","content":"I look.","x":"y","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}"#
    );
}

#[test]
fn no_calls_are_left_out() {
    for calls in ["[]", "null", "[{}]", "[{\"index\":0}]"] {
        let delta = format!("{{\"content\":\"a\",\"tool_calls\":{calls}}}");
        assert_eq!(message(&[&delta]), r#"{"role":"assistant","content":"a"}"#);
    }
}

#[test]
fn the_texts_of_a_broken_message() {
    let message = grown(&[
        r#"{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"a"}],"reasoning":"r"}"#,
        r#"{"content":"b","reasoning_details":[{"type":"reasoning.encrypted"}],"audio":{"id":"a1"}}"#,
        r#"{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{}"}}],"function_call":{"name":"f"}}"#,
    ]);
    assert_eq!(
        message.write_texts(),
        r#"{"role":"assistant","content":"ab","reasoning":"r"}"#
    );
}

#[rstest]
#[case(&[r#"{"role":"assistant","content":""}"#], false, true)]
#[case(&[r#"{"content":" "}"#], true, false)]
#[case(&[r#"{"refusal":"No."}"#], true, false)]
#[case(&[r#"{"reasoning":"hm"}"#], false, false)]
#[case(&[r#"{"tool_calls":[{"id":"c1","function":{"name":"f"}}]}"#], false, false)]
#[case(&[r#"{"content":[{"type":"thinking"}]}"#], false, false)]
#[case(&[r#"{"content":[{"type":"text","text":""}]}"#], false, true)]
fn what_there_is(#[case] deltas: &[&str], #[case] has_text: bool, #[case] is_empty: bool) {
    let message = grown(deltas);
    assert_eq!(message.has_text(), has_text);
    assert_eq!(message.is_empty(), is_empty);
}

#[test]
fn deep_objects_do_not_exhaust_the_stack() {
    let depth = 100_000;
    let deep = format!(
        "{{\"x\":{}1{}}}",
        "{\"a\":".repeat(depth),
        "}".repeat(depth)
    );
    let written = message(&[&deep, &deep]);
    assert!(written.len() >= depth * 6);
}

/// Cuts a text into stretches of the given lengths, the last taking what is left.
fn stretches(text: &str, lengths: &[usize]) -> Vec<String> {
    let mut rest: Vec<char> = text.chars().collect();
    let mut all = Vec::new();
    for length in lengths {
        let tail = rest.split_off((*length).min(rest.len()));
        all.push(rest.into_iter().collect());
        rest = tail;
    }
    all.push(rest.into_iter().collect());
    all
}

proptest! {
    /// However a text and the arguments of calls are cut, they come out whole.
    #[test]
    fn cuts_do_not_matter(
        text in "\\PC{0,30}",
        arguments in proptest::collection::vec("[ -~\u{e9}\u{1f980}]{1,20}", 1..4),
        lengths in proptest::collection::vec(0..5_usize, 0..12),
        order in proptest::collection::vec(any::<u8>(), 64),
    ) {
        let mut message = Assembly::default();
        for stretch in stretches(&text, &lengths) {
            message.grow(&json!({"content": stretch}).to_string());
        }
        let mut queues: Vec<Vec<String>> = Vec::new();
        for (index, arguments) in arguments.iter().enumerate() {
            let head = json!({"index": index, "id": format!("c{index}"), "function": {"name": "f"}});
            message.grow(&json!({"tool_calls": [head]}).to_string());
            queues.push(stretches(arguments, &lengths));
        }
        // The pieces of all calls, mixed, each call's in their order.
        let mut order = order.into_iter().cycle();
        while let Some(most) = queues.iter().map(Vec::len).max().filter(|most| *most > 0) {
            let pick = usize::from(order.next().unwrap()) % queues.len();
            let index = if queues[pick].is_empty() {
                queues.iter().position(|queue| queue.len() == most).unwrap()
            } else {
                pick
            };
            let piece = queues[index].remove(0);
            let piece = json!({"index": index, "function": {"arguments": piece}});
            message.grow(&json!({"tool_calls": [piece]}).to_string());
        }
        let written: Value = serde_json::from_str(&message.write()).unwrap();
        prop_assert_eq!(written["content"].as_str().unwrap_or_default(), text);
        for (index, arguments) in arguments.iter().enumerate() {
            prop_assert_eq!(written["tool_calls"][index]["function"]["arguments"].as_str(), Some(arguments.as_str()));
        }
    }
}
