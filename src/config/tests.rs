//! Names, bounds, layers, messages. No test here touches the environment of the process: variables are handed in.

mod access;
mod models;

use std::{collections::BTreeSet, fs};

use figment::{
    providers::{Format, Toml},
    value::{Dict, Value},
};
use secrecy::ExposeSecret as _;

use super::{
    ConfigError, DEFAULTS, DatabaseKind, LogFormat, OutputCap, Settings, Summarizer,
    options::{OPTIONS, Takes, env_name, nearest},
};

fn load(vars: &[(&str, &str)]) -> Result<Settings, ConfigError> {
    Settings::from_vars(vars.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
}

fn fine(vars: &[(&str, &str)]) -> Settings {
    load(vars).unwrap_or_else(|error| panic!("{error}"))
}

/// The text of the only mistake.
fn mistake(vars: &[(&str, &str)]) -> String {
    let error = load(vars).expect_err("a mistake");
    assert_eq!(error.mistakes().len(), 1, "{error}");
    error.mistakes()[0].to_string()
}

/// The settings with this text as the file of `PRECIS_CONFIG`, and the error with the file's name replaced.
fn load_file(toml: &str, vars: &[(&str, &str)]) -> Result<Settings, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), toml).unwrap();
    let path = file.path().to_str().unwrap();
    let mut all = vec![("PRECIS_CONFIG", path)];
    all.extend_from_slice(vars);
    load(&all).map_err(|error| error.to_string().replace(path, "FILE"))
}

fn flat(prefix: &str, table: &Dict, into: &mut Vec<(String, Value)>) {
    for (key, value) in table {
        match value {
            Value::Dict(_, inner) => flat(&format!("{prefix}{key}."), inner, into),
            value => into.push((format!("{prefix}{key}"), value.clone())),
        }
    }
}

/// The lines of comment right above the option, as one text.
fn comment_above(option: &str) -> String {
    let (table, key) = option.rsplit_once('.').unwrap_or(("", option));
    let mut current = "";
    let mut comment = String::new();
    for line in DEFAULTS.lines() {
        if let Some(name) = line.strip_prefix('[') {
            current = name.trim_end_matches(']');
        } else if let Some(text) = line.strip_prefix('#') {
            comment += text;
            continue;
        } else if current == table && line.starts_with(&format!("{key} = ")) {
            return comment;
        }
        comment.clear();
    }
    panic!("`{option}` is not in config/default.toml");
}

#[test]
fn the_defaults_load() {
    let settings = fine(&[]);
    assert_eq!(settings.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(settings.database_url.expose(), "sqlite://precis.db");
    assert_eq!(settings.database_url.kind(), DatabaseKind::Sqlite);
    assert_eq!(settings.log_format, LogFormat::Text);
    assert_eq!(settings.limits.body_bytes, 32 << 20);
    assert_eq!(settings.limits.message_bytes, 16 << 20);
    assert_eq!(settings.compaction.summarizer, Summarizer::Auto);
    assert_eq!(settings.compaction.output_cap, OutputCap::MaxTokens);
    assert_eq!(settings.compaction.lease_renewal().as_secs(), 10);
    assert_eq!(settings.compaction.output_cap_tokens(2_000), 8_000);
    assert!(settings.http.worker_count() >= 1);
    assert!(settings.main_model().is_none());
    assert!(settings.compaction_model().is_none());
}

#[test]
fn the_file_of_defaults_and_the_rules_list_the_same_options() {
    let mut defaults = Vec::new();
    flat("", &Toml::from_str(DEFAULTS).unwrap(), &mut defaults);
    let written: BTreeSet<&str> = defaults.iter().map(|(path, _)| path.as_str()).collect();
    let known: BTreeSet<&str> = OPTIONS.iter().map(|option| option.path).collect();
    assert_eq!(written, known);
    assert_eq!(known.len(), OPTIONS.len());
    for (path, value) in &defaults {
        let option = OPTIONS.iter().find(|option| option.path == path).unwrap();
        let read = option.read(super::options::Given::Value(value));
        assert!(read.is_ok(), "the default of `{path}` breaks its own rule");
    }
}

#[test]
fn the_file_of_defaults_states_every_bound_and_word() {
    for option in OPTIONS {
        let comment = comment_above(option.path);
        assert!(!comment.is_empty(), "`{}` is not explained", option.path);
        match option.takes {
            Takes::Whole(min, max) => {
                let bounds = format!(" {min} to {max}");
                assert!(comment.contains(&bounds), "`{}`:{bounds}", option.path);
            }
            Takes::OneOf(words) => {
                for word in words {
                    let word = format!("\"{word}\"");
                    assert!(comment.contains(&word), "`{}`: {word}", option.path);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn every_whole_number_is_held_to_its_bounds() {
    for option in OPTIONS {
        let Takes::Whole(min, max) = option.takes else {
            continue;
        };
        let name = env_name(option.path);
        let too_small = i128::from(min) - 1;
        let too_large = i128::from(max) + 1;
        for wrong in [
            too_small.to_string(),
            too_large.to_string(),
            "x".into(),
            "1.5".into(),
            String::new(),
        ] {
            let text = mistake(&[(&name, &wrong)]);
            assert!(text.contains(option.path) && text.contains(&name), "{text}");
            assert!(text.contains(&format!("from {min} to {max}")), "{text}");
        }
        for right in [min.to_string(), max.to_string()] {
            let error = load(&[(&name, &right)]).err();
            // The one option whose bounds depend on another.
            let other = option.path == "compaction.max_summary_tokens"
                || option.path == "compaction.output_cap_tokens";
            assert!(error.is_none() || other, "{}", error.unwrap());
        }
    }
}

#[test]
fn a_share_is_over_nothing_and_at_most_one() {
    let name = "PRECIS_PRUNING__HEADROOM";
    for (text, expected) in [("1", 1.0), ("0.25", 0.25)] {
        let by_variable = fine(&[(name, text)]).pruning.headroom;
        let by_file = load_file(&format!("[pruning]\nheadroom = {text}\n"), &[]);
        for found in [by_variable, by_file.unwrap().pruning.headroom] {
            assert!((found - expected).abs() < f64::EPSILON, "{text}: {found}");
        }
    }
    for text in ["0", "0.0", "-0.5", "1.01", "2", "nan", "inf", "x", ""] {
        let told = mistake(&[(name, text)]);
        assert!(told.contains("a number over 0, up to 1"), "{text}: {told}");
    }
    let told = load_file("[pruning]\nfloor_ratio = 1.5\n", &[]).unwrap_err();
    assert!(
        told.contains("`pruning.floor_ratio`") && told.contains("1.5"),
        "{told}"
    );
}

#[test]
fn a_variable_wins_over_the_file_and_the_file_over_the_defaults() {
    let toml = "log = \"warn\"\nmodel = \"from-file\"\n[compaction]\nlease_seconds = 7\ncompact_count = 20\n";
    let settings = load_file(
        toml,
        &[
            ("PRECIS_COMPACTION__LEASE_SECONDS", "9"),
            ("PRECIS_COMPACTION__SUMMARIZER", "extractive"),
        ],
    )
    .unwrap();
    assert_eq!(settings.compaction.lease_seconds, 9);
    assert_eq!(settings.compaction.compact_count, 20);
    assert_eq!(settings.compaction.keep_recent_turns, 1);
    assert_eq!(settings.log, "warn");
    assert_eq!(settings.model, "from-file");
}

#[test]
fn a_variable_is_read_as_what_the_option_takes() {
    for name in ["123", "true", "[x]", "{a = 1}", "1.5"] {
        let settings = fine(&[
            ("PRECIS_MODEL", name),
            ("PRECIS_MODEL_BASE_URL", "http://localhost/v1"),
            ("PRECIS_MODEL_API_KEY", "12345"),
        ]);
        assert_eq!(settings.model, name);
        assert_eq!(settings.model_api_key.expose_secret(), "12345");
    }
}

#[test]
fn a_bad_number_names_the_option_the_value_and_what_it_takes() {
    assert_eq!(
        mistake(&[("PRECIS_HTTP__WORKERS", "x")]),
        "`http.workers` (`PRECIS_HTTP__WORKERS`) is set in the environment to `x`; it takes a whole number from 0 to 1024"
    );
    assert_eq!(
        load_file("[http]\nworkers = \"4\"\n", &[]).unwrap_err(),
        "the configuration has a mistake:\n  - `http.workers` (`PRECIS_HTTP__WORKERS`) is set in `FILE` to `4`; it takes a whole number from 0 to 1024.\n\
         Every option, with what it means and takes, is printed by `precis config`."
    );
    let error = load_file("model = 123\nlog = [1]\n[http]\nworkers = -1\nkeep_alive_seconds = 1.5\nheader_timeout_seconds = true\n", &[]).unwrap_err();
    for part in [
        "to `123`",
        "to an array; it takes text",
        "to 123;",
        "to -1;",
        "to 1.5;",
        "to true;",
    ] {
        assert_eq!(error.contains(part), part != "to `123`", "{part}: {error}");
    }
}

#[test]
fn all_mistakes_are_told_together() {
    let error = load_file(
        "lisen = \"x\"\n[compaction]\nboundary = \"word\"\n",
        &[
            ("PRECIS_LISTEN", "8080"),
            ("PRECIS_PROVIDER__ATTEMPTS", "11"),
            ("PRECIS_MODELL", "m"),
            ("PRECIS_COMPACTION__SUMMARIZER", "model"),
        ],
    )
    .unwrap_err();
    for part in [
        "has 7 mistakes",
        "`lisen`, set in `FILE`",
        "`turn`, `step`",
        "127.0.0.1:8080",
        "from 1 to 10",
        "`PRECIS_MODELL`",
        "`model_base_url`",
        "needs one",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_name_that_does_not_exist_is_answered_with_the_nearest() {
    for (name, expected) in [
        ("PRECIS_LISTEN_ADDR", "listen"),
        ("PRECIS_DATABASE__URL", "database_url"),
        ("PRECIS_DATABSE_URL", "database_url"),
        ("PRECIS_COMPACTION__MODEL", "compaction_model"),
        (
            "PRECIS_COMPACTION_LEASE_SECONDS",
            "compaction.lease_seconds",
        ),
        ("PRECIS_LEASE_SECONDS", "compaction.lease_seconds"),
        ("PRECIS_model", "model"),
        ("PRECIS_LOG_LEVEL", "log"),
        ("lease_second", "compaction.lease_seconds"),
        ("http.keepalive_seconds", "http.keep_alive_seconds"),
        ("limits.body-bytes", "limits.body_bytes"),
        ("databse.readers", "database.readers"),
    ] {
        assert_eq!(nearest(name), Some(expected), "{name}");
    }
    let text = mistake(&[("PRECIS_LEASE_SECONDS", "3")]);
    assert_eq!(
        text,
        "`PRECIS_LEASE_SECONDS`, set in the environment, is not an option; the nearest is `compaction.lease_seconds` \
         (`PRECIS_COMPACTION__LEASE_SECONDS`)"
    );
}

#[test]
fn unknown_tables_and_tables_in_the_place_of_values_are_mistakes() {
    for (toml, part) in [
        ("[databse]\nreaders = 2\n", "`databse.readers`"),
        ("[nothing]\n", "`nothing`"),
        ("database = 3\n", "`database`"),
        ("[listen]\nport = 3\n", "is set in `FILE` to a table"),
        ("[http.workers]\n", "is set in `FILE` to a table"),
        ("[[http]]\nworkers = 1\n", "`http`"),
        ("listen = 2026-01-01\n", "is set in `FILE` to a table"),
    ] {
        let error = load_file(toml, &[]).expect_err(toml);
        assert!(
            error.contains(part) && error.contains("has a mistake"),
            "{toml}: {error}"
        );
    }
    assert!(load_file("[http]\n[database]\n", &[]).is_ok());
}

#[test]
fn a_file_that_cannot_be_read_is_a_mistake() {
    let text = mistake(&[("PRECIS_CONFIG", "/nowhere/precis.toml")]);
    assert!(
        text.contains("`/nowhere/precis.toml`") && text.contains("PRECIS_CONFIG"),
        "{text}"
    );
    assert!(load(&[("PRECIS_CONFIG", "")]).is_ok());

    let error = load_file(
        "log = \"info\"\nmodel_api_key = sk-hidden\n",
        &[("PRECIS_LISTEN", "x")],
    )
    .unwrap_err();
    assert!(
        error.contains("has 2 mistakes") && error.contains("line 2"),
        "{error}"
    );
    assert!(!error.contains("sk-hidden"), "{error}");
}

#[test]
fn other_variables_are_left_alone() {
    let settings = load(&[
        ("PATH", "/bin"),
        ("precis_listen", "x"),
        ("PRECISE", "x"),
        ("PRECIS_TEST_DATABASE_URL", "postgres://localhost/x"),
        ("PRECIS_SERVICE_HOST", "10.0.0.1"),
        ("PRECIS_PORT", "tcp://10.0.0.1:8080"),
        ("PRECIS_PORT_8080_TCP_ADDR", "10.0.0.1"),
    ]);
    assert!(settings.is_ok());
    assert!(mistake(&[("PRECIS_PORT", "9000")]).contains("is not an option"));
}

#[test]
fn listen_takes_addresses_and_localhost() {
    for (text, address) in [
        ("0.0.0.0:80", "0.0.0.0:80"),
        ("[::1]:0", "[::1]:0"),
        ("localhost:8080", "127.0.0.1:8080"),
    ] {
        assert_eq!(
            fine(&[("PRECIS_LISTEN", text)]).listen,
            address.parse().unwrap()
        );
    }
    for text in [
        "",
        "8080",
        ":8080",
        "localhost",
        "localhost:",
        "localhost:65536",
        "example.com:80",
        "http://127.0.0.1:80",
        "::1:80x",
    ] {
        assert!(
            mistake(&[("PRECIS_LISTEN", text)]).contains("an IP address and a port"),
            "{text}"
        );
    }
}

#[test]
fn database_urls() {
    for text in [
        "sqlite://precis.db",
        "sqlite:///data/precis.db?mode=rwc",
        "postgres://precis:secret@localhost:5432/precis",
        "postgresql:///precis?host=/run/postgresql",
    ] {
        assert_eq!(
            fine(&[("PRECIS_DATABASE_URL", text)]).database_url.expose(),
            text
        );
    }
    for text in [
        "",
        "precis.db",
        "sqlite:precis.db",
        "sqlite://",
        "sqlite://?mode=rwc",
        "postgres://",
        "mysql://localhost/x",
        " sqlite://x",
    ] {
        assert!(
            mistake(&[("PRECIS_DATABASE_URL", text)]).contains("`sqlite://FILE`"),
            "{text}"
        );
    }
    for text in [
        "sqlite::memory:",
        "sqlite://:memory:",
        "sqlite://x?mode=MEMORY",
        "sqlite://file::memory:?cache=shared",
    ] {
        assert!(
            mistake(&[("PRECIS_DATABASE_URL", text)]).contains("in-memory"),
            "{text}"
        );
    }
}

#[test]
fn log_filters() {
    for text in [
        "info",
        "WARN",
        "off",
        "info,precis=debug",
        "precis::http=trace, warn",
        "warn,precis[turn{id}]=debug",
    ] {
        assert!(load(&[("PRECIS_LOG", text)]).is_ok(), "{text}");
    }
    for text in ["", "warning", "precis", "precis=loud", "info,,", "=debug=x"] {
        assert!(
            mistake(&[("PRECIS_LOG", text)]).contains("it takes a level"),
            "{text}"
        );
    }
}

#[test]
fn words() {
    let settings = fine(&[
        ("PRECIS_LOG_FORMAT", "json"),
        ("PRECIS_COMPACTION__OUTPUT_CAP", "max_completion_tokens"),
    ]);
    assert_eq!(settings.log_format, LogFormat::Json);
    assert_eq!(
        settings.compaction.output_cap,
        OutputCap::MaxCompletionTokens
    );
    assert_eq!(
        mistake(&[("PRECIS_LOG_FORMAT", "JSON")]),
        "`log_format` (`PRECIS_LOG_FORMAT`) is set in the environment to `JSON`; it takes one of `text`, `json`"
    );
    // Every word of the list is one of the enum, or it could not be chosen.
    for option in OPTIONS {
        if let Takes::OneOf(words) = option.takes {
            for word in words {
                let vars = [
                    (&*env_name(option.path), *word),
                    ("PRECIS_MODEL", "m"),
                    ("PRECIS_MODEL_BASE_URL", "http://h"),
                ];
                assert!(load(&vars).is_ok(), "{word}");
            }
        }
    }
}

#[test]
fn the_output_cap_is_larger_than_the_summary() {
    let text = mistake(&[("PRECIS_COMPACTION__OUTPUT_CAP_TOKENS", "2000")]);
    assert!(
        text.contains(
            "`compaction.output_cap_tokens` (`PRECIS_COMPACTION__OUTPUT_CAP_TOKENS`) is 2000"
        ),
        "{text}"
    );
    let settings = fine(&[("PRECIS_COMPACTION__OUTPUT_CAP_TOKENS", "2001")]);
    assert_eq!(settings.compaction.output_cap_tokens(2_000), 2_001);
    assert_eq!(settings.compaction.output_cap_tokens(5_000), 5_001);
    // The summary's length is wrong by itself: the cap is not blamed as well.
    mistake(&[
        ("PRECIS_COMPACTION__OUTPUT_CAP_TOKENS", "50"),
        ("PRECIS_COMPACTION__MAX_SUMMARY_TOKENS", "10"),
    ]);
}
