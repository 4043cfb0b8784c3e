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
    if !COMPLETE.contains(&finish.to_ascii_lowercase().as_str()) {
        let shown = finish.chars().filter(char::is_ascii_graphic).take(40);
        return Err(Unacceptable::Incomplete(shown.collect()));
    }
    let text = answer.text.replace('\0', "");
    let text = text.trim();
    if text.is_empty() {
        return Err(Unacceptable::Empty);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str, finish: &str, units: u64) -> Result<String, &'static str> {
        let answer = Answer {
            text,
            finish: Some(finish),
            refused: false,
            called_tools: false,
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
            "content_filter",
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
