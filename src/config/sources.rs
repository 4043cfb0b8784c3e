//! Where settings come from: the file that `PRECIS_CONFIG` names and the `PRECIS_*` variables, each value taken only
//! if [`super::options`] knows its name and takes it.
//!
//! A value in a file has a type of its own and must have the right one; a variable is text and is read as what the
//! option takes, so that a model may be called `123` or `true`. The rules themselves are not here, nor is the
//! environment of the process: variables are handed in.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use figment::{
    providers::{Format, Toml},
    value::{Dict, Value},
};

use super::{
    mistake::Mistake,
    options::{self, Given, Opt},
};

const PREFIX: &str = "PRECIS_";

/// Names the TOML file.
const FILE: &str = "PRECIS_CONFIG";

/// Variables with our prefix that are not options and are no mistake either.
const RESERVED: &[&str] = &[FILE];

/// Beginnings of such variables: those of the tests, and those that Kubernetes sets in every container beside a
/// service that is called `precis`.
const RESERVED_PREFIXES: &[&str] = &["PRECIS_TEST_", "PRECIS_SERVICE_", "PRECIS_PORT_"];

/// What the layers above the defaults say.
#[derive(Default)]
pub(super) struct Chosen {
    values: BTreeMap<&'static str, Value>,
    /// Options that were given a value they don't take; for them `values` may hold one from a lower layer.
    faulty: BTreeSet<&'static str>,
}

impl Chosen {
    pub(super) fn values(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|(path, value)| (*path, value))
    }

    /// Whether none of these was given a value it does not take.
    pub(super) fn all_sound(&self, paths: &[&str]) -> bool {
        paths.iter().all(|path| !self.faulty.contains(path))
    }

    fn set(&mut self, option: &Opt, given: Given<'_>, origin: &str, mistakes: &mut Vec<Mistake>) {
        match option.read(given) {
            Ok(value) => {
                self.values.insert(option.path, value);
            }
            Err(complaint) => {
                self.faulty.insert(option.path);
                mistakes.push(Mistake::about(
                    option.path,
                    &format!("is set in {origin} to {}; {complaint}", option.show(given)),
                ));
            }
        }
    }
}

pub(super) fn is_ours(variable: &str) -> bool {
    variable.starts_with(PREFIX)
}

/// Reads the file, then the variables over it.
pub(super) fn read(
    vars: impl IntoIterator<Item = (String, String)>,
    mistakes: &mut Vec<Mistake>,
) -> Chosen {
    // Sorted, so that mistakes come in an order that does not change from start to start.
    let vars: BTreeMap<String, String> =
        vars.into_iter().filter(|(name, _)| is_ours(name)).collect();
    let mut chosen = Chosen::default();
    if let Some(file) = vars.get(FILE).filter(|file| !file.is_empty()) {
        read_file(file, &mut chosen, mistakes);
    }
    for (name, text) in &vars {
        if is_reserved(name, text) {
            continue;
        }
        match options::by_env_name(name) {
            Some(option) => chosen.set(option, Given::Text(text), "the environment", mistakes),
            None => mistakes.push(Mistake::unknown(name, "the environment")),
        }
    }
    chosen
}

fn is_reserved(name: &str, text: &str) -> bool {
    RESERVED.contains(&name)
        || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        // Kubernetes again: `tcp://10.0.0.1:8080`. A bare number is someone's wish for a port, and a mistake.
        || (name == "PRECIS_PORT" && text.contains("://"))
}

fn read_file(file: &str, chosen: &mut Chosen, mistakes: &mut Vec<Mistake>) {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => {
            mistakes.push(Mistake::other(format!(
                "the file `{file}`, which `{FILE}` names, cannot be read: {error}"
            )));
            return;
        }
    };
    let table: Dict = match Toml::from_str(&text) {
        Ok(table) => table,
        Err(error) => {
            // The parser's own rendering quotes the line, which may hold a key.
            let place = error
                .span()
                .and_then(|span| text.get(..span.start))
                .map_or_else(String::new, |before| {
                    format!(" in line {}", before.matches('\n').count() + 1)
                });
            mistakes.push(Mistake::other(format!(
                "the file `{file}`, which `{FILE}` names, is not TOML{place}: {}",
                error.message().replace('\n', ", ")
            )));
            return;
        }
    };
    let origin = format!("`{file}`");
    for (path, value) in leaves(table) {
        match options::by_path(&path) {
            Some(option) => chosen.set(option, Given::Value(&value), &origin, mistakes),
            None => mistakes.push(Mistake::unknown(&path, &origin)),
        }
    }
}

/// The values of nested tables, each with its dotted path. A table is only gone into where no option has its name, and
/// an empty one counts as a value unless options could stand in it.
fn leaves(table: Dict) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), table)];
    while let Some((prefix, table)) = open.pop() {
        for (key, value) in table {
            let path = format!("{prefix}{key}");
            match value {
                Value::Dict(_, inner)
                    if options::by_path(&path).is_none()
                        && (!inner.is_empty() || options::is_table(&path)) =>
                {
                    open.push((format!("{path}."), inner));
                }
                value => found.push((path, value)),
            }
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}
