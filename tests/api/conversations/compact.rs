//! `/v1/responses/compact`: items in, items to go on with out, nothing stored.

use rstest::rstest;
use serde_json::{Value, json};

use super::{all, append, call, create, output, says, user};
use crate::support::{Backend, TestApp};

fn history() -> Vec<String> {
    let mut items = vec![json!({"role": "developer", "content": "Be brief."}).to_string()];
    for turn in 0..8 {
        let id = format!("c{turn}");
        let text = format!("In turn {turn} src/lib.rs was changed so that parse() takes a slice. ")
            .repeat(4);
        items.extend([
            user(&format!("Request {turn}: change src/lib.rs")),
            call(&id),
            output(&id, &text),
            says(&format!("Changed src/lib.rs in turn {turn}.")),
        ]);
    }
    items
}

async fn compact(app: &TestApp, input: &str, more: &str) -> Value {
    let body = format!(r#"{{"model":"gpt-5","input":{input}{more}}}"#);
    app.post_raw("/v1/responses/compact", body)
        .await
        .expect(200)
        .json()
}

fn text(item: &Value) -> &str {
    item["content"][0]["text"].as_str().expect("a text")
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn user_messages_stay_and_the_rest_is_told(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let input = format!("[{}]", history().join(","));
    let answer = compact(&app, &input, "").await;
    assert_eq!(answer["object"], "response.compaction");
    assert!(answer["id"].as_str().unwrap().starts_with("resp_"));
    let out = answer["output"].as_array().unwrap();
    assert_eq!(
        out.len(),
        10,
        "instructions, eight requests, a summary: {answer}"
    );
    assert_eq!(out[0]["role"], "developer");
    assert_eq!(text(&out[3]), "Request 2: change src/lib.rs");
    let summary = &out[9];
    assert_eq!(
        (summary["type"].as_str(), summary["role"].as_str()),
        (Some("message"), Some("user"))
    );
    assert!(text(summary).starts_with("[Summary of previous conversation]\n\n"));
    assert!(text(summary).contains("src/lib.rs"));
    let usage = &answer["usage"];
    let number = |name: &str| usage[name].as_i64().unwrap();
    assert!(number("input_tokens") > number("output_tokens") && number("output_tokens") > 0);
    assert_eq!(
        number("total_tokens"),
        number("input_tokens") + number("output_tokens")
    );
    // What came out goes in again: the summary is taken up, not kept beside a new one.
    let mut again = out.clone();
    again.push(json!({"role": "user", "content": "And now README.md"}));
    again.push(json!({"role": "assistant", "content": "Wrote README.md."}));
    let answer = compact(&app, &Value::from(again).to_string(), "").await;
    let out = answer["output"].as_array().unwrap();
    assert_eq!(out.len(), 11, "{answer}");
    let summaries = out
        .iter()
        .filter(|item| text(item).starts_with("[Summary of"));
    assert_eq!(summaries.count(), 1);
    let sessions = app.get("/sessions").await.expect(200).json();
    assert_eq!(sessions["data"], json!([]), "nothing is stored");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_item_is_made_and_read_again(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let input = format!("[{}]", history().join(","));
    let answer = compact(&app, &input, r#","compaction_format":"item""#).await;
    let item = answer["output"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(item["type"], "compaction");
    assert!(
        !item["encrypted_content"]
            .as_str()
            .unwrap()
            .contains("src/lib.rs")
    );
    let id = create(&app, &json!({"items": [item]})).await;
    assert_eq!(all(&app, &id).await, [item.to_string()]);
    let shown = super::context(&app, &id).await;
    assert!(
        shown[0]["content"].as_str().unwrap().contains("src/lib.rs"),
        "{shown:?}"
    );
    let again = compact(&app, &json!([item]).to_string(), "").await;
    assert_eq!(
        text(&again["output"][0]),
        shown[0]["content"].as_str().unwrap()
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_stored_conversation_is_compacted_and_stays(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    append(&app, &id, &history()).await;
    let before = (all(&app, &id).await, app.session(&id).await);
    for named in [json!(id), json!({"id": id})] {
        let body = json!({"model": "gpt-5", "conversation": named});
        let answer = app
            .post("/v1/responses/compact", &body)
            .await
            .expect(200)
            .json();
        assert_eq!(answer["output"].as_array().unwrap().len(), 10, "{answer}");
    }
    assert_eq!((all(&app, &id).await, app.session(&id).await), before);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn says_what_it_cannot_compact(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    for (body, status, param) in [
        (json!({"model": "gpt-5"}), 400, json!("input")),
        (json!({"model": "gpt-5", "input": []}), 400, json!("input")),
        (json!({"model": "gpt-5", "input": 7}), 400, json!("input")),
        (
            json!({"model": "gpt-5", "input": [{"role": "user", "content": 7}]}),
            400,
            json!("input[0].content"),
        ),
        (
            json!({"model": "gpt-5", "previous_response_id": "resp_1"}),
            400,
            json!("previous_response_id"),
        ),
        (
            json!({"model": "gpt-5", "input": "a", "compaction_format": "x"}),
            400,
            json!("compaction_format"),
        ),
        (
            json!({"model": "gpt-5", "conversation": "conv_none"}),
            404,
            Value::Null,
        ),
    ] {
        let reply = app
            .post("/v1/responses/compact", &body)
            .await
            .expect(status);
        assert_eq!(reply.json()["error"]["param"], param, "{body}");
    }
    let alone = compact(&app, "\"Fix src/main.rs\"", "").await;
    assert_eq!(text(&alone["output"][0]), "Fix src/main.rs");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn takes_more_items_than_an_append_and_ids_more_than_once(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let item = json!({"id": "msg_1", "role": "user", "content": "a"});
    let mut input = vec![item; 1_100];
    input.push(json!({"role": "assistant", "content": "Changed src/lib.rs. ".repeat(200)}));
    let answer = compact(&app, &json!(input).to_string(), "").await;
    assert_eq!(answer["output"].as_array().unwrap().len(), 1_101);
}
