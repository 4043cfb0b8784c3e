//! Random sessions of an agent: parallel and interrupted calls, ids used again, files read again and in
//! parts, failures, pictures, scripts of all kinds, reasoning in every spelling, instructions that come late.

use serde_json::{Value, json};

use super::talk::{calls, lines};
use crate::support::messages::{assistant, result, system, user};
use crate::support::{History, messages};

/// Numbers that are the same for the same seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % end as u64).expect("a small number")
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

const PICTURE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// A session as it grows.
pub struct Story {
    pub dice: Dice,
    pub history: History,
    number: usize,
}

impl Story {
    pub fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            history: History::default(),
            number: 0,
        }
    }

    /// So many more messages.
    pub fn go_on(&mut self, count: usize) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..count {
            let message = self.message();
            self.history.push(&message);
            all.push(message);
        }
        all
    }

    fn message(&mut self) -> String {
        self.number += 1;
        let open = self.history.open_calls();
        if !open.is_empty() && self.dice.below(12) > 0 {
            let id = &open[self.dice.below(open.len())];
            return self.result(id);
        }
        let number = self.number;
        match self.dice.below(14) {
            0..=1 => user(&format!("Request {number}: 次は何ですか? and so on")),
            2 => json!({"role": "user", "content": [
                {"type": "text", "text": format!("see {number}")},
                {"type": "image_url", "image_url": {"url": PICTURE}},
            ]})
            .to_string(),
            3 => assistant(&format!("Step {number} is done. שלום 👩‍👩‍👧")),
            4 => self.thinking(),
            5 if number > 20 => system(&format!("Rule {number}: be brief.")),
            _ => self.calling(),
        }
    }

    fn thinking(&mut self) -> String {
        let thought = lines("hm", 40 + self.dice.below(900));
        let name = self
            .dice
            .pick(&["reasoning_content", "reasoning", "thinking"]);
        let mut message = json!({"role": "assistant", "content": format!("So: {}", self.number)});
        if self.dice.below(2) == 0 {
            message[name] = json!(thought);
        } else {
            message["content"] = json!([
                {"type": "thinking", "thinking": thought, "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "b3BhcXVl"},
                {"type": "text", "text": format!("So: {}", self.number)},
            ]);
        }
        message.to_string()
    }

    fn calling(&mut self) -> String {
        let arguments: Vec<(String, &str, String)> = (0..=self.dice.below(3))
            .map(|at| {
                let name = self.dice.pick(&["read", "read", "run", "search"]);
                // Ids are used again all the time.
                (format!("call_{at}"), name, self.arguments(name))
            })
            .collect();
        let of: Vec<(&str, &str, &str)> = arguments
            .iter()
            .map(|(id, name, arguments)| (id.as_str(), *name, arguments.as_str()))
            .collect();
        let mut message = json!({"role": "assistant", "content": null, "tool_calls": calls(&of), "x_vendor": 1.0});
        if self.dice.below(4) == 0 {
            message["reasoning_content"] = json!(lines("why", 200 + self.dice.below(600)));
        }
        message.to_string()
    }

    fn arguments(&mut self, name: &str) -> String {
        let file = self.dice.pick(&["a", "b", "c", "d"]);
        match (name, self.dice.below(6)) {
            (_, 0) => "{broken".to_owned(),
            ("read", 1) => json!({"path": file, "offset": 100 * self.dice.below(3)}).to_string(),
            ("read", _) => json!({"path": file}).to_string(),
            ("run", _) => json!({"command": format!("make {file}")}).to_string(),
            _ => json!({"query": file, "limit": 10}).to_string(),
        }
    }

    fn result(&mut self, id: &str) -> String {
        let tag = self.dice.pick(&["x", "y", "z"]);
        let bytes = match self.dice.below(6) {
            0 => self.dice.below(60),
            1..=3 => 300 + self.dice.below(1_500),
            _ => 4_000 + self.dice.below(9_000),
        };
        let text = match self.dice.below(9) {
            0 => format!("error: no such file {tag}"),
            1 => "漢字かな交じり文。\n".repeat(1 + bytes / 28),
            2 => messages::padded(tag, bytes.max(1)),
            // The same again and again.
            3..=4 => lines(tag, 2_000),
            _ => lines(&format!("{tag}{}", self.number), bytes),
        };
        let content: Value = match self.dice.below(8) {
            0 => json!([{"type": "text", "text": text}]),
            1 => json!([
                {"type": "text", "text": text},
                {"type": "image_url", "image_url": {"url": PICTURE}},
            ]),
            _ => return result(id, &text),
        };
        json!({"role": "tool", "tool_call_id": id, "content": content}).to_string()
    }
}
