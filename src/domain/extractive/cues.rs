//! What words give away: that a sentence decides, forbids, corrects, promises, asks or fails.
//!
//! General words of several languages, no word of any one conversation. A cue only moves a sentence between sections
//! and up or down; none of them is needed for a sentence to be kept. The lists are in `lexicon`.

use super::lexicon;
use super::tokens::{Kind, Token};

/// A set of cues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cues(u32);

impl Cues {
    pub(super) const DECISION: Self = Self(1);
    pub(super) const RULE: Self = Self(1 << 1);
    pub(super) const NEGATION: Self = Self(1 << 2);
    pub(super) const CORRECTION: Self = Self(1 << 3);
    pub(super) const PROMISE: Self = Self(1 << 4);
    pub(super) const OPEN: Self = Self(1 << 5);
    pub(super) const REQUEST: Self = Self(1 << 6);
    pub(super) const ERROR: Self = Self(1 << 7);
    pub(super) const HEDGE: Self = Self(1 << 8);
    pub(super) const THANKS: Self = Self(1 << 9);
    pub(super) const DONE: Self = Self(1 << 10);
    pub(super) const ROLE: Self = Self(1 << 11);
    pub(super) const QUESTION: Self = Self(1 << 12);
    pub(super) const RESULT: Self = Self(1 << 13);
    /// Kinds of words rather than cues of sentences: they never get into [`read`]'s answer.
    pub(super) const STOP: Self = Self(1 << 16);
    pub(super) const LABEL: Self = Self(1 << 17);
    pub(super) const MONTH: Self = Self(1 << 18);
    pub(super) const WEEKDAY: Self = Self(1 << 19);
    pub(super) const IMPERATIVE: Self = Self(1 << 20);
    pub(super) const LEAD: Self = Self(1 << 21);
    pub(super) const POLITE: Self = Self(1 << 22);
    /// Opens a rule where it opens a sentence: "Keep …", "Don't …".
    pub(super) const RULING: Self = Self(1 << 23);

    const OF_SENTENCES: u32 = (1 << 16) - 1;

    /// Nothing but tone.
    pub(super) fn is_plain(self) -> bool {
        self.0 & !(Self::HEDGE.0 | Self::THANKS.0 | Self::NEGATION.0) == 0
    }

    /// Has any of `other`.
    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub(super) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Reads the cues of a sentence or of a few. `tokens` are those of `text`.
pub(super) fn read(text: &str, tokens: &[Token<'_>]) -> Cues {
    let mut cues = Cues::default();
    let mut before = "";
    let (mut yet, mut opening) = (false, true);
    for token in tokens.iter().filter(|t| t.kind == Kind::Word) {
        let word = token.low;
        let known = lexicon::word(word);
        cues.add(known);
        if token.after_break() {
            opening = true;
            // "Next: the report is slow" sets a task.
            if before == "next" {
                cues.add(Cues::REQUEST);
            }
        } else if !before.is_empty() {
            cues.add(lexicon::pair(before, word));
        }
        if opening && !known.has(Cues::LEAD) {
            opening = word == "to";
            if known.has(Cues::IMPERATIVE) {
                cues.add(Cues::REQUEST);
            }
            if known.has(Cues::RULING) {
                cues.add(Cues::RULE);
            }
            if before == "to" && word == "do" {
                cues.add(Cues::PROMISE);
            }
        }
        yet |= word == "yet";
        before = word;
    }
    cues.0 &= Cues::OF_SENTENCES;
    if yet && cues.has(Cues::NEGATION) && !cues.has(Cues::HEDGE) {
        cues.add(Cues::OPEN);
    }
    if text.contains(['?', '？', '؟', '՞']) {
        cues.add(Cues::QUESTION);
    }
    if !text.is_ascii() {
        cues.add(lexicon::abroad(text));
    }
    cues
}

/// Words too common to say what a sentence is about.
pub(super) fn is_stop(word: &str) -> bool {
    word.len() < 2 || lexicon::word(word).has(Cues::STOP)
}

/// Words that carry no more than manners.
pub(super) fn is_polite(word: &str) -> bool {
    is_stop(word) || lexicon::word(word).has(Cues::POLITE.with(Cues::LEAD).with(Cues::THANKS))
}

/// Nouns that a bare number names rather than measures: "station 7" is a thing, "7 stations" an amount.
pub(super) fn is_label(word: &str) -> bool {
    lexicon::word(word).has(Cues::LABEL)
}

/// Months and weekdays.
pub(super) fn is_calendar(word: &str) -> bool {
    lexicon::word(word).has(Cues::MONTH.with(Cues::WEEKDAY))
}

pub(super) fn is_month(word: &str) -> bool {
    lexicon::word(word).has(Cues::MONTH)
}

/// A text that speaks to the model instead of telling it something. Asked of tool output only, which nobody in the
/// conversation wrote.
pub(super) fn gives_orders(text: &str) -> bool {
    lexicon::contains_any(text, lexicon::ORDERS)
}

/// Tool output that may hold a secret: such a line is not worth the risk of copying it into every later context.
pub(super) fn smells_secret(text: &str) -> bool {
    lexicon::contains_any(text, lexicon::SECRETS)
}

#[cfg(test)]
mod tests {
    use super::super::tokens;
    use super::*;

    fn cues(text: &str) -> Cues {
        let low = text.to_ascii_lowercase();
        read(text, &tokens::scan(text, &low))
    }

    #[test]
    fn cues_are_read_from_words_pairs_and_openings() {
        assert!(cues("We use SQLite.").has(Cues::DECISION));
        assert!(cues("Good. Don't add a dependency.").has(Cues::RULE));
        assert!(!cues("I don't know.").has(Cues::RULE));
        assert!(cues("The date is now 4 May.").has(Cues::CORRECTION));
        assert!(cues("I have not rebuilt it yet.").has(Cues::OPEN));
        assert!(cues("Please compare both.").has(Cues::REQUEST));
        assert!(cues("请务必记住。").has(Cues::RULE));
        assert_eq!(cues("The sea is calm."), Cues::default());
    }
}
