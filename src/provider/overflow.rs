//! Which refusals mean "the prompt is too long".
//!
//! There is no status for it and hardly a common code: every provider has its own words, and
//! proxies wrap them in a list, in a string of JSON or in the text of a Python exception. So the
//! error is read, in this order:
//!
//! 1. status 429, of the answer or written in its body: a rate limit, whatever it says of tokens;
//! 2. a code that means overflow and nothing else;
//! 3. the words of a rate limit, a quota or missing credit ("tokens per minute" is no window);
//! 4. the words of an overflow.
//!
//! Taking a rate limit for an overflow is the costlier mistake (it compacts a session and then
//! meets the same limit), taking some other refusal for one costs a needless compaction, and
//! missing one leaves a session that cannot go on. Hence the order, and hence phrases rather
//! than words: "too long" alone could be a tool's name.
//!
//! What is read: the members of error objects that hold codes and messages. What never is: the
//! text of a normal answer, the request as some servers echo it back, and what a message has in
//! quotation marks (there it repeats what it was sent). All of it within fixed bounds, because a
//! body is whatever a stranger sent.
//!
//! What does not belong here: what is done about an overflow.

use serde_json::{Map, Value};

/// What a refusal turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The prompt, or prompt and output cap together, exceed the model's context window.
    Overflow {
        /// Length of the prompt in the provider's tokens, where the error says so.
        prompt_tokens: Option<u64>,
        /// The window, or the limit for prompts, in tokens, where the error says so.
        window: Option<u64>,
    },
    /// Too many requests or tokens in a stretch of time, a quota used up, no credit left.
    RateLimit,
    /// Anything else, a normal answer included.
    Other,
}

/// Longest body that is looked into, in bytes. Errors are short; what is longer echoes a prompt.
pub const MAX_ERROR_BYTES: usize = 256 * 1024;

const MAX_DEPTH: u32 = 16;
const MAX_NODES: u32 = 512;
const MAX_TEXTS: usize = 32;
const MAX_TEXT_CHARS: usize = 2_000;
const MAX_CODE_CHARS: usize = 100;

/// Says what the refusal with this status and body is about.
///
/// With a status below 400 only a body that is an error as a whole counts (an `error` member
/// that is not empty, `"object": "error"` or `"type": "error"`), because some servers report
/// errors with status 200. Never fails: what cannot be read is [`Refusal::Other`].
#[must_use]
pub fn classify(status: u16, body: &[u8]) -> Refusal {
    if status == 429 {
        return Refusal::RateLimit;
    }
    Evidence::gather(status, body).verdict()
}

/// The HTTP status an error body names itself (`error.code`, `error.status`, `status_code`), if
/// it is one from 400 to 599: what the server meant when the answer's own status says 200.
#[must_use]
pub fn embedded_status(body: &[u8]) -> Option<u16> {
    Evidence::gather(200, body).outer_status
}

/// What was found in an error body.
#[derive(Debug, Default)]
struct Evidence {
    /// Lower case, letters and digits only.
    codes: Vec<String>,
    /// Lower case, without quotations, single spaces.
    texts: Vec<String>,
    /// The first status met, from the outside in.
    outer_status: Option<u16>,
    says_429: bool,
    prompt_tokens: Option<u64>,
    window: Option<u64>,
    nodes: u32,
}

impl Evidence {
    fn gather(status: u16, body: &[u8]) -> Self {
        let mut found = Self::default();
        if body.len() > MAX_ERROR_BYTES {
            return found;
        }
        match serde_json::from_slice::<Value>(body) {
            Ok(value) => {
                if status >= 400 || is_error(&value) {
                    found.walk(&value, 0);
                }
            }
            // Not JSON: the one-line texts of proxies. A page, or JSON that was cut off, may
            // hold anything, so it is left alone.
            Err(_) if status >= 400 => {
                let text = String::from_utf8_lossy(body);
                let text = text.trim();
                if !text.starts_with(['<', '{', '[']) {
                    found.read_text(text, 0);
                }
            }
            Err(_) => {}
        }
        found
    }

    fn walk(&mut self, value: &Value, depth: u32) {
        self.nodes += 1;
        if depth > MAX_DEPTH || self.nodes > MAX_NODES {
            return;
        }
        match value {
            Value::Object(members) => self.walk_object(members, depth),
            Value::Array(items) => {
                for item in items {
                    self.walk(item, depth + 1);
                }
            }
            Value::String(text) => self.read_text(text, depth),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn walk_object(&mut self, members: &Map<String, Value>, depth: u32) {
        // Two rounds, so that the status of an outer object is met before those inside it.
        for (name, value) in members {
            match name.as_str() {
                "code" | "type" | "__type" | "reason" | "status" | "status_code" | "statusCode"
                | "error_code" | "errorCode" | "error_type" | "errorType" => self.read_code(value),
                "n_prompt_tokens" => self.prompt_tokens = self.prompt_tokens.or(value.as_u64()),
                "n_ctx" => self.window = self.window.or(value.as_u64()),
                _ => {}
            }
        }
        for (name, value) in members {
            match name.as_str() {
                "error" | "errors" | "message" | "Message" | "msg" | "detail" | "details"
                | "description" | "error_message" | "errorMessage" | "error_description"
                | "error_msg" | "metadata" | "raw" | "innererror" | "inner_error" | "cause" => {
                    self.walk(value, depth + 1);
                }
                _ => {}
            }
        }
    }

    fn read_code(&mut self, value: &Value) {
        let status = match value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => {
                if text.chars().count() <= MAX_CODE_CHARS && self.codes.len() < MAX_TEXTS {
                    self.codes.push(
                        text.chars()
                            .filter(char::is_ascii_alphanumeric)
                            .map(|c| c.to_ascii_lowercase())
                            .collect(),
                    );
                }
                text.parse().ok()
            }
            _ => None,
        };
        if let Some(status) = status.and_then(|status| u16::try_from(status).ok())
            && (400..600).contains(&status)
        {
            self.says_429 |= status == 429;
            self.outer_status = self.outer_status.or(Some(status));
        }
    }

    fn read_text(&mut self, text: &str, depth: u32) {
        if depth > MAX_DEPTH || self.texts.len() >= MAX_TEXTS {
            return;
        }
        let text = text.trim();
        if text.starts_with('"')
            && let Ok(inner) = serde_json::from_str::<String>(text)
        {
            return self.read_text(&inner, depth + 1);
        }
        let mut said = text;
        let starts = [text.find('{'), text.find("[{")];
        for start in starts.into_iter().flatten() {
            let Some((before, inner)) = text.split_at_checked(start) else {
                continue;
            };
            if let Some(value) = leading_json(inner) {
                self.walk(&value, depth + 1);
            } else if let Some(inner) = python_message(inner) {
                self.read_text(inner, depth + 1);
            } else {
                continue;
            }
            said = before;
            break;
        }
        let said = plain(said);
        if !said.is_empty() && self.texts.len() < MAX_TEXTS {
            self.texts.push(said);
        }
    }

    fn verdict(&self) -> Refusal {
        if self.says_429 {
            return Refusal::RateLimit;
        }
        let by_code = self.codes.iter().any(|code| is_overflow_code(code));
        if !by_code
            && (self.codes.iter().any(|code| is_rate_code(code))
                || self.texts.iter().any(|text| speaks_of_rates(text)))
        {
            return Refusal::RateLimit;
        }
        let by_text = self.texts.iter().find(|text| speaks_of_overflow(text));
        if !by_code && by_text.is_none() {
            return Refusal::Other;
        }
        let numbers = by_text
            .or(self.texts.first())
            .map(|text| Numbers::read(text))
            .unwrap_or_default();
        let window = self.window.or(numbers.window);
        let prompt_tokens = self.prompt_tokens.or(numbers.prompt);
        Refusal::Overflow {
            prompt_tokens,
            window,
        }
    }
}

/// Whether a body that came with a success status is an error as a whole.
fn is_error(value: &Value) -> bool {
    match value {
        Value::Array(items) => items
            .first()
            .is_some_and(|first| first.is_object() && is_error(first)),
        Value::Object(members) => {
            members.get("error").is_some_and(says_something)
                || members
                    .get("object")
                    .is_some_and(|object| object == "error")
                || members.get("type").is_some_and(|kind| kind == "error")
        }
        _ => false,
    }
}

/// `"error": null` and the like are how some servers say that all went well.
pub(super) fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Number(number) => number.as_u64() != Some(0),
        Value::Bool(true) => true,
    }
}

/// The JSON object or list at the beginning of a text, whatever follows it.
fn leading_json(text: &str) -> Option<Value> {
    let first = serde_json::Deserializer::from_str(text)
        .into_iter::<Value>()
        .next()?
        .ok()?;
    says_something(&first).then_some(first)
}

/// The message inside a Python dictionary as an exception prints it:
/// `{'error': {'message': "…", …}}`.
fn python_message(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("'message': ")?;
    let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let rest = rest.strip_prefix(quote)?;
    let mut escaped = false;
    let end = rest.char_indices().find_map(|(at, c)| {
        let closes = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        closes.then_some(at)
    })?;
    rest.get(..end)
}

/// Where servers written in Python begin to repeat the request.
const ECHOES: [&str; 3] = ["'input':", "\"input\":", "input_value="];

/// A text in the shape the phrases below are written in: lower case, single spaces, straight
/// apostrophes, cut to a fixed length, without what it quotes.
fn plain(text: &str) -> String {
    let mut text = text;
    for echo in ECHOES {
        if let Some((before, _)) = text.split_once(echo) {
            text = before;
        }
    }
    let chars: Vec<char> = text
        .chars()
        .take(MAX_TEXT_CHARS)
        .map(|c| match c {
            '\u{2018}' | '\u{2019}' => '\'',
            '\u{201c}' | '\u{201d}' => '"',
            other => other.to_ascii_lowercase(),
        })
        .collect();
    let mut kept = String::with_capacity(chars.len());
    let mut rest = chars.as_slice();
    let mut before = ' ';
    while let Some((&c, after)) = rest.split_first() {
        rest = after;
        if matches!(c, '"' | '\'')
            && !before.is_alphanumeric()
            && let Some(close) = closing_quote(c, after)
        {
            rest = after.get(close + 1..).unwrap_or_default();
            before = c;
            kept.push(' ');
            continue;
        }
        before = c;
        kept.push(if c.is_whitespace() { ' ' } else { c });
    }
    let words: Vec<&str> = kept.split_whitespace().collect();
    words.join(" ")
}

/// Where the quotation ends. An apostrophe inside a word ("model's") ends none.
fn closing_quote(quote: char, text: &[char]) -> Option<usize> {
    text.iter().enumerate().find_map(|(at, &c)| {
        let follows = text.get(at + 1).copied().unwrap_or(' ');
        (c == quote && !follows.is_alphanumeric()).then_some(at)
    })
}

/// Codes that mean overflow and nothing else, as [`Evidence::read_code`] spells them.
fn is_overflow_code(code: &str) -> bool {
    const WHOLE: [&str; 6] = [
        "exceedcontextsizeerror",
        "promptistoolong",
        "prompttoolong",
        "inputtoolong",
        "contexttoolong",
        "tokenslimitreached",
    ];
    // Wrapped in a class name by proxies ("litellm.ContextWindowExceededError").
    const PART: [&str; 4] = [
        "contextlengthexceeded",
        "contextwindowexceeded",
        "contextlimitexceeded",
        "maxprompttokensexceeded",
    ];
    WHOLE.contains(&code) || PART.iter().any(|part| code.contains(part))
}

fn is_rate_code(code: &str) -> bool {
    const PART: [&str; 10] = [
        "ratelimit",
        "quota",
        "throttl",
        "resourceexhausted",
        "toomanyrequests",
        "insufficientbalance",
        "insufficientcredit",
        "insufficientfunds",
        "paymentrequired",
        "billing",
    ];
    PART.iter().any(|part| code.contains(part))
}

fn speaks_of_rates(text: &str) -> bool {
    const PHRASES: [&str; 28] = [
        "rate limit",
        "rate-limit",
        "rate_limit",
        "ratelimit",
        "per minute",
        "per-minute",
        "per min",
        "per hour",
        "per day",
        "per second",
        "tokens per ",
        "requests per ",
        "quota",
        "throttl",
        "too many requests",
        "please wait",
        "try again in ",
        "retry in ",
        "retry after",
        "resource_exhausted",
        "resource exhausted",
        "usage limit",
        "more credits",
        "credit balance",
        "insufficient credit",
        "insufficient balance",
        "can only afford",
        "billing",
    ];
    const WORDS: [&str; 4] = ["tpm", "rpm", "tpd", "rpd"];
    PHRASES.iter().any(|phrase| text.contains(phrase))
        || text
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(|word| WORDS.contains(&word))
}

/// How far apart the parts of a phrase may stand, in bytes.
const MAX_GAP: usize = 80;

/// The names of the window; anything said to exceed one of these is an overflow.
const WINDOW_NAMES: [&str; 13] = [
    "context length",
    "context window",
    "context size",
    "context limit",
    "model token limit",
    "model's token limit",
    "max_seq_len",
    "max_model_len",
    "maximum model length",
    "maximum input length",
    "maximum allowed input length",
    "maximum prompt length",
    "input token limit",
];

/// Phrases, each a sequence of parts that follow one another with little in between.
/// The comments name a server that says it; most are shared by many.
const PHRASES: [&[&str]; 45] = [
    // OpenAI and all that copy it: vLLM, OpenRouter, DeepSeek, Groq, Together, Mistral.
    &["maximum context length"],
    &["reduce the length of the messages"],
    &["reduce the length of the input"],
    &["reduce the length of your input"],
    &["reduce the length of the prompt"],
    &["reduce the length of either one"],
    // Anthropic, Vertex, Ollama, Fireworks.
    &["prompt is too long"],
    &["prompt too long"],
    &["prompt was too long"],
    &["context is too long"],
    &["conversation is too long"],
    &["messages are too long"],
    // Bedrock.
    &["input is too long"],
    &["inputs are too long"],
    &["too many input tokens"],
    &["input tokens exceeded"],
    &["number of input tokens exceeds"],
    // Gemini, Vertex.
    &["input token count", "exceeds the maximum"],
    &["input token count is", "supports up to"],
    // Copilot, llama.cpp, watsonx, Cerebras.
    &["prompt token count", "exceeds"],
    &["prompt tokens", "exceed", "limit"],
    &["number of input tokens", "cannot exceed"],
    &["current length is", "while limit is"],
    // Cohere.
    &["too many tokens", "tokens in the prompt", "cannot exceed"],
    &["too many tokens", "size limit exceeded"],
    // xAI.
    &["maximum prompt length is"],
    // TGI, Together.
    &["inputs` tokens", "must be <="],
    &["inputs` must have less than", "tokens"],
    &["inputs tokens", "must be <="],
    &["inputs must have less than", "tokens"],
    // LM Studio.
    &["greater than the context length"],
    &["context the overflows"],
    &["loaded with context length of only"],
    // SGLang, vLLM, MLC, TabbyAPI, TensorRT-LLM.
    &["longer than", "context length"],
    &["longer than", "model length"],
    &["larger than", "input length limit"],
    &["prompt length", "greater than", "max_seq_len"],
    &["prompt has", "tokens, but the configured context size is"],
    &["tokens in request more than max tokens allowed"],
    // DashScope, Zhipu.
    &["range of input length should be"],
    &["prompt exceeds max"],
    &["prompt 超长"],
    // GitHub Models: a limit per request, in tokens.
    &["request body too large", "max size:", "tokens"],
    // LiteLLM's class name in front of whatever the server said; and the plainest words of all.
    &["contextwindowexceeded"],
    &["context overflow"],
];

fn speaks_of_overflow(text: &str) -> bool {
    let names_window = PHRASES.iter().any(|phrase| follows(text, phrase))
        || WINDOW_NAMES
            .iter()
            .any(|name| follows(text, &["exceed", name]) || follows(text, &[name, "exceed"]));
    // The output cap alone can fill a window. No shorter prompt helps against that.
    names_window && !Numbers::read(text).output_fills_window()
}

/// Whether the parts occur in this order with at most [`MAX_GAP`] bytes between each two.
fn follows(text: &str, parts: &[&str]) -> bool {
    let Some((first, others)) = parts.split_first() else {
        return false;
    };
    text.match_indices(first).any(|(at, found)| {
        let mut end = at + found.len();
        others.iter().all(|part| {
            let Some(rest) = text.get(end..) else {
                return false;
            };
            match rest.find(part) {
                Some(gap) if gap <= MAX_GAP => {
                    end += gap + part.len();
                    true
                }
                _ => false,
            }
        })
    })
}

// Where counts stand: words a number follows (`AFTER`) or precedes (`BEFORE`), the surer ones
// first.

const PROMPT_AFTER: [&str; 24] = [
    "resulted in",
    "prompt is too long:",
    "exceed context limit:",
    "input token count (",
    "input token count is",
    "input token count of",
    "prompt token count of",
    "request input token count:",
    "request contains",
    "prompt contains",
    "prompt has",
    "request (",
    "the input (",
    "prompt (length",
    "prompt length",
    "current length is",
    "number of input tokens",
    "keep the first",
    "received",
    "requested tokens (",
    "requested:",
    "given:",
    "requested about",
    "you requested",
];

const PROMPT_BEFORE: [&str; 10] = [
    "of text input",
    "in the messages",
    "in your prompt",
    "in the prompt",
    "tokens from the input",
    "tokens in the messages",
    "tokens in your prompt",
    "`inputs` tokens",
    "input tokens",
    "prompt tokens",
];

const WINDOW_AFTER: [&str; 31] = [
    "maximum context length is",
    "maximum context length of",
    "maximum context length:",
    "maximum context length (",
    "maximum prompt length is",
    "context length is",
    "context length of",
    "context length (",
    "context size is",
    "context size (",
    "context size of",
    "context window of",
    "context window is",
    "context window limit (",
    "context window (",
    "context window:",
    "maximum model length of",
    "maximum input length (",
    "allowed input length of",
    "input length limit",
    "input length should be [1,",
    "max_seq_len",
    "max input tokens:",
    "max size:",
    "token limit:",
    "tokens limit",
    "tokens allowed (",
    "cannot exceed",
    "supports up to",
    "must be <=",
    "must have less than",
];

// Vaguer, so only where the others found nothing.
const WINDOW_AFTER_VAGUE: [&str; 5] = [
    "limit for this model is",
    "limit is",
    "limit of",
    "tokens allowed",
    ">",
];

const WINDOW_BEFORE: [&str; 2] = ["maximum context length", "maximum"];

const OUTPUT_BEFORE: [&str; 7] = [
    "output tokens",
    "in the output",
    "in the completion",
    "for the completion",
    "tokens for the completion",
    "tokens in the completion",
    "`max_new_tokens`",
];

const OUTPUT_AFTER: [&str; 4] = [
    "is too large:",
    "max_tokens (",
    "max_tokens:",
    "max_tokens=",
];

/// The counts a message mentions, all in tokens.
#[derive(Debug, Default)]
struct Numbers {
    prompt: Option<u64>,
    window: Option<u64>,
    /// What was asked for as output.
    output: Option<u64>,
}

impl Numbers {
    fn read(text: &str) -> Self {
        let after = |cues: &[&str]| cues.iter().find_map(|cue| number_after(text, cue));
        let before = |cues: &[&str]| cues.iter().find_map(|cue| number_before(text, cue));
        let window = after(&WINDOW_AFTER)
            .or_else(|| after(&WINDOW_AFTER_VAGUE))
            .or_else(|| before(&WINDOW_BEFORE));
        Self {
            prompt: before(&PROMPT_BEFORE)
                .or_else(|| after(&PROMPT_AFTER))
                // "a limit of 8192 input tokens" is one number in both places.
                .filter(|prompt| Some(*prompt) != window),
            window,
            output: before(&OUTPUT_BEFORE).or_else(|| after(&OUTPUT_AFTER)),
        }
    }

    fn output_fills_window(&self) -> bool {
        matches!((self.output, self.window), (Some(output), Some(window)) if output >= window)
    }
}

/// The number that stands right after one of the places where `cue` occurs.
fn number_after(text: &str, cue: &str) -> Option<u64> {
    const FILLERS: [&str; 7] = [
        "about ",
        "over ",
        "only ",
        "at least ",
        "approximately ",
        "(",
        "~",
    ];
    text.match_indices(cue).find_map(|(at, found)| {
        let mut rest = text.get(at + found.len()..)?.trim_start();
        while let Some(shorter) = FILLERS.iter().find_map(|filler| rest.strip_prefix(filler)) {
            rest = shorter.trim_start();
        }
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && !matches!(c, ',' | '_' | '.'))
            .unwrap_or(rest.len());
        if rest.get(end..)?.starts_with(char::is_alphabetic) {
            return None; // "8k", "1.4s"
        }
        whole_number(rest.get(..end)?.trim_end_matches(['.', ',', '_']))
    })
}

/// The number that stands right before one of the places where `cue` occurs.
fn number_before(text: &str, cue: &str) -> Option<u64> {
    text.match_indices(cue).find_map(|(at, _)| {
        let head = text.get(..at)?.strip_suffix(' ')?;
        let head = head.strip_suffix(" tokens").unwrap_or(head);
        let start = head
            .char_indices()
            .rev()
            .take_while(|(_, c)| c.is_ascii_digit() || matches!(c, ',' | '_' | '.'))
            .last()?
            .0;
        whole_number(head.get(start..)?)
    })
}

/// Digits, perhaps grouped in threes; above 0.
fn whole_number(digits: &str) -> Option<u64> {
    let mut groups = digits.split([',', '_']);
    let first = groups.next()?;
    let mut all = first.to_owned();
    for group in groups {
        if group.len() != 3 || first.len() > 3 {
            return None;
        }
        all.push_str(group);
    }
    all.parse().ok().filter(|number| *number > 0)
}
