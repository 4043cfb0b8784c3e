//! What a refusal is about: nothing that a server sends breaks the reading, and numbers change nothing.

use precis::provider::overflow::{Refusal, classify, embedded_status};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::generate::{Bytes, json_text, mutated};
use crate::runner::fuzz;

const TABLE: &str = include_str!("../fixtures/overflow-errors.json");

fn table() -> Vec<Value> {
    serde_json::from_str(TABLE).expect("the table")
}

/// The same with each number in its texts replaced; the numbers of codes stay.
fn with_numbers(value: &Value, change: &mut dyn FnMut(u64) -> u64) -> Value {
    match value {
        Value::String(text) => text_with_numbers(text, change).into(),
        Value::Array(items) => items
            .iter()
            .map(|item| with_numbers(item, change))
            .collect(),
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(name, value)| (name.clone(), with_numbers(value, change)))
                .collect(),
        ),
        other => other.clone(),
    }
}

fn text_with_numbers(text: &str, change: &mut dyn FnMut(u64) -> u64) -> String {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut out = String::new();
    for word in text.split_inclusive(|letter| !is_word(letter)) {
        // `model-4o` and the like are no numbers.
        let digits = word.trim_end_matches(|letter| !is_word(letter));
        match digits.parse() {
            Ok(number) => {
                out.push_str(&change(number).to_string());
                out.push_str(&word[digits.len()..]);
            }
            Err(_) => out.push_str(word),
        }
    }
    out
}

/// As proxies pass errors on.
fn wrapped(body: &Value, shape: usize) -> Value {
    match shape {
        0 => body.clone(),
        1 => json!([{"error": body}]),
        2 => {
            json!({"error": {"message": "Provider returned error", "metadata": {"raw": body.to_string()}}})
        }
        _ => json!({"detail": [body]}),
    }
}

#[test]
fn refusals() {
    let status =
        prop_oneof![3 => 400..600_u16, 1 => any::<u16>(), 1 => select(&[200, 413, 429, 529][..])];
    let text = prop_oneof![
        json_text(),
        any::<Index>().prop_map(|at| at.get(&table())["body"].to_string()),
        (any::<Index>(), json_text()).prop_map(|(at, other)| {
            let body = at.get(&table())["body"].to_string();
            format!(r#"{{"error":{body},"other":{other}}}"#)
        }),
        "\\PC{0,80}",
    ];
    let body = prop_oneof![
        4 => mutated(text.prop_map(String::into_bytes)),
        1 => vec(any::<u8>(), 0..80),
    ];
    fuzz(
        "refusals",
        3_000,
        &(status, body.prop_map(Bytes)),
        |(status, Bytes(body))| {
            let found = classify(status, &body);
            prop_assert_eq!(found, classify(status, &body));
            if status == 429 {
                prop_assert_eq!(found, Refusal::RateLimit);
            }
            if let Some(inner) = embedded_status(&body) {
                prop_assert!((400..600).contains(&inner));
            }
            Ok(())
        },
    );
}

#[test]
fn known_refusals() {
    let number = prop_oneof![1..10_000_000_u64, 0..2_u64, 425..435_u64, 400..600_u64];
    let case = (
        any::<Index>(),
        vec(number, 12),
        10..10_000_u64,
        0..4_usize,
        400..600_u16,
    );
    fuzz(
        "known_refusals",
        2_000,
        &case,
        |(at, numbers, percent, shape, status)| {
            let table = table();
            let row = at.get(&table);
            let expected = row["is_context_overflow"] == true;
            let mut numbers = numbers.into_iter();
            // An overflow stays one if all grows alike: a cap above the window is another mistake.
            let mut change = |number: u64| {
                if expected {
                    number * percent / 100
                } else {
                    numbers.next().unwrap_or(1)
                }
            };
            let changed = with_numbers(&row["body"], &mut change);
            let body = wrapped(&changed, shape).to_string();
            let found = classify(status, body.as_bytes());
            let is_overflow = matches!(found, Refusal::Overflow { .. });
            prop_assert_eq!(is_overflow, expected && status != 429, "{}", body);
            if row["http_status"] == 429 {
                // Whatever it says of tokens.
                prop_assert_eq!(classify(429, body.as_bytes()), Refusal::RateLimit);
            }
            Ok(())
        },
    );
}
