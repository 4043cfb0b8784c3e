//! Whether a tool's result says that the call failed.
//!
//! A failed call must not stand in for an earlier one that worked, and a wrong guess to that side only
//! costs tokens. So this is generous: whatever may be a failure is one, as is a result that says
//! nothing. What a client does with failures is not decided here.

use serde_json::{Map, Value};

use crate::domain::json;
use crate::domain::message::{Part, content_parts};

/// Lines at the front and at the back of a text that may tell a failure.
const LINES: usize = 12;

/// Bytes of a line that are looked at.
const LINE_BYTES: usize = 300;

/// Members that hold what the tool said, or more about how it went.
const INNER: [&str; 8] = [
    "result", "output", "content", "data", "response", "metadata", "meta", "text",
];

/// How a line begins that reports a failure.
const OPENINGS: [&str; 41] = [
    "error",
    "err:",
    "err!",
    "fatal",
    "traceback",
    "panic",
    "exception",
    "uncaught",
    "unhandled",
    "failed",
    "failure",
    "fail:",
    "command failed",
    "cannot ",
    "can't ",
    "could not ",
    "couldn't ",
    "unable to ",
    "not found",
    "no such ",
    "permission denied",
    "access denied",
    "denied",
    "forbidden",
    "unauthorized",
    "unauthorised",
    "timeout",
    "timed out",
    "invalid ",
    "aborted",
    "abort:",
    "cancelled",
    "canceled",
    "interrupted",
    "rejected",
    "refused",
    "bash: ",
    "sh: ",
    "zsh: ",
    "/bin/",
    "usage: ",
];

/// What such a line holds, wherever.
const SIGNS: [&str; 22] = [
    "error:",
    "exception:",
    "panicked at",
    "traceback (most recent",
    "no such file",
    "permission denied",
    "access denied",
    "command not found",
    "does not exist",
    "doesn't exist",
    "not found",
    "failed to ",
    "failed with",
    "timed out",
    "connection refused",
    "too many requests",
    "rate limit",
    "<error",
    "<tool_use_error",
    "test result: failed",
    "build failed",
    "no result was recorded",
];

/// Words before the status of a process.
const STATUS: [&str; 9] = [
    "exit code",
    "exit status",
    "exit_code",
    "exitcode",
    "exited with code",
    "exited with status",
    "returned exit",
    "return code",
    "returncode",
];

/// Whether the result that a stored tool message holds tells a failure, or nothing.
pub(super) fn is_failed(body: &str) -> bool {
    let members = json::members(body);
    let beside = members
        .iter()
        .filter(|member| !matches!(member.name.as_ref(), "content" | "role" | "tool_call_id"))
        .any(|member| {
            let value = serde_json::from_str(member.value).unwrap_or_default();
            says_failed(&member.name, &value)
        });
    let content = members.iter().find(|member| member.name == "content");
    let parts = content.map(|content| content_parts(content.value));
    beside || parts.is_none_or(|parts| parts_failed(&parts))
}

fn parts_failed(parts: &[Part<'_>]) -> bool {
    let mut says_nothing = true;
    for part in parts {
        match part {
            Part::Text(text) if text.trim().is_empty() => {}
            Part::Text(text) if text_failed(text) => return true,
            Part::Text(_) | Part::Other(_) => says_nothing = false,
        }
    }
    says_nothing
}

fn text_failed(text: &str) -> bool {
    let trimmed = text.trim();
    if trimmed.starts_with('{')
        && let Ok(object) = serde_json::from_str::<Map<String, Value>>(trimmed)
    {
        return object_failed(&object);
    }
    let lines = || trimmed.lines();
    lines()
        .take(LINES)
        .chain(lines().rev().take(LINES))
        .any(line_failed)
}

fn object_failed(object: &Map<String, Value>) -> bool {
    object.iter().any(|(name, value)| {
        let inner = INNER.contains(&name.as_str());
        says_failed(name, value)
            || match value {
                Value::Object(nested) if inner => {
                    nested.iter().any(|(name, value)| says_failed(name, value))
                }
                Value::String(text) if inner => text.lines().take(LINES).any(line_failed),
                _ => false,
            }
    })
}

/// Whether a member of that name and value says that something failed.
fn says_failed(name: &str, value: &Value) -> bool {
    let name: String = name
        .chars()
        .filter(|letter| letter.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .collect();
    match name.as_str() {
        "error" | "errors" | "iserror" | "failed" | "failure" | "exception" | "traceback"
        | "timedout" | "interrupted" | "cancelled" | "errormessage" | "errorcode" | "exitcode"
        | "exitstatus" | "returncode" | "rc" | "signal" => is_true(value),
        "ok" | "success" | "succeeded" | "issuccess" => !is_true(value),
        "status" | "statuscode" | "state" | "outcome" | "httpstatus" | "code" => match value {
            Value::Number(number) => number.as_f64().is_some_and(|code| code >= 400.0),
            Value::String(word) => status_failed(word),
            _ => false,
        },
        _ => false,
    }
}

fn status_failed(word: &str) -> bool {
    let word = word.trim().to_lowercase();
    [
        "err",
        "fail",
        "fatal",
        "timeout",
        "timed",
        "cancel",
        "abort",
        "denied",
        "reject",
        "incomplete",
        "interrupt",
        "unauth",
        "forbid",
        "not",
        "4",
        "5",
    ]
    .iter()
    .any(|sign| word.starts_with(sign))
}

/// Whether a value is more than nothing, zero or false.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(text.trim(), "" | "0" | "false" | "none" | "null"),
        Value::Array(values) => !values.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

fn line_failed(line: &str) -> bool {
    let end = line.floor_char_boundary(LINE_BYTES);
    let low = line.get(..end).unwrap_or_default().to_lowercase();
    let opening = low.trim_start_matches(|first: char| !first.is_alphanumeric() && first != '/');
    OPENINGS.iter().any(|sign| opening.starts_with(sign))
        || SIGNS.iter().any(|sign| low.contains(sign))
        || ["❌", "✗", "✘"].iter().any(|sign| low.contains(sign))
        || STATUS.iter().any(|sign| has_bad_status(&low, sign))
}

fn has_bad_status(line: &str, sign: &str) -> bool {
    let Some((_, after)) = line.split_once(sign) else {
        return false;
    };
    let code = after.trim_start_matches(|first: char| !first.is_alphanumeric() && first != '-');
    let digits: String = code
        .trim_start_matches('-')
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.bytes().any(|digit| digit != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(content: &str) -> bool {
        is_failed(
            &serde_json::json!({"role": "tool", "tool_call_id": "a", "content": content})
                .to_string(),
        )
    }

    #[test]
    fn whatever_may_be_a_failure_is_one() {
        for text in [
            "",
            " \n",
            "Error: ENOENT: no such file or directory, open 'c'",
            "error[E0425]: cannot find value `x`",
            "  Traceback (most recent call last):\n  File \"a.py\", line 1",
            "thread 'main' panicked at src/main.rs:1:1",
            "fatal: not a git repository",
            "bash: foo: command not found",
            "cat: c: No such file or directory",
            "running 3 tests\n...\ntest result: FAILED. 2 passed; 1 failed",
            "output\nProcess exited with code 2",
            "(exit status: 101)",
            "[error] it broke",
            "HTTP 404 Not Found",
            r#"{"error":"boom"}"#,
            r#"{"success":false,"data":[]}"#,
            r#"{"ok": false}"#,
            r#"{"output":"x","metadata":{"exit_code":1}}"#,
            r#"{"output":"Error: x"}"#,
            r#"{"status":"failed"}"#,
            r#"{"statusCode":503}"#,
            "<tool_use_error>File has not been read yet</tool_use_error>",
        ] {
            assert!(failed(text), "{text}");
        }
    }

    #[test]
    fn what_worked_is_no_failure() {
        for text in [
            "fn main() {}\n",
            "exit code: 0\nall 12 checks passed",
            "total 12\n-rw-r--r-- 1 u u 10 a",
            r#"{"success":true,"error":null,"errors":[],"exit_code":0,"data":[1]}"#,
            r#"{"status":"ok","code":200}"#,
            "[1,2,3]",
            "漢字の行\n二行目",
        ] {
            assert!(!failed(text), "{text}");
        }
    }

    #[test]
    fn the_message_itself_may_say_so() {
        let message = |more: &str, content: &str| {
            format!(r#"{{"role":"tool","tool_call_id":"a"{more},"content":{content}}}"#)
        };
        assert!(is_failed(&message(r#","is_error":true"#, r#""x""#)));
        assert!(is_failed(&message(r#","status":"error""#, r#""x""#)));
        assert!(!is_failed(&message(r#","is_error":false"#, r#""x""#)));
        assert!(is_failed(&message("", "null")) && is_failed(&message("", "[]")));
        let picture = r#"[{"type":"image_url","image_url":{"url":"x"}}]"#;
        assert!(!is_failed(&message("", picture)));
    }
}
