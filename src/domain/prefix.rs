//! How much of what was sent last time stands at the front of what is sent now.
//!
//! A provider's prompt cache knows a prefix again byte for byte. To see how long the common prefix
//! of two dispatches is without keeping the bytes, the digest that each gets anyway is noted at
//! regular distances: two notes are equal exactly if everything before them is.

use sha2::{Digest, Sha256};

use super::message::Digest256;

/// Bytes of a note.
const NOTE: usize = 8;
/// Notes that are kept at most; then every other one goes and the distance doubles.
const MOST_NOTES: usize = 512;
/// The distance to begin with, in bytes.
const FIRST_STEP: u64 = 64;

type Note = [u8; NOTE];

/// Notes over some bytes: one every `step` bytes, and one at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notes {
    /// Bytes from one to the next; a power of two times 64.
    pub step: u64,
    /// The notes, one behind the other, the one at the end last.
    pub bytes: Vec<u8>,
    /// How many bytes they are of.
    pub length: u64,
}

impl Notes {
    /// The note at an offset that is a multiple of the step.
    fn at(&self, offset: u64) -> Option<&[u8]> {
        let index = usize::try_from((offset / self.step).checked_sub(1)?).ok()?;
        let (notes, _) = self
            .bytes
            .split_at_checked(self.bytes.len().checked_sub(NOTE)?)?;
        notes.get(index * NOTE..(index + 1) * NOTE)
    }

    fn end(&self) -> Option<&[u8]> {
        self.bytes.get(self.bytes.len().checked_sub(NOTE)?..)
    }
}

/// What became of the bytes.
#[derive(Debug)]
pub struct Digested {
    /// SHA-256 of all of them.
    pub digest: Digest256,
    /// Notes for the next time.
    pub notes: Notes,
    /// How many bytes of the last time stand at the front: exact if all of them do, else at most 1/256 of the
    /// length too few. `None` if there was no last time.
    pub shared: Option<u64>,
}

/// Digests bytes as they come.
pub struct Digester {
    sha: Sha256,
    length: u64,
    step: u64,
    notes: Vec<Note>,
    previous: Option<Notes>,
    /// The note where the previous bytes ended.
    at_previous_end: Option<Note>,
}

impl Digester {
    /// Begins; `previous` are the notes of the last time.
    #[must_use]
    pub fn new(previous: Option<Notes>) -> Self {
        let mut digester = Self {
            sha: Sha256::new(),
            length: 0,
            step: FIRST_STEP,
            notes: Vec::new(),
            previous,
            at_previous_end: None,
        };
        digester.note();
        digester
    }

    /// Takes more bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let to_step = self.step - self.length % self.step;
            let to_end = self
                .previous_length()
                .and_then(|end| end.checked_sub(self.length));
            let stop = to_end
                .filter(|left| *left > 0)
                .unwrap_or(u64::MAX)
                .min(to_step);
            let take = usize::try_from(stop).unwrap_or(usize::MAX).min(bytes.len());
            let (now, rest) = bytes.split_at(take);
            self.sha.update(now);
            self.length += take as u64;
            bytes = rest;
            self.note();
        }
    }

    /// Ends.
    #[must_use]
    pub fn finish(self) -> Digested {
        let end = self.present();
        let mut bytes: Vec<u8> = self.notes.iter().flatten().copied().collect();
        bytes.extend(end);
        let notes = Notes {
            step: self.step,
            bytes,
            length: self.length,
        };
        let shared = self.previous.as_ref().map(|previous| {
            let is_whole = self
                .at_previous_end
                .is_some_and(|note| previous.end() == Some(&note));
            if is_whole {
                previous.length
            } else {
                common(previous, &notes)
            }
        });
        Digested {
            digest: self.sha.finalize().into(),
            notes,
            shared,
        }
    }

    fn previous_length(&self) -> Option<u64> {
        self.previous.as_ref().map(|previous| previous.length)
    }

    fn present(&self) -> Note {
        let digest: Digest256 = self.sha.clone().finalize().into();
        let mut note = [0; NOTE];
        for (to, from) in note.iter_mut().zip(digest) {
            *to = from;
        }
        note
    }

    fn note(&mut self) {
        if self.previous_length() == Some(self.length) {
            self.at_previous_end = Some(self.present());
        }
        if self.length == 0 || !self.length.is_multiple_of(self.step) {
            return;
        }
        if self.notes.len() == MOST_NOTES {
            // Those at multiples of twice the step stay: the second, the fourth, …
            self.notes = self.notes.iter().skip(1).step_by(2).copied().collect();
            self.step *= 2;
            if !self.length.is_multiple_of(self.step) {
                return;
            }
        }
        self.notes.push(self.present());
    }
}

/// The largest offset at which both have the same note.
fn common(one: &Notes, other: &Notes) -> u64 {
    let step = one.step.max(other.step);
    let offsets = (1..).map(|number| number * step);
    offsets
        .take_while(|offset| match (one.at(*offset), other.at(*offset)) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        })
        .last()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(bytes: &[u8], pieces: usize, previous: Option<Notes>) -> Digested {
        let mut digester = Digester::new(previous);
        for piece in bytes.chunks(pieces.max(1)) {
            digester.update(piece);
        }
        digester.finish()
    }

    fn text(length: usize, seed: u64) -> Vec<u8> {
        (0..length as u64)
            .map(|at| (at.wrapping_mul(seed | 1).wrapping_add(seed) >> 3).to_le_bytes()[0])
            .collect()
    }

    proptest! {
        #[test]
        fn finds_the_common_prefix(
            first in 0usize..150_000,
            keep in 0usize..150_000,
            added in 0usize..150_000,
            pieces in 1usize..5_000,
        ) {
            let old = text(first, 7);
            let kept = keep.min(first);
            let mut new = old[..kept].to_vec();
            new.extend(text(added, 11).iter().map(|byte| byte ^ 0x55));
            let really = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
            let before = digest(&old, 1_000, None);
            prop_assert_eq!(before.shared, None);
            let now = digest(&new, pieces, Some(before.notes));
            let shared = usize::try_from(now.shared.unwrap()).unwrap();
            prop_assert!(shared <= really);
            if really == old.len() {
                prop_assert_eq!(shared, really);
            } else {
                let longest = old.len().max(new.len());
                prop_assert!(really - shared <= 64.max(longest / 128), "{shared} of {really}");
            }
        }

        #[test]
        fn pieces_make_no_difference(length in 0usize..80_000, pieces in 1usize..3_000) {
            let bytes = text(length, 3);
            let (one, other) = (digest(&bytes, pieces, None), digest(&bytes, length, None));
            prop_assert_eq!(one.digest, other.digest);
            prop_assert_eq!(one.digest, <[u8; 32]>::from(Sha256::digest(&bytes)));
            prop_assert_eq!(&one.notes, &other.notes);
            prop_assert!(one.notes.bytes.len() <= (MOST_NOTES + 1) * NOTE);
        }
    }
}
