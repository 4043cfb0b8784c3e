//! What pruning costs and what it saves: a prompt cache's view of an agent loop, and time over length.
//!
//! ```text
//! cargo run --release --example pruning
//! ```
//!
//! First a loop of 20 turns whose tool output keeps growing, pruned in several ways: how often the plan
//! changes, what is sent, and how much of each dispatch the provider has seen before. Then tails of
//! 1,000, 10,000 and 100,000 messages, pruned and rendered: time and allocations for each message.
//!
//! Ends with a failure if a `floorRatio` of 0.75 changes the plan more than a third as often as 1.0, or
//! if the allocations for each message grow with the tail. Nothing here is judged by the clock.

mod history;
mod scale;
mod strategies;

use std::process::ExitCode;

use history::Session;
use strategies::{Run, Strategy};

/// Tokens that the loop may have.
const BUDGET: i64 = 20_000;

/// Tokens of tool definitions and whatever else is sent beside the messages.
const RESERVED: i64 = 4_000;

const STRATEGIES: [Strategy; 6] = [
    Strategy::carried(1.0),
    Strategy::carried(0.75),
    Strategy::carried(0.6),
    Strategy::anew(1.0),
    Strategy::anew(0.75),
    Strategy::largest_first(0.75),
];

fn main() -> ExitCode {
    let whole = Session::agent_loop(20);
    let runs: Vec<Run> = STRATEGIES
        .iter()
        .map(|strategy| strategy.run(&whole, BUDGET, RESERVED))
        .collect();
    print_summary(&runs);
    print_shares(&runs);
    let changes = |index: usize| runs.get(index).map_or(0, |run| run.changes);
    let is_calm = changes(0) > 0 && changes(1) * 3 <= changes(0);
    let verdict = if is_calm { "at most" } else { "MORE than" };
    println!(
        "A floorRatio of 0.75 changes the plan {} times, 1.0 {} times: {verdict} a third as often.\n",
        changes(1),
        changes(0)
    );
    let is_linear = scale::print();
    if is_calm && is_linear {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print_summary(runs: &[Run]) {
    println!("## Twenty turns of growing tool output\n");
    println!(
        "Budget {BUDGET} tokens, {RESERVED} of them reserved; \"seen\" is the part of a dispatch that is byte for byte the \
         beginning of the one before, from the second dispatch on.\n"
    );
    println!(
        "| strategy | floorRatio | over budget | plan changes | tokens sent | not seen before | seen, mean | seen, least |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for run in runs {
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            run.strategy.name,
            run.strategy.floor_ratio,
            run.over_budget,
            run.changes,
            run.tokens_sent,
            run.tokens_unseen(),
            percent(run.mean_seen()),
            percent(run.least_seen()),
        );
    }
    println!();
}

/// The share seen before of each dispatch that would be over budget unpruned.
fn print_shares(runs: &[Run]) {
    let Some(first) = runs.first() else { return };
    print!("| dispatch |");
    for run in runs {
        print!(" {} {} |", run.strategy.name, run.strategy.floor_ratio);
    }
    println!("\n| --- |{}", " --- |".repeat(runs.len()));
    for (number, dispatch) in first.dispatches.iter().enumerate() {
        if !dispatch.is_over_budget {
            continue;
        }
        print!("| {} |", number + 1);
        for run in runs {
            let dispatch = run.dispatches.get(number);
            let changed = dispatch.is_some_and(|dispatch| dispatch.is_changed);
            let mark = if changed { " (plan changed)" } else { "" };
            print!(
                " {}{mark} |",
                percent(dispatch.map_or(0.0, |dispatch| dispatch.seen))
            );
        }
        println!();
    }
    println!();
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
