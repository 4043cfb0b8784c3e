//! Files that are not imported: every line is checked, and nothing of a session is left that is not whole.

use rstest::rstest;
use serde_json::{Value, json};

use super::stories::{Dice, everything, tell};
use super::transfer::{export, import};
use super::{complaint, precis_beside, said};
use crate::support::messages::{assistant, calls, result, turns, user};
use crate::support::{Backend, TestApp};

const SECRET: &str = "hunter2-is-in-here";

/// A session with a bit of everything, exported: the lines, and its id.
async fn lines(app: &TestApp) -> (Vec<String>, String) {
    let messages = [
        user(SECRET),
        calls(&["c1"], 20),
        result("c1", "found"),
        assistant("done"),
    ];
    let id = app.create_with(&messages).await;
    app.append(&id, &turns(3, 120)).await;
    app.compact(&id, &json!({})).await.expect(200);
    app.post(&format!("/sessions/{id}/context"), &json!({}))
        .await
        .expect(200);
    let file = export(app, "good.jsonl", &["--session", &id]).await;
    let text = std::fs::read_to_string(file).expect("the export");
    (text.lines().map(str::to_owned).collect(), id)
}

/// Writes lines and imports them with these arguments; what is complained about.
async fn refused(app: &TestApp, lines: &[String], arguments: &[&str]) -> String {
    let file = app.database.directory().join("bad.jsonl");
    std::fs::write(&file, lines.join("\n") + "\n").expect("a file");
    let path = file.to_str().expect("UTF-8");
    let all = [&["import", path], arguments].concat();
    complaint(&precis_beside(&app.database, &all).await)
}

/// With another value for a member of a line, and the digest made right again, so that only the member is wrong.
fn with(lines: &[String], line: usize, member: &str, value: Value) -> Vec<String> {
    use std::fmt::Write as _;

    use sha2::{Digest, Sha256};
    let mut lines = lines.to_vec();
    let mut parsed: Value = serde_json::from_str(&lines[line]).expect("JSON");
    assert!(parsed.get(member).is_some(), "{member} of line {line}");
    parsed[member] = value;
    lines[line] = parsed.to_string();
    let end = lines.len() - 2;
    let mut digest = Sha256::new();
    for line in &lines[2..end] {
        digest.update(line);
        digest.update("\n");
    }
    let hex = digest
        .finalize()
        .iter()
        .fold(String::new(), |mut hex, byte| {
            // Writing to a string does not fail.
            write!(hex, "{byte:02x}").ok();
            hex
        });
    lines[end] = json!({"type": "session_end", "rows": end - 3, "sha256": hex}).to_string();
    lines
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_named_by_its_line(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let there = TestApp::spawn(backend).await;
    let (good, id) = lines(&app).await;
    let first = |kind: &str| {
        let kind = format!("{{\"type\":\"{kind}\",");
        let found = good.iter().position(|line| line.starts_with(&kind));
        found.unwrap_or_else(|| panic!("a line of type {kind}"))
    };
    let (session, compaction, message) = (first("session"), first("compaction"), first("message"));
    let other = "{\"role\":\"user\",\"content\":\"hunter3-is-in-here\"}";
    let zeros = json!("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    for (line, member, value, problem) in [
        (session, "id", json!("sess_1"), "`id` is no session's id"),
        (session, "metadata", json!("{"), "`metadata` is no JSON"),
        (
            session,
            "revision",
            json!(i64::MAX),
            "`revision` is too large a number",
        ),
        (
            session,
            "tail",
            json!("{\"last\":\"assistant\",\"calls\":[{\"id\":\"zz\",\"name\":\"f\"}]}"),
            "`tail` is not what the messages make it",
        ),
        (
            session,
            "message_count",
            json!(99),
            "`message_count` is not 10",
        ),
        (
            session,
            "history_tokens",
            json!(1),
            "`history_tokens` is not",
        ),
        (
            session,
            "compact_summary",
            json!("other"),
            "summary is not that",
        ),
        (
            session,
            "compaction_version",
            json!(9),
            "version 9 of the summary is missing",
        ),
        (
            session,
            "created_at",
            json!("today"),
            "`created_at` is not what it must be",
        ),
        (
            session,
            "mode",
            Value::Null,
            "`mode` is not what it must be",
        ),
        (
            compaction,
            "digest",
            zeros.clone(),
            "not what it was made of",
        ),
        (compaction, "summary", Value::Null, "summary is not that"),
        (
            message,
            "body",
            json!(other),
            "`body_digest` is not that of the body",
        ),
        (
            message,
            "body_digest",
            zeros,
            "`body_digest` is not that of the body",
        ),
        (message, "position", json!(1), "`position` is not 0"),
        (
            message,
            "length",
            json!(1),
            "`length` is not that of the body",
        ),
        (message, "seq", json!(2), "`seq` does not rise"),
        (
            message,
            "starts_turn",
            json!(false),
            "`starts_turn` or `starts_group`",
        ),
        (
            message + 1,
            "calls",
            Value::Null,
            "`calls` is not that of the body",
        ),
        (message + 2, "call_index", json!(1), "result of no call"),
        (
            message + 2,
            "bytes_before",
            json!(0),
            "`bytes_before` is not",
        ),
    ] {
        let bad = with(&good, line, member, value);
        let text = refused(&there, &bad, &[]).await;
        let dry = refused(&there, &bad, &["--dry-run"]).await;
        for text in [text, dry] {
            assert!(text.contains(problem), "{member}: {problem}: {text}");
            assert!(!text.contains("hunter"), "content is never shown: {text}");
            if member == "seq" {
                // It is the line behind it that does not rise.
                assert!(text.contains(&format!("line {}", message + 2)), "{text}");
            } else if line != session && line != compaction {
                assert!(text.contains(&format!("line {}:", line + 1)), "{text}");
            }
        }
    }
    let list = there.get("/sessions").await.expect(200).json();
    assert_eq!(list["data"], json!([]), "nothing of it is there");
    let left = said(&precis_beside(&there.database, &["prune-store"]).await);
    assert_eq!(left, "0 sessions deleted\n", "nor is anything hidden");
    // The id is free for what is whole.
    let file = app.database.directory().join("good.jsonl");
    import(&there, &file, &[]).await;
    assert_eq!(
        everything(&app, &id, "").await,
        everything(&there, &id, "").await
    );
    let exists = refused(&there, &good, &[]).await;
    assert!(exists.contains("a session of this id exists"), "{exists}");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_cut_off_or_mixed_up_is_noticed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let there = TestApp::spawn(backend).await;
    let (good, _) = lines(&app).await;
    let count = good.len();
    for keep in [1, 2, 3, 8, count - 2, count - 1] {
        let text = refused(&there, &good[..keep], &[]).await;
        assert!(text.contains("cut off"), "{keep} lines: {text}");
        if keep == count - 1 {
            assert!(text.contains("1 session and 0 agents imported"), "{text}");
        }
    }
    // That the last line is missing does not undo a session that was whole.
    let dry = ["--dry-run", "--skip-existing"];
    let changed = |change: &dyn Fn(&mut Vec<String>)| {
        let mut lines = good.clone();
        change(&mut lines);
        lines
    };
    for (lines, problem) in [
        (
            changed(&|lines| lines[0] = "{}".to_owned()),
            "no export of Precis",
        ),
        (
            changed(&|lines| lines[0] = lines[0].replace(":1", ":2")),
            "version 2",
        ),
        (changed(&|lines| drop(lines.remove(1))), "no `tenant` line"),
        (changed(&|lines| drop(lines.remove(6))), "is not"),
        (
            changed(&|lines| lines[3] = lines[3].replace("\"type\"", "\"kind\"")),
            "`type` is missing",
        ),
        (
            changed(&|lines| lines[4] = lines[4].replace("\"seq\"", "\"more\":1,\"seq\"")),
            "does not know",
        ),
        (
            changed(&|lines| lines[4] = lines[4].replace("{\"type\"", "{ \"type\"")),
            "not those that were exported",
        ),
        (
            changed(&|lines| lines[count - 1] = lines[count - 1].replace(":1}", ":2}")),
            "the file has 2 sessions, and 1 came",
        ),
        (
            changed(&|lines| lines.push(String::new())),
            "behind the end",
        ),
        (
            changed(&|lines| lines[1] = lines[1].replace("default", "nobody")),
            "no tenant nobody",
        ),
    ] {
        let text = refused(&there, &lines, &dry).await;
        assert!(text.contains(problem), "{problem}: {text}");
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn sessions_before_a_bad_one_stay_and_an_agent_is_not_changed(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let there = TestApp::spawn(backend).await;
    let agent = json!({"instructions": "one"});
    app.put("/agents/a", &agent).await.expect(201);
    let first = tell(&app, &mut Dice::new(5), 20).await[0].clone();
    let second = app.create_with(&turns(4, 40)).await;
    let file = export(
        &app,
        "both.jsonl",
        &["--session", &first, "--session", &second],
    )
    .await;
    let text = std::fs::read_to_string(&file).expect("the export");
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    let last = lines.len() - 3;
    lines[last] = lines[last].replace("\"tokens\":", "\"tokens\":1");
    let stopped = refused(&there, &lines, &[]).await;
    assert!(
        stopped.contains("1 session and 0 agents imported"),
        "{stopped}"
    );
    assert!(stopped.contains(&second), "the bad one is named: {stopped}");
    there.get(&format!("/sessions/{first}")).await.expect(200);
    there
        .get(&format!("/sessions/{second}"))
        .await
        .problem(404, "SESSION_NOT_FOUND");
    // Mended, the rest follows.
    let done = import(&there, &file, &["--skip-existing"]).await;
    assert!(done.starts_with("1 session and 0 agents"), "{done}");

    let file = export(&app, "all.jsonl", &["--all"]).await;
    let other = json!({"instructions": "another"});
    there.put("/agents/a", &other).await.expect(201);
    let path = file.to_str().expect("UTF-8");
    let clash = complaint(&precis_beside(&there.database, &["import", path, "--new-ids"]).await);
    assert!(clash.contains("another agent of this name"), "{clash}");
    there.put("/agents/a", &agent).await.expect(200);
    let done = import(&there, &file, &["--skip-existing"]).await;
    assert!(done.contains("there already"), "{done}");
}
