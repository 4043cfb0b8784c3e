//! Whether a tool's output says that it failed, and which line of it says most.
//!
//! Output is nobody's word: nothing that gives orders and nothing that looks like a secret is quoted from it.

use super::arguments::Deed;
use super::{cues, text};

/// Longest line of output shown, in UTF-16 units.
const MAX_GIST: usize = 140;

fn is_error_line(line: &str) -> bool {
    let low = text::head(line, 240).to_ascii_lowercase();
    let low = low.trim_start();
    low.starts_with("error")
        || low.starts_with("fatal:")
        || low.starts_with("traceback")
        || low.starts_with("panic")
        || [
            "panicked at",
            "permission denied",
            "command not found",
            "no such file",
            "exception:",
            "error:",
            "failed to",
        ]
        .iter()
        .any(|sign| low.contains(sign))
}

/// For results that are content (a file, a listing): only their first words can say that there was none.
pub(super) fn opens_with_error(front: &str) -> bool {
    front
        .lines()
        .find(|line| !line.trim().is_empty())
        .is_some_and(is_error_line)
}

pub(super) fn shows_failure(front: &str, back: &str) -> bool {
    let mut failed = false;
    for line in front.lines().chain(back.lines()) {
        let low = text::head(line, 240).to_ascii_lowercase();
        for sign in ["exit status", "exit code", "exited with"] {
            if let Some((_, after)) = low.split_once(sign) {
                let code = after.trim_start_matches([':', ' ', '=']);
                if code.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
                    // The status is the last word on the matter.
                    return !code.starts_with('0');
                }
            }
        }
        failed |= is_error_line(line) || line.contains("FAILED");
    }
    failed
}

/// The one line of an output that tells most, if there is one fit to be shown.
pub(super) fn gist(deed: &Deed, front: &str, back: &str, failed: bool) -> String {
    let told = told(front, back, failed);
    let parts: Vec<&str> = [deed.detail.as_str(), told.as_str()]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect();
    let line = parts.join(" → ");
    if cues::smells_secret(&line) {
        String::new()
    } else {
        text::clip(&line.replace(" — ", " - "), MAX_GIST)
    }
}

fn told(front: &str, back: &str, failed: bool) -> String {
    let lines = || {
        front
            .lines()
            .chain(back.lines())
            .map(str::trim)
            .filter(|line| !line.is_empty())
    };
    let chosen = if failed {
        lines().find(|line| is_error_line(line)).or_else(|| {
            lines().find(|line| line.contains(": ") && !line.starts_with("test result"))
        })
    } else if !back.is_empty() {
        None
    } else {
        let summed = |line: &&str| line.bytes().any(|b| b.is_ascii_digit());
        lines()
            .filter(|line| {
                line.contains("result") || line.contains("real") || line.contains("total")
            })
            .find(summed)
            .or_else(|| {
                // A short answer is its own gist.
                (lines().count() <= 2)
                    .then(|| lines().next_back())
                    .flatten()
            })
    };
    let line = text::one_line(text::head(chosen.unwrap_or(""), 600));
    if cues::gives_orders(&line) || cues::smells_secret(&line) || text::units(&line) > MAX_GIST * 3
    {
        return String::new();
    }
    text::clip(&line.replace('`', "'"), MAX_GIST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_zero_outweighs_words() {
        assert!(!shows_failure("error: none found\nexit status: 0", ""));
        assert!(shows_failure("all good\nexit code 2", ""));
        assert!(opens_with_error("\nerror: permission denied"));
        assert!(!opens_with_error("fn main() {}\nerror: x"));
    }
}
