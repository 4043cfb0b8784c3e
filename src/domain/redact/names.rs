//! Names that say their value is a secret: `DB_PASSWORD`, `"apiKey"`, `--client-secret`.
//!
//! A name is read as words (`stripeSecretKey` is three), and the last of them decides, so that
//! `tokenizer`, `secretary`, `author`, `max_tokens` and `password_file` are none. How strict the
//! value is looked at depends on how sure the name is; that judgement is `value`'s.

use super::Kind;
use super::input::Input;
use super::words;

/// How sure a name is of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// A password: anything that is not plainly something else.
    Any,
    /// A key or a secret: a word of some length, or letters with digits.
    Key,
    /// A word with other meanings, such as `token`: letters with digits.
    Mixed,
    /// A word that is seldom about secrets, such as `auth`: both cases and digits, and some length.
    Random,
}

/// How a name is spelled or where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `Authorization`, whose value has a scheme before the secret.
    Authorization,
    /// `--name`.
    Flag,
    /// `<name`.
    Tag,
    /// `?name` or `&name` in an address.
    Query,
    /// In capitals, as environment variables are.
    Env,
    /// A header of its own, such as `X-Api-Key`.
    Header,
    /// Any other.
    Plain,
}

/// A name that says its value is a secret.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    pub(super) kind: Kind,
    pub(super) need: Need,
    pub(super) form: Form,
}

/// No name is longer than this, in bytes.
const MAX_NAME: usize = 96;

/// Reads the run from `start` to `end` as a name. `before` is the word one blank before it.
pub(super) fn read(
    input: &Input<'_>,
    start: usize,
    end: usize,
    before: Option<(usize, usize)>,
) -> Option<Name> {
    let run = input.slice(start, end);
    if run.len() > MAX_NAME || !has_stem(run.as_bytes()) {
        return None;
    }
    let mut words = split_words(run);
    if words.len() == 1
        && let Some((from, to)) = before
        && to + 1 == start
        && to - from <= 16
        && input.byte(to) == Some(b' ')
        && matches!(run.to_ascii_lowercase().as_str(), "key" | "token")
    {
        words.insert(0, input.slice(from, to).to_ascii_lowercase());
    }
    let is_env = run.len() >= 3
        && run.bytes().any(|byte| byte.is_ascii_uppercase())
        && !run.bytes().any(|byte| byte.is_ascii_lowercase());
    let (kind, need) = classify(&mut words, is_env)?;
    let form = match input.byte_before(start) {
        _ if words.last().is_some_and(|word| word == "authorization") => Form::Authorization,
        _ if run.starts_with("--") => Form::Flag,
        Some(b'<') => Form::Tag,
        Some(b'?' | b'&') => Form::Query,
        Some(b';') if input.starts(start.saturating_sub(5), "&amp;") => Form::Query,
        _ if is_env => Form::Env,
        _ if input.starts_ignoring_case(start, "x-") || run.ends_with("-Key") => Form::Header,
        _ => Form::Plain,
    };
    Some(Name { kind, need, form })
}

/// Whether any of the words that matter may be in a name; keeps prose from being split.
fn has_stem(run: &[u8]) -> bool {
    const STEMS: [&[u8]; 10] = [
        b"pass",
        b"pwd",
        b"secret",
        b"token",
        b"key",
        b"auth",
        b"cred",
        b"cookie",
        b"sess",
        b"kennwort",
    ];
    (0..run.len()).any(|at| {
        let rest = run.get(at..).unwrap_or_default();
        STEMS.iter().any(|stem| {
            rest.get(..stem.len())
                .is_some_and(|here| here.eq_ignore_ascii_case(stem))
        })
    })
}

/// The words of a name in lower case, parted by `_`, `-` and capitals.
fn split_words(run: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut was_lower = false;
    for letter in run.chars() {
        let parts = !letter.is_ascii_alphanumeric();
        if (parts || (letter.is_ascii_uppercase() && was_lower)) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if !parts {
            word.push(letter.to_ascii_lowercase());
        }
        was_lower = letter.is_ascii_lowercase() || letter.is_ascii_digit();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

fn classify(words: &mut Vec<String>, is_env: bool) -> Option<(Kind, Need)> {
    while words.len() > 1
        && words.last().is_some_and(|word| {
            word.bytes().all(|byte| byte.is_ascii_digit())
                || words::SUFFIXES.contains(&word.as_str())
        })
    {
        words.pop();
    }
    let (last, others) = words.split_last()?;
    let last = last.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let previous = others.last().map_or("", String::as_str);
    let among = |list: &[&str]| others.iter().any(|word| list.contains(&word.as_str()));
    let ends = |list: &[&str]| list.iter().any(|end| last.ends_with(end));
    if ends(&[
        "password",
        "passwd",
        "passphrase",
        "passcode",
        "passwort",
        "kennwort",
        "pwd",
    ]) {
        return (!words::PASSWORD_ACTIONS.contains(&previous))
            .then_some((Kind::Password, Need::Any));
    }
    match last {
        "pass" if words::PASS_QUALIFIERS.contains(&previous) => Some((Kind::Password, Need::Any)),
        "userpass" | "dbpass" => Some((Kind::Password, Need::Any)),
        "pass" if others.is_empty() && !is_env => Some((Kind::Password, Need::Mixed)),
        "phpsessid" | "jsessionid" => Some((Kind::Cookie, Need::Mixed)),
        "cookie" => Some((Kind::Cookie, Need::Random)),
        "authorization" | "auth" => Some((Kind::Credentials, Need::Random)),
        "credential" | "credentials" | "cred" | "creds" => Some((Kind::Credentials, Need::Mixed)),
        "token" if among(words::OPEN_TOKENS) => None,
        "token" if is_env || among(words::TOKEN_QUALIFIERS) => Some((Kind::Token, Need::Key)),
        "token" => Some((Kind::Token, Need::Mixed)),
        "key" | "keys" if among(&["public", "pub"]) => None,
        "key" if previous == "private" => Some((Kind::PrivateKey, Need::Key)),
        "key" if words::KEY_QUALIFIERS.contains(&previous) => Some((Kind::AccessKey, Need::Key)),
        "key" if is_env && !previous.is_empty() && !words::OPEN_KEYS.contains(&previous) => {
            Some((Kind::AccessKey, Need::Random))
        }
        "privatekey" => Some((Kind::PrivateKey, Need::Key)),
        _ if ends(&[
            "accesstoken",
            "authtoken",
            "apitoken",
            "refreshtoken",
            "bottoken",
        ]) =>
        {
            Some((Kind::Token, Need::Key))
        }
        _ if ends(&["secret"]) => Some((Kind::Secret, Need::Key)),
        _ if ends(&[
            "apikey",
            "accesskey",
            "secretkey",
            "accountkey",
            "masterkey",
            "authkey",
        ]) =>
        {
            Some((Kind::AccessKey, Need::Key))
        }
        _ => None,
    }
}
