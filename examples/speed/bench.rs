//! What all measurements share: where databases are, how the service and the floor are started on them, and the rows
//! that were measured so far.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::Outcome;
use crate::floor::Durability;
use crate::load::{Rounds, alternate};
use crate::options::Options;
use crate::postgres::{Database, Postgres};
use crate::process::{Server, Settings, directory_in, find_service};
use crate::report::{Goal, Heading, Row};

/// Where files can be that never reach a disk.
const MEMORY: &str = "/dev/shm";

/// The store behind the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// SQLite, as it ships: synced with each commit.
    Disk,
    /// SQLite, when a commit waits for no disk.
    Relaxed,
    /// PostgreSQL, as the server is set up.
    Postgres,
}

impl Place {
    /// For a heading.
    pub fn database(self) -> &'static str {
        match self {
            Self::Disk | Self::Relaxed => "sqlite",
            Self::Postgres => "postgresql",
        }
    }
}

/// A run of this program.
pub struct Bench {
    /// What was asked for.
    pub options: Options,
    /// The server, if it is measured.
    pub postgres: Option<Postgres>,
    binary: PathBuf,
    disk: PathBuf,
    memory: Option<PathBuf>,
    /// What was measured.
    pub rows: Vec<Row>,
    /// What was not, and why.
    pub notes: Vec<String>,
}

/// The service with what it works on, which goes with it.
pub struct Service {
    /// The process.
    pub server: Server,
    /// Its database, on PostgreSQL. Dropped behind the process.
    pub database: Option<Database>,
    /// Its files.
    pub directory: TempDir,
}

/// The floor with its file.
pub struct Floor {
    /// The process.
    pub server: Server,
    _directory: TempDir,
}

impl Bench {
    /// Looks for what is needed.
    pub fn new(options: Options) -> Outcome<Self> {
        let binary = match &options.binary {
            Some(binary) => binary.canonicalize()?,
            None => find_service()?,
        };
        let disk = match &options.directory {
            Some(directory) => directory.canonicalize()?,
            None => std::env::temp_dir(),
        };
        let memory = Path::new(MEMORY);
        Ok(Self {
            postgres: options.postgres.then(Postgres::find).transpose()?,
            binary,
            disk,
            memory: (options.normal.is_none() && memory.is_dir()).then(|| memory.to_owned()),
            options,
            rows: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// The directory with the databases.
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// The directory with those that are held in memory, if any are.
    pub fn memory(&self) -> Option<&Path> {
        self.memory.as_deref()
    }

    /// Whether a commit that waits for no disk can be had.
    pub fn can_relax(&self) -> bool {
        self.options.normal.is_some() || self.memory.is_some()
    }

    /// What a commit waits for there, in a word or two.
    pub fn durability(&self, place: Place) -> Outcome<String> {
        Ok(match (place, &self.postgres) {
            (Place::Disk, _) => "full".to_owned(),
            (Place::Relaxed, _) if self.options.normal.is_some() => "normal".to_owned(),
            (Place::Relaxed, _) => "in memory".to_owned(),
            (Place::Postgres, Some(postgres)) => postgres.durability()?,
            (Place::Postgres, None) => return Err("PostgreSQL was not asked for".into()),
        })
    }

    fn parent(&self, place: Place) -> &Path {
        match (place, &self.memory) {
            (Place::Relaxed, Some(memory)) => memory,
            _ => &self.disk,
        }
    }

    /// Starts the service on an empty database.
    pub fn service(&self, place: Place, settings: &[(&str, &str)]) -> Outcome<Service> {
        let directory = directory_in(self.parent(place))?;
        let database = match (place, &self.postgres) {
            (Place::Postgres, Some(postgres)) => Some(postgres.create_database()?),
            (Place::Postgres, None) => return Err("PostgreSQL was not asked for".into()),
            _ => None,
        };
        let server = self.start(place, &directory, database.as_ref(), settings)?;
        Ok(Service {
            server,
            database,
            directory,
        })
    }

    /// Starts the service anew on what it worked on.
    pub fn restart(&self, service: Service) -> Outcome<Service> {
        let Service {
            server,
            database,
            directory,
        } = service;
        server.stop()?;
        let place = database.as_ref().map_or(Place::Disk, |_| Place::Postgres);
        let server = self.start(place, &directory, database.as_ref(), &[])?;
        Ok(Service {
            server,
            database,
            directory,
        })
    }

    fn start(
        &self,
        place: Place,
        directory: &TempDir,
        database: Option<&Database>,
        settings: &[(&str, &str)],
    ) -> Outcome<Server> {
        let url = database.map_or_else(
            || format!("sqlite://{}", directory.path().join("speed.db").display()),
            |database| database.url.clone(),
        );
        let mut all: Settings = vec![("PRECIS_DATABASE_URL".to_owned(), url)];
        all.extend(
            settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        all.extend(self.options.setting.iter().cloned());
        if place == Place::Relaxed {
            all.extend(self.options.normal.clone());
        }
        Server::service(&self.binary, directory.path(), &all)
    }

    /// Starts the floor on an empty file, in the same place as the service.
    pub fn floor(&self, place: Place, durability: Durability) -> Outcome<Floor> {
        let directory = directory_in(self.parent(place))?;
        let file = directory.path().join("floor.db");
        Ok(Floor {
            server: Server::floor(&file, durability)?,
            _directory: directory,
        })
    }

    /// What stands before a row's figures.
    pub fn heading(
        &self,
        name: &'static str,
        what: impl Into<String>,
        place: Place,
        connections: usize,
    ) -> Outcome<Heading> {
        Ok(Heading {
            name,
            what: what.into(),
            database: place.database(),
            connections,
            durability: self.durability(place)?,
        })
    }

    /// Measures two things in turns, as many rounds as were asked for.
    pub fn alternate<S>(
        &self,
        both: &mut S,
        subject: impl Fn(&mut S) -> Outcome<f64>,
        floor: impl Fn(&mut S) -> Outcome<f64>,
    ) -> Outcome<Rounds> {
        alternate(self.options.rounds(), both, subject, floor)
    }

    /// Keeps a ratio.
    pub fn keep(&mut self, heading: Heading, unit: &'static str, rounds: &Rounds, goal: Goal) {
        self.push(Row::ratio(heading, unit, rounds, goal));
    }

    /// Keeps a row, and says meanwhile that it is there.
    pub fn push(&mut self, row: Row) {
        eprintln!("{row}");
        self.rows.push(row);
    }

    /// Keeps what could not be measured.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}
