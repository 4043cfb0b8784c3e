//! A text as bytes with safe steps over it.
//!
//! Everything searched for begins and ends in ASCII, so bytes are enough, and no step can fall into
//! the middle of a character that matters. Knows escapes and placeholders, but no kind of secret.

use super::Kind;

/// A text and its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input<'a> {
    text: &'a str,
    bytes: &'a [u8],
}

/// Whether a byte can be part of a name or of a key.
pub(super) const fn is_run(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// Whether a byte is a blank on the same line.
pub(super) const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Whether a byte is one of the quotes.
pub(super) const fn is_quote(byte: u8) -> bool {
    matches!(byte, b'"' | b'\'' | b'`')
}

impl<'a> Input<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self {
            text,
            bytes: text.as_bytes(),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn byte(&self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    pub(super) fn byte_before(&self, at: usize) -> Option<u8> {
        at.checked_sub(1).and_then(|at| self.byte(at))
    }

    /// The text from `start` to `end`; empty where that is none.
    pub(super) fn slice(&self, start: usize, end: usize) -> &'a str {
        self.text.get(start..end).unwrap_or_default()
    }

    /// The text from `start` to its end.
    pub(super) fn slice_from(&self, start: usize) -> &'a str {
        self.text.get(start..).unwrap_or_default()
    }

    pub(super) fn bytes(&self, start: usize, end: usize) -> &'a [u8] {
        self.bytes.get(start..end).unwrap_or_default()
    }

    pub(super) fn starts(&self, at: usize, with: &str) -> bool {
        self.bytes
            .get(at..)
            .is_some_and(|rest| rest.starts_with(with.as_bytes()))
    }

    pub(super) fn starts_ignoring_case(&self, at: usize, with: &str) -> bool {
        self.bytes
            .get(at..at.saturating_add(with.len()))
            .is_some_and(|here| here.eq_ignore_ascii_case(with.as_bytes()))
    }

    /// The end of the bytes from `at` that belong to a class.
    pub(super) fn run_end(&self, at: usize, belongs: impl Fn(u8) -> bool) -> usize {
        let rest = self.bytes.get(at..).unwrap_or_default();
        let length = rest.iter().position(|&byte| !belongs(byte));
        at + length.unwrap_or(rest.len())
    }

    /// The same, but no further than `most` bytes.
    pub(super) fn run_end_within(
        &self,
        at: usize,
        most: usize,
        belongs: impl Fn(u8) -> bool,
    ) -> usize {
        let end = at.saturating_add(most).min(self.len());
        let here = self.bytes(at, end);
        let length = here.iter().position(|&byte| !belongs(byte));
        at + length.unwrap_or(here.len())
    }

    /// Past a few blanks on the same line.
    pub(super) fn skip_blanks(&self, at: usize) -> usize {
        self.run_end_within(at, 64, is_blank)
    }

    /// Past blanks and line ends, escaped ones too.
    pub(super) fn skip_space(&self, at: usize) -> usize {
        let mut at = at;
        for _ in 0..8 {
            let next = self.run_end_within(at, 64, |byte| byte.is_ascii_whitespace());
            let next = self.after_line_end(next).unwrap_or(next);
            if next == at {
                break;
            }
            at = next;
        }
        at
    }

    /// Where a quote that opens or closes at `at` ends, the quote, and how many backslashes it has.
    pub(super) fn quote(&self, at: usize) -> Option<(usize, u8, usize)> {
        let mark = self.run_end_within(at, 16, |byte| byte == b'\\');
        let quote = self.byte(mark).filter(|&byte| is_quote(byte))?;
        Some((mark + 1, quote, mark - at))
    }

    /// The end of a line end that begins here, as a byte or in its escaped spelling.
    pub(super) fn after_line_end(&self, at: usize) -> Option<usize> {
        match self.byte(at)? {
            b'\n' | b'\r' => Some(at + 1),
            b'\\' => {
                let mark = self.run_end_within(at, 16, |byte| byte == b'\\');
                matches!(self.byte(mark)?, b'n' | b'r' | b'\n').then_some(mark + 1)
            }
            _ => None,
        }
    }

    /// Past a backslash and what it escapes, so that a word after `\n` is seen from its first letter.
    pub(super) fn after_escape(&self, at: usize) -> usize {
        match self.byte(at + 1) {
            Some(b'n' | b'r' | b't' | b'b' | b'f') => at + 2,
            Some(b'u') if self.bytes(at + 2, at + 6).iter().all(u8::is_ascii_hexdigit) => {
                let end = (at + 6).min(self.len());
                if self.starts_ignoring_case(at, "\\u001b") {
                    self.after_colour(end - 1)
                } else {
                    end
                }
            }
            _ => at + 1,
        }
    }

    /// Past a terminal's colour code whose escape character is at `at`.
    pub(super) fn after_colour(&self, at: usize) -> usize {
        if self.byte(at + 1) != Some(b'[') {
            return at + 1;
        }
        let end = self.run_end_within(at + 2, 16, |byte| byte.is_ascii_digit() || byte == b';');
        match self.byte(end) {
            Some(byte) if byte.is_ascii_alphabetic() => end + 1,
            _ => at + 1,
        }
    }

    /// The end of one of our placeholders that begins here.
    pub(super) fn placeholder_end(&self, at: usize) -> Option<usize> {
        if !self.starts(at, "[redacted: ") {
            return None;
        }
        Kind::ALL
            .iter()
            .map(|kind| kind.placeholder())
            .find(|placeholder| self.starts(at, placeholder))
            .map(|placeholder| at + placeholder.len())
    }

    /// Whether nothing but blanks, a closing mark or a remark follows on the line.
    pub(super) fn line_ends(&self, at: usize) -> bool {
        let at = self.skip_blanks(at);
        match self.byte(at) {
            None | Some(b'#') => true,
            Some(byte) => {
                is_quote(byte) || self.after_line_end(at).is_some() || self.quote(at).is_some()
            }
        }
    }
}
