//! A reader of JSON *text*: where its members stand, not what they mean.
//!
//! Messages are stored as the bytes that came. To do that the service needs spans
//! (where does `precis` begin and end?) and a few checks that parsers skip for values
//! nobody reads (lone surrogates, nesting). Everything here works on text that
//! `serde_json` has already found well-formed, except [`check_text`], which runs first.
//! What a member means belongs to `message`.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::value::RawValue;

/// Deepest nesting of arrays and objects that a request may have.
pub const MAX_DEPTH: usize = 128;

/// Why a text is not acceptable JSON. The display text is safe to show to a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonFault {
    /// Not UTF-8; the offset counts bytes.
    #[error("the body is not valid UTF-8 (at byte {offset})")]
    InvalidUtf8 {
        /// Bytes before the first invalid one.
        offset: usize,
    },
    /// A `\ud800`–`\udfff` escape without its other half.
    #[error(
        "a lone surrogate escape in a string (at byte {offset}); escape both halves of the pair or send the character itself"
    )]
    LoneSurrogate {
        /// Where the escape begins, in bytes.
        offset: usize,
    },
    /// Nesting above [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// A member name that the service reads is given twice in one object.
    #[error("the name `{name}` is given twice in one object")]
    DuplicateName {
        /// The repeated name.
        name: String,
    },
    /// Anything else that is not JSON; the text says where.
    #[error("{0}")]
    Syntax(String),
}

impl From<serde_json::Error> for JsonFault {
    fn from(error: serde_json::Error) -> Self {
        Self::Syntax(error.to_string())
    }
}

/// Checks what parsers let pass in values they skip: UTF-8, pairs of surrogate escapes, nesting.
///
/// # Errors
/// The first fault found. Text that is not JSON at all may pass: a parser finds that.
pub fn check_text(bytes: &[u8]) -> Result<&str, JsonFault> {
    let text = std::str::from_utf8(bytes).map_err(|error| JsonFault::InvalidUtf8 {
        offset: error.valid_up_to(),
    })?;
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut rest = bytes.iter().enumerate();
    while let Some((offset, byte)) = rest.next() {
        match (in_string, byte) {
            (false, b'"') => in_string = true,
            (false, b'{' | b'[') => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(JsonFault::TooDeep);
                }
            }
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            (true, b'"') => in_string = false,
            (true, b'\\') => {
                if let Some((_, b'u')) = rest.next() {
                    let first = hex4(bytes, offset + 2);
                    if first.is_some_and(is_low) {
                        return Err(JsonFault::LoneSurrogate { offset });
                    }
                    if first.is_some_and(is_high) {
                        let paired = bytes.get(offset + 6..offset + 8) == Some(b"\\u".as_slice())
                            && hex4(bytes, offset + 8).is_some_and(is_low);
                        if !paired {
                            return Err(JsonFault::LoneSurrogate { offset });
                        }
                        // Ten bytes more: four digits, then the second half with its backslash and `u`.
                        rest.nth(9);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(text)
}

fn hex4(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 4)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn is_high(unit: u32) -> bool {
    (0xD800..0xDC00).contains(&unit)
}

fn is_low(unit: u32) -> bool {
    (0xDC00..0xE000).contains(&unit)
}

/// One member of an object, with where it stands in the object's text (byte offsets).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member<'a> {
    /// The name, decoded.
    pub name: Cow<'a, str>,
    /// Offset of the name's opening quote.
    pub start: usize,
    /// Offset just behind the value.
    pub end: usize,
    /// The value's text.
    pub value: &'a str,
}

/// The members of the object that `text` is, in order; none if it is no object.
#[must_use]
pub fn members(text: &str) -> Vec<Member<'_>> {
    let mut found = Vec::new();
    let mut at = skip_space(text, 0);
    if text.as_bytes().get(at) != Some(&b'{') {
        return found;
    }
    at += 1;
    loop {
        at = skip_space(text, at);
        if text.as_bytes().get(at) != Some(&b'"') {
            return found;
        }
        let start = at;
        let name_end = skip_string(text, at);
        let colon = skip_space(text, name_end);
        let value_start = skip_space(text, colon + 1);
        let end = skip_value(text, value_start);
        let (Some(name), Some(value)) = (text.get(start..name_end), text.get(value_start..end))
        else {
            return found;
        };
        found.push(Member {
            name: decode_string(name).unwrap_or(Cow::Borrowed("")),
            start,
            end,
            value,
        });
        at = skip_space(text, end);
        if text.as_bytes().get(at) != Some(&b',') {
            return found;
        }
        at += 1;
    }
}

/// The texts of the elements of the array that `text` is; none if it is no array.
#[must_use]
pub fn elements(text: &str) -> Vec<&str> {
    // `serde_json` hands out the exact slices; only an object's spans need the reader above.
    serde_json::from_str::<Vec<&RawValue>>(text)
        .map(|values| values.into_iter().map(RawValue::get).collect())
        .unwrap_or_default()
}

/// The characters of a JSON string literal, or `None` if `text` is something else.
#[must_use]
pub fn decode_string(text: &str) -> Option<Cow<'_, str>> {
    #[derive(serde::Deserialize)]
    struct Borrowed<'a>(#[serde(borrow)] Cow<'a, str>);
    if !text.starts_with('"') {
        return None;
    }
    serde_json::from_str::<Borrowed<'_>>(text)
        .ok()
        .map(|text| text.0)
}

/// `text` as a JSON string literal.
#[must_use]
pub fn encode_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A value of the same kind as `value` is, with nothing in it: enough for a schema that asks for no more.
#[must_use]
pub fn kind_only(value: &str) -> serde_json::Value {
    match value.as_bytes().first() {
        Some(b'{') => serde_json::json!({}),
        Some(b'[') => serde_json::json!([]),
        Some(b'"') => "".into(),
        Some(b't' | b'f') => true.into(),
        Some(b'n') | None => serde_json::Value::Null,
        Some(_) => 0.into(),
    }
}

/// `text` without the member at `index` of `members` and without one comma; every other byte stays.
#[must_use]
pub fn without_member(text: &str, members: &[Member<'_>], index: usize) -> String {
    let Some(member) = members.get(index) else {
        return text.to_owned();
    };
    let after = text.get(member.end..).unwrap_or_default();
    let before = text.get(..member.start).unwrap_or_default();
    if index + 1 < members.len() {
        // Not the last: the comma behind it goes.
        let (space, rest) = after.split_once(',').unwrap_or(("", after));
        return [before, space, rest].concat();
    }
    match (index, before.rsplit_once(',')) {
        (1.., Some((head, space))) => [head, space, after].concat(),
        _ => [before, after].concat(),
    }
}

/// Where the elements of the array that `text` is stand, in byte offsets; none if it is no array.
#[must_use]
pub fn element_spans(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = skip_space(text, 0);
    if text.as_bytes().get(at) != Some(&b'[') {
        return found;
    }
    at += 1;
    loop {
        let start = skip_space(text, at);
        let end = skip_value(text, start);
        if end <= start || text.as_bytes().get(start) == Some(&b']') {
            return found;
        }
        found.push(start..end);
        at = skip_space(text, end);
        if text.as_bytes().get(at) != Some(&b',') {
            return found;
        }
        at += 1;
    }
}

/// An object or an array without some of its items (members or elements, given by their spans in order).
///
/// Each item goes with the separator before it, the first of those that stay takes none along; every other byte stays.
#[must_use]
pub fn without_items(
    text: &str,
    items: &[Range<usize>],
    is_dropped: impl Fn(usize) -> bool,
) -> String {
    let (Some(first), Some(last)) = (items.first(), items.last()) else {
        return text.to_owned();
    };
    let mut left = String::with_capacity(text.len());
    left.push_str(text.get(..first.start).unwrap_or_default());
    let mut is_first = true;
    let mut before = first.start;
    for (index, item) in items.iter().enumerate() {
        if !is_dropped(index) {
            let from = if is_first { item.start } else { before };
            left.push_str(text.get(from..item.end).unwrap_or_default());
            is_first = false;
        }
        before = item.end;
    }
    left.push_str(text.get(last.end..).unwrap_or_default());
    left
}

fn skip_space(text: &str, from: usize) -> usize {
    let blank = text
        .as_bytes()
        .iter()
        .skip(from)
        .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
        .count();
    from + blank
}

/// Offset behind the string literal whose opening quote is at `from`.
fn skip_string(text: &str, from: usize) -> usize {
    let mut bytes = text.as_bytes().iter().enumerate().skip(from + 1);
    while let Some((offset, byte)) = bytes.next() {
        match byte {
            b'\\' => {
                bytes.next();
            }
            b'"' => return offset + 1,
            _ => {}
        }
    }
    text.len()
}

/// Offset behind the value that begins at `from`.
fn skip_value(text: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = from;
    while let Some(byte) = text.as_bytes().get(at) {
        match byte {
            b'"' => {
                at = skip_string(text, at);
                if depth == 0 {
                    return at;
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                if depth <= 1 {
                    // Either this closes the value, or it closes what the value stands in.
                    return at + depth;
                }
                depth -= 1;
            }
            b',' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_members_whatever_the_spelling() {
        let text = r#"  { "a" : [1,{"x":"}"}] , "\u0062":"q\"uo,te", "c":null,"d":{}}"#;
        let found = members(text);
        let names: Vec<_> = found.iter().map(|member| member.name.as_ref()).collect();
        let values: Vec<_> = found.iter().map(|member| member.value).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert_eq!(values, [r#"[1,{"x":"}"}]"#, r#""q\"uo,te""#, "null", "{}"]);
    }

    #[test]
    fn cuts_a_member_and_one_comma() {
        let cut = |text: &str| {
            let found = members(text);
            let index = found.iter().position(|member| member.name == "p").unwrap();
            without_member(text, &found, index)
        };
        assert_eq!(cut(r#"{"p":{"x":1} , "b":2}"#), r#"{  "b":2}"#);
        assert_eq!(cut(r#"{"a":1, "p":{}}"#), r#"{"a":1 }"#);
        assert_eq!(cut(r#"{"a":1,"p":"," ,"b":2}"#), r#"{"a":1, "b":2}"#);
        assert_eq!(cut(r#"{ "p":1 }"#), r"{  }");
    }

    #[test]
    fn finds_elements_and_cuts_items() {
        let text = r#" [ 1 , {"a":[2,"]"]},"x,y" ,[] ]"#;
        let spans = element_spans(text);
        let texts: Vec<_> = spans
            .iter()
            .filter_map(|span| text.get(Range::clone(span)))
            .collect();
        assert_eq!(texts, elements(text));
        assert!(element_spans("[ ]").is_empty() && element_spans("{}").is_empty());
        let cut = |dropped: &[usize]| without_items(text, &spans, |index| dropped.contains(&index));
        assert_eq!(cut(&[]), text);
        assert_eq!(cut(&[0]), r#" [ {"a":[2,"]"]},"x,y" ,[] ]"#);
        assert_eq!(cut(&[1, 3]), r#" [ 1,"x,y" ]"#);
        assert_eq!(cut(&[0, 1, 2, 3]), " [  ]");
    }

    #[test]
    fn refuses_lone_surrogates_but_not_pairs() {
        assert!(check_text(br#""\ud83d\ude00""#).is_ok());
        assert!(check_text(br#""\\ud83d""#).is_ok());
        for text in [
            r#""\ud83d end""#,
            r#""\ude00""#,
            r#""\ud83d\ud83d""#,
            r#""\ud83d\n""#,
            r#""\uD83D""#,
        ] {
            assert!(
                matches!(
                    check_text(text.as_bytes()),
                    Err(JsonFault::LoneSurrogate { .. })
                ),
                "{text}"
            );
        }
    }

    #[test]
    fn bounds_the_nesting() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(check_text(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert_eq!(
            check_text(nested(MAX_DEPTH + 1).as_bytes()),
            Err(JsonFault::TooDeep)
        );
    }
}
