//! Data URIs: what a picture or a file is when it comes along with its message.

use std::borrow::Cow;

/// A data URI in base64.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DataUri<'a> {
    /// In lower case, without parameters; may be empty.
    pub(super) media_type: Cow<'a, str>,
    /// Base64 of the usual alphabet, not empty: it can stand between quotes as it is.
    pub(super) data: &'a str,
}

/// Reads a URI with the scheme `data`; `None` if it is another, not in base64 or without data.
pub(super) fn data_uri(uri: &str) -> Option<DataUri<'_>> {
    let (head, data) = uri.split_once(',')?;
    let head = strip_scheme(head, "data:")?;
    let (media_type, encoding) = head.rsplit_once(';')?;
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    let known = encoding.trim().eq_ignore_ascii_case("base64") && is_base64(data);
    known.then(|| DataUri {
        media_type: if media_type.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Cow::Owned(media_type.to_ascii_lowercase())
        } else {
            Cow::Borrowed(media_type)
        },
        data,
    })
}

/// `uri` without `scheme` (which ends with its colon), in whatever case that is written.
pub(super) fn strip_scheme<'a>(uri: &'a str, scheme: &str) -> Option<&'a str> {
    let (head, rest) = uri.split_at_checked(scheme.len())?;
    head.eq_ignore_ascii_case(scheme).then_some(rest)
}

fn is_base64(data: &str) -> bool {
    let digits = data.trim_end_matches('=');
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    !digits.is_empty() && data.len() - digits.len() <= 2 && digits.bytes().all(usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_base64_and_nothing_else() {
        let read = |uri: &'static str| data_uri(uri).map(|uri| (uri.media_type, uri.data));
        let png = Some((Cow::Borrowed("image/png"), "iV+/Aw=="));
        assert_eq!(read("data:image/png;base64,iV+/Aw=="), png);
        assert_eq!(read("DATA:Image/PNG;charset=x;BASE64,iV+/Aw=="), png);
        for other in [
            "data:image/png,abc",
            "data:image/png;base64,",
            "data:image/png;base64,ab\"c",
            "data:image/png;base64,a b",
            "data:image/png;base64,ab=c",
            "data:image/png;base64,ab===",
            "http://example.com/;base64,abcd",
            "dät",
            "",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
