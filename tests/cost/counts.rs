//! How many statements each request takes: pinned, so that one more is noticed, and one fewer as well.

use rstest::rstest;

use crate::measure::Bench;
use crate::requests::{Request, Stage};
use crate::support::Backend;

/// What a request takes once everything is warm: statements on SQLite, round trips to PostgreSQL, the beginning and the
/// end of transactions included in both. SQLite's readers begin none.
const TABLE: &[(Request, usize, usize)] = &[
    (Request::Append, 1, 1),
    (Request::AppendUnderKey, 1, 1),
    (Request::AppendToUnknown, 6, 6),
    (Request::AppendHundred, 8, 8),
    (Request::Create, 5, 5),
    (Request::CreateWithMessages, 8, 8),
    (Request::Session, 1, 1),
    (Request::Messages, 2, 2),
    (Request::Context, 1, 1),
    (Request::ContextUnchanged, 1, 1),
    (Request::ContextWithSummary, 1, 1),
    (Request::ContextWithPlan, 3, 3),
    (Request::ContextWithItems, 2, 2),
    (Request::DispatchFirst, 25, 25),
    (Request::DispatchCarried, 18, 18),
    (Request::CompactionPlanned, 16, 16),
    (Request::Compaction, 39, 39),
];

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn each_request_takes_as_many_statements_as_it_is_known_to(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let bench = Bench::start(backend, &[]).await;
    let stage = Stage::new(&bench).await;
    let mut wrong = Vec::new();
    for (request, on_sqlite, on_postgres) in TABLE {
        let (cost, _) = bench
            .cost(
                async || stage.prepare(*request).await,
                async |made| stage.make(*request, made).await,
            )
            .await;
        let (found, expected) = match backend {
            Backend::Sqlite => (cost.statements, on_sqlite),
            Backend::Postgres => (cost.trips, on_postgres),
        };
        assert_eq!(
            cost.pings, 0,
            "a connection that was just used is tested for {request:?}"
        );
        if found != *expected {
            let sent = stage.prepare(*request).await;
            let sent = bench.statements(async || stage.make(*request, sent).await);
            let texts = sent.await.into_iter();
            let texts: Vec<_> = texts.map(|one| format!("{:.120}", one.text)).collect();
            wrong.push(format!(
                "{request:?}: {found}, not {expected}\n  {}",
                texts.join("\n  ")
            ));
        }
    }
    assert!(wrong.is_empty(), "on {backend:?}\n{}", wrong.join("\n"));
}
