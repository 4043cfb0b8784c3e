//! Rendering a dispatch: what is sent, and the digests of it, in one pass.
//!
//! A context that is too large to be kept is read twice: once for its digests, which the record
//! needs before anything is sent, and once while it is sent.

use sha2::{Digest, Sha256};

use super::ServiceError;
use super::context::{Format, Frame, Rendered, TailReader, to_anthropic};
use crate::domain::prefix::{Digested, Digester, Notes};
use crate::storage::Previous;

/// Rendered bytes up to which a dispatch is kept between its record and its answer. More than a context is built whole
/// of: whoever reads that a second time pays for it twice.
const KEPT_BYTES: usize = 12 << 20;

/// A rendered dispatch: what is sent, and its digests.
pub(super) struct Built {
    pub(super) format: Format,
    /// The whole of it; `None` if it is too large to be kept.
    pub(super) rendered: Option<Rendered>,
    pub(super) breakpoints: Vec<usize>,
    /// SHA-256 of the items as sent, joined by commas.
    pub(super) digest: Vec<u8>,
    pub(super) bytes: u64,
    pub(super) digested: Digested,
}

/// Reads and digests a context; keeps it unless it is too large.
pub(super) async fn build(
    frame: &Frame,
    mut reader: TailReader,
    format: Format,
    breakpoints: Vec<usize>,
    previous: Option<&Previous>,
) -> Result<Built, ServiceError> {
    let mut digester = Digester::new(previous.map(|previous| {
        Notes {
            step: u64::try_from(previous.marks.step)
                .unwrap_or(u64::MAX)
                .max(1),
            bytes: previous.marks.marks.clone(),
            length: u64::try_from(previous.openai_bytes).unwrap_or(0),
        }
    }));
    let (mut messages, mut is_whole) = (frame.opening.clone(), true);
    digester.update(messages.as_bytes());
    loop {
        if !is_whole {
            let Some(page) = reader.next_behind().await? else {
                break;
            };
            digester.update(page.as_bytes());
            continue;
        }
        let before = messages.len();
        if !reader.next(&mut messages).await? {
            break;
        }
        digester.update(messages.as_bytes().get(before..).unwrap_or_default());
        // Another form can only be made of the whole.
        if messages.len() > KEPT_BYTES && format == Format::OpenAi {
            (messages, is_whole) = (String::new(), false);
        }
    }
    let ended = digester.finish();
    if format == Format::OpenAi {
        return Ok(Built {
            format,
            rendered: is_whole.then_some(Rendered {
                system: None,
                messages,
                rest: None,
            }),
            breakpoints,
            digest: ended.digest.to_vec(),
            bytes: ended.notes.length,
            digested: ended,
        });
    }
    let (rendered, breakpoints) = to_anthropic(messages, breakpoints).await?;
    let mut sha = Sha256::new();
    let mut bytes = 0;
    let parts = [
        rendered.system.as_deref().unwrap_or_default(),
        rendered.messages.as_str(),
    ];
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        if bytes > 0 {
            sha.update(b",");
            bytes += 1;
        }
        sha.update(part);
        bytes += part.len() as u64;
    }
    Ok(Built {
        format,
        rendered: Some(rendered),
        breakpoints,
        digest: sha.finalize().to_vec(),
        bytes,
        digested: ended,
    })
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
