//! Keys that give themselves away: a provider's prefix and a length, AWS key ids, JSON web tokens.
//!
//! These are certain without any name beside them. A shape asks for enough of a body that code and
//! prose which only mention a prefix (`sk-`, `npm_config_…`) stay. Base64 without a prefix has no
//! place here.

use super::input::{Input, is_run};
use super::{Kind, Span};

/// Which bytes the body of a key is made of.
#[derive(Debug, Clone, Copy)]
enum Body {
    /// Letters and digits.
    Plain,
    /// Letters, digits and `_`.
    Snake,
    /// Letters, digits, `_` and `-`.
    Run,
    /// The same and `.`.
    Dotted,
    /// Letters, digits and `/`.
    Path,
}

impl Body {
    const fn holds(self, byte: u8) -> bool {
        byte.is_ascii_alphanumeric()
            || match self {
                Self::Plain => false,
                Self::Snake => byte == b'_',
                Self::Run => is_run(byte),
                Self::Dotted => is_run(byte) || byte == b'.',
                Self::Path => byte == b'/',
            }
    }
}

/// A prefix and what must follow it.
struct Shape(&'static str, Body, usize, Kind);

/// Shapes by the first byte of their prefix; the longer prefix first.
fn shapes(first: u8) -> &'static [Shape] {
    use Body::{Dotted, Plain, Run, Snake};
    use Kind::{AccessKey, PrivateKey, Token};
    match first {
        b'A' => &[
            Shape("AIza", Run, 30, AccessKey),
            Shape("AGE-SECRET-KEY-1", Plain, 32, PrivateKey),
            Shape("ATATT3", Run, 32, Token),
            Shape("ATBB", Plain, 28, Token),
        ],
        b'G' => &[Shape("GOCSPX-", Run, 20, AccessKey)],
        b'N' => &[Shape("NRAK-", Plain, 24, AccessKey)],
        b'P' => &[Shape("PMAK-", Run, 32, AccessKey)],
        b'd' => &[
            Shape("dckr_pat_", Run, 20, Token),
            Shape("dop_v1_", Plain, 32, Token),
            Shape("doo_v1_", Plain, 32, Token),
            Shape("dor_v1_", Plain, 32, Token),
        ],
        b'f' => &[Shape("figd_", Run, 32, Token)],
        b'g' => &[
            Shape("github_pat_", Snake, 20, Token),
            Shape("ghp_", Snake, 20, Token),
            Shape("gho_", Snake, 20, Token),
            Shape("ghs_", Snake, 20, Token),
            Shape("ghu_", Snake, 20, Token),
            Shape("ghr_", Snake, 20, Token),
            Shape("glpat-", Dotted, 16, Token),
            Shape("gldt-", Dotted, 16, Token),
            Shape("glrt-", Dotted, 16, Token),
            Shape("glcbt-", Dotted, 16, Token),
            Shape("glptt-", Dotted, 16, Token),
            Shape("glsa_", Snake, 28, Token),
            Shape("gsk_", Plain, 28, AccessKey),
        ],
        b'h' => &[
            Shape("hf_", Plain, 20, Token),
            Shape("hvs.", Run, 20, Token),
            Shape("hvb.", Run, 20, Token),
        ],
        b'l' => &[Shape("lin_api_", Plain, 28, AccessKey)],
        b'n' => &[
            Shape("npm_", Plain, 24, Token),
            Shape("nvapi-", Run, 32, AccessKey),
            Shape("ntn_", Plain, 32, Token),
        ],
        b'p' => &[
            Shape("pypi-", Run, 32, Token),
            Shape("pplx-", Plain, 32, AccessKey),
        ],
        b'r' => &[
            Shape("rk_live_", Plain, 16, AccessKey),
            Shape("rk_test_", Plain, 16, AccessKey),
            Shape("r8_", Plain, 32, Token),
        ],
        b's' => &[
            Shape("sk-ant-", Run, 12, AccessKey),
            Shape("sk-proj-", Run, 12, AccessKey),
            Shape("sk-svcacct-", Run, 12, AccessKey),
            Shape("sk-or-", Run, 16, AccessKey),
            Shape("sk-", Run, 20, AccessKey),
            Shape("sk_live_", Plain, 16, AccessKey),
            Shape("sk_test_", Plain, 16, AccessKey),
            Shape("sbp_", Plain, 32, Token),
            Shape("sntrys_", Run, 32, Token),
            Shape("sntryu_", Plain, 32, Token),
            Shape("shpat_", Plain, 28, Token),
            Shape("shpss_", Plain, 28, Token),
            Shape("shpca_", Plain, 28, Token),
            Shape("shppa_", Plain, 28, Token),
            Shape("secret_", Plain, 40, Token),
        ],
        b't' => &[Shape("tvly-", Run, 20, AccessKey)],
        b'w' => &[Shape("whsec_", Plain, 24, Token)],
        b'x' => &[
            Shape("xoxb-", Run, 12, Token),
            Shape("xoxp-", Run, 12, Token),
            Shape("xoxa-", Run, 12, Token),
            Shape("xoxr-", Run, 12, Token),
            Shape("xoxs-", Run, 12, Token),
            Shape("xoxe-", Run, 12, Token),
            Shape("xoxe.xox", Run, 12, Token),
            Shape("xoxc-", Run, 12, Token),
            Shape("xoxd-", Run, 12, Token),
            Shape("xapp-", Run, 16, Token),
            Shape("xai-", Plain, 40, AccessKey),
        ],
        b'y' => &[Shape("ya29.", Dotted, 16, Token)],
        _ => &[],
    }
}

/// How much of a body is looked at to judge it; its end may lie further.
const SAMPLE: usize = 64;

/// A key that begins in a run, at its start or after a `-` or `_` in it.
pub(super) fn find(
    input: &Input<'_>,
    start: usize,
    end: usize,
    spans: &mut Vec<Span>,
) -> Option<usize> {
    if let Some(span) = whole_run(input, start, end) {
        spans.push(span);
        return Some(span.end);
    }
    let mut inside = false;
    for (at, &byte) in (start..end).zip(input.bytes(start, end)) {
        if !inside && let Some(span) = access_key_id(input, at).or_else(|| prefixed(input, at)) {
            spans.push(span);
            let paired = secret_beside(input, span);
            spans.extend(paired);
            return Some(paired.map_or(span.end, |paired| paired.end));
        }
        inside = byte.is_ascii_alphanumeric();
    }
    None
}

/// Shapes whose parts are joined by dots or slashes, or that would be too common inside a run.
fn whole_run(input: &Input<'_>, start: usize, end: usize) -> Option<Span> {
    let length = end - start;
    match input.byte(start)? {
        b'e' => web_token(input, start, end),
        b'S' if length == 2 && input.starts(start, "SG.") => {
            let middle = input.run_end(start + 3, is_run);
            let last = input.run_end(middle + 1, is_run);
            let is_key =
                input.byte(middle) == Some(b'.') && middle >= start + 19 && last >= middle + 17;
            is_key.then_some(Span::new(start, last, Kind::AccessKey))
        }
        b'k' if length == 36 && input.starts(start, "key-") => {
            let is_key = input
                .bytes(start + 4, end)
                .iter()
                .all(u8::is_ascii_hexdigit);
            is_key.then_some(Span::new(start, end, Kind::AccessKey))
        }
        b'h' if input.starts(start, "hooks.slack.com/services/") => {
            let body = start + "hooks.slack.com/services/".len();
            let last = input.run_end(body, |byte| Body::Path.holds(byte));
            (last >= body + 24).then_some(Span::new(body, last, Kind::Token))
        }
        _ => None,
    }
}

/// A JSON web token: base64url parts joined by dots, the first of which is an object (`eyJ`).
fn web_token(input: &Input<'_>, start: usize, end: usize) -> Option<Span> {
    if !input.starts(start, "eyJ") || end < start + 12 || input.byte(end) != Some(b'.') {
        return None;
    }
    let second = input.run_end(end + 1, is_run);
    if second < end + 9 {
        return None;
    }
    let mut last = second;
    let mut parts = 2;
    while parts < 5 && input.byte(last) == Some(b'.') {
        let next = input.run_end(last + 1, is_run);
        if next == last + 1 {
            break;
        }
        last = next;
        parts += 1;
    }
    // Two parts are one that was cut off, if the second is an object as well.
    let is_token = parts > 2 || input.starts(end + 1, "eyJ");
    is_token.then_some(Span::new(start, last, Kind::Token))
}

/// The id of an AWS access key.
fn access_key_id(input: &Input<'_>, at: usize) -> Option<Span> {
    let known = ["AKIA", "ASIA", "ABIA", "ACCA"];
    if input.byte(at) != Some(b'A') || !known.iter().any(|prefix| input.starts(at, prefix)) {
        return None;
    }
    let end = input.run_end_within(at, 21, |byte| {
        byte.is_ascii_uppercase() || byte.is_ascii_digit()
    });
    let ends = !input
        .byte(end)
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    (ends && end == at + 20).then_some(Span::new(at, end, Kind::AccessKey))
}

/// The secret that stands right after the id of its access key, as in a file of both.
fn secret_beside(input: &Input<'_>, id: Span) -> Option<Span> {
    if id.end != id.start + 20 {
        return None;
    }
    let start = input.run_end_within(id.end, 4, |byte| {
        matches!(
            byte,
            b':' | b',' | b';' | b'|' | b' ' | b'\t' | b'"' | b'\'' | b'\n' | b'='
        )
    });
    let end = input.run_end_within(start, 41, is_base64);
    let body = input.bytes(start, end);
    let is_secret = start > id.end
        && body.len() == 40
        && body.iter().any(u8::is_ascii_uppercase)
        && body.iter().any(u8::is_ascii_lowercase)
        && body.iter().any(u8::is_ascii_digit);
    is_secret.then_some(Span::new(start, end, Kind::AccessKey))
}

const fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/')
}

/// A key with a provider's prefix.
fn prefixed(input: &Input<'_>, at: usize) -> Option<Span> {
    let shapes = shapes(input.byte(at)?);
    let Shape(prefix, class, least, kind) =
        shapes.iter().find(|shape| input.starts(at, shape.0))?;
    let body = at + prefix.len();
    let sample_end = input.run_end_within(body, SAMPLE, |byte| class.holds(byte));
    let sample = input.bytes(body, sample_end);
    if sample.len() < *least || !is_body(prefix, sample) {
        return None;
    }
    let mut end = input.run_end(sample_end, |byte| class.holds(byte));
    while input.byte_before(end) == Some(b'.') {
        end -= 1;
    }
    Some(Span::new(at, end, *kind))
}

/// Whether a body is more than words joined by hyphens, or a row of the same letter.
fn is_body(prefix: &str, body: &[u8]) -> bool {
    let first = body.first().copied().unwrap_or_default();
    if body.iter().all(|byte| byte.eq_ignore_ascii_case(&first)) {
        return false;
    }
    let has_digit = body.iter().any(u8::is_ascii_digit);
    let has_upper = body.iter().any(u8::is_ascii_uppercase);
    let longest = body
        .split(|byte| !byte.is_ascii_alphanumeric())
        .map(<[u8]>::len)
        .max()
        .unwrap_or_default();
    match prefix {
        "sk-" | "tvly-" | "pypi-" => longest >= 20 || (longest >= 16 && has_digit),
        _ => has_digit || has_upper || longest >= 16,
    }
}
