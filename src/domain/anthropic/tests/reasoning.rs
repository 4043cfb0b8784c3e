//! Reasoning in all its spellings.

use super::{one, refused};

const SIGNED: &str = r#"{"type":"thinking","thinking":"t\u00e4","signature":"s+="}"#;
const SEALED: &str = r#"{"type":"redacted_thinking","data":"d"}"#;
const ANSWER: &str = r#"{"type":"text","text":"a"}"#;
const LOUD: &str = r#"{"type":"text","text":"<thinking>t\u00e4</thinking>"}"#;

fn assistant(members: &str) -> String {
    format!(r#"{{"role":"assistant",{members}}}"#)
}

#[test]
fn signed_reasoning_passes_as_blocks_and_stands_first() {
    let both = format!("{SIGNED},{SEALED},{ANSWER}");
    for members in [
        format!(r#""content":[{ANSWER},{SIGNED},{SEALED}]"#),
        format!(r#""content":"a","thinking_blocks":[{SIGNED},{SEALED}]"#),
        r#""content":"a","thinking_blocks":[{"type":"thinking","signature":"s+=","x":1,"cache_control":{},"thinking":"t\u00e4"},{"data":"d","type":"redacted_thinking"}],"reasoning_content":"t\u00e4""#.into(),
        r#""content":"a","reasoning":"other","reasoning_details":[{"type":"reasoning.text","text":"t\u00e4","signature":"s+=","format":"anthropic-claude-v1","index":0},{"type":"reasoning.encrypted","data":"d"}]"#.into(),
        format!(r#""content":[{SIGNED},{ANSWER}],"thinking_blocks":[{SIGNED},{SEALED}],"reasoning_details":[{{"type":"reasoning.text","text":"t\u00e4"}}]"#),
    ] {
        assert_eq!(one(&assistant(&members)), both, "{members}");
    }
    assert_eq!(
        one(&assistant(
            r#""thinking_blocks":[{"type":"thinking","thinking":"","signature":"s"}],"content":"a""#
        )),
        format!(r#"{{"type":"thinking","thinking":"","signature":"s"}},{ANSWER}"#)
    );
}

#[test]
fn unsigned_reasoning_becomes_text_once() {
    let text = format!("{LOUD},{ANSWER}");
    for members in [
        r#""content":"a","reasoning_content":"t\u00e4""#.to_owned(),
        r#""content":"a","reasoning":"t\u00e4","reasoning_content":"t\u00e4""#.into(),
        r#""content":"a","reasoning":"t\u00e4","reasoning_details":[{"type":"reasoning.text","text":"t\u00e4","signature":null}]"#.into(),
        r#""content":"a","reasoning_details":[{"type":"reasoning.summary","summary":"t\u00e4"}]"#.into(),
        r#""content":"a","reasoning_details":[{"type":"reasoning.text","text":"t\u00e4","signature":"theirs","format":"google-gemini-v1"}]"#.into(),
        format!(r#""content":[{ANSWER},{{"type":"thinking","thinking":"t\u00e4"}}],"reasoning_content":" ""#),
        r#""content":"a","thinking_blocks":[{"type":"thinking","thinking":"t\u00e4","signature":" "}],"reasoning":null"#.into(),
    ] {
        assert_eq!(one(&assistant(&members)), text, "{members}");
    }
    // In pieces it repeats the whole.
    assert_eq!(
        one(&assistant(
            r#""reasoning":"xy","reasoning_details":[{"type":"reasoning.text","text":"x"},{"type":"reasoning.text","text":"y"}]"#
        )),
        r#"{"type":"text","text":"<thinking>x</thinking>"},{"type":"text","text":"<thinking>y</thinking>"}"#
    );
}

#[test]
fn says_which_reasoning_has_no_place() {
    let cases = [
        (
            r#""reasoning_details":[{"type":"reasoning.encrypted","data":"d","format":"openai-responses-v1"}]"#,
            "/reasoning_details/0",
            "reasoning that another vendor encrypted",
        ),
        (
            r#""reasoning_details":[{"type":"reasoning.new"}]"#,
            "/reasoning_details/0",
            "reasoning of type `reasoning.new`",
        ),
        (
            r#""thinking_blocks":[{"type":"redacted_thinking"}]"#,
            "/thinking_blocks/0",
            "encrypted reasoning without its data",
        ),
        (
            r#""thinking_blocks":[{"type":"text","text":"x"}]"#,
            "/thinking_blocks/0",
            "a block of reasoning of type `text`",
        ),
        (
            r#""thinking_blocks":{}"#,
            "/thinking_blocks",
            "reasoning of an unknown form",
        ),
        (
            r#""reasoning":{"x":1}"#,
            "/reasoning",
            "reasoning of an unknown form",
        ),
        (
            r#""content":[{"type":"thinking","thinking":5}]"#,
            "/content/0/thinking",
            "reasoning of an unknown form",
        ),
    ];
    for (members, pointer, what) in cases {
        assert_eq!(
            refused(&assistant(members)),
            (pointer.into(), what.into()),
            "{members}"
        );
    }
}
