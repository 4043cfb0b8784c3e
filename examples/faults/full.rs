//! A disk that becomes full: clear errors, nothing lost, reads go on, and writes too as soon as there is room again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

use crate::Outcome;
use crate::check::{self, insist};
use crate::findings::Findings;
use crate::ledger::{Appended, Draft, Kind, Session, World};
use crate::options::Options;
use crate::random::Random;
use crate::readers::COMPACTION_CODES;
use crate::run::Stage;
use crate::web::{Ask, CONTENT_MARK, Reply};
use crate::writers::acknowledge;

/// The disk, and how much of it something else takes until there has to be room; in MiB.
const DISK: usize = 10;
const FILLER: usize = 4;
/// The content of a message, in bytes.
const CONTENT: usize = 16_000;
/// Reading some megabytes takes a program that is not optimised longer than the short leases of the other runs.
const LEASE: [(&str, &str); 1] = [("PRECIS_COMPACTION__LEASE_SECONDS", "20")];
/// Refusals in a row after which the disk counts as full.
const REFUSALS: usize = 12;
/// How long an answer may take on a full disk.
const PATIENCE: Duration = Duration::from_secs(20);

/// Little room, of which there can be more.
pub struct Room {
    directory: TempDir,
    is_mounted: bool,
    prelude: Option<String>,
}

impl Room {
    /// A file system of its own as root; else a limit on the size of a file, which is met in the same place.
    pub fn make() -> Outcome<Self> {
        let directory = tempfile::Builder::new()
            .prefix("precis-faults-disk")
            .tempdir()?;
        let size = format!("size={DISK}m,mode=0700");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(directory.path())
            .output();
        let is_mounted = mounted.is_ok_and(|output| output.status.success());
        let kib = (DISK - FILLER) * 1_024;
        let room = Self {
            directory,
            is_mounted,
            // Without the trap the first write that is too large would kill the process.
            prelude: (!is_mounted).then(|| format!("trap '' XFSZ; ulimit -S -f {kib}")),
        };
        if is_mounted {
            std::fs::write(room.filler(), vec![b'x'; FILLER << 20])?;
        }
        Ok(room)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What the shell is told before the service begins.
    pub fn prelude(&self) -> Option<&str> {
        self.prelude.as_deref()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    fn name(&self) -> &'static str {
        if self.is_mounted {
            "tmpfs"
        } else {
            "limit on the size of a file"
        }
    }

    /// Makes room, for a process that runs.
    fn widen(&self, pid: u32) -> Outcome<()> {
        if self.is_mounted {
            return Ok(std::fs::remove_file(self.filler())?);
        }
        let widened = Command::new("prlimit")
            .args([format!("--pid={pid}"), "--fsize=unlimited:".to_owned()])
            .status()?;
        if widened.success() {
            Ok(())
        } else {
            Err("prlimit (of util-linux) could not widen the limit; run this as root, for a file system of its own".into())
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.is_mounted {
            // It goes when the last file in it is closed.
            drop(Command::new("umount").arg("-l").arg(self.path()).status());
        }
    }
}

/// The run.
pub async fn fill(options: &Options, findings: &Arc<Findings>) -> Outcome<()> {
    let room = Room::make()?;
    findings.figure("disk", room.name());
    let stage = Stage::start(options, findings, Some(&room), &LEASE).await?;
    let world = &stage.world;
    world.model.set_healthy(true);
    let mut filling = Filling::start(world).await?;
    filling.until_full().await;
    filling.look_around().await;
    let replica = world.replicas.first().ok_or("no replica")?;
    // A crash with a full disk loses nothing either. The limit of a file would be there anew.
    replica.kill();
    let started = timeout(Duration::from_mins(1), replica.start()).await;
    findings.check(matches!(started, Ok(Ok(()))), || {
        "it does not start on a full disk".to_owned()
    });
    filling.look_around().await;
    room.widen(replica.pid().ok_or("no process")?)?;
    let began = Instant::now();
    filling.settle().await;
    findings.figure(
        "milliseconds from room to the first append",
        u64::try_from(began.elapsed().as_millis())?,
    );
    for _ in 0..20 {
        filling.append().await;
        filling.settle().await;
    }
    check::check(world).await;
    drop(stage);
    Ok(())
}

/// The client that fills it.
struct Filling {
    world: Arc<World>,
    session: Arc<Session>,
    random: Random,
    count: usize,
    /// What was refused, and is sent until it is stored.
    pending: Vec<Draft>,
}

impl Filling {
    async fn start(world: &Arc<World>) -> Outcome<Self> {
        let mut random = Random::of(world.seed, "filling");
        let ask = Ask::post("create", "/sessions", r#"{"title":"main 0"}"#, &[]);
        let made = world
            .web
            .ask(&mut random, ask)
            .await
            .json()
            .unwrap_or_default();
        let id = made.get("id").and_then(Value::as_str).ok_or("no session")?;
        let session = Session::new(id.to_owned(), "main0".to_owned(), Kind::Sole, false);
        let session = Arc::new(session);
        if let Ok(mut sessions) = world.sessions.lock() {
            sessions.push(Arc::clone(&session));
        }
        Ok(Self {
            world: Arc::clone(world),
            session,
            random,
            count: 0,
            pending: Vec::new(),
        })
    }

    /// Appends one message; true if it was stored.
    async fn append(&mut self) -> bool {
        self.count += 1;
        let role = if self.count % 2 == 1 {
            "user"
        } else {
            "assistant"
        };
        let text = format!(
            "{CONTENT_MARK}{};{}",
            self.count,
            "full ".repeat(CONTENT / 5)
        );
        let stored = format!(r#"{{"role":"{role}","content":"{text}"}}"#);
        let draft = Draft::new(stored, Some(&format!("own-{}", self.count)));
        let is_stored = self.send(&draft).await;
        if !is_stored {
            self.pending.push(draft);
        }
        is_stored
    }

    async fn send(&mut self, draft: &Draft) -> bool {
        let body = format!(r#"{{"messages":[{}]}}"#, draft.sent);
        let ask = Ask::post("append", self.session.path("/messages"), body, &[]);
        let Reply::Done(body) = self.world.web.ask(&mut self.random, ask).await else {
            return false;
        };
        match serde_json::from_slice::<Appended>(&body) {
            Ok(answer) => {
                acknowledge(&mut self.session.ledger(), &answer.data, 0);
                self.world.findings.count("messages acknowledged");
            }
            Err(_) => self
                .world
                .findings
                .violation("an append's answer is unreadable"),
        }
        true
    }

    async fn until_full(&mut self) {
        let mut refused = 0;
        while refused < REFUSALS && self.count < 4_000 {
            refused = if self.append().await { 0 } else { refused + 1 };
        }
        self.world.findings.check(refused == REFUSALS, || {
            format!(
                "{} messages were stored and the disk is not full",
                self.count
            )
        });
        self.world
            .findings
            .figure("messages until the disk is full", self.count);
        let body = r#"{"messages":[{"role":"user","content":"x"}]}"#;
        // What a person is told.
        let Some(address) = self.world.web.address(&mut self.random) else {
            return;
        };
        let ask = Ask::post("append", self.session.path("/messages"), body, &[]);
        if let Ok(response) = self.world.web.open(&address, &ask).await
            && let Ok(text) = response.text().await
        {
            let problem: Value = serde_json::from_str(&text).unwrap_or_default();
            let detail = problem.get("detail").and_then(Value::as_str);
            self.world.findings.figure(
                "what a full disk says",
                detail.unwrap_or("(it took the append)"),
            );
            if detail.is_none() {
                self.session
                    .ledger()
                    .maybe
                    .push(vec![r#"{"role":"user","content":"x"}"#.to_owned()]);
            }
        }
    }

    /// Reads go on; whatever writes is refused, clearly and soon.
    async fn look_around(&mut self) {
        let findings = Arc::clone(&self.world.findings);
        for path in [
            "",
            "/messages?limit=10",
            "/context",
            "/stats",
            "/compactions",
            "/turns",
        ] {
            let ask = Ask::get("read when full", self.session.path(path));
            let reply = timeout(PATIENCE, self.world.web.ask(&mut self.random, ask)).await;
            findings.check(matches!(reply, Ok(Reply::Done(_))), || {
                format!("on a full disk GET {path} gave {reply:?}")
            });
        }
        for path in ["/health/live", "/health/ready"] {
            let Some(address) = self.world.web.address(&mut self.random) else {
                continue;
            };
            let ask = Ask::get("health", path);
            let status = self
                .world
                .web
                .open(&address, &ask)
                .await
                .map(|answer| answer.status().as_u16());
            findings.figure(format!("{path} on a full disk"), status.unwrap_or_default());
        }
        let turn = r#"{"messages":[{"precis":{"id":"turn-1"},"role":"user","content":"~CONTENT~ a turn"}]}"#;
        let writes = [
            ("dispatch", "/context", "{}"),
            ("compact", "/compact", "{}"),
            ("turn", "/turns", turn),
            ("fork", "/fork", r#"{"atSeq":0,"title":"new 0"}"#),
        ];
        for (name, path, body) in writes {
            let ask = Ask::post(name, self.session.path(path), body, COMPACTION_CODES);
            let reply = timeout(PATIENCE, self.world.web.ask(&mut self.random, ask)).await;
            let answered = matches!(reply, Ok(Reply::Done(_) | Reply::Refused(_)));
            findings.check(answered, || format!("on a full disk {name} gave {reply:?}"));
        }
        let stored = r#"{"role":"user","content":"~CONTENT~ a turn"}"#.to_owned();
        let mut ledger = self.session.ledger();
        if ledger.maybe.is_empty() {
            ledger.maybe.push(vec![stored]);
        }
    }

    /// Sends what was refused until it is stored.
    async fn settle(&mut self) {
        for draft in std::mem::take(&mut self.pending) {
            let body = format!(r#"{{"messages":[{}]}}"#, draft.sent);
            let path = self.session.path("/messages");
            let make = || Ask::post("append", path.clone(), body.clone(), &["TURN_IN_PROGRESS"]);
            let answer = insist(&self.world, "an append works once there is room", make).await;
            if !answer.is_null() {
                self.session.ledger().certain.push(draft.stored);
            }
        }
    }
}
