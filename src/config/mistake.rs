//! What is wrong with a configuration, said so that it can be put right: which option, in both of its spellings, what
//! was given and where, and what the option takes.
//!
//! A mistake never holds the value of a secret. Nothing here decides what a mistake is.

use std::fmt;

use super::options::{self, env_name};

/// All mistakes of a configuration; there is at least one.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    mistakes: Vec<Mistake>,
}

/// One mistake: a sentence without its full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    option: Option<&'static str>,
    text: String,
}

impl ConfigError {
    pub(super) fn new(mistakes: Vec<Mistake>) -> Self {
        Self { mistakes }
    }

    #[must_use]
    pub fn mistakes(&self) -> &[Mistake] {
        &self.mistakes
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mistakes.as_slice() {
            [one] => write!(f, "the configuration has a mistake:\n  - {one}.")?,
            all => {
                write!(f, "the configuration has {} mistakes:", all.len())?;
                for mistake in all {
                    write!(f, "\n  - {mistake}.")?;
                }
            }
        }
        f.write_str("\nEvery option, with what it means and takes, is printed by `precis config`.")
    }
}

impl Mistake {
    /// The path of the option it is about, if it is about one that exists.
    #[must_use]
    pub fn option(&self) -> Option<&str> {
        self.option
    }

    /// `text` goes on from the option's name: "is empty; it takes …".
    pub(super) fn about(option: &'static str, text: &str) -> Self {
        Self {
            option: Some(option),
            text: format!("{} {text}", both_names(option)),
        }
    }

    /// `name` as it was spelled, in the environment or in a file.
    pub(super) fn unknown(name: &str, origin: &str) -> Self {
        let nearest = options::nearest(name).map_or_else(String::new, |option| {
            format!("; the nearest is {}", both_names(option))
        });
        Self::other(format!(
            "`{name}`, set in {origin}, is not an option{nearest}"
        ))
    }

    pub(super) fn not_unicode(variable: &str) -> Self {
        Self::other(format!(
            "`{variable}` in the environment is not valid UTF-8"
        ))
    }

    pub(super) fn other(text: String) -> Self {
        Self { option: None, text }
    }

    /// The rules let something pass that [`super::Settings`] does not take. The value is left out: it may be secret.
    pub(super) fn internal(error: &figment::Error) -> Self {
        Self::other(format!(
            "`{}` cannot be read although it looks right, which is a fault of Precis; please report it",
            error.path.join(".")
        ))
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn both_names(option: &str) -> String {
    format!("`{option}` (`{}`)", env_name(option))
}
