//! What is said, by whom: texts, pictures, documents.

use super::{one, refused, rendered};

fn user(part: &str) -> String {
    format!(r#"{{"role":"user","content":[{part}]}}"#)
}

#[test]
fn maps_what_a_user_says() {
    let cases = [
        // A text keeps its spelling, escapes included.
        (
            r#"{"type":"text","text":"a\u0000\u00e4\/ä"}"#,
            r#"{"type":"text","text":"a\u0000\u00e4\/ä"}"#,
        ),
        (
            r#"{"text":"no type"}"#,
            r#"{"type":"text","text":"no type"}"#,
        ),
        (
            r#"{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}"#,
            r#"{"type":"text","text":"x"}"#,
        ),
        (
            r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBO","detail":"high"}}"#,
            r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBO"}}"#,
        ),
        (
            r#"{"type":"image_url","image_url":"data:image\/jpg;base64,\/9j="}"#,
            r#"{"type":"image","source":{"type":"base64","media_type":"image/jpeg","data":"/9j="}}"#,
        ),
        (
            r#"{"type":"image_url","image_url":{"url":"https:\/\/example.com/a.png"}}"#,
            r#"{"type":"image","source":{"type":"url","url":"https:\/\/example.com/a.png"}}"#,
        ),
        (
            r#"{"type":"file","file":{"filename":"A \"b\".pdf","file_data":"data:application/pdf;base64,JVBE"}}"#,
            r#"{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"JVBE"},"title":"A \"b\".pdf"}"#,
        ),
        (
            r#"{"type":"file","file":{"file_data":"data:text/plain;charset=utf-8;base64,aMOkCg=="}}"#,
            r#"{"type":"document","source":{"type":"text","media_type":"text/plain","data":"hä\n"}}"#,
        ),
        // As parsers have it, the last of two holds.
        (
            r#"{"type":"text","text":"a","text":"b"}"#,
            r#"{"type":"text","text":"b"}"#,
        ),
        // Blocks of the API's own kind pass as they came, but for `cache_control`.
        (
            r#"{"type":"image", "source":{"type":"url","url":"https://example.com/a.png"}}"#,
            r#"{"type":"image", "source":{"type":"url","url":"https://example.com/a.png"}}"#,
        ),
        (
            r#"{"type":"document","source":{"type":"content","content":[{"type":"text","text":"x","cache_control":{}}]},"\u0063ache_control":{"type":"ephemeral"},"title":"t"}"#,
            r#"{"type":"document","source":{"type":"content","content":[{"type":"text","text":"x"}]},"title":"t"}"#,
        ),
        (
            r#"{"type":"image","\u0063ache_control":{},"source":{"type":"file","file_id":"f"}}"#,
            r#"{"type":"image","source":{"type":"file","file_id":"f"}}"#,
        ),
        (
            r#"{"type":"search_result","source":"https://example.com","title":"t","content":[{"type":"text","text":"x"}],"cache_control":{}}"#,
            r#"{"type":"search_result","source":"https://example.com","title":"t","content":[{"type":"text","text":"x"}]}"#,
        ),
    ];
    for (part, block) in cases {
        assert_eq!(one(&user(part)), block, "{part}");
    }
    assert_eq!(
        one(r#"{"role":"user","name":"ann","content":"\ud83d\ude00"}"#),
        r#"{"type":"text","text":"\ud83d\ude00"}"#
    );
}

#[test]
fn a_long_title_is_cut() {
    let name = "ä".repeat(501);
    let part = format!(
        r#"{{"type":"file","file":{{"filename":"{name}","file_data":"data:application/pdf;base64,JVBE"}}}}"#
    );
    let title = format!(r#""title":"{}"}}"#, "ä".repeat(500));
    assert!(one(&user(&part)).ends_with(&title));
}

#[track_caller]
fn assert_refused(part: &str, pointer: &str, what: &str) {
    let source = user(&format!(r#"{{"type":"text","text":"x"}},{part}"#));
    assert_eq!(refused(&source), (pointer.into(), what.into()), "{part}");
}

#[test]
fn says_what_a_user_cannot_say() {
    let cases = [
        (
            r#"{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}"#,
            "/content/1",
            "a content part of type `input_audio`",
        ),
        (
            r#"{"type":"tool_result","tool_use_id":"a"}"#,
            "/content/1",
            "a content part of type `tool_result`",
        ),
        (
            r#"{"type":"thinking","thinking":"x","signature":"s"}"#,
            "/content/1",
            "a content part of type `thinking`",
        ),
        (
            r#"{"type":"my secret is 5"}"#,
            "/content/1",
            "a content part of an unknown type",
        ),
        (
            r#"{"x":"text"}"#,
            "/content/1",
            "a content part without a type",
        ),
        (
            r#""text""#,
            "/content/1",
            "a content part that is no object",
        ),
        (
            r#"{"type":"text","text":5}"#,
            "/content/1/text",
            "text that is no string",
        ),
    ];
    for (part, pointer, what) in cases {
        assert_refused(part, pointer, what);
    }
}

#[test]
fn says_which_media_have_no_place() {
    let cases = [
        (
            r#"{"type":"image_url","image_url":{"url":"data:image/svg+xml;base64,AAAA"}}"#,
            "/content/1/image_url/url",
            "an image of type `image/svg+xml`",
        ),
        (
            r#"{"type":"image_url","image_url":{"url":"data:image/png,AAAA"}}"#,
            "/content/1/image_url/url",
            "an image that is neither at an http address nor a data URI in base64",
        ),
        (
            r#"{"type":"image_url","image_url":"file:///etc/passwd"}"#,
            "/content/1/image_url",
            "an image that is neither at an http address nor a data URI in base64",
        ),
        (
            r#"{"type":"image_url"}"#,
            "/content/1/image_url/url",
            "an image without a URL",
        ),
        (
            r#"{"type":"file","file":{"file_id":"file-1"}}"#,
            "/content/1/file/file_id",
            "a file that is kept elsewhere",
        ),
        (
            r#"{"type":"file","file":{"filename":"a"}}"#,
            "/content/1/file",
            "a file without its data",
        ),
        (
            r#"{"type":"file","file":{"file_data":"JVBE"}}"#,
            "/content/1/file/file_data",
            "a file whose data is no data URI in base64",
        ),
        (
            r#"{"type":"file","file":{"file_data":"data:text/csv;base64,AAAA"}}"#,
            "/content/1/file/file_data",
            "a file of type `text/csv`",
        ),
        (
            r#"{"type":"file","file":{"file_data":"data:text/plain;base64,/////w=="}}"#,
            "/content/1/file/file_data",
            "a text file that is not UTF-8",
        ),
        (
            r#"{"type":"file","file":{"file_data":"data:text/plain;base64,IAo="}}"#,
            "/content/1/file/file_data",
            "a text file with nothing in it",
        ),
        (
            r#"{"type":"image","image":"x"}"#,
            "/content/1",
            "a content block without its `source`",
        ),
        (
            r#"{"type":"search_result","source":"x"}"#,
            "/content/1",
            "a content block without its `content`",
        ),
    ];
    for (part, pointer, what) in cases {
        assert_refused(part, pointer, what);
    }
}

#[test]
fn says_what_others_cannot_say() {
    let picture = r#"[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBO"}}]"#;
    let cases = [
        (
            format!(r#"{{"role":"system","content":{picture}}}"#),
            "/content/0",
            "a content part of type `image_url` in an instruction",
        ),
        (
            format!(r#"{{"role":"assistant","content":{picture}}}"#),
            "/content/0",
            "a content part of type `image_url` in an assistant message",
        ),
        (
            r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}"#.into(),
            "/content/0",
            "a content part of type `tool_use` in an assistant message",
        ),
        (
            r#"{"role":"assistant","audio":{"id":"audio_1"}}"#.into(),
            "/audio",
            "an answer in audio",
        ),
        (
            r#"{"role":"assistant","refusal":1}"#.into(),
            "/refusal",
            "a refusal that is no text",
        ),
        (
            r#"{"role":"user","content":5}"#.into(),
            "/content",
            "content that is neither text nor parts",
        ),
        (
            r#"{"role":"function","content":""}"#.into(),
            "/role",
            "a message of an unknown role",
        ),
        ("{".into(), "", "what is no list of messages"),
    ];
    for (source, pointer, what) in cases {
        assert_eq!(refused(&source), (pointer.into(), what.into()), "{source}");
    }
}

#[test]
fn a_refusal_is_text_wherever_it_stands() {
    let text = r#"{"type":"text","text":"I can't."}"#;
    for source in [
        r#"{"role":"assistant","content":[{"type":"refusal","refusal":"I can't."}]}"#,
        r#"{"role":"assistant","content":null,"refusal":"I can't.","audio":null,"function_call":null}"#,
        r#"{"role":"assistant","content":"I can't.","refusal":null}"#,
    ] {
        assert_eq!(one(source), text);
    }
}

#[test]
fn blank_texts_say_nothing() {
    for content in [
        r#""""#,
        r#""  ""#,
        r#"" \n\t\u0020\u00a0\u2003\u001c""#,
        r#""\u3000　""#,
        "null",
        "[]",
        r#"[{"type":"text","text":" "},{"type":"text","text":null},{"type":"text"}]"#,
    ] {
        let source = format!(r#"{{"role":"user","content":{content}}}"#);
        assert_eq!(one(&source), "", "{content}");
    }
    // A character without width is no white space.
    for content in [r#""\u200b""#, "\" \u{200b}\"", r#""\\""#, r#""\u0000""#] {
        let source = format!(r#"{{"role":"user","content":{content}}}"#);
        assert_eq!(
            one(&source),
            format!(r#"{{"type":"text","text":{content}}}"#)
        );
    }
}

#[test]
fn instructions_become_system_blocks_wherever_they_stand() {
    let rendered = rendered(
        &[
            r#"{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":" "},{"type":"text","text":"b"}]}"#,
            r#"{"role":"developer","content":""}"#,
            r#"{"role":"user","content":"q"}"#,
            r#"{"role":"developer","content":"c"}"#,
        ],
        &[],
    );
    assert_eq!(
        rendered.system,
        r#"{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"text","text":"c"}"#
    );
    assert_eq!(rendered.index, [None, None, Some(0), None]);
}
