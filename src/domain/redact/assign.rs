//! From a name to its value: `NAME=value`, `"name": "value"`, `--name value`, `<name>value</name>`.
//!
//! Finds the separator and where the value ends, in code, JSON (escaped, cut off), YAML, shell, INI,
//! addresses and Markdown. Whether the name counts is `names`' to say, whether the value does `value`'s.

use super::Span;
use super::input::{Input, is_blank, is_quote};
use super::names::{Form, Name};
use super::value::{self, Value};

/// What stands between a name and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Separator {
    /// `=` with nothing around it.
    Tight,
    /// `=` or `:=` with blanks.
    Equals,
    /// `:`.
    Colon,
    /// `=>` or `==`: only a literal counts.
    Literal,
    /// A blank, after `--name`.
    Blank,
    /// `>`, after `<name`.
    Tag,
    /// The word `is`.
    Is,
}

/// How much of a quoted value is looked at to judge it; its end may lie further.
const SAMPLE: usize = 512;

/// The same for a value without quotes, where many names may share what follows them.
const BARE_SAMPLE: usize = 128;

/// The value of a name that ends at `end`, if it is a secret.
pub(super) fn find(
    input: &Input<'_>,
    end: usize,
    name: Name,
    spans: &mut Vec<Span>,
) -> Option<usize> {
    let (at, separator) = separator(input, end, name)?;
    let value = read_value(input, at, separator)?;
    if value::is_secret(&value, separator, name) {
        let is_cut = !value.is_quoted && value.end >= value.start + BARE_SAMPLE;
        let end = if is_cut {
            bare_end(input, value.start, usize::MAX)
        } else {
            value.end
        };
        spans.push(Span::new(value.start, end, name.kind));
        return Some(end);
    }
    // `let password: &str = "…"`: the value stands behind its type.
    if separator != Separator::Colon || value.is_quoted {
        return None;
    }
    let type_end = input.run_end_within(at, 48, |byte| {
        byte.is_ascii_alphanumeric() || b"_<>&'[]: |?.".contains(&byte)
    });
    let after = input.skip_blanks(type_end + 1);
    if input.byte(type_end) != Some(b'=') || input.quote(after).is_none() {
        return None;
    }
    let value = read_value(input, after, Separator::Equals)?;
    if !value::is_secret(&value, Separator::Equals, name) {
        return None;
    }
    spans.push(Span::new(value.start, value.end, name.kind));
    Some(value.end)
}

/// Where the value of a name that ends at `end` begins, and what parts them.
pub(super) fn separator(input: &Input<'_>, end: usize, name: Name) -> Option<(usize, Separator)> {
    let quote = input.quote(end);
    let mut at = quote.map_or(end, |(after, ..)| after);
    if input.byte(at) == Some(b']') {
        at += 1;
    }
    at = input.run_end_within(at, 3, |byte| byte == b'*');
    let blank = input.skip_blanks(at);
    let byte = input.byte(blank);
    match byte {
        Some(b'=') => {
            let after = blank + 1;
            return match input.byte(after) {
                Some(b'=') => {
                    let after = input.run_end_within(after, 2, |byte| byte == b'=');
                    Some((input.skip_blanks(after), Separator::Literal))
                }
                Some(b'>') => Some((input.skip_blanks(after + 1), Separator::Literal)),
                Some(b'~') => None,
                Some(byte) if is_blank(byte) => Some((input.skip_blanks(after), Separator::Equals)),
                _ if blank > at => Some((after, Separator::Equals)),
                _ => Some((after, Separator::Tight)),
            };
        }
        Some(b':') => {
            return match input.byte(blank + 1) {
                Some(b':' | b'/') => None,
                Some(b'=') => Some((input.skip_blanks(blank + 2), Separator::Equals)),
                _ => Some((after_marks(input, blank + 1), Separator::Colon)),
            };
        }
        Some(b'>') if name.form == Form::Tag && blank == at => {
            return Some((at + 1, Separator::Tag));
        }
        _ if input.starts(blank, "：") => {
            return Some((after_marks(input, blank + "：".len()), Separator::Colon));
        }
        _ => {}
    }
    if let Some(at) = after_value_word(input, at) {
        return Some((at, Separator::Colon));
    }
    if name.form == Form::Flag {
        let value = match byte {
            // `["--password", "…"]`
            Some(b',') if quote.is_some() => input.skip_space(blank + 1),
            _ if quote.is_none() && blank > at => blank,
            _ => return None,
        };
        return Some((value, Separator::Blank));
    }
    let word = ["is: ", "is "]
        .into_iter()
        .find(|word| blank > at && input.starts(blank, word))?;
    Some((input.skip_blanks(blank + word.len()), Separator::Is))
}

/// Past blanks and the marks of bold type after a colon.
fn after_marks(input: &Input<'_>, at: usize) -> usize {
    let marks = input.run_end_within(at, 3, |byte| byte == b'*');
    let at = if marks > at + 1 { marks } else { at };
    input.skip_blanks(at)
}

/// Past `"value":` beside a `"name": "…"`, as lists of variables have it.
fn after_value_word(input: &Input<'_>, at: usize) -> Option<usize> {
    let at = input.skip_space(at);
    let at = input.skip_space(at + usize::from(input.byte(at) == Some(b',')));
    let word = input.quote(at).map_or(at, |(after, ..)| after);
    if !input.starts_ignoring_case(word, "value") {
        return None;
    }
    let at = word + "value".len();
    let at = input.quote(at).map_or(at, |(after, ..)| after);
    let at = input.skip_blanks(at);
    matches!(input.byte(at), Some(b':' | b'=')).then(|| input.skip_blanks(at + 1))
}

/// The value that begins at `at`; `None` if there is none, or a placeholder.
pub(super) fn read_value<'a>(
    input: &Input<'a>,
    at: usize,
    separator: Separator,
) -> Option<Value<'a>> {
    if separator == Separator::Tag {
        let end = input.run_end_within(at, SAMPLE, |byte| !matches!(byte, b'<' | b'\n' | b'\\'));
        let closes = end == input.len() || input.starts(end, "</");
        return if closes {
            value(input, at, end, true)
        } else {
            None
        };
    }
    // `b"…"`, `f'…'`, `@"…"`
    let prefix = input.run_end_within(at, 2, |byte| b"bfruBFRU@$".contains(&byte));
    let open = input.quote(at).or_else(|| {
        let quote = input.quote(prefix)?;
        (quote.2 == 0 && prefix > at).then_some(quote)
    });
    let Some((start, quote, depth)) = open else {
        if matches!(separator, Separator::Literal) {
            return None;
        }
        return value(input, at, bare_end(input, at, BARE_SAMPLE), false);
    };
    // `"password=" + word`: the quote closes what the name stands in.
    let adjacent = matches!(separator, Separator::Tight | Separator::Colon);
    let closes = |byte: u8| is_blank(byte) || b",;)}]+:".contains(&byte);
    if adjacent && input.byte(start).is_none_or(closes) {
        return None;
    }
    value(input, start, quoted_end(input, start, quote, depth)?, true)
}

fn value<'a>(input: &Input<'a>, start: usize, end: usize, is_quoted: bool) -> Option<Value<'a>> {
    let text = input.slice(start, end.min(start + SAMPLE));
    (end > start && input.placeholder_end(start).is_none()).then(|| Value {
        start,
        end,
        text,
        is_quoted,
        next: input.byte(end),
        line_ends: input.line_ends(end),
        is_type: input.byte(input.skip_blanks(end)) == Some(b'='),
    })
}

/// The end of a quoted value: its closing quote, the end of the line or of the text.
fn quoted_end(input: &Input<'_>, start: usize, quote: u8, depth: usize) -> Option<usize> {
    let limit = start.saturating_add(SAMPLE).min(input.len());
    let mut slashes = 0;
    let mut has_space = false;
    for (at, &byte) in (start..limit).zip(input.bytes(start, limit)) {
        match byte {
            b'\\' => {
                slashes += 1;
                continue;
            }
            b'\n' | b'\r' => return Some(at),
            b'n' | b'r' if slashes > 0 && slashes <= depth => return Some(at - slashes),
            _ if byte == quote && slashes <= depth => return Some(at - slashes),
            b' ' | b'\t' => has_space = true,
            _ => {}
        }
        slashes = 0;
    }
    if limit == input.len() {
        return Some(limit);
    }
    // Too long for a password, but keys in base64 may be of any length.
    (!has_space).then(|| {
        input.run_end(limit, |byte| {
            byte.is_ascii_graphic() && !is_quote(byte) && byte != b'\\'
        })
    })
}

/// The end of a value without quotes, or where it reaches `most` bytes.
fn bare_end(input: &Input<'_>, at: usize, most: usize) -> usize {
    for (offset, letter) in input.slice_from(at).char_indices() {
        let end = at + offset;
        if offset >= most {
            return end;
        }
        let goes_on = match letter {
            '"' | '\'' | '`' | ';' | '<' | '>' | '|' | ')' | ']' | '}' => false,
            '\\' => !ends_at_slash(input, end),
            ',' => input.byte(end + 1).is_some_and(|byte| {
                byte.is_ascii_graphic() && !is_quote(byte) && !starts_pair(input, end + 1)
            }),
            '&' => !(starts_pair(input, end + 1) || input.byte(end + 1) == Some(b'&')),
            '[' => input.placeholder_end(end).is_none(),
            letter if letter.is_ascii() => letter.is_ascii_graphic(),
            // Letters of Latin, Greek and Cyrillic words; other scripts need no blank after a value.
            letter => letter < '\u{530}' && letter.is_alphabetic(),
        };
        if !goes_on {
            return trim_stop(input, at, end);
        }
    }
    trim_stop(input, at, input.len())
}

/// Whether the backslash at `at` begins the escape of a quote, a line end or a mark.
fn ends_at_slash(input: &Input<'_>, at: usize) -> bool {
    let mark = input.run_end_within(at, 16, |byte| byte == b'\\');
    input
        .byte(mark)
        .is_none_or(|byte| is_quote(byte) || b"nrtu \n\r".contains(&byte))
}

/// Whether `name=` or `name:` begins here, the next of several pairs.
fn starts_pair(input: &Input<'_>, at: usize) -> bool {
    let end = input.run_end_within(at, 64, |byte| {
        byte.is_ascii_alphanumeric() || b"_-.%[];".contains(&byte)
    });
    end > at && matches!(input.byte(end), Some(b'=' | b':'))
}

/// Without the full stop of the sentence that ends with the value.
fn trim_stop(input: &Input<'_>, at: usize, end: usize) -> usize {
    let stops = matches!(input.byte_before(end), Some(b'.' | b':')) && end > at + 1;
    end - usize::from(stops)
}
