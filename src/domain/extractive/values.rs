//! What a statement is about and which values it gives: the ground for finding echoes and corrections.
//!
//! A bare number after a naming noun ("station 7") is part of the subject; a number with a unit, a date or a time is a
//! value that a later statement can replace. What an item already marks as replaced is neither.

use std::collections::BTreeSet;

use super::tokens::{self, Kind, Token};
use super::{cues, item};

/// Opens the one phrase in which a value may stand that no longer holds.
pub(super) const REPLACED: &str = "(replaced: ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Amount,
    Date,
    Time,
}

#[derive(Debug, Clone)]
pub(super) struct Value {
    pub sort: Sort,
    /// The figure without its unit and without separators of thousands, in small letters.
    pub figure: String,
    /// Singular, in small letters; empty where there is none.
    pub unit: String,
    /// Byte range in the text, unit included.
    pub start: usize,
    pub end: usize,
    /// Which sentence of the text it stands in.
    pub sentence: usize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Profile {
    /// Stems of the words that carry meaning.
    pub words: BTreeSet<String>,
    /// Things named by a number: "station 7", "2029".
    pub labels: BTreeSet<String>,
    /// Identifiers and paths.
    pub ids: BTreeSet<String>,
    pub names: BTreeSet<String>,
    pub values: Vec<Value>,
    /// The words again, by sentence: what a value of that sentence can be about.
    pub by_sentence: Vec<BTreeSet<String>>,
}

impl Profile {
    pub(super) fn figures(&self) -> BTreeSet<&str> {
        self.values
            .iter()
            .map(|value| value.figure.as_str())
            .collect()
    }
}

/// Byte ranges of the phrases that hold replaced values.
pub(super) fn replaced_spans(text: &str) -> Vec<(usize, usize)> {
    text.match_indices(REPLACED)
        .map(|(start, _)| {
            let end = text
                .get(start..)
                .and_then(|rest| rest.find(')'))
                .map_or(text.len(), |at| start + at + 1);
            (start, end)
        })
        .collect()
}

pub(super) fn stem(word: &str) -> String {
    let word = word.trim_end_matches("'s").trim_end_matches("’s");
    let cut = if word.len() > 3 && !word.ends_with("ss") {
        word.strip_suffix('s').unwrap_or(word)
    } else {
        word
    };
    match cut {
        "m" | "meter" => "metre".to_owned(),
        _ => cut.to_owned(),
    }
}

pub(super) fn profile(text: &str) -> Profile {
    let low = text.to_ascii_lowercase();
    let spans = replaced_spans(text);
    let tokens: Vec<Token<'_>> = tokens::scan(text, &low)
        .into_iter()
        .filter(|token| {
            !spans
                .iter()
                .any(|&(start, end)| token.start >= start && token.start < end)
        })
        .collect();
    let mut out = Profile::default();
    let mut at = 0;
    out.by_sentence.push(BTreeSet::new());
    while let Some(token) = tokens.get(at) {
        if at > 0 && token.gap.contains(['.', '!', '?', ';', '。', '！', '？']) {
            out.by_sentence.push(BTreeSet::new());
        }
        if let Some(used) = out.counted(&tokens, at) {
            at += used;
            continue;
        }
        at += match token.kind {
            Kind::Date => out.push(Sort::Date, token.low, "", token.start, token.end()),
            Kind::Time => out.push(Sort::Time, token.low, "", token.start, token.end()),
            Kind::Ident | Kind::Path => {
                if !is_power(token.low) {
                    out.ids.insert(token.low.to_owned());
                }
                1
            }
            Kind::Glyph => {
                if let Some(next) = tokens
                    .get(at + 1)
                    .filter(|next| next.kind == Kind::Glyph && next.gap.is_empty())
                {
                    out.about(format!("{}{}", token.low, next.low));
                }
                1
            }
            Kind::Number | Kind::Word => {
                out.date(&tokens, at).unwrap_or_else(|| match token.kind {
                    Kind::Number => out.number(&tokens, at),
                    _ => out.word(&tokens, at),
                })
            }
        };
    }
    out
}

impl Profile {
    fn about(&mut self, word: String) {
        if let Some(words) = self.by_sentence.last_mut() {
            words.insert(word.clone());
        }
        self.words.insert(word);
    }

    fn push(&mut self, sort: Sort, figure: &str, unit: &str, start: usize, end: usize) -> usize {
        self.values.push(Value {
            sort,
            figure: figure.to_owned(),
            unit: unit.to_owned(),
            start,
            end,
            sentence: self.by_sentence.len().saturating_sub(1),
        });
        1
    }

    /// "Friday 11 July 2031", "12 to 16 August", "September 30, 2031", "Tuesday": how many tokens it takes.
    fn date(&mut self, tokens: &[Token<'_>], at: usize) -> Option<usize> {
        let (mut len, mut calendar, mut months, mut figure) = (0, 0, 0, String::new());
        let (start, mut end) = (tokens.get(at)?.start, 0);
        for (n, token) in tokens.get(at..)?.iter().take(7).enumerate() {
            let month = token.kind == Kind::Word && cues::is_month(token.low);
            let part = (token.kind == Kind::Word
                && cues::is_calendar(token.low)
                && (token.is_capital() || !month))
                || (token.kind == Kind::Number && is_day_or_year(token.low));
            let link = matches!(token.low, "to" | "and" | "of" | "th") && n > 0;
            if !(part || link) || (n > 0 && token.after_break()) || (month && months == 1) {
                break;
            }
            if part {
                months += usize::from(month);
                calendar += usize::from(token.kind == Kind::Word);
                len = n + 1;
                end = token.end();
                if !figure.is_empty() {
                    figure.push(' ');
                }
                figure.push_str(token.low);
            }
        }
        // A month without a day, or a number alone, is no date.
        let whole = calendar > 0 && (len > 1 || months == 0);
        (whole && end > start).then(|| {
            self.push(Sort::Date, &figure, "", start, end);
            len
        })
    }

    /// Figures of scripts without spaces: "6月15日", "三千元", "三点". How many tokens it takes.
    fn counted(&mut self, tokens: &[Token<'_>], at: usize) -> Option<usize> {
        let figure_at = |n: usize| {
            let run = tokens.get(n..)?.iter().enumerate();
            let run = run.take_while(|(k, t)| {
                (t.kind == Kind::Number || item::is_cjk_figure(t.low))
                    && (*k == 0 || t.gap.is_empty())
            });
            let figure: String = run.take(8).map(|(_, t)| t.low).collect();
            let used = figure.chars().count();
            let used = if tokens.get(n)?.kind == Kind::Number {
                1
            } else {
                used
            };
            let unit = tokens
                .get(n + used)
                .filter(|t| t.kind == Kind::Glyph && t.gap.is_empty() && item::is_counter(t.low))?;
            (used > 0).then_some((figure, unit, used + 1))
        };
        let start = tokens.get(at)?.start;
        let (figure, unit, used) = figure_at(at)?;
        if matches!(unit.low, "年" | "月")
            && let Some((day, last, more)) = figure_at(at + used)
        {
            self.push(
                Sort::Date,
                &format!("{figure}{}{day}{}", unit.low, last.low),
                "",
                start,
                last.end(),
            );
            return Some(used + more);
        }
        let sort = match unit.low {
            "年" | "月" | "日" => Sort::Date,
            "点" | "點" | "時" | "时" => Sort::Time,
            _ => Sort::Amount,
        };
        self.push(sort, &figure, unit.low, start, unit.end());
        Some(used)
    }

    fn number(&mut self, tokens: &[Token<'_>], at: usize) -> usize {
        let Some(token) = tokens.get(at) else {
            return 1;
        };
        let before = at
            .checked_sub(1)
            .and_then(|n| tokens.get(n))
            .filter(|_| !token.after_break());
        let next = tokens
            .get(at + 1)
            .filter(|next| matches!(next.gap, " " | "" | "-"));
        let whole = token.low.bytes().all(|b| b.is_ascii_digit());
        if let Some(noun) = before.filter(|b| {
            b.kind == Kind::Word && cues::is_label(b.low) && matches!(token.gap, " " | " #")
        }) && whole
        {
            self.labels.insert(format!("{} {}", noun.low, token.low));
            return 1;
        }
        let split = token
            .low
            .find(|c: char| c.is_alphabetic())
            .unwrap_or(token.low.len());
        let (figure, glued) = token.low.split_at_checked(split).unwrap_or((token.low, ""));
        let figure = figure.replace(',', "");
        let sign = token
            .gap
            .chars()
            .next_back()
            .filter(|c| matches!(c, '$' | '€' | '£' | '¥' | '₩'));
        let (mut unit, mut end, mut used) = (glued.to_owned(), token.end(), 1);
        if let Some(sign) = sign {
            unit = sign.to_string();
        } else if glued.is_empty()
            && let Some(next) = next.filter(|n| {
                matches!(n.kind, Kind::Word | Kind::Ident)
                    && (n.low.len() < 2 || !cues::is_stop(n.low))
            })
        {
            unit = stem(next.low);
            end = next.end();
            used = 2;
            if matches!(next.low, "square" | "cubic")
                && let Some(base) = tokens.get(at + 2)
            {
                unit = format!("{unit} {}", stem(base.low));
                end = base.end();
                used = 3;
            }
            if is_measure(next.low) {
                // "320 g tahini": what is measured belongs to the unit, or two amounts could not be told apart.
                let skip = usize::from(tokens.get(at + used).is_some_and(|t| t.low == "of"));
                if let Some(stuff) = tokens.get(at + used + skip).filter(|t| {
                    t.kind == Kind::Word
                        && !t.after_break()
                        && t.gap == " "
                        && !cues::is_stop(t.low)
                }) {
                    unit = format!("{unit} {}", stem(stuff.low));
                    end = stuff.end();
                    used += skip + 1;
                    self.about(stem(stuff.low));
                }
            }
        }
        if unit.is_empty()
            && whole
            && token.low.len() == 4
            && (token.low.starts_with("19") || token.low.starts_with("20"))
        {
            self.labels.insert(token.low.to_owned());
            return 1;
        }
        self.push(Sort::Amount, &figure, &unit, token.start, end);
        used
    }

    fn word(&mut self, tokens: &[Token<'_>], at: usize) -> usize {
        let Some(token) = tokens.get(at) else {
            return 1;
        };
        if cues::is_stop(token.low) {
            return 1;
        }
        if at > 0 && token.is_capital() && !token.after_break() {
            self.names.insert(token.low.to_owned());
        }
        self.about(stem(token.low));
        1
    }
}

/// Units of stuff, as against units of a property.
fn is_measure(low: &str) -> bool {
    matches!(
        low,
        "g" | "kg"
            | "mg"
            | "ml"
            | "cl"
            | "l"
            | "oz"
            | "lb"
            | "cup"
            | "cups"
            | "teaspoon"
            | "teaspoons"
            | "tablespoon"
            | "tablespoons"
            | "tsp"
            | "tbsp"
            | "litres"
            | "liters"
            | "grams"
    )
}

/// `m2`, `km2`, `m3`: a unit, no identifier.
fn is_power(low: &str) -> bool {
    matches!(
        low,
        "m2" | "m3" | "km2" | "cm2" | "cm3" | "mm2" | "ft2" | "h2o" | "co2"
    )
}

fn is_day_or_year(low: &str) -> bool {
    let digits = low.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let ordinal = low.get(digits.len()..).unwrap_or("");
    matches!(ordinal, "" | "st" | "nd" | "rd" | "th")
        && (digits
            .parse::<u16>()
            .is_ok_and(|n| (1..=31).contains(&n) || (1900..2200).contains(&n)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<(String, String)> {
        profile(text)
            .values
            .into_iter()
            .map(|v| (v.figure, v.unit))
            .collect()
    }

    #[test]
    fn amounts_have_units_and_labels_are_subjects() {
        let p = profile("Station 7 needs 21,750 crowns and 0.25 square metres, $30.");
        let found: Vec<_> = p
            .values
            .iter()
            .map(|v| (v.figure.as_str(), v.unit.as_str()))
            .collect();
        assert_eq!(
            found,
            [("21750", "crown"), ("0.25", "square metre"), ("30", "$")]
        );
        assert!(p.labels.contains("station 7"));
    }

    #[test]
    fn dates_are_read_whole() {
        assert_eq!(
            values("due on 14 June 2031."),
            [("14 june 2031".into(), String::new())]
        );
        assert_eq!(
            values("by Friday 11 July we meet"),
            [("friday 11 july".into(), String::new())]
        );
        assert_eq!(
            values("12 to 16 August, 09:20")
                .first()
                .map(|v| v.0.clone()),
            Some("12 16 august".into())
        );
        assert!(values("The June count may rise").is_empty());
    }

    #[test]
    fn what_is_replaced_is_no_value() {
        assert_eq!(
            values("Budget 20 crowns (replaced: 18 crowns)"),
            [("20".into(), "crown".into())]
        );
    }
}
