//! Streams of model servers: however the bytes are cut, they say the same.

use precis::domain::json;
use precis::provider::sse::{Event, Events, TooLong};
use precis::provider::stream::{AnswerStream, End};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::generate::{Bytes, json_text, mutated};
use crate::runner::{Verdict, fuzz};

/// Those bytes in pieces, cut at these places.
fn pieces<'a>(bytes: &'a [u8], cuts: &[Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

fn events(limit: usize, pieces: &[&[u8]]) -> Result<Vec<Event>, TooLong> {
    let mut reader = Events::new(limit);
    let mut found = Vec::new();
    for piece in pieces {
        found.extend(reader.feed(piece)?);
        assert!(
            reader.held() <= 4 * limit + 64,
            "{} bytes held",
            reader.held()
        );
    }
    found.extend(reader.finish());
    Ok(found)
}

/// Everything that a stream came to, in words.
fn answer(pieces: &[&[u8]]) -> (Vec<String>, Result<String, String>) {
    let mut stream = AnswerStream::new();
    let mut deltas = Vec::new();
    let mut on_delta = |delta: &serde_json::value::RawValue| deltas.push(delta.get().to_owned());
    for piece in pieces {
        if !stream.feed(piece, &mut on_delta) {
            break;
        }
    }
    let end = stream.conclude(End::Closed, &mut on_delta);
    let told = match end {
        Ok((answer, cause)) => {
            let usage = answer.usage.map(|usage| usage.get().to_owned());
            check_message(&answer.message);
            Ok(format!(
                "{} {usage:?} {:?} {:?} {} {cause:?}",
                answer.message, answer.finish, answer.model, answer.incomplete
            ))
        }
        Err(error) => Err(format!("{error:?}")),
    };
    (deltas, told)
}

/// Whatever came, the answer is the text of an assistant's message.
fn check_message(message: &str) {
    let members = json::members(message);
    let role = members
        .iter()
        .find(|member| member.name == "role")
        .map(|member| member.value);
    assert_eq!(role, Some("\"assistant\""), "{message}");
    serde_json::from_str::<serde::de::IgnoredAny>(message).expect("an answer is JSON");
}

const LINE_ENDS: [&str; 3] = ["\n", "\r\n", "\r"];

/// A server's stream: its chunks, how its lines end, and what stands between them.
fn framed(chunks: impl Strategy<Value = Vec<String>>) -> impl Strategy<Value = Vec<u8>> {
    let field = select(
        &[
            "data: ",
            "data:",
            "",
            "event: x\ndata: ",
            ": c\ndata: ",
            "event: error\ndata: ",
        ][..],
    );
    let style = (
        select(&LINE_ENDS[..]),
        vec(prop_oneof![8 => Just("data: "), 1 => field], 16),
        any::<bool>(),
    );
    (chunks, style).prop_map(|(chunks, (end, fields, has_done))| {
        let mut out = String::new();
        for (index, chunk) in chunks.iter().enumerate() {
            let field = fields[index % fields.len()].replace('\n', end);
            out.extend([field.as_str(), chunk, end, end]);
        }
        if has_done {
            out.extend(["data: [DONE]", end, end]);
        }
        out.into_bytes()
    })
}

fn delta() -> impl Strategy<Value = String> {
    let call = (0..3_usize, prop::option::of("[a-c]"), "[ -~]{0,6}").prop_map(|(index, id, arguments)| {
        json!({"tool_calls": [{"index": index, "id": id, "function": {"name": "f", "arguments": arguments}}]}).to_string()
    });
    let name = select(
        &[
            "content",
            "reasoning",
            "reasoning_details",
            "refusal",
            "tool_calls",
            "function_call",
            "x",
        ][..],
    );
    prop_oneof![
        4 => "\\PC{0,8}".prop_map(|text| json!({ "content": text }).to_string()),
        2 => call,
        1 => "\\PC{0,8}".prop_map(|text| json!({"reasoning_content": text}).to_string()),
        1 => Just(r#"{"role":"assistant","content":""}"#.to_owned()),
        1 => Just("{}".to_owned()),
        2 => (name, json_text()).prop_map(|(name, value)| format!(r#"{{"{name}":{value}}}"#)),
    ]
}

fn chunk() -> impl Strategy<Value = String> {
    let finish = select(
        &[
            "null",
            "null",
            "null",
            "\"stop\"",
            "\"length\"",
            "\"tool_calls\"",
            "\"error\"",
        ][..],
    );
    prop_oneof![
        8 => (delta(), finish)
            .prop_map(|(delta, finish)| format!(r#"{{"choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}"#)),
        1 => Just(r#"{"choices":[],"usage":{"prompt_tokens":7},"model":"m"}"#.to_owned()),
        1 => json_text().prop_map(|error| format!(r#"{{"error":{error}}}"#)),
        1 => json_text(),
    ]
}

#[test]
fn event_streams() {
    let text = vec(
        prop_oneof![
            "data: ?[a-z]{0,6}",
            "event: error",
            ":.{0,3}",
            "",
            "\u{feff}",
            "\\PC{0,6}"
        ],
        0..12,
    );
    let bytes =
        (text, select(&LINE_ENDS[..])).prop_map(|(lines, end)| lines.join(end).into_bytes());
    let bytes = prop_oneof![4 => mutated(bytes), 1 => vec(any::<u8>(), 0..80)];
    let case = (
        bytes.prop_map(Bytes),
        vec(any::<Index>(), 0..10),
        1..64_usize,
    );
    fuzz(
        "event_streams",
        2_000,
        &case,
        |(Bytes(bytes), cuts, limit)| {
            let whole = events(1_000_000, &[&bytes]);
            prop_assert_eq!(&events(1_000_000, &pieces(&bytes, &cuts)), &whole);
            let single: Vec<_> = bytes.chunks(1).collect();
            prop_assert_eq!(&events(1_000_000, &single), &whole);
            // What is too long is so however it comes.
            prop_assert_eq!(
                &events(limit, &pieces(&bytes, &cuts)),
                &events(limit, &single)
            );
            Ok(())
        },
    );
}

#[test]
fn answer_streams() {
    let bytes = prop_oneof![
        3 => framed(vec(chunk(), 0..12)),
        3 => mutated(framed(vec(chunk(), 0..12))),
        1 => framed(vec(json_text(), 0..6)),
    ];
    let case = (bytes.prop_map(Bytes), vec(any::<Index>(), 0..10));
    fuzz("answer_streams", 1_000, &case, |(Bytes(bytes), cuts)| {
        let whole = answer(&[&bytes]);
        prop_assert_eq!(&answer(&pieces(&bytes, &cuts)), &whole);
        let single: Vec<_> = bytes.chunks(1).collect();
        prop_assert_eq!(&answer(&single), &whole);
        Ok(())
    });
}

/// What a server said piece by piece, as it was before it was taken apart.
fn said(texts: &[String], arguments: &[String], end: &str) -> Verdict {
    let chunk =
        |delta: Value| format!("data: {}{end}{end}", json!({"choices": [{"delta": delta}]}));
    let mut bytes = String::new();
    for text in texts {
        bytes.push_str(&chunk(json!({ "content": text })));
    }
    for (index, piece) in arguments.iter().enumerate() {
        let function = json!({"name": (index == 0).then_some("f"), "arguments": piece});
        let call = json!([{"index": 0, "id": (index == 0).then_some("c"), "type": "function", "function": function}]);
        bytes.push_str(&chunk(json!({ "tool_calls": call })));
    }
    bytes.extend(["data: [DONE]", end, end]);
    let mut stream = AnswerStream::new();
    stream.feed(bytes.as_bytes(), &mut |_| {});
    let (answer, cause) = stream
        .conclude(End::Closed, &mut |_| {})
        .expect("an answer");
    prop_assert!(cause.is_none() && !answer.incomplete);
    let message: Value = serde_json::from_str(&answer.message).expect("JSON");
    prop_assert_eq!(
        message["content"].as_str().unwrap_or_default(),
        texts.concat()
    );
    if !arguments.is_empty() {
        let call = &message["tool_calls"][0];
        prop_assert_eq!(&call["id"], "c");
        prop_assert_eq!(
            &call["function"]["arguments"],
            &Value::from(arguments.concat())
        );
    }
    Ok(())
}

#[test]
fn whole_answers() {
    let text = || prop_oneof!["\\PC{0,8}", any::<String>()];
    let case = (vec(text(), 1..8), vec(text(), 0..6), select(&LINE_ENDS[..]));
    fuzz("whole_answers", 1_000, &case, |(texts, arguments, end)| {
        said(&texts, &arguments, end)
    });
}
