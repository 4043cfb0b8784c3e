//! Dispatches under a plan that holds: what pruning costs when it has nothing new to do.

use serde_json::{Value, json};

use super::context::Sides;
use crate::Outcome;
use crate::bench::{Bench, Place};
use crate::content::{ORDINARY, Reader, Session, message};
use crate::report::Goal;
use crate::wire::Target;

const MESSAGES: usize = 10_000;
/// One message in so many is the result of a tool.
const PERIOD: usize = 10;
/// Bytes of a result, about.
const RESULT: usize = 8_000;
/// Less than all of it, and more than what is left once all results are shortened; both in tokens.
const BUDGET: usize = 2_400_000;

/// A history in which tools are called now and then.
fn history(number: usize) -> String {
    match number % PERIOD {
        7 => format!(
            r#"{{"role":"assistant","content":null,"x_mark":"~","tool_calls":[{{"id":"call_{number}","type":"function","function":{{"name":"read","arguments":"{{\"path\":\"src/{number}.rs\"}}"}}}}]}}"#
        ),
        8 => {
            let call = number - 1;
            let content = format!("{number} lines of it ").repeat(RESULT / 18);
            format!(
                r#"{{"role":"tool","tool_call_id":"call_{call}","content":"{content}","x_mark":"~"}}"#
            )
        }
        _ => message(number, ORDINARY),
    }
}

fn plan_changes(target: &Target, session: &Session) -> Outcome<u64> {
    let stats = target.ask("GET", &session.path("stats"), "")?;
    find(&stats, "planChanges").ok_or_else(|| "no plan changes in the statistics".into())
}

/// A member of that name, wherever it stands.
fn find(value: &Value, name: &str) -> Option<u64> {
    let members = value.as_object()?;
    members
        .get(name)
        .and_then(Value::as_u64)
        .or_else(|| members.values().find_map(|member| find(member, name)))
}

/// The dispatch against the plain context of the same session.
pub fn dispatch(bench: &mut Bench, place: Place) -> Outcome<()> {
    let service = bench.service(place, &[])?;
    let target = &service.server.target;
    let policy = json!({"pruning": {"enabled": true, "budgetTokens": BUDGET, "floorRatio": 0.75}});
    let messages = (0..MESSAGES).map(history);
    let session = Session::create_with(target, &policy.to_string(), messages, 1_000)?;
    let path = session.path("context");
    let mut dispatcher = Reader::of(target, "POST", &path, "{}", MESSAGES)?;
    dispatcher.step()?;
    let before = plan_changes(target, &session)?;
    if before == 0 {
        return Err("nothing was pruned".into());
    }
    let rounds = Sides {
        subject: vec![dispatcher],
        floor: vec![Reader::new(target, &session, MESSAGES)?],
        time: bench.options.slice(),
    }
    .costs(bench)?;
    if plan_changes(target, &session)? != before {
        return Err("the plan did not hold".into());
    }
    let what = format!("dispatch of {MESSAGES} messages under a plan that holds, plain context");
    let heading = bench.heading("dispatch", what, place, 1)?;
    bench.keep(heading, "µs", &rounds, Goal::AtMost(1.5));
    Ok(())
}
