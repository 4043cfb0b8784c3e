//! Sessions as JSON Lines: out of one database, into another, byte for byte the same.
//!
//! `docs/export-format.md` describes the lines. Which columns travel is listed in the storage; here is what lines look
//! like, in which order they come, and what must hold of them. Whoever reads or writes a file holds one line at a time
//! and a few rows, whatever the sessions hold.

mod check;
mod export;
mod import;

use std::io;

use serde_json::{Map, Value as Json};

use crate::storage::{StorageError, Table, Value};

pub use export::{Exported, Selection};
pub use import::{ImportRequest, Imported};

/// The version of the format.
const VERSION: i64 = 1;
/// The first line of every file.
const HEADER: &str = r#"{"precis":"export","version":1}"#;

/// Why nothing more was exported or imported. Names lines and columns, never what stands in them.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// A session that was asked for is not there.
    #[error("there is no session {0}")]
    NoSession(String),
    /// A tenant is not there.
    #[error("there is no tenant {0}; make it first, or name another with --tenant")]
    NoTenant(String),
    /// A line is not what it must be.
    #[error("line {line}: {problem}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// The file ends too early.
    #[error("the file is cut off behind line {0}: its last line is missing")]
    CutOff(u64),
    /// The file cannot be read.
    #[error("the file cannot be read")]
    Read(#[source] io::Error),
    /// The file cannot be written.
    #[error("the file cannot be written")]
    Write(#[source] io::Error),
    /// The database failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// A line of a row: its type, members of its own, and its columns in their order.
fn write_line(
    out: &mut Vec<u8>,
    kind: &str,
    own: &[(&str, Json)],
    row: Option<(&Table, &[Value])>,
) -> Result<(), TransferError> {
    fn put(out: &mut Vec<u8>, name: &str, value: &Json) -> Result<(), serde_json::Error> {
        out.push(b',');
        serde_json::to_writer(&mut *out, name)?;
        out.push(b':');
        serde_json::to_writer(&mut *out, value)
    }
    let failed = |error: serde_json::Error| TransferError::Write(error.into());
    out.extend_from_slice(b"{\"type\":");
    serde_json::to_writer(&mut *out, kind).map_err(failed)?;
    for (name, value) in own {
        put(out, name, value).map_err(failed)?;
    }
    if let Some((table, values)) = row {
        for (column, value) in table.columns.iter().zip(values) {
            put(out, column.name, &value.to_json()).map_err(failed)?;
        }
    }
    out.extend_from_slice(b"}\n");
    Ok(())
}

/// Takes a row's values off a line; nothing else may be left on it.
fn take_row(table: &Table, mut line: Map<String, Json>) -> Result<Vec<Value>, String> {
    let mut values = Vec::with_capacity(table.columns.len());
    for column in table.columns {
        let json = match line.remove(column.name) {
            Some(json) => json,
            // A file of a version that did not know it.
            None if column.nullable => Json::Null,
            None => return Err(format!("`{}` is missing", column.name)),
        };
        let value = Value::from_json(column, json);
        values.push(value.ok_or_else(|| format!("`{}` is not what it must be", column.name))?);
    }
    match line.keys().next() {
        None => Ok(values),
        Some(_) => Err("it has a member that this version does not know".to_owned()),
    }
}

fn take_text(line: &mut Map<String, Json>, name: &str) -> Result<String, String> {
    match line.remove(name) {
        Some(Json::String(text)) => Ok(text),
        Some(_) => Err(format!("`{name}` is no text")),
        None => Err(format!("`{name}` is missing")),
    }
}

fn take_count(line: &mut Map<String, Json>, name: &str) -> Result<u64, String> {
    let found = line
        .remove(name)
        .ok_or_else(|| format!("`{name}` is missing"))?;
    found
        .as_u64()
        .ok_or_else(|| format!("`{name}` is no count"))
}

fn hex(digest: &[u8]) -> String {
    use std::fmt::Write as _;
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}
