//! What Anthropic's Messages API says to a context. This knows nothing of how contexts are made: it only
//! knows what that API refuses.

use std::collections::HashSet;

use serde_json::Value;

/// Breakpoints of the prompt cache that one request may have.
const MAX_CACHED: usize = 4;

/// Panics, with `what` in the message, on anything the API would refuse in the arrays `system` and `messages`.
#[track_caller]
pub fn check(system: &Value, messages: &Value, what: &str) {
    let faults = faults(system, messages);
    assert!(faults.is_empty(), "{what}: {faults:#?}");
}

/// Everything the API would refuse, each with its place; calls may be open at the very end.
pub fn faults(system: &Value, messages: &Value) -> Vec<String> {
    let mut review = Review::default();
    for (index, block) in items(system).iter().enumerate() {
        let place = format!("system.{index}");
        review.require(block["type"] == "text", &place, "is no text");
        review.block(block, &place, "system");
    }
    let messages = items(messages);
    for (index, message) in messages.iter().enumerate() {
        review.message(messages, index, message);
    }
    review.require(
        review.cached <= MAX_CACHED,
        "request",
        "has too many cache_control",
    );
    review.faults
}

#[derive(Default)]
struct Review {
    faults: Vec<String>,
    ids: HashSet<String>,
    cached: usize,
}

impl Review {
    fn require(&mut self, holds: bool, place: &str, fault: &str) {
        if !holds {
            self.faults.push(format!("{place} {fault}"));
        }
    }

    fn message(&mut self, messages: &[Value], index: usize, message: &Value) {
        let place = format!("messages.{index}");
        let expected = if index.is_multiple_of(2) {
            "user"
        } else {
            "assistant"
        };
        self.require(message["role"] == expected, &place, "is out of turn");
        self.members(message, &["role", "content"], &[], &place);
        let blocks = items(&message["content"]);
        self.require(!blocks.is_empty(), &place, "has no blocks");
        let role = message["role"].as_str().unwrap_or_default();
        for (at, block) in blocks.iter().enumerate() {
            self.block(block, &format!("{place}.content.{at}"), role);
        }
        self.results(messages, index, blocks, &place);
    }

    /// Results stand first, and answer each call of the message before exactly once.
    fn results(&mut self, messages: &[Value], index: usize, blocks: &[Value], place: &str) {
        let is_result = |block: &&Value| block["type"] == "tool_result";
        let before = index
            .checked_sub(1)
            .map(|before| items(&messages[before]["content"]));
        let calls: Vec<&Value> = before
            .unwrap_or_default()
            .iter()
            .filter(|block| block["type"] == "tool_use")
            .map(|block| &block["id"])
            .collect();
        let answered: Vec<&Value> = blocks
            .iter()
            .filter(is_result)
            .map(|block| &block["tool_use_id"])
            .collect();
        let first = blocks.iter().take_while(is_result).count();
        self.require(first == answered.len(), place, "has results behind others");
        let distinct: HashSet<&Value> = answered.iter().copied().collect();
        self.require(distinct.len() == answered.len(), place, "answers twice");
        self.require(
            answered.iter().all(|id| calls.contains(id)),
            place,
            "answers what was not called",
        );
        let may_be_open = index + 1 == messages.len() && answered.len() == blocks.len();
        self.require(
            may_be_open || answered.len() == calls.len(),
            place,
            "leaves calls without a result",
        );
    }

    fn block(&mut self, block: &Value, place: &str, role: &str) {
        if let Some(control) = block.get("cache_control") {
            self.cached += 1;
            let ephemeral = *control == serde_json::json!({"type": "ephemeral"});
            self.require(ephemeral, place, "has an odd cache_control");
        }
        match block["type"].as_str().unwrap_or_default() {
            "text" => self.text(block, place),
            "image" if role == "user" => {
                self.members(block, &["type", "source"], CACHED, place);
                self.source(&block["source"], place);
            }
            "document" if role == "user" => self.document(block, place),
            "search_result" if role == "user" => {
                let needs = ["type", "source", "title", "content"];
                self.members(block, &needs, &["citations", "cache_control"], place);
            }
            "tool_use" if role == "assistant" => self.tool_use(block, place),
            "tool_result" if role == "user" => self.tool_result(block, place),
            "thinking" if role == "assistant" => {
                self.members(block, &["type", "thinking", "signature"], &[], place);
                self.require(block["thinking"].is_string(), place, "has no thinking");
                self.require(says(&block["signature"]), place, "has no signature");
            }
            "redacted_thinking" if role == "assistant" => {
                self.members(block, &["type", "data"], &[], place);
                self.require(says(&block["data"]), place, "has no data");
            }
            kind => self
                .faults
                .push(format!("{place} is `{kind}`, which {role} may not say")),
        }
    }

    fn text(&mut self, block: &Value, place: &str) {
        self.members(block, &["type", "text"], CACHED, place);
        self.require(says(&block["text"]), place, "is a blank text");
    }

    fn document(&mut self, block: &Value, place: &str) {
        let may = ["title", "context", "citations", "cache_control"];
        self.members(block, &["type", "source"], &may, place);
        self.source(&block["source"], place);
        let title = block.get("title").and_then(Value::as_str).unwrap_or("x");
        self.require(
            (1..=500).contains(&title.chars().count()),
            place,
            "has a title of a wrong length",
        );
    }

    fn tool_use(&mut self, block: &Value, place: &str) {
        self.members(block, &["type", "id", "name", "input"], CACHED, place);
        let id = block["id"].as_str().unwrap_or_default().to_owned();
        let name = block["name"].as_str().unwrap_or_default();
        self.require(is_plain(&id), place, "has an id the API refuses");
        self.require(
            is_plain(name) && name.len() <= 128,
            place,
            "has a name the API refuses",
        );
        self.require(block["input"].is_object(), place, "has no object as input");
        let is_new = self.ids.insert(id);
        self.require(is_new, place, "uses an id again");
    }

    fn tool_result(&mut self, block: &Value, place: &str) {
        let may = ["content", "is_error", "cache_control"];
        self.members(block, &["type", "tool_use_id"], &may, place);
        let flag = block.get("is_error").is_none_or(Value::is_boolean);
        self.require(flag, place, "has an is_error that is no flag");
        match block.get("content") {
            None => {}
            Some(Value::String(_)) => self.require(says(&block["content"]), place, "is blank"),
            Some(content) => {
                self.require(!items(content).is_empty(), place, "has no blocks");
                for (at, inner) in items(content).iter().enumerate() {
                    let kinds = ["text", "image", "document", "search_result"];
                    let kind = inner["type"].as_str().unwrap_or_default();
                    self.require(kinds.contains(&kind), place, "holds an odd block");
                    self.block(inner, &format!("{place}.content.{at}"), "user");
                }
            }
        }
    }

    fn source(&mut self, source: &Value, place: &str) {
        let media_type = source["media_type"].as_str().unwrap_or_default();
        let holds = match source["type"].as_str().unwrap_or_default() {
            "base64" => MEDIA_TYPES.contains(&media_type) && says(&source["data"]),
            "text" => media_type == "text/plain" && says(&source["data"]),
            "url" => source["url"].as_str().is_some_and(|url| {
                let url = url.to_ascii_lowercase();
                url.starts_with("http://") || url.starts_with("https://")
            }),
            "file" => says(&source["file_id"]),
            "content" => !source["content"].is_null(),
            _ => false,
        };
        self.require(holds, place, "has a source the API refuses");
    }

    /// All of `must`, perhaps some of `may`, nothing else: the API refuses what it does not know.
    fn members(&mut self, value: &Value, must: &[&str], may: &[&str], place: &str) {
        let Some(object) = value.as_object() else {
            self.faults.push(format!("{place} is no object"));
            return;
        };
        for name in must {
            self.require(object.contains_key(*name), place, &format!("lacks {name}"));
        }
        for name in object.keys().map(String::as_str) {
            let known = must.contains(&name) || may.contains(&name);
            self.require(known, place, &format!("has an extra member {name}"));
        }
    }
}

const CACHED: &[&str] = &["cache_control"];

const MEDIA_TYPES: [&str; 5] = [
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "application/pdf",
];

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A string that is not blank.
fn says(value: &Value) -> bool {
    let blank =
        |character: char| character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}');
    value.as_str().is_some_and(|text| !text.chars().all(blank))
}

fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    !name.is_empty() && name.bytes().all(plain)
}
