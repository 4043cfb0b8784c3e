//! PostgreSQL's notifications: how replicas wake each other. SQLite has none; there, readers poll.
//!
//! A notification is sent outside of any transaction, after the commits it tells of: inside, it would
//! make all commits of the server wait for each other.

use std::str::FromStr;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use super::{Database, Result};

/// The channel of all replicas that share a database.
const CHANNEL: &str = "precis_events";

/// A connection of its own that hears what replicas tell each other.
pub struct Listener(PgListener);

/// Where to listen.
#[derive(Clone)]
pub struct ListenUrl(PgConnectOptions);

impl ListenUrl {
    /// Reads `postgres://…`; `None` if it is anything else.
    #[must_use]
    pub fn parse(url: &str) -> Option<Self> {
        let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
        is_postgres
            .then(|| PgConnectOptions::from_str(url).ok().map(Self))
            .flatten()
    }
}

impl Listener {
    /// Connects and listens.
    ///
    /// # Errors
    /// The server cannot be reached, or takes no such connection.
    pub async fn connect(url: &ListenUrl) -> Result<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_with(url.0.clone())
            .await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.ignore_pool_close_event(true);
        listener.listen(CHANNEL).await?;
        Ok(Self(listener))
    }

    /// The next notification. `None`: the connection was lost and is there again; what was sent meanwhile is lost.
    ///
    /// # Errors
    /// The connection is lost and does not come back.
    pub async fn hear(&mut self) -> Result<Option<String>> {
        let heard = self.0.try_recv().await?;
        Ok(heard.map(|notification| notification.payload().to_owned()))
    }
}

impl Database {
    /// Whether there is anyone whom [`Database::notify`] could reach.
    #[must_use]
    pub fn can_notify(&self) -> bool {
        matches!(self, Self::Postgres { .. })
    }

    /// Tells all replicas, this one included. The text is under 8,000 bytes long.
    ///
    /// # Errors
    /// The database gave no answer.
    pub async fn notify(&self, text: &str) -> Result<()> {
        if let Self::Postgres { pool, watch, .. } = self {
            let mut held = watch.acquire(pool).await?;
            sqlx::query("SELECT pg_notify($1, $2)")
                .bind(CHANNEL)
                .bind(text)
                .execute(&mut *held)
                .await?;
            held.give_back();
        }
        Ok(())
    }
}
