//! How both databases find the rows of every statement that is sent: never by looking at all of a table that grows.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqliteConnection};

use crate::measure::Bench;
use crate::statements;
use crate::support::messages::turns;
use crate::support::{Backend, ScriptedModel};
use crate::walk::{ADMIN, VARIABLES, Walk};

/// Tables that stay small, however long the service runs.
const SMALL: &[&str] = &["_sqlx_migrations", "agents", "keys", "replicas", "tenants"];

/// Tables of which a session has ever more rows.
const HISTORIES: &[&str] = &["events", "messages", "search_rows"];

/// What may look at more than it shows: a part of the statement, the table, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "FROM search_trash ORDER BY id LIMIT",
        "search_trash",
        "what stands first in a queue that is emptied",
    ),
    (
        "SELECT CAST(coalesce(sum(history_bytes",
        "sessions",
        "what a tenant stores is measured now and then, not for each request",
    ),
    (
        "FROM leases WHERE tenant_id = $1 AND kind = $3",
        "leases",
        "a lease is there while the work goes on",
    ),
    (
        "SELECT min(events.id) FROM events",
        "events",
        "the smallest one stands first in the index",
    ),
    (
        "AND position IS NULL",
        "messages",
        "the index holds instructions alone",
    ),
    (
        "AND joined.role = 'assistant' AND (NOT joined.starts_group OR",
        "messages",
        "the index holds such rows alone, and one is enough",
    ),
    (
        "AND deleted_at IS NULL AND id IN (",
        "sessions",
        "as many rows as ids; where a tenant has few sessions, reading all of them is as near",
    ),
    (
        "DELETE FROM messages WHERE tenant_id = $1 AND session_id = $2",
        "messages",
        "all of them are to go",
    ),
    (
        "usage, fill, item, body FROM messages WHERE tenant_id = $1 AND session_id = $2 ORDER BY seq",
        "messages",
        "all of them are exported",
    ),
];

/// A statement that has no index, so that it is seen that such are found.
const WITHOUT_INDEX: &str = "SELECT seq FROM messages WHERE length > $1";

fn is_excepted(text: &str, place: &str) -> bool {
    EXCEPTIONS
        .iter()
        .any(|(part, known, _)| text.contains(part) && place.starts_with(known))
}

/// Statements that find no rows.
fn finds_rows(text: &str) -> bool {
    const OTHERS: &[&str] = &[
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT",
        "RELEASE",
        "PRAGMA",
        "SET",
        "LISTEN",
        "UNLISTEN",
    ];
    let first = text.split_whitespace().next().unwrap_or_default();
    !first.is_empty() && !OTHERS.contains(&first.trim_end_matches(';'))
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn every_statement_has_its_index(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
) {
    let model = ScriptedModel::start().await;
    let of_model = model.variables();
    let of_model = of_model
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let variables: Vec<_> = of_model.chain(VARIABLES.iter().copied()).collect();
    let bench = Bench::start(backend, &variables).await;
    Walk::new(&bench.app, &model).go().await;
    let url = &bench.app.database.url;
    let scans = match backend {
        Backend::Sqlite => sqlite_scans(url).await,
        Backend::Postgres => {
            grow(&bench).await;
            postgres_scans(&bench).await
        }
    };
    let (control, scans): (Vec<_>, Vec<_>) = scans
        .into_iter()
        .partition(|scan| scan.ends_with(WITHOUT_INDEX));
    assert_eq!(control.len(), 1, "what has no index is found");
    assert!(scans.is_empty(), "on {backend:?}\n{}", scans.join("\n"));
}

/// Fills tables, so that it is no matter of taste which index is used.
async fn grow(bench: &Bench) {
    let http = bench.app.with_key(ADMIN);
    for _ in 0..3 {
        http.create_with(&turns(500, 50)).await;
    }
    let labels = "INSERT INTO session_metadata (tenant_id, digest, session_id) \
        SELECT tenant_id, sha256(CAST(n AS TEXT)::BYTEA), id FROM sessions, generate_series(1, 1000) AS n; ANALYZE";
    bench.app.database.execute("", labels).await;
}

/// Statements that are planned with a full scan. A text may hold several.
async fn sqlite_scans(url: &str) -> Vec<String> {
    let sent: BTreeSet<String> = statements::take().into_iter().map(|one| one.text).collect();
    let (made, sent): (Vec<_>, Vec<_>) = sent.iter().partition(|text| text.contains("CREATE TEMP"));
    let mut conn = SqliteConnection::connect(url).await.expect("a connection");
    // What a trigger does has no part in the plan of what sets it off, so its statements are planned on their own.
    let mut of_triggers = Vec::new();
    for text in made {
        let set_up = sqlx::raw_sql(AssertSqlSafe(text.clone()));
        set_up
            .execute(&mut conn)
            .await
            .expect("what a connection makes");
        let (_, body) = text.split_once(" BEGIN ").expect("a trigger");
        let (body, _) = body.rsplit_once("; END").expect("its end");
        of_triggers.push(
            body.replace("new.", ":")
                .replace("raise(ABORT, 'not done')", "NULL")
                .replace("raise(IGNORE)", "NULL"),
        );
    }
    assert_eq!(
        of_triggers.len(),
        1,
        "the trigger of the writing connection"
    );
    let singles = sent.into_iter().chain(&of_triggers);
    let singles = singles.flat_map(|text| text.split(';'));
    let singles: BTreeSet<&str> = singles.chain([WITHOUT_INDEX]).map(str::trim).collect();
    let mut scans = Vec::new();
    let mut planned = 0;
    for text in singles.into_iter().filter(|text| finds_rows(text)) {
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {text}"));
        let rows = sqlx::raw_sql(explain).fetch_all(&mut conn).await;
        let rows = rows.unwrap_or_else(|cause| panic!("no plan for {text}: {cause}"));
        planned += 1;
        for row in rows {
            let detail: String = row.get("detail");
            if let Some(place) = too_much(text, &detail)
                && !is_excepted(text, place)
            {
                scans.push(format!("{detail}\n  in {text}"));
            }
        }
    }
    assert!(planned > 100, "only {planned} statements were seen");
    scans
}

/// The table of which a step of a plan looks at more than it should.
fn too_much<'t>(text: &'t str, detail: &'t str) -> Option<&'t str> {
    let mut words = detail.split(' ');
    let (kind, name) = (words.next()?, words.next()?);
    // A virtual table says by what it is asked; not by anything: by all.
    let is_asked = detail.contains(" VIRTUAL TABLE ") && !detail.ends_with(':');
    let is_wide = match kind {
        "SCAN" => !is_asked,
        "SEARCH" => detail.ends_with("(tenant_id=?)") || detail.contains(" AUTOMATIC "),
        _ => false,
    };
    let table = table_of(text, name)?;
    let is_whole = kind == "SEARCH"
        && detail.ends_with("(tenant_id=? AND session_id=?)")
        && HISTORIES.contains(&table)
        && !text.contains("LIMIT");
    (is_wide && !SMALL.contains(&table) || is_whole).then_some(table)
}

/// The table that a plan names, perhaps by another name that the statement gives it; none for what the statement
/// itself makes.
fn table_of<'t>(text: &'t str, name: &'t str) -> Option<&'t str> {
    let words: Vec<&str> = text
        .split(|at: char| at.is_whitespace() || "(),".contains(at))
        .collect();
    let renamed = words
        .windows(3)
        .find(|at| at[1] == "AS" && at[2] == name && is_table(text, at[0]));
    if let Some(at) = renamed {
        return Some(at[0]);
    }
    is_table(text, name).then_some(name)
}

/// Whether a statement reads or writes a table of this name.
fn is_table(text: &str, name: &str) -> bool {
    let made = [
        format!("WITH {name} AS"),
        format!(", {name} AS ("),
        format!(") AS {name}"),
    ];
    let used = ["FROM", "JOIN", "INTO", "UPDATE"];
    !name.is_empty()
        && !made.iter().any(|made| text.contains(made))
        && used
            .iter()
            .any(|word| text.contains(&format!("{word} {name}")))
}

async fn postgres_scans(bench: &Bench) -> Vec<String> {
    let wire = bench.wire.as_ref().expect("the way to PostgreSQL");
    let mut prepared = wire.prepared();
    // A bigint.
    prepared.insert(WITHOUT_INDEX.to_owned(), vec![20]);
    let mut conn = PgConnection::connect(&bench.app.database.url)
        .await
        .expect("a connection");
    sqlx::raw_sql("SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan")
        .execute(&mut conn)
        .await
        .expect("settings");
    let mut scans = Vec::new();
    let mut planned = 0;
    for (text, types) in &prepared {
        // The driver asks for types itself.
        if !finds_rows(text) || text.contains("pg_catalog") || text.contains("pg_notify") {
            continue;
        }
        planned += 1;
        let plan = plan(&mut conn, text, types).await;
        let mut found = Vec::new();
        scanned(&plan[0]["Plan"], &mut found);
        for place in found {
            if !SMALL.iter().any(|small| place.starts_with(small)) && !is_excepted(text, &place) {
                scans.push(format!("all of {place}\n  in {text}"));
            }
        }
    }
    assert!(planned > 100, "only {planned} statements were seen");
    scans
}

/// The plan of a statement whose values are not known.
async fn plan(conn: &mut PgConnection, text: &str, types: &[u32]) -> Value {
    let numbers: Vec<i64> = types.iter().map(|oid| i64::from(*oid)).collect();
    let names: Vec<String> = sqlx::query_scalar(
        "SELECT CASE WHEN oid = 0 THEN 'unknown' ELSE format_type(oid, NULL) END \
         FROM unnest(CAST($1 AS BIGINT[])::OID[]) WITH ORDINALITY AS given (oid, at) ORDER BY at",
    )
    .bind(numbers)
    .fetch_all(&mut *conn)
    .await
    .expect("names of types");
    let list = |items: &[&str]| match items {
        [] => String::new(),
        items => format!("({})", items.join(", ")),
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let prepare = format!("PREPARE asked{} AS {text}", list(&names));
    let prepared = sqlx::raw_sql(AssertSqlSafe(prepare))
        .execute(&mut *conn)
        .await;
    prepared.unwrap_or_else(|cause| panic!("cannot be prepared ({cause}): {text}"));
    let explain = format!(
        "EXPLAIN (FORMAT JSON) EXECUTE asked{}",
        list(&vec!["NULL"; types.len()])
    );
    let row = sqlx::raw_sql(AssertSqlSafe(explain))
        .fetch_one(&mut *conn)
        .await;
    let row = row.unwrap_or_else(|cause| panic!("cannot be explained ({cause}): {text}"));
    let text: String = row.get_unchecked(0);
    sqlx::raw_sql("DEALLOCATE asked")
        .execute(conn)
        .await
        .expect("it was prepared");
    serde_json::from_str(&text).expect("JSON")
}

/// Tables and indexes of which all is looked at, or all that a tenant has.
fn scanned(node: &Value, found: &mut Vec<String>) {
    let kind = node["Node Type"].as_str().unwrap_or_default();
    let of = |name: &str| node[name].as_str().map(str::to_owned);
    let is_full = match kind {
        "Seq Scan" => true,
        // None, or the tenant's alone.
        "Index Scan" | "Index Only Scan" | "Bitmap Index Scan" => {
            let condition = node["Index Cond"].as_str().unwrap_or("tenant_id");
            !condition.contains(" AND ") && condition.contains("tenant_id")
        }
        _ => false,
    };
    if is_full {
        // The names of indexes begin with those of their tables.
        found.extend(of("Index Name").or_else(|| of("Relation Name")));
    }
    for inner in node["Plans"].as_array().into_iter().flatten() {
        scanned(inner, found);
    }
}
