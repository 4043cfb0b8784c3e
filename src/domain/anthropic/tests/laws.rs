//! Laws that hold for any history.

use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use super::super::{Rendered, render};
use super::{array, strict};
use crate::domain::json;

// In what follows `@` stands for a text that must not get lost; each becomes another word.

const SAID: [&str; 4] = [r#""@""#, r#""""#, r#"" \n\u3000""#, "null"];

const USER_PARTS: [&str; 8] = [
    r#"{"type":"text","text":"@"}"#,
    r#"{"type":"text","text":"\n","cache_control":{"type":"ephemeral"}}"#,
    r#"{"type":"image_url","image_url":{"url":"data:image/webp;base64,UklG"}}"#,
    r#"{"type":"image_url","image_url":{"url":"https://example.com/@.png"}}"#,
    r#"{"type":"file","file":{"filename":"@","file_data":"data:application/pdf;base64,JVBE"}}"#,
    r#"{"type":"file","file":{"filename":" ","file_data":"data:text/plain;base64,eA=="}}"#,
    r#"{"type":"document","source":{"type":"text","media_type":"text/plain","data":"@"},"cache_control":{"type":"ephemeral"}}"#,
    r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBO"}}"#,
];

const ASSISTANT_PARTS: [&str; 6] = [
    r#"{"type":"text","text":"@"}"#,
    r#"{"type":"text","text":""}"#,
    r#"{"type":"refusal","refusal":"@"}"#,
    r#"{"type":"thinking","thinking":"@","signature":"@"}"#,
    r#"{"type":"thinking","thinking":"@","signature":""}"#,
    r#"{"type":"redacted_thinking","data":"@"}"#,
];

const PLAIN: &str = r#","reasoning":"\u0000@""#;

const REASONING: [&str; 9] = [
    "",
    r#","reasoning_content":null,"reasoning":"","refusal":null"#,
    r#","refusal":"@""#,
    PLAIN,
    r#","reasoning_details":[{"type":"reasoning.text","text":"@"},{"type":"reasoning.summary","summary":"@"}]"#,
    r#","reasoning":"again","reasoning_details":[{"type":"reasoning.text","text":"@","signature":"@"}]"#,
    r#","reasoning_details":[{"type":"reasoning.encrypted","data":"@"}]"#,
    r#","reasoning_content":"again","thinking_blocks":[{"type":"thinking","thinking":"@","signature":"@"},{"type":"redacted_thinking","data":"@"}]"#,
    r#","thinking_blocks":[{"type":"thinking","thinking":"@"}]"#,
];

const IDS: [&str; 6] = ["a", "b", "a_2", "functions.f:0", "é", ""];

const CALLS: [&str; 6] = [
    r#""function":{"name":"f","arguments":"{\"p\":\"@\"}"}"#,
    r#""function":{"name":"g.h","arguments":""}"#,
    r#""function":{"name":"","arguments":"{\"p\":\"@"}"#,
    r#""function":{"name":"i","arguments":"[\"@\"]"}"#,
    r#""function":{"name":"j","arguments":{"p":"@"}}"#,
    r#""type":"custom","custom":{"name":"k","input":"@"}"#,
];

fn content(parts: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop_oneof![
        select(&SAID[..]).prop_map(ToOwned::to_owned),
        prop::collection::vec(select(parts), 0..4)
            .prop_map(|parts| format!("[{}]", parts.join(","))),
    ]
}

fn instruction() -> impl Strategy<Value = Vec<String>> {
    (select(&["system", "developer"][..]), select(&SAID[..]))
        .prop_map(|(role, content)| vec![format!(r#"{{"role":"{role}","content":{content}}}"#)])
}

fn user() -> impl Strategy<Value = Vec<String>> {
    content(&USER_PARTS)
        .prop_map(|content| vec![format!(r#"{{"role":"user","content":{content}}}"#)])
}

fn assistant() -> impl Strategy<Value = Vec<String>> {
    (content(&ASSISTANT_PARTS), select(&REASONING[..])).prop_map(|(content, reasoning)| {
        // Beside signed or sealed reasoning the plain one counts as its repetition.
        let signed = content.contains(r#""signature":"@""#) || content.contains("redacted");
        let reasoning = match reasoning {
            PLAIN if signed => PLAIN.replace('@', "again"),
            other => other.to_owned(),
        };
        vec![format!(
            r#"{{"role":"assistant","content":{content}{reasoning}}}"#
        )]
    })
}

/// An assistant message with calls, and some of their results in any order.
fn step() -> impl Strategy<Value = Vec<String>> {
    let calls = (1_usize..4).prop_flat_map(|count| {
        (
            subsequence(&IDS[..], count).prop_shuffle(),
            prop::collection::vec(select(&CALLS[..]), count),
        )
    });
    let result = (
        content(&USER_PARTS),
        select(&["", r#","is_error":true"#][..]),
    );
    (
        assistant(),
        calls,
        prop::collection::vec(result, 3),
        prop::collection::vec(any::<Index>(), 3),
        prop_oneof![3 => Just(3_usize), 1 => 0_usize..3],
    )
        .prop_map(|(mut messages, (ids, calls), results, order, answered)| {
            let calls: Vec<_> = ids
                .iter()
                .zip(calls)
                .map(|(id, call)| format!(r#"{{"id":"{id}",{call}}}"#))
                .collect();
            let open = messages[0].strip_suffix('}').unwrap();
            messages[0] = format!(r#"{open},"tool_calls":[{}]}}"#, calls.join(","));
            let mut ids: Vec<_> = ids.into_iter().zip(order).collect();
            ids.sort_by_key(|(_, order)| order.index(1000));
            let results = ids.iter().zip(results).take(answered);
            messages.extend(results.map(|((id, _), (content, flag))| {
                format!(r#"{{"role":"tool","tool_call_id":"{id}","content":{content}{flag}}}"#)
            }));
            messages
        })
}

fn history() -> impl Strategy<Value = Vec<String>> {
    let steps = prop_oneof![
        1 => instruction(),
        3 => user(),
        3 => assistant(),
        3 => step(),
    ];
    prop::collection::vec(steps, 0..12).prop_map(|steps| {
        let mut words = 0;
        let mut spelled = |message: String| {
            let mut pieces = message.split('@');
            let mut text = pieces.next().unwrap().to_owned();
            for piece in pieces {
                words += 1;
                text.extend(["word", &words.to_string(), "."]);
                text.push_str(piece);
            }
            text
        };
        steps.into_iter().flatten().map(&mut spelled).collect()
    })
}

/// The words of a message that must not get lost.
fn words(message: &str) -> impl Iterator<Item = &str> {
    let rests = message.split("word").skip(1);
    rests.map(|rest| rest.split('.').next().unwrap())
}

fn items(rendered: &Rendered) -> Vec<String> {
    json::elements(&format!("[{}]", rendered.messages))
        .into_iter()
        .map(ToOwned::to_owned)
        .collect()
}

const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_context_keeps_the_rules(
        history in history(),
        breakpoints in prop::collection::vec(any::<Index>(), 0..=4),
    ) {
        let sources = history.join(",");
        let breakpoints: Vec<_> = breakpoints
            .iter()
            .filter(|_| !history.is_empty())
            .map(|index| index.index(history.len()))
            .collect();
        let marked = render(&sources, &breakpoints).unwrap();
        strict::check(&array(&marked.system), &array(&marked.messages), &history.join("\n"));
        prop_assert_eq!(&marked, &render(&sources, &breakpoints).unwrap());

        let plain = render(&sources, &[]).unwrap();
        let (system, messages) = (&marked.system, &marked.messages);
        prop_assert_eq!(&plain.messages, &messages.replace(MARK, ""));
        prop_assert_eq!(&plain.system, &system.replace(MARK, ""));
        prop_assert!(!plain.messages.contains("cache_control"));
        let items = items(&marked);
        for message in &marked.breakpoints {
            prop_assert!(items[*message].contains(MARK));
        }
        let in_system = breakpoints.len() - marked.breakpoints.len();
        prop_assert_eq!(system.contains(MARK), in_system > 0 && !system.is_empty());
    }

    #[test]
    fn nothing_gets_lost(history in history()) {
        let rendered = render(&history.join(","), &[]).unwrap();
        let items = items(&rendered);
        prop_assert_eq!(rendered.index.len(), history.len());
        for (source, index) in history.iter().zip(&rendered.index) {
            let is_instruction = source.contains(r#""system""#) || source.contains(r#""developer""#);
            prop_assert!(index.is_none() || !is_instruction);
            let said = index.map_or("", |index| &items[index]);
            for word in words(source) {
                let word = format!("word{word}.");
                let place = if is_instruction { &rendered.system } else { said };
                prop_assert!(place.contains(&word), "{} of {}", word, source);
            }
        }
    }

    #[test]
    fn more_messages_change_none_but_the_last(history in history()) {
        let whole = render(&history.join(","), &[]).unwrap();
        let whole_items = items(&whole);
        for length in 0..history.len() {
            let start = render(&history[..length].join(","), &[]).unwrap();
            let items = items(&start);
            let kept = items.len().saturating_sub(1);
            prop_assert!(items.len() <= whole_items.len());
            prop_assert_eq!(&items[..kept], &whole_items[..kept]);
            prop_assert_eq!(&start.index[..], &whole.index[..length]);
            prop_assert!(whole.system.starts_with(&start.system));
        }
    }
}
