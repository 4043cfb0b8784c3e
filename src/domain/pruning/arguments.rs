//! What a tool was called for: the arguments of a call as digests, and which calls read one resource.
//!
//! Digests are all that is kept of arguments, so that a plan can be compared with later calls without
//! the history. Arguments are read here and nowhere else, and only to be compared: what is no JSON
//! object, or is too large to be worth comparing, names no resource. Nothing is ever repaired.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};

use crate::domain::json;
use crate::domain::message::read_material;

/// Longest argument text that is read, in bytes.
const MAX_TEXT: usize = 64 * 1024;

/// Most arguments of one call that are read.
const MAX_ARGUMENTS: usize = 32;

/// The last word of the names of arguments that say which resource is meant, if they are strings.
const NAMING: [&str; 48] = [
    "address",
    "branch",
    "cmd",
    "code",
    "collection",
    "command",
    "commit",
    "dir",
    "directory",
    "document",
    "endpoint",
    "expression",
    "file",
    "filename",
    "filepath",
    "files",
    "folder",
    "glob",
    "hash",
    "host",
    "href",
    "id",
    "ids",
    "identifier",
    "key",
    "keys",
    "keyword",
    "link",
    "name",
    "path",
    "pathname",
    "paths",
    "pattern",
    "q",
    "query",
    "ref",
    "regex",
    "resource",
    "script",
    "search",
    "selector",
    "slug",
    "sql",
    "symbol",
    "table",
    "uri",
    "url",
    "uuid",
];

/// One argument of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Argument {
    /// Of tool, name and value; odd if it names a resource.
    pub digest: i64,
    /// Of tool and name.
    pub name: i64,
}

/// The arguments of a call, sorted by digest; `None` if they cannot be compared.
pub(super) fn read(tool: &str, arguments: &str) -> Option<Vec<Argument>> {
    if arguments.len() > MAX_TEXT || json::check_text(arguments.as_bytes()).is_err() {
        return None;
    }
    serde_json::from_str::<IgnoredAny>(arguments).ok()?;
    if !arguments.trim_start().starts_with('{') {
        return None;
    }
    let named = last_of_each_name(arguments);
    if named.len() > MAX_ARGUMENTS {
        return None;
    }
    let argument = |(name, value): (&String, &&str)| {
        let mut canonical = String::new();
        write_canonical(value, &mut canonical);
        let digest = digest(&[tool, name, &canonical]) & !1;
        Argument {
            digest: digest | i64::from(names_something(name, value)),
            name: self::digest(&[tool, name]),
        }
    };
    let mut read: Vec<_> = named.iter().map(argument).collect();
    read.sort_unstable();
    Some(read)
}

/// The arguments of a call as digests, sorted: one of tool, argument name and value for each. The
/// lowest bit of a digest says that the argument names a resource.
///
/// `None` if they cannot be compared: no JSON object, more than 64 KiB, more than 32 arguments.
#[must_use]
pub fn call_arguments(name: &str, arguments: &str) -> Option<Vec<i64>> {
    let read = read(name, arguments)?;
    Some(read.iter().map(|argument| argument.digest).collect())
}

/// Whether the newer of two calls asks for all that the older one asked for: each of its arguments is
/// among the older call's, and one of them names a resource. Both as [`call_arguments`] gives them.
#[must_use]
pub fn is_same_resource(newer: &[i64], older: &[i64]) -> bool {
    let is_in_older = |digest: &i64| older.binary_search(digest).is_ok();
    newer.iter().copied().any(is_naming) && newer.iter().all(is_in_older)
}

/// Name and arguments of each call of a stored assistant message, the arguments as the model wrote them.
#[must_use]
pub fn tail_calls(body: &str) -> Vec<(String, String)> {
    let calls = read_material(body).calls;
    calls
        .into_iter()
        .map(|(name, arguments)| (name.into_owned(), arguments.into_owned()))
        .collect()
}

/// Whether the argument of that digest names a resource.
pub(super) fn is_naming(digest: i64) -> bool {
    digest & 1 == 1
}

/// 64 bits of SHA-256: two arguments of one session are never alike by chance.
fn digest(parts: &[&str]) -> i64 {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let mut first = [0; 8];
    for (to, from) in first.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    i64::from_le_bytes(first)
}

fn last_of_each_name(object: &str) -> BTreeMap<String, &str> {
    let members = json::members(object);
    members
        .into_iter()
        .map(|member| (member.name.into_owned(), member.value))
        .collect()
}

/// Writes a JSON value so that equal values give equal texts. `json::check_text` has bounded the nesting.
fn write_canonical(value: &str, to: &mut String) {
    match value.as_bytes().first() {
        Some(b'{') => {
            to.push('{');
            for (name, value) in last_of_each_name(value) {
                to.push_str(&json::encode_string(&name));
                to.push(':');
                write_canonical(value, to);
                to.push(',');
            }
            to.push('}');
        }
        Some(b'[') => {
            to.push('[');
            for element in json::elements(value) {
                write_canonical(element, to);
                to.push(',');
            }
            to.push(']');
        }
        Some(b'"') => {
            let text = json::decode_string(value).unwrap_or_default();
            to.push_str(&json::encode_string(&text));
        }
        _ => to.push_str(number_or_word(value)),
    }
}

/// `1.0` is 1 and `-0` is 0. A number with an exponent is compared as it is written.
fn number_or_word(value: &str) -> &str {
    let is_plain = value.bytes().all(|byte| !byte.is_ascii_alphabetic());
    let value = match value.split_once('.') {
        Some(_) if is_plain => value.trim_end_matches('0').trim_end_matches('.'),
        _ => value,
    };
    if value == "-0" { "0" } else { value }
}

fn names_something(name: &str, value: &str) -> bool {
    let text = json::decode_string(value);
    text.is_some_and(|text| !text.trim().is_empty())
        && NAMING.contains(&last_word(name).to_lowercase().as_str())
}

/// The last word of `file_path`, `file-path`, `filePath`, `fileURL` or `path2`.
fn last_word(name: &str) -> &str {
    let name = name.trim_end_matches(|last: char| last.is_ascii_digit() || !last.is_alphanumeric());
    let mut begin = 0;
    let mut before = ' ';
    let mut letters = name.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        let next_is_lower = letters.peek().is_some_and(|(_, next)| next.is_lowercase());
        let opens_word =
            letter.is_uppercase() && (!before.is_uppercase() || next_is_lower && before != ' ');
        if !letter.is_alphanumeric() {
            begin = at + letter.len_utf8();
        } else if opens_word {
            begin = at;
        }
        before = letter;
    }
    name.get(begin..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(newer: &str, older: &str) -> bool {
        let read = |text| call_arguments("read", text).unwrap();
        is_same_resource(&read(newer), &read(older))
    }

    #[test]
    fn a_whole_supersedes_a_part_and_not_the_other_way_round() {
        let (whole, part) = (r#"{"path":"a"}"#, r#"{"path":"a","offset":1}"#);
        assert!(same(whole, whole) && same(whole, part));
        assert!(!same(part, whole));
        assert!(!same(r#"{"path":"a","offset":101}"#, part));
        assert!(!same(r#"{"offset":1}"#, part), "names nothing");
        assert!(!same("{}", part) && !same("{}", "{}"));
        assert!(!same(r#"{"path":" "}"#, r#"{"path":" "}"#));
    }

    #[test]
    fn values_are_compared_and_not_texts() {
        assert!(same(
            r#"{ "q":"\u00e4", "o": {"b":[1.0, -0],"a":null} }"#,
            r#"{"o":{"a":null,"b":[1,0]},"q":"ä"}"#
        ));
        assert!(!same(r#"{"q":"x","n":1}"#, r#"{"q":"x","n":"1"}"#));
        assert!(!same(
            r#"{"id":"x","n":12345678901234567890123}"#,
            r#"{"id":"x","n":12345678901234567890124}"#
        ));
        assert!(!same(r#"{"q":"x","n":100}"#, r#"{"q":"x","n":1}"#));
        assert!(!same(r#"{"q":"x","n":[1,2]}"#, r#"{"q":"x","n":[12]}"#));
    }

    #[test]
    fn another_tool_is_another_resource() {
        let text = r#"{"path":"a"}"#;
        let read = call_arguments("read", text).unwrap();
        assert!(!is_same_resource(
            &call_arguments("write", text).unwrap(),
            &read
        ));
    }

    #[test]
    fn s22_arguments_that_are_no_object_are_skipped() {
        let long = format!(r#"{{"path":"{}"}}"#, "a".repeat(300_000));
        let deep = format!(r#"{{"path":{}{}}}"#, "[".repeat(20_000), "]".repeat(20_000));
        let many: Vec<_> = (0..100).map(|n| format!(r#""a{n}":1"#)).collect();
        let many = format!("{{{}}}", many.join(","));
        for text in [
            r#"{"path":"src/ma"#,
            "",
            "[]",
            "null",
            r#"{"path":"a"} x"#,
            r#"{"path":"\ud800"}"#,
            &long,
            &deep,
            &many,
        ] {
            assert_eq!(call_arguments("read", text), None, "{text:.40}");
        }
        assert_eq!(call_arguments("read", "{}"), Some(Vec::new()));
    }

    #[test]
    fn the_last_word_of_a_name_says_what_it_is() {
        for (name, word) in [
            ("path", "path"),
            ("file_path", "path"),
            ("file-path", "path"),
            ("targetFile", "File"),
            ("pageURL", "URL"),
            ("URLPath", "Path"),
            ("path2", "path"),
            ("ID", "ID"),
            ("_", ""),
            ("größe", "größe"),
        ] {
            assert_eq!(last_word(name), word, "{name}");
        }
        assert!(names_something("fileURL", r#""x""#));
        assert!(!names_something("pathological", r#""x""#));
        assert!(!names_something("path", "5"));
    }
}
