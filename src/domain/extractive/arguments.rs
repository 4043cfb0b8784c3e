//! What a tool call does and to what, from its name and its arguments.
//!
//! Tool names differ from agent to agent, so the verb in the name decides, and a few customary argument names give the
//! path or the command. Arguments that are no JSON, or that were cut off, are read as far as they go.

use serde_json::Value;

use super::text;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Wrote,
    Edited,
    Deleted,
    Moved,
    Looked,
    Ran,
    Used,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deed {
    pub verb: Verb,
    pub paths: Vec<String>,
    /// What to call it among the commands.
    pub label: String,
    /// The arguments in a few words, where the label does not hold them: many calls of one tool share a line.
    pub detail: String,
}

/// Longest path and longest command shown, in UTF-16 units.
const MAX_PATH: usize = 160;
const MAX_COMMAND: usize = 140;
/// Arguments over this many bytes are not parsed, only searched, and only at their beginning.
const PARSED: usize = 64 * 1024;
const SEARCHED: usize = 4 * 1024;

const PATH_KEYS: [&str; 10] = [
    "path",
    "file_path",
    "filepath",
    "file",
    "filename",
    "target_file",
    "notebook_path",
    "paths",
    "files",
    "old_path",
];
const COMMAND_KEYS: [&str; 4] = ["cmd", "command", "script", "commands"];

/// `parse` false: the batch has used up its time for arguments, so only look at the front.
pub(super) fn deed_of(name: &str, arguments: &str, parse: bool) -> Deed {
    let parsed: Option<Value> = (parse && arguments.len() <= PARSED)
        .then(|| serde_json::from_str(arguments).ok())
        .flatten();
    let front = text::head(arguments, SEARCHED);
    let find = |keys: &[&str]| -> Vec<String> {
        match &parsed {
            Some(value) => keys
                .iter()
                .flat_map(|key| strings(value.get(key)))
                .collect(),
            None => keys
                .iter()
                .filter_map(|key| loose_string(front, key))
                .collect(),
        }
    };
    let name = text::clip(&text::one_line(&name.replace('`', "'")), 60);
    let command = find(&COMMAND_KEYS).join(" ");
    let mut paths: Vec<String> = find(&PATH_KEYS)
        .iter()
        .map(|path| tidy(path, MAX_PATH))
        .filter(|path| !path.is_empty())
        .collect();
    paths.truncate(8);
    let mut verb = verb_of(&name);
    if let Some(sub) = sub_verb(&command).filter(|_| !paths.is_empty()) {
        // One editor tool for everything, its real verb in an argument.
        verb = sub;
    } else if !command.is_empty() {
        verb = Verb::Ran;
    }
    let label = match verb {
        Verb::Ran if !command.is_empty() => tidy(&command, MAX_COMMAND),
        Verb::Read | Verb::Wrote | Verb::Edited | Verb::Deleted | Verb::Moved
            if !paths.is_empty() =>
        {
            format!("{name} {}", paths.join(" "))
        }
        _ => name.clone(),
    };
    let detail = if label == name {
        tidy(&flat(parsed.as_ref(), front), MAX_COMMAND / 2)
    } else {
        String::new()
    };
    Deed {
        verb,
        paths,
        label,
        detail,
    }
}

fn tidy(raw: &str, max: usize) -> String {
    text::clip(
        &text::one_line(&text::head(raw, max * 8).replace('`', "'")),
        max,
    )
}

fn verb_of(name: &str) -> Verb {
    let mut spread = String::with_capacity(name.len() + 8);
    for c in name.chars() {
        if c.is_uppercase() || !c.is_alphanumeric() {
            spread.push(' ');
        }
        spread.extend(c.to_lowercase());
    }
    for word in spread.split_whitespace() {
        let verb = match word {
            "read" | "view" | "cat" | "open" | "load" => Verb::Read,
            "write" | "create" | "save" | "new" => Verb::Wrote,
            "edit" | "replace" | "patch" | "update" | "insert" | "modify" | "append"
            | "multiedit" => Verb::Edited,
            "delete" | "remove" | "rm" | "unlink" => Verb::Deleted,
            "move" | "rename" | "mv" | "copy" => Verb::Moved,
            "list" | "ls" | "search" | "grep" | "find" | "glob" | "tree" | "lookup" | "query"
            | "fetch" | "get" => Verb::Looked,
            "run" | "exec" | "execute" | "bash" | "shell" | "cmd" | "terminal" => Verb::Ran,
            _ => continue,
        };
        return verb;
    }
    Verb::Used
}

fn sub_verb(command: &str) -> Option<Verb> {
    match command {
        "view" => Some(Verb::Read),
        "create" => Some(Verb::Wrote),
        "str_replace" | "insert" | "undo_edit" => Some(Verb::Edited),
        _ => None,
    }
}

fn strings(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(one)) => vec![one.clone()],
        // A command given as a list is one command; of a list of paths each counts. Both end up joined or apart later.
        Some(Value::Array(many)) => many
            .iter()
            .take(16)
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        _ => Vec::new(),
    }
}

/// The string after `"key":` in text that need not be whole JSON. Escapes other than `\n` and `\t` stand for themselves.
fn loose_string(text: &str, key: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("\"{key}\""))?;
    let rest = rest
        .trim_start()
        .strip_prefix(':')?
        .trim_start()
        .strip_prefix('"')?;
    let mut out = String::new();
    let mut chars = rest.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next() {
                Some('n' | 't' | 'r') | None => out.push(' '),
                Some(other) => out.push(other),
            },
            _ => out.push(c),
        }
    }
    Some(out)
}

/// Arguments in a few words: `pattern: refund, path: src`.
fn flat(parsed: Option<&Value>, front: &str) -> String {
    match parsed {
        Some(Value::Object(map)) => {
            let parts: Vec<String> = map
                .iter()
                .take(4)
                .filter_map(|(key, value)| match value {
                    Value::String(text) => Some(format!("{key}: {}", text::clip(text, 50))),
                    Value::Number(_) | Value::Bool(_) => Some(format!("{key}: {value}")),
                    _ => None,
                })
                .collect();
            parts.join(", ")
        }
        _ => text::clip(text::head(front, 200), 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_and_the_object_are_found() {
        let deed = deed_of("read_file", r#"{"path": "src/a.rs"}"#, true);
        assert_eq!(
            (deed.verb, deed.paths.as_slice()),
            (Verb::Read, ["src/a.rs".to_owned()].as_slice())
        );
        let deed = deed_of("run", r#"{"cmd": "cargo test\n-q"}"#, true);
        assert_eq!(
            (deed.verb, deed.label.as_str()),
            (Verb::Ran, "cargo test -q")
        );
        let deed = deed_of(
            "editor",
            r#"{"command": "str_replace", "path": "/a/b"}"#,
            true,
        );
        assert_eq!(deed.verb, Verb::Edited);
        assert_eq!(
            deed_of("WriteFile", r#"{"filename": "x"}"#, true).verb,
            Verb::Wrote
        );
    }

    #[test]
    fn broken_arguments_are_read_as_far_as_they_go() {
        assert_eq!(
            deed_of("run", r#"{"cmd": "ls -la /da"#, true).label,
            "ls -la /da"
        );
        assert_eq!(deed_of("run", "", true).label, "run");
        let big = format!(
            r#"{{"path": "big.txt", "content": "{}"}}"#,
            "x".repeat(300_000)
        );
        assert_eq!(deed_of("write_file", &big, true).paths, ["big.txt"]);
    }
}
