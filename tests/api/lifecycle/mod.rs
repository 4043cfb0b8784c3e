//! What becomes of data over time: kept and deleted, backed up, moved between databases, brought to newer schemas.
//! The commands are those of the real binary, beside a running service.

mod backup;
mod deletion;
mod retention;
mod stories;
mod transfer;
mod transfer_refusals;
mod upgrades;

use std::process::{Command, Output, Stdio};

use crate::support::app::base_variables;
use crate::support::backend::TestDatabase;

/// Runs `precis` on a database, to its end.
fn precis(database: &TestDatabase, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_precis"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PRECIS_")) {
        command.env_remove(name);
    }
    let command = command
        .current_dir(database.directory())
        .envs(base_variables(&database.url))
        .args(arguments)
        .stdin(Stdio::null());
    command.output().expect("the binary runs")
}

/// What a command that succeeds says on standard output.
#[track_caller]
fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "expected success: {error}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// What a command that fails says on standard error.
#[track_caller]
fn complaint(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(
        !output.status.success(),
        "expected it to fail; it said: {out}"
    );
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Runs the blocking `precis` while the test's own runtime goes on.
async fn precis_beside(database: &TestDatabase, arguments: &[&str]) -> Output {
    let run = || precis(database, arguments);
    tokio::task::block_in_place(run)
}
