//! The text of messages: what is taken is what `serde_json` takes, and every slice of it is where it seems to be.

use std::ops::Range;

use precis::domain::json::{self, JsonFault};
use precis::domain::message::{Message, MessageFault, read_material, shallow_view};
use precis::domain::tokens::Counter;
use precis::domain::{search, transcript};
use proptest::prelude::*;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::generate::{Bytes, json_text, message_bytes};
use crate::runner::{Verdict, fuzz};

/// The members of an object as another reader finds them.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(All).map(Members)
    }
}

/// As the service checks a text before it reads it.
fn well_formed(bytes: &[u8]) -> Result<&str, JsonFault> {
    let text = json::check_text(bytes)?;
    serde_json::from_str::<IgnoredAny>(text)?;
    Ok(text)
}

/// What the checks take is what a parser takes that decodes everything, but for numbers that it has no room for.
fn same_as_a_parser(bytes: &[u8]) -> Verdict {
    let parsed = serde_json::from_slice::<Value>(bytes);
    match (well_formed(bytes), parsed) {
        (Ok(_), Ok(_)) | (Err(_), Err(_)) => {}
        (Ok(_), Err(error)) => {
            let text = error.to_string();
            let is_known =
                text.starts_with("number out of range") || text.starts_with("recursion limit");
            prop_assert!(is_known, "taken, but a parser says: {text}");
        }
        (Err(fault), Ok(_)) => prop_assert!(false, "refused, but a parser takes it: {fault}"),
    }
    Ok(())
}

fn spans(text: &str) -> Verdict {
    let members = json::members(text);
    let Members(expected) = serde_json::from_str(text).unwrap_or(Members(Vec::new()));
    prop_assert_eq!(members.len(), expected.len());
    for (index, (member, (name, value))) in members.iter().zip(&expected).enumerate() {
        prop_assert_eq!(&*member.name, name);
        prop_assert_eq!(member.value, value.get());
        prop_assert_eq!(
            text.get(member.start..member.end)
                .map(|part| part.ends_with(member.value)),
            Some(true)
        );
        let without = json::without_member(text, &members, index);
        let Members(left) = serde_json::from_str(&without).expect("an object");
        let kept = expected
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index);
        let kept: Vec<_> = kept
            .map(|(_, (name, value))| (name.clone(), value.get()))
            .collect();
        let left: Vec<_> = left
            .into_iter()
            .map(|(name, value)| (name, value.get()))
            .collect();
        prop_assert_eq!(left, kept);
    }
    let expected: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
    let items = json::element_spans(text);
    let found: Vec<_> = items
        .iter()
        .filter_map(|span| text.get(Range::clone(span)))
        .collect();
    let expected: Vec<_> = expected.into_iter().map(RawValue::get).collect();
    prop_assert_eq!(&found, &expected);
    prop_assert_eq!(json::elements(text), expected);
    if !items.is_empty() {
        let without = json::without_items(text, &items, |index| index % 2 == 0);
        let odd: Vec<_> = found.iter().skip(1).step_by(2).copied().collect();
        prop_assert_eq!(json::elements(&without), odd);
    }
    Ok(())
}

/// The stored text is the text that came, without the member that is for the service.
fn stored(text: &str, message: &Message) -> Verdict {
    let Members(members) = serde_json::from_str(text).expect("an object");
    let Members(left) = serde_json::from_str(&message.body).expect("an object");
    if members.iter().all(|(name, _)| name != "precis") {
        prop_assert_eq!(&message.body, text);
    }
    let members: Vec<_> = members
        .into_iter()
        .filter(|(name, _)| name != "precis")
        .collect();
    prop_assert_eq!(members.len(), left.len());
    for ((name, value), (kept, same)) in members.iter().zip(&left) {
        prop_assert_eq!(name, kept);
        prop_assert_eq!(value.get(), same.get());
    }
    let again = Message::read(&message.body).expect("what is stored can be read");
    prop_assert_eq!(&again.body, &message.body);
    prop_assert_eq!(again.body_digest, message.body_digest);
    prop_assert_eq!(again.content_digest, message.content_digest);
    prop_assert_eq!(
        (again.size, again.tokens, again.says_something),
        (message.size, message.tokens, message.says_something)
    );
    prop_assert_eq!(message.changed_identity(&again), None);
    let erased = Message::read(&message.erased()).expect("what is erased can be read");
    prop_assert_eq!(message.changed_identity(&erased), None);
    Ok(())
}

fn a_message(Bytes(bytes): &Bytes) -> Verdict {
    same_as_a_parser(bytes)?;
    let Ok(text) = well_formed(bytes) else {
        return Ok(());
    };
    let text = text.trim();
    spans(text)?;
    let view = shallow_view(text);
    let read = Message::read(text);
    match &read {
        Err(MessageFault::Json(fault)) => {
            let is_repeated = matches!(fault, JsonFault::DuplicateName { .. });
            prop_assert!(is_repeated, "a text that was checked: {fault}");
            prop_assert!(
                view.is_err()
                    || serde_json::from_str::<Value>(text).is_err()
                    || fault_is_deeper(text)
            );
        }
        Err(MessageFault::Shape { pointer, .. }) => {
            prop_assert!(pointer.is_empty() || pointer.starts_with('/'));
        }
        Ok(message) => {
            stored(text, message)?;
            looked_at(message);
        }
    }
    Ok(())
}

/// Calls are read of an assistant's message only, and the view reads them of any.
fn fault_is_deeper(text: &str) -> bool {
    text.contains("tool_calls")
}

/// Everything else that reads a stored text: it may find nothing, but it ends.
fn looked_at(message: &Message) {
    let fields = search::fields(&message.body);
    for chunk in search::chunks(&fields) {
        assert!(chunk.terms().count() > 0);
    }
    let material = read_material(&message.body);
    assert!(material.calls.len() >= message.calls.len());
    let entry = transcript::Entry::read(message.role, None, Some(0), &message.body);
    assert_eq!(entry.is_none(), message.role.is_instruction());
    let mut counted = message.clone();
    Counter::O200kBase.count(&mut counted);
}

#[test]
fn messages() {
    fuzz("messages", 1_500, &message_bytes(), |bytes| {
        a_message(&bytes)
    });
}

#[test]
fn json_texts() {
    fuzz("json_texts", 1_500, &json_text(), |text| {
        same_as_a_parser(text.as_bytes())?;
        spans(&text)
    });
}
