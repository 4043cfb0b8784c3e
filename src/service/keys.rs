//! Keys: making, listing and revoking them, and telling whose a presented one is.
//!
//! A key is `precis_ID_SECRET`. The secret is 32 random bytes, so that a single SHA-256 of it is as good in the
//! database as a slow hash. What the database said of a key holds in this process for at most a second; what is
//! changed here holds at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::shorten;
use super::{Authority, Caller, Scope, Scopes, Service, ServiceError};
use crate::storage::{CreateKey, RevokeKey, StorageError, StoredKey, TenantId, Timestamp};

/// How long an answer of the database about keys is believed.
const BELIEVED: Duration = Duration::from_secs(1);
/// Keys that are remembered at most.
const MOST_KNOWN: usize = 10_000;
/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;
/// The longest life of a key, in seconds: ten years.
const LONGEST_LIFE: u64 = 10 * 365 * 24 * 3_600;
/// Characters of a key's name, and of a tenant's, at most.
const LONGEST_NAME: (usize, usize) = (128, 64);

/// A key as it is shown: without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The part of it that is no secret.
    pub id: String,
    /// The name of its tenant.
    pub tenant: String,
    /// What it was called when it was made.
    pub name: String,
    /// What it allows.
    pub scopes: Scopes,
    /// When it was made.
    pub created_at: Timestamp,
    /// From when on it opens nothing; `None`: never.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

impl Key {
    fn read(stored: StoredKey) -> Result<Self, ServiceError> {
        Ok(Self {
            scopes: read_scopes(&stored)?,
            id: stored.id,
            tenant: stored.tenant,
            name: stored.name,
            created_at: stored.created_at,
            expires_at: stored.expires_at,
            revoked_at: stored.revoked_at,
        })
    }

    /// `active`, `expired` or `revoked`.
    #[must_use]
    pub fn state(&self, now: Timestamp) -> &'static str {
        if self.revoked_at.is_some() {
            "revoked"
        } else if self.expires_at.is_some_and(|end| end <= now) {
            "expired"
        } else {
            "active"
        }
    }
}

/// What a key is made with.
#[derive(Debug, Clone)]
pub struct KeyRequest {
    /// The name of its tenant, which is made if it is new; `None`: the caller's own.
    pub tenant: Option<String>,
    /// What it is called. 1 to 128 characters, none of them a control character.
    pub name: String,
    /// What it allows.
    pub scopes: Scopes,
    /// How long, from a second to ten years; `None`: until it is revoked.
    pub expires_in: Option<Duration>,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Anybody: there never was a key.
    Anybody,
    /// Whoever holds a key that counts.
    Holder(Caller),
}

/// What this process knows of keys.
#[derive(Default)]
pub(super) struct Doors {
    /// The digest of the server's own key.
    admin: Option<[u8; 32]>,
    /// There is a key. That never ends.
    closed: AtomicBool,
    state: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Raised by every change that is made here: an answer that was on its way then is not kept.
    generation: u64,
    open_since: Option<Instant>,
    keys: HashMap<String, Seen>,
}

/// A key as the database had it.
#[derive(Clone)]
struct Seen {
    at: Instant,
    digest: [u8; 32],
    caller: Caller,
    expires_at: Option<Timestamp>,
    revoked: bool,
}

impl Seen {
    fn read(stored: &StoredKey, at: Instant) -> Result<Self, ServiceError> {
        let digest = <[u8; 32]>::try_from(stored.digest.as_slice())
            .map_err(|_| StorageError::Corrupt("keys.digest"))?;
        Ok(Self {
            at,
            digest,
            caller: Caller {
                tenant: TenantId(stored.tenant_id),
                scopes: read_scopes(stored)?,
                authority: Authority::Tenant,
            },
            expires_at: stored.expires_at,
            revoked: stored.revoked_at.is_some(),
        })
    }

    /// Whose it is, if this is its secret and it counts.
    fn open(&self, secret: &str, now: Timestamp) -> Option<Caller> {
        let fits = same(&self.digest, &digest(secret));
        let counts = !self.revoked && self.expires_at.is_none_or(|end| end > now);
        (fits && counts).then_some(self.caller)
    }
}

impl Doors {
    pub(super) fn new(admin_key: Option<&SecretString>) -> Self {
        let key = admin_key.map(ExposeSecret::expose_secret);
        Self {
            admin: key.filter(|key| !key.is_empty()).map(digest),
            ..Self::default()
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was changed here.
    fn changed(&self) {
        let mut known = self.known();
        known.generation += 1;
        known.keys.clear();
        known.open_since = None;
    }
}

impl Known {
    fn remember(&mut self, id: &str, seen: Seen) {
        if self.keys.len() >= MOST_KNOWN {
            self.keys.retain(|_, seen| seen.at.elapsed() < BELIEVED);
        }
        if self.keys.len() >= MOST_KNOWN {
            self.keys.clear();
        }
        self.keys.insert(id.to_owned(), seen);
    }
}

impl Service {
    /// Whose request this is, by the key that came with it. What the database said within the last second counts.
    ///
    /// # Errors
    /// There are keys, and this is none that counts; or the database, which would know, failed.
    pub async fn identify(&self, presented: Option<&str>) -> Result<Identity, ServiceError> {
        if self.is_open().await? {
            return Ok(Identity::Anybody);
        }
        let presented = presented.ok_or(ServiceError::Unauthenticated)?;
        if let Some(admin) = &self.inner.doors.admin
            && same(admin, &digest(presented))
        {
            return Ok(Identity::Holder(Caller::DEFAULT));
        }
        let (id, secret) = parts(presented).ok_or(ServiceError::Unauthenticated)?;
        let seen = self.look_up(id).await?;
        seen.and_then(|seen| seen.open(secret, self.now()))
            .map(Identity::Holder)
            .ok_or(ServiceError::Unauthenticated)
    }

    /// Whether nobody needs a key: there is no admin key, and there never was any other.
    ///
    /// # Errors
    /// The database failed.
    pub async fn is_open(&self) -> Result<bool, ServiceError> {
        let doors = &self.inner.doors;
        if doors.admin.is_some() || doors.closed.load(Ordering::Acquire) {
            return Ok(false);
        }
        let began = Instant::now();
        if doors.known().open_since.is_some_and(is_fresh) {
            return Ok(true);
        }
        if Box::pin(self.database().has_keys()).await? {
            doors.closed.store(true, Ordering::Release);
            return Ok(false);
        }
        doors.known().open_since = Some(began);
        // A key may have been made here meanwhile.
        Ok(!doors.closed.load(Ordering::Acquire))
    }

    async fn look_up(&self, id: &str) -> Result<Option<Seen>, ServiceError> {
        let began = Instant::now();
        let generation = {
            let known = self.inner.doors.known();
            if let Some(seen) = known.keys.get(id).filter(|seen| is_fresh(seen.at)) {
                return Ok(Some(seen.clone()));
            }
            known.generation
        };
        // Every request passes here, few go on: what these need is kept out of what all need.
        let Some(stored) = Box::pin(self.database().find_key(id)).await? else {
            return Ok(None);
        };
        let seen = Seen::read(&stored, began)?;
        let mut known = self.inner.doors.known();
        if known.generation == generation {
            known.remember(id, seen.clone());
        }
        Ok(Some(seen))
    }

    /// Makes a key. The text is shown this once; nobody can read it back.
    ///
    /// # Errors
    /// The caller may not, a member is not what it must be, or the database failed.
    pub async fn create_key(
        &self,
        caller: Caller,
        request: KeyRequest,
    ) -> Result<(Key, SecretString), ServiceError> {
        caller.require(Scope::Admin)?;
        check(&request)?;
        let tenant = self.tenant_of(caller, request.tenant).await?;
        let (id, secret) = (self.new_id().simple().to_string(), random_secret()?);
        let now = self.now();
        let expires_at = request.expires_in.map(|life| now.plus(life));
        let create = CreateKey {
            tenant: tenant.clone(),
            id: id.clone(),
            name: request.name.clone(),
            scopes: request.scopes.to_string(),
            digest: digest(&secret),
            now,
            expires_at,
        };
        self.database().write(create).await?;
        self.inner.doors.closed.store(true, Ordering::Release);
        self.inner.doors.changed();
        let text = SecretString::from(format!("precis_{id}_{secret}"));
        let key = Key {
            id,
            tenant,
            name: request.name,
            scopes: request.scopes,
            created_at: now,
            expires_at,
            revoked_at: None,
        };
        tracing::info!(key = key.id, tenant = key.tenant, scopes = %key.scopes, "a key was made");
        Ok((key, text))
    }

    /// The service itself, at work for the tenant of this name, if there is one.
    ///
    /// # Errors
    /// The database failed.
    pub async fn find_tenant(&self, name: &str) -> Result<Option<Caller>, ServiceError> {
        let tenant = self.database().find_tenant(name).await?;
        Ok(tenant.map(Caller::itself))
    }

    /// The tenant for which a caller makes a key.
    async fn tenant_of(
        &self,
        caller: Caller,
        named: Option<String>,
    ) -> Result<String, ServiceError> {
        if let (Authority::Server, Some(name)) = (caller.authority, &named) {
            return Ok(name.clone());
        }
        let own = self.database().tenant_name(caller.tenant).await?;
        let own = own.ok_or(StorageError::Corrupt("tenants"))?;
        match named {
            Some(name) if name != own => Err(ServiceError::OtherTenant),
            _ => Ok(own),
        }
    }

    /// Keys by age, those behind `after`; the flag says whether more follow. The server's own is none of them.
    ///
    /// # Errors
    /// The caller may not, or the database failed.
    pub async fn list_keys(
        &self,
        caller: Caller,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<Key>, bool), ServiceError> {
        caller.require(Scope::Admin)?;
        let (stored, more) = self
            .database()
            .list_keys(reach(caller), after, limit)
            .await?;
        let keys = stored.into_iter().map(Key::read);
        Ok((keys.collect::<Result<_, _>>()?, more))
    }

    /// Revokes a key; again, if it was revoked before, which changes nothing.
    ///
    /// # Errors
    /// The caller may not, there is no such key within its reach, or the database failed.
    pub async fn revoke_key(&self, caller: Caller, id: &str) -> Result<(), ServiceError> {
        caller.require(Scope::Admin)?;
        let revoke = RevokeKey {
            tenant: reach(caller),
            id: id.to_owned(),
            now: self.now(),
        };
        let found = self.database().write(revoke).await?;
        self.inner.doors.changed();
        if !found {
            return Err(ServiceError::KeyNotFound { id: shorten(id) });
        }
        tracing::info!(key = id, "a key was revoked");
        Ok(())
    }
}

fn is_fresh(at: Instant) -> bool {
    at.elapsed() < BELIEVED
}

/// Whose keys a caller manages; `None`: everybody's.
fn reach(caller: Caller) -> Option<TenantId> {
    match caller.authority {
        Authority::Server => None,
        Authority::Tenant => Some(caller.tenant),
    }
}

fn read_scopes(stored: &StoredKey) -> Result<Scopes, ServiceError> {
    Scopes::parse(&stored.scopes).ok_or(StorageError::Corrupt("keys.scopes").into())
}

/// Id and secret of a key; `None` if it is none.
fn parts(presented: &str) -> Option<(&str, &str)> {
    let (id, secret) = presented.strip_prefix("precis_")?.split_once('_')?;
    let is_hex = |text: &str, length| {
        text.len() == length
            && text
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    (is_hex(id, 32) && is_hex(secret, 2 * SECRET_BYTES)).then_some((id, secret))
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// Takes as long wherever they differ.
fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
}

fn random_secret() -> Result<String, ServiceError> {
    use std::fmt::Write;
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|_| ServiceError::Internal("the system gave no random bytes"))?;
    let mut text = String::with_capacity(2 * SECRET_BYTES);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

fn check(request: &KeyRequest) -> Result<(), ServiceError> {
    let invalid = |member, problem| Err(ServiceError::InvalidKey { member, problem });
    let (of_key, of_tenant) = LONGEST_NAME;
    let length = request.name.chars().count();
    if !(1..=of_key).contains(&length) || request.name.contains(char::is_control) {
        return invalid(
            "name",
            "must be 1 to 128 characters, none of them a control character",
        );
    }
    if let Some(tenant) = &request.tenant {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=of_tenant).contains(&tenant.len()) || !tenant.bytes().all(fits) {
            return invalid("tenant", "must be 1 to 64 letters, digits, `.`, `_` or `-`");
        }
    }
    if request.scopes.is_empty() {
        return invalid("scopes", "must name at least one scope");
    }
    let life = request.expires_in.map(|life| life.as_secs());
    if life.is_some_and(|seconds| !(1..=LONGEST_LIFE).contains(&seconds)) {
        return invalid(
            "expiresInSeconds",
            "must be a whole number from 1 to 315360000",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "019acf0b2a7c7d1e9f00aabbccddeeff";

    #[test]
    fn a_key_has_one_spelling() {
        let secret = random_secret().unwrap();
        let key = format!("precis_{ID}_{secret}");
        assert_eq!(parts(&key), Some((ID, secret.as_str())));
        for wrong in [
            "",
            "precis_",
            "precis__",
            "precis_019acf0b2a7c7d1e9f00aabbccddeeff",
            "precis_019acf0b2a7c7d1e9f00aabbccddeeff_",
            &key.to_uppercase(),
            &key.replacen('p', "", 1),
            &format!("{key}0"),
            &format!(" {key}"),
            &key.replace('_', "-"),
        ] {
            assert_eq!(parts(wrong), None, "{wrong}");
        }
        assert_ne!(secret, random_secret().unwrap(), "no two are the same");
    }

    #[test]
    fn a_key_opens_until_it_ends() {
        let seen = Seen {
            at: Instant::now(),
            digest: digest("secret"),
            caller: Caller::itself(TenantId(7)),
            expires_at: Some(Timestamp(10)),
            revoked: false,
        };
        let caller = Some(seen.caller);
        assert_eq!(seen.open("secret", Timestamp(9)), caller);
        assert_eq!(seen.open("secret", Timestamp(10)), None, "it has expired");
        assert_eq!(seen.open("secreT", Timestamp(9)), None);
        assert_eq!(seen.open("", Timestamp(9)), None);
        let endless = Seen {
            expires_at: None,
            ..seen.clone()
        };
        assert_eq!(endless.open("secret", Timestamp(i64::MAX)), caller);
        let revoked = Seen {
            revoked: true,
            ..endless
        };
        assert_eq!(revoked.open("secret", Timestamp(9)), None);
    }

    #[test]
    fn an_empty_admin_key_is_none() {
        assert!(Doors::new(None).admin.is_none());
        assert!(Doors::new(Some(&SecretString::from(""))).admin.is_none());
        assert!(Doors::new(Some(&SecretString::from("x"))).admin.is_some());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let seen = Seen {
            at: Instant::now(),
            digest: digest("secret"),
            caller: Caller::DEFAULT,
            expires_at: None,
            revoked: false,
        };
        let mut known = Known::default();
        for number in 0..=MOST_KNOWN {
            known.remember(&number.to_string(), seen.clone());
            assert!(known.keys.len() <= MOST_KNOWN);
        }
        assert!(known.keys.contains_key(&MOST_KNOWN.to_string()));
    }
}
