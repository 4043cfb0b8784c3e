//! `Authorization` and cookies: in a header, in `curl -H`, in JSON, and `Bearer …` on its own.
//!
//! The scheme and the names of cookies stay, and so do a cookie's attributes. Other headers, such as
//! `X-Api-Key`, are names with a value like any other.

use super::assign;
use super::input::{Input, is_quote};
use super::names::{Form, Name};
use super::value;
use super::{Kind, Span};

/// What may stand between `Authorization:` and the secret.
const SCHEMES: [&str; 13] = [
    "apikey",
    "api-key",
    "basic",
    "bearer",
    "bot",
    "digest",
    "hawk",
    "jwt",
    "key",
    "negotiate",
    "ntlm",
    "oauth",
    "token",
];

/// What a cookie has beside its value.
const ATTRIBUTES: [&str; 6] = [
    "domain", "expires", "max-age", "path", "priority", "samesite",
];

/// `Bearer` or `Basic` at the start of a run, with no header before it.
pub(super) fn find_scheme(
    input: &Input<'_>,
    start: usize,
    end: usize,
    spans: &mut Vec<Span>,
) -> Option<usize> {
    if !(5..=6).contains(&(end - start)) || input.byte(end) != Some(b' ') {
        return None;
    }
    let at = input.skip_blanks(end);
    let secret_end = input.run_end(at, is_token68);
    if input.starts_ignoring_case(start, "bearer") {
        let secret = input.slice(at, secret_end.min(at + 512));
        let parts = secret.split('.').filter(|part| !part.is_empty()).count();
        let has_digit = secret.bytes().any(|byte| byte.is_ascii_digit());
        let has_upper = secret.bytes().any(|byte| byte.is_ascii_uppercase());
        let has_lower = secret.bytes().any(|byte| byte.is_ascii_lowercase());
        let is_secret = (secret.len() >= 8 && has_digit && (has_lower || has_upper))
            || (secret.len() >= 10 && parts >= 3)
            || (secret.len() >= 20 && has_upper && has_lower);
        if is_secret && !value::is_blank_form(secret) {
            spans.push(Span::new(at, secret_end, Kind::BearerToken));
            return Some(secret_end);
        }
    } else if input.starts_ignoring_case(start, "basic")
        && is_user_and_password(input.bytes(at, secret_end.min(at + 128)))
    {
        spans.push(Span::new(at, secret_end, Kind::Credentials));
        return Some(secret_end);
    }
    None
}

/// The secret behind the name of a header that ends at `end`.
pub(super) fn find_named(
    input: &Input<'_>,
    end: usize,
    name: Name,
    spans: &mut Vec<Span>,
) -> Option<usize> {
    if name.form != Form::Authorization && name.kind != Kind::Cookie {
        return None;
    }
    let (at, _) = assign::separator(input, end, name)?;
    let at = input.quote(at).map_or(at, |(after, ..)| after);
    if name.form == Form::Authorization {
        find_authorization(input, at, spans)
    } else {
        find_cookies(input, at, spans)
    }
}

fn find_authorization(input: &Input<'_>, at: usize, spans: &mut Vec<Span>) -> Option<usize> {
    let scheme_end =
        input.run_end_within(at, 16, |byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let scheme = input.slice(at, scheme_end).to_ascii_lowercase();
    if !SCHEMES.contains(&scheme.as_str()) {
        return None;
    }
    let start = input.skip_blanks(scheme_end);
    if start == scheme_end || input.placeholder_end(start).is_some() {
        return None;
    }
    let kind = match scheme.as_str() {
        "bearer" | "bot" | "jwt" | "oauth" | "token" => Kind::BearerToken,
        "apikey" | "api-key" | "key" => Kind::AccessKey,
        _ => Kind::Credentials,
    };
    // These have parameters, each in quotes of its own.
    if matches!(scheme.as_str(), "digest" | "hawk" | "oauth") {
        let in_line = |byte| !matches!(byte, b'\r' | b'\n' | b'\\' | b'\'');
        let sample_end = input.run_end_within(start, 64, in_line);
        if input.bytes(start, sample_end).contains(&b'=') {
            let end = input.run_end(sample_end, in_line);
            spans.push(Span::new(start, end, kind));
            return Some(end);
        }
    }
    let end = input.run_end(start, |byte| {
        byte.is_ascii_graphic() && !is_quote(byte) && !b"\\<>,;)]}[".contains(&byte)
    });
    let secret = input.slice(start, end.min(start + 512));
    let is_prose = secret.bytes().all(|byte| byte.is_ascii_lowercase())
        && input.byte(end) == Some(b' ')
        && input
            .byte(end + 1)
            .is_some_and(|byte| byte.is_ascii_lowercase());
    if secret.len() < 3 || is_prose || value::is_blank_form(secret) || secret.contains('(') {
        return None;
    }
    spans.push(Span::new(start, end, kind));
    Some(end)
}

/// Pairs without a secret after which no more are looked at, and bytes of one by which it is judged:
/// a text may name cookies without end and have none.
const MAX_BARREN: usize = 16;
const SAMPLE: usize = 128;

/// The values of `name=value; name=value; Attribute=…`.
fn find_cookies(input: &Input<'_>, at: usize, spans: &mut Vec<Span>) -> Option<usize> {
    let mut found = None;
    let mut barren = 0;
    let mut at = at;
    while barren < MAX_BARREN {
        let name_end = input.run_end_within(at, SAMPLE, is_cookie_name);
        if name_end == at {
            break;
        }
        let mut end = name_end;
        barren += 1;
        if input.byte(name_end) == Some(b'=') {
            let start = name_end + 1;
            let name = input.slice(at, name_end).to_ascii_lowercase();
            if let Some(marked) = input.placeholder_end(start) {
                end = marked;
            } else if ATTRIBUTES.contains(&name.as_str()) {
                end = input
                    .run_end_within(start, SAMPLE, |byte| is_cookie_value(byte) || byte == b' ');
            } else {
                end = input.run_end_within(start, SAMPLE, is_cookie_value);
                let secret = input.slice(start, end);
                if secret.len() >= 3 && !value::is_blank_form(secret) {
                    end = input.run_end(end, is_cookie_value);
                    spans.push(Span::new(start, end, Kind::Cookie));
                    found = Some(end);
                    barren = 0;
                }
            }
        }
        if input.byte(end) != Some(b';') {
            break;
        }
        at = input.skip_blanks(end + 1);
    }
    found
}

const fn is_cookie_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

const fn is_cookie_value(byte: u8) -> bool {
    byte.is_ascii_graphic() && !is_quote(byte) && !matches!(byte, b';' | b'\\' | b'<' | b'>')
}

const fn is_token68(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=')
}

/// Whether bytes are base64 of `user:password` in plain characters.
fn is_user_and_password(encoded: &[u8]) -> bool {
    let mut has_colon = false;
    let mut buffer = 0_u32;
    let mut bits = 0_u32;
    for &byte in encoded {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => break,
        };
        buffer = (buffer << 6) | u32::from(digit);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            let decoded = (buffer >> bits) & 0xff;
            buffer &= (1 << bits) - 1;
            has_colon |= decoded == u32::from(b':');
            if !(0x20..0x7f).contains(&decoded) {
                return false;
            }
        }
    }
    has_colon && encoded.len() >= 8
}
