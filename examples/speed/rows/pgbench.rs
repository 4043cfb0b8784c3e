//! PostgreSQL: the service against pgbench, which runs the same statements and does nothing else.

use std::path::PathBuf;
use std::time::Duration;

use crate::Outcome;
use crate::bench::{Bench, Place, Service};
use crate::content::{ORDINARY, Reader, Session, Writer, message};
use crate::load::slice;
use crate::postgres::Database;
use crate::report::Goal;

/// Sessions that pgbench appends to, one for each of its connections.
const SESSIONS: usize = 64;
/// More than one run of pgbench appends to a session.
const STRIDE: usize = 10_000_000;
const LARGE: usize = 10_000;

/// The session of a connection of pgbench.
const SESSION: &str = "CAST(lpad(:client_id, 32, '0') AS uuid)";

/// What an append of one message runs; what differs from append to append is counted by the script. A colon before a
/// letter or a digit would be a variable.
fn append_script() -> String {
    let body = message(0, ORDINARY);
    format!(
        "\\set n :n + 1\n\
         \\set id :client_id * 100000000000 + :n\n\
         WITH head AS (UPDATE sessions SET last_seq = :n, message_count = :n, position_count = :n, \
         history_length = :n, history_tokens = :n, history_bytes = :n, instruction_tokens = 0, tail = tail, \
         due_at = NULL, updated_at = '2026-01-01', revision = revision + 1, event_seq = event_seq + 1 \
         WHERE tenant_id = 1 AND id = {SESSION} AND revision >= 0 AND event_seq >= 0 AND updated_at > '2000-01-01' \
         AND status = 'active' AND deleted_at IS NULL AND turn_until IS NULL AND due_at IS NULL \
         AND NOT due_waits AND stalled_tokens IS NULL RETURNING CAST(0 AS BIGINT) AS done), \
         added AS (INSERT INTO messages (tenant_id, session_id, created_at, seq, position, id, role, starts_turn, \
         starts_group, incomplete, length, tokens, length_before, tokens_before, bytes_before, call_index, tool_name, \
         body_digest, content_digest, calls, usage, fill, item, body) SELECT 1, {SESSION}, CAST('2026-01-01' AS timestamptz), \
         CAST(:n AS bigint), CAST(:n AS bigint), CAST(:id AS text), 'user', TRUE, TRUE, FALSE, 500, 125, \
         CAST(:n AS bigint), CAST(:n AS bigint), CAST(:n AS bigint), NULL, NULL, decode(repeat('00', 32), 'hex'), \
         decode(repeat('00', 32), 'hex'), NULL, NULL, NULL, NULL, '{body}' FROM head), \
         told AS (INSERT INTO events (tenant_id, session_id, id, type, data, created_at) SELECT 1, {SESSION}, CAST(:n AS bigint), \
         'message.appended', '{{\"firstSeq\": 1, \"lastSeq\": 1, \"count\": 1}}', CAST('2026-01-01' AS timestamptz) FROM head) \
         SELECT done FROM head;\n"
    )
}

/// The service's connections, and pgbench on the same database.
struct Sides<'a, W> {
    subject: Vec<W>,
    database: &'a Database,
    script: PathBuf,
    time: Duration,
    runs: usize,
}

impl<W> Sides<'_, W> {
    fn run_pgbench(&mut self, connections: usize) -> Outcome<f64> {
        self.runs += 1;
        let start = self.runs * STRIDE;
        self.database
            .pgbench(&self.script, connections, self.time, start)
    }
}

fn write_script(service: &Service, name: &str, text: &str) -> Outcome<PathBuf> {
    let file = service.directory.path().join(name);
    std::fs::write(&file, text)?;
    Ok(file)
}

fn database(service: &Service) -> Outcome<&Database> {
    service
        .database
        .as_ref()
        .ok_or_else(|| "no database".into())
}

/// Appends of one message.
pub fn append(bench: &mut Bench, place: Place) -> Outcome<()> {
    let service = bench.service(place, &[])?;
    let database = database(&service)?;
    // Sessions as the service makes them, under ids that pgbench can count.
    Session::create(&service.server.target, 0)?;
    database.query(&format!(
        "INSERT INTO sessions SELECT (jsonb_populate_record(made, jsonb_build_object('id', \
         lpad(CAST(client AS text), 32, '0')))).* FROM sessions AS made, generate_series(0, {}) AS client",
        SESSIONS - 1
    ))?;
    let script = write_script(&service, "append.sql", &append_script())?;
    let mut runs = 0;
    for (connections, goal) in [
        (1, Goal::None),
        (8, Goal::AtLeast(0.5)),
        (64, Goal::AtLeast(0.5)),
    ] {
        let mut sides = Sides {
            subject: Writer::several(&service.server.target, connections, false)?,
            database,
            script: script.clone(),
            time: bench.options.slice(),
            runs,
        };
        let rounds = bench.alternate(
            &mut sides,
            |sides| Ok(slice(&mut sides.subject, sides.time, Writer::step)?.rate),
            |sides| sides.run_pgbench(connections),
        )?;
        sides.subject.iter().try_for_each(Writer::check)?;
        runs = sides.runs;
        let what = "append, pgbench with the same statements";
        let heading = bench.heading("append", what, place, connections)?;
        bench.keep(heading, "/s", &rounds, goal);
    }
    Ok(())
}

/// Contexts of many messages, against selecting their texts.
pub fn context(bench: &mut Bench, place: Place) -> Outcome<()> {
    let service = bench.service(place, &[])?;
    let target = &service.server.target;
    let database = database(&service)?;
    let session = Session::create(target, LARGE)?;
    let id = database.query("SELECT id FROM sessions")?;
    let statement = format!(
        "SELECT body FROM messages WHERE tenant_id = 1 AND session_id = '{id}' ORDER BY seq;\n"
    );
    let script = write_script(&service, "context.sql", &statement)?;
    for connections in [1, 8] {
        let mut sides = Sides {
            subject: Reader::several(target, &session, LARGE, connections)?,
            database,
            script: script.clone(),
            time: bench.options.slice(),
            runs: 0,
        };
        let rounds = bench.alternate(
            &mut sides,
            |sides| Ok(slice(&mut sides.subject, sides.time, Reader::step)?.rate),
            |sides| sides.run_pgbench(connections),
        )?;
        let what = format!("context of {LARGE} messages, pgbench that selects them");
        let heading = bench.heading("context-large", what, place, connections)?;
        bench.keep(heading, "/s", &rounds, Goal::None);
    }
    Ok(())
}
