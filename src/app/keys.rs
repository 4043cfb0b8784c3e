//! Keys at the start of the service, and the commands that manage them beside it.

use std::net::SocketAddr;

use secrecy::SecretString;

use super::{Opened, StartError, migrate, open, open_beside};
use crate::config::{Settings, Switch};
use crate::service::{Caller, Key, KeyRequest, Service};

/// Keys that are read at once.
const PAGE: usize = 500;

/// Whether the service serves without keys. That it may only where nobody else can reach it, unless told otherwise.
pub(super) async fn may_listen(service: &Service, settings: &Settings) -> Result<bool, StartError> {
    let is_open = service.is_open().await.map_err(StartError::ReadKeys)?;
    let is_reachable = !settings.listen.ip().is_loopback();
    if is_open && is_reachable && settings.insecure_no_auth == Switch::Off {
        return Err(StartError::NoKeys(settings.listen));
    }
    Ok(is_open)
}

/// Says in the log that anybody may do anything.
pub(super) fn tell(is_open: bool, address: SocketAddr) {
    if !is_open {
        return;
    }
    if address.ip().is_loopback() {
        tracing::info!(%address, "there are no keys: whoever is on this machine can read and change everything");
    } else {
        tracing::warn!(%address, "there are no keys: whoever reaches this address can read and change everything");
    }
}

/// The same, for the banner.
pub(super) fn describe(is_open: bool) -> &'static str {
    if is_open {
        "none: whoever reaches this address may do everything (`precis keys create` makes one)"
    } else {
        "asked for"
    }
}

/// Makes a key, and its tenant if it is new; gives what is known of it, and its text. The database is brought up to
/// date, or made, so that this can come before the first start.
///
/// # Errors
/// The database cannot be opened, the request is not what it must be, or the database gave no answer.
pub async fn create_key(
    settings: &Settings,
    request: KeyRequest,
) -> Result<(Key, SecretString), StartError> {
    migrate(settings).await?;
    let Opened {
        service, database, ..
    } = open(settings).await?;
    let made = service.create_key(Caller::DEFAULT, request).await;
    database.close().await;
    made.map_err(StartError::Keys)
}

/// Every key of every tenant, oldest first.
///
/// # Errors
/// There is no database, it cannot be opened, or it gave no answer.
pub async fn list_keys(settings: &Settings) -> Result<Vec<Key>, StartError> {
    let (service, database) = open_beside(settings).await?;
    let listed = all_keys(&service).await;
    database.close().await;
    listed
}

async fn all_keys(service: &Service) -> Result<Vec<Key>, StartError> {
    let mut keys: Vec<Key> = Vec::new();
    loop {
        let after = keys.last().map_or("", |key| key.id.as_str()).to_owned();
        let (page, more) = service
            .list_keys(Caller::DEFAULT, &after, PAGE)
            .await
            .map_err(StartError::Keys)?;
        keys.extend(page);
        if !more {
            return Ok(keys);
        }
    }
}

/// Revokes a key.
///
/// # Errors
/// There is no database or no such key, or the database cannot be opened or gave no answer.
pub async fn revoke_key(settings: &Settings, id: &str) -> Result<(), StartError> {
    let (service, database) = open_beside(settings).await?;
    let revoked = service.revoke_key(Caller::DEFAULT, id).await;
    database.close().await;
    revoked.map_err(StartError::Keys)
}
