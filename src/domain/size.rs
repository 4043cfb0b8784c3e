//! How large a text is: in UTF-16 code units (the unit of `length` in the contract) and in tokens.
//!
//! One pass over the bytes gives both. The token figure is an estimate that errs upwards for
//! scripts that tokenizers split finely; a tokenizer or a provider's `usage` may replace it where
//! one is at hand. Which text of a message counts is decided in `message`.

/// What a part that is not text counts for, in UTF-16 code units. Base64 never counts as text.
pub const OTHER_PART_UNITS: u64 = 4_000;

/// Sizes of a text, additive: the size of a concatenation is the sum of the sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// UTF-16 code units.
    pub units: u64,
    /// ASCII bytes.
    ascii: u64,
    /// Other UTF-8 bytes.
    other: u64,
}

impl Size {
    /// Measures a text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self::of_bytes(text.bytes())
    }

    /// Measures JSON text, leaving out the white space between its tokens. An escape counts as written.
    #[must_use]
    pub fn of_json(text: &str) -> Self {
        let mut in_string = false;
        let mut escaped = false;
        Self::of_bytes(text.bytes().filter(move |byte| {
            if in_string {
                in_string = escaped || *byte != b'"';
                escaped = !escaped && *byte == b'\\';
                return true;
            }
            in_string = *byte == b'"';
            !byte.is_ascii_whitespace()
        }))
    }

    /// A part that is not text.
    #[must_use]
    pub fn other_part() -> Self {
        Self {
            units: OTHER_PART_UNITS,
            ascii: OTHER_PART_UNITS,
            other: 0,
        }
    }

    fn of_bytes(bytes: impl Iterator<Item = u8>) -> Self {
        let mut size = Self::default();
        for byte in bytes {
            // A continuation byte begins no character; a four-byte one needs a surrogate pair.
            size.units += u64::from(byte & 0xC0 != 0x80) + u64::from(byte >= 0xF0);
            size.ascii += u64::from(byte.is_ascii());
            size.other += u64::from(!byte.is_ascii());
        }
        size
    }

    /// Estimated tokens: ASCII bytes / 4 + other UTF-8 bytes / 3, rounded up.
    #[must_use]
    pub fn tokens(self) -> u64 {
        (3 * self.ascii + 4 * self.other).div_ceil(12)
    }
}

impl std::ops::Add for Size {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            units: self.units + more.units,
            ascii: self.ascii + more.ascii,
            other: self.other + more.other,
        }
    }
}

impl std::iter::Sum for Size {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), std::ops::Add::add)
    }
}

/// Length of a text in UTF-16 code units.
#[must_use]
pub fn units(text: &str) -> u64 {
    Size::of(text).units
}

/// Estimated tokens of a text.
#[must_use]
pub fn tokens(text: &str) -> u64 {
    Size::of(text).tokens()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_utf16() {
        for text in ["", "abc", "é", "e\u{301}", "漢字", "👩‍👩‍👧", "𠮷", "a\0b"] {
            assert_eq!(units(text), text.encode_utf16().count() as u64, "{text:?}");
        }
    }

    #[test]
    fn s24_estimates_do_not_assume_four_characters_a_token() {
        assert!((200..=330).contains(&tokens(&"word ".repeat(200))));
        assert!((600..=2000).contains(&tokens(&"漢".repeat(1000))));
        assert!((600..=2000).contains(&tokens(&"한".repeat(1000))));
        assert!(tokens(&"😀".repeat(500)) >= 500);
        assert!(tokens(&"e\u{301}".repeat(500)) >= 375);
        assert!(tokens(&"漢".repeat(7000)) * 10 >= 8000 * 8);
    }

    #[test]
    fn json_is_measured_without_the_space_between_tokens() {
        let spaced = "[ {\"a b\" : \"c \\\" d\",\n\t\"e\":1 } ]";
        let tight = r#"[{"a b":"c \" d","e":1}]"#;
        assert_eq!(Size::of_json(spaced), Size::of(tight));
    }
}
