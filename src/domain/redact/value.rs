//! Whether the value beside a secret's name is one.
//!
//! Here the line runs between secrets and facts: types, calls, variables, templates, masks, paths and
//! prose stay. The surer the name, the less its value has to show; see `names::Need`.

use super::assign::Separator;
use super::names::{Form, Name, Need};
use super::words;

/// A value as it stands in a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value<'a> {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Its beginning, if it is long.
    pub(super) text: &'a str,
    pub(super) is_quoted: bool,
    /// The byte after it.
    pub(super) next: Option<u8>,
    /// Nothing follows on its line.
    pub(super) line_ends: bool,
    /// A `=` follows, so that it is the type of what follows that.
    pub(super) is_type: bool,
}

/// A text, to ask what it is made of.
#[derive(Clone, Copy)]
struct Traits<'a>(&'a str);

impl Traits<'_> {
    fn length(self) -> usize {
        self.0.chars().count()
    }

    fn has_digit(self) -> bool {
        self.0.bytes().any(|byte| byte.is_ascii_digit())
    }

    fn has_upper(self) -> bool {
        self.0.contains(char::is_uppercase)
    }

    fn has_lower(self) -> bool {
        self.0.contains(char::is_lowercase)
    }

    fn has_space(self) -> bool {
        self.0.contains(char::is_whitespace)
    }

    /// Letters with digits.
    fn is_mixed(self) -> bool {
        self.has_digit() && self.0.contains(char::is_alphabetic)
    }

    /// Nothing but letters, digits and `_`.
    fn is_identifier(self) -> bool {
        self.0
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    }

    /// Nothing but letters, and what joins words.
    fn is_wordy(self) -> bool {
        self.0
            .chars()
            .all(|letter| letter.is_alphabetic() || "_-/'".contains(letter))
    }

    /// Nothing but digits and the marks of numbers, dates and amounts.
    fn is_number(self) -> bool {
        self.0
            .chars()
            .all(|letter| letter.is_ascii_digit() || ".,:/-+%".contains(letter))
    }
}

/// Whether a value is a secret, by the name and the separator before it.
pub(super) fn is_secret(value: &Value<'_>, separator: Separator, name: Name) -> bool {
    let text = value.text;
    // What costs least is asked first: a text may be full of names.
    let is_option = separator == Separator::Blank && text.starts_with('-');
    if text.chars().nth(2).is_none() || text.starts_with("-----BEGIN") || is_option {
        return false;
    }
    has_shape(value, separator, name)
        && !(is_place(text, name) || is_known_id(text) || is_blank_form(text))
}

/// Whether a value has the shape its name and separator ask for.
fn has_shape(value: &Value<'_>, separator: Separator, name: Name) -> bool {
    let text = value.text;
    let traits = Traits(text);
    if traits.is_number() {
        let is_row = text.bytes().all(|byte| byte.is_ascii_digit());
        return match name.need {
            Need::Any => is_row && traits.length() >= 4 && separator != Separator::Is,
            _ => is_row && traits.length() >= 12 && value.is_quoted,
        };
    }
    if separator == Separator::Is {
        return name.need == Need::Any
            && !traits.has_space()
            && !text.starts_with('&')
            && (value.is_quoted
                || (traits.is_mixed() && traits.length() >= 6 && !is_amount(text)));
    }
    if traits.has_space() {
        return value.is_quoted && name.need == Need::Any && is_passphrase(text);
    }
    if value.is_quoted {
        // A table from variants to their names.
        let is_table = separator == Separator::Literal && traits.is_wordy() && text.contains('_');
        !is_table && is_quoted_secret(text, traits, name)
    } else {
        is_bare_secret(value, traits, separator, name) && !is_code(value, traits, separator)
    }
}

fn is_quoted_secret(text: &str, traits: Traits<'_>, name: Name) -> bool {
    let is_long_word = traits.length() >= 20 && traits.has_upper() && traits.has_lower();
    match name.need {
        Need::Any => true,
        Need::Key if traits.is_wordy() => traits.length() >= 8 && !text.starts_with('_'),
        Need::Key => traits.length() >= 6 && !text.contains("::"),
        Need::Mixed => (traits.length() >= 6 && traits.is_mixed()) || is_long_word,
        Need::Random => is_random(text, traits),
    }
}

fn is_bare_secret(value: &Value<'_>, traits: Traits<'_>, separator: Separator, name: Name) -> bool {
    let text = value.text;
    let is_tight = separator == Separator::Tight || name.form == Form::Query;
    let is_sure =
        is_tight || separator == Separator::Blank || matches!(name.form, Form::Env | Form::Header);
    if name.need == Need::Random {
        return is_random(text, traits);
    }
    if !traits.is_wordy() {
        return match name.need {
            Need::Any if is_amount(text) => false,
            Need::Any => true,
            Need::Mixed if text.contains('/') => is_random(text, traits),
            Need::Key => traits.length() >= if is_sure { 6 } else { 8 } && traits.is_mixed(),
            _ => traits.length() >= if is_tight { 6 } else { 8 } && traits.is_mixed(),
        };
    }
    // No digit and no mark: a word, which is as often a variable or prose as it is a secret.
    let ends_argument = matches!(value.next, Some(b')' | b','));
    let is_long_word = traits.length() >= 20 && traits.has_upper() && traits.has_lower();
    let starts_lower = text.starts_with(char::is_lowercase);
    match separator {
        Separator::Tight if matches!(name.form, Form::Env | Form::Query) => match name.need {
            Need::Any => traits.length() >= 3,
            _ => traits.length() >= 8,
        },
        Separator::Tight => name.need == Need::Any && !ends_argument && traits.length() >= 4,
        Separator::Blank => value.line_ends && traits.length() >= 4,
        Separator::Tag => true,
        Separator::Colon if name.form == Form::Header => value.line_ends && traits.length() >= 8,
        Separator::Colon => {
            let is_setting = name.need == Need::Any && value.line_ends && starts_lower;
            (is_setting && !text.ends_with("ed") && !text.contains('/') && traits.length() >= 4)
                || (is_long_word && name.need == Need::Key && value.line_ends)
        }
        _ => is_long_word && name.form == Form::Env,
    }
}

/// Whether a value is an expression of a program: a call, a field, a type, a variable.
fn is_code(value: &Value<'_>, traits: Traits<'_>, separator: Separator) -> bool {
    let text = value.text;
    let is_calling = matches!(value.next, Some(b'(' | b'[' | b'<')) || text.contains(['(', '[']);
    let is_field = text.contains('.')
        && text
            .trim_start_matches(['&', '*', '!'])
            .split(['.', '?', '!'])
            .all(is_field_or_empty);
    let is_path = text.contains("::") || text.starts_with(['[', '{', '(', '|']);
    let is_reference = text.strip_prefix(['&', '*']).is_some_and(is_variable);
    let is_assigned = separator == Separator::Equals
        && traits.is_identifier()
        && (value.next == Some(b';') || text.contains('_'));
    let is_member = separator == Separator::Colon
        && traits.is_identifier()
        && ((text.contains('_') && value.next == Some(b',')) || value.is_type);
    is_member
        || is_number_or_type(text)
        || is_calling
        || is_field
        || is_path
        || is_reference
        || is_assigned
}

/// Whether a text reads as a variable's name: letters, and digits at its end only.
fn is_variable(text: &str) -> bool {
    let stem = text.trim_end_matches(|letter: char| letter.is_ascii_digit());
    text.len() - stem.len() <= 1
        && !stem.is_empty()
        && stem
            .chars()
            .all(|letter| letter.is_ascii_alphabetic() || letter == '_')
}

/// Whether a text reads as a part of `node.item2_name`; empty where marks stand side by side.
fn is_field_or_empty(text: &str) -> bool {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    !text.starts_with(|letter: char| letter.is_ascii_digit())
        && Traits(text).is_identifier()
        && (digits == 0 || (digits <= 2 && text.contains('_')) || is_variable(text))
}

/// Whether a text is a type of numbers, or a number written for a program: `u32`, `0x1f`, `17i64`.
fn is_number_or_type(text: &str) -> bool {
    let bare = text.trim_start_matches(['_', '-']);
    let is_hex = bare.strip_prefix("0x").is_some_and(|digits| {
        digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    let kind = bare.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let is_type = kind
        .strip_prefix(['u', 'i', 'f'])
        .is_some_and(|bits| ["8", "16", "32", "64", "128", "size"].contains(&bits));
    is_hex || is_type
}

/// Letters of both cases with digits, and some length, as base64 has.
fn is_random(text: &str, traits: Traits<'_>) -> bool {
    traits.length() >= 12
        && !traits.has_space()
        && ((traits.has_digit() && traits.has_upper() && traits.has_lower())
            || text.ends_with('=')
            || (traits.length() >= 24 && traits.is_mixed()))
}

/// Whether a text is a number with a unit, such as `16-character` or `30min`.
fn is_amount(text: &str) -> bool {
    let unit = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    unit.len() < text.len()
        && unit
            .chars()
            .all(|letter| letter.is_ascii_lowercase() || letter == '-')
        && unit.len() >= 2
        && (unit.starts_with('-')
            || [
                "bytes",
                "bit",
                "bits",
                "chars",
                "characters",
                "days",
                "min",
                "minutes",
                "seconds",
            ]
            .contains(&unit))
}

/// Whether words with blanks between them are a passphrase rather than a sentence or a label.
fn is_passphrase(text: &str) -> bool {
    let mut count = 0;
    for word in text.split_whitespace() {
        count += 1;
        let bare = word.trim_matches(|letter: char| !letter.is_alphanumeric());
        let lower = bare.to_lowercase();
        let says = words::SENTENCE.contains(&lower.as_str()) || is_plain(&lower);
        if says || word.ends_with(['.', ':', '?', '…']) || bare.is_empty() {
            return false;
        }
    }
    let starts_lower = text.starts_with(char::is_lowercase);
    (2..=8).contains(&count)
        && (starts_lower || text.contains(|letter: char| letter.is_ascii_digit()))
}

fn is_plain(lower: &str) -> bool {
    words::PLAIN.binary_search(&lower).is_ok()
}

/// Whether a value stands for one: empty, a mask, a template, a variable, a word about it.
pub(super) fn is_blank_form(text: &str) -> bool {
    let first = text.chars().next().unwrap_or_default();
    let is_row = text.chars().all(|letter| letter == first);
    if text.is_empty() || (is_row && (!first.is_alphanumeric() || matches!(first, 'x' | 'X'))) {
        return true;
    }
    let lower = text.to_lowercase();
    let is_template = text.starts_with(['<', '{', '['])
        || [
            "${",
            "{{",
            "#{",
            "$(",
            "%(",
            "***",
            "•••",
            "...",
            "…",
            "xxxx",
        ]
        .iter()
        .any(|mark| lower.contains(mark))
        || (text.starts_with('%') && (text.ends_with('%') || text.chars().count() == 2));
    let is_variable_form = text
        .strip_prefix(['$', ':'])
        .is_some_and(|rest| is_variable(rest) || rest.starts_with(['$', '{']));
    let is_stand_in = ["your", "my-", "example", "insert", "replace"]
        .iter()
        .any(|start| {
            lower
                .strip_prefix(start)
                .is_some_and(|rest| rest.starts_with(['_', '-', ' ']) || start.ends_with('-'))
        })
        && !text.contains(|letter: char| letter.is_ascii_digit());
    is_template
        || is_variable_form
        || is_stand_in
        || is_environment_name(text)
        || lower.contains("redacted")
        || is_plain(&lower)
}

/// Whether a text is the name of an environment variable.
fn is_environment_name(text: &str) -> bool {
    text.contains('_')
        && text.starts_with(|letter: char| letter.is_ascii_uppercase())
        && text
            .chars()
            .all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_')
        && text.chars().filter(char::is_ascii_digit).count() <= 2
}

/// Whether a text is an address or a path.
fn is_place(text: &str, name: Name) -> bool {
    const FILES: [&str; 12] = [
        ".json", ".pem", ".key", ".txt", ".yaml", ".yml", ".toml", ".env", ".crt", ".p12", ".rs",
        ".py",
    ];
    // A secret key of AWS may begin with a slash.
    let is_rooted = text.starts_with(['/', '~'])
        && (name.need == Need::Any || text.len() != 40 || text.matches('/').count() > 4);
    let is_drive = text
        .get(1..3)
        .is_some_and(|mark| matches!(mark, ":\\" | ":/"));
    is_rooted
        || is_drive
        || text.contains("://")
        || text.starts_with("./")
        || text.starts_with("../")
        || FILES.iter().any(|file| text.ends_with(file))
}

/// Whether a text is an id of this product or of a tool call, which no one can sign in with.
fn is_known_id(text: &str) -> bool {
    [
        "sess_",
        "msg_",
        "comp_",
        "turn_",
        "call_",
        "toolu_",
        "chatcmpl-",
    ]
    .iter()
    .any(|prefix| {
        text.strip_prefix(prefix).is_some_and(|rest| {
            rest.len() >= 8 && rest.chars().all(|letter| letter.is_ascii_alphanumeric())
        })
    })
}
