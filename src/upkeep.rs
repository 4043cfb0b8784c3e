//! What an operator does beside the running service: pruning, backups, exports and imports.
//!
//! Each opens the database as the service does, and works while the service does. Exit codes and the command line are
//! the program's.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::app::{self, StartError};
use crate::config::Settings;
use crate::domain::ids::parse_session_id;
use crate::new_file::{NewFile, NewFileError};
use crate::service::{
    ImportRequest, Imported, PruneReport, PruneRequest, Selection, Service, TransferError,
};
use crate::storage::{Backup, BackupError, Database, StorageError, Url, back_up};

/// Bytes that are read and written at once.
const BUFFER: usize = 256 << 10;
/// A line holds a message in its JSON spelling, where a byte is mostly one and seldom two; and other things beside it.
const SPELLING: u64 = 8;
const BESIDE: u64 = 64 << 20;

/// Why something was not done, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum UpkeepError {
    /// The database cannot be opened.
    #[error(transparent)]
    Open(#[from] StartError),
    /// The database failed; what was done before stays done.
    #[error("the database failed on the way")]
    Storage(#[from] StorageError),
    /// There is no such tenant.
    #[error("there is no tenant {0}")]
    NoTenant(String),
    /// There is no backup.
    #[error("no backup was made")]
    Backup(#[source] BackupError),
    /// A PostgreSQL database is copied by its own tools.
    #[error(
        "this is for SQLite. For {0}, use PostgreSQL's own: pg_dump --format=custom --file=precis.dump \"$PRECIS_DATABASE_URL\", \
         and pg_restore --clean --if-exists --dbname=\"$PRECIS_DATABASE_URL\" precis.dump to restore"
    )]
    UsePgDump(String),
    /// A session's id is none.
    #[error("{0} is no session's id")]
    NoId(String),
    /// The export stopped.
    #[error("nothing was exported")]
    Export(#[source] TransferError),
    /// The file cannot be made.
    #[error("nothing was exported")]
    File(#[from] NewFileError),
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The import stopped; what was whole before stays.
    #[error("the import stopped; before that, {}", described(.done, false))]
    Import {
        /// What is there.
        done: Box<Imported>,
        /// Why it stopped.
        #[source]
        source: TransferError,
    },
}

/// The service on its database, with nothing begun; for whoever works beside a running one.
async fn open(settings: &Settings) -> Result<(Service, Database), UpkeepError> {
    Ok(app::open_beside(settings).await?)
}

/// Deletes what has been kept long enough.
///
/// # Errors
/// The database cannot be opened, or failed.
pub async fn prune_store(
    settings: &Settings,
    request: &PruneRequest,
) -> Result<PruneReport, UpkeepError> {
    let (service, database) = open(settings).await?;
    let outcome = prune_opened(&service, &database, request).await;
    database.close().await;
    outcome
}

async fn prune_opened(
    service: &Service,
    database: &Database,
    request: &PruneRequest,
) -> Result<PruneReport, UpkeepError> {
    if let Some(name) = &request.tenant {
        let tenants = database.list_tenant_days().await?;
        if tenants.iter().all(|tenant| tenant.name != *name) {
            return Err(UpkeepError::NoTenant(name.clone()));
        }
    }
    Ok(service.prune_store(request).await?)
}

/// A report for a person: counts, and with `verbose` each session on a line of its own.
#[must_use]
pub fn describe_pruned(report: &PruneReport, verbose: bool) -> String {
    let done = if report.dry_run {
        "would be deleted"
    } else {
        "deleted"
    };
    let mut text = format!("{} {done}", counted(report.sessions.len(), "session"));
    if report.finished > 0 {
        write!(text, ", the rest of {} deleted before", report.finished).ok();
    }
    if report.replicas > 0 {
        write!(text, ", {} gone replicas forgotten", report.replicas).ok();
    }
    if verbose {
        for session in &report.sessions {
            let (tenant, id, time) = (&session.tenant, &session.id, session.updated_at);
            // Writing to a string does not fail.
            write!(text, "\n{tenant} {id} {time}").ok();
        }
    }
    text
}

/// Copies an SQLite database into a new file.
///
/// # Errors
/// Nothing is left at `target` then.
pub async fn backup(settings: &Settings, target: &Path) -> Result<Backup, UpkeepError> {
    let url = app::parse_url(settings)?;
    if let Url::Postgres(_) = url {
        return Err(UpkeepError::UsePgDump(url.describe()));
    }
    let made = back_up(&url, target).await;
    made.map_err(UpkeepError::Backup)
}

/// What is exported, as it is named on a command line.
///
/// # Errors
/// A session's id is none.
pub fn selection(
    sessions: &[String],
    tenant: Option<String>,
    all: bool,
) -> Result<Selection, UpkeepError> {
    if !sessions.is_empty() {
        let ids = sessions.iter().map(|id| {
            let parsed = parse_session_id(id);
            parsed.ok_or_else(|| UpkeepError::NoId(id.clone()))
        });
        return Ok(Selection::Sessions {
            tenant: tenant.unwrap_or_else(|| "default".to_owned()),
            ids: ids.collect::<Result<_, _>>()?,
        });
    }
    Ok(match tenant {
        Some(tenant) if !all => Selection::Tenant(tenant),
        _ => Selection::All,
    })
}

/// Exports to a new file, or to standard output; gives a line that says what.
///
/// # Errors
/// No file is left then; what went to standard output is cut off, and an import notices.
pub async fn export(
    settings: &Settings,
    selection: &Selection,
    target: Option<&Path>,
) -> Result<String, UpkeepError> {
    let (service, database) = open(settings).await?;
    let exported = match target {
        None => {
            let mut out = BufWriter::with_capacity(BUFFER, io::stdout());
            service.export(selection, &mut out).await
        }
        Some(target) => {
            let file = NewFile::make(target)?;
            let mut out = BufWriter::with_capacity(BUFFER, file.open()?);
            let exported = service.export(selection, &mut out).await;
            drop(out);
            if exported.is_ok() {
                file.publish()?;
            }
            exported
        }
    };
    database.close().await;
    let done = exported.map_err(UpkeepError::Export)?;
    Ok(format!(
        "{} and {} exported, {} lines of sessions",
        counted(
            usize::try_from(done.sessions).unwrap_or(usize::MAX),
            "session"
        ),
        counted(usize::try_from(done.agents).unwrap_or(usize::MAX), "agent"),
        done.rows
    ))
}

/// Imports a file, or standard input; gives a text that says what, with a line for each session that has a new id.
///
/// # Errors
/// The database cannot be opened, or the import stopped.
pub async fn import(
    settings: &Settings,
    mut request: ImportRequest,
    source: Option<&Path>,
) -> Result<String, UpkeepError> {
    let message = u64::try_from(settings.limits.message_bytes).unwrap_or(u64::MAX / SPELLING);
    request.line_bytes = message.saturating_mul(SPELLING).saturating_add(BESIDE);
    let (done, outcome) = match source {
        None => {
            let (service, database) = open(settings).await?;
            // Standard input's lock stays with its thread.
            let mut input = BufReader::with_capacity(BUFFER, io::stdin());
            let imported = service.import(&request, &mut input).await;
            database.close().await;
            imported
        }
        Some(path) => {
            let file = File::open(path).map_err(|source| UpkeepError::Read {
                path: path.to_owned(),
                source,
            })?;
            let (service, database) = open(settings).await?;
            let mut input = BufReader::with_capacity(BUFFER, file);
            let imported = service.import(&request, &mut input).await;
            database.close().await;
            imported
        }
    };
    if let Err(source) = outcome {
        return Err(UpkeepError::Import {
            done: Box::new(done),
            source,
        });
    }
    let mut text = described(&done, request.dry_run);
    for (old, new) in &done.renamed {
        write!(text, "\n{old} {new}").ok();
    }
    Ok(text)
}

fn described(done: &Imported, dry_run: bool) -> String {
    let count = |count: u64, word| counted(usize::try_from(count).unwrap_or(usize::MAX), word);
    let verb = if dry_run {
        "would be imported"
    } else {
        "imported"
    };
    let mut text = format!(
        "{} and {} {verb}, {} lines of sessions",
        count(done.sessions, "session"),
        count(done.agents, "agent"),
        done.rows
    );
    if done.skipped > 0 {
        write!(text, "; {} there already", done.skipped).ok();
    }
    text
}

fn counted(count: usize, word: &str) -> String {
    match count {
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    }
}

/// Reads a span such as `30d`, `12h`, `90m` or `45s`.
///
/// # Errors
/// What it takes.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    const TAKES: &str = "it takes a number with d, h, m or s, such as 30d";
    let unit = text.chars().next_back().ok_or(TAKES)?;
    let seconds: u64 = match unit {
        'd' => 86_400,
        'h' => 3_600,
        'm' => 60,
        's' => 1,
        _ => return Err(TAKES.to_owned()),
    };
    let number: u64 = text
        .strip_suffix(unit)
        .unwrap_or_default()
        .parse()
        .map_err(|_| TAKES)?;
    let span = number.checked_mul(seconds).map(Duration::from_secs);
    span.ok_or_else(|| TAKES.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_number_and_a_unit() {
        assert_eq!(parse_span("30d"), Ok(Duration::from_hours(720)));
        assert_eq!(parse_span("12h"), Ok(Duration::from_hours(12)));
        assert_eq!(parse_span("0s"), Ok(Duration::ZERO));
        for wrong in [
            "",
            "d",
            "30",
            "-1d",
            "1.5d",
            "30 d",
            "30dd",
            "99999999999999999d",
        ] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
    }
}
