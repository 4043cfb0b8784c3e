//! Who follows whom: turns, calls and their results, breakpoints.

use rstest::rstest;

use super::super::{Unmappable, render};
use super::{array, one, rendered};
use crate::domain::message::Message;
use crate::domain::pairing::{Counters, Tail, place};

const SYSTEM: &str = r#"{"role":"system","content":"rules"}"#;
const USER: &str = r#"{"role":"user","content":"q"}"#;
const SILENT_USER: &str = r#"{"role":"user","content":""}"#;
const ANSWER: &str = r#"{"role":"assistant","content":"a"}"#;
const SILENT: &str = r#"{"role":"assistant","content":null}"#;
const THOUGHT: &str =
    r#"{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"}]}"#;
const CALLS: &str = r#"{"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"p\": 1.0}"}},{"id":"b","type":"function","function":{"name":"g","arguments":""}}]}"#;
const RESULT_A: &str = r#"{"role":"tool","tool_call_id":"a","content":"1"}"#;
const RESULT_B: &str = r#"{"role":"tool","tool_call_id":"b","content":"2"}"#;

/// The messages, in short: `u` or `a`, then per block a letter or what it says.
fn sketch(sources: &[&str], breakpoints: &[usize]) -> String {
    let rendered = rendered(sources, breakpoints);
    let messages = array(&rendered.messages);
    let block = |block: &serde_json::Value| {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        let mark = if block.get("cache_control").is_some() {
            "*"
        } else {
            ""
        };
        let said = match block["type"].as_str().unwrap() {
            "text" => text("text"),
            "tool_use" => format!("!{}", text("id")),
            "tool_result" => format!("?{}={}", text("tool_use_id"), text("content")),
            other => other.to_owned(),
        };
        format!("{said}{mark}")
    };
    let message = |message: &serde_json::Value| {
        let blocks: Vec<_> = message["content"]
            .as_array()
            .unwrap()
            .iter()
            .map(block)
            .collect();
        format!(
            "{}[{}]",
            message["role"].as_str().unwrap().get(..1).unwrap(),
            blocks.join(" ")
        )
    };
    let messages: Vec<_> = messages.as_array().unwrap().iter().map(message).collect();
    messages.join(" ")
}

#[rstest]
#[case::nothing(&[], "")]
#[case::instructions_only(&[SYSTEM], "")]
#[case::neighbours_merge(&[USER, USER, ANSWER, ANSWER, USER], "u[q q] a[a a] u[q]")]
#[case::greeting(&[SYSTEM, ANSWER, USER], "u[[The conversation begins with the assistant.]] a[a] u[q]")]
#[case::silent_first(&[SILENT_USER, ANSWER], "u[[The conversation begins with the assistant.]] a[a]")]
#[case::silent_between(&[USER, SILENT, USER, ANSWER, SILENT_USER, ANSWER], "u[q q] a[a a]")]
#[case::in_order_of_calls(&[USER, CALLS, RESULT_B, RESULT_A, ANSWER], "u[q] a[!a !b] u[?a=1 ?b=2] a[a]")]
#[case::user_behind_results(&[USER, CALLS, RESULT_A, RESULT_B, USER, USER], "u[q] a[!a !b] u[?a=1 ?b=2 q q]")]
#[case::text_before_calls(&[USER, ANSWER, CALLS, RESULT_A, RESULT_B], "u[q] a[a !a !b] u[?a=1 ?b=2]")]
#[case::instruction_between(&[USER, CALLS, RESULT_A, SYSTEM, RESULT_B], "u[q] a[!a !b] u[?a=1 ?b=2]")]
#[case::open_at_the_end(&[USER, CALLS], "u[q] a[!a !b]")]
#[case::partly_open_at_the_end(&[USER, CALLS, RESULT_B], "u[q] a[!a !b] u[?b=2]")]
#[case::interrupted(&[USER, CALLS, RESULT_B, USER], "u[q] a[!a !b] u[?a=[no result was recorded for this call] ?b=2 q]")]
#[case::interrupted_by_silence(&[USER, CALLS, SILENT], "u[q] a[!a !b] u[?a=[no result was recorded for this call] ?b=[no result was recorded for this call]]")]
#[case::ids_again(
    &[USER, CALLS, RESULT_A, RESULT_B, CALLS, RESULT_B, RESULT_A, CALLS],
    "u[q] a[!a !b] u[?a=1 ?b=2] a[!a_2 !b_2] u[?a_2=1 ?b_2=2] a[!a_3 !b_3]"
)]
fn messages_take_turns(#[case] sources: &[&str], #[case] expected: &str) {
    assert_eq!(sketch(sources, &[]), expected);
}

#[test]
fn an_index_says_where_each_message_went() {
    let sources = [
        SYSTEM, ANSWER, SILENT, USER, CALLS, RESULT_B, SYSTEM, RESULT_A, USER, THOUGHT,
    ];
    let index = [
        None,
        Some(1),
        None,
        Some(2),
        Some(3),
        Some(4),
        None,
        Some(4),
        Some(4),
        Some(5),
    ];
    assert_eq!(rendered(&sources, &[]).index, index);
}

#[rstest]
#[case::the_message(&[USER, ANSWER, USER], &[0, 2], "u[q*] a[a] u[q*]", &[0, 2])]
#[case::its_own_last_block(&[USER, USER, ANSWER], &[0], "u[q* q] a[a]", &[0])]
#[case::instructions(&[SYSTEM, SYSTEM, USER], &[0, 2], "u[q*]", &[0])]
#[case::silence_marks_what_is_before(&[USER, ANSWER, SILENT_USER], &[2], "u[q] a[a*]", &[1])]
#[case::so_does_reasoning(&[USER, THOUGHT], &[1, 0], "u[q*] a[thinking]", &[0, 0])]
#[case::reasoning_behind_text(&[USER, ANSWER, THOUGHT], &[2], "u[q] a[a* thinking]", &[1])]
#[case::calls(&[USER, CALLS, RESULT_A, RESULT_B], &[1], "u[q] a[!a !b*] u[?a=1 ?b=2]", &[1])]
#[case::one_result(&[USER, CALLS, RESULT_A, RESULT_B, USER], &[2], "u[q] a[!a !b] u[?a=1* ?b=2 q]", &[2])]
#[case::results_out_of_order(&[USER, CALLS, RESULT_B, RESULT_A, USER], &[3], "u[q] a[!a !b] u[?a=1 ?b=2* q]", &[2])]
#[case::an_open_end(&[USER, CALLS, RESULT_B], &[2], "u[q] a[!a !b] u[?b=2*]", &[2])]
#[case::beyond(&[USER], &[1, 7], "u[q]", &[])]
fn a_breakpoint_marks(
    #[case] sources: &[&str],
    #[case] breakpoints: &[usize],
    #[case] expected: &str,
    #[case] messages: &[usize],
) {
    assert_eq!(sketch(sources, breakpoints), expected);
    assert_eq!(rendered(sources, breakpoints).breakpoints, messages);
}

#[test]
fn a_breakpoint_in_the_instructions_marks_the_last_of_them() {
    let two = r#"{"type":"text","text":"rules"},{"type":"text","text":"rules","cache_control":{"type":"ephemeral"}}"#;
    for breakpoints in [&[0][..], &[1], &[0, 1], &[2]] {
        let rendered = rendered(&[SYSTEM, SYSTEM, SILENT_USER, USER], breakpoints);
        assert_eq!(rendered.system, two, "{breakpoints:?}");
        assert!(rendered.breakpoints.is_empty());
        assert!(!rendered.messages.contains("cache_control"));
    }
    assert_eq!(rendered(&[SILENT_USER], &[0]).system, "");
}

#[test]
fn calls_keep_what_the_model_wrote() {
    let cases = [
        (r#""{\"p\": 1.0, \"p\":2}""#, r#"{"p": 1.0, "p":2}"#),
        (r#"" {\"a\":\"\\u0000\"}\n""#, r#"{"a":"\u0000"}"#),
        (r#""""#, "{}"),
        (r#"" \n""#, "{}"),
        ("null", "{}"),
        (r#"{"a": 1}"#, r#"{"a": 1}"#),
        (r#""{\"a\": ""#, r#"{"_unparsed":"{\"a\": "}"#),
        (r#""{\"a\":1} x""#, r#"{"_unparsed":"{\"a\":1} x"}"#),
        (r#""[]""#, r#"{"_unparsed":"[]"}"#),
        (r#""null""#, r#"{"_unparsed":"null"}"#),
        (
            r#""{\"a\":\"\u0000\"}""#,
            r#"{"_unparsed":"{\"a\":\"\u0000\"}"}"#,
        ),
        (
            r#""{\"a\":\"\\ud83d\"}""#,
            r#"{"_unparsed":"{\"a\":\"\\ud83d\"}"}"#,
        ),
        ("[1]", r#"{"_unparsed":"[1]"}"#),
    ];
    for (arguments, input) in cases {
        let source = format!(
            r#"{{"role":"assistant","tool_calls":[{{"id":"a","function":{{"name":"f","arguments":{arguments}}}}}]}}"#
        );
        let block = format!(r#"{{"type":"tool_use","id":"a","name":"f","input":{input}}}"#);
        assert_eq!(one(&source), block, "{arguments}");
    }
}

#[test]
fn names_and_ids_are_made_fit() {
    let long = "n".repeat(200);
    let cut = "n".repeat(128);
    let cases = [
        ("functions.read:0", "functions_read_0", "a.b/ü", "a_b__"),
        ("", "call", "", "_"),
        ("x-Y_9", "x-Y_9", long.as_str(), cut.as_str()),
    ];
    for (id, fit, name, fit_name) in cases {
        let source = format!(
            r#"{{"role":"assistant","tool_calls":[{{"id":"{id}","function":{{"name":"{name}","arguments":"{{}}"}}}}]}}"#
        );
        let block =
            format!(r#"{{"type":"tool_use","id":"{fit}","name":"{fit_name}","input":{{}}}}"#);
        assert_eq!(one(&source), block);
    }
    // A replacement never takes an id that came before it, nor one before it the id of a replacement.
    let calls = r#"{"role":"assistant","tool_calls":[{"id":"a_2","function":{"name":"f"}},{"id":"a","function":{"name":"f"}},{"id":"a.2","function":{"name":"f"}}]}"#;
    let again = r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}},{"id":"a_3","function":{"name":"f"}}]}"#;
    assert_eq!(sketch(&[USER, calls], &[]), "u[q] a[!a_2 !a !a_2_2]");
    assert!(sketch(&[USER, calls, USER, again], &[]).ends_with("a[!a_3 !a_3_2]"));
}

#[test]
fn calls_of_other_kinds() {
    assert_eq!(
        one(
            r#"{"role":"assistant","tool_calls":[{"id":"a","type":"custom","custom":{"name":"sh","input":"ls \u0000"}}]}"#
        ),
        r#"{"type":"tool_use","id":"a","name":"sh","input":{"input":"ls \u0000"}}"#
    );
    let legacy = r#""function_call":{"name":"f","arguments":"{}"}"#;
    let same = r#""tool_calls":[{"id":"a","function":{"arguments":"{}","name":"f"}}]"#;
    let other = r#""tool_calls":[{"id":"a","function":{"arguments":"{}","name":"g"}}]"#;
    assert!(one(&format!(r#"{{"role":"assistant",{legacy},{same}}}"#)).contains("tool_use"));
    let cases = [
        (
            legacy.to_owned(),
            "/function_call",
            "a call without an id (`function_call`)",
        ),
        (
            format!("{legacy},{other}"),
            "/function_call",
            "a call without an id (`function_call`)",
        ),
        (
            r#""tool_calls":[{"id":"a","type":"mcp","mcp":{}}]"#.into(),
            "/tool_calls/0",
            "a tool call of type `mcp`",
        ),
    ];
    for (members, pointer, what) in cases {
        let source = format!(r#"{{"role":"assistant",{members}}}"#);
        assert_eq!(super::refused(&source), (pointer.into(), what.into()));
    }
}

#[test]
fn results_take_what_they_hold() {
    let cases = [
        (r#""content":"a\u0000""#, r#","content":"a\u0000""#),
        (r#""content":"""#, ""),
        (r#""content":" \n""#, ""),
        (r#""content":null"#, ""),
        (r#""content":[]"#, ""),
        (
            r#""content":[{"type":"text","text":""}],"is_error":true"#,
            r#","is_error":true"#,
        ),
        (
            r#""content":"x","is_error":false"#,
            r#","content":"x","is_error":false"#,
        ),
        (r#""content":"x","is_error":"yes""#, r#","content":"x""#),
        (
            r#""content":[{"type":"text","text":"p","cache_control":{}},{"type":"image_url","image_url":{"url":"data:image/gif;base64,R0lG"}}]"#,
            r#","content":[{"type":"text","text":"p"},{"type":"image","source":{"type":"base64","media_type":"image/gif","data":"R0lG"}}]"#,
        ),
    ];
    for (members, rest) in cases {
        let result = format!(r#"{{"role":"tool","tool_call_id":"a",{members}}}"#);
        let rendered = rendered(&[USER, CALLS, &result], &[]);
        let expected = format!(
            r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"a"{rest}}}]}}"#
        );
        assert!(
            rendered.messages.ends_with(&expected),
            "{}",
            rendered.messages
        );
    }
}

#[rstest]
#[case::no_call(&[USER, RESULT_A], 1)]
#[case::twice(&[USER, CALLS, RESULT_A, RESULT_A], 3)]
#[case::too_late(&[USER, CALLS, RESULT_A, USER, RESULT_B], 4)]
#[case::no_id(&[USER, CALLS, r#"{"role":"tool","content":"x"}"#], 2)]
fn a_result_without_its_call_has_no_place(#[case] sources: &[&str], #[case] index: usize) {
    assert_eq!(
        render(&sources.join(","), &[]),
        Err(Unmappable {
            index,
            pointer: "/tool_call_id".into(),
            what: "a result that answers no open call".into(),
        })
    );
}

#[test]
fn a_stored_context_brings_the_results_of_interrupted_calls_in_the_same_words() {
    let sources = [USER, CALLS, RESULT_B, USER];
    let messages = (0..)
        .zip(sources)
        .map(|(index, text): (u8, _)| (index.to_string(), Message::read(text).unwrap()))
        .collect();
    let placement = place(Counters::default(), Tail::default(), messages).unwrap();
    let fill = placement.rows[3].fill.as_deref().unwrap();
    let stored = [USER, CALLS, RESULT_B, fill, USER];
    assert_eq!(
        rendered(&stored, &[]).messages,
        rendered(&sources, &[]).messages
    );
}
