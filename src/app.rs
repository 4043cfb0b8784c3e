//! Puts it all together: settings, database, models, service, HTTP server, and a graceful end.

mod keys;
mod listening;
mod tenants;
mod watched;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use time::OffsetDateTime;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use self::keys::{create_key, list_keys, revoke_key};
use self::watched::{banner, bind_watched};
use crate::config::{
    self, AutoCompactSettings, ModelSettings, PruningSettings, Settings, Synchronous,
};
use crate::domain::plan::Boundary;
use crate::domain::policy::{AutoCompactPolicy, CompactionPolicy, PruningPolicy, When};
use crate::domain::prompt;
use crate::domain::tokens::Counter;
use crate::http;
use crate::provider::{ChatModel, Endpoint, OutputCapName, RetryPolicy, SetupError, Timeouts};
use crate::service::{
    Bounds, Defaults, EventTimes, Explanation, ModelAt, Parts, RetentionTimes, Service,
    ServiceError, Summarizer,
};
use crate::storage::{Database, ListenUrl, MigrateError, Options, StorageError, Url};

pub use tenants::{list_tenants, set_tenant};

/// Why the service did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database URL is not one.
    #[error("database_url (PRECIS_DATABASE_URL): {0}")]
    DatabaseUrl(&'static str),
    /// The SQLite file cannot be made where it should be.
    #[error(
        "the directory {0} of the database file does not exist; make it, or change database_url (PRECIS_DATABASE_URL)"
    )]
    NoDirectory(String),
    /// The schema could not be brought up to date.
    #[error("cannot prepare the database {database}")]
    Migrate {
        /// Which database, without its password.
        database: String,
        /// Why.
        #[source]
        source: MigrateError,
    },
    /// Its schema is not the one of this program.
    #[error("cannot use the database {database}")]
    Schema {
        /// Which database, without its password.
        database: String,
        /// Why.
        #[source]
        source: MigrateError,
    },
    /// The database could not be opened.
    #[error("cannot open the database {database}")]
    Open {
        /// Which database, without its password.
        database: String,
        /// Why.
        #[source]
        source: StorageError,
    },
    /// The prompt's file cannot be read.
    #[error(
        "cannot read the prompt file {file} (compaction.prompt_file, PRECIS_COMPACTION__PROMPT_FILE)"
    )]
    Prompt {
        /// Which file.
        file: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The prompt's file says nothing.
    #[error(
        "the prompt file {0} (compaction.prompt_file, PRECIS_COMPACTION__PROMPT_FILE) is empty"
    )]
    EmptyPrompt(String),
    /// A model's settings do not work.
    #[error("cannot set up the client of the model server")]
    Model(#[from] SetupError),
    /// The address is taken or not ours.
    #[error("cannot listen on {address} ({option}); is another service using it?")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// The option that says so.
        option: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The server stopped with an error.
    #[error("the HTTP server stopped")]
    Serve(#[source] io::Error),
    /// There is no database to look into.
    #[error("there is no database file {0}; see database_url (PRECIS_DATABASE_URL)")]
    NoDatabase(String),
    /// A dispatch cannot be explained.
    #[error(transparent)]
    Explain(ServiceError),
    /// A tenant cannot be shown or changed.
    #[error(transparent)]
    Tenants(ServiceError),
    /// There are no keys, and the address is not this machine's alone.
    #[error(
        "there are no keys, so that whoever reaches {0} could read and change everything. Either make a key \
         (`precis keys create --name NAME --scopes read,write`), or set PRECIS_ADMIN_KEY, or listen on 127.0.0.1 \
         (listen, PRECIS_LISTEN), or, if that is what you want, say `precis serve --insecure-no-auth`"
    )]
    NoKeys(SocketAddr),
    /// It could not be told whether there are keys.
    #[error("cannot read the keys")]
    ReadKeys(#[source] ServiceError),
    /// A key could not be made, listed or revoked.
    #[error(transparent)]
    Keys(ServiceError),
    /// A mistake of ours.
    #[error("the program is broken: {0}")]
    Broken(&'static str),
}

/// The service, bound to its address and not yet serving.
pub struct Application {
    server: Server,
    address: SocketAddr,
    /// The server of the metrics, and where it is.
    watched: Option<(Server, SocketAddr)>,
    service: Service,
    database: Database,
    stop: StopHandle,
    patience: Duration,
    banner: Vec<(&'static str, String)>,
}

/// Asks a running [`Application`] to end gracefully.
#[derive(Debug, Clone, Default)]
pub struct StopHandle(CancellationToken);

impl StopHandle {
    /// Requests in flight and running compactions are finished; nothing new is taken.
    pub fn stop(&self) {
        self.0.cancel();
    }
}

fn database_options(settings: &Settings) -> Options {
    Options {
        max_connections: settings.database.max_connections,
        readers: settings.database.readers,
        acquire_timeout: settings.database.acquire_timeout(),
        busy_timeout: settings.database.busy_timeout(),
        synced: settings.database.synchronous == Synchronous::Full,
    }
}

pub(crate) fn parse_url(settings: &Settings) -> Result<Url, StartError> {
    Url::parse(settings.database_url.expose()).map_err(StartError::DatabaseUrl)
}

/// Brings the database up to date; gives the names of the migrations that were applied.
///
/// # Errors
/// The database cannot be reached, or is newer than this program.
pub async fn migrate(settings: &Settings) -> Result<Vec<String>, StartError> {
    let url = parse_url(settings)?;
    if let Url::Sqlite(path) = &url {
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
            return Err(StartError::NoDirectory(directory.display().to_string()));
        }
    }
    // Migrations hold a lock of the session, which a pooler may leave behind: not through one, if that can be helped.
    let direct = settings.listen_url().and_then(|url| Url::parse(url).ok());
    let url = match (url, direct) {
        (Url::Postgres(_), Some(direct @ Url::Postgres(_))) => direct,
        (url, _) => url,
    };
    Database::migrate(&url, &database_options(settings))
        .await
        .map_err(|source| StartError::Migrate {
            database: url.describe(),
            source,
        })
}

/// The service with its database open, not bound to an address.
struct Opened {
    service: Service,
    database: Database,
    url: Url,
    writes_with: String,
    answers_with: String,
}

/// Opens the database and sets up the models.
async fn open(settings: &Settings) -> Result<Opened, StartError> {
    let url = parse_url(settings)?;
    let database = Database::open(&url, &database_options(settings))
        .await
        .map_err(|source| StartError::Open {
            database: url.describe(),
            source,
        })?;
    let summarizer = summarizer(settings)?;
    let writes_with = describe_summarizer(&summarizer);
    let answers_with = summarizer.main.as_ref().map_or_else(
        || "no model (set PRECIS_MODEL_BASE_URL and PRECIS_MODEL)".to_owned(),
        |main| format!("{} at {}", main.model, main.base_url),
    );
    let service = Service::new(Parts {
        database: database.clone(),
        admin_key: settings.admin_key().cloned(),
        summarizer,
        defaults: defaults(settings)?,
        counter: counter(settings),
        bounds: Bounds {
            messages_per_append: settings.limits.messages_per_append,
            message_bytes: settings.limits.message_bytes,
            metadata_bytes: settings.limits.metadata_bytes,
            lease: settings.compaction.lease(),
            compaction_deadline: settings.compaction.deadline(),
            answers: settings.idempotency.kept(),
            auto_concurrency: settings.auto_compact.concurrency,
            auto_first_wait: settings.auto_compact.backoff_initial(),
        },
        limits: listening::limits(settings),
        events: EventTimes {
            keep_alive: settings.events.keep_alive(),
            poll: settings.events.poll(),
            retention: settings.events.retention(),
        },
        retention: RetentionTimes {
            days: i64::from(settings.retention.days),
            interval: settings.retention.interval(),
        },
        clock: OffsetDateTime::now_utc,
        new_id: Uuid::now_v7,
        runtime: Handle::current(),
    });
    Ok(Opened {
        service,
        database,
        url,
        writes_with,
        answers_with,
    })
}

/// Why a dispatch of a tenant's session looked as it did: of that number, else the newest. Only reads, so it may be
/// asked beside a running server.
///
/// # Errors
/// There is no database, tenant, session or dispatch, or the database cannot be opened or gave no answer.
pub async fn explain(
    settings: &Settings,
    tenant: &str,
    session: &str,
    n: Option<i64>,
) -> Result<Explanation, StartError> {
    let (service, database) = open_beside(settings).await?;
    let explained = match service.find_tenant(tenant).await {
        Ok(Some(caller)) => service.explain(caller, session, n).await,
        // Of what does not exist there are no sessions.
        Ok(None) => Err(ServiceError::session_not_found(session)),
        Err(error) => Err(error),
    };
    database.close().await;
    explained.map_err(StartError::Explain)
}

/// Opens a database that is there and up to date, beside whoever serves it; nothing is begun in the background.
pub(crate) async fn open_beside(settings: &Settings) -> Result<(Service, Database), StartError> {
    let url = parse_url(settings)?;
    if let Url::Sqlite(path) = &url
        && !path.is_file()
    {
        return Err(StartError::NoDatabase(path.display().to_string()));
    }
    let Opened {
        service, database, ..
    } = open(settings).await?;
    if let Err(source) = database.check_schema().await {
        database.close().await;
        return Err(StartError::Schema {
            database: url.describe(),
            source,
        });
    }
    Ok((service, database))
}

impl Application {
    /// Opens the database (bringing it up to date), sets up the models, and binds the address.
    ///
    /// # Errors
    /// Whatever stands in the way of serving.
    pub async fn build(settings: Settings) -> Result<Self, StartError> {
        if !http::schemas_are_sound() {
            return Err(StartError::Broken("a JSON Schema does not compile"));
        }
        migrate(&settings).await?;
        let Opened {
            service,
            database,
            url,
            writes_with,
            answers_with,
        } = open(&settings).await?;
        let is_open = keys::may_listen(&service, &settings).await?;
        let counter = counter(&settings);
        tokio::task::spawn_blocking(move || counter.warm_up());
        let (server, address) = listening::bind(&settings, service.clone())?;
        let watched = bind_watched(&settings, service.clone())?;
        service.start(settings.listen_url().and_then(ListenUrl::parse));
        keys::tell(is_open, address);
        Ok(Self {
            server,
            address,
            banner: banner(
                address,
                watched.as_ref().map(|(_, address)| *address),
                [
                    ("Database", url.describe()),
                    ("Summaries", writes_with),
                    ("Turns", answers_with),
                    ("Keys", keys::describe(is_open).to_owned()),
                ],
            ),
            watched,
            service,
            database,
            stop: StopHandle::default(),
            patience: settings.http.shutdown(),
        })
    }

    /// The address it is bound to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the metrics' own server, if there is one.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.watched.as_ref().map(|(_, address)| *address)
    }

    /// A way to end it from outside.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Serves until it is asked to stop, by a signal or a [`StopHandle`], and then ends gracefully.
    ///
    /// # Errors
    /// The server failed.
    pub async fn run(self) -> Result<(), StartError> {
        let handle = self.server.handle();
        let service = self.service.clone();
        let ending = end_gracefully(self.stop, handle, service, self.patience);
        let ending = tokio::spawn(ending);
        // Watched to the very end: it is stopped behind the service's own.
        let watched = self
            .watched
            .map(|(server, _)| (server.handle(), tokio::spawn(server)));
        let served = self.server.await.map_err(StartError::Serve);
        if let Some((handle, task)) = watched {
            handle.stop(true).await;
            // How it ended changes nothing any more.
            drop(task.await);
        }
        served?;
        // The server also ends by itself if it fails; then nobody waits for the signals any more.
        if !ending.is_finished() {
            ending.abort();
        }
        self.service.close().await;
        self.database.close().await;
        Ok(())
    }

    /// Where everything is, for a person: a line each.
    #[must_use]
    pub fn banner(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("Precis {}", env!("CARGO_PKG_VERSION"));
        for (name, value) in &self.banner {
            // Writing to a string does not fail.
            let _ = write!(text, "\n  {name:<10} {value}");
        }
        text
    }
}

/// Waits for the wish to end, lets compactions finish while the server still answers, then stops the server.
async fn end_gracefully(
    stop: StopHandle,
    server: ServerHandle,
    service: Service,
    patience: Duration,
) {
    tokio::select! {
        () = stop.0.cancelled() => {}
        () = signalled() => {}
    }
    tracing::info!("shutting down: finishing what is running");
    let finish = async {
        if !service.drain(patience).await {
            tracing::warn!("a compaction still runs; its lease will run out");
        }
        server.stop(true).await;
        service.close().await;
    };
    tokio::select! {
        () = finish => {}
        // Asked twice, a person means now.
        () = signalled() => server.stop(false).await,
    }
}

async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        // Without signals the process can still be killed; it then leaves nothing half done.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

fn defaults(settings: &Settings) -> Result<Defaults, StartError> {
    Ok(Defaults {
        compact_count: i64::from(settings.compaction.compact_count),
        compaction: CompactionPolicy {
            keep_recent_turns: i64::from(settings.compaction.keep_recent_turns),
            boundary: match settings.compaction.boundary {
                config::Boundary::Turn => Boundary::Turn,
                config::Boundary::Step => Boundary::Step,
            },
            max_summary_tokens: i64::from(settings.compaction.max_summary_tokens),
            redact_secrets: settings.compaction.redact_secrets == config::Switch::On,
        },
        pruning: pruning(&settings.pruning),
        auto_compact: auto_compact(&settings.auto_compact),
        model: settings.main_model().map(|model| model.model),
        compaction_prompt: compaction_prompt(&settings.compaction.prompt_file)?,
    })
}

fn pruning(settings: &PruningSettings) -> PruningPolicy {
    let on = |switch| switch == config::Switch::On;
    PruningPolicy {
        enabled: on(settings.enabled),
        budget_tokens: i64::from(settings.budget_tokens),
        fit_to_window: on(settings.fit_to_window),
        headroom: settings.headroom,
        floor_ratio: settings.floor_ratio,
        protect_recent_turns: i64::from(settings.protect_recent_turns),
        max_tool_result_bytes: i64::from(settings.max_tool_result_bytes),
        keep_head_bytes: i64::from(settings.keep_head_bytes),
        keep_tail_bytes: i64::from(settings.keep_tail_bytes),
        collapse_duplicate_results: on(settings.collapse_duplicate_results),
        elide_superseded_reads: on(settings.elide_superseded_reads),
        drop_stale_reasoning: on(settings.drop_stale_reasoning),
        milestone_tokens: i64::from(settings.milestone_tokens),
    }
}

fn auto_compact(settings: &AutoCompactSettings) -> AutoCompactPolicy {
    let limit = |number: u32| (number > 0).then_some(i64::from(number));
    AutoCompactPolicy {
        enabled: settings.enabled == config::Switch::On,
        trigger_tokens: i64::from(settings.trigger_tokens),
        trigger_messages: limit(settings.trigger_messages),
        when: match settings.when {
            config::When::Cold => When::Cold,
            config::When::Now => When::Now,
        },
        hard_trigger_tokens: limit(settings.hard_trigger_tokens),
        cache_ttl_seconds: i64::from(settings.cache_ttl_seconds),
    }
}

/// The operator's prompt for the summarizer, or the built-in one.
fn compaction_prompt(file: &str) -> Result<String, StartError> {
    const LOOKED_FOR: &str = "COMPACTION.md";
    if file.is_empty() {
        return Ok(prompt::COMPACTION_PROMPT.to_owned());
    }
    match std::fs::read_to_string(file) {
        Ok(text) if text.trim().is_empty() => Err(StartError::EmptyPrompt(file.to_owned())),
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound && file == LOOKED_FOR => {
            Ok(prompt::COMPACTION_PROMPT.to_owned())
        }
        Err(source) => Err(StartError::Prompt {
            file: file.to_owned(),
            source,
        }),
    }
}

fn counter(settings: &Settings) -> Counter {
    match settings.tokens.counter {
        config::TokenCounter::Estimate => Counter::Estimate,
        config::TokenCounter::O200kBase => Counter::O200kBase,
        config::TokenCounter::Cl100kBase => Counter::Cl100kBase,
    }
}

fn summarizer(settings: &Settings) -> Result<Summarizer, StartError> {
    let at = |model: Option<ModelSettings>| {
        model
            .map(|model| {
                let endpoint = Endpoint::parse(&model.base_url, model.api_key)?;
                Ok::<_, SetupError>(ModelAt {
                    server: ChatModel::new(&endpoint, timeouts(settings), retries(settings))?,
                    base_url: model.base_url,
                    model: model.model,
                })
            })
            .transpose()
    };
    Ok(Summarizer {
        ask_models: settings.compaction.summarizer != config::Summarizer::Extractive,
        fall_back: settings.compaction.fallback == config::Fallback::Extractive,
        compaction: at(settings.compaction_model())?,
        compaction_is_own: !settings.compaction_model.is_empty(),
        main: at(settings.main_model())?,
        cap_name: match settings.compaction.output_cap {
            config::OutputCap::MaxTokens => Some(OutputCapName::MaxTokens),
            config::OutputCap::MaxCompletionTokens => Some(OutputCapName::MaxCompletionTokens),
            config::OutputCap::None => None,
        },
        cap_tokens: settings.compaction.output_cap_tokens,
        window: Some(settings.compaction.context_window).filter(|window| *window > 0),
    })
}

fn describe_summarizer(summarizer: &Summarizer) -> String {
    const EMBEDDED: &str = "the embedded extractive summarizer";
    let Some(first) = summarizer
        .compaction
        .as_ref()
        .filter(|_| summarizer.ask_models)
    else {
        return EMBEDDED.to_owned();
    };
    let mut text = format!("{} at {}", first.model, first.base_url);
    if summarizer.compaction_is_own && summarizer.main.is_some() {
        text.push_str(", then the session's own model");
    }
    if summarizer.fall_back {
        text.push_str(", then ");
        text.push_str(EMBEDDED);
    }
    text
}

fn timeouts(settings: &Settings) -> Timeouts {
    Timeouts {
        connect: settings.provider.connect_timeout(),
        first_byte: settings.provider.first_byte_timeout(),
        idle: settings.provider.idle_timeout(),
        call: settings.provider.call_timeout(),
    }
}

fn retries(settings: &Settings) -> RetryPolicy {
    RetryPolicy {
        attempts: settings.provider.attempts,
        backoff_initial: settings.provider.backoff_initial(),
        backoff_max: settings.provider.backoff_max(),
        retry_after_max: settings.provider.retry_after_max(),
        wait_total: settings.provider.retry_wait_total(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_the_policies_are_those_of_the_contract() {
        let settings = Settings::from_vars([]).unwrap();
        assert_eq!(pruning(&settings.pruning), PruningPolicy::default());
        assert_eq!(
            auto_compact(&settings.auto_compact),
            AutoCompactPolicy::default()
        );
    }
}
