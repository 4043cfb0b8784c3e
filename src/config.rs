//! The settings of the service: what an operator may choose, read once at the start.
//!
//! Three layers: the compiled-in `config/default.toml`, the TOML file that `PRECIS_CONFIG` names, and `PRECIS_*`
//! variables of the environment. The first one doubles as the documentation, so every option stands there with its
//! meaning, bounds and default, and a test holds that text against the rules in [`options`].
//!
//! The whole is checked before anything starts, and all mistakes are told at once: an operator should not have to
//! fix them one restart at a time. Therefore each layer is first checked option by option against [`options`], which
//! knows the names and can tell a typing error from a bad value, and only then turned into [`Settings`], which cannot
//! fail any more. Code that holds a `Settings` may rely on the bounds that `config/default.toml` states.
//!
//! What does not belong here: settings of a session or an agent (they are data), anything that opens a connection or
//! a file other than the configuration, and defaults of any kind, which belong in the TOML file.

mod access;
mod limits;
mod mistake;
mod options;
mod origins;
mod policies;
mod retention;
mod sources;
#[cfg(test)]
mod tests;

use std::{fmt, net::SocketAddr, time::Duration};

use figment::{
    Figment,
    providers::{Format, Toml},
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, de::Error as _};

pub use self::access::CorsSettings;
pub use self::limits::{LimitSettings, TenantSettings};
pub use self::mistake::{ConfigError, Mistake};
use self::options::SAME;
pub use self::policies::{AutoCompactSettings, PruningSettings, When};
pub use self::retention::RetentionSettings;
use self::sources::Chosen;

/// The documentation of the configuration, and the lowest layer of it.
pub const DEFAULTS: &str = include_str!("../config/default.toml");

/// Everything an operator may choose. See `config/default.toml` for what each option means.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    #[serde(deserialize_with = "listen")]
    pub listen: SocketAddr,
    /// Empty when there is none. See [`Settings::admin_key`].
    #[serde(deserialize_with = "secret", rename = "admin_key")]
    admin: SecretString,
    pub insecure_no_auth: Switch,
    #[serde(deserialize_with = "database_url")]
    pub database_url: DatabaseUrl,
    /// `same`, a URL, or nothing. See [`Settings::listen_url`].
    #[serde(deserialize_with = "secret")]
    pub database_listen_url: SecretString,
    pub log: String,
    pub log_format: LogFormat,
    /// Where the metrics are served without a key; nowhere else if there is none.
    #[serde(deserialize_with = "listen_or_none")]
    pub metrics_listen: Option<SocketAddr>,
    /// The collector of traces. Empty when there is none.
    pub otlp_endpoint: String,
    /// Empty when there is none. What a call needs is put together by [`Settings::main_model`].
    pub model_base_url: String,
    #[serde(deserialize_with = "secret")]
    pub model_api_key: SecretString,
    pub model: String,
    /// Empty when there is none. See [`Settings::compaction_model`].
    pub compaction_model_base_url: String,
    #[serde(deserialize_with = "secret")]
    pub compaction_model_api_key: SecretString,
    pub compaction_model: String,
    pub database: DatabaseSettings,
    pub http: HttpSettings,
    pub cors: CorsSettings,
    pub limits: LimitSettings,
    pub tenants: TenantSettings,
    pub compaction: CompactionSettings,
    pub pruning: PruningSettings,
    pub auto_compact: AutoCompactSettings,
    pub events: EventSettings,
    pub idempotency: IdempotencySettings,
    pub retention: RetentionSettings,
    pub tokens: TokenSettings,
    pub provider: ProviderSettings,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseSettings {
    pub max_connections: u32,
    pub readers: u32,
    pub acquire_timeout_seconds: u64,
    pub busy_timeout_seconds: u64,
    pub synchronous: Synchronous,
}

/// When SQLite has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Synchronous {
    Full,
    Normal,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSettings {
    /// 0 means one per core; see [`HttpSettings::workers`].
    pub workers: usize,
    pub keep_alive_seconds: u64,
    pub header_timeout_seconds: u64,
    pub body_timeout_seconds: u64,
    /// 0 means as long as the system waits.
    pub write_timeout_seconds: u64,
    pub shutdown_seconds: u64,
    pub max_connections: usize,
    pub backlog: u32,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompactionSettings {
    pub summarizer: Summarizer,
    pub fallback: Fallback,
    pub compact_count: u8,
    pub keep_recent_turns: u32,
    pub boundary: Boundary,
    pub max_summary_tokens: u32,
    pub prompt_file: String,
    /// 0 means unknown.
    pub context_window: u64,
    pub redact_secrets: Switch,
    pub lease_seconds: u64,
    pub deadline_seconds: u64,
    pub output_cap: OutputCap,
    /// 0 means four times the summary's length; see [`CompactionSettings::output_cap_tokens`].
    pub output_cap_tokens: u32,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventSettings {
    pub retention_days: u64,
    pub keep_alive_seconds: u64,
    pub poll_ms: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdempotencySettings {
    pub hours: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenSettings {
    pub counter: TokenCounter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenCounter {
    Estimate,
    #[serde(rename = "o200k_base")]
    O200kBase,
    #[serde(rename = "cl100k_base")]
    Cl100kBase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderSettings {
    pub connect_timeout_ms: u64,
    pub first_byte_timeout_ms: u64,
    pub idle_timeout_ms: u64,
    pub call_timeout_ms: u64,
    pub attempts: u32,
    pub backoff_initial_ms: u64,
    pub backoff_max_ms: u64,
    pub retry_after_max_ms: u64,
    pub retry_wait_total_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Summarizer {
    Auto,
    Model,
    Extractive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    None,
    Extractive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Boundary {
    Turn,
    Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputCap {
    MaxTokens,
    MaxCompletionTokens,
    None,
}

/// A model that can be called.
#[derive(Debug, Clone)]
pub struct ModelSettings {
    /// Without a slash at its end.
    pub base_url: String,
    pub api_key: Option<SecretString>,
    pub model: String,
}

/// Where the data is. Shown (`Display`, `Debug`) without the password.
#[derive(Clone)]
pub struct DatabaseUrl(SecretString);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseKind {
    Sqlite,
    Postgres,
}

impl Settings {
    /// Reads the settings from the environment of this process.
    ///
    /// # Errors
    ///
    /// With every mistake that was found, in the environment and in the file that `PRECIS_CONFIG` names.
    pub fn load() -> Result<Self, ConfigError> {
        let mut vars = Vec::new();
        let mut mistakes = Vec::new();
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.to_str().filter(|name| sources::is_ours(name)) else {
                continue;
            };
            match value.into_string() {
                Ok(value) => vars.push((name.to_owned(), value)),
                Err(_) => mistakes.push(Mistake::not_unicode(name)),
            }
        }
        Self::read(vars, mistakes)
    }

    /// Reads the settings from these variables instead of the environment, and from the file that `PRECIS_CONFIG`
    /// names if it is among them. Nothing else is looked at.
    ///
    /// # Errors
    ///
    /// With every mistake that was found.
    pub fn from_vars(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        Self::read(vars, Vec::new())
    }

    fn read(
        vars: impl IntoIterator<Item = (String, String)>,
        mut mistakes: Vec<Mistake>,
    ) -> Result<Self, ConfigError> {
        let chosen = sources::read(vars, &mut mistakes);
        let settings = match Self::extract(&chosen) {
            Ok(settings) => {
                settings.check_together(&chosen, &mut mistakes);
                Some(settings)
            }
            Err(error) => {
                mistakes.push(Mistake::internal(&error));
                None
            }
        };
        match settings {
            Some(settings) if mistakes.is_empty() => Ok(settings),
            _ => Err(ConfigError::new(mistakes)),
        }
    }

    fn extract(chosen: &Chosen) -> Result<Self, Box<figment::Error>> {
        let mut figment = Figment::from(Toml::string(DEFAULTS));
        for (path, value) in chosen.values() {
            figment = figment.merge((path, value));
        }
        figment.extract().map_err(Box::new)
    }

    /// Where other replicas are heard, with its password; none if they are not.
    #[must_use]
    pub fn listen_url(&self) -> Option<&str> {
        match non_empty(self.database_listen_url.expose_secret())? {
            SAME => Some(self.database_url.expose()),
            url => Some(url),
        }
    }

    /// The model that answers in turns; none unless both its address and its name are known.
    #[must_use]
    pub fn main_model(&self) -> Option<ModelSettings> {
        ModelSettings::new(&self.model_base_url, &self.model_api_key, &self.model)
    }

    /// The model that writes summaries. Each of its three values falls back to that of the main model, but the main
    /// key goes to the main address only.
    #[must_use]
    pub fn compaction_model(&self) -> Option<ModelSettings> {
        let base_url = non_empty(&self.compaction_model_base_url).unwrap_or(&self.model_base_url);
        let model = non_empty(&self.compaction_model).unwrap_or(&self.model);
        let same_server = trim_slash(base_url) == trim_slash(&self.model_base_url);
        let own_key = !self.compaction_model_api_key.expose_secret().is_empty();
        let key = if own_key || !same_server {
            &self.compaction_model_api_key
        } else {
            &self.model_api_key
        };
        ModelSettings::new(base_url, key, model)
    }

    /// What no option can be blamed for alone. An option that is wrong by itself is not held against another.
    fn check_together(&self, chosen: &Chosen, mistakes: &mut Vec<Mistake>) {
        self.check_admin_key(chosen, mistakes);
        self.check_output_cap(chosen, mistakes);
        self.check_models(chosen, mistakes);
    }

    fn check_output_cap(&self, chosen: &Chosen, mistakes: &mut Vec<Mistake>) {
        const CAP: &str = "compaction.output_cap_tokens";
        const SUMMARY: &str = "compaction.max_summary_tokens";
        let cap = self.compaction.output_cap_tokens;
        let summary = self.compaction.max_summary_tokens;
        if chosen.all_sound(&[CAP, SUMMARY]) && cap != 0 && cap <= summary {
            mistakes.push(Mistake::about(
                CAP,
                &format!(
                    "is {cap}; it takes 0 (four times `{SUMMARY}`) or a number larger than `{SUMMARY}`, which is \
                     {summary}"
                ),
            ));
        }
    }

    fn check_models(&self, chosen: &Chosen, mistakes: &mut Vec<Mistake>) {
        const MODEL_OPTIONS: [&str; 7] = [
            "compaction.summarizer",
            "model_base_url",
            "model_api_key",
            "model",
            "compaction_model_base_url",
            "compaction_model_api_key",
            "compaction_model",
        ];
        let summarizer = self.compaction.summarizer;
        if summarizer == Summarizer::Extractive || !chosen.all_sound(&MODEL_OPTIONS) {
            return;
        }
        let has = |option: &str| !option.is_empty();
        let base_url = has(&self.model_base_url) || has(&self.compaction_model_base_url);
        let model = has(&self.model) || has(&self.compaction_model);
        let main_key = has(self.model_api_key.expose_secret());
        let key = main_key || has(self.compaction_model_api_key.expose_secret());

        let begun = summarizer == Summarizer::Model || base_url || model || key;
        if begun && !base_url {
            mistakes.push(Mistake::about(
                "model_base_url",
                &format!(
                    "is empty, {}; it takes the address of the model, such as `http://127.0.0.1:11434/v1`",
                    self.why_a_model()
                ),
            ));
        }
        if begun && !model {
            mistakes.push(Mistake::about(
                "model",
                &format!(
                    "is empty, {}; it takes the name of the model, as its server knows it",
                    self.why_a_model()
                ),
            ));
        }
        if base_url && main_key && !has(&self.model_base_url) {
            mistakes.push(Mistake::about(
                "model_api_key",
                "is set, but `model_base_url` is empty, so that it would be sent nowhere; for the server of \
                 `compaction_model_base_url` it is `compaction_model_api_key`",
            ));
        }
    }

    /// Why something that is missing of a model is missed, as a part of a sentence.
    fn why_a_model(&self) -> &'static str {
        if self.compaction.summarizer == Summarizer::Model {
            "and `compaction.summarizer` is `model`, which needs one"
        } else {
            "but other options of the model are set, and with `compaction.summarizer` at `auto` summaries would be \
             extractive without a word (set it to `extractive` if that is meant)"
        }
    }
}

impl DatabaseSettings {
    #[must_use]
    pub fn acquire_timeout(&self) -> Duration {
        Duration::from_secs(self.acquire_timeout_seconds)
    }

    #[must_use]
    pub fn busy_timeout(&self) -> Duration {
        Duration::from_secs(self.busy_timeout_seconds)
    }
}

impl HttpSettings {
    /// Worker threads to start; at least one.
    #[must_use]
    pub fn worker_count(&self) -> usize {
        if self.workers > 0 {
            return self.workers;
        }
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
    }

    #[must_use]
    pub fn keep_alive(&self) -> Duration {
        Duration::from_secs(self.keep_alive_seconds)
    }

    #[must_use]
    pub fn header_timeout(&self) -> Duration {
        Duration::from_secs(self.header_timeout_seconds)
    }

    #[must_use]
    pub fn body_timeout(&self) -> Duration {
        Duration::from_secs(self.body_timeout_seconds)
    }

    #[must_use]
    pub fn write_timeout(&self) -> Option<Duration> {
        (self.write_timeout_seconds > 0).then(|| Duration::from_secs(self.write_timeout_seconds))
    }

    #[must_use]
    pub fn shutdown(&self) -> Duration {
        Duration::from_secs(self.shutdown_seconds)
    }
}

impl CompactionSettings {
    #[must_use]
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_seconds)
    }

    /// How often a running compaction renews its lease.
    #[must_use]
    pub fn lease_renewal(&self) -> Duration {
        self.lease() / 3
    }

    #[must_use]
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_seconds)
    }

    /// The output cap for a summary of this length, which a session may have set higher than the server: always
    /// larger than the length.
    #[must_use]
    pub fn output_cap_tokens(&self, max_summary_tokens: u32) -> u32 {
        if self.output_cap_tokens == 0 {
            max_summary_tokens.saturating_mul(4)
        } else {
            self.output_cap_tokens
                .max(max_summary_tokens.saturating_add(1))
        }
    }
}

impl IdempotencySettings {
    /// How long an answer is kept.
    #[must_use]
    pub fn kept(&self) -> Duration {
        Duration::from_hours(self.hours)
    }
}

impl EventSettings {
    #[must_use]
    pub fn retention(&self) -> Duration {
        Duration::from_hours(24 * self.retention_days)
    }

    #[must_use]
    pub fn keep_alive(&self) -> Duration {
        Duration::from_secs(self.keep_alive_seconds)
    }

    #[must_use]
    pub fn poll(&self) -> Duration {
        Duration::from_millis(self.poll_ms)
    }
}

impl ProviderSettings {
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    #[must_use]
    pub fn first_byte_timeout(&self) -> Duration {
        Duration::from_millis(self.first_byte_timeout_ms)
    }

    #[must_use]
    pub fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_timeout_ms)
    }

    #[must_use]
    pub fn call_timeout(&self) -> Duration {
        Duration::from_millis(self.call_timeout_ms)
    }

    #[must_use]
    pub fn backoff_initial(&self) -> Duration {
        Duration::from_millis(self.backoff_initial_ms)
    }

    #[must_use]
    pub fn backoff_max(&self) -> Duration {
        Duration::from_millis(self.backoff_max_ms)
    }

    #[must_use]
    pub fn retry_after_max(&self) -> Duration {
        Duration::from_millis(self.retry_after_max_ms)
    }

    #[must_use]
    pub fn retry_wait_total(&self) -> Duration {
        Duration::from_millis(self.retry_wait_total_ms)
    }
}

impl ModelSettings {
    fn new(base_url: &str, api_key: &SecretString, model: &str) -> Option<Self> {
        Some(Self {
            base_url: trim_slash(non_empty(base_url)?).to_owned(),
            model: non_empty(model)?.to_owned(),
            api_key: non_empty(api_key.expose_secret()).map(SecretString::from),
        })
    }
}

impl DatabaseUrl {
    fn parse(text: &str) -> Result<Self, &'static str> {
        options::check_database_url(text).map(|()| Self(SecretString::from(text)))
    }

    #[must_use]
    pub fn kind(&self) -> DatabaseKind {
        if self.expose().starts_with("sqlite:") {
            DatabaseKind::Sqlite
        } else {
            DatabaseKind::Postgres
        }
    }

    /// The URL with its password, for the driver and for nothing else.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&options::without_password(self.expose()))
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn trim_slash(url: &str) -> &str {
    url.trim_end_matches('/')
}

fn secret<'de, D: Deserializer<'de>>(from: D) -> Result<SecretString, D::Error> {
    String::deserialize(from).map(SecretString::from)
}

fn listen<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(from)?;
    options::parse_listen(&text).ok_or_else(|| D::Error::custom("not an address and port"))
}

fn listen_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    let read = |text| options::parse_listen(text).ok_or_else(|| D::Error::custom("not an address"));
    non_empty(&text).map(read).transpose()
}

fn database_url<'de, D: Deserializer<'de>>(from: D) -> Result<DatabaseUrl, D::Error> {
    DatabaseUrl::parse(&String::deserialize(from)?).map_err(D::Error::custom)
}
