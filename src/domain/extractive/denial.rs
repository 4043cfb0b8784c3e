//! What a sentence says does not hold ("…, not 14 June", "instead of 48 s"), and the phrase that then stands for it.

use super::values::REPLACED;

/// Turns a value that no longer holds, with the "not" or "replacing" before it, into the phrase that says so.
pub(super) fn mark(text: &mut String, start: usize, end: usize) {
    let Some(value) = text.get(start..end).map(str::to_owned) else {
        return;
    };
    let before = text.get(..start).unwrap_or("");
    let low = before.to_ascii_lowercase();
    let cut = [
        ", not ",
        ", replacing ",
        " replacing ",
        " instead of ",
        " statt ",
        " and not ",
        " not ",
    ]
    .iter()
    .filter_map(|cue| low.rfind(cue).filter(|at| start - at <= cue.len() + 8))
    .min()
    .unwrap_or(start);
    let space = if cut == start { "" } else { " " };
    text.replace_range(cut..end, &format!("{space}{REPLACED}{value})"));
}

/// Byte ranges of what a sentence denies: from the denying word to the end of the clause.
pub(super) fn denials(text: &str) -> Vec<(usize, usize)> {
    let low = text.to_ascii_lowercase();
    let mut out = Vec::new();
    for cue in [
        ", not ",
        " instead of ",
        " rather than ",
        " statt ",
        " au lieu de ",
        " en lugar de ",
        " replacing ",
        " replaces ",
        " no longer ",
        " and not ",
        " but not ",
    ] {
        for (at, _) in low.match_indices(cue) {
            let from = at + cue.len();
            out.push((from, clause_end(&low, from)));
        }
    }
    // "from 10 to 12": the first is what was.
    if let Some(at) = low.find(" from ") {
        let from = at + " from ".len();
        if let Some(to) = low
            .get(from..)
            .and_then(|rest| rest.find(" to "))
            .filter(|n| *n < 24)
            && tells_of_change(&low)
        {
            out.push((from, from + to));
        }
    }
    out
}

/// Where the clause that begins at `from` ends; a comma or dot inside a figure ends none.
fn clause_end(low: &str, from: usize) -> usize {
    let clause = low.get(from..).unwrap_or("");
    let mut chars = clause.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let figure = chars.peek().is_some_and(|(_, next)| next.is_ascii_digit());
        if matches!(c, ',' | ';' | '.' | '(' | ':') && !figure {
            return from + at;
        }
    }
    low.len()
}

fn tells_of_change(low: &str) -> bool {
    [
        "moved",
        "changed",
        "raised",
        "lowered",
        "increased",
        "decreased",
        "reduced",
        "went",
    ]
    .iter()
    .any(|word| low.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(text: &str) -> Vec<&str> {
        denials(text)
            .into_iter()
            .filter_map(|(start, end)| text.get(start..end))
            .collect()
    }

    #[test]
    fn the_denied_part_is_found() {
        assert_eq!(denied("Due 21 June 2031, not 14 June."), ["14 June"]);
        assert_eq!(denied("Now 21,750 crowns, replacing 18,400."), ["18,400"]);
        assert_eq!(
            denied("It takes 6.3 s instead of 4.8 s, so 0.9 reads it."),
            ["4.8 s"]
        );
        assert_eq!(denied("Raised from 10 to 12 kg"), ["10"]);
    }

    #[test]
    fn a_mark_takes_the_denying_word_along() {
        let mut text = "Due 21 June, not 14 June.".to_owned();
        let at = text.find("14").unwrap_or(0);
        mark(&mut text, at, at + 7);
        assert_eq!(text, "Due 21 June (replaced: 14 June).");
    }
}
