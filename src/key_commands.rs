//! `precis keys`: what its words mean, and what it prints.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Subcommand;
use precis::{
    app::{self, StartError},
    config::Settings,
    service::{Key, KeyRequest, Scopes},
    storage::Timestamp,
};
use secrecy::ExposeSecret as _;
use serde_json::json;
use time::OffsetDateTime;

#[derive(Subcommand, Clone)]
pub enum Command {
    /// Make a key and print it; it is shown this once. A running server takes it up within a second
    Create {
        /// The tenant whose data it opens; made if it is new
        #[arg(long, default_value = "default")]
        tenant: String,
        /// What it is called, for whoever reads the list
        #[arg(long)]
        name: String,
        /// What it allows: read, write, admin, with commas between them
        #[arg(long, value_parser = scopes)]
        scopes: Scopes,
        /// How long it opens anything: 90d, 12h, 30m, or a number of seconds. Until it is revoked unless given
        #[arg(long, value_parser = life)]
        expires_in: Option<Duration>,
    },
    /// List all keys, without their secrets
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key; a running server refuses it within a second
    Revoke {
        /// Its id: what stands between the two `_` of the key
        id: String,
    },
}

/// What a command has to say.
#[derive(Default)]
pub struct Answer {
    /// For standard output.
    pub text: Option<String>,
    /// For a person.
    pub note: Option<String>,
}

impl Command {
    /// Does it.
    ///
    /// # Errors
    /// The database cannot be opened or gave no answer, or what is asked for cannot be done.
    pub async fn run(self, settings: &Settings) -> Result<Answer, StartError> {
        match self {
            Self::Create {
                tenant,
                name,
                scopes,
                expires_in,
            } => {
                let request = KeyRequest {
                    tenant: Some(tenant),
                    name,
                    scopes,
                    expires_in,
                };
                let (key, text) = app::create_key(settings, request).await?;
                Ok(Answer {
                    note: Some(about(&key)),
                    text: Some(text.expose_secret().to_owned()),
                })
            }
            Self::List { json } => {
                let keys = app::list_keys(settings).await?;
                let now = Timestamp::of(OffsetDateTime::now_utc());
                Ok(Answer {
                    text: Some(if json {
                        to_json(&keys)
                    } else {
                        table(&keys, now)
                    }),
                    note: None,
                })
            }
            Self::Revoke { id } => {
                app::revoke_key(settings, &id).await?;
                Ok(Answer {
                    note: Some(format!("Key {id} is revoked.")),
                    text: None,
                })
            }
        }
    }
}

fn about(key: &Key) -> String {
    let end = key.expires_at.map_or_else(
        || "until it is revoked".to_owned(),
        |end| format!("until {end}"),
    );
    format!(
        "Key {} of tenant {}, for {}, {end}. It is not shown again:",
        key.id, key.tenant, key.scopes
    )
}

fn scopes(text: &str) -> Result<Scopes, String> {
    Scopes::parse(text)
        .ok_or_else(|| "it takes read, write, admin, with commas between them".to_owned())
}

/// A length of time: a number of days, hours, minutes or seconds.
fn life(text: &str) -> Result<Duration, String> {
    let (digits, unit) = match text.strip_suffix(['d', 'h', 'm', 's']) {
        Some(digits) => (digits, text.chars().next_back().unwrap_or('s')),
        None => (text, 's'),
    };
    let seconds = match unit {
        'd' => 24 * 3_600,
        'h' => 3_600,
        'm' => 60,
        _ => 1,
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(seconds))
        .map(Duration::from_secs)
        .ok_or_else(|| {
            "it takes a number and a unit, as in 90d, 12h or 30m, or a number of seconds".to_owned()
        })
}

fn to_json(keys: &[Key]) -> String {
    let shown = keys.iter().map(|key| {
        json!({
            "id": key.id,
            "tenant": key.tenant,
            "name": key.name,
            "scopes": key.scopes.names().collect::<Vec<_>>(),
            "createdAt": key.created_at,
            "expiresAt": key.expires_at,
            "revokedAt": key.revoked_at,
        })
    });
    format!("{:#}", shown.collect::<serde_json::Value>())
}

fn table(keys: &[Key], now: Timestamp) -> String {
    let head = [
        "ID", "TENANT", "NAME", "SCOPES", "STATE", "CREATED", "EXPIRES",
    ];
    let mut rows = vec![head.map(ToOwned::to_owned)];
    rows.extend(keys.iter().map(|key| {
        [
            key.id.clone(),
            key.tenant.clone(),
            key.name.clone(),
            key.scopes.to_string(),
            key.state(now).to_owned(),
            key.created_at.to_string(),
            key.expires_at
                .map_or_else(|| "never".to_owned(), |end| end.to_string()),
        ]
    }));
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let lines = rows.iter().map(|row| {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            // Writing to a string does not fail.
            write!(line, "{cell:width$}  ").ok();
        }
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_are_read() {
        for (text, seconds) in [
            ("90d", 7_776_000),
            ("12h", 43_200),
            ("30m", 1_800),
            ("45s", 45),
            ("7", 7),
        ] {
            assert_eq!(life(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "d",
            "-1d",
            "1.5h",
            "1w",
            "90 d",
            "d90",
            "999999999999999999d",
        ] {
            assert!(life(text).is_err(), "{text}");
        }
    }
}
