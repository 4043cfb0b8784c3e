//! What counts tokens: the estimate, or a real tokenizer if the operator chose one.
//!
//! A message is counted once, when it is appended, and keeps its count. So this is the one place that
//! decides what a token is for the service; what a provider's `usage` says is laid over it in `budget`.

use bpe_openai::Tokenizer;

use super::message::{Message, Part, Role, read_material};
use super::{json, reasoning, size};

/// What counts tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Counter {
    /// ASCII bytes / 4 + other UTF-8 bytes / 3.
    #[default]
    Estimate,
    /// The tokenizer of that name.
    O200kBase,
    /// The tokenizer of that name.
    Cl100kBase,
}

impl Counter {
    /// What an answer says of a number that this counted.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Estimate => "estimate",
            Self::O200kBase | Self::Cl100kBase => "tokenizer",
        }
    }

    fn tokenizer(self) -> Option<&'static Tokenizer> {
        match self {
            Self::Estimate => None,
            Self::O200kBase => Some(bpe_openai::o200k_base()),
            Self::Cl100kBase => Some(bpe_openai::cl100k_base()),
        }
    }

    /// Loads the vocabulary, if there is one: a tenth of a second that no request should wait for.
    pub fn warm_up(self) {
        self.tokenizer();
    }

    /// Counts a message: its content's text, its calls and its reasoning, a fixed allowance for a part
    /// that shows no text.
    pub fn count(self, message: &mut Message) {
        let Some(tokenizer) = self.tokenizer() else {
            return;
        };
        let count = |text: &str| tokenizer.count(text) as u64;
        let material = read_material(&message.body);
        let thinks = message.role == Role::Assistant;
        let part = |part: &Part<'_>| match part {
            Part::Text(text) => count(text),
            Part::Other(part) => reasoning::part_text(part)
                .filter(|_| thinks)
                .map_or_else(|| size::Size::other_part().tokens(), |text| count(&text)),
        };
        let content: u64 = material.parts.iter().map(part).sum();
        let calls: u64 = material
            .calls
            .iter()
            .map(|(name, arguments)| count(name) + count(arguments))
            .sum();
        let beside: u64 = if thinks {
            let texts = reasoning::member_texts(&json::members(&message.body));
            texts.iter().map(|text| count(text)).sum()
        } else {
            0
        };
        message.tokens = content + calls + beside;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> (u64, u64) {
        let body = serde_json::json!({"role": "user", "content": text}).to_string();
        let mut message = Message::read(&body).unwrap();
        let estimate = message.tokens;
        Counter::O200kBase.count(&mut message);
        (estimate, message.tokens)
    }

    #[test]
    fn s24_the_estimate_is_never_less_than_half_of_what_a_tokenizer_says() {
        let texts = [
            "The quick brown fox jumps over the lazy dog. ".repeat(20),
            "漢字仮名交じり文を書いて、数えてみる。".repeat(20),
            "한국어 문장을 세어 봅니다. ".repeat(20),
            "😀👩‍👩‍👧🇩🇪".repeat(60),
            "e\u{301}e\u{301} ".repeat(60),
            "fn main() { println!(\"{}\", 1 + 1); }\n".repeat(20),
        ];
        for text in texts {
            let (estimate, exact) = counted(&text);
            assert!(exact > 0);
            assert!(
                estimate * 2 >= exact,
                "{estimate} against {exact}: {text:.40}"
            );
        }
    }

    #[test]
    fn reasoning_is_counted() {
        let exact = |body: &str| {
            let mut message = Message::read(body).unwrap();
            Counter::O200kBase.count(&mut message);
            message.tokens
        };
        let plain = exact(r#"{"role":"assistant","content":"Done."}"#);
        let member = exact(r#"{"role":"assistant","content":"Done.","reasoning":"Let me see."}"#);
        let part = exact(
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"Let me see.","signature":"c2ln"},{"type":"text","text":"Done."}]}"#,
        );
        assert!((plain + 3..plain + 8).contains(&member), "{plain} {member}");
        assert_eq!(member, part);
    }

    #[test]
    fn calls_and_parts_are_counted() {
        let body = r#"{"role":"assistant","content":[{"type":"image_url","image_url":{"url":"x"}}],"tool_calls":[{"id":"a","function":{"name":"look","arguments":"{\"path\": \"src\"}"}}]}"#;
        let mut message = Message::read(body).unwrap();
        Counter::Cl100kBase.count(&mut message);
        assert!(
            (1_004..1_020).contains(&message.tokens),
            "{}",
            message.tokens
        );
    }
}
