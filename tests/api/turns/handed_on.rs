//! What goes to the model and what comes from it, byte for byte; and what of it is refused.

use rstest::rstest;
use serde_json::{Value, json};

use super::answers::answer_of;
use super::{Stage, Turn, body, is_usable, path, records, sent, stored, stream, turn};
use crate::support::Backend;
use crate::support::messages::user;
use crate::support::stream_model::{Piece, Script};

/// Order of keys, members nobody knows, large numbers, spelled-out characters, reasoning.
const MESSAGE: &str = r#"{"content":"caf\u00e9 \u0041", "z":1.0e2,"role":"assistant","reasoning_content":"hm","big":123456789012345678901234567890,"thinking_blocks":[{"signature":"c2ln","type":"thinking","thinking":".."},{"type":"redacted_thinking","data":".."}],"a":{"y":1,"b":2}}"#;
const USAGE: &str = r#"{"total_tokens":3,"prompt_tokens":1,"completion_tokens":2,"cost":1.50,"x":{"cached":1e0,"a":null}}"#;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_stored_as_the_provider_wrote_it(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let stage = Stage::new(backend).await;
    stage.script([answer_of(MESSAGE, USAGE)]);
    let id = stage.create(&json!({})).await;
    let reply = turn(&stage, &id, &[user("hi")]).await;
    let made = Turn::of(&reply);
    assert_eq!(made.texts()[1], MESSAGE);
    assert_eq!(made.usage.as_ref().map(|usage| usage.get()), Some(USAGE));
    assert_eq!(stored(&stage, &id).await[1], MESSAGE);
    let list = stage
        .get(&format!("/sessions/{id}/messages"))
        .await
        .expect(200);
    let text = String::from_utf8_lossy(&list.body).into_owned();
    assert!(text.contains(&format!("\"usage\":{USAGE}")), "{text}");
    turn(&stage, &id, &[user("again")]).await.expect(200);
    assert_eq!(sent(&stage.asked()[1])[1], MESSAGE, "and goes back so");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn tools_and_parameters_are_handed_on_byte_for_byte(#[values(false, true)] streamed: bool) {
    let stage = Stage::new(Backend::Sqlite).await;
    let id = stage.create(&json!({})).await;
    let tools = r#"[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"z":{"maximum":1.0e+300},"a":{"const":12345678901234567890123}}} ,"strict":true}}]"#;
    let parameters = [
        ("temperature", "0.20"),
        ("seed", "123456789012345678901234567890"),
        ("logit_bias", r#"{"50256": -100,"1":1.0}"#),
        (
            "tool_choice",
            r#"{"type":"function","function":{"name":"f"}}"#,
        ),
        ("max_tokens", "17"),
        ("x_\\u0061", "null"),
    ];
    let members: Vec<_> = parameters
        .iter()
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    let rest = format!(
        ",\"model\":\"other \\\"model\\\"\",\"tools\":{tools},\"parameters\":{{{}}},\"stream\":{streamed}",
        members.join(",")
    );
    let text = body(&[user("hi")], &rest);
    if streamed {
        let frames = stage.post_for_events(&path(&id), text).await.rest().await;
        assert_eq!(
            frames.last().map(|frame| frame.event.as_str()),
            Some("turn.completed")
        );
    } else {
        stage.post_raw(&path(&id), text).await.expect(200);
    }
    let call = stage.model.last();
    let raw = String::from_utf8(call.raw.clone()).expect("a text");
    assert_eq!(call.body["model"], "other \"model\"");
    assert!(raw.contains(&format!("\"tools\":{tools}")), "{raw}");
    let joined = members.join(",").replace("\\u0061", "a");
    assert!(raw.contains(&joined), "in their order, side by side: {raw}");
    assert_eq!(raw.matches("\"max_tokens\"").count(), 1);
    assert_eq!(raw.contains("\"stream\":true"), streamed);
    assert_eq!(raw.contains("include_usage"), streamed);
    assert_eq!(
        call.authorization.as_deref(),
        Some("Bearer sk-test-3f9c1d-secret")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_the_service_s_own_is_refused_among_the_parameters() {
    let stage = Stage::new(Backend::Sqlite).await;
    let id = stage.create(&json!({})).await;
    for name in [
        "model",
        "messages",
        "tools",
        "stream",
        "stream_options",
        "mo\\u0064el",
    ] {
        let rest = format!(",\"parameters\":{{\"{name}\":[]}}");
        let reply = stage.post_raw(&path(&id), body(&[user("hi")], &rest)).await;
        reply.problem(422, "VALIDATION_FAILED");
    }
    assert!(stored(&stage, &id).await.is_empty());
    assert!(stage.model.calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_none_are_refused_and_nothing_is_stored() {
    let stage = Stage::new(Backend::Sqlite).await;
    let id = stage.create(&json!({})).await;
    let question = user("hi");
    let from_ref = std::slice::from_ref;
    for (text, status) in [
        (String::new(), 400),
        ("{".to_owned(), 400),
        ("[]".to_owned(), 422),
        ("{}".to_owned(), 422),
        ("null".to_owned(), 422),
        (r#"{"messages":{}}"#.to_owned(), 422),
        (r#"{"messages":[1]}"#.to_owned(), 422),
        (
            r#"{"messages":[{"role":"robot","content":"x"}]}"#.to_owned(),
            422,
        ),
        (
            r#"{"messages":[{"role":"tool","content":"x"}]}"#.to_owned(),
            422,
        ),
        (
            r#"{"messages":[{"role":"user","content":"\ud800"}]}"#.to_owned(),
            400,
        ),
        (body(from_ref(&question), r#","stream":"yes""#), 422),
        (body(from_ref(&question), r#","model":"""#), 422),
        (body(from_ref(&question), r#","tools":{}"#), 422),
        (body(from_ref(&question), r#","parameters":null"#), 422),
        (body(from_ref(&question), r#","parameters":[]"#), 422),
        (body(from_ref(&question), r#","contextWindow":0"#), 422),
        (body(from_ref(&question), r#","contextWindow":1e300"#), 422),
        (body(from_ref(&question), r#","maxOutputTokens":-1"#), 422),
        (body(from_ref(&question), r#","surprise":1"#), 422),
    ] {
        let reply = stage.post_raw(&path(&id), text.clone()).await;
        assert_eq!(reply.status, status, "{text} gives {reply}");
    }
    let (plain, text) = (
        [("content-type", "text/plain")],
        body(from_ref(&question), ""),
    );
    let reply = stage
        .send(reqwest::Method::POST, &path(&id), &plain, Some(text.into()))
        .await;
    reply.problem(415, "UNSUPPORTED_MEDIA_TYPE");
    let ids = ["sess_x", "sess_019acf0b2a7c7d1e9f00aabbccddeeff"];
    for other in ids {
        turn(&stage, other, &[user("hi")])
            .await
            .problem(404, "SESSION_NOT_FOUND");
    }
    assert!(stored(&stage, &id).await.is_empty() && records(&stage, &id).await.is_empty());
    assert!(stage.model.calls().is_empty());
}

/// Answers that cannot be stored, or are none.
const NONE: [(&str, &str); 11] = [
    ("no_json", "<html>"),
    ("nothing", ""),
    ("no_choices", r#"{"choices":[]}"#),
    ("no_message", r#"{"choices":[{"index":0}]}"#),
    ("not_an_object", r#"{"choices":[{"message":"hi"}]}"#),
    (
        "another_role",
        r#"{"choices":[{"message":{"role":"user","content":"hi"}}]}"#,
    ),
    (
        "half_a_surrogate",
        r#"{"choices":[{"message":{"role":"assistant","content":"\ud800"}}]}"#,
    ),
    (
        "a_call_without_an_id",
        r#"{"choices":[{"message":{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":""}}]}}]}"#,
    ),
    (
        "calls_that_cannot_be_told_apart",
        r#"{"choices":[{"message":{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}},{"id":"a","function":{"name":"f"}}]}}]}"#,
    ),
    (
        "calls_that_are_none",
        r#"{"choices":[{"message":{"role":"assistant","tool_calls":7}}]}"#,
    ),
    (
        "half_a_text",
        r#"{"choices":[{"message":{"role":"assistant","content":"hi""#,
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_none_fails_the_turn() {
    let stage = Stage::new(Backend::Sqlite).await;
    for (what, text) in NONE {
        stage.script([Script::Status(200, Vec::new(), text.to_owned())]);
        let id = stage.create(&json!({})).await;
        let reply = turn(&stage, &id, &[user("my-secret-question")]).await;
        assert_eq!(reply.status, 502, "{what}: {reply}");
        let problem = reply.problem(502, "MODEL_FAILED");
        assert!(
            !problem.to_string().contains("my-secret-question"),
            "{what}"
        );
        assert_eq!(stored(&stage, &id).await.len(), 1, "{what}");
        let code = &records(&stage, &id).await[0]["error"]["code"];
        assert_eq!(code, "MODEL_FAILED", "{what}");
        is_usable(&stage, &stage, &id).await;
    }
}

/// Odd messages with odd usages that are answers all the same.
const ODD: [(&str, &str, &str); 8] = [
    ("no_content", r#"{"role":"assistant","content":null}"#, "{}"),
    ("no_role", r#"{"content":"hi"}"#, "null"),
    (
        "no_calls",
        r#"{"role":"assistant","content":"hi","tool_calls":null}"#,
        "{\"prompt_tokens\":-5}",
    ),
    (
        "an_empty_list_of_calls",
        r#"{"role":"assistant","content":"","tool_calls":[]}"#,
        "[]",
    ),
    (
        "a_refusal",
        r#"{"role":"assistant","content":null,"refusal":"no"}"#,
        "\"many\"",
    ),
    (
        "a_member_of_the_service",
        r#"{"role":"assistant","content":"hi","precis":{"id":"m1","usage":{"prompt_tokens":9},"incomplete":true}}"#,
        "{\"prompt_tokens\":1e400,\"completion_tokens\":0.5}",
    ),
    (
        "nul",
        r#"{"role":"assistant","content":"a\u0000b"}"#,
        "{\"x\":\"\\u0000\",\"prompt_tokens\":99999999999999999999}",
    ),
    (
        "parts",
        r#"{"role":"assistant","content":[{"type":"text","text":"hi"}]}"#,
        "{\"prompt_tokens\":\"12\"}",
    ),
];

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn odd_answers_are_answers(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let stage = Stage::new(backend).await;
    for (what, message, usage) in ODD {
        stage.script([answer_of(message, usage)]);
        let id = stage.create(&json!({})).await;
        let reply = turn(&stage, &id, &[user("hi")]).await;
        assert_eq!(reply.status, 200, "{what}: {reply}");
        let made = Turn::of(&reply);
        assert_eq!(made.status, "completed", "{what}");
        assert!(!made.incomplete, "{what}: whatever the provider claims");
        let answer: Value = serde_json::from_str(made.texts()[1]).expect("a message");
        assert_eq!(answer["role"], "assistant", "{what}");
        assert!(answer.get("precis").is_none(), "{what}");
        assert_ne!(made.messages[1].id, "m1", "{what}");
        // Whatever is computed from its usage must not stumble.
        stage.context(&id).await;
        let budget = json!({"keepTokens": 10, "dryRun": true});
        stage.compact(&id, &budget).await.expect(200);
        is_usable(&stage, &stage, &id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_uses_call_ids_again_is_answered_to_the_newest() {
    use crate::support::messages::{calls, result};
    let stage = Stage::new(Backend::Postgres).await;
    let again = super::answers::calling(&["call_0"]);
    stage.script([
        again.clone(),
        again.clone(),
        again,
        Script::Text("done".to_owned()),
    ]);
    let id = stage.create(&json!({})).await;
    turn(&stage, &id, &[user("go")]).await.expect(200);
    for n in 0..3 {
        let made = Turn::of(&turn(&stage, &id, &[result("call_0", &n.to_string())]).await);
        assert_eq!(made.open_calls.len(), usize::from(n < 2));
    }
    let history = stored(&stage, &id).await;
    assert_eq!(history[1], calls(&["call_0"], 0));
    assert_eq!(
        history[5..7],
        [calls(&["call_0"], 0), result("call_0", "2")]
    );
    assert_eq!(sent(&stage.model.last()), history[..7]);
}

/// Asked for in one piece or as a stream, an answer comes to the same.
#[tokio::test(flavor = "multi_thread")]
async fn streamed_or_not_an_answer_is_the_same() {
    let stage = Stage::new(Backend::Sqlite).await;
    let mut pieces = vec![Piece::text("a "), Piece::text("b")];
    pieces.extend(Piece::call(0, "c1", "read", "{}"));
    pieces.extend([Piece::finish("tool_calls"), Piece::usage(), Piece::done()]);
    let whole = json!({
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": "a b",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
        }}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    });
    stage.script([Script::Either(pieces, whole)]);
    let mut made = Vec::new();
    for streamed in [false, true] {
        let id = stage.create(&json!({})).await;
        if streamed {
            stream(&stage, &id, &[user("hi")]).await.rest().await;
        } else {
            turn(&stage, &id, &[user("hi")]).await.expect(200);
        }
        let accepted = stage.model.last();
        let accepted = accepted.header("accept").unwrap_or_default();
        assert_eq!(accepted.contains("text/event-stream"), streamed);
        let record = records(&stage, &id).await.remove(0);
        let answer: Value = serde_json::from_str(&stored(&stage, &id).await[1]).expect("a message");
        let part = |name: &str| record[name].clone();
        made.push((
            answer,
            part("usage"),
            part("finishReason"),
            part("openCalls"),
            part("status"),
        ));
    }
    assert_eq!(made[0], made[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_may_come_in_the_other_form() {
    let stage = Stage::new(Backend::Sqlite).await;
    let id = stage.create(&json!({})).await;
    stage.script([answer_of(MESSAGE, USAGE)]);
    let frames = stream(&stage, &id, &[user("hi")]).await.rest().await;
    let made = Turn::read(&frames.last().expect("an end").data);
    assert_eq!(made.status, "completed");
    assert_eq!(
        stored(&stage, &id).await[1],
        MESSAGE,
        "one piece where a stream was asked for"
    );
    stage.script([Script::stream(
        [Piece::text("in "), Piece::text("pieces")],
        "stop",
    )]);
    let made = Turn::of(&turn(&stage, &id, &[user("again")]).await);
    let answer: Value = serde_json::from_str(made.texts()[1]).expect("a message");
    assert_eq!(answer["content"], "in pieces");
}
