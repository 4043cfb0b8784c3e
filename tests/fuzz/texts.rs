//! Texts of any kind: what is looked for, what is redacted, and what a summary is made of without a model.

use std::borrow::Cow;

use precis::domain::extractive::{Limits, estimate_tokens, summarize};
use precis::domain::fold;
use precis::domain::redact::redact;
use precis::domain::search::{QUERY_PIECES, SearchQuery};
use precis::domain::size::units;
use precis::domain::terms::terms;
use precis::domain::transcript::{Entry, render};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use crate::generate::{accepted, history};
use crate::runner::fuzz;

/// Text with things that the rules look at.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        select(
            &[
                "password",
                "=",
                ": ",
                "\"",
                "'",
                "Bearer ",
                "Authorization",
                "token",
                "sk-",
                "://",
                "user:",
                "@",
                "\n",
                " ",
                "-----BEGIN",
                " PRIVATE KEY-----",
                "AKIA",
                "eyJ",
                "\\n",
                "\\\"",
                "[redacted: ",
                "]",
                "curl -u ",
                "## ",
                "- ",
                "Errors",
                "src/main.rs:12",
                "v1.2.3",
                "漢字",
                "ｶﾞ",
                "e\u{301}",
                "ß",
                "İ",
                "🦀",
                "\u{0}",
                "\u{200d}",
                "…",
                "don't",
                "I decided to ",
                "error: ",
                "{\"a\":",
                "1,000.50",
            ][..]
        )
        .prop_map(ToOwned::to_owned),
        "[a-zA-Z0-9]{1,12}",
        "\\PC{0,6}",
    ];
    prop_oneof![6 => vec(piece, 0..40).prop_map(|pieces| pieces.concat()), 1 => any::<String>()]
}

#[test]
fn queries() {
    fuzz(
        "queries",
        500,
        &(text(), text(), text()),
        |(query, before, behind)| {
            for term in terms(&query) {
                prop_assert!(query.get(term.range.clone()).is_some(), "{:?}", term.range);
                prop_assert!(!term.text.is_empty());
            }
            let Ok(read) = SearchQuery::read(&query) else {
                return Ok(());
            };
            prop_assert_eq!(&SearchQuery::read(&query).expect("as before"), &read);
            prop_assert!((1..=QUERY_PIECES).contains(&read.phrases().len()));
            prop_assert!(read.phrases().iter().all(|phrase| !phrase.terms.is_empty()));
            let body = |content: &str| json!({"role": "user", "content": content}).to_string();
            // What holds it between spaces holds it, and says so.
            let snippet = read.snippet(&body(&format!("{before} {query} {behind}")));
            prop_assert!(snippet.is_some(), "not found");
            prop_assert!(snippet.is_some_and(|snippet| snippet.chars().count() <= 162));
            let elsewhere = read.snippet(&body(&before));
            prop_assert!(elsewhere.is_none_or(|snippet| snippet.chars().count() <= 162));
            Ok(())
        },
    );
}

#[test]
fn redactions() {
    fuzz("redactions", 1_500, &text(), |text| {
        let once = redact(&text).into_owned();
        let twice = redact(&once);
        prop_assert!(
            matches!(twice, Cow::Borrowed(_)),
            "{:?} becomes {:?}",
            once,
            twice
        );
        prop_assert!(once.len() <= 5 * text.len());
        Ok(())
    });
}

#[test]
fn summaries() {
    let limits = (
        prop_oneof![1..400_usize, 1..5_usize],
        // Nothing is shorter than no text at all.
        prop::option::of(1..600_usize),
    )
        .prop_map(|(max_tokens, max_units)| Limits {
            max_tokens,
            max_units,
        });
    let case = (
        prop::option::of(text()),
        history(2),
        vec(text(), 0..3),
        limits,
    );
    fuzz("summaries", 60, &case, |(previous, texts, more, limits)| {
        let mut entries: Vec<_> = accepted(texts)
            .iter()
            .filter_map(|row| {
                Entry::read(
                    row.message.role,
                    row.tool_name.as_deref(),
                    row.call_index,
                    &row.message.body,
                )
            })
            .collect();
        entries.extend(more.into_iter().map(|text| Entry::User { text }));
        let summary = summarize(previous.as_deref(), &entries, &limits);
        prop_assert_eq!(&summarize(previous.as_deref(), &entries, &limits), &summary);
        if summary != "…" {
            prop_assert!(
                estimate_tokens(&summary) <= limits.max_tokens,
                "{}",
                summary
            );
            let size = usize::try_from(units(&summary)).expect("a size");
            prop_assert!(limits.max_units.is_none_or(|max| size < max), "{}", summary);
        }
        // A summary of the summary keeps to the limits as well.
        let again = summarize(Some(&summary), &entries, &limits);
        prop_assert!(again == "…" || estimate_tokens(&again) <= limits.max_tokens);
        let transcript = render(&entries);
        let is_framed =
            |line: &str| line.starts_with("  ") || line.starts_with('[') || line.is_empty();
        prop_assert!(transcript.lines().all(is_framed), "{}", transcript);
        let tokens = u64::try_from(limits.max_tokens).expect("a number");
        prop_assert!(fold::shorten(&transcript, tokens).len() <= transcript.len() + 200);
        Ok(())
    });
}
