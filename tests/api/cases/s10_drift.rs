//! K4: drift and nesting over a chain of summaries.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::model::MAIN;
use crate::support::oracle::units;
use crate::support::{
    Answer, Backend, History, Request, ScriptedModel, TestApp, chain, conversation, fixture,
};

const FIXTURE: &str = "05_research_200";

/// Compacts at 30 until nothing is left to do; how many runs that took.
async fn until_done(app: &TestApp, id: &str, history: &History) -> usize {
    let mut runs = 0;
    while chain::compact_and_check(app, id, history, Request::percent(30), "s10").await {
        runs += 1;
        assert!(runs < 100, "expected an end");
    }
    runs
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s10_each_run_is_given_the_summary_before_it_and_no_other(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &[]).await;
    let raws = conversation(FIXTURE);
    let history = History::new(&raws);
    let id = app.create_with(&raws).await;
    let runs = until_done(&app, &id, &history).await;
    assert!(runs >= 4, "expected at least four runs, got {runs}");

    let records = app.compactions(&id).await;
    let summaries: Vec<&str> = records
        .iter()
        .map(|record| record["summary"].as_str().expect("a text"))
        .collect();
    let calls = model.calls();
    assert_eq!(calls.len(), runs, "one call for each run");
    for (run, call) in calls.iter().enumerate() {
        let expected = run.checked_sub(1).map(|before| summaries[before]);
        assert_eq!(call.previous(), expected, "run {run} is given version n-1");
        for older in &summaries[..run.saturating_sub(1)] {
            assert!(
                !call.user().contains(older),
                "run {run} is not given n-2 or older"
            );
        }
    }
    let context = app
        .get(&format!("/sessions/{id}/context"))
        .await
        .expect(200);
    let text = String::from_utf8_lossy(&context.body).into_owned();
    for (index, summary) in summaries.iter().enumerate() {
        let shown = text.contains(summary);
        assert_eq!(
            shown,
            index + 1 == runs,
            "the context shows version {runs} only"
        );
        let path = format!("/sessions/{id}/compactions/{}", index + 1);
        let record = app.get(&path).await.expect(200).json();
        assert_eq!(record["summary"], **summary, "older versions stay readable");
    }
}

/// A model that would let the summary grow without bounds is stopped.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s10_a_summary_that_outgrows_the_cap_is_refused(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    // 200 tokens and half of that are 1,200 ASCII characters.
    let text = |length: usize| Answer::Text(format!("{} end", "word ".repeat(length / 5 - 1)));
    model.script(MAIN, [text(1_100), text(1_600)]);
    let variables = [("PRECIS_COMPACTION__MAX_SUMMARY_TOKENS", "200")];
    let app = TestApp::with_model(backend, &model, &variables).await;
    let id = app.create_with(&conversation(FIXTURE)).await;
    app.compact(&id, &json!({"compactCount": 30}))
        .await
        .expect(200);
    let before = app.session(&id).await;
    let problem = app
        .compact(&id, &json!({"compactCount": 30}))
        .await
        .problem(502, "SUMMARIZER_FAILED");
    assert_eq!(
        problem["errors"][0]["code"], "summary_too_long",
        "{problem:#}"
    );
    assert_eq!(app.session(&id).await, before, "the session is unchanged");
}

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().expect("a list");
    list.iter()
        .map(|text| text.as_str().expect("a text").to_owned())
        .collect()
}

#[rstest]
#[case::the_default_cap(2_000)]
#[case::half_of_it(1_000)]
#[tokio::test(flavor = "multi_thread")]
async fn s10_facts_survive_the_extractive_chain(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[case] cap: usize,
) {
    let app = TestApp::spawn(backend).await;
    let raws = conversation(FIXTURE);
    let history = History::new(&raws);
    let body = json!({"compaction": {"maxSummaryTokens": cap}});
    let id = app.create(&body).await;
    app.append(&id, &raws).await;
    let runs = until_done(&app, &id, &history).await;
    assert!(runs >= 4, "expected at least four runs, got {runs}");
    for record in app.compactions(&id).await {
        let length = units(record["summary"].as_str().expect("a summary"));
        assert!(
            length <= cap * 4,
            "{length} units in version {}",
            record["version"]
        );
    }
    if cap < 2_000 {
        return;
    }

    let context = app
        .get(&format!("/sessions/{id}/context"))
        .await
        .expect(200);
    // As a reader sees it: without the escapes of JSON.
    let shown: Vec<String> = context
        .context()
        .messages
        .iter()
        .map(|raw| {
            let message: Value = serde_json::from_str(raw.get()).expect("JSON");
            message["content"].as_str().unwrap_or_default().to_owned()
        })
        .collect();
    let shown = shown.join("\n");
    let summary = app.session(&id).await["compactSummary"]
        .as_str()
        .expect("a text")
        .to_owned();
    let probes: Value =
        serde_json::from_str(&fixture(&format!("{FIXTURE}.probes.json"))).expect("JSON");
    let probes = probes.as_array().expect("a list of probes");
    let missed: Vec<&Value> = probes
        .iter()
        .filter(|probe| {
            !texts(&probe["must_contain"])
                .iter()
                .all(|text| shown.contains(text))
        })
        .collect();
    assert!(
        probes.len() - missed.len() >= 18,
        "expected 18 of {} probes to hold, missed {missed:#?} in:\n{summary}",
        probes.len()
    );
    for probe in probes {
        for stale in texts(&probe["superseded"]) {
            let current = texts(&probe["must_contain"]);
            // A line may tell of the change, but none may hold the old value alone.
            let alone = summary.lines().find(|line| {
                line.contains(&stale) && !current.iter().all(|now| line.contains(now))
            });
            assert_eq!(alone, None, "{stale} no longer holds, {current:?} does");
        }
    }
}
