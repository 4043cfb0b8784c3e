//! S01 to S10 again, forty times as large, with a summarizer whose window is too small for their
//! batches: the cuts are the same, and each message is in one successful call.

use rstest::rstest;
use serde_json::json;

use crate::support::messages::{assistant, calls, padded, result, system, user};
use crate::support::model::{Call, MAIN, mark, marks};
use crate::support::{
    Answer, Backend, History, Request, ScriptedModel, TestApp, chain, conversation,
};

const SCALE: usize = 40;

/// How the window is known: told, so that nothing is ever too large, or by the provider's refusal.
#[derive(Clone, Copy, Debug)]
enum Window {
    Told,
    Refused,
}

const TOLD: [(&str, &str); 3] = [
    ("PRECIS_COMPACTION__CONTEXT_WINDOW", "5000"),
    ("PRECIS_COMPACTION__MAX_SUMMARY_TOKENS", "400"),
    ("PRECIS_COMPACTION__OUTPUT_CAP_TOKENS", "500"),
];
/// Characters of ASCII that surely do not fit into the window that is told.
const SURELY_TOO_MANY: usize = 5_000 * 4;

struct Marked(usize);

impl Marked {
    fn text(&mut self, length: usize) -> String {
        self.0 += 1;
        padded(&format!("{} ", mark(self.0 - 1)), length * SCALE)
    }

    fn u(&mut self, length: usize) -> String {
        user(&self.text(length))
    }

    fn a(&mut self, length: usize) -> String {
        assistant(&self.text(length))
    }

    fn c(&mut self, ids: &[&str], length: usize) -> String {
        let text = self.text(length);
        let raw = calls(ids, text.len());
        raw.replacen(&"x".repeat(text.len()), &text, 1)
    }

    fn r(&mut self, id: &str, length: usize) -> String {
        result(id, &self.text(length))
    }

    fn turns(&mut self, count: usize, length: usize) -> Vec<String> {
        (0..count)
            .flat_map(|_| [self.u(length), self.a(length)])
            .collect()
    }
}

/// The inputs of the cases, their percentage, and where they are cut.
fn case(name: &str) -> (Vec<String>, usize, usize) {
    let mut m = Marked(0);
    match name {
        "s01" => {
            let turn = vec![
                m.u(2_000),
                m.c(&["c1"], 600),
                m.r("c1", 3_000),
                m.a(200),
                m.u(100),
            ];
            ([vec![system("instructions")], turn].concat(), 40, 4)
        }
        "s02" => {
            let mut raws = vec![m.u(100), m.c(&["c1", "c2", "c3"], 1), m.r("c1", 5_000)];
            raws.extend([m.r("c2", 200), m.r("c3", 200), m.a(100), m.u(100)]);
            (raws, 50, 6)
        }
        "s03" => {
            let raws = vec![
                m.u(500),
                m.a(500),
                m.u(500),
                m.c(&["c1", "c2"], 1),
                m.r("c1", 50),
            ];
            (raws, 99, 2)
        }
        "s04" => {
            let mut raws = vec![
                m.u(100),
                m.c(&["call_0"], 100),
                m.r("call_0", 100),
                m.a(100),
            ];
            raws.extend([
                m.u(100),
                m.c(&["call_0"], 100),
                m.r("call_0", 100),
                m.a(100),
                m.u(100),
            ]);
            (raws, 20, 4)
        }
        "s05" => {
            let mut raws = vec![system("first"), m.u(100), m.a(100), system("second")];
            raws.extend([m.u(100), m.a(100), m.u(100)]);
            (raws, 50, 4)
        }
        "s06" => (
            vec![system("s"), m.a(50), m.u(400), m.a(400), m.u(100)],
            30,
            3,
        ),
        "s07" => {
            let mut raws = m.turns(10, 50);
            raws.push(m.u(10_000));
            (raws, 50, 20)
        }
        "s09" => (m.turns(6, 100), 50, 6),
        _ => unreachable!("no such case"),
    }
}

fn units(raws: &[String]) -> usize {
    History::new(raws).length()
}

/// The calls that were answered with a summary.
fn taken(calls: Vec<Call>, most: usize) -> Vec<Call> {
    calls
        .into_iter()
        .filter(|call| call.size() <= most)
        .collect()
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn folded_batches_are_cut_and_covered_as_whole_ones(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values("s01", "s02", "s03", "s04", "s05", "s06", "s07", "s09")] name: &str,
    #[values(Window::Told, Window::Refused)] window: Window,
) {
    let (raws, percent, cut) = case(name);
    let history = History::new(&raws);
    let batch: usize = history.messages[..cut].iter().map(|m| m.length).sum();
    let model = ScriptedModel::start().await;
    let (app, most) = match window {
        // Rejects what a window of 5,000 tokens would: the service must see to it itself.
        Window::Told => (
            TestApp::with_model(backend, &model, &TOLD).await,
            SURELY_TOO_MANY,
        ),
        Window::Refused => (
            TestApp::with_model(backend, &model, &[]).await,
            batch / 3 + 6_000,
        ),
    };
    model.script(MAIN, [Answer::Within(most, Box::new(Answer::Marks))]);
    let id = app.create_with(&raws).await;
    let request = Request::percent(percent);
    assert!(chain::compact_and_check(&app, &id, &history, request, name).await);

    let session = app.session(&id).await;
    assert_eq!(session["compactSize"], cut, "{name}: the cut of the case");
    let record = app.compactions(&id).await.remove(0);
    let calls = model.calls();
    let all = calls.len();
    if matches!(window, Window::Told) {
        assert!(
            calls.iter().all(|call| call.size() <= most),
            "{name}: none is too large"
        );
    }
    let taken = taken(calls, most);
    assert_eq!(
        record["parts"],
        taken.len(),
        "{name}: one part for each successful call"
    );
    assert!(
        all <= 4 * taken.len(),
        "{name}: {all} calls for {} parts",
        taken.len()
    );
    if batch > most {
        assert!(
            taken.len() > 1 || record["shortened"] != 0,
            "{name}: {record:#}"
        );
    }
    let seen: Vec<String> = taken
        .iter()
        .flat_map(|call| marks(&call.transcript()))
        .collect();
    let expected: Vec<String> = history.messages[..cut]
        .iter()
        .flat_map(|m| marks(&m.raw))
        .collect();
    assert_eq!(
        seen, expected,
        "{name}: each message in one successful call, in order"
    );
    for (index, call) in taken.iter().enumerate() {
        assert_eq!(
            call.previous().is_some(),
            index > 0,
            "{name}: one previous summary"
        );
    }
    let summary = session["compactSummary"].as_str().expect("a summary");
    assert_eq!(
        marks(summary),
        expected,
        "{name}: the last part knows of all"
    );
}

/// Rolling: what is folded again has the previous version in its first part only.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s08_s09_and_s10_hold_with_folding(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    model.script(
        MAIN,
        [Answer::Within(SURELY_TOO_MANY, Box::new(Answer::Marks))],
    );
    let app = TestApp::with_model(backend, &model, &TOLD).await;
    let mut marked = Marked(0);
    let mut raws = marked.turns(8, 100);
    let id = app.create_with(&raws).await;
    let mut history = History::new(&raws);
    let run = async |history: &History| {
        while chain::compact_and_check(&app, &id, history, Request::percent(60), "folded").await {}
    };
    run(&history).await;
    for raw in marked.turns(8, 100) {
        history.push(&raw);
        raws.push(raw);
    }
    app.append(&id, &raws[16..]).await;
    run(&history).await;
    let calls = model.calls();
    let seen: Vec<String> = calls
        .iter()
        .flat_map(|call| marks(&call.transcript()))
        .collect();
    assert_eq!(
        seen,
        (0..30).map(mark).collect::<Vec<_>>(),
        "each message once, in order"
    );
    let records = app.compactions(&id).await;
    let parts: u64 = records
        .iter()
        .filter_map(|record| record["parts"].as_u64())
        .sum();
    assert_eq!(parts, calls.len() as u64, "every call is in a record");
    assert!(
        calls.len() > records.len(),
        "something was folded: {records:#?}"
    );

    let before = calls.len();
    for _ in 0..5 {
        let answer = app
            .compact(&id, &json!({"compactCount": 60}))
            .await
            .expect(200)
            .json();
        assert_eq!(answer["alreadyUpToDate"], true);
    }
    assert_eq!(
        model.calls().len(),
        before,
        "s08: no model is called for nothing"
    );
    assert!(units(&raws) > 0, "there was something to fold");
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn s06_and_s10_fixtures_hold_with_folding(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(
        "02_coding_agent_60",
        "03_cjk_emoji_rtl",
        "05_research_200",
        "06_pathological"
    )]
    name: &str,
) {
    let model = ScriptedModel::start().await;
    let app = TestApp::with_model(backend, &model, &TOLD).await;
    let raws = conversation(name);
    let history = History::new(&raws);
    for request in [Request::percent(30), Request::step(99)] {
        let id = app.create_with(&raws).await;
        let mut runs = 0;
        while chain::compact_and_check(&app, &id, &history, request, name).await {
            runs += 1;
            assert!(runs < 200, "{name}: expected an end");
        }
        for record in app.compactions(&id).await {
            assert!(record["parts"].as_u64() >= Some(1), "{name}: {record:#}");
        }
    }
    for call in model.calls() {
        assert!(
            call.size() <= SURELY_TOO_MANY,
            "{name}: none is too large: {}",
            call.size()
        );
        call.previous();
    }
}
