//! Rows of sessions as they leave one database and enter another.
//!
//! One list says which columns travel and what they hold; reading and writing go by it, so that both databases give
//! and take the same. What the rows mean is checked by the service. A test holds the list against the schema:
//! a column that a migration adds either travels or is named among those that stay.

mod read;
mod write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;
use uuid::Uuid;

use super::Timestamp;

pub use read::Snapshot;
pub use write::{BeginImport, FinishImport, ImportAgent, ImportBegun, ImportRows};

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Int,
    /// Yes or no.
    Bool,
    /// Text.
    Text,
    /// Bytes, in base64 on a line.
    Bytes,
    /// An id of 16 bytes.
    Id,
    /// A point in time.
    Time,
}

/// What a column of a row holds; `None` is NULL.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "one each of `Kind`")]
pub enum Value {
    Int(Option<i64>),
    Bool(Option<bool>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    Id(Option<Uuid>),
    Time(Option<Timestamp>),
}

/// A column that travels.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its name, in the database and on a line.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// Whether it may be NULL.
    pub nullable: bool,
}

/// A table whose rows travel with their session.
#[derive(Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The type of its lines.
    pub line: &'static str,
    /// Its columns, but for the tenant and the session.
    pub columns: &'static [Column],
    /// Columns that put its rows in order, and are enough to go on behind one.
    pub order: &'static [&'static str],
}

const fn must(name: &'static str, kind: Kind) -> Column {
    Column {
        name,
        kind,
        nullable: false,
    }
}

const fn may(name: &'static str, kind: Kind) -> Column {
    Column {
        name,
        kind,
        nullable: true,
    }
}

/// The session's own row. Its id is not among the columns.
pub static SESSIONS: Table = Table {
    name: "sessions",
    line: "session",
    columns: &[
        may("agent_name", Kind::Text),
        may("agent", Kind::Text),
        must("mode", Kind::Text),
        must("status", Kind::Text),
        may("title", Kind::Text),
        may("model", Kind::Text),
        may("model_thinking", Kind::Text),
        may("instance_folder", Kind::Text),
        must("metadata", Kind::Text),
        must("compaction", Kind::Text),
        must("pruning", Kind::Text),
        must("auto_compact", Kind::Text),
        may("compact_summary", Kind::Text),
        must("compact_size", Kind::Int),
        must("compact_count", Kind::Int),
        must("compaction_version", Kind::Int),
        must("compact_seq", Kind::Int),
        must("compact_length", Kind::Int),
        must("compact_tokens", Kind::Int),
        must("compact_bytes", Kind::Int),
        must("last_seq", Kind::Int),
        must("message_count", Kind::Int),
        must("position_count", Kind::Int),
        must("history_length", Kind::Int),
        must("history_tokens", Kind::Int),
        must("history_bytes", Kind::Int),
        must("instruction_tokens", Kind::Int),
        must("tail", Kind::Text),
        must("revision", Kind::Int),
        must("rewrites", Kind::Int),
        must("dispatch_count", Kind::Int),
        must("plan_dispatch", Kind::Int),
        must("tokens_saved", Kind::Int),
        must("elisions", Kind::Int),
        must("plan_changes", Kind::Int),
        must("previous_bytes", Kind::Int),
        must("shared_bytes", Kind::Int),
        must("refetches", Kind::Int),
        must("restores", Kind::Int),
        must("event_seq", Kind::Int),
        may("due_at", Kind::Time),
        must("due_waits", Kind::Bool),
        must("due_failures", Kind::Int),
        must("stalls", Kind::Int),
        may("stalled_tokens", Kind::Int),
        may("turn_id", Kind::Id),
        may("turn_until", Kind::Time),
        may("retention_days", Kind::Int),
        must("created_at", Kind::Time),
        must("updated_at", Kind::Time),
        may("closed_at", Kind::Time),
    ],
    order: &[],
};

/// The tables of a session's rows, in the order of their lines: what an import must know of the summaries stands
/// before the messages that they cover.
pub static TABLES: [Table; 7] = [
    Table {
        name: "compactions",
        line: "compaction",
        columns: &[
            must("version", Kind::Int),
            must("id", Kind::Id),
            must("based_on", Kind::Int),
            must("from_position", Kind::Int),
            must("to_position", Kind::Int),
            must("to_seq", Kind::Int),
            must("digest", Kind::Bytes),
            must("batch_length", Kind::Int),
            must("summary_length", Kind::Int),
            must("summary_tokens", Kind::Int),
            may("compact_count", Kind::Int),
            may("keep_tokens", Kind::Int),
            must("keep_recent_turns", Kind::Int),
            must("boundary", Kind::Text),
            may("instructions", Kind::Text),
            must("cause", Kind::Text),
            must("method", Kind::Text),
            may("model", Kind::Text),
            may("usage", Kind::Text),
            must("parts", Kind::Int),
            must("shortened", Kind::Int),
            must("duration_ms", Kind::Int),
            must("created_at", Kind::Time),
            may("note", Kind::Text),
            may("summary", Kind::Text),
        ],
        order: &["version"],
    },
    Table {
        name: "messages",
        line: "message",
        columns: &[
            must("seq", Kind::Int),
            may("position", Kind::Int),
            must("id", Kind::Text),
            must("role", Kind::Text),
            must("starts_turn", Kind::Bool),
            must("starts_group", Kind::Bool),
            must("erased", Kind::Bool),
            must("incomplete", Kind::Bool),
            must("length", Kind::Int),
            must("tokens", Kind::Int),
            must("length_before", Kind::Int),
            must("tokens_before", Kind::Int),
            must("bytes_before", Kind::Int),
            may("call_index", Kind::Int),
            may("tool_name", Kind::Text),
            must("created_at", Kind::Time),
            must("body_digest", Kind::Bytes),
            must("content_digest", Kind::Bytes),
            may("calls", Kind::Text),
            may("usage", Kind::Text),
            may("fill", Kind::Text),
            may("item", Kind::Text),
            must("body", Kind::Text),
        ],
        order: &["seq"],
    },
    Table {
        name: "elisions",
        line: "elision",
        columns: &[
            must("version", Kind::Int),
            must("seq", Kind::Int),
            must("dispatch", Kind::Int),
            must("rule", Kind::Text),
            may("names_seq", Kind::Int),
            must("body_length", Kind::Int),
            must("body_digest", Kind::Bytes),
            must("tokens", Kind::Int),
            must("saved_tokens", Kind::Int),
            may("arguments", Kind::Text),
            must("replacement", Kind::Text),
        ],
        order: &["version", "seq"],
    },
    Table {
        name: "dispatches",
        line: "dispatch",
        columns: &[
            must("n", Kind::Int),
            must("created_at", Kind::Time),
            may("model", Kind::Text),
            must("format", Kind::Text),
            must("renderer", Kind::Int),
            must("last_seq", Kind::Int),
            must("rewrites", Kind::Int),
            must("version", Kind::Int),
            must("plan", Kind::Int),
            must("plan_length", Kind::Int),
            must("carries", Kind::Bool),
            must("messages", Kind::Int),
            must("bytes", Kind::Int),
            must("digest", Kind::Bytes),
            must("openai_bytes", Kind::Int),
            may("previous_bytes", Kind::Int),
            may("shared_bytes", Kind::Int),
            must("tokens_before", Kind::Int),
            must("tokens_after", Kind::Int),
            must("added", Kind::Int),
            must("refetches", Kind::Int),
            may("fits", Kind::Bool),
            must("parameters", Kind::Text),
            must("candidates", Kind::Text),
            must("reasons", Kind::Text),
            must("source_breakpoints", Kind::Text),
            must("breakpoints", Kind::Text),
        ],
        order: &["n"],
    },
    Table {
        name: "dispatch_marks",
        line: "dispatch_marks",
        columns: &[
            must("n", Kind::Int),
            must("step", Kind::Int),
            must("marks", Kind::Bytes),
        ],
        order: &["n"],
    },
    Table {
        name: "rewrites",
        line: "rewrite",
        columns: &[
            must("counter", Kind::Int),
            must("kind", Kind::Text),
            must("seq", Kind::Int),
            may("message_id", Kind::Text),
            must("created_at", Kind::Time),
        ],
        order: &["counter"],
    },
    Table {
        name: "turns",
        line: "turn",
        columns: &[
            must("id", Kind::Id),
            must("status", Kind::Text),
            may("model", Kind::Text),
            may("first_seq", Kind::Int),
            may("last_seq", Kind::Int),
            may("dispatch", Kind::Int),
            may("compaction", Kind::Int),
            may("finish", Kind::Text),
            may("usage", Kind::Text),
            must("incomplete", Kind::Bool),
            may("open_calls", Kind::Text),
            may("error_code", Kind::Text),
            may("error_detail", Kind::Text),
            must("created_at", Kind::Time),
            may("ended_at", Kind::Time),
        ],
        order: &["id"],
    },
];

/// The table whose lines have this type, if there is one.
#[must_use]
pub fn table_of_line(line: &str) -> Option<&'static Table> {
    TABLES.iter().find(|table| table.line == line)
}

impl Table {
    /// Columns joined for a statement.
    fn column_list(&self) -> String {
        let names: Vec<_> = self.columns.iter().map(|column| column.name).collect();
        names.join(", ")
    }

    /// Whether its lines stand before those of another table.
    #[must_use]
    pub fn comes_before(&self, other: &Self) -> bool {
        let place = |table: &Self| TABLES.iter().position(|known| known.name == table.name);
        place(self) < place(other)
    }

    /// Where a column stands in a row.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

impl Value {
    /// As it stands on a line.
    #[must_use]
    pub fn to_json(&self) -> Json {
        match self {
            Self::Int(value) => value.map_or(Json::Null, Json::from),
            Self::Bool(value) => value.map_or(Json::Null, Json::from),
            Self::Text(value) => value.as_deref().map_or(Json::Null, Json::from),
            Self::Bytes(value) => value
                .as_ref()
                .map_or(Json::Null, |bytes| STANDARD.encode(bytes).into()),
            Self::Id(value) => value.map_or(Json::Null, |id| id.simple().to_string().into()),
            Self::Time(value) => value.map_or(Json::Null, |time| time.to_string().into()),
        }
    }

    /// As it stood on a line; `None` if the column cannot hold it.
    #[must_use]
    pub fn from_json(column: &Column, json: Json) -> Option<Self> {
        if json.is_null() {
            return column.nullable.then(|| Self::null(column.kind));
        }
        Some(match (column.kind, json) {
            (Kind::Int, Json::Number(number)) => Self::Int(Some(number.as_i64()?)),
            (Kind::Bool, Json::Bool(value)) => Self::Bool(Some(value)),
            (Kind::Text, Json::String(text)) if !text.contains('\0') => Self::Text(Some(text)),
            (Kind::Bytes, Json::String(text)) => Self::Bytes(Some(STANDARD.decode(text).ok()?)),
            (Kind::Id, Json::String(text)) => Self::Id(Some(Uuid::try_parse(&text).ok()?)),
            (Kind::Time, Json::String(text)) => Self::Time(Some(Timestamp::parse(&text)?)),
            _ => return None,
        })
    }

    fn null(kind: Kind) -> Self {
        match kind {
            Kind::Int => Self::Int(None),
            Kind::Bool => Self::Bool(None),
            Kind::Text => Self::Text(None),
            Kind::Bytes => Self::Bytes(None),
            Kind::Id => Self::Id(None),
            Kind::Time => Self::Time(None),
        }
    }

    /// Bytes that it takes, about.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Text(Some(text)) => text.len(),
            Self::Bytes(Some(bytes)) => bytes.len(),
            _ => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::storage::{Database, Options, Url};

    /// Tables with rows of sessions that do not travel: events tell, leases end, kept answers are for requests that are
    /// made again where they were made, the others are made anew.
    const STAY: [&str; 5] = [
        "events",
        "idempotency",
        "leases",
        "search_rows",
        "session_metadata",
    ];
    /// Columns that do not: whose it is and which, and what the import decides.
    const OWN: [&str; 5] = ["tenant_id", "session_id", "id", "indexed_seq", "deleted_at"];

    async fn columns() -> Vec<(String, String, bool)> {
        let directory = tempfile::tempdir().unwrap();
        let url = Url::Sqlite(directory.path().join("columns.db"));
        let options = Options {
            max_connections: 1,
            readers: 1,
            acquire_timeout: Duration::from_secs(10),
            busy_timeout: Duration::from_secs(10),
            synced: true,
        };
        Database::migrate(&url, &options).await.unwrap();
        let database = Database::open(&url, &options).await.unwrap();
        let Database::Sqlite { readers, .. } = &database else {
            panic!("an SQLite database");
        };
        let mut held = readers.acquire().await.unwrap();
        let found = sqlx::query_as(
            "SELECT tables.name, columns.name, columns.\"notnull\" FROM pragma_table_list AS tables, \
             pragma_table_info(tables.name) AS columns WHERE tables.type = 'table'",
        )
        .fetch_all(&mut *held)
        .await
        .unwrap();
        held.give_back();
        database.close().await;
        found
    }

    #[tokio::test]
    async fn every_column_of_a_session_travels_or_is_named_among_those_that_stay() {
        let columns = columns().await;
        let of_sessions = columns
            .iter()
            .filter(|(_, column, _)| column == "session_id")
            .map(|(table, ..)| table.as_str());
        for table in of_sessions.clone().filter(|table| !STAY.contains(table)) {
            let listed = TABLES.iter().any(|known| known.name == table);
            assert!(listed, "`{table}` neither travels nor is it named in STAY");
        }
        for stays in STAY {
            assert!(of_sessions.clone().any(|table| table == stays), "{stays}");
        }
        for table in TABLES.iter().chain([&SESSIONS]) {
            let own = |name: &str| OWN.contains(&name) && table.place(name).is_none();
            let mut found: Vec<_> = columns
                .iter()
                .filter(|(of, name, _)| of == table.name && !own(name))
                .map(|(_, name, must)| (name.as_str(), !must))
                .collect();
            let listed = table.columns.iter();
            let mut listed: Vec<_> = listed.map(|one| (one.name, one.nullable)).collect();
            found.sort_unstable();
            listed.sort_unstable();
            assert_eq!(found, listed, "the columns of `{}`", table.name);
        }
    }
}
