//! Whether a context is one that strict model APIs take.

use serde_json::{Value, value::RawValue};
use sha2::{Digest, Sha256};

use crate::findings::Findings;

/// What stands for a result that never came.
pub const NO_RESULT: &str = "[no result was recorded for this call]";
/// What a summary begins with.
const SUMMARY: &str = "[Summary of previous conversation]\n\n";

/// A digest of the messages of a context, as they were written.
pub fn digest(body: &[u8]) -> String {
    let messages = texts(body).join("\n");
    hex(&Sha256::digest(messages.as_bytes()))
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The messages of an answer, as they are written.
pub fn texts(body: &[u8]) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Shown<'a> {
        #[serde(borrow)]
        messages: Vec<&'a RawValue>,
    }
    let shown: Option<Shown<'_>> = serde_json::from_slice(body).ok();
    let shown = shown.into_iter().flat_map(|shown| shown.messages);
    shown.map(|message| message.get().to_owned()).collect()
}

/// Checks one, in the body of an answer.
pub fn check(findings: &Findings, about: &str, body: &[u8]) {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    findings.count("contexts checked");
    if let Err(fault) = fault_of(&answer) {
        findings.violation(format!("{about}: {fault}"));
    }
}

fn fault_of(answer: &Value) -> Result<(), String> {
    let messages = answer.get("messages").and_then(Value::as_array);
    let messages = messages.ok_or("no messages")?;
    let text = |value: &Value, name: &str| {
        let value = value.get(name).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let mut instructions = true;
    let mut waiting: Vec<String> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let role = text(message, "role");
        if role == "tool" {
            let id = text(message, "tool_call_id");
            let at = waiting.iter().position(|waits| *waits == id);
            let at = at.ok_or_else(|| format!("messages[{index}] is a result of no call"))?;
            waiting.remove(at);
            continue;
        }
        if !waiting.is_empty() {
            return Err(format!(
                "messages[{index}] comes before the results of {waiting:?}"
            ));
        }
        match role.as_str() {
            "system" | "developer" if instructions => continue,
            "user" => {}
            "assistant" => {
                let calls = message.get("tool_calls").and_then(Value::as_array);
                waiting = calls
                    .into_iter()
                    .flatten()
                    .map(|call| text(call, "id"))
                    .collect();
            }
            _ => return Err(format!("messages[{index}] is a {role:?}")),
        }
        instructions = false;
    }
    let mut open: Vec<String> = answer
        .get("openCalls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|call| call.as_str().map(ToOwned::to_owned))
        .collect();
    open.sort();
    waiting.sort();
    if open != waiting {
        return Err(format!("open are {waiting:?}, openCalls says {open:?}"));
    }
    let has_summary = answer.get("compaction").is_some_and(|made| !made.is_null());
    let at = answer.get("summaryAt").and_then(Value::as_u64);
    let at = at.and_then(|at| messages.get(usize::try_from(at).ok()?));
    let begins = at.is_some_and(|message| text(message, "content").starts_with(SUMMARY));
    if has_summary != begins {
        return Err("the summary is not where it is said to be".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn calls(ids: &[&str]) -> Value {
        let calls: Vec<Value> = ids.iter().map(|id| json!({"id": id})).collect();
        json!({"role": "assistant", "content": null, "tool_calls": calls})
    }

    fn result(id: &str) -> Value {
        json!({"role": "tool", "tool_call_id": id, "content": "r"})
    }

    fn fault(messages: &[Value], open: &[&str]) -> Option<String> {
        fault_of(&json!({"messages": messages, "openCalls": open, "compaction": null})).err()
    }

    #[test]
    fn a_sound_context_passes() {
        let (system, user) = (json!({"role": "system"}), json!({"role": "user"}));
        let whole = [system, user, calls(&["a", "b"]), result("b"), result("a")];
        assert_eq!(fault(&whole, &[]), None);
        assert_eq!(
            fault(&whole[..4], &["a"]),
            None,
            "a call may wait at the end"
        );
    }

    #[test]
    fn an_unsound_context_does_not() {
        let user = json!({"role": "user"});
        for (messages, open) in [
            (vec![user.clone(), result("a")], vec![]),
            (vec![calls(&["a"]), user.clone()], vec![]),
            (vec![calls(&["a"]), result("a"), result("a")], vec![]),
            (vec![calls(&["a"])], vec![]),
            (vec![user.clone()], vec!["a"]),
            (vec![user, json!({"role": "system"})], vec![]),
            (vec![json!({"role": "poet"})], vec![]),
        ] {
            assert!(fault(&messages, &open).is_some(), "{messages:?}");
        }
        let claims = json!({"messages": [{"role": "user", "content": "x"}], "summaryAt": 0, "compaction": {"version": 1}});
        assert!(fault_of(&claims).is_err(), "a summary that is none");
    }
}
