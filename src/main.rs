//! The program `precis`: reads the command line, hands over to the library, and says in plain words what went wrong.
//!
//! What is here is what only a process can do: the runtime, the TLS provider of the process, exit codes. Everything
//! else, signals and the banner included, is the library's, so that tests reach it.

mod key_commands;

use std::{
    error::Error,
    fmt::Write as _,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};
use precis::{
    app::{self, Application, StartError},
    config::{ConfigError, DEFAULTS, Settings, Switch},
    http,
    service::{ImportRequest, PruneRequest, TenantPatch},
    telemetry::{self, Telemetry, TelemetryError},
    upkeep::{self, UpkeepError},
};
use tokio::runtime::{Builder, Runtime};

use self::key_commands::Answer;

/// How long threads that block may hold up the end of the process, once the service itself is done.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// A session store that keeps an agent's history short without losing it.
///
/// It is configured by `PRECIS_*` variables and by the TOML file that `PRECIS_CONFIG` names.
#[derive(Parser)]
#[command(name = "precis", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Clone)]
enum Command {
    /// Serve the API; this is what happens without a command
    Serve {
        /// Without any key, serve everybody who reaches the address, whatever the address is
        #[arg(long)]
        insecure_no_auth: bool,
    },
    /// Bring the database up to date and stop
    Migrate,
    /// Say why a dispatch of a session looked as it did
    Explain {
        /// The session's id
        session: String,
        /// The dispatch's number; the newest unless given
        n: Option<i64>,
        /// The tenant whose session it is
        #[arg(long, default_value = "default")]
        tenant: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete sessions that have been kept long enough, beside a running service
    PruneStore {
        /// Sessions without retention days of their own: those not written to for this long, such as 30d
        #[arg(long, value_parser = upkeep::parse_span)]
        older_than: Option<Duration>,
        /// Only this tenant's
        #[arg(long)]
        tenant: Option<String>,
        /// Only say what would be deleted
        #[arg(long)]
        dry_run: bool,
        /// Name each session
        #[arg(long)]
        verbose: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy an SQLite database into a new file, beside a running service
    Backup {
        /// The file to make
        file: PathBuf,
    },
    /// Write sessions as JSON Lines
    #[command(group = clap::ArgGroup::new("which").required(true).multiple(true).args(["session", "tenant", "all"]))]
    Export {
        /// This session; may be given several times
        #[arg(long, conflicts_with = "all")]
        session: Vec<String>,
        /// All of this tenant, or where the sessions are looked for
        #[arg(long, conflicts_with = "all")]
        tenant: Option<String>,
        /// All of all tenants
        #[arg(long)]
        all: bool,
        /// The file to make; standard output unless given
        #[arg(long)]
        output: Option<PathBuf>,
    },
    /// Read sessions that were exported
    Import {
        /// The file; standard input unless given
        file: Option<PathBuf>,
        /// Into this tenant, whatever the file says
        #[arg(long)]
        tenant: Option<String>,
        /// Give the sessions new ids
        #[arg(long, conflicts_with = "skip_existing")]
        new_ids: bool,
        /// Leave sessions as they are that are there already
        #[arg(long)]
        skip_existing: bool,
        /// Check everything and store nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Show tenants and change what they may use
    #[command(subcommand)]
    Tenants(TenantsCommand),
    /// Make, list and revoke the keys with which requests are made
    Keys {
        #[command(subcommand)]
        command: key_commands::Command,
    },
    /// Print the OpenAPI document
    Openapi,
    /// Print every option with its meaning and default, as a TOML file to start from
    Config,
}

#[derive(Subcommand, Clone)]
enum TenantsCommand {
    /// Show all tenants with their limits
    List,
    /// Change a tenant's limits; a running server takes them up within two seconds
    Set(Box<TenantLimits>),
}

/// Each takes a number, 0 for no limit, or `default` for what the server's settings say. What is not given stays.
#[derive(Args, Clone)]
struct TenantLimits {
    /// The tenant's name
    name: String,
    /// Requests in a second, over all replicas
    #[arg(long, value_parser = limit::<1_000_000>)]
    requests_per_second: Option<Limit>,
    /// Requests that may come at once after a pause
    #[arg(long, value_parser = limit::<1_000_000>)]
    request_burst: Option<Limit>,
    /// Sessions that are compacted at once
    #[arg(long, value_parser = limit::<1_000_000>)]
    concurrent_compactions: Option<Limit>,
    /// Turns that run at once
    #[arg(long, value_parser = limit::<1_000_000>)]
    concurrent_turns: Option<Limit>,
    /// Bytes that all its sessions hold
    #[arg(long, value_parser = limit::<9_007_199_254_740_991>)]
    stored_bytes: Option<Limit>,
    /// Days after which sessions that nothing is written to are deleted
    #[arg(long, value_parser = limit::<36_500>)]
    retention_days: Option<Limit>,
}

/// A tenant's own limit; `None`: the server's.
#[derive(Clone, Copy)]
struct Limit(Option<i64>);

fn limit<const MOST: i64>(text: &str) -> Result<Limit, String> {
    if text == "default" {
        return Ok(Limit(None));
    }
    let number = text.parse().ok().filter(|n| (0..=MOST).contains(n));
    number
        .map(|number| Limit(Some(number)))
        .ok_or_else(|| format!("it takes a whole number from 0 to {MOST}, or `default`"))
}

impl TenantLimits {
    fn patch(&self) -> TenantPatch {
        let given = |limit: Option<Limit>| limit.map(|limit| limit.0);
        TenantPatch {
            requests_per_second: given(self.requests_per_second),
            request_burst: given(self.request_burst),
            concurrent_compactions: given(self.concurrent_compactions),
            concurrent_turns: given(self.concurrent_turns),
            stored_bytes: given(self.stored_bytes),
            retention_days: given(self.retention_days),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot set up logging")]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Upkeep(#[from] UpkeepError),
    #[error("cannot start the threads of the service")]
    Runtime(#[source] io::Error),
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
    #[error("another cryptography provider is already installed in this process")]
    Crypto,
}

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    let command = command.unwrap_or(Command::Serve {
        insecure_no_auth: false,
    });
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Nothing is left to be done if standard error is closed.
            writeln!(io::stderr(), "precis: {}", explain(&failure)).ok();
            ExitCode::from(match failure {
                Failure::Config(_) => 2,
                _ => 1,
            })
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| Failure::Crypto)?;
    match command {
        Command::Serve { insecure_no_auth } => {
            let (mut settings, runtime, telemetry) = prepare()?;
            if insecure_no_auth {
                settings.insecure_no_auth = Switch::On;
            }
            let served = runtime.block_on(Box::pin(serve(settings)));
            telemetry.end();
            runtime.shutdown_timeout(LEFT_BEHIND);
            served
        }
        Command::Migrate => {
            let (settings, runtime, _) = prepare()?;
            let applied = runtime.block_on(Box::pin(app::migrate(&settings)))?;
            print(&if applied.is_empty() {
                "nothing to do".to_owned()
            } else {
                applied.join("\n")
            })
        }
        Command::Explain {
            session,
            n,
            tenant,
            json,
        } => {
            let (settings, runtime, _) = prepare()?;
            let explaining = app::explain(&settings, &tenant, &session, n);
            let explained = runtime.block_on(Box::pin(explaining))?;
            print(&if json {
                explained.to_json()
            } else {
                explained.to_string()
            })
        }
        Command::PruneStore { .. }
        | Command::Backup { .. }
        | Command::Export { .. }
        | Command::Import { .. } => {
            let (settings, runtime, _) = prepare()?;
            runtime.block_on(Box::pin(keep_up(&settings, command)))
        }
        Command::Tenants(command) => {
            let (settings, runtime, _) = prepare()?;
            let tenants = runtime.block_on(Box::pin(async {
                match command {
                    TenantsCommand::List => app::list_tenants(&settings).await,
                    TenantsCommand::Set(set) => {
                        let changed = app::set_tenant(&settings, &set.name, set.patch()).await;
                        changed.map(|tenant| vec![tenant])
                    }
                }
            }))?;
            let tenants: Vec<String> = tenants.iter().map(ToString::to_string).collect();
            print(&tenants.join("\n"))
        }
        Command::Keys { command } => {
            let (settings, runtime, _) = prepare()?;
            let Answer { text, note } = runtime.block_on(Box::pin(command.run(&settings)))?;
            note.map_or(Ok(()), |note| remark(&note))?;
            text.map_or(Ok(()), |text| print(&text))
        }
        Command::Openapi => print(http::openapi_json().trim_end()),
        Command::Config => print(DEFAULTS.trim_end()),
    }
}

fn prepare() -> Result<(Settings, Runtime, Telemetry), Failure> {
    let settings = Settings::load()?;
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    let telemetry = telemetry::init(&settings, runtime.handle())?;
    Ok((settings, runtime, telemetry))
}

/// What is done beside the running service.
async fn keep_up(settings: &Settings, command: Command) -> Result<(), Failure> {
    match command {
        Command::PruneStore {
            older_than,
            tenant,
            dry_run,
            verbose,
            json,
        } => {
            let request = PruneRequest {
                older_than,
                tenant,
                dry_run,
            };
            let report = upkeep::prune_store(settings, &request).await?;
            print(&if json {
                report.to_json()
            } else {
                upkeep::describe_pruned(&report, verbose)
            })
        }
        Command::Backup { file } => {
            let made = upkeep::backup(settings, &file).await?;
            print(&format!(
                "{}: {} bytes, schema {}, checked",
                file.display(),
                made.bytes,
                made.schema
            ))
        }
        Command::Export {
            session,
            tenant,
            all,
            output,
        } => {
            let selection = upkeep::selection(&session, tenant, all)?;
            let done = upkeep::export(settings, &selection, output.as_deref()).await?;
            // Standard output may be the export itself.
            writeln!(io::stderr(), "{done}").ok();
            Ok(())
        }
        Command::Import {
            file,
            tenant,
            new_ids,
            skip_existing,
            dry_run,
        } => {
            let request = ImportRequest {
                tenant,
                new_ids,
                skip_existing,
                dry_run,
                line_bytes: 0,
            };
            print(&upkeep::import(settings, request, file.as_deref()).await?)
        }
        _ => Ok(()),
    }
}

async fn serve(settings: Settings) -> Result<(), Failure> {
    let application = Application::build(settings).await?;
    print(&application.banner())?;
    Ok(application.run().await?)
}

/// For a person, who may have standard output go elsewhere.
fn remark(text: &str) -> Result<(), Failure> {
    writeln!(io::stderr(), "{text}").map_err(Failure::Output)
}

/// Unlike `println!`, does not panic when nobody reads, as in `precis openapi | head`.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        _ => Ok(()),
    }
}

/// The failure and its causes, a line each. A cause that an error above it already repeats is left out.
fn explain(failure: &Failure) -> String {
    let mut text = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        let line = error.to_string();
        if !text.contains(&line) {
            // Writing to a string does not fail.
            write!(text, "\n  because: {line}").ok();
        }
        cause = error.source();
    }
    let advice = match failure {
        Failure::Config(_) => "Nothing was started.",
        Failure::Start(
            StartError::Explain(_)
            | StartError::NoDatabase(_)
            | StartError::Keys(_)
            | StartError::Tenants(_),
        ) => return text,
        Failure::Start(_) => {
            "Nothing is being served. `precis config` describes the options; PRECIS_LOG=debug says more."
        }
        Failure::Upkeep(_)
        | Failure::Telemetry(_)
        | Failure::Runtime(_)
        | Failure::Output(_)
        | Failure::Crypto => {
            return text;
        }
    };
    write!(text, "\n{advice}").ok();
    text
}
