//! Three harmless tools: the names of the files in a folder, the beginning of one, and the sum of two numbers.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::Outcome;

/// The tools, and how they are set up.
#[derive(Args)]
pub struct Tools {
    /// The folder whose files the tools show; nothing outside it is read.
    #[arg(long, default_value = "docs")]
    folder: PathBuf,
    /// What of a file is shown, in characters.
    #[arg(long, default_value_t = 4_000)]
    piece: usize,
}

impl Tools {
    /// What a model is told of them.
    pub fn definitions(&self) -> Value {
        let tool = |name, description, properties: Value| {
            let properties_of = properties.as_object().into_iter().flatten();
            let required: Vec<_> = properties_of.map(|(name, _)| name).collect();
            json!({"type": "function", "function": {
                "name": name,
                "description": description,
                "parameters": {"type": "object", "properties": properties, "required": required},
            }})
        };
        let path = json!({"type": "string", "enum": self.files()});
        let number = json!({"type": "integer"});
        json!([
            tool("list_files", "The names of the files.", json!({})),
            tool(
                "read_file",
                "The beginning of a file.",
                json!({"path": path})
            ),
            tool(
                "add",
                "The sum of two whole numbers.",
                json!({"a": number, "b": number})
            ),
        ])
    }

    /// Runs a call and gives its result as a message. A model is told of its mistakes like of anything else.
    pub fn answer(&self, call: &Value) -> Value {
        let text = |name: &str| call["function"][name].as_str().unwrap_or_default();
        let (name, given) = (text("name"), text("arguments"));
        let result = self
            .run(name, given)
            .unwrap_or_else(|error| format!("error: {error}"));
        println!("  {name}({given}): {} characters", result.chars().count());
        json!({"role": "tool", "tool_call_id": call["id"], "content": result})
    }

    fn run(&self, name: &str, given: &str) -> Outcome<String> {
        let given: Value = serde_json::from_str(given)?;
        match name {
            "list_files" => Ok(self.files().join("\n")),
            "read_file" => {
                let path = given["path"].as_str().ok_or("`path` is missing")?;
                if !self.files().iter().any(|file| file == path) {
                    return Err("there is no such file; list_files names them".into());
                }
                let text = std::fs::read_to_string(self.folder.join(path))?;
                Ok(text.chars().take(self.piece).collect())
            }
            "add" => {
                let (a, b) = (given["a"].as_i64(), given["b"].as_i64());
                let sum = a.zip(b).and_then(|(a, b)| a.checked_add(b));
                let sum = sum.ok_or("`a` and `b` must be whole numbers, and not as large")?;
                Ok(sum.to_string())
            }
            _ => Err("there is no such tool".into()),
        }
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten();
        let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}
