//! Passwords in addresses: `scheme://user:password@host`.
//!
//! Scheme, user and host are facts and stay. `host:8080/…@…` is no password: what follows the colon
//! of a host is a number. Tokens in a query are `assign`'s, by the name of their parameter.

use super::input::{Input, is_quote};
use super::value;
use super::{Kind, Span};

/// No user name or password in an address is longer than this, in bytes.
const MAX_PART: usize = 512;

/// Schemes of services that want a password, in whose addresses a cut-off end is taken for one.
const SERVICES: [&str; 12] = [
    "amqp",
    "amqps",
    "mariadb",
    "mongodb",
    "mongodb+srv",
    "mssql",
    "mysql",
    "postgres",
    "postgresql",
    "redis",
    "rediss",
    "srv",
];

/// The password in an address whose scheme ends at the colon `at`.
pub(super) fn find(input: &Input<'_>, at: usize, spans: &mut Vec<Span>) -> Option<usize> {
    let user = ["://", ":\\/\\/", ":\\\\/\\\\/"]
        .into_iter()
        .find(|mark| input.starts(at, mark))
        .map(|mark| at + mark.len())?;
    if !input
        .byte_before(at)
        .is_some_and(|byte| byte.is_ascii_alphanumeric())
    {
        return None;
    }
    let colon = input.run_end_within(user, MAX_PART, |byte| {
        is_authority(byte) && !matches!(byte, b':' | b'@' | b'[')
    });
    if input.byte(colon) != Some(b':') {
        return None;
    }
    let start = colon + 1;
    if input.placeholder_end(start).is_some() {
        return None;
    }
    let end = password_end(input, at, start)?;
    let password = input.slice(start, end);
    if password.is_empty() || value::is_blank_form(password) {
        return None;
    }
    spans.push(Span::new(start, end, Kind::Password));
    Some(end)
}

fn password_end(input: &Input<'_>, scheme_end: usize, start: usize) -> Option<usize> {
    let authority = input.run_end_within(start, MAX_PART, is_authority);
    let last_at = input
        .bytes(start, authority)
        .iter()
        .rposition(|&byte| byte == b'@');
    if let Some(position) = last_at {
        let end = start + position;
        // `docker://alpine:3.20@sha256:…` names an image.
        let is_digest = input.starts(end, "@sha256:") || input.starts(end, "@sha512:");
        return (!is_digest).then_some(end);
    }
    let here = input.bytes(start, authority);
    if here.iter().all(u8::is_ascii_digit) || here.iter().any(|byte| b"${%*(".contains(byte)) {
        return None;
    }
    if authority == input.len() {
        let from = scheme_end.saturating_sub(11);
        let scheme = input
            .bytes(from, scheme_end)
            .rsplit(|byte| !byte.is_ascii_alphanumeric() && *byte != b'+')
            .next()
            .unwrap_or_default();
        let is_service = SERVICES
            .iter()
            .any(|service| scheme.eq_ignore_ascii_case(service.as_bytes()));
        return is_service.then_some(authority);
    }
    // No number follows, so this is no port, and the `/`, `?` or `#` is part of a password.
    let limit = start.saturating_add(MAX_PART);
    let wider = (start..limit).find(|&at| {
        input.byte(at).is_none_or(|byte| {
            !byte.is_ascii_graphic()
                || is_quote(byte)
                || b"@<>()[]{}|\\,;".contains(&byte)
                || (byte == b':' && input.starts(at, "://"))
        })
    })?;
    let has_host = input
        .byte(wider + 1)
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    (input.byte(wider) == Some(b'@') && has_host).then_some(wider)
}

/// Whether a byte can belong to user, password and host.
const fn is_authority(byte: u8) -> bool {
    !byte.is_ascii_whitespace()
        && !byte.is_ascii_control()
        && !is_quote(byte)
        && !matches!(byte, b'/' | b'?' | b'#' | b'<' | b'>' | b'\\')
}
