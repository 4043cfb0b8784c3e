//! The list of options and what each one takes.
//!
//! It says again what `config/default.toml` says in words, in a form that can be checked; a test compares the two. To
//! add an option: write it there, add it here, add its field to [`super::Settings`]. What two options demand of each
//! other does not belong here but in [`super::Settings::load`]'s last step.

use std::{borrow::Cow, net::SocketAddr};

use figment::value::Value;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use super::origins;

/// An option: its path in the TOML file and what it takes.
pub(super) struct Opt {
    pub(super) path: &'static str,
    pub(super) takes: Takes,
}

/// What an option takes. Every kind but numbers is a string in TOML.
pub(super) enum Takes {
    /// A whole number between two others, both included.
    Whole(u64, u64),
    /// A number over 0, up to 1.
    Share,
    OneOf(&'static [&'static str]),
    Listen,
    /// An address to listen on, or nothing.
    ListenOrNone,
    DatabaseUrl,
    /// `same`, the URL of a PostgreSQL database, or nothing.
    ListenUrl,
    LogFilter,
    /// The address of a model server, or nothing.
    BaseUrl,
    /// The name of a model, or nothing.
    Name,
    /// A key that goes into an HTTP header, or nothing. Never shown.
    Secret,
    /// Origins of web pages: a list, or text with commas between them.
    Origins,
}

/// A value as it was found.
#[derive(Clone, Copy)]
pub(super) enum Given<'a> {
    /// In a file, with a type.
    Value(&'a Value),
    /// In the environment: text, whatever it stands for.
    Text(&'a str),
}

/// Names of the reserved kind, such as those of the file itself, are in [`super::sources`].
pub(super) const OPTIONS: &[Opt] = &[
    opt("listen", Takes::Listen),
    opt("admin_key", Takes::Secret),
    opt("insecure_no_auth", ON_OR_OFF),
    opt("database_url", Takes::DatabaseUrl),
    opt("database_listen_url", Takes::ListenUrl),
    opt("log", Takes::LogFilter),
    opt("log_format", Takes::OneOf(&["text", "json"])),
    opt("metrics_listen", Takes::ListenOrNone),
    opt("otlp_endpoint", Takes::BaseUrl),
    opt("model_base_url", Takes::BaseUrl),
    opt("model_api_key", Takes::Secret),
    opt("model", Takes::Name),
    opt("compaction_model_base_url", Takes::BaseUrl),
    opt("compaction_model_api_key", Takes::Secret),
    opt("compaction_model", Takes::Name),
    opt("database.max_connections", Takes::Whole(1, 1_000)),
    opt("database.readers", Takes::Whole(1, 256)),
    opt("database.acquire_timeout_seconds", Takes::Whole(1, 300)),
    opt("database.busy_timeout_seconds", Takes::Whole(1, 300)),
    opt("database.synchronous", Takes::OneOf(&["full", "normal"])),
    opt("http.workers", Takes::Whole(0, 1_024)),
    opt("http.keep_alive_seconds", Takes::Whole(0, 3_600)),
    opt("http.header_timeout_seconds", Takes::Whole(1, 300)),
    opt("http.body_timeout_seconds", Takes::Whole(1, 3_600)),
    opt("http.write_timeout_seconds", Takes::Whole(0, 3_600)),
    opt("http.shutdown_seconds", Takes::Whole(0, 3_600)),
    opt("http.max_connections", Takes::Whole(1, 1_000_000)),
    opt("http.backlog", Takes::Whole(1, 65_535)),
    opt("cors.allowed_origins", Takes::Origins),
    opt("limits.body_bytes", Takes::Whole(1_024, 1 << 30)),
    opt("limits.message_bytes", Takes::Whole(1_024, 1 << 30)),
    opt("limits.messages_per_append", Takes::Whole(1, 10_000)),
    opt("limits.metadata_bytes", Takes::Whole(1_024, 1 << 24)),
    opt(
        "limits.body_bytes_in_flight",
        Takes::Whole(1 << 20, 1 << 40),
    ),
    opt("limits.event_streams", Takes::Whole(1, 10_000_000)),
    opt("tenants.requests_per_second", Takes::Whole(0, 1_000_000)),
    opt("tenants.request_burst", Takes::Whole(0, 1_000_000)),
    opt("tenants.concurrent_compactions", Takes::Whole(0, 1_000_000)),
    opt("tenants.concurrent_turns", Takes::Whole(0, 1_000_000)),
    opt("tenants.stored_bytes", Takes::Whole(0, (1 << 53) - 1)),
    opt(
        "compaction.summarizer",
        Takes::OneOf(&["auto", "model", "extractive"]),
    ),
    opt("compaction.fallback", Takes::OneOf(&["none", "extractive"])),
    opt("compaction.compact_count", Takes::Whole(1, 99)),
    opt("compaction.keep_recent_turns", Takes::Whole(0, 10_000)),
    opt("compaction.boundary", Takes::OneOf(&["turn", "step"])),
    opt("compaction.max_summary_tokens", Takes::Whole(100, 100_000)),
    opt("compaction.prompt_file", Takes::Name),
    opt("compaction.context_window", Takes::Whole(0, 100_000_000)),
    opt("compaction.redact_secrets", ON_OR_OFF),
    opt("compaction.lease_seconds", Takes::Whole(1, 3_600)),
    opt("compaction.deadline_seconds", Takes::Whole(1, 86_400)),
    opt(
        "compaction.output_cap",
        Takes::OneOf(&["max_tokens", "max_completion_tokens", "none"]),
    ),
    opt("compaction.output_cap_tokens", Takes::Whole(0, 1_000_000)),
    opt("pruning.enabled", ON_OR_OFF),
    opt("pruning.budget_tokens", Takes::Whole(1, 100_000_000)),
    opt("pruning.fit_to_window", ON_OR_OFF),
    opt("pruning.headroom", Takes::Share),
    opt("pruning.floor_ratio", Takes::Share),
    opt("pruning.protect_recent_turns", Takes::Whole(0, 10_000)),
    opt("pruning.max_tool_result_bytes", Takes::Whole(0, 1 << 30)),
    opt("pruning.keep_head_bytes", Takes::Whole(0, 1 << 30)),
    opt("pruning.keep_tail_bytes", Takes::Whole(0, 1 << 30)),
    opt("pruning.collapse_duplicate_results", ON_OR_OFF),
    opt("pruning.elide_superseded_reads", ON_OR_OFF),
    opt("pruning.drop_stale_reasoning", ON_OR_OFF),
    opt("pruning.milestone_tokens", Takes::Whole(1, 1_000_000_000)),
    opt("auto_compact.enabled", ON_OR_OFF),
    opt("auto_compact.trigger_tokens", Takes::Whole(1, 100_000_000)),
    opt(
        "auto_compact.trigger_messages",
        Takes::Whole(0, 100_000_000),
    ),
    opt("auto_compact.when", Takes::OneOf(&["cold", "now"])),
    opt(
        "auto_compact.hard_trigger_tokens",
        Takes::Whole(0, 100_000_000),
    ),
    opt("auto_compact.cache_ttl_seconds", Takes::Whole(0, 86_400)),
    opt("auto_compact.concurrency", Takes::Whole(1, 1_000)),
    opt(
        "auto_compact.backoff_initial_ms",
        Takes::Whole(1, 3_600_000),
    ),
    opt("events.retention_days", Takes::Whole(1, 3_650)),
    opt("events.keep_alive_seconds", Takes::Whole(1, 300)),
    opt("events.poll_ms", Takes::Whole(100, 60_000)),
    opt("idempotency.hours", Takes::Whole(1, 8_760)),
    opt("retention.days", Takes::Whole(0, 36_500)),
    opt("retention.interval_minutes", Takes::Whole(1, 10_080)),
    opt(
        "tokens.counter",
        Takes::OneOf(&["estimate", "o200k_base", "cl100k_base"]),
    ),
    opt("provider.connect_timeout_ms", Takes::Whole(1, 3_600_000)),
    opt("provider.first_byte_timeout_ms", Takes::Whole(1, 3_600_000)),
    opt("provider.idle_timeout_ms", Takes::Whole(1, 3_600_000)),
    opt("provider.call_timeout_ms", Takes::Whole(1, 3_600_000)),
    opt("provider.attempts", Takes::Whole(1, 10)),
    opt("provider.backoff_initial_ms", Takes::Whole(0, 600_000)),
    opt("provider.backoff_max_ms", Takes::Whole(0, 600_000)),
    opt("provider.retry_after_max_ms", Takes::Whole(0, 3_600_000)),
    opt("provider.retry_wait_total_ms", Takes::Whole(0, 3_600_000)),
];

const ON_OR_OFF: Takes = Takes::OneOf(&["on", "off"]);

const fn opt(path: &'static str, takes: Takes) -> Opt {
    Opt { path, takes }
}

pub(super) fn by_path(path: &str) -> Option<&'static Opt> {
    OPTIONS.iter().find(|option| option.path == path)
}

pub(super) fn by_env_name(name: &str) -> Option<&'static Opt> {
    OPTIONS.iter().find(|option| env_name(option.path) == name)
}

/// `compaction.lease_seconds` is `PRECIS_COMPACTION__LEASE_SECONDS`.
pub(super) fn env_name(path: &str) -> String {
    format!("PRECIS_{}", path.replace('.', "__").to_uppercase())
}

/// Whether options can stand in a table of this name.
pub(super) fn is_table(path: &str) -> bool {
    OPTIONS.iter().any(|option| {
        option
            .path
            .strip_prefix(path)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

impl Opt {
    /// The value in the option's own type, or what it takes instead, as the end of a sentence.
    pub(super) fn read(&self, given: Given<'_>) -> Result<Value, Cow<'static, str>> {
        if let Takes::Whole(min, max) = self.takes {
            let number = match given {
                Given::Text(text) => text.parse().ok(),
                Given::Value(value) => value.to_num().and_then(|number| {
                    let signed = number
                        .to_i128()
                        .and_then(|number| u128::try_from(number).ok());
                    number.to_u128().or(signed)
                }),
            };
            return number
                .and_then(|number: u128| u64::try_from(number).ok())
                .filter(|number| (min..=max).contains(number))
                .map(Value::from)
                .ok_or_else(|| format!("it takes a whole number from {min} to {max}").into());
        }
        if matches!(self.takes, Takes::Share) {
            return read_share(given).ok_or_else(|| "it takes a number over 0, up to 1".into());
        }
        if matches!(self.takes, Takes::Origins) {
            return origins::read(given);
        }
        let text = match given {
            Given::Text(text) => Some(text),
            Given::Value(value) => value.as_str(),
        };
        let Some(text) = text else {
            return Err("it takes text, in quotation marks".into());
        };
        self.takes.check(text).map(|()| Value::from(text))
    }

    /// What was given, for a message.
    pub(super) fn show(&self, given: Given<'_>) -> Cow<'static, str> {
        let text = match given {
            Given::Text(text) => text,
            Given::Value(value) => match (value.as_str(), value.to_num()) {
                (Some(text), _) => text,
                _ if matches!(self.takes, Takes::Secret) => {
                    return "something that is not text".into();
                }
                (None, Some(number)) => {
                    let number = number.to_i128().map_or_else(
                        || number.to_f64().map(|number| number.to_string()),
                        |number| Some(number.to_string()),
                    );
                    return number.unwrap_or_default().into();
                }
                (None, None) => {
                    return match value {
                        Value::Bool(_, value) => value.to_string().into(),
                        Value::Array(..) => "an array".into(),
                        _ => "a table".into(),
                    };
                }
            },
        };
        if text.is_empty() {
            return "nothing".into();
        }
        match self.takes {
            Takes::Secret => "a value that is not shown here".into(),
            Takes::DatabaseUrl | Takes::ListenUrl => {
                format!("`{}`", shortened(&without_password(text))).into()
            }
            Takes::BaseUrl if text.contains(['@', '?', '#']) => {
                "an address that may hold a secret and is not shown here".into()
            }
            _ => format!("`{}`", shortened(text)).into(),
        }
    }
}

impl Takes {
    fn check(&self, text: &str) -> Result<(), Cow<'static, str>> {
        match self {
            Self::Whole(..) | Self::Share | Self::Origins => Ok(()),
            Self::OneOf(words) => check(words.contains(&text), || one_of(words)),
            Self::Listen => check(parse_listen(text).is_some(), || {
                "it takes an IP address and a port, such as `127.0.0.1:8080`, `0.0.0.0:8080`, `[::1]:8080` or \
                 `localhost:8080`"
                    .into()
            }),
            Self::ListenOrNone => check(text.is_empty() || parse_listen(text).is_some(), || {
                "it takes an IP address and a port, such as `127.0.0.1:9090`, or nothing".into()
            }),
            Self::DatabaseUrl => check_database_url(text).map_err(Cow::Borrowed),
            Self::ListenUrl => check_listen_url(text).map_err(Cow::Borrowed),
            Self::LogFilter => check_log_filter(text),
            Self::BaseUrl => check_base_url(text).map_err(Cow::Borrowed),
            Self::Name => check(
                text.trim() == text && !text.contains(char::is_control),
                || "it takes the name of a model, without white space around it, or nothing".into(),
            ),
            Self::Secret => check(text.bytes().all(|byte| byte.is_ascii_graphic()), || {
                "it takes visible ASCII characters without white space (a line break at the end, perhaps?), or nothing"
                    .into()
            }),
        }
    }
}

fn read_share(given: Given<'_>) -> Option<Value> {
    let number = match given {
        Given::Text(text) => text.parse().ok(),
        Given::Value(value) => value.to_num().and_then(|number| {
            let whole = number.to_i128().and_then(|whole| i32::try_from(whole).ok());
            number.to_f64().or(whole.map(f64::from))
        }),
    };
    let share = number.filter(|share: &f64| *share > 0.0 && *share <= 1.0)?;
    Some(Value::from(share))
}

fn check(
    fine: bool,
    otherwise: impl FnOnce() -> Cow<'static, str>,
) -> Result<(), Cow<'static, str>> {
    if fine { Ok(()) } else { Err(otherwise()) }
}

fn one_of(words: &[&str]) -> Cow<'static, str> {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    format!("it takes one of {}", words.join(", ")).into()
}

/// Names other than `localhost` are not looked up: what a service listens on should not depend on a name server.
pub(super) fn parse_listen(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}").parse().ok(),
        None => text.parse().ok(),
    }
}

pub(super) fn check_database_url(text: &str) -> Result<(), &'static str> {
    const TAKES: &str = "it takes `sqlite://FILE`, `sqlite:///absolute/path/FILE` or \
                         `postgres://USER:PASSWORD@HOST:PORT/DATABASE`";
    if text.trim() != text || text.contains(char::is_control) {
        return Err(TAKES);
    }
    if let Some(rest) = text.strip_prefix("sqlite:") {
        // Each connection of a pool would see an in-memory database of its own, and lose it when it closes.
        let lower = rest.to_ascii_lowercase();
        if lower.contains(":memory:") || lower.contains("mode=memory") {
            return Err("an in-memory database is not supported; it takes `sqlite://FILE`");
        }
        let file = rest
            .strip_prefix("//")
            .and_then(|rest| rest.split('?').next());
        return file
            .filter(|file| !file.is_empty())
            .map(|_| ())
            .ok_or(TAKES);
    }
    ["postgres://", "postgresql://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme))
        .filter(|rest| !rest.is_empty())
        .map(|_| ())
        .ok_or(TAKES)
}

/// Stands for the URL of the database itself.
pub(super) const SAME: &str = "same";

fn check_listen_url(text: &str) -> Result<(), &'static str> {
    let is_postgres = check_database_url(text).is_ok() && !text.starts_with("sqlite:");
    if text.is_empty() || text == SAME || is_postgres {
        Ok(())
    } else {
        Err("it takes `same`, `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, or nothing")
    }
}

/// A database URL that can be shown. Made for URLs that are malformed as well, so it hides too much rather than too
/// little: all between the first colon and the last `@`, and every parameter.
pub(super) fn without_password(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    if scheme.starts_with("sqlite") {
        return url.to_owned();
    }
    let (user, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => match login.split_once(':') {
            Some((user, _)) => (format!("{user}:***@"), rest),
            None => (format!("{login}@"), rest),
        },
        None => (String::new(), rest),
    };
    let rest = rest
        .split_once(['?', '#'])
        .map_or_else(|| rest.to_owned(), |(rest, _)| format!("{rest}?***"));
    format!("{scheme}{user}{rest}")
}

fn check_base_url(text: &str) -> Result<(), &'static str> {
    const TAKES: &str = "it takes an address such as `https://api.openai.com/v1` or `http://127.0.0.1:11434/v1`, or \
                         nothing";
    if text.is_empty() {
        return Ok(());
    }
    let rest = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))
        .ok_or(TAKES)?;
    if text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\') {
        return Err(TAKES);
    }
    if text.contains(['?', '#']) {
        return Err("it takes an address without `?` and `#`, because paths are added to its end");
    }
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return Err(
            "it takes an address without a user or password; a key belongs in the option for it",
        );
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let port_fits = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
    if host.is_empty() || !port_fits {
        Err(TAKES)
    } else {
        Ok(())
    }
}

/// Stricter than the filter's own parser, to which any word is the name of a module: `PRECIS_LOG=warning` would log
/// nothing at all.
fn check_log_filter(text: &str) -> Result<(), Cow<'static, str>> {
    const TAKES: &str = "it takes a level (`error`, `warn`, `info`, `debug`, `trace`, `off`), or levels for parts of \
                         the program as well, such as `info,precis=debug`";
    if let Err(error) = EnvFilter::builder().parse(text) {
        return Err(format!("{error}; {TAKES}").into());
    }
    // Commas may also stand within the brackets of a span.
    let is_level = |word: &str| {
        // The level's parser takes nothing for `error`.
        !word.trim().is_empty()
            && (word.contains('=') || word.trim().parse::<LevelFilter>().is_ok())
    };
    check(text.contains('[') || text.split(',').all(is_level), || {
        TAKES.into()
    })
}

/// At most so many characters of what was given are repeated in a message.
const SHOWN: usize = 80;

fn shortened(text: &str) -> Cow<'_, str> {
    let clean: Cow<'_, str> = if text.contains(char::is_control) {
        text.escape_debug().to_string().into()
    } else {
        text.into()
    };
    if clean.chars().count() <= SHOWN {
        return clean;
    }
    format!("{}…", clean.chars().take(SHOWN).collect::<String>()).into()
}

/// The option whose name is most like this one, which may be a path or the name of a variable.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let path = name
        .strip_prefix("PRECIS_")
        .unwrap_or(name)
        .to_lowercase()
        .replace("__", ".");
    OPTIONS
        .iter()
        .map(|option| option.path)
        .min_by_key(|known| unlikeness(&path, known))
}

/// How unlike two paths are, in thousandths. The last parts are compared as well, because the table in front of them is
/// what is most easily forgotten; and a name that only says more, as `log_level` for `log`, is not far off.
fn unlikeness(path: &str, known: &str) -> usize {
    const OTHER_TABLE: usize = 50;
    const SAYS_MORE: usize = 300;
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let flat = |path: &str| path.replace(['.', '-'], "_");
    let whole = share(&flat(path), &flat(known));
    let ending = share(&flat(&last(path)), &last(known)) + OTHER_TABLE;
    let says_more = flat(path)
        .strip_prefix(&flat(known))
        .is_some_and(|rest| rest.starts_with('_'));
    whole
        .min(ending)
        .min(if says_more { SAYS_MORE } else { usize::MAX })
}

/// The edit distance, as thousandths of the longer text.
fn share(a: &str, b: &str) -> usize {
    distance(a, b) * 1_000 / a.chars().count().max(b.chars().count()).max(1)
}

/// Levenshtein's distance, with one row of the table at a time.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (above, x) in a.chars().enumerate() {
        let mut diagonal = above;
        let mut left = above + 1;
        let mut cells = row.iter_mut();
        if let Some(first) = cells.next() {
            *first = left;
        }
        for (y, cell) in b.chars().zip(cells) {
            let replaced = diagonal + usize::from(x != y);
            diagonal = *cell;
            left = replaced.min(*cell + 1).min(left + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or_default()
}
