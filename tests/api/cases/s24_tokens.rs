//! K11: what a context weighs in tokens, as it is told over HTTP.

use rstest::rstest;
use serde_json::json;

use crate::support::messages::{assistant, user};
use crate::support::{Backend, TestApp};

async fn estimate(app: &TestApp, id: &str) -> u64 {
    let tokens = app.context(id).await.tokens;
    assert!(
        tokens["by"].is_string(),
        "it says how it was told: {tokens}"
    );
    tokens["estimate"]
        .as_u64()
        .unwrap_or_else(|| panic!("a number: {tokens}"))
}

fn words() -> String {
    // 1,000 letters in words.
    let text =
        "every letter counts as one here and nothing else does in this long text ".repeat(40);
    let mut letters = 0;
    text.chars()
        .take_while(|c| {
            letters += usize::from(c.is_ascii_alphabetic());
            letters <= 1_000
        })
        .collect()
}

#[rstest]
#[case::ascii_letters(words(), 200, 330)]
#[case::han("\u{6f22}\u{5b57}".repeat(500), 600, 2_000)]
#[case::hangul("\u{d55c}\u{ae00}".repeat(500), 600, 2_000)]
#[case::emoji("\u{1f600}".repeat(500), 500, 3_000)]
#[case::decomposed("e\u{301}".repeat(500), 250, 2_000)]
#[tokio::test(flavor = "multi_thread")]
async fn s24_each_script_weighs_what_it_weighs(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] text: String,
    #[case] least: u64,
    #[case] most: u64,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&[user(&text)]).await;
    let tokens = estimate(&app, &id).await;
    assert!(
        (least..=most).contains(&tokens),
        "expected {least} to {most}, got {tokens}"
    );

    // The same text as escapes is the same text.
    let units: Vec<String> = text
        .encode_utf16()
        .map(|unit| format!("\\u{unit:04x}"))
        .collect();
    let escaped = units.concat();
    let id = app
        .create_with(&[format!(r#"{{"role":"user","content":"{escaped}"}}"#)])
        .await;
    assert_eq!(estimate(&app, &id).await, tokens, "escapes are a spelling");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s24_adding_text_never_lowers_it(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    let mut before = 0;
    for text in [
        "a",
        "",
        " ",
        "\u{6f22}",
        "e\u{301}",
        "\u{1f600}",
        "\u{0}",
        "abcdefgh",
        "\u{200b}",
    ] {
        for message in [user(text), assistant(text)] {
            app.append(&id, &[message]).await;
            let now = estimate(&app, &id).await;
            assert!(now >= before, "`{text}` more made {before} to {now}");
            before = now;
        }
    }
    // Nor does a longer text weigh less than a shorter one.
    let text = "a\u{6f22}b \u{1f600}c\u{e9}d\u{301}".repeat(3);
    let mut before = 0;
    for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
        let id = app.create_with(&[user(&text[..end])]).await;
        let now = estimate(&app, &id).await;
        assert!(
            now >= before,
            "{end} bytes weigh {now}, fewer weigh {before}"
        );
        before = now;
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s24_a_full_window_counts_as_nearly_full(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let text = "\u{6f22}".repeat(700);
    let raws: Vec<String> = (0..10)
        .map(|n| {
            if n % 2 == 0 {
                user(&text)
            } else {
                assistant(&text)
            }
        })
        .collect();
    let id = app.create_with(&raws).await;
    let tokens = estimate(&app, &id).await;
    assert!(
        tokens >= 6_400,
        "7,000 Han characters nearly fill 8,000 tokens, got {tokens}"
    );

    // What is summarised weighs what its summary does.
    app.compact(&id, &json!({"compactCount": 99}))
        .await
        .expect(200);
    let after = estimate(&app, &id).await;
    assert!(
        after < tokens,
        "{after} after a compaction, {tokens} before"
    );
    assert!(after >= 1_400, "the newest turn is still there: {after}");
}
