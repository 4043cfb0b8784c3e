//! A rewind can open a call again that had been interrupted and folded in: it must be visible then, and
//! stay so, whatever version of the summary is asked for.

use rstest::rstest;
use serde_json::json;

use crate::support::messages::{assistant, calls, result, user};
use crate::support::{Backend, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_again_is_never_behind_the_pointer(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("rewind", "fork")] how: &str,
) {
    let app = TestApp::spawn(backend).await;
    let raws = [
        user("begin"),
        calls(&["c0"], 5),
        user("stop, something else"),
        assistant("as you wish"),
    ];
    let parent = app.create_with(&raws).await;
    let made = app.compact(&parent, &json!({"compactCount": 50})).await;
    assert_eq!(
        made.expect(200).json()["newSize"],
        2,
        "the call was interrupted"
    );
    let id = if how == "rewind" {
        app.rewind(&parent, 2).await.expect(200);
        parent
    } else {
        let fork = app
            .fork(&parent, &json!({"atSeq": 2}))
            .await
            .expect(201)
            .json();
        fork["id"].as_str().expect("an id").to_owned()
    };
    let context = app.context(&id).await;
    assert_eq!(context.open_calls, ["c0"]);
    assert!(
        context.compaction.is_none(),
        "the call is shown, so no summary stands for it"
    );
    app.restore(&id, 1)
        .await
        .problem(409, "COMPACTION_CONFLICT");

    app.append(&id, &[result("c0", "late, but in time")]).await;
    app.restore(&id, 1)
        .await
        .problem(409, "COMPACTION_CONFLICT");
    let roles: Vec<_> = app
        .context(&id)
        .await
        .messages
        .iter()
        .map(|raw| raw.get().to_owned())
        .collect();
    assert_eq!(
        roles.len(),
        3,
        "the question, the call, its result: {roles:?}"
    );
}
