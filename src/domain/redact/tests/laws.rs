//! Laws that hold for any text.

use std::borrow::Cow;

use proptest::prelude::*;

use super::super::redact;
use super::{block, body, marks};

/// Pieces that begin, join, quote and end secrets, and characters of every length.
fn piece() -> impl Strategy<Value = String> {
    let (begin, end) = marks("PRIVATE KEY");
    let fixed = [
        "password",
        "--password",
        "TOKEN",
        "secret",
        "api_key",
        "Authorization",
        "Cookie",
        "value",
        "Bearer ",
        "Basic ",
        "curl ",
        "mysql ",
        "-u ",
        "-p",
        "=",
        ":",
        "://",
        "@",
        "\"",
        "\\\"",
        "'",
        "`",
        "\\",
        "\\n",
        "\n",
        " ",
        ",",
        ";",
        "&",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        ".",
        "/",
        "*",
        "$",
        "[redacted: ",
        "[redacted: token]",
        "[redacted: password]",
        "hunter22",
        "user",
        "1234",
        "eyJ",
        "é",
        "密",
        "：",
        "🙂",
        "\u{0}",
        "\u{1b}[31m",
        "x",
        "-",
        "-----",
        "is ",
        "A1b2C3d4E5",
    ];
    let mut pieces: Vec<String> = fixed.iter().map(ToString::to_string).collect();
    pieces.extend([begin, end, block(2, "\n"), body(20), body(40)]);
    pieces.extend([format!("sk-{}", body(30)), format!("ghp_{}", body(36))]);
    pieces.extend([
        format!("AKIA{}", "INVENTEDINVENTED"),
        format!("eyJ{}", body(20)),
    ]);
    proptest::sample::select(pieces)
}

fn mixture() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::collection::vec(piece(), 0..40).prop_map(|pieces| pieces.concat()),
        "\\PC{0,80}",
        any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn twice_is_once(text in mixture()) {
        let once = redact(&text).into_owned();
        let twice = redact(&once);
        prop_assert_eq!(&twice, &once);
        prop_assert!(matches!(twice, Cow::Borrowed(_)));
        prop_assert!(once.len() <= 5 * text.len());
    }

    #[test]
    fn certain_shapes_go_wherever_they_stand(before in mixture(), after in mixture()) {
        // Of another body than the pieces, which may hold one where it is part of something longer.
        let body = |length| super::body(length + 5).chars().rev().take(length).collect::<String>();
        let keys = [
            format!("sk-proj-{}", body(40)),
            format!("ghp_{}", body(36)),
            format!("AKIA{}", "ANOTHERANOTHER12"),
            format!("eyJ{}.eyJ{}.{}", body(20), body(20), body(20)),
            format!("xoxb-1234567890-{}", body(24)),
        ];
        for key in keys {
            let result = redact(&format!("{before} {key} {after}")).into_owned();
            prop_assert!(!result.contains(&key), "{}", result);
        }
    }

    #[test]
    fn nothing_to_find_is_borrowed(text in "[a-jA-J \n.,é密🙂]{0,200}") {
        prop_assert!(matches!(redact(&text), Cow::Borrowed(same) if same == text));
    }

    #[test]
    fn what_is_no_secret_stays(word in "[g-j]{1,10}", key in "[a-z0-9]{8,20}", digits in "[0-9]{6}") {
        let given = format!("{word} password=\"{key}{digits}\" {word}");
        let expected = format!("{word} password=\"[redacted: password]\" {word}");
        prop_assert_eq!(redact(&given), expected);
    }
}
