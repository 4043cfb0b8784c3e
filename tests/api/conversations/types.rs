//! Every item type of the published API description, and unknown ones, goes in and comes out as it came.

use rstest::rstest;
use serde_json::json;

use super::{all, append, create};
use crate::support::{Backend, TestApp};

/// Items with every member that the service adds where it is missing, so that they come out byte for byte.
const ITEMS: [&str; 46] = [
    r#"{ "type":"message", "id":"msg_1", "status":"completed", "role":"user", "content":[ {"type":"input_text","text":"\u00e4 \u0000"} ] }"#,
    r#"{"type":"message","id":"msg_2","status":"completed","role":"system","content":[{"type":"input_text","text":"a"}]}"#,
    r#"{"type":"message","id":"msg_3","status":"completed","role":"developer","content":[{"type":"text","text":"a"}]}"#,
    r#"{"type":"message","id":"msg_4","status":"incomplete","role":"assistant","phase":"commentary","content":[{"type":"output_text","text":"a","annotations":[{"type":"url_citation","url":"https://a.example","start_index":0,"end_index":1,"title":"t"}],"logprobs":[]},{"type":"refusal","refusal":"no"}]}"#,
    r#"{"type":"message","id":"msg_5","status":"completed","role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AA==","detail":"high"},{"type":"input_image","file_id":"file-1","detail":"auto"},{"type":"input_file","file_data":"data:application/pdf;base64,AA==","filename":"a.pdf"},{"type":"input_file","file_url":"https://a.example/a.pdf"},{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}},{"type":"computer_screenshot","file_id":null,"image_url":"https://a.example/b.png"}]}"#,
    r#"{"type":"message","id":"msg_6","status":"completed","role":"critic","content":[{"type":"summary_text","text":"a"}]}"#,
    r#"{"type":"message","id":"msg_7","status":"completed","role":"tool","content":[]}"#,
    r#"{"type":"message","id":"msg_8","status":"completed","role":"unknown","content":[{"type":"reasoning_text","text":"a"}]}"#,
    r#"{"type":"function_call","id":"fc_1","status":"completed","call_id":"call_1","name":"f","arguments":"{\"a\":1.0","namespace":"n","caller":{"type":"direct"}}"#,
    r#"{"type":"function_call_output","id":"fco_1","status":"completed","call_id":"call_1","output":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"https://a.example/c.png"},{"type":"input_file","file_id":"file-2"}]}"#,
    r#"{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"s"}],"content":[{"type":"reasoning_text","text":"r"}],"encrypted_content":"gAAAA=","status":"completed"}"#,
    r#"{"type":"reasoning","id":"rs_2","summary":[]}"#,
    r#"{"type":"compaction","id":"cmp_1","encrypted_content":"gAAAA=","created_by":"model"}"#,
    r#"{"type":"file_search_call","id":"fs_1","status":"completed","queries":["q"],"results":[{"file_id":"file-1","score":0.50,"text":"t","attributes":{"n":1e3}}]}"#,
    r#"{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"q","sources":[{"type":"url","url":"https://a.example"}]}}"#,
    r#"{"type":"web_search_call","id":"ws_2","status":"failed","action":{"type":"open_page","url":"https://a.example"}}"#,
    r#"{"type":"image_generation_call","id":"ig_1","status":"completed","result":"AAAA","revised_prompt":"p"}"#,
    r#"{"type":"computer_call","id":"cu_1","status":"completed","call_id":"call_2","action":{"type":"click","button":"left","x":1,"y":2},"pending_safety_checks":[{"id":"s","code":"c","message":"m"}]}"#,
    r#"{"type":"computer_call_output","id":"cuo_1","status":"completed","call_id":"call_2","output":{"type":"computer_screenshot","image_url":"data:image/png;base64,AA=="},"acknowledged_safety_checks":[{"id":"s"}]}"#,
    r#"{"type":"tool_search_call","id":"ts_1","status":"completed","call_id":null,"execution":"server","arguments":{"q":1}}"#,
    r#"{"type":"tool_search_output","id":"tso_1","status":"completed","call_id":null,"execution":"server","tools":[{"type":"function","name":"f","parameters":{},"strict":false}]}"#,
    r#"{"type":"additional_tools","id":"at_1","role":"developer","tools":[]}"#,
    r#"{"type":"configuration_update","id":"cfg_1","changes":{"model":"gpt-5"}}"#,
    r#"{"type":"program","id":"pr_1","call_id":"call_3","code":"1","fingerprint":"fp"}"#,
    r#"{"type":"program_output","id":"pro_1","call_id":"call_3","result":"1","status":"completed"}"#,
    r#"{"type":"code_interpreter_call","id":"ci_1","status":"completed","code":"1","container_id":"c","outputs":[{"type":"logs","logs":"1"},{"type":"image","url":"https://a.example/d.png"}]}"#,
    r#"{"type":"local_shell_call","id":"lsh_1","status":"completed","call_id":"call_4","action":{"type":"exec","command":["ls"],"env":{}}}"#,
    r#"{"type":"local_shell_call_output","id":"call_4","output":"{\"stdout\":\"a\"}","status":"completed"}"#,
    r#"{"type":"shell_call","id":"sh_1","status":"completed","call_id":"call_5","action":{"commands":["ls"],"timeout_ms":1,"max_output_length":null},"environment":null}"#,
    r#"{"type":"shell_call_output","id":"sho_1","status":"completed","call_id":"call_5","max_output_length":null,"output":[{"stdout":"a","stderr":"","outcome":{"type":"exit","exit_code":0}}]}"#,
    r#"{"type":"apply_patch_call","id":"apc_1","status":"completed","call_id":"call_6","operation":{"type":"update_file","path":"a","diff":"+"}}"#,
    r#"{"type":"apply_patch_call_output","id":"apco_1","status":"failed","call_id":"call_6"}"#,
    r#"{"type":"mcp_list_tools","id":"mcpl_1","server_label":"s","tools":[{"name":"t","input_schema":{}}],"error":null}"#,
    r#"{"type":"mcp_approval_request","id":"mcpr_1","arguments":"{}","name":"t","server_label":"s"}"#,
    r#"{"type":"mcp_approval_response","id":"mcpa_1","approval_request_id":"mcpr_1","approve":true,"reason":"r"}"#,
    r#"{"type":"mcp_call","id":"mcp_1","arguments":"{}","name":"t","server_label":"s","output":"o","error":{"type":"x"},"status":"completed"}"#,
    r#"{"type":"custom_tool_call","id":"ctc_1","call_id":"call_7","name":"f","input":"x\ny"}"#,
    r#"{"type":"custom_tool_call_output","id":"ctco_1","call_id":"call_7","output":"o"}"#,
    r#"{"type":"item_reference","id":"item_elsewhere"}"#,
    r#"{"type":"compaction_trigger","id":"ct_1"}"#,
    r#"{"type":"never_heard_of","id":"x_1","role":7,"content":{"a":[1.50,2E5,null]},"call_id":[],"big":123456789012345678901234567890}"#,
    r#"{"type":"another_call","id":"x_2","call_id":"call_8","name":"f","arguments":"{}"}"#,
    r#"{"type":"another_call_output","id":"x_3","call_id":"call_none","output":"o"}"#,
    r#"{"type":"message","id":"msg_9","status":"completed","role":"user","content":[{"type":"never_heard_of","x":{}}]}"#,
    r#"{"type":"message","id":"msg_10","status":"completed","role":"user","content":[]}"#,
    r#"{"type":"message","id":"msg_11","status":"completed","role":"assistant","content":[{"type":"output_text","text":"done","annotations":[]}]}"#,
];

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_type_comes_out_as_it_came(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    let items = ITEMS.map(str::to_owned);
    assert_eq!(append(&app, &id, &items).await.texts(), items);
    assert_eq!(all(&app, &id).await, items);
    for item in ITEMS {
        let read: serde_json::Value = serde_json::from_str(item).unwrap();
        let path = format!(
            "/v1/conversations/{id}/items/{}",
            read["id"].as_str().unwrap()
        );
        assert_eq!(app.get(&path).await.expect(200).body, item.as_bytes());
    }
    let history = app.history(&id).await;
    let texts: Vec<_> = history.iter().map(|item| item.message.get()).collect();
    assert_eq!(texts, ITEMS);
    let created = format!(r#"{{"items":[{}]}}"#, ITEMS.join(","));
    let created = app
        .post_raw("/v1/conversations", created)
        .await
        .expect(200)
        .json();
    assert_eq!(all(&app, created["id"].as_str().unwrap()).await, items);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_context_shows_what_a_chat_message_can_say(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    append(&app, &id, &ITEMS.map(str::to_owned)).await;
    let shown = super::context(&app, &id).await;
    insta::assert_json_snapshot!("every_type", shown);
    // Each call stands right before its output, and no message says nothing at all.
    let mut open: Vec<String> = Vec::new();
    for message in &shown {
        match message["tool_call_id"].as_str() {
            Some(call) => open.retain(|id| id != call),
            None => assert!(open.is_empty(), "{open:?} are open before {message}"),
        }
        let calls = message["tool_calls"].as_array().into_iter().flatten();
        open.extend(calls.map(|call| call["id"].as_str().unwrap().to_owned()));
    }
    assert!(open.is_empty());
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_added_and_the_rest_stays(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = create(&app, &json!({})).await;
    for (item, prefix, rest) in [
        (
            r#"{"role":"user","content":"a"}"#,
            "msg_",
            r#""type":"message","status":"completed","role":"user","content":[{"type":"input_text","text":"a"}]}"#,
        ),
        (
            r#"{"role":"assistant","content":"a","x":{"y":1.0}}"#,
            "msg_",
            r#""type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]}],"x":{"y":1.0}}"#,
        ),
        (
            r#"{"type":"function_call","call_id":"c","name":"f","arguments":""}"#,
            "fc_",
            r#""status":"completed","type":"function_call","call_id":"c","name":"f","arguments":""}"#,
        ),
        (
            r#"{"type":"function_call_output","call_id":"c","output":"o"}"#,
            "fco_",
            r#""status":"completed","type":"function_call_output","call_id":"c","output":"o"}"#,
        ),
        (
            r#"{"type":"reasoning","summary":[]}"#,
            "rs_",
            r#""type":"reasoning","summary":[]}"#,
        ),
        (
            r#"{"type":"compaction","encrypted_content":"x"}"#,
            "cmp_",
            r#""type":"compaction","encrypted_content":"x"}"#,
        ),
    ] {
        let list = append(&app, &id, &[item.to_owned()]).await;
        assert!(list.first_id.starts_with(prefix), "{}", list.first_id);
        let expected = format!(r#"{{"id":"{}",{rest}"#, list.first_id);
        assert_eq!(list.texts(), std::slice::from_ref(&expected));
        let path = format!("/v1/conversations/{id}/items/{}", list.first_id);
        assert_eq!(app.get(&path).await.expect(200).body, expected.as_bytes());
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_shown_of_an_item_is_bounded_too(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with(backend, &[("PRECIS_LIMITS__MESSAGE_BYTES", "2000")]).await;
    let id = create(&app, &json!({})).await;
    let item = |parts: &[&str], count: usize| {
        let content = vec![parts.join(","); count].join(",");
        format!(r#"{{"role":"user","content":[{content}]}}"#)
    };
    append(&app, &id, &[item(&["1"], 900)]).await;
    assert_eq!(
        super::context(&app, &id).await[0]["content"],
        json!([{"type": "text", "text": "[part]"}])
    );
    let long = item(&["1", r#"{"type":"a"}"#], 60);
    assert!(long.len() < 2_000);
    let path = format!("/v1/conversations/{id}/items");
    let body = format!(r#"{{"items":[{long}]}}"#);
    let error = app.post_raw(&path, body).await.expect(413).json()["error"].clone();
    assert_eq!(error["code"], "payload_too_large");
    assert_eq!(all(&app, &id).await.len(), 1);
}
