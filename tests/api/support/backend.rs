//! A fresh database for each test, and a way past the service into it.

use std::path::Path;

use reqwest::Url;
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

use super::template;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    Postgres,
}

const ADMIN_URL: &str = "PRECIS_TEST_DATABASE_URL";

/// Lives as long as the test; dropping it drops the database.
pub struct TestDatabase {
    pub backend: Backend,
    pub url: String,
    admin_url: String,
    name: String,
    directory: TempDir,
}

impl TestDatabase {
    /// A database with all its tables, and nothing in them.
    pub async fn create(backend: Backend) -> Self {
        let database = Self::named(backend);
        match backend {
            Backend::Sqlite => {
                let file = database.directory().join("precis.db");
                std::fs::write(file, template::sqlite().await).expect("the database's file");
            }
            Backend::Postgres => {
                let template = template::postgres(&database.admin_url).await;
                let from = format!(" TEMPLATE {template}");
                create_database(&database.admin_url, &database.name, &from).await;
            }
        }
        database
    }

    /// A database that nobody has migrated yet.
    pub async fn empty(backend: Backend) -> Self {
        let database = Self::named(backend);
        if backend == Backend::Postgres {
            create_database(&database.admin_url, &database.name, "").await;
        }
        database
    }

    /// Its place; nothing is there yet.
    fn named(backend: Backend) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let name = format!("precis_test_{}", Uuid::now_v7().simple());
        match backend {
            Backend::Sqlite => {
                let file = directory.path().join("precis.db");
                Self {
                    backend,
                    url: format!("sqlite://{}", file.display()),
                    admin_url: String::new(),
                    name,
                    directory,
                }
            }
            Backend::Postgres => {
                let admin_url = std::env::var(ADMIN_URL).unwrap_or_else(|_| {
                    panic!(
                        "{ADMIN_URL} is not set, so nothing can be tested on PostgreSQL. \
                         Run ./scripts/test: it finds or starts a server and sets it."
                    )
                });
                let mut url = Url::parse(&admin_url)
                    .unwrap_or_else(|cause| panic!("{ADMIN_URL} is not an URL: {cause}"));
                url.set_path(&format!("/{name}"));
                Self {
                    backend,
                    url: url.to_string(),
                    admin_url,
                    name,
                    directory,
                }
            }
        }
    }

    /// Where the SQLite file lies; child processes run here too.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs statements behind the service's back, in the dialect of the database.
    pub async fn execute(&self, sqlite: &str, postgres: &str) {
        let result = match self.backend {
            Backend::Sqlite => {
                let mut connection = SqliteConnection::connect(&self.url)
                    .await
                    .expect("a connection to the SQLite file");
                sqlx::raw_sql(AssertSqlSafe(sqlite.to_owned()))
                    .execute(&mut connection)
                    .await
                    .map(drop)
            }
            Backend::Postgres => {
                let mut connection = PgConnection::connect(&self.url)
                    .await
                    .expect("a connection to the test's PostgreSQL database");
                sqlx::raw_sql(AssertSqlSafe(postgres.to_owned()))
                    .execute(&mut connection)
                    .await
                    .map(drop)
            }
        };
        result.expect("the test's own SQL runs");
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if self.backend == Backend::Sqlite {
            return;
        }
        let (url, name) = (self.admin_url.clone(), self.name.clone());
        // A runtime of its own: this may run inside the one of a test that is being torn down.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime to drop a database with");
            runtime.block_on(async {
                if let Ok(mut connection) = PgConnection::connect(&url).await {
                    let sql = format!("DROP DATABASE IF EXISTS \"{name}\" WITH (FORCE)");
                    // Best effort: a database that stays behind is no fault of the service.
                    drop(
                        sqlx::raw_sql(AssertSqlSafe(sql))
                            .execute(&mut connection)
                            .await,
                    );
                }
            });
        });
        drop(dropping.join());
    }
}

async fn create_database(admin_url: &str, name: &str, from: &str) {
    let mut connection = PgConnection::connect(admin_url)
        .await
        .unwrap_or_else(|cause| {
            panic!("the PostgreSQL server of {ADMIN_URL} cannot be reached ({cause}); run ./scripts/test")
        });
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE \"{name}\"{from}")))
        .execute(&mut connection)
        .await
        .expect("the user of the test server may create databases");
}
