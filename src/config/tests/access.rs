//! The admin key, and the origins of other sites' pages.

use super::{fine, load, load_file, mistake};
use crate::config::Switch;
use secrecy::ExposeSecret;

#[test]
fn the_admin_key_is_long_or_none() {
    assert!(fine(&[]).admin_key().is_none());
    assert!(fine(&[("PRECIS_ADMIN_KEY", "")]).admin_key().is_none());
    let key = "0123456789abcdef";
    let settings = fine(&[("PRECIS_ADMIN_KEY", key)]);
    assert_eq!(
        settings.admin_key().map(ExposeSecret::expose_secret),
        Some(key)
    );
    assert!(!format!("{settings:?}").contains(key), "it is never shown");
    for wrong in [
        "0123456789abcde",
        "0123456789 abcdef",
        "schlüssel-schlüssel",
    ] {
        let text = mistake(&[("PRECIS_ADMIN_KEY", wrong)]);
        assert!(text.contains("`admin_key` (`PRECIS_ADMIN_KEY`)"), "{text}");
        assert!(!text.contains(wrong), "{text}");
    }
}

#[test]
fn no_auth_is_off_unless_chosen() {
    assert_eq!(fine(&[]).insecure_no_auth, Switch::Off);
    let on = fine(&[("PRECIS_INSECURE_NO_AUTH", "on")]);
    assert_eq!(on.insecure_no_auth, Switch::On);
}

#[test]
fn origins_are_a_list_or_text() {
    let both = ["https://app.example.com", "http://[::1]:3000"];
    assert!(fine(&[]).cors.origins().is_empty());
    let text = fine(&[("PRECIS_CORS__ALLOWED_ORIGINS", &both.join(" , "))]);
    assert_eq!(text.cors.origins(), both);
    for toml in [
        "[cors]\nallowed_origins = [\"https://app.example.com\", \"http://[::1]:3000\"]\n",
        "[cors]\nallowed_origins = \"https://app.example.com,http://[::1]:3000\"\n",
    ] {
        assert_eq!(load_file(toml, &[]).unwrap().cors.origins(), both, "{toml}");
    }
    for wrong in [
        "*",
        "app.example.com",
        "https://app.example.com/",
        "https://app.example.com/x",
        "https://*.example.com",
        "https://App.example.com",
        "https://a b",
        "https://",
        "https://user@app.example.com",
        "https://app.example.com:0",
        "https://app.example.com:99999",
        "ftp://app.example.com",
        "null",
    ] {
        let vars = [("PRECIS_CORS__ALLOWED_ORIGINS", wrong)];
        assert!(load(&vars).is_err(), "{wrong}");
    }
    assert!(load_file("[cors]\nallowed_origins = [1]\n", &[]).is_err());
}
