//! `GET …/search`: words in the whole history, on both databases the same.

use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::messages::{assistant, result, system, turns, user};
use crate::support::{Backend, Http, TestApp, conversation};

fn path(id: &str, parameters: &[(&str, &str)]) -> String {
    let base = format!("http://x/sessions/{id}/search");
    let url = reqwest::Url::parse_with_params(&base, parameters).expect("a URL");
    let query = url.query().unwrap_or_default();
    format!("/sessions/{id}/search?{query}")
}

/// A page of what is found, once the index reaches the end of the history.
async fn page(app: &Http, id: &str, parameters: &[(&str, &str)]) -> Value {
    for _ in 0..100 {
        let page = app.get(&path(id, parameters)).await.expect(200).json();
        if page["indexedSeq"] == page["lastSeq"] {
            return page;
        }
    }
    panic!("the index does not reach the end of the history");
}

async fn search(app: &Http, id: &str, q: &str) -> Vec<Value> {
    let page = page(app, id, &[("q", q)]).await;
    assert_eq!(page["nextCursor"], Value::Null, "one page for `{q}`");
    page["data"].as_array().expect("a list").clone()
}

async fn seqs(app: &Http, id: &str, q: &str) -> Vec<u64> {
    let hits = search(app, id, q).await;
    let seq = |hit: &Value| hit["seq"].as_u64().expect("a seq");
    hits.iter().map(seq).collect()
}

async fn message_id(app: &Http, id: &str, seq: usize) -> String {
    app.history(id).await[seq - 1].id.clone()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn words_and_phrases_are_found_wherever_they_stand(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let calls = json!({"role": "assistant", "content": null, "reasoning_content": "I should look into it.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read_file",
            "arguments": "{\"path\":\"src/main.rs\",\"note\":\"first\\nsecond\"}"}}]});
    let picture = json!({"role": "user", "content": [{"type": "text", "text": "Look at this Café"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORpixels"}}]});
    let id = app
        .create_with(&[
            system("You help with code."),
            user("Please read src/main.rs and src/lib.rs"),
            calls.to_string(),
            result("c1", "fn main() { println!(\"Hello\"); }"),
            assistant("It prints hello, then ends."),
            picture.to_string(),
        ])
        .await;
    for (q, expected) in [
        ("main", vec![4, 3, 2]),
        ("MAIN", vec![4, 3, 2]),
        ("main.rs", vec![3, 2]),
        ("rs.main", vec![]),
        ("main lib", vec![2]),
        ("lib main", vec![2]),
        ("src/lib.rs", vec![2]),
        ("src/rs", vec![]),
        ("hello", vec![5, 4]),
        ("hello ends", vec![5]),
        ("read_file", vec![3]),
        ("second", vec![3]),
        ("look", vec![6, 3]),
        ("cafe", vec![6]),
        ("CAFÉ", vec![6]),
        ("code", vec![1]),
        ("mai", vec![]),
        ("pixels", vec![]),
        ("c1", vec![]),
        ("assistant", vec![]),
        ("please lib", vec![2]),
        ("it.read", vec![]),
    ] {
        assert_eq!(seqs(&app, &id, q).await, expected, "found by `{q}`");
    }
    let hits = search(&app, &id, "code").await;
    let first = message_id(&app, &id, 1).await;
    let expected = json!([{"messageId": first, "seq": 1, "position": null, "role": "system",
        "state": "verbatim", "snippet": "You help with code."}]);
    assert_eq!(Value::from(hits), expected);
    let hits = search(&app, &id, "println").await;
    assert_eq!(hits[0]["position"], 2);
    assert_eq!(hits[0]["role"], "tool");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn scripts_without_spaces_are_found_by_any_piece(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&conversation("03_cjk_emoji_rtl")).await;
    let history = app.history(&id).await;
    let found_in = |text: &str| -> Vec<u64> {
        let holds = history
            .iter()
            .rev()
            .filter(|item| item.message.get().contains(text));
        holds.map(|item| item.seq).collect()
    };
    for q in [
        "青岚湖",
        "岚湖",
        "花生",
        "过敏",
        "湖",
        "渡船",
        "船",
        "末班渡船",
        "二十五分钟",
        "𠮷田",
        "ありがとう",
        "予算内",
        "さん",
        "직항",
        "김해",
        "환승",
        "급행버스",
        "ถั่วลิสง",
        "เก้าอี้",
        "مرحبا",
        "שלום",
    ] {
        let expected = found_in(q);
        assert!(!expected.is_empty(), "the fixture holds `{q}`");
        let found = seqs(&app, &id, q).await;
        assert!(
            expected.iter().all(|seq| found.contains(seq)),
            "`{q}` in {expected:?}, found in {found:?}"
        );
    }
    // Other spellings of what stands there.
    for (q, same) in [
        ("ハンカク", "ﾊﾝｶｸ"),
        ("fullwidth", "ＦＵＬＬＷＩＤＴＨ"),
        ("テスト", "ﾃｽﾄ"),
        ("AB123", "ＡＢ"),
        ("resume naive viet", "résumé"),
        ("zalgo", "ligature"),
        ("fi", "ligature"),
    ] {
        let (found, same) = (seqs(&app, &id, q).await, found_in(same));
        if q == "AB123" {
            assert!(found.is_empty(), "a dash is between them: {found:?}");
            assert!(!seqs(&app, &id, "ab-123").await.is_empty());
            continue;
        }
        assert!(
            same.iter().any(|seq| found.contains(seq)),
            "`{q}`: {found:?}, {same:?}"
        );
    }
    for q in ["湖岚", "岚青", "花过", "버급", "船渡"] {
        assert!(seqs(&app, &id, q).await.is_empty(), "`{q}` stands nowhere");
    }
    let hit = &search(&app, &id, "孩子对花生过敏 听松小院").await[0];
    assert_eq!(hit["seq"], 3);
    assert!(
        hit["snippet"]
            .as_str()
            .expect("a text")
            .contains("花生过敏")
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_character_is_syntax(#[values(Backend::Sqlite, Backend::Postgres)] backend: Backend) {
    let app = TestApp::spawn(backend).await;
    let id = app
        .create_with(&[
            user("near and or not select terms session"),
            assistant("it's a b\\c %like_ NUL\u{0}inside"),
        ])
        .await;
    for (q, expected) in [
        ("\"near\"", vec![1]),
        ("NEAR(near and)", vec![]),
        ("near OR missing", vec![]),
        ("near NOT or", vec![1]),
        ("near AND and", vec![1]),
        ("NOT", vec![1]),
        ("near*", vec![1]),
        ("nea*", vec![]),
        ("-near", vec![1]),
        ("+near ^and", vec![1]),
        ("terms:session", vec![1]),
        ("session:terms", vec![]),
        ("{terms session}", vec![1]),
        ("near & !missing", vec![]),
        ("near|select", vec![]),
        ("near:*", vec![1]),
        ("near <-> and", vec![1]),
        ("it's", vec![2]),
        ("'it", vec![2]),
        ("it''s", vec![2]),
        ("b\\c", vec![2]),
        ("\\", vec![]),
        ("%", vec![]),
        ("a'); DROP TABLE messages; --", vec![]),
        ("nul\u{0}inside", vec![2]),
        ("\u{0}nul", vec![2]),
        ("inside\u{0}", vec![2]),
        ("\u{e000}near", vec![1]),
        ("@near", vec![1]),
        ("\u{fffe}near\u{10ffff}", vec![1]),
    ] {
        let reply = app.get(&path(&id, &[("q", q)])).await;
        if q == "\\" || q == "%" {
            reply.problem(400, "INVALID_PARAMETER");
            continue;
        }
        assert_eq!(seqs(&app, &id, q).await, expected, "found by {q:?}");
    }
    for q in [
        "",
        " ",
        "\"",
        "''",
        "*",
        "-",
        "&|!():<>@^{}[]~+-*/\\.,;?%$#",
        "\u{0}",
        "👍🏽",
        "…",
        "\u{3000}",
        &"word ".repeat(33),
        &"湖".repeat(1_001),
    ] {
        let problem = app.get(&path(&id, &[("q", q)])).await;
        let problem = problem.problem(400, "INVALID_PARAMETER");
        assert_eq!(problem["errors"][0]["pointer"], "q", "{problem:#}");
    }
    assert!(seqs(&app, &id, &"湖".repeat(1_000)).await.is_empty());
    assert!(seqs(&app, &id, &"a ".repeat(32)).await == [2]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn parameters_and_cursors_are_checked(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create_with(&turns(3, 10)).await;
    let other = app.create_with(&turns(3, 10)).await;
    let word = "x".repeat(10);
    let q = ("q", word.as_str());
    let first = page(&app, &id, &[q, ("limit", "2")]).await;
    let cursor = first["nextCursor"].as_str().expect("there is more");
    let next = page(&app, &id, &[q, ("limit", "2"), ("cursor", cursor)]).await;
    assert_eq!(next["data"][0]["seq"], 4);
    for (id, parameters) in [
        (&id, vec![q, ("limit", "0")]),
        (&id, vec![q, ("limit", "1001")]),
        (&id, vec![q, ("limit", "x")]),
        (&id, vec![q, ("cursor", "garbage")]),
        (&id, vec![q, ("cursor", "")]),
        (&id, vec![("q", "other"), ("cursor", cursor)]),
        (&other, vec![q, ("cursor", cursor)]),
        (&id, vec![q, ("order", "asc")]),
        (&id, vec![q, q]),
        (&id, vec![("limit", "3")]),
    ] {
        let reply = app.get(&path(id, &parameters)).await;
        reply.problem(400, "INVALID_PARAMETER");
    }
    for unknown in ["sess_019acf0b2a7c7d1e9f00aabbccddeeff", "nothing"] {
        let reply = app.get(&path(unknown, &[q])).await;
        reply.problem(404, "SESSION_NOT_FOUND");
    }
    // A closed session is read-only, and searching is reading.
    app.post_empty(&format!("/sessions/{other}/close"))
        .await
        .expect(200);
    let before = app.session(&other).await;
    assert_eq!(seqs(&app, &other, &word).await.len(), 6);
    assert_eq!(
        app.session(&other).await,
        before,
        "a search changes nothing that is shown"
    );
    let empty = app.create(&json!({})).await;
    assert!(seqs(&app, &empty, "anything").await.is_empty());
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_messages_are_found_page_by_page(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let id = app.create(&json!({})).await;
    for batch in 0..3 {
        let numbered = |n: usize| user(&format!("common word, number{n} of many"));
        let messages: Vec<_> = (batch * 1_000..(batch + 1) * 1_000).map(numbered).collect();
        app.append(&id, &messages).await;
    }
    assert_eq!(seqs(&app, &id, "number2345").await, [2346]);
    assert_eq!(seqs(&app, &id, "number17 common").await, [18]);
    let mut found = Vec::new();
    let mut parameters = vec![
        ("q".to_owned(), "common".to_owned()),
        ("limit".to_owned(), "700".to_owned()),
    ];
    loop {
        let given: Vec<_> = parameters
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        let page = page(&app, &id, &given).await;
        let hits = page["data"].as_array().expect("a list");
        found.extend(hits.iter().map(|hit| hit["seq"].as_u64().expect("a seq")));
        let Some(cursor) = page["nextCursor"].as_str() else {
            break;
        };
        assert_eq!(hits.len(), 700);
        parameters.truncate(2);
        parameters.push(("cursor".to_owned(), cursor.to_owned()));
        // What comes meanwhile is behind the reader.
        app.append(&id, &[user("common")]).await;
    }
    assert_eq!(
        found,
        (1..=3_000).rev().collect::<Vec<_>>(),
        "each once, newest first"
    );
}

#[rstest]
#[case::three_hundred_kilobytes(300_000)]
#[case::three_megabytes(3_000_000)]
#[tokio::test(flavor = "multi_thread")]
async fn large_messages_are_searched_to_their_end(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] size: usize,
) {
    let app = TestApp::spawn(backend).await;
    let line = |n: usize| format!("line {n} reads the same as every other\n");
    let text: String = (0..size / 40).map(line).collect();
    let id = app.create_with(&[user(&text), assistant("short")]).await;
    let last = size / 40 - 1;
    for (q, expected) in [
        ("line 0 reads".to_owned(), vec![1]),
        (format!("line-{last}-reads"), vec![1]),
        (format!("line {} reads", last / 2), vec![1]),
        (
            format!(
                "{}-reads-the-same-as-every-other-line-{}",
                last / 3,
                last / 3 + 1
            ),
            vec![1],
        ),
        ("unheard".to_owned(), vec![]),
        ("short".to_owned(), vec![2]),
    ] {
        assert_eq!(seqs(&app, &id, &q).await, expected, "found by `{q}`");
    }
    // Taken away again, all of it.
    let message = message_id(&app, &id, 1).await;
    app.erase(&id, &message).await.expect(204);
    assert!(seqs(&app, &id, "every other").await.is_empty());
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn texts_of_one_word_are_searched_to_their_end(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let again = "again ".repeat(20_000);
    let solid = "a".repeat(300_000);
    let han = "青岚湖水".repeat(10_000);
    let id = app
        .create_with(&[
            user(&format!("{again}finally")),
            user(&solid),
            user(&format!("{han}边")),
        ])
        .await;
    for (q, expected) in [
        ("again-again-finally", vec![1]),
        ("again", vec![1]),
        (&solid[..900], vec![2]),
        ("湖水边", vec![3]),
        ("边", vec![3]),
    ] {
        assert_eq!(seqs(&app, &id, q).await, expected, "found by `{q:.60}`");
    }
    let hit = &search(&app, &id, "finally").await[0];
    let snippet = hit["snippet"].as_str().expect("a text");
    assert!(snippet.starts_with('…') && snippet.ends_with("again finally"));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_a_summary_stands_for_is_found_and_says_so(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut messages = vec![system("the rule about ferries")];
    for n in 0..6 {
        messages.push(user(&format!(
            "question {n} about the ferries of the lake, please"
        )));
        messages.push(assistant(&format!(
            "answer {n} about the ferries of the lake, gladly"
        )));
    }
    let id = app.create_with(&messages).await;
    seqs(&app, &id, "ferries").await;
    app.compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    let size = app.session(&id).await["compactSize"]
        .as_u64()
        .expect("a size");
    assert!(size > 0 && size < 12, "some are summarised: {size}");
    let hits = search(&app, &id, "ferries").await;
    assert_eq!(hits.len(), 13);
    for hit in hits {
        let summarised = hit["position"]
            .as_u64()
            .is_some_and(|position| position < size);
        let expected = if summarised { "summarised" } else { "verbatim" };
        assert_eq!(hit["state"], expected, "{hit:#}");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn the_index_follows_every_change(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(false, true)] indexed_before: bool,
) {
    let app = TestApp::spawn(backend).await;
    let words = ["alder", "birch", "cedar", "dogwood", "elder"];
    let id = app
        .create_with(&words.map(|word| user(&format!("the {word} tree"))))
        .await;
    let other = app.create_with(&[user("the alder tree of another")]).await;
    if indexed_before {
        assert_eq!(seqs(&app, &id, "tree").await, [5, 4, 3, 2, 1]);
        assert_eq!(seqs(&app, &other, "tree").await, [1]);
    }
    // Another session's text is never found.
    assert!(seqs(&app, &id, "another").await.is_empty());
    assert!(seqs(&app, &other, "birch").await.is_empty());

    let erased = message_id(&app, &id, 1).await;
    app.erase(&id, &erased).await.expect(204);
    assert!(seqs(&app, &id, "alder").await.is_empty());
    assert!(
        seqs(&app, &id, "erased").await.is_empty(),
        "not by what stands in its place"
    );
    assert_eq!(seqs(&app, &other, "alder").await, [1]);

    let edited = message_id(&app, &id, 2).await;
    app.replace(&id, &edited, &user("the beech tree"))
        .await
        .expect(200);
    assert!(seqs(&app, &id, "birch").await.is_empty());
    assert_eq!(seqs(&app, &id, "beech").await, [2]);
    assert_eq!(seqs(&app, &id, "tree").await, [5, 4, 3, 2]);

    let fork = app.fork(&id, &json!({"atSeq": 4})).await.expect(201).json();
    let fork = fork["id"].as_str().expect("an id").to_owned();
    assert_eq!(seqs(&app, &fork, "tree").await, [4, 3, 2]);

    app.rewind(&id, 3).await.expect(200);
    assert_eq!(seqs(&app, &id, "tree").await, [3, 2]);
    assert!(seqs(&app, &id, "dogwood").await.is_empty());
    app.append(&id, &[user("the fir tree")]).await;
    assert_eq!(
        seqs(&app, &id, "tree").await,
        [6, 3, 2],
        "a seq is never used twice"
    );
    assert_eq!(
        seqs(&app, &fork, "dogwood").await,
        [4],
        "a fork is a session of its own"
    );

    app.post_empty(&format!("/sessions/{id}/reset"))
        .await
        .expect(200);
    assert!(seqs(&app, &id, "tree").await.is_empty());
    app.append(&id, &[user("the gum tree")]).await;
    assert_eq!(seqs(&app, &id, "tree").await.len(), 1);

    app.delete(&format!("/sessions/{id}")).await.expect(204);
    app.get(&path(&id, &[("q", "tree")]))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    assert_eq!(seqs(&app, &fork, "tree").await, [4, 3, 2]);
    assert_eq!(seqs(&app, &other, "tree").await, [1]);
}

/// In a body as it is, in the index in lower case.
const SECRET: &str = "XQZVWKJ";

#[rstest]
#[case::erase("erase")]
#[case::replace("replace")]
#[case::rewind("rewind")]
#[case::reset("reset")]
#[case::delete("delete")]
#[tokio::test(flavor = "multi_thread")]
async fn what_was_erased_is_not_in_the_file_either(#[case] how: &str) {
    let mut app = TestApp::spawn(Backend::Sqlite).await;
    let mut messages: Vec<_> = (0..300)
        .map(|n| user(&format!("plain words {n} {}", n * 7919)))
        .collect();
    messages.push(user(&format!("the {SECRET} and 岚{SECRET}湖 {SECRET}tail")));
    let id = app.create_with(&messages).await;
    assert_eq!(seqs(&app, &id, SECRET).await, [301]);
    app.stop();
    app.ended().await;
    let file = app.database.directory().join("precis.db");
    let lower = SECRET.to_ascii_lowercase();
    let holds = |text: &str| {
        let bytes = std::fs::read(&file).expect("the database file");
        bytes
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    };
    assert!(
        holds(SECRET) && holds(&lower),
        "the file holds the text and its terms"
    );

    let mut app = TestApp::on(Arc::clone(&app.database), Vec::new()).await;
    let message = message_id(&app, &id, 301).await;
    match how {
        "erase" => app.erase(&id, &message).await.expect(204),
        "replace" => app
            .replace(&id, &message, &user("harmless"))
            .await
            .expect(200),
        "rewind" => app.rewind(&id, 300).await.expect(200),
        "reset" => app
            .post_empty(&format!("/sessions/{id}/reset"))
            .await
            .expect(200),
        _ => app.delete(&format!("/sessions/{id}")).await.expect(204),
    };
    app.stop();
    app.ended().await;
    assert!(!holds(SECRET), "the text is gone");
    assert!(!holds(&lower), "its terms are gone");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn erasing_while_it_is_indexed_erases(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let second = app.spawn_second().await;
    for round in 0..8 {
        let messages: Vec<_> = (0..400)
            .map(|n| user(&format!("secret of round {round}, message {n}")))
            .collect();
        let id = app.create_with(&messages).await;
        let erased = message_id(&app, &id, 300).await;
        let target = path(&id, &[("q", "secret"), ("limit", "1000")]);
        let replies = futures_util::future::join4(
            app.get(&target),
            second.get(&target),
            app.erase(&id, &erased),
            second.rewind(&id, 350),
        );
        let (first, other, erasure, rewind) = replies.await;
        first.expect(200);
        other.expect(200);
        erasure.expect(204);
        rewind.expect(200);
        let expected: Vec<u64> = (1..=350).rev().filter(|seq| *seq != 300).collect();
        for app in [&app, &second] {
            let page = page(app, &id, &[("q", "secret"), ("limit", "1000")]).await;
            let hits = page["data"].as_array().expect("a list").iter();
            let found: Vec<_> = hits
                .map(|hit| hit["seq"].as_u64().expect("a seq"))
                .collect();
            assert_eq!(found, expected, "round {round}");
        }
    }
}
