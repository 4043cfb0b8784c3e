//! Databases that are migrated already, to be copied for each test: migrating takes longer than most tests.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use precis::config::Settings;
use reqwest::Url;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::OnceCell;

use super::app::base_variables;

async fn migrate(url: &str) {
    let settings =
        Settings::from_vars(base_variables(url)).expect("the settings of a test are valid");
    precis::app::migrate(&settings)
        .await
        .expect("an empty database is migrated");
}

/// The file of a migrated SQLite database.
pub async fn sqlite() -> &'static [u8] {
    static FILE: OnceCell<Vec<u8>> = OnceCell::const_new();
    FILE.get_or_init(async || {
        let directory = tempfile::tempdir().expect("a directory for the template");
        let file = directory.path().join("template.db");
        migrate(&format!("sqlite://{}", file.display())).await;
        let log = std::fs::metadata(file.with_extension("db-wal"));
        assert!(log.is_err(), "the template's file is not all of it");
        std::fs::read(file).expect("the template's file")
    })
    .await
}

/// The name of a migrated PostgreSQL database. It stays behind for the next run, which finds it by its migrations.
pub async fn postgres(admin_url: &str) -> &'static str {
    static NAME: OnceCell<String> = OnceCell::const_new();
    NAME.get_or_init(async || {
        let name = format!("precis_template_{:016x}", digest_of_migrations());
        make(admin_url, &name).await.expect("a template database");
        name
    })
    .await
}

fn digest_of_migrations() -> u64 {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations/postgres");
    let files = std::fs::read_dir(directory).expect("the migrations");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    let mut hasher = DefaultHasher::new();
    for path in paths {
        path.file_name().hash(&mut hasher);
        std::fs::read(path).expect("a migration").hash(&mut hasher);
    }
    hasher.finish()
}

/// Makes the template under another name first, so that what has its name is whole.
async fn make(admin_url: &str, name: &str) -> sqlx::Result<()> {
    let mut admin = PgConnection::connect(admin_url).await?;
    // One process at a time; the lock goes with the connection.
    sqlx::raw_sql("SELECT pg_advisory_lock(7341953205)")
        .execute(&mut admin)
        .await?;
    let found = sqlx::query("SELECT 1 FROM pg_database WHERE datname = $1")
        .bind(name)
        .fetch_optional(&mut admin)
        .await?;
    if found.is_none() {
        let mut url = Url::parse(admin_url).expect("an URL");
        url.set_path(&format!("/{name}_new"));
        run(
            &mut admin,
            format!("DROP DATABASE IF EXISTS {name}_new WITH (FORCE)"),
        )
        .await?;
        run(&mut admin, format!("CREATE DATABASE {name}_new")).await?;
        migrate(url.as_str()).await;
        run(
            &mut admin,
            format!("ALTER DATABASE {name}_new RENAME TO {name}"),
        )
        .await?;
    }
    admin.close().await
}

async fn run(connection: &mut PgConnection, sql: String) -> sqlx::Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await
        .map(drop)
}
