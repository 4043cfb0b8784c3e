//! Who may use the service: the admin key, and web pages of other sites.

use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::{Mistake, Settings, origins, sources::Chosen};

/// What is shorter is no secret.
const LEAST_CHARACTERS: usize = 16;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorsSettings {
    /// With commas between them.
    allowed_origins: String,
}

impl CorsSettings {
    /// Web pages of other sites that may use the API.
    #[must_use]
    pub fn origins(&self) -> Vec<String> {
        origins::split(&self.allowed_origins)
            .map(ToOwned::to_owned)
            .collect()
    }
}

impl Settings {
    /// The key that manages all others; none if it is empty.
    #[must_use]
    pub fn admin_key(&self) -> Option<&SecretString> {
        Some(&self.admin).filter(|key| !key.expose_secret().is_empty())
    }

    pub(super) fn check_admin_key(&self, chosen: &Chosen, mistakes: &mut Vec<Mistake>) {
        let is_short = |key: &SecretString| key.expose_secret().len() < LEAST_CHARACTERS;
        if chosen.all_sound(&["admin_key"]) && self.admin_key().is_some_and(is_short) {
            mistakes.push(Mistake::about(
                "admin_key",
                &format!(
                    "is too short to be a secret; it takes at least {LEAST_CHARACTERS} characters, such as \
                     `openssl rand -hex 32` prints, or nothing"
                ),
            ));
        }
    }
}
