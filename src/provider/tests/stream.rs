//! A streamed answer as a whole: how it is put together, and every way in which it may end.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::provider::stream::{AnswerStream, End, Ended};
use crate::provider::{ChatModel, ProviderError, TimeoutKind};

const TABLE: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/overflow-errors.json"
));

const STALLED: ProviderError = ProviderError::Timeout {
    which: TimeoutKind::Idle,
};

/// Reads these pieces until no more are wanted, and gives the deltas too.
fn read(pieces: &[&[u8]], end: End) -> (Result<Ended, ProviderError>, Vec<String>) {
    let mut deltas = Vec::new();
    let mut on_delta = |delta: &RawValue| deltas.push(delta.get().to_owned());
    let mut stream = AnswerStream::new();
    for piece in pieces {
        if !stream.feed(piece, &mut on_delta) {
            break;
        }
    }
    let ended = stream.conclude(end, &mut on_delta);
    (ended, deltas)
}

fn read_text(text: &str) -> Result<Ended, ProviderError> {
    read(&[text.as_bytes()], End::Closed).0
}

/// A stream of these chunks, without an end.
fn events(chunks: &[&str]) -> String {
    let events: Vec<String> = chunks
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .collect();
    events.concat()
}

fn delta(delta: &Value) -> String {
    json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
        .to_string()
}

fn said(text: &str) -> String {
    delta(&json!({"content": text}))
}

fn finished(reason: &str) -> String {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string()
}

fn message(ended: Result<Ended, ProviderError>) -> String {
    let (answer, broken) = ended.unwrap();
    assert_eq!((answer.incomplete, broken), (false, None));
    answer.message
}

/// The text of an answer that broke off, and why.
fn broken(ended: Result<Ended, ProviderError>) -> (String, ProviderError) {
    let (answer, broken) = ended.unwrap();
    assert!(answer.incomplete);
    (answer.message, broken.unwrap())
}

const HELLO: &str = r#"{"role":"assistant","content":"Hello"}"#;

#[test]
fn a_stream_by_the_book() {
    let usage = r#"{ "prompt_tokens":12, "big":123456789012345678901234567890 }"#;
    let text = events(&[
        r#"{"id":"x","model":"m-1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}"#,
        r#"{"id":"x","model":"m-1","choices":[{"index":0,"delta":{ "content":"Hel" },"logprobs":null,"finish_reason":null}]}"#,
        r#"{"id":"x","model":"m-1","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]}"#,
        r#"{"id":"x","model":"m-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        &format!(r#"{{"id":"x","model":"m-1","choices":[],"usage":{usage}}}"#),
        "[DONE]",
    ]);
    let (ended, deltas) = read(&[text.as_bytes()], End::Closed);
    let (answer, broken) = ended.unwrap();
    assert_eq!(broken, None);
    assert_eq!(answer.message, HELLO);
    assert_eq!(answer.usage.unwrap().get(), usage);
    assert_eq!(answer.finish.as_deref(), Some("stop"));
    assert_eq!(answer.model.as_deref(), Some("m-1"));
    assert!(!answer.incomplete);
    assert_eq!(deltas, [r#"{ "content":"Hel" }"#, r#"{"content":"lo"}"#]);
}

#[rstest]
#[case::usage_in_every_chunk(&[
    r#"{"choices":[{"delta":{"content":"Hello"}}],"usage":{"n":1}}"#,
    r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"n":2}}"#,
])]
#[case::usage_with_null_choices(&[
    r#"{"choices":[{"delta":{"content":"Hello"},"finish_reason":"stop"}]}"#,
    r#"{"choices":null,"usage":{"n":2}}"#,
])]
#[case::usage_without_choices(&[
    r#"{"choices":[{"delta":{"content":"Hello"},"finish_reason":"stop"}]}"#,
    r#"{"usage":{"n":2}}"#,
    r#"{"choices":[],"usage":null}"#,
])]
#[case::an_empty_reason_is_none(&[
    r#"{"choices":[{"delta":{"content":"Hel"},"finish_reason":""}]}"#,
    r#"{"choices":[{"delta":{"content":"lo"},"finish_reason":"stop"}]}"#,
    r#"{"choices":[{"delta":null,"finish_reason":null}],"usage":{"n":2}}"#,
])]
#[case::another_choice(&[
    r#"{"choices":[{"index":1,"delta":{"content":"x"}},{"index":0,"delta":{"content":"Hel"}}]}"#,
    r#"{"choices":[{"index":1,"delta":{"content":"y"},"finish_reason":"length"}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}],"usage":{"n":2}}"#,
])]
#[case::a_whole_message_in_a_chunk(&[
    r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],"usage":{"n":2}}"#,
])]
#[case::a_message_beside_the_delta(&[
    r#"{"choices":[{"delta":{"content":"Hel"},"message":{"content":"Hel"}}]}"#,
    r#"{"choices":[{"delta":{"content":"lo"},"message":{"content":"Hello"},"finish_reason":"stop"}],"usage":{"n":2}}"#,
])]
#[case::words_that_keep_the_line_open(&[
    "ping",
    r#"{"type":"ping"}"#,
    r#"{"choices":[{"delta":{"content":"Hello"},"finish_reason":"stop"}],"usage":{"n":2}}"#,
])]
#[case::an_error_that_says_nothing(&[
    r#"{"error":null,"choices":[{"error":{},"delta":{"content":"Hello"},"finish_reason":"stop"}],"usage":{"n":2}}"#,
])]
fn chunks_in_all_their_shapes(#[case] chunks: &[&str]) {
    for end in ["data: [DONE]\n\n", "", "data: [DONE]"] {
        let (answer, broken) = read_text(&(events(chunks) + end)).unwrap();
        assert_eq!(broken, None);
        assert_eq!(answer.message, HELLO);
        assert_eq!(answer.usage.unwrap().get(), r#"{"n":2}"#);
        assert_eq!(answer.finish.as_deref(), Some("stop"));
    }
}

#[test]
fn deltas_that_add_nothing_are_not_handed_on() {
    let text = events(&[
        &delta(&json!({"role": "assistant"})),
        &delta(&json!({"role": "assistant", "content": "", "refusal": null, "tool_calls": []})),
        &delta(&json!({"content": " "})),
        &delta(&json!({"reasoning": "h"})),
        &delta(
            &json!({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}]}),
        ),
        &finished("tool_calls"),
    ]);
    let (_, deltas) = read(&[text.as_bytes()], End::Closed);
    assert_eq!(deltas.len(), 3, "{deltas:?}");
}

#[test]
fn events_without_blank_lines_between_them() {
    let text = format!(
        "data: {}\ndata: {}\ndata: [DONE]\n",
        said("Hel"),
        said("lo")
    );
    assert_eq!(message(read_text(&text)), HELLO);
}

#[test]
fn data_over_several_lines() {
    let text = "data: {\"choices\":\ndata: [{\"delta\":\ndata: {\"content\":\"Hello\"}}]}\n\ndata: [DONE]\n\n";
    let (ended, deltas) = read(&[text.as_bytes()], End::Closed);
    assert_eq!(message(ended), HELLO);
    assert_eq!(deltas, ["{\"content\":\"Hello\"}"]);
}

#[test]
fn nothing_counts_after_the_end() {
    let text = events(&[
        &said("Hello"),
        "[DONE]",
        &said(" again"),
        "{\"error\":\"x\"}",
    ]);
    assert_eq!(message(read_text(&text)), HELLO);
    let text = events(&[&said("Hello"), &finished("stop"), "{\"error\":\"x\"}"]);
    assert_eq!(message(read_text(&text)), HELLO);
    let text = events(&[&said("Hello"), &finished("stop"), "{\"choi"]);
    assert_eq!(message(read_text(&text)), HELLO);
}

/// A chunk each of: calls of which the second is half there.
fn half_a_call() -> String {
    let head = json!({"tool_calls": [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{\"a\":"}},
    ]});
    delta(&head)
}

#[test]
fn an_end_by_length_is_an_end() {
    let text = events(&[
        &said("I look."),
        &half_a_call(),
        &finished("length"),
        "[DONE]",
    ]);
    let (answer, broken) = read_text(&text).unwrap();
    assert_eq!((answer.incomplete, broken), (false, None));
    assert_eq!(answer.finish.as_deref(), Some("length"));
    let message: Value = serde_json::from_str(&answer.message).unwrap();
    assert_eq!(message["content"], "I look.");
    assert_eq!(message["tool_calls"][1]["function"]["arguments"], "{\"a\":");
}

// Breaking off

#[rstest]
#[case::closed(End::Closed, "", ProviderError::Connect)]
#[case::cut(End::Broken(ProviderError::Connect), "", ProviderError::Connect)]
#[case::cut_in_a_chunk(
    End::Broken(ProviderError::Connect),
    "data: {\"choices\":[{\"del",
    ProviderError::Connect
)]
#[case::cut_before_the_blank_line(
    End::Broken(ProviderError::Connect),
    "data: [DONE]",
    ProviderError::Connect
)]
#[case::stalled(End::Broken(STALLED), "", STALLED)]
#[case::half_a_chunk(End::Closed, "data: {\"choices\":[{\"del\n\n", ProviderError::Malformed { what: "a chunk of the stream is not JSON" })]
#[case::an_error(End::Closed, "data: {\"error\":{\"code\":502,\"message\":\"Upstream\"}}\n\n", ProviderError::Unavailable { status: 502, retry_after: None })]
#[case::an_error_of_the_choice(End::Closed, "data: {\"choices\":[{\"error\":{\"code\":502},\"delta\":{\"content\":\"!\"},\"finish_reason\":\"error\"}]}\n\n", ProviderError::Unavailable { status: 502, retry_after: None })]
#[case::an_error_event(End::Closed, "event: error\ndata: Internal error\n\n", ProviderError::Refused { status: 200 })]
#[case::an_error_without_data(End::Closed, "event: error\n\n", ProviderError::Refused { status: 200 })]
#[case::an_error_beside_the_rules(End::Closed, "{\"error\":\"out of memory\"}\n", ProviderError::Refused { status: 200 })]
#[case::a_reason(End::Closed, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"error\"}]}\n\n", ProviderError::Malformed { what: "the stream ended with an error that it does not name" })]
#[case::a_reason_and_then_the_error(End::Closed, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"error\"}]}\n\ndata: {\"error\":{\"code\":503}}\n\n", ProviderError::Unavailable { status: 503, retry_after: None })]
fn a_stream_that_breaks_off(#[case] end: End, #[case] tail: &str, #[case] cause: ProviderError) {
    let again = || match &end {
        End::Closed => End::Closed,
        End::Broken(error) => End::Broken(error.clone()),
    };
    let reasoned = delta(&json!({"reasoning_content": "hm"}));
    let head = events(&[&reasoned, &said("Hel"), &said("lo"), &half_a_call()]);
    let (ended, deltas) = read(&[(head + tail).as_bytes()], again());
    assert_eq!(deltas.len(), 4);
    assert_eq!(
        broken(ended),
        (
            r#"{"role":"assistant","content":"Hello","reasoning_content":"hm"}"#.to_owned(),
            cause.clone()
        )
    );
    // Without text there is nothing to keep.
    for chunks in [
        vec![reasoned.as_str()],
        vec![&half_a_call()],
        vec![&said("")],
    ] {
        let text = events(&chunks) + tail;
        assert_eq!(read(&[text.as_bytes()], again()).0.unwrap_err(), cause);
    }
}

#[test]
fn a_refusal_that_breaks_off_is_text() {
    let text = events(&[&delta(&json!({"refusal": "I will"}))]);
    let (message, _) = broken(read_text(&text));
    assert_eq!(
        message,
        r#"{"role":"assistant","content":"","refusal":"I will"}"#
    );
}

#[rstest]
#[case("")]
#[case(": only comments\n\n")]
#[case("data: [DONE]\n\n")]
#[case("data: ping\n\n")]
#[case("Service temporarily out of order")]
#[case("data: {\"choices\":[],\"usage\":{\"n\":1}}\n\n")]
#[case("data: {\"choices\":[]}\n\ndata: [DONE]\n\n")]
fn streams_that_hold_no_answer(#[case] text: &str) {
    assert_eq!(
        read_text(text).unwrap_err(),
        ProviderError::Malformed {
            what: "the stream holds no choice"
        }
    );
}

#[test]
fn an_empty_answer_is_one() {
    let text = events(&[&said(""), &finished("stop"), "[DONE]"]);
    assert_eq!(
        message(read_text(&text)),
        r#"{"role":"assistant","content":""}"#
    );
}

// Refusals

#[test]
fn s34_every_refusal_of_the_table_inside_a_stream() {
    let rows: Vec<Value> = serde_json::from_str(TABLE).unwrap();
    let mut overflows = 0;
    for (number, row) in rows.iter().enumerate() {
        let body = &row["body"];
        if body.get("choices").is_some() {
            // A normal answer that quotes a refusal stays one, in one chunk or in many.
            let words = body["choices"][0]["message"]["content"].as_str().unwrap();
            let ended = read_text(&events(&[&body.to_string(), "[DONE]"]));
            assert!(message(ended).contains(words), "row {number}");
            let ended = read_text(&events(&[&said(words), &finished("stop")]));
            assert!(message(ended).contains(words), "row {number}");
            continue;
        }
        let is_overflow = row["is_context_overflow"] == true;
        let wrapped = json!({"error": {"message": "Provider returned error", "metadata": {"raw": body.to_string()}}});
        let chosen = json!({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": body}]});
        let mut tails = vec![
            format!("event: error\ndata: {body}\n\n"),
            format!("event:error\r\ndata:{wrapped}\r\n\r\n"),
            format!("data: {wrapped}\n\n"),
            format!("data: {chosen}\n\n"),
            format!("data: {}\n\n", json!({"error": body})),
            format!("{{\"error\":{}}}\n\n", json!(body.to_string())),
        ];
        let shows = |value: &Value| value.get("error").is_some() || value["object"] == "error";
        if shows(body) || body.get(0).is_some_and(shows) {
            tails.push(format!("data: {body}\n\n"));
        }
        for tail in &tails {
            for head in ["", &said(""), &said("Hel")] {
                let head = if head.is_empty() {
                    String::new()
                } else {
                    events(&[head])
                };
                let ended = read_text(&(head.clone() + tail));
                let found = ended.as_ref().err();
                assert_eq!(
                    matches!(found, Some(ProviderError::Overflow { .. })),
                    is_overflow,
                    "row {number}: {tail} {ended:?}"
                );
                let by_rate = row["http_status"] == 429 || matches!(number, 27 | 30);
                assert_eq!(
                    matches!(found, Some(ProviderError::RateLimited { .. })),
                    by_rate,
                    "row {number}: {tail} {ended:?}"
                );
                assert!(
                    found.is_some() || head.contains("Hel"),
                    "row {number}: {tail}"
                );
            }
        }
        overflows += usize::from(is_overflow);
    }
    assert!(overflows >= 16);
}

#[rstest]
#[case("model_context_window_exceeded", true)]
#[case("context_length_exceeded", true)]
#[case("length", false)]
#[case("stop", false)]
fn a_reason_may_name_an_overflow(#[case] reason: &str, #[case] overflows: bool) {
    let ended = read_text(&events(&[&said(""), &finished(reason), "[DONE]"]));
    if overflows {
        let expected = ProviderError::Overflow {
            status: 200,
            prompt_tokens: None,
            window: None,
        };
        assert_eq!(ended.unwrap_err(), expected);
    } else {
        assert_eq!(ended.unwrap().0.finish.as_deref(), Some(reason));
    }
    // With a text it is the end of one.
    let (answer, _) = read_text(&events(&[&said("Hello"), &finished(reason)])).unwrap();
    assert_eq!((answer.message.as_str(), answer.incomplete), (HELLO, false));
}

// Size

#[test]
fn ten_thousand_tiny_chunks() {
    let mut count = 0;
    let mut on_delta = |_: &RawValue| count += 1;
    let mut stream = AnswerStream::new();
    for number in 0..10_000 {
        let event = events(&[&said(if number % 2 == 0 { "a" } else { "b" })]);
        for piece in event.as_bytes().chunks(50) {
            assert!(stream.feed(piece, &mut on_delta));
        }
        assert!(stream.held() < 1_000, "{} at {number}", stream.held());
    }
    assert!(stream.feed(events(&[&finished("stop")]).as_bytes(), &mut on_delta));
    let (answer, _) = stream.conclude(End::Closed, &mut |_| {}).unwrap();
    let message: Value = serde_json::from_str(&answer.message).unwrap();
    assert_eq!(message["content"], "ab".repeat(5_000));
    assert_eq!(count, 10_000);
}

#[test]
fn too_many_deltas_and_too_long_events() {
    let half = events(&[&said(&"x".repeat(ChatModel::MAX_ANSWER_BYTES / 2))]);
    let half = half.as_bytes();
    let (ended, deltas) = read(&[half, half], End::Closed);
    assert_eq!(ended.unwrap_err(), ProviderError::TooLarge);
    assert_eq!(deltas.len(), 1);
    let endless = vec![b'x'; ChatModel::MAX_ANSWER_BYTES];
    let (ended, _) = read(
        &[events(&[&said("a")]).as_bytes(), b":", &endless, &endless],
        End::Closed,
    );
    assert_eq!(ended.unwrap_err(), ProviderError::TooLarge);
}

// Cutting

/// One of the ways to say something.
fn any_delta() -> impl Strategy<Value = Value> {
    prop_oneof![
        "\\PC{0,6}".prop_map(|text| json!({"content": text})),
        "\\PC{1,6}".prop_map(|text| json!({"reasoning_content": text})),
        (0..3_u8, "[ -~]{0,5}").prop_map(|(index, text)| {
            json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        }),
        (0..3_u8).prop_map(|index| {
            json!({"tool_calls": [{"index": index, "id": format!("c{index}"), "type": "function", "function": {"name": format!("f{index}")}}]})
        }),
        Just(json!({"reasoning_details": [{"type": "reasoning.text", "text": "h\u{e9}m"}]})),
        Just(json!({"role": "assistant", "content": ""})),
    ]
}

fn any_stream() -> impl Strategy<Value = String> {
    let deltas = proptest::collection::vec(any_delta(), 0..6);
    let breaks = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    let colon = prop_oneof![Just("data: "), Just("data:"), Just(": x{br}data: ")];
    let ends = proptest::sample::subsequence(vec!["finish", "usage", "[DONE]", "error"], 0..4);
    (deltas, breaks, colon, ends, any::<bool>()).prop_map(|(deltas, line, colon, ends, mark)| {
        let colon = colon.replace("{br}", line);
        let mut text = String::from(if mark { "\u{feff}" } else { "" });
        let mut event = |data: &str| {
            text.extend([&colon, data, line, line]);
        };
        for said in &deltas {
            event(&delta(said));
        }
        for end in ends {
            match end {
                "finish" => event(&finished("stop")),
                "usage" => event("{\"choices\":[],\"usage\":{\"n\":1}}"),
                "error" => event("{\"error\":{\"message\":\"prompt is too long\"}}"),
                other => event(other),
            }
        }
        text
    })
}

/// All that there is to compare.
fn seen(pieces: &[&[u8]]) -> String {
    let (ended, deltas) = read(pieces, End::Closed);
    let ended = ended.map(|(answer, broken)| {
        let usage = answer.usage.as_ref().map(|usage| usage.get().to_owned());
        (
            answer.message,
            usage,
            answer.finish,
            answer.incomplete,
            broken,
        )
    });
    format!("{ended:?} {deltas:?}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_stream_may_be_cut_anywhere(text in any_stream()) {
        let bytes = text.as_bytes();
        let whole = seen(&[bytes]);
        for cut in 0..=bytes.len() {
            let (one, two) = bytes.split_at(cut);
            prop_assert_eq!(&seen(&[one, two]), &whole, "cut at {}", cut);
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(&seen(&single), &whole);
    }

    #[test]
    fn a_stream_may_be_damaged_anywhere(
        text in any_stream(),
        at in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = text.into_bytes();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let (ended, _) = read(&[&bytes], End::Closed);
        if let Ok((answer, _)) = ended {
            let message: Value = serde_json::from_str(&answer.message).unwrap();
            prop_assert_eq!(&message["role"], "assistant");
        }
    }
}
