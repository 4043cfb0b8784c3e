//! Origins of web pages, as a browser spells them: a scheme, a host, and a port unless it is the scheme's own.

use std::borrow::Cow;

use figment::value::Value;

use super::options::Given;

const TAKES: &str = "it takes origins such as `https://app.example.com` or `http://localhost:3000`, without a path, in a \
                     list or with commas between them, or nothing";

/// The origins of an option, as one text with commas between them.
///
/// # Errors
/// What it takes instead, as the end of a sentence.
pub(super) fn read(given: Given<'_>) -> Result<Value, Cow<'static, str>> {
    let text = match given {
        Given::Text(text) => Some(text.to_owned()),
        Given::Value(Value::Array(_, items)) => {
            let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            texts.map(|texts| texts.join(","))
        }
        Given::Value(value) => value.as_str().map(ToOwned::to_owned),
    };
    let text = text.ok_or(TAKES)?;
    if split(&text).any(|origin| !is_origin(origin)) {
        return Err(TAKES.into());
    }
    Ok(Value::from(text))
}

/// The origins of such a text.
pub(super) fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|origin| !origin.is_empty())
}

/// Browsers send the host in lower case, and other characters than these in their ASCII form.
fn is_origin(text: &str) -> bool {
    let Some(authority) = ["https://", "http://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme))
    else {
        return false;
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let is_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    let is_v6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    let is_host = is_v6 || !host.is_empty() && host.bytes().all(is_name);
    is_host && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0))
}
