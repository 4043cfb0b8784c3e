//! `GET …/context`: shape, tags, and that it changes nothing.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{a, system, turns, u, user};
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_context_has_the_documented_shape(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut raws = vec![system("s")];
    raws.extend(turns(5, 100));
    let id = app.create_with(&raws).await;
    let path = format!("/sessions/{id}/context");

    let reply = app.get(&path).await.expect(200);
    let media_type = reply.header("content-type").unwrap_or_default();
    assert!(
        media_type.starts_with("application/json"),
        "got `{media_type}`"
    );
    let context = reply.context();
    assert_eq!(context.format, "openai");
    assert_eq!(context.last_seq, 11);
    assert!(context.compaction.is_none(), "there is no summary yet");
    let estimate = context.tokens["estimate"].as_u64().unwrap_or(0);
    assert!(
        estimate > 0,
        "1,000 characters are some tokens: {}",
        context.tokens
    );
    assert!(context.tokens["by"].is_string(), "and it says who counted");
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(
        text.trim_end().ends_with("]}"),
        "expected `messages` to be the last member"
    );

    app.compact(&id, &json!({})).await.expect(200);
    let context = app.context(&id).await;
    let compaction = context.compaction.expect("there is a summary");
    assert_eq!((compaction.version, compaction.size), (1, 6));
    assert_eq!(
        context.summary_at,
        Some(1),
        "the summary stands after the instruction"
    );

    let same = app.get(&format!("{path}?format=openai")).await.expect(200);
    assert_eq!(
        same.body,
        app.get(&path).await.body,
        "openai is the default"
    );
    app.get(&format!("{path}?format=morse"))
        .await
        .problem(400, "INVALID_PARAMETER");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_tag_changes_with_the_context_and_only_then(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(5, 100)).await;
    let path = format!("/sessions/{id}/context");
    let tag = async || {
        let reply = app.get(&path).await.expect(200);
        reply
            .header("etag")
            .expect("a context has an ETag")
            .to_owned()
    };

    let first = tag().await;
    assert!(
        first.starts_with('"') && first.ends_with('"'),
        "the tag is strong: {first}"
    );
    assert_eq!(tag().await, first, "reading changes nothing");
    for condition in [
        first.clone(),
        format!("\"other\", {first}"),
        format!("W/{first}"),
        "*".to_owned(),
    ] {
        let reply = app.get_with(&path, &[("if-none-match", &condition)]).await;
        let reply = reply.expect(304);
        assert!(reply.body.is_empty(), "a 304 has no body");
        assert_eq!(
            reply.header("etag"),
            Some(first.as_str()),
            "a 304 repeats the tag"
        );
    }
    let other = app.get_with(&path, &[("if-none-match", "\"other\"")]).await;
    other.expect(200);

    let mut seen = vec![first];
    app.append(&id, &[u(10)]).await;
    seen.push(tag().await);
    app.append(&id, &[a(10)]).await;
    seen.push(tag().await);
    app.compact(&id, &json!({})).await.expect(200);
    seen.push(tag().await);
    for (index, one) in seen.iter().enumerate() {
        assert!(
            !seen[..index].contains(one),
            "each write that changes the context makes a new tag: {seen:?}"
        );
    }
    let stale = app.get_with(&path, &[("if-none-match", &seen[0])]).await;
    stale.expect(200);

    let newest = tag().await;
    let mut body = json!({"dryRun": true});
    app.compact(&id, &body).await.expect(200);
    body["dryRun"] = json!(false);
    assert_eq!(tag().await, newest, "a dry run changes nothing");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn messages_tell_whether_they_are_summarised(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut raws = vec![system("s")];
    raws.extend(turns(5, 100));
    let id = app.create_with(&raws).await;
    app.compact(&id, &json!({})).await.expect(200);
    let states: Vec<String> = app
        .history(&id)
        .await
        .into_iter()
        .map(|item| item.state)
        .collect();
    let mut expected = vec!["verbatim"];
    expected.extend(["summarised"; 6]);
    expected.extend(["verbatim"; 4]);
    assert_eq!(
        states, expected,
        "positions 0–5 are summarised, instructions never"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_history_without_a_user_message_has_no_acknowledgement(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&[a(100), a(100), a(100)]).await;
    let request = json!({"compactCount": 30, "boundary": "step", "keepRecentTurns": 0});
    app.compact(&id, &request).await.expect(200);
    let shown: Vec<Value> = app
        .context(&id)
        .await
        .messages
        .iter()
        .map(|raw| serde_json::from_str(raw.get()).expect("JSON"))
        .collect();
    let roles: Vec<&str> = shown.iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!(
        roles,
        ["user", "assistant", "assistant"],
        "summary, then the two that are left"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_request_being_worked_on_is_carried(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let raws = [
        user("first half"),
        user("second half"),
        a(100),
        a(100),
        a(100),
    ];
    let id = app.create_with(&raws).await;
    let request = json!({"compactCount": 50});
    let answer = app.compact(&id, &request).await.expect(200).json();
    assert_eq!(
        answer["newSize"], 4,
        "a step cut in one long turn: {answer:#}"
    );
    let shown = app.context(&id).await.messages;
    let tail: Vec<&str> = shown.iter().skip(2).map(|raw| raw.get()).collect();
    assert_eq!(
        tail,
        [raws[0].as_str(), &raws[1], &raws[4]],
        "both user messages of the turn are shown again, verbatim"
    );
}
