//! Which model is called with which key, and that no key or password is ever shown.

use secrecy::ExposeSecret as _;

use super::{super::options::without_password, fine, load, load_file, mistake};

#[test]
fn base_urls() {
    for text in [
        "http://localhost/v1",
        "https://api.openai.com/v1/",
        "http://[::1]:11434/v1",
        "https://host:8443",
    ] {
        let settings = fine(&[("PRECIS_MODEL_BASE_URL", text), ("PRECIS_MODEL", "m")]);
        assert_eq!(
            settings.main_model().unwrap().base_url,
            text.trim_end_matches('/')
        );
    }
    for text in [
        "localhost:11434",
        "ftp://host",
        "http://",
        "http:///v1",
        "http://:80",
        "http://host:99999",
        "http://host:x/v1",
        "http://ho st/v1",
        "http://host/v1\n",
    ] {
        assert!(
            mistake(&[("PRECIS_MODEL_BASE_URL", text)]).contains("it takes an address such as"),
            "{text}"
        );
    }
    for text in [
        "https://user:hidden@host/v1",
        "https://hidden@host",
        "https://host/v1?key=hidden",
        "https://host/v1#hidden",
    ] {
        let text = mistake(&[("PRECIS_COMPACTION_MODEL_BASE_URL", text)]);
        assert!(!text.contains("hidden"), "{text}");
    }
}

#[test]
fn a_model_that_is_half_configured_is_a_mistake() {
    const URL: (&str, &str) = ("PRECIS_MODEL_BASE_URL", "http://h/v1");
    const KEY: (&str, &str) = ("PRECIS_MODEL_API_KEY", "k");
    const NAME: (&str, &str) = ("PRECIS_MODEL", "m");
    const OTHER_URL: (&str, &str) = ("PRECIS_COMPACTION_MODEL_BASE_URL", "http://i/v1");
    const OTHER_NAME: (&str, &str) = ("PRECIS_COMPACTION_MODEL", "n");
    const MODEL: (&str, &str) = ("PRECIS_COMPACTION__SUMMARIZER", "model");
    const EXTRACTIVE: (&str, &str) = ("PRECIS_COMPACTION__SUMMARIZER", "extractive");

    for (vars, part) in [
        (
            &[URL][..],
            "`model` (`PRECIS_MODEL`) is empty, but other options",
        ),
        (
            &[NAME],
            "`model_base_url` (`PRECIS_MODEL_BASE_URL`) is empty, but",
        ),
        (&[OTHER_URL], "`model` (`PRECIS_MODEL`) is empty, but"),
        (&[MODEL, URL], "`model` (`PRECIS_MODEL`) is empty, and"),
        (
            &[MODEL, NAME],
            "`model_base_url` (`PRECIS_MODEL_BASE_URL`) is empty, and",
        ),
        (
            &[KEY, OTHER_URL, NAME],
            "`model_api_key` (`PRECIS_MODEL_API_KEY`) is set, but",
        ),
    ] {
        let text = mistake(vars);
        assert!(text.starts_with(part), "{part}: {text}");
    }
    assert_eq!(load(&[MODEL]).unwrap_err().mistakes().len(), 2);
    assert_eq!(load(&[KEY]).unwrap_err().mistakes().len(), 2);
    for vars in [
        &[URL, NAME][..],
        &[URL, OTHER_NAME],
        &[OTHER_URL, OTHER_NAME],
        &[MODEL, OTHER_URL, NAME],
        &[EXTRACTIVE, URL],
    ] {
        assert!(load(vars).is_ok(), "{vars:?}");
    }
}

#[test]
fn the_compaction_model_falls_back_to_the_main_one() {
    let main = [
        ("PRECIS_MODEL_BASE_URL", "http://h/v1/"),
        ("PRECIS_MODEL_API_KEY", "main"),
        ("PRECIS_MODEL", "m"),
    ];
    let with = |more: &[(&str, &str)]| {
        let model = fine(&[&main, more].concat()).compaction_model().unwrap();
        let key = model.api_key.map(|key| key.expose_secret().to_owned());
        (model.base_url, key, model.model)
    };
    let expect = |url: &str, key: Option<&str>, model: &str| {
        (url.to_owned(), key.map(str::to_owned), model.to_owned())
    };

    assert_eq!(with(&[]), expect("http://h/v1", Some("main"), "m"));
    assert_eq!(
        with(&[("PRECIS_COMPACTION_MODEL", "n")]),
        expect("http://h/v1", Some("main"), "n")
    );
    assert_eq!(
        with(&[("PRECIS_COMPACTION_MODEL_API_KEY", "own")]),
        expect("http://h/v1", Some("own"), "m")
    );
    assert_eq!(
        with(&[("PRECIS_COMPACTION_MODEL_BASE_URL", "http://h/v1")]),
        expect("http://h/v1", Some("main"), "m")
    );
    // A key goes to the server it was given for, and to no other.
    assert_eq!(
        with(&[("PRECIS_COMPACTION_MODEL_BASE_URL", "http://i/v1")]),
        expect("http://i/v1", None, "m")
    );
    assert_eq!(
        with(&[
            ("PRECIS_COMPACTION_MODEL_BASE_URL", "http://i/v1"),
            ("PRECIS_COMPACTION_MODEL_API_KEY", "own")
        ]),
        expect("http://i/v1", Some("own"), "m")
    );
    let settings = fine(&main);
    assert_eq!(
        settings
            .main_model()
            .unwrap()
            .api_key
            .unwrap()
            .expose_secret(),
        "main"
    );
}

#[test]
fn no_secret_is_ever_shown() {
    let settings = fine(&[
        (
            "PRECIS_DATABASE_URL",
            "postgres://precis:hidden@db/precis?password=hidden",
        ),
        ("PRECIS_MODEL_BASE_URL", "http://h/v1"),
        ("PRECIS_MODEL_API_KEY", "hidden"),
        ("PRECIS_COMPACTION_MODEL_API_KEY", "hidden"),
        ("PRECIS_MODEL", "m"),
    ]);
    let shown = format!(
        "{settings:?} {settings:#?} {} {:?}",
        settings.database_url,
        settings.compaction_model()
    );
    assert!(!shown.contains("hidden"), "{shown}");
    assert!(
        shown.contains("postgres://precis:***@db/precis?***"),
        "{shown}"
    );

    for vars in [
        [("PRECIS_MODEL_API_KEY", "hidden\n")],
        [("PRECIS_MODEL_API_KEY", "hidden hidden")],
        [("PRECIS_DATABASE_URL", "mysql://u:hidden@h/x")],
        [("PRECIS_DATABASE_URL", " postgres://u:hidden@h/x")],
    ] {
        let text = mistake(&vars);
        assert!(!text.contains("hidden"), "{text}");
    }
    let error = load_file(
        "model_api_key = [\"hidden\"]\ncompaction_model_api_key = 424242\n",
        &[],
    )
    .unwrap_err();
    assert!(
        !error.contains("hidden") && !error.contains("424242"),
        "{error}"
    );
}

#[test]
fn passwords_are_cut_from_malformed_urls_too() {
    for (url, shown) in [
        ("postgres://u:p@h/d", "postgres://u:***@h/d"),
        ("postgres://u:p@p@h/d", "postgres://u:***@h/d"),
        ("postgres://u:p/p?p#p@h/d", "postgres://u:***@h/d"),
        ("postgres://u@h:5432/d", "postgres://u@h:5432/d"),
        ("postgres://h/d?password=p&x=y", "postgres://h/d?***"),
        ("u:p@h", "u:***@h"),
        ("sqlite://a@b:c.db", "sqlite://a@b:c.db"),
    ] {
        assert_eq!(without_password(url), shown);
    }
}
