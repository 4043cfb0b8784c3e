//! Where a model server is, and how to be let in.
//!
//! A base URL may carry a user name, a password and a key in its query, so nothing here prints
//! more of it than scheme, host, port and path.
//!
//! What does not belong here: connecting. That is the client's.

use std::fmt;
use std::net::IpAddr;

use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};

use super::error::SetupError;

/// Where a model server is and how to be let in.
///
/// `Debug` shows the address without user name, password and query, and not the key.
#[derive(Clone)]
pub struct Endpoint {
    /// The base of the API, such as `https://api.openai.com/v1`, with or without a `/` at its
    /// end. A query is kept (some servers want a version there). A user name and password are
    /// sent as basic authentication, unless there is a key.
    pub base_url: Url,
    /// Sent as `Authorization: Bearer …`. Blank counts as none.
    pub api_key: Option<SecretString>,
}

impl Endpoint {
    /// An endpoint from a base URL as text.
    ///
    /// # Errors
    ///
    /// [`SetupError::BaseUrl`] if the text is not an absolute `http` or `https` URL.
    pub fn parse(base_url: &str, api_key: Option<SecretString>) -> Result<Self, SetupError> {
        let base_url = Url::parse(base_url.trim()).map_err(|_| SetupError::BaseUrl)?;
        check_url(&base_url)?;
        Ok(Self { base_url, api_key })
    }

    /// The address of the chat-completions route.
    pub(super) fn chat_url(&self) -> Url {
        let mut url = self.base_url.clone();
        let path = format!("{}/chat/completions", url.path().trim_end_matches('/'));
        url.set_path(&path);
        url.set_fragment(None);
        url
    }

    pub(super) fn key(&self) -> Option<&str> {
        let key = self.api_key.as_ref()?.expose_secret().trim();
        (!key.is_empty()).then_some(key)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("base_url", &address(&self.base_url))
            .field("api_key", &self.key().map(|_| "set"))
            .finish()
    }
}

pub(super) fn check_url(url: &Url) -> Result<(), SetupError> {
    if matches!(url.scheme(), "http" | "https") && url.has_host() {
        Ok(())
    } else {
        Err(SetupError::BaseUrl)
    }
}

/// The URL without anything that may be secret.
pub(super) fn address(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    format!("{}://{host}{port}{}", url.scheme(), url.path())
}

pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
