//! How large messages are for a budget of tokens: by what the provider said, where it said something.
//!
//! An assistant message that carries the `usage` of its call tells its own size (the output) and, with
//! the one before it, what stood between the two (the growth of the input). Everything else is as
//! large as it was counted when it was appended. This is the one place that decides between them.

use serde_json::value::RawValue;

/// One message of a tail, as a budget sees it.
#[derive(Debug, Clone, Copy)]
pub struct Sized {
    /// Its `seq`.
    pub seq: i64,
    /// Whether it is an assistant message.
    pub is_assistant: bool,
    /// Tokens counted when it was appended.
    pub tokens: i64,
    /// What its provider said of the call that made it.
    pub usage: Option<Usage>,
}

/// The numbers of a `usage` that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the request.
    pub input: i64,
    /// Tokens of the answer.
    pub output: i64,
}

impl Usage {
    /// Reads a provider's `usage`, in either spelling; `None` without both numbers.
    #[must_use]
    pub fn read(usage: &str) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct Read<'a> {
            #[serde(borrow, rename = "input_tokens")]
            input: Option<&'a RawValue>,
            #[serde(borrow, rename = "prompt_tokens")]
            prompt: Option<&'a RawValue>,
            #[serde(borrow, rename = "output_tokens")]
            output: Option<&'a RawValue>,
            #[serde(borrow, rename = "completion_tokens")]
            completion: Option<&'a RawValue>,
        }
        let read: Read<'_> = serde_json::from_str(usage).ok()?;
        let number = |raw: Option<&RawValue>| {
            let number: i64 = raw?.get().parse().ok()?;
            // No call has more tokens than this; sums of such numbers never overflow.
            (0..1 << 40).contains(&number).then_some(number)
        };
        Some(Self {
            input: number(read.input.or(read.prompt))?,
            output: number(read.output.or(read.completion))?,
        })
    }
}

/// The sizes of the messages of a tail, in tokens, and whether a provider's word is in them.
#[must_use]
pub fn sizes(tail: &[Sized]) -> (Vec<i64>, bool) {
    let mut sizes: Vec<i64> = tail.iter().map(|message| message.tokens).collect();
    let mut by_usage = false;
    let mut earlier: Option<(usize, Usage)> = None;
    for (at, message) in tail.iter().enumerate() {
        if !message.is_assistant {
            continue;
        }
        let Some(usage) = message.usage else {
            earlier = None;
            continue;
        };
        by_usage = true;
        if let Some(size) = sizes.get_mut(at) {
            *size = usage.output;
        }
        if let Some((from, before)) = earlier {
            // Less than nothing: the context was compacted or pruned between the two calls.
            let growth = usage.input - before.input - before.output;
            if let Some(between) = sizes.get_mut(from + 1..at).filter(|_| growth >= 0) {
                spread(between, growth);
            }
        }
        earlier = Some((at, usage));
    }
    (sizes, by_usage)
}

/// Gives a total to messages in proportion to their own counts; nothing of it is lost to rounding.
fn spread(sizes: &mut [i64], total: i64) {
    let own: i64 = sizes.iter().sum();
    let count = i64::try_from(sizes.len()).unwrap_or(i64::MAX);
    let (mut left, mut own_left, mut count_left) = (total, own, count);
    for size in sizes {
        let share = if own_left > 0 {
            i64::try_from(i128::from(left) * i128::from(*size) / i128::from(own_left)).unwrap_or(0)
        } else {
            left / count_left.max(1)
        };
        own_left -= *size;
        count_left -= 1;
        *size = share;
        left -= share;
    }
}

/// Index of the first message of the largest end of a tail that fits a budget: the tail's length if
/// not even its newest message fits, 0 if all of it does.
#[must_use]
pub fn fitting_end(sizes: &[i64], budget: i64) -> usize {
    let mut left = budget;
    let fits = |size: &&i64| {
        left -= **size;
        left >= 0
    };
    sizes.len() - sizes.iter().rev().take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tokens: i64, usage: Option<(i64, i64)>) -> Sized {
        Sized {
            seq: 0,
            is_assistant: usage.is_some(),
            tokens,
            usage: usage.map(|(input, output)| Usage { input, output }),
        }
    }

    #[test]
    fn a_providers_word_counts_more_than_an_estimate() {
        let tail = [
            message(50, None),
            message(9, Some((100, 20))),
            message(10, None),
            message(30, None),
            message(9, Some((200, 5))),
            message(7, None),
        ];
        // 200 − 100 − 20 = 80 stood between the two, one part to three.
        assert_eq!(sizes(&tail), (vec![50, 20, 20, 60, 5, 7], true));
    }

    #[test]
    fn a_shrunken_context_says_nothing() {
        let tail = [
            message(9, Some((1_000, 20))),
            message(10, None),
            message(9, Some((200, 5))),
        ];
        assert_eq!(sizes(&tail), (vec![20, 10, 5], true));
        assert_eq!(sizes(&[message(10, None)]), (vec![10], false));
    }

    #[test]
    fn both_spellings_are_read_and_nonsense_is_not() {
        let usage = Some(Usage {
            input: 3,
            output: 4,
        });
        assert_eq!(
            Usage::read(r#"{"input_tokens":3,"output_tokens":4}"#),
            usage
        );
        assert_eq!(
            Usage::read(r#"{"prompt_tokens":3,"completion_tokens":4,"x":1}"#),
            usage
        );
        for text in [
            r#"{"input_tokens":1,"output_tokens":9223372036854775807}"#,
            "{}",
            "null",
            r#"{"input_tokens":-3,"output_tokens":4}"#,
            r#"{"input_tokens":"3","output_tokens":4}"#,
        ] {
            assert_eq!(Usage::read(text), None, "{text}");
        }
    }

    #[test]
    fn the_largest_end_that_fits() {
        assert_eq!(fitting_end(&[5, 5, 5], 10), 1);
        assert_eq!(fitting_end(&[5, 5, 5], 15), 0);
        assert_eq!(fitting_end(&[5, 5, 5], 4), 3);
        assert_eq!(fitting_end(&[5, 0, 0], 0), 1);
    }
}
