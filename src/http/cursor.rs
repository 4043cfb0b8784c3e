//! Cursors of lists: opaque to clients, made of positions, bound to the list they came from.

use std::str::FromStr;

use actix_web::HttpRequest;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::extract::Query;
use super::problem::Problem;

/// A cursor that goes on behind `position` in the list that `scope` names.
#[must_use]
pub fn encode(scope: &str, position: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("1\n{scope}\n{position}"))
}

/// The position of a cursor.
///
/// # Errors
/// It is malformed, or another list's.
fn decode(scope: &str, cursor: &str) -> Result<String, Problem> {
    let read = || {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let mut lines = text.splitn(3, '\n');
        let fits = lines.next() == Some("1") && lines.next() == Some(scope);
        lines.next().filter(|_| fits).map(ToOwned::to_owned)
    };
    read().ok_or_else(|| {
        Problem::parameter(
            "cursor",
            "is no cursor of this list; pass on a `nextCursor` of the same list with the same order and filters",
        )
    })
}

/// Takes `cursor` from a query: the position where the page begins, if there is one.
///
/// # Errors
/// It is malformed, or another list's.
pub fn take<T: FromStr>(query: &mut Query, scope: &str) -> Result<Option<T>, Problem> {
    let Some(given) = query.take("cursor") else {
        return Ok(None);
    };
    let position = decode(scope, &given)?.parse();
    let position =
        position.map_err(|_| Problem::parameter("cursor", "is no cursor of this list"))?;
    Ok(Some(position))
}

/// Reads the query of a list that takes `limit` and `cursor` alone: where its page begins, and how long it is at most.
///
/// # Errors
/// There is something else in it, or one of the two is not what it must be.
pub fn page<T: FromStr>(request: &HttpRequest, scope: &str) -> Result<(Option<T>, usize), Problem> {
    let mut query = Query::of(request)?;
    let limit = query.take_limit()?;
    let position = take(&mut query, scope)?;
    query.finish()?;
    Ok((position, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_fits_its_own_list_only() {
        let cursor = encode("messages/sess_a/asc", "17");
        assert_eq!(decode("messages/sess_a/asc", &cursor).unwrap(), "17");
        for (scope, cursor) in [
            ("messages/sess_b/asc", cursor.as_str()),
            ("messages/sess_a/asc", "!"),
            ("messages/sess_a/asc", ""),
            ("messages/sess_a/asc", "MQ"),
        ] {
            assert!(decode(scope, cursor).is_err());
        }
    }
}
