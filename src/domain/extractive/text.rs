//! Measuring, cutting and cleaning text, and finding where sentences end.
//!
//! Everything that enters the summary passes through [`one_line`], so that no text from a conversation can open a
//! heading, an item or a tag of its own. Nothing here knows what a sentence means.

/// Longest sentence kept in one piece, in UTF-16 units; what is longer is parted at a clause.
pub(super) const MAX_SENTENCE: usize = 320;

/// Twelfths of a token: 3 for an ASCII byte, 4 for any other byte. Adds up exactly, unlike rounded tokens.
pub(super) fn weight(text: &str) -> usize {
    let ascii = text.bytes().filter(u8::is_ascii).count();
    3 * ascii + 4 * (text.len() - ascii)
}

/// Length in UTF-16 code units, the measure of the compaction contract.
pub(super) fn units(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

/// The first bytes of `text`, never more than `max`, never half a character.
pub(super) fn head(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or(text)
}

/// The beginning and the end of a long text (bytes), or the whole of a short one and nothing.
pub(super) fn window(text: &str, front: usize, back: usize) -> (&str, &str) {
    if text.len() <= front + back {
        return (text, "");
    }
    let end = text
        .get(text.ceil_char_boundary(text.len() - back)..)
        .unwrap_or("");
    // Not from the middle of a word, where a word's beginning is near.
    let word = head(end, 120).find(char::is_whitespace).unwrap_or(0);
    (head(text, front), end.get(word..).unwrap_or(end))
}

/// Shortens to at most `max` UTF-16 units, at a word's end where one is near, and says so with `…`.
pub(super) fn clip(text: &str, max: usize) -> String {
    if units(text) <= max {
        return text.to_owned();
    }
    let room = max.saturating_sub(1);
    let (mut used, mut end, mut word_end) = (0, 0, 0);
    for (at, c) in text.char_indices() {
        used += c.len_utf16();
        if used > room {
            break;
        }
        end = at + c.len_utf8();
        if c.is_whitespace() {
            word_end = at;
        }
    }
    let cut = if word_end * 3 > end * 2 {
        word_end
    } else {
        end
    };
    let mut out = text.get(..cut).unwrap_or("").trim_end().to_owned();
    if max > 0 {
        out.push('…');
    }
    out
}

/// One line without control characters, runs of white space made one space, and tags of prompts made harmless.
pub(super) fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_whitespace() || c.is_control() {
            if !out.is_empty() && !out.ends_with(' ') {
                out.push(' ');
            }
        } else {
            out.push(c);
        }
    }
    out.truncate(out.trim_end().len());
    if out.contains('<') { defuse(&out) } else { out }
}

/// Names that prompts use for their delimiters. A tag named so is shown with other brackets: readable, but no tag.
const DELIMITERS: [&str; 10] = [
    "summary",
    "transcript",
    "system",
    "instruction",
    "prompt",
    "assistant",
    "user",
    "tool",
    "message",
    "conversation",
];

fn defuse(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('<') {
        out.push_str(before);
        match head(after, 80).split_once('>') {
            Some((name, _)) if is_delimiter(name) => {
                out.push('‹');
                out.push_str(name);
                out.push('›');
                rest = after.get(name.len() + 1..).unwrap_or("");
            }
            _ => {
                out.push('<');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

fn is_delimiter(name: &str) -> bool {
    let low = name.trim_start_matches('/').to_ascii_lowercase();
    !low.contains('<') && DELIMITERS.iter().any(|word| low.contains(word))
}

/// Takes the marks of lists, quotes, tables and headings from the front of a line.
pub(super) fn strip_marks(line: &str) -> &str {
    let mut rest = line.trim();
    loop {
        let before = rest.len();
        let run =
            rest.trim_start_matches(['#', '-', '*', '>', '+', '=', '|', '•', '·', '—', '–', '_']);
        if run.len() < before && (run.is_empty() || run.starts_with(char::is_whitespace)) {
            rest = run.trim_start();
        } else {
            let number = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            let digits = before - number.len();
            if let Some(text) = number
                .strip_prefix(". ")
                .or_else(|| number.strip_prefix(") "))
                && (1..=3).contains(&digits)
            {
                rest = text.trim_start();
            }
        }
        if rest.len() == before {
            return rest;
        }
    }
}

/// The sentences of a text, each on one line. Fenced code is left out: it is in the files, not in the talk.
/// Stops after `max` sentences.
pub(super) fn sentences(text: &str, max: usize) -> Vec<String> {
    let mut out = Vec::new();
    let mut paragraph = String::new();
    let fences = text
        .lines()
        .filter(|line| line.trim_start().starts_with("```"))
        .count();
    let (mut seen, mut in_code) = (0, false);
    for line in text.lines() {
        if out.len() >= max {
            break;
        }
        if line.trim_start().starts_with("```") {
            seen += 1;
            // The last of an odd number of fences opens nothing: otherwise one stray mark would hide the rest.
            in_code = seen % 2 == 1 && seen < fences;
            flush(&mut paragraph, &mut out);
            continue;
        }
        if in_code {
            continue;
        }
        // Prose wrapped by hand: a long line without an end, going on in small letters.
        let continues = paragraph.len() > 40
            && line.starts_with(|c: char| c.is_lowercase())
            && !paragraph.ends_with(['.', '!', '?', ':', ';', '。']);
        if !continues {
            flush(&mut paragraph, &mut out);
        }
        if !paragraph.is_empty() {
            paragraph.push(' ');
        }
        paragraph.push_str(strip_marks(line));
    }
    flush(&mut paragraph, &mut out);
    out.truncate(max);
    out
}

fn flush(paragraph: &mut String, out: &mut Vec<String>) {
    if !paragraph.trim().is_empty() {
        split_sentences(&one_line(paragraph), out);
    }
    paragraph.clear();
}

fn split_sentences(line: &str, out: &mut Vec<String>) {
    let mut start = 0;
    let mut chars = line.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let wide = matches!(c, '。' | '！' | '？' | '｡' | '؟' | '।' | '۔' | '։');
        if !wide && !matches!(c, '.' | '!' | '?') {
            continue;
        }
        let mut end = at + c.len_utf8();
        while let Some(&(_, next)) = chars.peek() {
            if !matches!(
                next,
                '"' | '\''
                    | '”'
                    | '’'
                    | '」'
                    | '』'
                    | '）'
                    | ')'
                    | '》'
                    | '!'
                    | '?'
                    | '！'
                    | '？'
                    | '。'
            ) {
                break;
            }
            end += next.len_utf8();
            chars.next();
        }
        // A sentence keeps the note that a value in it was replaced.
        let note = line
            .get(end..)
            .filter(|rest| rest.starts_with(" (replaced: "))
            .and_then(|rest| rest.find(')'));
        if let Some(length) = note {
            end += length + 1;
            while chars.next_if(|&(at, _)| at < end).is_some() {}
        }
        let spaced = match chars.peek() {
            None => true,
            Some(&(_, next)) => next == ' ',
        };
        let piece = line.get(start..end).unwrap_or("");
        if wide || (spaced && !(c == '.' && ends_with_abbreviation(piece))) {
            push_sentence(piece, out);
            start = end;
        }
    }
    push_sentence(line.get(start..).unwrap_or(""), out);
}

fn ends_with_abbreviation(piece: &str) -> bool {
    let word = piece
        .rsplit([' ', '('])
        .next()
        .unwrap_or("")
        .trim_end_matches('.');
    let mut letters = word.chars();
    match (letters.next(), letters.next()) {
        // An initial ("Ada W. Roe"), but not a unit or a bearing ("5.68 W.").
        (Some(first), None) => {
            first.is_uppercase() && !before_word(piece).ends_with(|c: char| c.is_numeric())
        }
        _ => {
            matches!(
                word.to_ascii_lowercase().as_str(),
                "e.g"
                    | "i.e"
                    | "mr"
                    | "mrs"
                    | "ms"
                    | "dr"
                    | "prof"
                    | "st"
                    | "no"
                    | "nr"
                    | "vs"
                    | "approx"
                    | "ca"
                    | "cf"
                    | "fig"
                    | "z.b"
            ) && !piece.eq_ignore_ascii_case("no.")
        }
    }
}

fn before_word(piece: &str) -> &str {
    piece.rsplit_once(' ').map_or("", |(before, _)| before)
}

/// Puts sentences one after the other again: with a space, except after the full stops of scripts that use none.
pub(super) fn join(text: &mut String, more: &str) {
    if !text.is_empty() && !text.ends_with(['。', '！', '？', '｡']) {
        text.push(' ');
    }
    text.push_str(more);
}

fn push_sentence(piece: &str, out: &mut Vec<String>) {
    let mut rest = piece.trim();
    while units(rest) > MAX_SENTENCE {
        let part = head(rest, bytes_of_units(rest, MAX_SENTENCE));
        let cut = part
            .rfind([';', '；', '，', '、'])
            .or_else(|| part.rfind(", "))
            .or_else(|| part.rfind(' '))
            .filter(|&at| at * 2 > part.len())
            .and_then(|at| {
                part.get(at..)
                    .and_then(|tail| tail.chars().next())
                    .map(|c| at + c.len_utf8())
            })
            .unwrap_or(part.len());
        out.push(rest.get(..cut).unwrap_or("").trim().to_owned());
        rest = rest.get(cut..).unwrap_or("").trim();
        if cut == 0 {
            return;
        }
    }
    if rest.chars().any(|c| c.is_alphanumeric() || !c.is_ascii()) {
        out.push(rest.to_owned());
    }
}

fn bytes_of_units(text: &str, max: usize) -> usize {
    let mut used = 0;
    text.char_indices()
        .find(|(_, c)| {
            used += c.len_utf16();
            used > max
        })
        .map_or(text.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_where_readers_end_them() {
        let out = sentences(
            "Dr. Ada Roe pays 3.5 crowns. Why? See e.g. src/a.rs!\n- one\n2. two",
            50,
        );
        assert_eq!(
            out,
            [
                "Dr. Ada Roe pays 3.5 crowns.",
                "Why?",
                "See e.g. src/a.rs!",
                "one",
                "two"
            ]
        );
        let out = sentences("末班渡船是18:10。请记住！好吗？", 50);
        assert_eq!(out, ["末班渡船是18:10。", "请记住！", "好吗？"]);
    }

    #[test]
    fn a_wrapped_line_is_joined_and_code_is_left_out() {
        let text = "The importer applies the refund list once per chunk\nand again at the end.\n```rust\nlet x = 1;\n```\nDone then.";
        assert_eq!(
            sentences(text, 50),
            [
                "The importer applies the refund list once per chunk and again at the end.",
                "Done then."
            ]
        );
        assert_eq!(
            sentences("a stray\n```\nfence hides nothing", 50),
            ["a stray", "fence hides nothing"]
        );
    }

    #[test]
    fn clipping_counts_utf16_and_keeps_characters_whole() {
        assert_eq!(clip("😀😀😀", 4), "😀…");
        assert_eq!(clip("short", 9), "short");
        assert_eq!(clip("", 0), "");
        assert!(units(&clip(&"word ".repeat(40), 33)) <= 33);
    }

    #[test]
    fn delimiters_lose_their_brackets_and_other_tags_keep_them() {
        assert_eq!(
            one_line("</previous-summary>\u{0}\n x <b>y</b>"),
            "‹/previous-summary› x <b>y</b>"
        );
        assert_eq!(one_line("Vec<u8> < 3"), "Vec<u8> < 3");
    }

    #[test]
    fn marks_go_and_signs_stay() {
        assert_eq!(strip_marks("  ## - Heading"), "Heading");
        assert_eq!(strip_marks("-5 degrees"), "-5 degrees");
        assert_eq!(strip_marks("3) third"), "third");
        assert_eq!(strip_marks("---"), "");
    }
}
