//! Takes secrets out of text that leaves for a summarizer, or comes back from one.
//!
//! A summary is repeated in every later context, so a password that slips into one never goes away;
//! and a model that sees none can write none. Each secret becomes a placeholder that says what stood
//! there (`[redacted: password]`), so that the sentence around it keeps its sense. What is certain by
//! shape (`shapes`, `pem`, `url`, `header`) is always replaced; what only a name gives away (`assign`)
//! is replaced when the value looks like a secret. Nothing is replaced for looking random alone:
//! hashes, ids and paths are the facts a summary is for, and an odd secret missed costs less than
//! they do.
//!
//! One scan from left to right, each look ahead bounded or consumed, so time is linear in the text,
//! whatever it holds. Arguments may be cut off or no valid JSON, which is why nothing here parses
//! JSON: quotes and line ends are also known in their escaped spelling, at any depth.
//!
//! Which texts are redacted, and whether the operator wants it, is decided elsewhere. Stored messages
//! never come here.

mod assign;
mod command;
mod header;
mod input;
mod names;
mod pem;
mod shapes;
#[cfg(test)]
mod tests;
mod url;
mod value;
mod words;

use std::borrow::Cow;

use input::Input;

/// What a secret was, as its placeholder names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    AccessKey,
    BearerToken,
    Cookie,
    Credentials,
    Password,
    PrivateKey,
    Secret,
    Token,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::AccessKey,
        Self::BearerToken,
        Self::Cookie,
        Self::Credentials,
        Self::Password,
        Self::PrivateKey,
        Self::Secret,
        Self::Token,
    ];

    const fn placeholder(self) -> &'static str {
        match self {
            Self::AccessKey => "[redacted: access key]",
            Self::BearerToken => "[redacted: bearer token]",
            Self::Cookie => "[redacted: cookie]",
            Self::Credentials => "[redacted: credentials]",
            Self::Password => "[redacted: password]",
            Self::PrivateKey => "[redacted: private key]",
            Self::Secret => "[redacted: secret]",
            Self::Token => "[redacted: token]",
        }
    }
}

/// A secret in a text, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    start: usize,
    end: usize,
    kind: Kind,
}

impl Span {
    const fn new(start: usize, end: usize, kind: Kind) -> Self {
        Self { start, end, kind }
    }
}

/// Rounds after which even a text made to be redacted anew each time is left as it is.
const MAX_ROUNDS: usize = 4;

/// Replaces the secrets in a text by placeholders; borrowed when there are none.
///
/// Redacting what was redacted changes nothing.
#[must_use]
pub fn redact(text: &str) -> Cow<'_, str> {
    let mut result = Cow::Borrowed(text);
    // One round leaves nothing for a second, but for texts where a placeholder stands so that what
    // follows it reads anew.
    for _ in 0..MAX_ROUNDS {
        let Some(next) = replace(&result) else {
            break;
        };
        result = Cow::Owned(next);
    }
    result
}

/// One round; `None` if there is nothing to replace.
fn replace(text: &str) -> Option<String> {
    let spans = find_secrets(text);
    if spans.is_empty() {
        return None;
    }
    let mut result = String::with_capacity(text.len());
    let mut done = 0;
    for span in spans {
        // Spans come in order and begin and end beside ASCII, so no piece is ever missing.
        result.push_str(text.get(done..span.start).unwrap_or_default());
        result.push_str(span.kind.placeholder());
        done = span.end;
    }
    result.push_str(text.get(done..).unwrap_or_default());
    Some(result)
}

/// The secrets of a text in order, without overlap.
fn find_secrets(text: &str) -> Vec<Span> {
    let input = Input::new(text);
    let mut spans = Vec::new();
    let mut commands = command::Commands::default();
    // The word before, where a single space parts it from the next: "API key", "Basic auth".
    let mut before: Option<(usize, usize)> = None;
    let mut at = 0;
    while let Some(byte) = input.byte(at) {
        at = match byte {
            _ if input::is_run(byte) => {
                let end = input.run_end(at, input::is_run);
                let next = find_at_run(&input, at, end, before, &mut commands, &mut spans);
                before = next.is_none().then_some((at, end));
                next.unwrap_or(end)
            }
            b':' => url::find(&input, at, &mut spans).unwrap_or(at + 1),
            b'\\' => input.after_escape(at),
            b'[' => input.placeholder_end(at).unwrap_or(at + 1),
            0x1b => input.after_colour(at),
            _ => at + 1,
        };
    }
    spans
}

/// What begins in a run of letters, digits, `_` and `-`. Gives where to go on if it was a secret.
fn find_at_run(
    input: &Input<'_>,
    start: usize,
    end: usize,
    before: Option<(usize, usize)>,
    commands: &mut command::Commands,
    spans: &mut Vec<Span>,
) -> Option<usize> {
    pem::find(input, start, end, spans)
        .or_else(|| shapes::find(input, start, end, spans))
        .or_else(|| header::find_scheme(input, start, end, spans))
        .or_else(|| commands.find(input, start, end, spans))
        .or_else(|| {
            let name = names::read(input, start, end, before)?;
            header::find_named(input, end, name, spans)
                .or_else(|| assign::find(input, end, name, spans))
        })
}
