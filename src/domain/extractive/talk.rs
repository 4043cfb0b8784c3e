//! From a message to the pieces of it that can stand alone in a summary.
//!
//! What the user says is kept in as few and as whole pieces as possible; rules and decisions in it stand apart, so
//! that they are found (and outlive the request they came with). Of the assistant's prose every sentence is weighed.

use super::cues::{self, Cues};
use super::item::{self, Item, Origin, Section};
use super::text;
use super::tokens::{self, Kind};

/// A user message up to this long (UTF-16 units) is one piece, but for the rules in it.
const WHOLE: usize = 300;
/// Sentences looked at in one message.
const MAX_SENTENCES: usize = 160;

struct Sentence {
    /// The sentence read by itself; only where sentences are joined is the whole read again.
    item: Item,
    words: usize,
    /// Leans on what was said before ("It glares.").
    leans: bool,
    /// Says no more than "ok, thanks".
    empty: bool,
}

fn read(line: &str, origin: Origin) -> Sentence {
    let line = item::unsplit(line);
    let low = line.to_ascii_lowercase();
    let scanned = tokens::scan(line, &low);
    let glyphs = scanned.iter().filter(|t| t.kind == Kind::Glyph).count();
    let words = scanned.len() - glyphs + glyphs / 2;
    let pronoun = |word: &str| {
        matches!(
            word,
            "it" | "he" | "she" | "they" | "that" | "this" | "them" | "these" | "those" | "both"
        )
    };
    let first = scanned
        .iter()
        .find(|t| t.kind == Kind::Word)
        .map_or("", |t| t.low);
    let leans = pronoun(first) || (words <= 6 && scanned.iter().any(|t| pronoun(t.low)));
    let item = Item::of_tokens(line, &scanned, origin, None);
    let empty = scanned.iter().all(|t| t.kind == Kind::Word)
        && words <= 4
        && ((words == 0 && line.is_ascii())
            || (item.cues.has(Cues::THANKS)
                && scanned
                    .iter()
                    .filter(|t| !cues::is_polite(t.low) || t.is_acronym())
                    .count()
                    <= 1));
    Sentence {
        item,
        words,
        leans,
        empty,
    }
}

/// A piece in the making.
struct Piece {
    item: Item,
    joined: bool,
    hint: Option<Section>,
}

impl Piece {
    fn of(item: Item) -> Self {
        Self {
            item,
            joined: false,
            hint: None,
        }
    }

    fn add(&mut self, more: &str) {
        text::join(&mut self.item.text, more);
        self.joined = true;
    }

    fn takes(&self, more: &str) -> bool {
        text::units(&self.item.text) + text::units(more) < text::MAX_SENTENCE
    }

    fn finish(self) -> Item {
        if self.joined || self.hint.is_some() {
            Item::read(&self.item.text, self.item.origin, self.hint)
        } else {
            self.item
        }
    }
}

fn strong(sentence: &Sentence) -> bool {
    let settles = Cues::RULE
        .with(Cues::DECISION)
        .with(Cues::CORRECTION)
        .with(Cues::PROMISE)
        .with(Cues::OPEN);
    let imperative_not =
        sentence.item.cues.has(Cues::REQUEST) && sentence.item.cues.has(Cues::NEGATION);
    sentence.words >= 4
        && (sentence.item.cues.has(Cues::OPEN)
            || (!sentence.item.cues.has(Cues::QUESTION)
                && (sentence.item.cues.has(settles) || imperative_not)))
}

fn sentences_of(message: &str, cap: usize, origin: Origin) -> Vec<Sentence> {
    let (head, tail) = text::window(message, cap - cap / 4, cap / 4);
    let mut found = text::sentences(head, MAX_SENTENCES);
    found.extend(text::sentences(tail, MAX_SENTENCES));
    found
        .iter()
        .map(|line| read(line, origin))
        .filter(|sentence| !sentence.empty)
        .collect()
}

/// The pieces of a user message. `cap` bounds the bytes looked at.
pub(super) fn user(message: &str, cap: usize) -> Vec<Item> {
    let sentences = sentences_of(message, cap, Origin::User);
    let total: usize = sentences
        .iter()
        .map(|s| text::units(&s.item.text) + 1)
        .sum();
    let short = total <= WHOLE;
    let alone = sentences.len() == 1;
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut rest, mut last): (Option<usize>, Option<usize>) = (None, None);
    for sentence in sentences {
        let firm = strong(&sentence);
        let asks = !alone && sentence.item.cues.has(Cues::REQUEST.with(Cues::QUESTION));
        let leaning = last.filter(|&at| {
            sentence.leans
                && pieces
                    .get(at)
                    .is_some_and(|piece| piece.takes(&sentence.item.text))
        });
        let target = leaning.or(rest.filter(|_| short && (sentence.leans || !firm)));
        let at = target.unwrap_or(pieces.len());
        if let Some(piece) = pieces.get_mut(at) {
            piece.add(&sentence.item.text);
        } else {
            pieces.push(Piece::of(sentence.item));
            if short && !firm {
                rest = Some(at);
            }
        }
        // A "no" in one sentence does not turn the request in another into a rule.
        if asks
            && rest == Some(at)
            && let Some(piece) = pieces.get_mut(at)
        {
            piece.hint = Some(Section::Requests);
        }
        last = Some(at);
    }
    pieces.into_iter().map(Piece::finish).collect()
}

/// The sentences of an assistant message. `cap` bounds the bytes looked at.
pub(super) fn assistant(message: &str, cap: usize) -> Vec<Item> {
    let mut pieces: Vec<Piece> = Vec::new();
    for sentence in sentences_of(message, cap, Origin::Assistant) {
        match pieces.last_mut() {
            Some(piece) if sentence.leans && piece.takes(&sentence.item.text) => {
                piece.add(&sentence.item.text);
            }
            _ => pieces.push(Piece::of(sentence.item)),
        }
    }
    pieces.into_iter().map(Piece::finish).collect()
}

/// What the assistant said last, in at most `max` UTF-16 units: its weightiest sentences in their own order.
pub(super) fn last_words(message: &str, max: usize) -> String {
    let (front, back) = text::window(message, 6 * 1024, 6 * 1024);
    let mut lines = text::sentences(front, MAX_SENTENCES);
    lines.extend(text::sentences(back, MAX_SENTENCES));
    let lines: Vec<String> = lines
        .iter()
        .map(|line| item::unsplit(line).to_owned())
        .collect();
    if lines
        .iter()
        .map(|line| text::units(line) + 1)
        .sum::<usize>()
        <= max
    {
        return lines.iter().fold(String::new(), |mut all, line| {
            text::join(&mut all, line);
            all
        });
    }
    let count = lines.len();
    let mut ranked: Vec<(i32, usize)> = lines
        .iter()
        .enumerate()
        .map(|(at, line)| {
            let place = if at + 2 >= count {
                25
            } else if at == 0 {
                12
            } else {
                0
            };
            (
                Item::read(line, Origin::Assistant, Some(Section::Facts)).score + place,
                at,
            )
        })
        .collect();
    ranked.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.cmp(&a.1)));
    let mut room = max;
    let mut chosen: Vec<usize> = Vec::new();
    for (_, at) in ranked {
        let cost = lines.get(at).map_or(0, |line| text::units(line) + 1);
        if cost <= room {
            room -= cost;
            chosen.push(at);
        }
    }
    chosen.sort_unstable();
    if chosen.is_empty() {
        return text::clip(lines.first().map_or("", String::as_str), max);
    }
    chosen
        .into_iter()
        .filter_map(|at| lines.get(at))
        .fold(String::new(), |mut all, line| {
            text::join(&mut all, line);
            all
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(message: &str) -> Vec<(Section, String)> {
        user(message, 4096)
            .into_iter()
            .map(|item| (item.section, item.text))
            .collect()
    }

    #[test]
    fn rules_stand_apart_from_the_request_they_came_with() {
        let got = pieces(
            "The import counts refunds twice. Find out why. Keep the names, others must not break. Ticket is TB-318.",
        );
        assert_eq!(
            got,
            [
                (
                    Section::Requests,
                    "The import counts refunds twice. Find out why. Ticket is TB-318.".to_owned()
                ),
                (
                    Section::Decisions,
                    "Keep the names, others must not break.".to_owned()
                ),
            ]
        );
    }

    #[test]
    fn a_sentence_that_leans_stays_with_the_one_before() {
        let got = pieces("We rejected the drone in May. Don't propose it again.");
        assert_eq!(
            got,
            [(
                Section::Decisions,
                "We rejected the drone in May. Don't propose it again.".to_owned()
            )]
        );
        assert!(pieces("ok, thanks!").is_empty());
    }
}
