//! K1: tool pairing and turn boundaries.

use rstest::rstest;
use serde_json::json;

use crate::support::chain;
use crate::support::messages::{a, calls, r, result, system, u};
use crate::support::{Backend, History, Request, TestApp};

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s01_no_cut_between_a_call_and_its_result(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let raws = [
        system("instructions"),
        u(2_000),
        calls(&["c1"], 600),
        r("c1", 3_000),
        a(200),
        u(100),
    ];
    let history = History::new(&raws);
    let id = app.create_with(&raws).await;
    for percent in 1..=99 {
        let body = json!({"compactCount": percent, "dryRun": true});
        let planned = app.compact(&id, &body).await.expect(200).json();
        let size = planned["newSize"].as_u64();
        assert!(
            [Some(0), Some(4)].contains(&size),
            "at {percent} the pointer is 0 or 4, got {size:?}"
        );
    }
    let answer = app
        .compact(&id, &json!({"compactCount": 40}))
        .await
        .expect(200);
    assert_eq!(answer.json()["newSize"], 4, "{answer}");
    chain::check(&app, &id, &history, "s01").await;
    let context = app.context(&id).await;
    assert_eq!(
        context.messages.len(),
        4,
        "instructions, the summary pair, the newest message"
    );

    // With the session's own run for each percentage, the context stays valid as well.
    for percent in [1, 40, 70, 99] {
        let id = app.create_with(&raws).await;
        chain::compact_and_check(&app, &id, &history, Request::percent(percent), "s01").await;
    }
}

#[rstest]
#[case::in_the_order_of_the_calls([("c1", 5_000), ("c2", 200), ("c3", 200)])]
#[case::in_another_order([("c3", 200), ("c1", 5_000), ("c2", 200)])]
#[tokio::test(flavor = "multi_thread")]
async fn s02_parallel_calls_stay_together(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] results: [(&str, usize); 3],
) {
    let app = TestApp::spawn(backend).await;
    let mut raws = vec![u(100), calls(&["c1", "c2", "c3"], 0)];
    raws.extend(results.map(|(id, length)| r(id, length)));
    raws.extend([a(100), u(100)]);
    let id = app.create_with(&raws).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 50}))
        .await
        .expect(200);
    assert_eq!(answer.json()["newSize"], 6, "{answer}");
    chain::check(&app, &id, &History::new(&raws), "s02").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s03_an_open_call_keeps_its_turn_whole(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let mut raws = vec![u(500), a(500), u(500), calls(&["c1", "c2"], 0), r("c1", 50)];
    let id = app.create_with(&raws).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 99}))
        .await
        .expect(200);
    assert_eq!(answer.json()["newSize"], 2, "{answer}");
    assert_eq!(
        app.context(&id).await.open_calls,
        ["c2"],
        "c2 is still awaited"
    );
    chain::check(&app, &id, &History::new(&raws), "s03, c2 open").await;

    app.append_raw(&id, &format!("[{}]", result("c9", "?")))
        .await
        .problem(422, "TOOL_CALL_NOT_FOUND");
    let late = r("c2", 60);
    app.append(&id, std::slice::from_ref(&late)).await;
    raws.push(late);
    assert_eq!(
        app.history(&id).await.len(),
        raws.len(),
        "nothing was invented"
    );
    chain::check(&app, &id, &History::new(&raws), "s03, c2 answered").await;
    let context = app.context(&id).await;
    let tail: Vec<&str> = context
        .messages
        .iter()
        .skip(3)
        .map(|raw| raw.get())
        .collect();
    assert_eq!(
        tail,
        [&raws[3], &raws[4], &raws[5]],
        "call and results are contiguous"
    );
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s04_call_ids_are_used_again(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::spawn(backend).await;
    let fill = |text: &str| format!("{text}{}", ".".repeat(98));
    let raws = [
        u(100),
        calls(&["call_0"], 100),
        result("call_0", &fill("r1")),
        a(100),
        u(100),
        calls(&["call_0"], 100),
        result("call_0", &fill("r2")),
        a(100),
        u(100),
    ];
    let id = app.create_with(&raws).await;
    let answer = app
        .compact(&id, &json!({"compactCount": 20}))
        .await
        .expect(200);
    assert_eq!(answer.json()["newSize"], 4, "{answer}");
    chain::check(&app, &id, &History::new(&raws), "s04").await;
    let context = app.context(&id).await;
    assert_eq!(
        context.messages[4].get(),
        raws[6],
        "the second pair is intact: summary pair, user, call, `r2`"
    );
}
