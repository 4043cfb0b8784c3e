//! Private-key blocks, from `-----BEGIN … PRIVATE KEY-----` on.
//!
//! A block may have its line ends escaped, be quoted line by line, or miss its end because a tool's
//! output was cut. With an end it goes as a whole; without one it goes as far as its base64 reaches.
//! A sentence that only names the marks keeps them. Public keys and certificates are no secrets.

use super::input::Input;
use super::{Kind, Span};

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";

/// No key is longer than this, in bytes; an end mark further away belongs to something else.
const MAX_BLOCK: usize = 32 << 10;

/// A private key whose first mark is in a run (the dashes and `BEGIN` are one).
pub(super) fn find(
    input: &Input<'_>,
    start: usize,
    end: usize,
    spans: &mut Vec<Span>,
) -> Option<usize> {
    let mark = end
        .checked_sub(BEGIN.len() - 1)
        .filter(|&mark| mark >= start)?;
    if !input.starts(mark, BEGIN) {
        return None;
    }
    let body = mark_end(input, mark + BEGIN.len())?;
    let block = block_end(input, body)?;
    spans.push(Span::new(mark, block, Kind::PrivateKey));
    Some(block)
}

/// The end of a mark whose label, from `at` on, is one of a private key.
fn mark_end(input: &Input<'_>, at: usize) -> Option<usize> {
    let label_end = input.run_end_within(at, 48, |byte| {
        byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b' '
    });
    let label = input.slice(at, label_end).trim_end();
    let is_private = label.ends_with("PRIVATE KEY") || label.ends_with("PRIVATE KEY BLOCK");
    let dashes = input.run_end_within(label_end, 5, |byte| byte == b'-');
    (is_private && dashes > label_end).then_some(dashes)
}

fn block_end(input: &Input<'_>, body: usize) -> Option<usize> {
    let limit = body.saturating_add(MAX_BLOCK).min(input.len());
    let next_mark = input
        .bytes(body, limit)
        .windows(5)
        .position(|window| window == b"-----")
        .map(|position| body + position);
    if let Some(mark) = next_mark
        && input.starts(mark, END)
        && let Some(end) = mark_end(input, mark + END.len())
        && has_material(input.bytes(body, mark))
    {
        return Some(end);
    }
    material_end(input, body, next_mark.unwrap_or(input.len()))
}

/// Whether there is key material among bytes: base64 in a long row, no mere words or hex.
fn has_material(bytes: &[u8]) -> bool {
    bytes
        .split(|&byte| !is_base64(byte))
        .any(|row| row.len() >= 12 && !row.iter().all(u8::is_ascii_lowercase))
}

const fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

/// How far the base64 after a mark reaches, piece by piece; `None` if there is none.
fn material_end(input: &Input<'_>, body: usize, limit: usize) -> Option<usize> {
    let mut end = None;
    let mut at = body;
    let mut after_header = 0_u8;
    while at < limit {
        // Between the pieces: space, escapes, and what quotes a line in code, mail or a diff.
        if let Some(next) = input.after_line_end(at) {
            at = next;
            continue;
        }
        let start = input.run_end(at, |byte| !is_base64(byte) && is_between(byte));
        let piece_end = input.run_end(start, is_base64);
        if start > at && piece_end == start {
            at = start;
            continue;
        }
        let piece = input.bytes(start, piece_end);
        if piece.is_empty() {
            break;
        }
        if is_header(piece) {
            after_header = 8;
        } else if after_header > 0 && !is_long(piece) {
            after_header -= 1;
        } else if is_long(piece)
            || is_mixed(piece)
            || (end.is_some() && piece_end == input.len())
            || (end.is_some() && piece.ends_with(b"="))
        {
            after_header = 0;
            end = Some(piece_end);
        } else if piece.len() > 6 || piece.iter().any(u8::is_ascii_alphabetic) {
            // Digits may number a line, and a plus may join it to the next.
            break;
        }
        at = piece_end;
    }
    end
}

const fn is_between(byte: u8) -> bool {
    matches!(
        byte,
        b' ' | b'\t'
            | b'"'
            | b'\''
            | b'`'
            | b','
            | b'>'
            | b'|'
            | b':'
            | b'#'
            | b'*'
            | b'-'
            | b'.'
            | b'('
    )
}

fn is_header(piece: &[u8]) -> bool {
    [&b"Proc"[..], b"DEK", b"Version", b"Comment"].contains(&piece)
}

/// A whole line of base64, and neither a hash nor a path.
fn is_long(piece: &[u8]) -> bool {
    piece.len() >= 28
        && piece.iter().any(u8::is_ascii_uppercase)
        && piece.iter().any(u8::is_ascii_lowercase)
}

fn is_mixed(piece: &[u8]) -> bool {
    piece.len() >= 8
        && piece.iter().any(u8::is_ascii_digit)
        && piece.iter().any(u8::is_ascii_uppercase)
        && piece.iter().any(u8::is_ascii_lowercase)
}
