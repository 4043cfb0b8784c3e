//! Reading sessions in: each whole, or not at all.
//!
//! A session is written under its id, hidden, while its lines are read, and appears when its last line has been
//! checked. Whatever stops the import leaves it hidden, and it is deleted.

use std::io::{BufRead, Read as _};

use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};

use super::check::Check;
use super::{HEADER, TransferError, VERSION, hex, take_count, take_row, take_text};
use crate::domain::ids::{parse_session_id, session_id};
use crate::service::sessions::labels;
use crate::service::{AgentDocument, Service};
use crate::storage::{
    BeginImport, FinishImport, ImportAgent, ImportBegun, ImportRows, SESSIONS, SessionKey,
    StorageError, Table, TenantId, Timestamp, Value, table_of_line,
};

/// Rows, and bytes in them, that are stored at once.
const STORED_ROWS: usize = 256;
const STORED_BYTES: usize = 1 << 20;

/// How a file is imported.
#[derive(Debug, Clone)]
pub struct ImportRequest {
    /// Everything goes to the tenant of this name, wherever it came from.
    pub tenant: Option<String>,
    /// Sessions get new ids.
    pub new_ids: bool,
    /// Sessions that are there already are left as they are; without this they stop the import.
    pub skip_existing: bool,
    /// Everything is checked and nothing stored.
    pub dry_run: bool,
    /// The longest line that is read, in bytes.
    pub line_bytes: u64,
}

/// What was imported, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Agents that were not there.
    pub agents: u64,
    /// Sessions, each with the id that it has now.
    pub sessions: u64,
    /// Sessions that were there already.
    pub skipped: u64,
    /// Rows of sessions, their messages among them.
    pub rows: u64,
    /// Ids in the file and here, where they are different.
    pub renamed: Vec<(String, String)>,
}

impl Service {
    /// Imports a file. Sessions before the line that stops it are there; the outcome says how many.
    pub async fn import(
        &self,
        request: &ImportRequest,
        input: &mut (dyn BufRead + Send),
    ) -> (Imported, Result<(), TransferError>) {
        let mut import = Import {
            service: self,
            request,
            line: 0,
            tenant: None,
            seen: Seen::default(),
            current: None,
            done: Imported::default(),
        };
        let outcome = import.run(input).await;
        if outcome.is_err() {
            import.abandon().await;
        }
        (import.done, outcome)
    }
}

/// What has been read, imported or not.
#[derive(Default)]
struct Seen {
    agents: u64,
    sessions: u64,
}

struct Import<'a> {
    service: &'a Service,
    request: &'a ImportRequest,
    line: u64,
    tenant: Option<TenantId>,
    seen: Seen,
    current: Option<Current>,
    done: Imported,
}

/// The session whose lines are being read.
struct Current {
    key: SessionKey,
    id: String,
    check: Check,
    digest: Sha256,
    /// It is only checked.
    skips: bool,
    exists: bool,
    /// The type of its last row, by its place among the types.
    table: Option<&'static Table>,
    waiting: Vec<Vec<Value>>,
    bytes: usize,
    rows: u64,
}

/// What a line leads to.
enum Next {
    More,
    End,
}

impl Import<'_> {
    async fn run(&mut self, input: &mut (dyn BufRead + Send)) -> Result<(), TransferError> {
        let mut text = Vec::new();
        self.read(input, &mut text)?;
        self.check_header(&text)?;
        loop {
            self.read(input, &mut text)?;
            let line: Map<String, Json> =
                serde_json::from_slice(&text).map_err(|_| self.wrong("it is no JSON object"))?;
            if let Next::End = self.take(line, &text).await? {
                break;
            }
        }
        // An end within the file would hide what follows.
        let mut rest = [0; 1];
        if input.read(&mut rest).map_err(TransferError::Read)? > 0 {
            self.line += 1;
            return Err(self.wrong("it stands behind the end"));
        }
        Ok(())
    }

    /// Reads a line with its line feed, without which it is cut off.
    fn read(
        &mut self,
        input: &mut (dyn BufRead + Send),
        text: &mut Vec<u8>,
    ) -> Result<(), TransferError> {
        text.clear();
        let most = self.request.line_bytes;
        let read = input.take(most).read_until(b'\n', text);
        let read = read.map_err(TransferError::Read)?;
        if text.last() == Some(&b'\n') {
            self.line += 1;
            return Ok(());
        }
        if u64::try_from(read).is_ok_and(|read| read >= most) {
            self.line += 1;
            return Err(self.wrong("it is longer than a message of this server may be"));
        }
        Err(TransferError::CutOff(self.line))
    }

    fn check_header(&self, text: &[u8]) -> Result<(), TransferError> {
        if text.trim_ascii_end() == HEADER.as_bytes() {
            return Ok(());
        }
        let header: Option<Map<String, Json>> = serde_json::from_slice(text).ok();
        let is_ours = |header: &Map<String, Json>| {
            header.get("precis").and_then(Json::as_str) == Some("export")
        };
        let Some(header) = header.filter(is_ours) else {
            return Err(self.wrong("this is no export of Precis"));
        };
        match header.get("version").and_then(Json::as_i64) {
            Some(VERSION) => Ok(()),
            Some(other) => Err(self.wrong(format!(
                "the format is version {other}, and this program reads {VERSION}"
            ))),
            None => Err(self.wrong("it names no version")),
        }
    }

    fn wrong(&self, problem: impl Into<String>) -> TransferError {
        let problem = problem.into();
        let session = self.current.as_ref();
        TransferError::Line {
            line: self.line,
            problem: session.map_or_else(
                || problem.clone(),
                |session| format!("{problem} (session {})", session.id),
            ),
        }
    }

    async fn take(
        &mut self,
        mut line: Map<String, Json>,
        text: &[u8],
    ) -> Result<Next, TransferError> {
        let kind = take_text(&mut line, "type").map_err(|problem| self.wrong(problem))?;
        if self.current.is_some() {
            if kind == "session_end" {
                self.end_session(line).await?;
                return Ok(Next::More);
            }
            let Some(table) = table_of_line(&kind) else {
                return Err(
                    self.wrong("it is none of a session's lines, and no `session_end` came")
                );
            };
            self.row(table, line, text).await?;
            return Ok(Next::More);
        }
        match kind.as_str() {
            "tenant" => self.begin_tenant(line).await?,
            "agent" => self.agent(line).await?,
            "session" => self.begin_session(line, text).await?,
            "end" => {
                self.end(line)?;
                return Ok(Next::End);
            }
            _ => return Err(self.wrong("its `type` does not belong here")),
        }
        Ok(Next::More)
    }

    async fn begin_tenant(&mut self, mut line: Map<String, Json>) -> Result<(), TransferError> {
        let name = take_text(&mut line, "name").map_err(|problem| self.wrong(problem))?;
        let name = self.request.tenant.clone().unwrap_or(name);
        let tenants = self.service.database().list_tenant_days().await?;
        let found = tenants.iter().find(|tenant| tenant.name == name);
        self.tenant = Some(found.ok_or(TransferError::NoTenant(name))?.id());
        Ok(())
    }

    fn tenant(&self) -> Result<TenantId, TransferError> {
        self.tenant
            .ok_or_else(|| self.wrong("no `tenant` line stands before it"))
    }

    async fn agent(&mut self, mut line: Map<String, Json>) -> Result<(), TransferError> {
        let tenant = self.tenant()?;
        self.seen.agents += 1;
        let agent = read_agent(tenant, &mut line).map_err(|problem| self.wrong(problem))?;
        let (name, document) = (agent.name.clone(), agent.document.clone());
        let database = self.service.database();
        let before = database.find_agent(tenant, &name).await?;
        let stored = match &before {
            Some(stored) => stored.document.clone(),
            None if self.request.dry_run => document.clone(),
            None => database.write(agent).await?,
        };
        if stored != document {
            return Err(self.wrong("there is another agent of this name"));
        }
        if before.is_none() {
            self.done.agents += 1;
        }
        Ok(())
    }

    async fn begin_session(
        &mut self,
        mut line: Map<String, Json>,
        text: &[u8],
    ) -> Result<(), TransferError> {
        let tenant = self.tenant()?;
        self.seen.sessions += 1;
        let id = take_text(&mut line, "id").map_err(|problem| self.wrong(problem))?;
        let old = parse_session_id(&id).ok_or_else(|| self.wrong("`id` is no session's id"))?;
        let row = take_row(&SESSIONS, line).map_err(|problem| self.wrong(problem))?;
        let check = Check::begin(&row).map_err(|problem| self.wrong(problem))?;
        let session = if self.request.new_ids {
            self.service.new_id()
        } else {
            old
        };
        let key = SessionKey { tenant, session };
        let exists = !self.begin(key, row).await?;
        if exists && !self.request.skip_existing {
            return Err(self.wrong(
                "a session of this id exists; --new-ids gives new ones, --skip-existing leaves those that are there",
            ));
        }
        let mut digest = Sha256::new();
        digest.update(text);
        self.current = Some(Current {
            key,
            id,
            check,
            digest,
            skips: exists || self.request.dry_run,
            exists,
            table: None,
            waiting: Vec::new(),
            bytes: 0,
            rows: 0,
        });
        Ok(())
    }

    /// Takes the id; gives whether it was free.
    async fn begin(&self, key: SessionKey, row: Vec<Value>) -> Result<bool, TransferError> {
        let database = self.service.database();
        if self.request.dry_run {
            return Ok(database.find_session(key).await?.is_none());
        }
        let metadata = SESSIONS.place("metadata").and_then(|at| row.get(at));
        let labels = match metadata {
            Some(Value::Text(Some(text))) => labels(text),
            _ => Vec::new(),
        };
        let begin = BeginImport {
            key,
            row,
            labels,
            now: self.service.now(),
        };
        let mut outcome = database.write(begin.clone()).await?;
        if outcome == ImportBegun::Hidden {
            // What an import or a deletion left behind is in nobody's way.
            self.service.delete_rest(key).await;
            outcome = database.write(begin).await?;
        }
        match outcome {
            ImportBegun::Yes => Ok(true),
            ImportBegun::Exists => Ok(false),
            ImportBegun::Hidden => Err(self.wrong(
                "a session of this id is being imported or deleted by another process; one that broke off is \
                 forgotten after ten minutes",
            )),
        }
    }

    async fn row(
        &mut self,
        table: &'static Table,
        line: Map<String, Json>,
        text: &[u8],
    ) -> Result<(), TransferError> {
        let values = take_row(table, line).map_err(|problem| self.wrong(problem))?;
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let changes = current.table.is_none_or(|last| last.name != table.name);
        if changes && current.table.is_some_and(|last| !last.comes_before(table)) {
            return Err(self.wrong("its `type` is out of order"));
        }
        if let Err(problem) = current.check.row(table, &values) {
            return Err(self.wrong(problem));
        }
        current.digest.update(text);
        current.rows += 1;
        if changes {
            self.store().await?;
        }
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        current.table = Some(table);
        if current.skips {
            return Ok(());
        }
        current.bytes += values.iter().map(Value::size).sum::<usize>();
        current.waiting.push(values);
        if current.waiting.len() >= STORED_ROWS || current.bytes >= STORED_BYTES {
            self.store().await?;
        }
        Ok(())
    }

    /// Stores the rows that wait.
    async fn store(&mut self) -> Result<(), TransferError> {
        let now = self.service.now();
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let Some(table) = current.table.filter(|_| !current.waiting.is_empty()) else {
            return Ok(());
        };
        current.bytes = 0;
        let rows = ImportRows {
            key: current.key,
            table,
            rows: std::mem::take(&mut current.waiting),
            now,
        };
        match self.service.database().write(rows).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.wrong("the session was deleted while it was imported")),
            Err(StorageError::Duplicate(_)) => Err(self.wrong(format!(
                "an id stands twice in the lines of type `{}` up to here",
                table.line
            ))),
            Err(error) => Err(error.into()),
        }
    }

    async fn end_session(&mut self, mut line: Map<String, Json>) -> Result<(), TransferError> {
        let rows = take_count(&mut line, "rows").map_err(|problem| self.wrong(problem))?;
        let sha256 = take_text(&mut line, "sha256").map_err(|problem| self.wrong(problem))?;
        self.store().await?;
        let Some(current) = &self.current else {
            return Ok(());
        };
        if current.rows != rows {
            let problem = format!("the session has {rows} lines, and {} came", current.rows);
            return Err(self.wrong(problem));
        }
        if hex(&current.digest.clone().finalize()) != sha256 {
            return Err(self.wrong("the session's lines are not those that were exported"));
        }
        if let Err(problem) = current.check.finish() {
            return Err(self.wrong(problem));
        }
        let finish = FinishImport {
            key: current.key,
            whole: true,
            now: self.service.now(),
        };
        if !current.skips && !self.service.database().write(finish).await? {
            return Err(self.wrong("the session was deleted while it was imported"));
        }
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        if current.exists {
            self.done.skipped += 1;
            return Ok(());
        }
        self.done.sessions += 1;
        self.done.rows += rows;
        let id = session_id(current.key.session);
        if id != current.id && !self.request.dry_run {
            self.done.renamed.push((current.id, id));
        }
        Ok(())
    }

    fn end(&self, mut line: Map<String, Json>) -> Result<(), TransferError> {
        for (name, seen) in [
            ("agents", self.seen.agents),
            ("sessions", self.seen.sessions),
        ] {
            let told = take_count(&mut line, name).map_err(|problem| self.wrong(problem))?;
            if told != seen {
                return Err(self.wrong(format!("the file has {told} {name}, and {seen} came")));
            }
        }
        Ok(())
    }

    /// Leaves nothing of a session that is not whole.
    async fn abandon(&mut self) {
        let Some(current) = self.current.take().filter(|current| !current.skips) else {
            return;
        };
        let finish = FinishImport {
            key: current.key,
            whole: false,
            now: self.service.now(),
        };
        match self.service.database().write(finish).await {
            Ok(_) => self.service.delete_rest(current.key).await,
            Err(error) => {
                tracing::warn!(%error, "the session that is not whole stays hidden, and is deleted later");
            }
        }
    }
}

fn read_agent(tenant: TenantId, line: &mut Map<String, Json>) -> Result<ImportAgent, String> {
    let time = |text: String, name: &str| {
        Timestamp::parse(&text).ok_or_else(|| format!("`{name}` is no time"))
    };
    let agent = ImportAgent {
        tenant,
        name: take_text(line, "name")?,
        document: take_text(line, "document")?,
        created_at: time(take_text(line, "created_at")?, "created_at")?,
        updated_at: time(take_text(line, "updated_at")?, "updated_at")?,
    };
    if agent.name.is_empty() || agent.name.contains('\0') {
        return Err("`name` is no agent's name".to_owned());
    }
    match serde_json::from_str::<AgentDocument>(&agent.document) {
        Ok(_) if line.is_empty() => Ok(agent),
        Ok(_) => Err("it has a member that this version does not know".to_owned()),
        Err(_) => Err("`document` is no agent".to_owned()),
    }
}
