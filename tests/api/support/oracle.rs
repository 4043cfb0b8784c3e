//! The contract of compaction, read a second time and written as plainly as it goes: what length a
//! message has, where a first cut falls, what the model is shown. Slow and simple on purpose; the
//! service is compared with it, and it is compared with `expectations.json`.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

const PART: usize = 4_000;

#[derive(Clone, Debug)]
pub struct Message {
    pub raw: String,
    pub role: String,
    pub length: usize,
    /// The ids of its calls.
    pub calls: Vec<String>,
    /// The id it answers.
    pub answers: Option<String>,
    /// An assistant message that says something: no calls, content not empty.
    says: bool,
}

/// A history: the instructions, and the rest by position.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub instructions: Vec<String>,
    pub messages: Vec<Message>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    Turn,
    Step,
}

#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub percent: usize,
    pub boundary: Boundary,
    pub keep: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    Cut(usize),
    UpToDate,
    /// The batch is there, but there is nothing in it.
    Empty,
    /// `open_turn` or `protected`: there is no cut.
    NoCut,
    /// The tail is within the budget as it is.
    WithinBudget,
}

/// One message of a context.
#[derive(Clone, Debug)]
pub enum Shown {
    /// Byte for byte.
    Stored(String),
    /// Made by the service; equal as JSON.
    Made(Value),
}

impl Boundary {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Step => "step",
        }
    }
}

impl Request {
    pub const fn percent(percent: usize) -> Self {
        Self {
            percent,
            boundary: Boundary::Turn,
            keep: 1,
        }
    }

    pub const fn step(percent: usize) -> Self {
        Self {
            percent,
            boundary: Boundary::Step,
            keep: 0,
        }
    }

    /// The body of a compaction.
    pub fn body(self) -> Value {
        json!({
            "compactCount": self.percent,
            "boundary": self.boundary.name(),
            "keepRecentTurns": self.keep,
        })
    }
}

impl Plan {
    /// The pointer after a run of this plan.
    pub const fn size_after(self, size: usize) -> usize {
        match self {
            Self::Cut(cut) => cut,
            _ => size,
        }
    }

    /// What the service may give as the reason.
    pub const fn reasons(self) -> &'static [Option<&'static str>] {
        match self {
            Self::Cut(_) => &[None],
            Self::UpToDate => &[Some("up_to_date")],
            Self::Empty => &[Some("empty")],
            Self::NoCut => &[Some("open_turn"), Some("protected")],
            Self::WithinBudget => &[Some("within_budget")],
        }
    }
}

impl History {
    pub fn new(raws: &[String]) -> Self {
        let mut history = Self::default();
        for raw in raws {
            history.push(raw);
        }
        history
    }

    pub fn push(&mut self, raw: &str) {
        let message = Message::read(raw);
        if matches!(message.role.as_str(), "system" | "developer") {
            self.instructions.push(message.raw);
        } else {
            self.messages.push(message);
        }
    }

    pub fn length(&self) -> usize {
        self.messages.iter().map(|message| message.length).sum()
    }

    fn is_turn_start(&self, position: usize) -> bool {
        position == 0
            || (self.messages[position].role == "user"
                && self.messages[position - 1].role != "user")
    }

    pub fn turn_starts(&self) -> Vec<usize> {
        (0..self.messages.len())
            .filter(|position| self.is_turn_start(*position))
            .collect()
    }

    /// A result belongs to the group of the call before it.
    fn is_group_start(&self, position: usize) -> bool {
        self.messages[position].role != "tool"
    }

    fn group_end(&self, start: usize) -> usize {
        (start + 1..self.messages.len())
            .find(|position| self.is_group_start(*position))
            .unwrap_or(self.messages.len())
    }

    fn unanswered(&self, start: usize) -> Vec<String> {
        let results = &self.messages[start + 1..self.group_end(start)];
        self.messages[start]
            .calls
            .iter()
            .filter(|call| !results.iter().any(|r| r.answers.as_ref() == Some(*call)))
            .cloned()
            .collect()
    }

    fn newest_group(&self) -> Option<usize> {
        (0..self.messages.len())
            .rev()
            .find(|position| self.is_group_start(*position))
    }

    /// The calls that still wait for their results.
    pub fn open_calls(&self) -> Vec<String> {
        self.newest_group()
            .map(|start| self.unanswered(start))
            .unwrap_or_default()
    }

    /// Whether a summary may end before this position: never inside a group, also one that grew later.
    pub fn may_end(&self, position: usize) -> bool {
        position == self.messages.len() || self.is_group_start(position)
    }

    /// How many positions a summary may stand for: a call that waits for its result stays visible.
    pub fn coverable(&self) -> usize {
        match self.newest_group() {
            Some(start) if !self.open_calls().is_empty() => start,
            _ => self.messages.len(),
        }
    }

    fn newest_turn_is_open(&self) -> bool {
        self.messages.last().is_some_and(|message| !message.says)
    }

    pub fn plan(&self, size: usize, summary_length: usize, request: Request) -> Plan {
        let end = self.messages.len();
        if size >= end {
            return Plan::UpToDate;
        }
        let lengths: Vec<usize> = self.messages.iter().map(|m| m.length).collect();
        let sum = |from: usize, to: usize| lengths[from..to].iter().sum::<usize>();
        let target = (summary_length + sum(size, end)) * request.percent / 100;
        let greedy = (size + 1..=end).find(|cut| sum(size, *cut) >= target);

        let allowed = self.allowed(size, request.boundary, request.keep);
        let cut = greedy
            .and_then(|greedy| allowed.iter().find(|cut| **cut >= greedy))
            .or_else(|| allowed.last());
        match cut {
            None => Plan::NoCut,
            Some(cut) if sum(size, *cut) == 0 => Plan::Empty,
            Some(cut) => Plan::Cut(*cut),
        }
    }

    /// Where a batch that begins at `size` may end, in order.
    pub fn allowed(&self, size: usize, boundary: Boundary, keep: usize) -> Vec<usize> {
        let end = self.messages.len();
        let starts = self.turn_starts();
        // The newest `keep` turns begin here; with fewer turns all of them are protected.
        let protected = match starts.len().checked_sub(keep) {
            Some(index) => starts.get(index).copied().unwrap_or(end),
            None => 0,
        };
        let complete = match boundary {
            Boundary::Turn => !self.newest_turn_is_open(),
            Boundary::Step => self.open_calls().is_empty(),
        };
        let mut allowed: Vec<usize> = (size + 1..end)
            .filter(|cut| match boundary {
                Boundary::Turn => self.is_turn_start(*cut),
                Boundary::Step => self.is_group_start(*cut),
            })
            .filter(|cut| *cut <= protected)
            .collect();
        if keep == 0 && complete {
            allowed.push(end);
        }
        if allowed.is_empty() && keep <= 1 && self.is_one_turn(size) {
            allowed = self.steps_inside(size);
        }
        allowed
    }

    fn is_one_turn(&self, size: usize) -> bool {
        !(size + 1..self.messages.len()).any(|position| self.is_turn_start(position))
    }

    /// Assistant messages before which the batch holds at least one whole assistant group.
    fn steps_inside(&self, size: usize) -> Vec<usize> {
        (size + 1..self.messages.len())
            .filter(|cut| self.messages[*cut].role == "assistant")
            .filter(|cut| {
                (size..*cut).any(|start| {
                    self.messages[start].role == "assistant" && self.group_end(start) <= *cut
                })
            })
            .collect()
    }

    /// What the model is shown while this summary stands for the first `size` positions.
    pub fn render(&self, size: usize, summary: Option<&str>) -> Vec<Shown> {
        let mut shown: Vec<Shown> = self
            .instructions
            .iter()
            .map(|raw| Shown::Stored(raw.clone()))
            .collect();
        let carried = self.carried(size);
        let next = carried.first().copied().unwrap_or(size);
        if let Some(summary) = summary {
            let text = format!("[Summary of previous conversation]\n\n{summary}");
            shown.push(Shown::Made(json!({"role": "user", "content": text})));
            let starts_with_assistant = self
                .messages
                .get(next)
                .is_some_and(|message| message.role == "assistant");
            if !starts_with_assistant {
                shown.push(Shown::Made(json!({
                    "role": "assistant",
                    "content": "Understood. I have the context from our earlier conversation.",
                })));
            }
        }
        for position in carried {
            shown.push(Shown::Stored(self.messages[position].raw.clone()));
        }
        for position in size..self.messages.len() {
            shown.push(Shown::Stored(self.messages[position].raw.clone()));
            let last_of_group = self
                .messages
                .get(position + 1)
                .is_none_or(|m| m.role != "tool");
            if last_of_group && position + 1 < self.messages.len() {
                for id in self.unanswered(self.group_of(position)) {
                    shown.push(Shown::Made(json!({
                        "role": "tool",
                        "tool_call_id": id,
                        "content": "[no result was recorded for this call]",
                    })));
                }
            }
        }
        shown
    }

    fn group_of(&self, position: usize) -> usize {
        (0..=position)
            .rev()
            .find(|start| self.is_group_start(*start))
            .unwrap_or(0)
    }

    /// The user messages behind the pointer that opened the turn the tail is part of.
    fn carried(&self, size: usize) -> Vec<usize> {
        let end = self.messages.len();
        if size == 0 || (size < end && self.is_turn_start(size)) {
            return Vec::new();
        }
        if size == end && !self.newest_turn_is_open() {
            return Vec::new();
        }
        let start = (0..size)
            .rev()
            .find(|p| self.is_turn_start(*p))
            .unwrap_or(0);
        (start..size)
            .take_while(|position| self.messages[*position].role == "user")
            .collect()
    }
}

#[derive(Deserialize)]
struct Shallow<'a> {
    role: String,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
    #[serde(default)]
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct CallId {
    id: String,
}

impl Message {
    pub fn read(raw: &str) -> Self {
        let shallow: Shallow<'_> = serde_json::from_str(raw).expect("a message of a test");
        let content = shallow.content.map_or(Value::Null, |content| {
            serde_json::from_str(content.get()).expect("the content of a test's message")
        });
        let calls: Vec<CallId> = shallow.tool_calls.map_or_else(Vec::new, |calls| {
            serde_json::from_str(calls.get()).expect("the calls of a test's message")
        });
        let calls_length = match shallow.tool_calls {
            Some(value) if !calls.is_empty() => units(&without_white_space(value.get())),
            _ => 0,
        };
        let empty = match &content {
            Value::String(text) => text.is_empty(),
            Value::Array(parts) => parts.is_empty(),
            _ => true,
        };
        Self {
            says: shallow.role == "assistant" && calls.is_empty() && !empty,
            role: shallow.role,
            length: content_length(&content) + calls_length,
            calls: calls.into_iter().map(|call| call.id).collect(),
            answers: shallow.tool_call_id,
            raw: raw.to_owned(),
        }
    }
}

fn content_length(content: &Value) -> usize {
    match content {
        Value::String(text) => units(text),
        Value::Array(parts) => parts.iter().map(part_length).sum(),
        _ => 0,
    }
}

fn part_length(part: &Value) -> usize {
    ["text", "refusal"]
        .iter()
        .find_map(|name| part[*name].as_str())
        .map_or(PART, units)
}

pub fn units(text: &str) -> usize {
    text.encode_utf16().count()
}

/// A JSON text without the white space between its tokens.
pub fn without_white_space(json: &str) -> String {
    let mut kept = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for c in json.chars() {
        if in_string {
            kept.push(c);
            if escaped {
                escaped = false;
            } else if c == '\\' {
                escaped = true;
            } else if c == '"' {
                in_string = false;
            }
        } else if !c.is_ascii_whitespace() {
            in_string = c == '"';
            kept.push(c);
        }
    }
    kept
}
