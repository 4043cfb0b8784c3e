//! Which answers of a summarizer become a summary.
//!
//! A summary replaces history, so a doubtful one is refused and nothing changes. The rules need
//! only the answer and the sizes of what it replaces.

use super::size;

/// Finish reasons known to mean a complete answer, in lower case. Anything else is refused: each
/// provider spells "cut off" its own way, and new spellings appear.
const COMPLETE: [&str; 7] = [
    "stop",
    "end_turn",
    "stop_sequence",
    "eos",
    "eos_token",
    "complete",
    "completed",
];

/// Finish reasons known to mean that the model, or a filter before it, would not.
const REFUSED: [&str; 4] = [
    "content_filter",
    "refusal",
    "safety",
    "guardrail_intervened",
];

/// An answer as the summarizer gave it.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// The text.
    pub text: &'a str,
    /// Why the model stopped, as the provider spells it.
    pub finish: Option<&'a str>,
    /// The provider said that the model refused.
    pub refused: bool,
    /// The model called tools instead of answering.
    pub called_tools: bool,
    /// The model thought and then said nothing.
    pub only_reasoned: bool,
}

/// What the summary would replace.
#[derive(Debug, Clone, Copy)]
pub struct Replaced {
    /// UTF-16 units of the previous summary and the batch together.
    pub units: u64,
    /// UTF-16 units of the batch.
    pub batch_units: u64,
    /// The bound on a summary, in tokens.
    pub max_summary_tokens: u64,
}

/// Why an answer is no summary. The display text is safe to show; it quotes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unacceptable {
    /// No text.
    #[error("the summarizer answered with no text")]
    Empty,
    /// Thought, and no answer.
    #[error("the summarizer thought and gave no answer")]
    ReasoningOnly,
    /// The answer broke off, or stopped for an unknown reason.
    #[error("the summarizer's answer is not known to be complete (finish reason `{0}`)")]
    Incomplete(String),
    /// The model would not.
    #[error("the summarizer refused to answer")]
    Refused,
    /// Tool calls instead of text.
    #[error("the summarizer called tools instead of answering")]
    ToolCalls,
    /// More than half over the bound.
    #[error(
        "the summary has about {tokens} tokens, more than the {limit} that `maxSummaryTokens` allows"
    )]
    TooLong {
        /// Estimated tokens.
        tokens: u64,
        /// What would still have been taken.
        limit: u64,
    },
    /// A few words for a long batch.
    #[error(
        "the summary has {units} characters for a batch of {batch_units}: too short to stand for it"
    )]
    TooShort {
        /// UTF-16 units of the answer.
        units: u64,
        /// UTF-16 units of the batch.
        batch_units: u64,
    },
    /// It would not shorten anything.
    #[error("the summary ({units} characters) is not shorter than what it replaces ({replaced})")]
    NotSmaller {
        /// UTF-16 units of the answer.
        units: u64,
        /// UTF-16 units of what it would replace.
        replaced: u64,
    },
}

impl Unacceptable {
    /// A stable name for the `errors` of a problem.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "summary_empty",
            Self::ReasoningOnly => "summary_reasoning_only",
            Self::Incomplete(_) => "summary_incomplete",
            Self::Refused => "summary_refused",
            Self::ToolCalls => "summary_tool_calls",
            Self::TooLong { .. } => "summary_too_long",
            Self::TooShort { .. } => "summary_too_short",
            Self::NotSmaller { .. } => "summary_not_smaller",
        }
    }
}

/// Replaced text above this many UTF-16 units must become shorter; below, only the token bound holds.
const MUST_SHRINK_ABOVE: u64 = 2_000;
/// A batch above this many UTF-16 units …
const LONG_BATCH: u64 = 10_000;
/// … needs a summary of at least this many.
const SHORTEST_FOR_LONG: u64 = 40;

/// The summary to store, trimmed and without NUL, if the answer is acceptable.
///
/// # Errors
/// Why it is not.
pub fn accept(answer: Answer<'_>, replaced: Replaced) -> Result<String, Unacceptable> {
    if answer.refused {
        return Err(Unacceptable::Refused);
    }
    if answer.called_tools {
        return Err(Unacceptable::ToolCalls);
    }
    let finish = answer.finish.unwrap_or_default();
    if REFUSED.contains(&finish.to_ascii_lowercase().as_str()) {
        return Err(Unacceptable::Refused);
    }
    if !COMPLETE.contains(&finish.to_ascii_lowercase().as_str()) {
        // A provider may write anything there, the prompt included: only a word is passed on.
        let is_word = finish.len() <= 32
            && finish
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let shown = if is_word { finish } else { "not a word" };
        return Err(Unacceptable::Incomplete(shown.to_owned()));
    }
    let text = answer.text.replace('\0', "");
    let (text, thought) = without_thought(text.trim());
    if text.is_empty() {
        return Err(if thought || answer.only_reasoned {
            Unacceptable::ReasoningOnly
        } else {
            Unacceptable::Empty
        });
    }
    if is_apology(text) {
        return Err(Unacceptable::Refused);
    }
    let size = size::Size::of(text);
    let limit = replaced.max_summary_tokens + replaced.max_summary_tokens / 2;
    if size.tokens() > limit {
        return Err(Unacceptable::TooLong {
            tokens: size.tokens(),
            limit,
        });
    }
    if replaced.batch_units > LONG_BATCH && size.units < SHORTEST_FOR_LONG {
        return Err(Unacceptable::TooShort {
            units: size.units,
            batch_units: replaced.batch_units,
        });
    }
    if replaced.units > MUST_SHRINK_ABOVE && size.units >= replaced.units {
        return Err(Unacceptable::NotSmaller {
            units: size.units,
            replaced: replaced.units,
        });
    }
    Ok(text.to_owned())
}

/// Cuts off the thought that some models write in front of their answer; says whether there was any.
fn without_thought(text: &str) -> (&str, bool) {
    const TAGS: [(&str, &str); 3] = [
        ("<think>", "</think>"),
        ("<thinking>", "</thinking>"),
        ("<reasoning>", "</reasoning>"),
    ];
    let mut rest = text;
    let mut thought = false;
    // Templates often open the thought themselves, so that only its end is in the answer.
    if let Some((_, end)) = TAGS
        .iter()
        .find(|(open, end)| rest.contains(end) && !rest.contains(open))
    {
        rest = rest
            .split_once(end)
            .map_or(rest, |(_, answer)| answer.trim_start());
        thought = true;
    }
    while let Some((inner, end)) = TAGS
        .iter()
        .find_map(|(open, end)| Some((rest.strip_prefix(open)?, end)))
    {
        thought = true;
        rest = inner
            .split_once(end)
            .map_or("", |(_, answer)| answer.trim_start());
    }
    (rest.trim_end(), thought)
}

/// Longest text, in characters, that can be an apology: a summary that quotes one is longer.
const LONGEST_APOLOGY: usize = 400;

/// A short "I'm sorry, but I can't" in place of a summary.
fn is_apology(text: &str) -> bool {
    const OPENINGS: [&str; 8] = [
        "i'm sorry",
        "i am sorry",
        "sorry, ",
        "i apologize",
        "i cannot ",
        "i can't ",
        "i'm unable to",
        "as an ai",
    ];
    let start: String = text.chars().take(24).collect();
    let start = start.to_lowercase().replace('\u{2019}', "'");
    OPENINGS.iter().any(|opening| start.starts_with(opening))
        && text.chars().nth(LONGEST_APOLOGY).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str, finish: &str, units: u64) -> Result<String, &'static str> {
        let answer = Answer {
            text,
            finish: Some(finish),
            refused: false,
            called_tools: false,
            only_reasoned: false,
        };
        let replaced = Replaced {
            units,
            batch_units: units,
            max_summary_tokens: 100,
        };
        accept(answer, replaced).map_err(|fault| fault.code())
    }

    #[test]
    fn s11_s12_takes_only_whole_answers() {
        for text in ["", "  \n\t", "\0"] {
            assert_eq!(judge(text, "stop", 500), Err("summary_empty"), "{text:?}");
        }
        for finish in [
            "length",
            "max_tokens",
            "MAX_TOKENS",
            "model_length",
            "incomplete",
            "",
        ] {
            assert_eq!(
                judge("Decisions: use the blue", finish, 500),
                Err("summary_incomplete")
            );
        }
        assert_eq!(judge(" a\0b \n", "STOP", 500).as_deref(), Ok("ab"));
    }

    #[test]
    fn thought_is_no_answer() {
        let text = |text: &str| judge(text, "stop", 500);
        assert_eq!(
            text("<think>hm</think>\n\nThe plan."),
            Ok("The plan.".to_owned())
        );
        assert_eq!(text("hm, so</think>The plan."), Ok("The plan.".to_owned()));
        assert_eq!(text("<think>hm</think> "), Err("summary_reasoning_only"));
        assert_eq!(text("<think>hm, and on"), Err("summary_reasoning_only"));
        assert_eq!(
            text("The tag <think> was discussed."),
            Ok("The tag <think> was discussed.".to_owned())
        );
    }

    #[test]
    fn an_apology_is_no_summary() {
        assert_eq!(
            judge(
                "I\u{2019}m sorry, but I can\u{2019}t help with that.",
                "stop",
                500
            ),
            Err("summary_refused")
        );
        assert!(judge("The user is sorry for the delay.", "stop", 500).is_ok());
    }

    #[test]
    fn bounds_the_size() {
        assert_eq!(
            judge(&"x".repeat(601), "stop", 9_000),
            Err("summary_too_long")
        );
        assert!(judge(&"x".repeat(600), "stop", 9_000).is_ok());
        assert_eq!(judge("OK", "stop", 10_001), Err("summary_too_short"));
        let lots = Replaced {
            units: 2_001,
            batch_units: 2_001,
            max_summary_tokens: 10_000,
        };
        let text = "x".repeat(2_001);
        let answer = Answer {
            text: &text,
            finish: Some("stop"),
            refused: false,
            called_tools: false,
            only_reasoned: false,
        };
        assert!(matches!(
            accept(answer, lots),
            Err(Unacceptable::NotSmaller { .. })
        ));
        let little = Replaced {
            units: 2_000,
            ..lots
        };
        assert!(accept(answer, little).is_ok());
    }
}
