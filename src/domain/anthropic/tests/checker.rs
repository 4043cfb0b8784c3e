//! The strict check is only worth something if it refuses.

use rstest::rstest;
use serde_json::json;

use super::strict;

const USE: &str = r#"{"type":"tool_use","id":"a","name":"f","input":{}}"#;
const RESULT: &str = r#"{"type":"tool_result","tool_use_id":"a"}"#;
const TEXT: &str = r#"{"type":"text","text":"x"}"#;
const CACHED: &str = r#"{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}"#;

/// Messages that take turns, with these blocks.
fn faults(contents: &[String]) -> Vec<String> {
    let messages: Vec<_> = contents
        .iter()
        .enumerate()
        .map(|(index, blocks)| {
            let role = if index.is_multiple_of(2) {
                "user"
            } else {
                "assistant"
            };
            let blocks: serde_json::Value = serde_json::from_str(&format!("[{blocks}]")).unwrap();
            json!({"role": role, "content": blocks})
        })
        .collect();
    strict::faults(&json!([]), &messages.into())
}

#[test]
fn takes_what_is_in_order() {
    let uses = format!("{TEXT},{USE}");
    for contents in [
        vec![TEXT.into(), uses.clone(), format!("{RESULT},{TEXT}")],
        vec![TEXT.into(), uses.clone()],
        vec![format!("{CACHED},{CACHED},{CACHED},{CACHED}")],
    ] {
        assert!(faults(&contents).is_empty(), "{contents:?}");
    }
}

#[rstest]
#[case::nothing_said(vec![String::new()])]
#[case::blank_text(vec![r#"{"type":"text","text":" \n\u001c"}"#.into()])]
#[case::extra_member(vec![r#"{"type":"text","text":"x","y":1}"#.into()])]
#[case::unknown_type(vec![r#"{"type":"image_url"}"#.into()])]
#[case::no_result(vec![TEXT.into(), USE.into(), TEXT.into()])]
#[case::result_behind_text(vec![TEXT.into(), USE.into(), format!("{TEXT},{RESULT}")])]
#[case::result_twice(vec![TEXT.into(), USE.into(), format!("{RESULT},{RESULT}")])]
#[case::result_of_nothing(vec![RESULT.into()])]
#[case::id_twice(vec![TEXT.into(), USE.into(), RESULT.into(), USE.into()])]
#[case::odd_id(vec![TEXT.into(), USE.replace(r#""a""#, r#""a.b""#)])]
#[case::odd_name(vec![TEXT.into(), USE.replace(r#""f""#, r#""""#)])]
#[case::odd_input(vec![TEXT.into(), USE.replace("{}", "[]")])]
#[case::use_by_user(vec![USE.into()])]
#[case::image_by_assistant(vec![TEXT.into(), r#"{"type":"image","source":{"type":"url","url":"https://example.com"}}"#.into()])]
#[case::odd_media_type(vec![r#"{"type":"image","source":{"type":"base64","media_type":"image/jpg","data":"AA"}}"#.into()])]
#[case::five_breakpoints(vec![format!("{CACHED},{CACHED},{CACHED},{CACHED},{CACHED}")])]
#[case::cached_thinking(vec![TEXT.into(), r#"{"type":"thinking","thinking":"x","signature":"s","cache_control":{"type":"ephemeral"}}"#.into()])]
#[case::unsigned_thinking(vec![TEXT.into(), r#"{"type":"thinking","thinking":"x","signature":""}"#.into()])]
#[case::empty_result(vec![TEXT.into(), USE.into(), r#"{"type":"tool_result","tool_use_id":"a","content":[]}"#.into()])]
fn refuses_what_is_not(#[case] contents: Vec<String>) {
    assert!(!faults(&contents).is_empty());
}

#[test]
fn refuses_what_is_out_of_turn() {
    let says = |role: &str| json!({"role": role, "content": [{"type": "text", "text": "x"}]});
    let faults = |messages: &[serde_json::Value]| strict::faults(&json!([]), &messages.into());
    assert!(faults(&[says("user"), says("assistant")]).is_empty());
    assert!(!faults(&[says("assistant")]).is_empty());
    assert!(!faults(&[says("user"), says("user")]).is_empty());
    let picture =
        json!([{"type": "image", "source": {"type": "url", "url": "https://example.com"}}]);
    assert!(!strict::faults(&picture, &json!([])).is_empty());
}
