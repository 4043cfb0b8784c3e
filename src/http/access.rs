//! The door: who asks, and whether they may, before anything of a request is looked at.
//!
//! One middleware around all routes, so that a new one cannot be forgotten: what is not public by its path needs a
//! key, with the scope that path and method ask for. It puts the [`Caller`] where the extractor of handlers takes it
//! from. While there are no keys, it keeps web pages away instead: any page can make the browser of somebody on this
//! machine ask a service that listens there, and a name that leads here (DNS rebinding) makes the answer its own.

use std::net::Ipv4Addr;

use actix_web::body::MessageBody;
use actix_web::dev::{Payload, ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::{self, HeaderMap, HeaderName};
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error, FromRequest, HttpMessage, HttpRequest};

use super::problem::{Code, Problem};
use crate::service::{Caller, Identity, Scope, Service};

/// What the door is told by the settings.
#[derive(Debug, Clone, Default)]
pub struct Door {
    /// Origins of web pages of other sites that may use the API.
    pub origins: Vec<String>,
    /// Whether any name may lead here while there are no keys.
    pub insecure: bool,
}

/// Lets a request in, or answers it.
///
/// # Errors
/// None of ours: a refusal is a response.
pub async fn admit(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    match check(&request).await {
        Ok(caller) => {
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            Ok(next.call(request).await?.map_into_left_body())
        }
        Err(problem) => Ok(request.error_response(problem).map_into_right_body()),
    }
}

/// Whose request it is; `None` where nobody needs to be known.
async fn check(request: &ServiceRequest) -> Result<Option<Caller>, Problem> {
    // As the router reads it: with what is percent-encoded decoded.
    let path = request.match_info().as_str();
    if is_public(path) {
        return Ok(None);
    }
    let service = request
        .app_data::<Data<Service>>()
        .ok_or_else(|| Problem::new(Code::Internal, "The service is not set up."))?;
    match service.identify(bearer(request.headers())).await? {
        Identity::Anybody => {
            keep_pages_away(request)?;
            Ok(Some(Caller::DEFAULT))
        }
        Identity::Holder(caller) => {
            if let Some(scope) = needed(path, request.method()) {
                caller.require(scope)?;
            }
            Ok(Some(caller))
        }
    }
}

/// Paths that tell nothing of what is stored.
pub fn is_public(path: &str) -> bool {
    matches!(path, "/" | "/docs" | "/openapi.json")
        || path.starts_with("/docs/")
        || path.starts_with("/health/")
}

/// The scope that a request needs; `None`: any will do.
fn needed(path: &str, method: &Method) -> Option<Scope> {
    if path == "/metrics" {
        None
    } else if path == "/admin" || path.starts_with("/admin/") {
        Some(Scope::Admin)
    } else if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        Some(Scope::Read)
    } else {
        Some(Scope::Write)
    }
}

/// The key that came: the only one, under the right scheme.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = only(headers, header::AUTHORIZATION)?;
    let (scheme, key) = text.split_once(' ')?;
    let key = key.trim_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

/// A header's value, if it came once and is text.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name);
    let value = values.next()?;
    values.next().is_none().then(|| value.to_str().ok())?
}

/// Refuses what a web page of another site may have made a browser ask.
fn keep_pages_away(request: &ServiceRequest) -> Result<(), Problem> {
    let none = Door::default();
    let door = request
        .app_data::<Data<Door>>()
        .map_or(&none, |door| door.get_ref());
    let host = host(request);
    if !door.insecure && !host.is_some_and(is_loopback) {
        return Err(Problem::new(
            Code::Forbidden,
            "There are no keys yet, so only this machine is answered: send a `Host` of localhost, 127.0.0.1 or [::1]. \
             Make a key (`precis keys create`) to be answered under another name.",
        ));
    }
    if request.headers().contains_key(header::ORIGIN) {
        let origin = only(request.headers(), header::ORIGIN).unwrap_or_default();
        if !is_welcome(origin, host, door) {
            return Err(Problem::new(
                Code::Forbidden,
                "There are no keys yet, so a web page of another site is not answered. Make a key \
                 (`precis keys create`), or name its origin in cors.allowed_origins.",
            ));
        }
    }
    Ok(())
}

/// The host and port that were asked for. `Forwarded` and its like are not believed: a page may send them.
fn host(request: &ServiceRequest) -> Option<&str> {
    let named = only(request.headers(), header::HOST);
    match request.head().uri.authority() {
        // HTTP/2, or an address with a host in it.
        Some(authority) if named.is_none_or(|named| named == authority.as_str()) => {
            Some(authority.as_str())
        }
        Some(_) => None,
        None => named,
    }
}

fn is_welcome(origin: &str, host: Option<&str>, door: &Door) -> bool {
    if door.origins.iter().any(|allowed| allowed == origin) {
        return true;
    }
    let Some(authority) = ["http://", "https://"]
        .iter()
        .find_map(|scheme| origin.strip_prefix(scheme))
    else {
        // `null` among others: a page in a sandbox, or from a file.
        return false;
    };
    host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
        || !door.insecure && is_loopback(authority)
}

/// Whether a host, with or without a port, can only be this machine.
fn is_loopback(authority: &str) -> bool {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return false;
    }
    let v6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    match v6 {
        Some(v6) => v6 == "::1",
        None => {
            host.eq_ignore_ascii_case("localhost")
                || host
                    .parse::<Ipv4Addr>()
                    .is_ok_and(|address| address.is_loopback())
        }
    }
}

/// Whose request it is, as the door has found.
impl FromRequest for Caller {
    type Error = Problem;
    type Future = std::future::Ready<Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let caller = request.extensions().get::<Self>().copied();
        std::future::ready(caller.ok_or_else(|| {
            Problem::new(
                Code::Internal,
                "This route needs a caller, and none was asked for.",
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loopback() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.9.8.7:1",
            "[::1]",
            "[::1]:8080",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "example.com",
            "localhost.example.com",
            "localhost.",
            "127.0.0.1.example.com",
            "127.0.0.1@example.com",
            "user@127.0.0.1",
            "128.0.0.1",
            "0.0.0.0",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::1]example.com",
            "::1",
            "2130706433",
            "localhost/path",
            "http://localhost",
            "localhost example.com",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn origins_are_welcome_that_are_ours_or_named() {
        let door = Door {
            origins: vec!["https://app.example.com".to_owned()],
            insecure: false,
        };
        let insecure = Door {
            insecure: true,
            ..door.clone()
        };
        for (origin, host, here, anywhere) in [
            ("http://localhost:8080", "localhost:8080", true, true),
            ("http://localhost:3000", "localhost:8080", true, false),
            ("http://precis.lan", "precis.lan", true, true),
            ("https://Precis.lan", "precis.LAN", true, true),
            ("https://app.example.com", "localhost:8080", true, true),
            ("https://evil.example.com", "localhost:8080", false, false),
            ("http://app.example.com", "localhost:8080", false, false),
            (
                "https://app.example.com.evil.org",
                "localhost:8080",
                false,
                false,
            ),
            ("null", "localhost:8080", false, false),
            ("", "localhost:8080", false, false),
            ("chrome-extension://localhost", "localhost", false, false),
        ] {
            assert_eq!(is_welcome(origin, Some(host), &door), here, "{origin}");
            assert_eq!(
                is_welcome(origin, Some(host), &insecure),
                anywhere,
                "{origin}"
            );
        }
    }

    #[test]
    fn the_scope_goes_by_path_and_method() {
        for (path, method, scope) in [
            ("/sessions", Method::GET, Some(Scope::Read)),
            ("/sessions", Method::HEAD, Some(Scope::Read)),
            ("/sessions", Method::POST, Some(Scope::Write)),
            ("/sessions/x", Method::DELETE, Some(Scope::Write)),
            ("/sessions/x", Method::TRACE, Some(Scope::Write)),
            ("/admin/keys", Method::GET, Some(Scope::Admin)),
            ("/admin", Method::GET, Some(Scope::Admin)),
            ("/administration", Method::GET, Some(Scope::Read)),
            ("/metrics", Method::GET, None),
        ] {
            assert_eq!(needed(path, &method), scope, "{method} {path}");
        }
    }

    #[test]
    fn what_is_public_is_a_short_list() {
        for path in [
            "/",
            "/docs",
            "/docs/",
            "/docs/errors",
            "/openapi.json",
            "/health/live",
        ] {
            assert!(is_public(path), "{path}");
        }
        for path in [
            "",
            "//",
            "/docsx",
            "/openapi.json/",
            "/health",
            "/metrics",
            "/sessions",
            "/admin/keys",
        ] {
            assert!(!is_public(path), "{path}");
        }
    }
}
