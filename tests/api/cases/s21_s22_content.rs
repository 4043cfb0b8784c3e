//! K9: pictures, and tool arguments that are not JSON.

use rstest::rstest;
use serde_json::json;

use crate::support::chain;
use crate::support::messages::{a, padded, result, turns, u, user};
use crate::support::{Backend, History, ScriptedModel, TestApp};

/// A user message with a text of 20 and a picture of this many base64 characters.
fn picture(base64: usize) -> String {
    let data = "iVBORw0KGgoAAAANSUhEUgAA".repeat(base64 / 24 + 1);
    let text = padded("look at this ", 20);
    format!(
        r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{}"}}}}]}}"#,
        &data[..base64]
    )
}

#[rstest]
#[case::of_one_and_a_half_megabytes(1_400_000)]
#[case::of_fourteen_kilobytes(14_000)]
#[tokio::test(flavor = "multi_thread")]
async fn s21_a_picture_has_a_fixed_allowance(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] base64: usize,
) {
    let app = TestApp::spawn(backend).await;
    let mut raws = turns(19, 200);
    raws.push(picture(base64));
    let id = app.create_with(&raws).await;
    let newest = app.history(&id).await.pop().expect("a message");
    assert_eq!(
        newest.length, 4_020,
        "20 for the text and 4,000 for the picture"
    );
    assert_eq!(
        newest.message.get(),
        raws[38],
        "the stored message is unchanged"
    );

    let answer = app
        .compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    assert_eq!(
        answer.json()["newSize"],
        30,
        "38 would mean that base64 was counted: {answer}"
    );
    chain::check(&app, &id, &History::new(&raws), "s21").await;
}

/// The longest run of characters that base64 is made of.
fn longest_run(text: &str) -> usize {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "+/=".contains(c)))
        .map(str::len)
        .max()
        .unwrap_or(0)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s21_a_transcript_shows_a_marker_for_a_picture(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let raws = [picture(14_000), a(100), u(100)];
    let id = app.create_with(&raws).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    assert_eq!(answer.json()["newSize"], 2, "{answer}");
    let call = model.last();
    let material = call.user();
    assert!(
        longest_run(material) <= 200,
        "no base64 in the transcript: {material:.2000}"
    );
    assert!(
        material.contains("look at this"),
        "the text beside it is there: {material}"
    );
    assert!(
        material.contains("image"),
        "the marker has the type: {material}"
    );
    assert!(
        material
            .lines()
            .any(|line| line.contains("image") && line.chars().any(|c| c.is_ascii_digit())),
        "the marker has the size: {material}"
    );

    let plain = TestApp::spawn(backend).await;
    let id = plain.create_with(&raws).await;
    let answer = plain.compact(&id, &json!({})).await.expect(200).json();
    let summary = answer["session"]["compactSummary"]
        .as_str()
        .unwrap_or_default();
    assert!(
        !summary.is_empty() && longest_run(summary) <= 200,
        "nor in a summary: {summary}"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s22_arguments_need_not_be_json(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(false, true)] with_model: bool,
) {
    let model = ScriptedModel::start().await;
    let app = if with_model {
        TestApp::with_model(backend, &model, &[]).await
    } else {
        TestApp::spawn(backend).await
    };
    let long = "x".repeat(300_000);
    let spellings = [
        r#""{\"path\":\"src/ma""#,
        r#""""#,
        r#""[]""#,
        r#""null""#,
        r#""{\u0022a\u0022: 1e999}""#,
        &format!("\"{long}\""),
    ];
    let mut raws = Vec::new();
    for (n, arguments) in spellings.iter().enumerate() {
        let id = format!("c{n}");
        raws.push(user(&format!("request {n}")));
        raws.push(format!(
            r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"read","arguments":{arguments}}}}}]}}"#
        ));
        raws.push(result(&id, "error: arguments are not valid"));
        raws.push(a(10));
    }
    let id = app.create_with(&raws).await;
    let stored: Vec<String> = app
        .history(&id)
        .await
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect();
    assert_eq!(stored, raws, "the exact strings come back");

    let history = History::new(&raws);
    let request = json!({"compactCount": 99, "keepRecentTurns": 0});
    let answer = app.compact(&id, &request).await.expect(200).json();
    assert_eq!(
        answer["newSize"],
        raws.len(),
        "all of it can be summarised: {:#}",
        answer["reason"]
    );
    chain::check(&app, &id, &history, "s22").await;
    if with_model {
        let call = model.last();
        let material = call.user();
        assert!(
            material.contains("src/ma"),
            "cut-off arguments are shown as they are"
        );
    }
}
