//! Nothing that a request costs grows with the history behind what it shows: not the statements, not the rows that they
//! give, not the allocations.

use rstest::rstest;

use crate::measure::{Bench, Cost};
use crate::requests::{Made, Request, Stage, TAIL, dispatch, pruned, summarised};
use crate::support::Backend;

/// Messages behind the summary.
const SHORT: usize = TAIL;
const LONG: usize = 5_000;

/// Requests to a session with a summary. Those that write come last: they lengthen the tail.
const TO_SUMMARISED: &[Request] = &[
    Request::Session,
    Request::Messages,
    Request::ContextWithSummary,
    Request::CompactionPlanned,
    Request::Append,
    Request::AppendUnderKey,
    Request::AppendHundred,
];
/// Requests to a session whose tail is pruned as well.
const TO_PRUNED: &[Request] = &[Request::ContextWithPlan, Request::DispatchCarried];

/// Allocations that a long history may cost beside a fifth.
const ALLOCATIONS: usize = 200;

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn no_request_costs_more_behind_a_long_history(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let bench = Bench::start(backend, &[]).await;
    let short = measured(&bench, SHORT).await;
    let long = measured(&bench, LONG).await;
    let mut wrong = Vec::new();
    for (short, long) in short.iter().zip(&long) {
        let most = short.allocations * 6 / 5 + ALLOCATIONS;
        if short.cost != long.cost || long.allocations > most {
            wrong.push(format!(
                "{short:?} behind {SHORT}\n  {long:?} behind {LONG}"
            ));
        }
    }
    assert!(wrong.is_empty(), "on {backend:?}\n{}", wrong.join("\n"));
}

#[derive(Debug)]
#[expect(dead_code, reason = "the name is for whoever reads a failure")]
struct Measured {
    request: Request,
    cost: Cost,
    allocations: usize,
}

async fn measured(bench: &Bench, behind: usize) -> Vec<Measured> {
    let stage = Stage::new(bench).await;
    let summarised = summarised(&bench.app, behind).await;
    let pruned = pruned(&bench.app, behind).await;
    dispatch(&bench.app, &pruned).await;
    let to_summarised = TO_SUMMARISED.iter().map(|request| (request, &summarised));
    let to_pruned = TO_PRUNED.iter().map(|request| (request, &pruned));
    let mut all = Vec::new();
    for (request, id) in to_summarised.chain(to_pruned) {
        let act = async |made| stage.make(*request, made).await;
        let (cost, allocations) = bench.cost(async || Made::of(id.clone()), act).await;
        all.push(Measured {
            request: *request,
            cost,
            allocations,
        });
    }
    all
}
