//! The run of faults: servers, load, chaos, and the check at the end.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::Outcome;
use crate::asker::Asker;
use crate::chaos::Chaos;
use crate::check;
use crate::findings::Findings;
use crate::full::Room;
use crate::ledger::{Kind, Session, World};
use crate::model::Model;
use crate::options::{Database, LEASE, Options, settings};
use crate::postgres::Postgres;
use crate::random::Random;
use crate::readers;
use crate::server::Replica;
use crate::web::{Ask, CONTENT_MARK, Web};
use crate::writers::Writer;

/// How long clients may take to end once the load is over.
const ENDING: Duration = Duration::from_mins(2);

/// Everything that runs beside the program, and ends with this value.
pub struct Stage {
    pub world: Arc<World>,
    pub postgres: Option<Arc<Postgres>>,
    /// The database, as the service is told.
    pub url: String,
    _directory: TempDir,
}

impl Stage {
    /// Starts model, database and replicas.
    ///
    /// `room` is where the file of SQLite is kept, if not in a temporary directory; `more` are settings over the usual ones.
    pub async fn start(
        options: &Options,
        findings: &Arc<Findings>,
        room: Option<&Room>,
        more: &[(&str, &str)],
    ) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("precis-faults").tempdir()?;
        let is_postgres = options.database == Database::Postgres;
        let postgres = is_postgres.then(Postgres::start).transpose()?.map(Arc::new);
        let folder = room.map_or(directory.path(), Room::path);
        let url = match &postgres {
            Some(postgres) => postgres.url(),
            None => format!("sqlite://{}", folder.join("faults.db").display()),
        };
        let logs: PathBuf = match &options.logs {
            Some(logs) => {
                std::fs::create_dir_all(logs)?;
                logs.clone()
            }
            None => directory.path().to_owned(),
        };
        let model = Model::start(options.seed, Arc::clone(findings)).await?;
        let key = options.make_key();
        let mut settings = settings(&url, model.port, key.as_deref());
        settings.extend(
            more.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let service = options.service()?;
        let count = if is_postgres {
            options.replicas.max(1)
        } else {
            1
        };
        let replicas: Vec<Arc<Replica>> = (0..count)
            .map(|n| {
                let log = logs.join(format!("replica-{n}.log"));
                drop(std::fs::remove_file(&log));
                let prelude = room.and_then(Room::prelude);
                Arc::new(Replica::new(&service, &settings, log, prelude))
            })
            .collect();
        // At once: they bring the schema up to date together.
        let starts = replicas.iter().map(|replica| replica.start());
        futures_util::future::try_join_all(starts).await?;
        let web = Web::new(replicas.clone(), key, Arc::clone(findings))?;
        let world = World {
            seed: options.seed,
            web,
            replicas,
            model,
            findings: Arc::clone(findings),
            sessions: Mutex::default(),
            idempotency: options.idempotency,
            over: AtomicBool::new(false),
        };
        Ok(Self {
            world: Arc::new(world),
            postgres,
            url,
            _directory: directory,
        })
    }
}

/// Makes the sessions that clients work with.
async fn make_sessions(world: &Arc<World>, count: usize) -> Outcome<()> {
    let mut random = Random::of(world.seed, "sessions");
    let kinds = [Kind::Shared, Kind::Sole, Kind::Turns, Kind::Contended];
    for (kind, n) in kinds.iter().cycle().zip(0..count) {
        let title = format!("main {n}");
        let prunes = n % 2 == 1;
        let compacts = *kind == Kind::Sole || n % 5 == 2;
        let body = json!({
            "title": title,
            "messages": [{"role": "system", "content": format!("{CONTENT_MARK}instructions of the run")}],
            "pruning": {"enabled": prunes, "budgetTokens": 1500, "maxToolResultBytes": 300, "keepHeadBytes": 64, "keepTailBytes": 64},
            "autoCompact": {"enabled": compacts, "triggerTokens": 100_000, "triggerMessages": 30, "when": "now"},
        });
        let ask = Ask::post("create", "/sessions", body.to_string(), &[]);
        let made = world.web.ask(&mut random, ask).await;
        let made = made.json().unwrap_or_default();
        let id = made.get("id").and_then(Value::as_str);
        let id = id.ok_or("a session cannot be made")?.to_owned();
        let session = Arc::new(Session::new(id, title.replace(' ', ""), *kind, prunes));
        let mut sessions = world
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        sessions.push(session);
    }
    Ok(())
}

/// Sets all clients to work.
pub async fn set_to_work(world: &Arc<World>, sessions: usize) -> Outcome<JoinSet<()>> {
    make_sessions(world, sessions).await?;
    let mut tasks = JoinSet::new();
    for session in world.sessions() {
        match session.kind {
            Kind::Shared => {
                for number in 0..3 {
                    tasks.spawn(Writer::new(world, &session, number).share());
                }
            }
            Kind::Sole => {
                tasks.spawn(Writer::new(world, &session, 0).alone());
                tasks.spawn(readers::fork(Arc::clone(world), Arc::clone(&session)));
            }
            Kind::Turns => {
                tasks.spawn(Asker::new(world, &session, 0).work());
            }
            Kind::Contended => {
                tasks.spawn(Asker::new(world, &session, 0).work());
                tasks.spawn(Writer::new(world, &session, 1).share());
            }
        }
        tasks.spawn(readers::compact(Arc::clone(world), Arc::clone(&session)));
        tasks.spawn(readers::read_contexts(
            Arc::clone(world),
            Arc::clone(&session),
        ));
        tasks.spawn(readers::follow(Arc::clone(world), Arc::clone(&session)));
    }
    tasks.spawn(check::make_sessions(Arc::clone(world)));
    Ok(tasks)
}

/// Ends the load, and waits for its clients.
pub async fn end(world: &World, mut tasks: JoinSet<()>) {
    world.over.store(true, Ordering::Relaxed);
    world.model.set_healthy(true);
    let ended = async { while tasks.join_next().await.is_some() {} };
    if timeout(ENDING, ended).await.is_err() {
        world.findings.violation(format!(
            "clients still waited {ENDING:?} after the end of the load"
        ));
    }
}

/// The run.
pub async fn run(options: &Options, findings: &Arc<Findings>) -> Outcome<()> {
    let stage = Stage::start(options, findings, None, &[]).await?;
    let world = &stage.world;
    let tasks = set_to_work(world, options.sessions).await?;
    // Something is there to be lost before anything goes wrong.
    sleep(Duration::from_secs(2)).await;
    let chaos = Chaos {
        replicas: world.replicas.clone(),
        postgres: stage.postgres.clone(),
        findings: Arc::clone(findings),
        lease: Duration::from_secs(LEASE),
        random: Random::of(options.seed, "chaos"),
    };
    let began = Instant::now();
    let time = Duration::from_secs(options.seconds);
    let longest = time * 4 + Duration::from_mins(1);
    timeout(longest, chaos.rage(options.kills, time))
        .await
        .map_err(|_| format!("the plan was not done within {longest:?}"))??;
    findings.figure("seconds of faults", began.elapsed().as_secs());
    end(world, tasks).await;
    findings.figure("seconds to the end of the load", began.elapsed().as_secs());
    if let Some(command) = &options.meddle {
        let shell = Command::new("sh")
            .args(["-c", command])
            .env("DATABASE_URL", &stage.url)
            .status()?;
        findings.check(shell.success(), || "the meddling failed".to_owned());
    }
    check::check(world).await;
    findings.figure("seconds with the check", began.elapsed().as_secs());
    Ok(())
}
