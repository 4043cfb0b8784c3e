//! An agent's loop: sends tasks as turns, runs the tools that the model calls, and sends their results until it is done.
//!
//! ```text
//! cargo run --example agent -- --url http://127.0.0.1:8080 --folder docs --tasks tasks.txt
//! ```
//!
//! It keeps no history: every request holds what is new. What is kept, what the model is shown of it, and what happens
//! when that becomes too long is the service's. `docs/agent-loop.md` shows a run.

#![expect(
    clippy::indexing_slicing,
    reason = "an index into JSON that is not there gives null"
)]

mod tools;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use clap::Parser;
use reqwest::{Client, Response};
use serde_json::{Value, json};

use tools::Tools;

/// A result of this program, which stops at the first thing that is not as it should be.
type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const INSTRUCTIONS: &str = "You answer questions about the notes in a folder. Use the tools to read them. \
                            Answer in one sentence.";
/// Answers of the model that one task may take.
const STEPS: usize = 12;

/// An agent with three harmless tools.
#[derive(Parser)]
struct Options {
    /// Where the service is.
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// A file with a task a line. "!add Add 2 and 3." demands that the first answer calls the tool `add`.
    #[arg(long)]
    tasks: PathBuf,
    /// Wait for whole answers instead of printing them as they come.
    #[arg(long)]
    whole: bool,
    /// The longest answer, in tokens.
    #[arg(long, default_value_t = 1_000)]
    max_tokens: u32,
    #[command(flatten)]
    tools: Tools,
}

struct Agent {
    web: Client,
    session: String,
    options: Options,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    // The client wants one to be named. An error says that one is.
    drop(rustls::crypto::ring::default_provider().install_default());
    let options = Options::parse();
    let tasks = std::fs::read_to_string(&options.tasks)?;
    let agent = Agent::start(options).await?;
    for task in tasks.lines().filter(|line| !line.trim().is_empty()) {
        agent.work(task).await?;
    }
    Ok(())
}

impl Agent {
    async fn start(options: Options) -> Outcome<Self> {
        let web = Client::builder().no_proxy().build()?;
        let body = json!({"messages": [{"role": "system", "content": INSTRUCTIONS}]});
        let request = web.post(format!("{}/sessions", options.url)).json(&body);
        let session: Value = sound(request.send().await?).await?.json().await?;
        let id = session["id"].as_str().ok_or("the session has no id")?;
        println!("session {id}");
        Ok(Self {
            web,
            session: format!("{}/sessions/{id}", options.url),
            options,
        })
    }

    /// The loop: a turn, the tools that it calls, a turn with their results, and so on.
    async fn work(&self, line: &str) -> Outcome<()> {
        let demand = line.strip_prefix('!').and_then(|rest| rest.split_once(' '));
        let (mut tool, task) = demand.map_or((None, line), |(tool, task)| (Some(tool), task));
        println!("\n> {task}");
        let mut messages = vec![json!({"role": "user", "content": task})];
        for _ in 0..STEPS {
            let turn = self.turn(&messages, tool.take()).await?;
            report(&turn);
            if turn["status"] == "completed" {
                return Ok(());
            }
            let calls = newest(&turn)["tool_calls"].as_array().into_iter().flatten();
            messages = calls.map(|call| self.options.tools.answer(call)).collect();
        }
        Err(format!("not done after {STEPS} answers").into())
    }

    async fn turn(&self, messages: &[Value], tool: Option<&str>) -> Outcome<Value> {
        let mut parameters = json!({"max_tokens": self.options.max_tokens});
        if let Some(name) = tool {
            parameters["tool_choice"] = json!({"type": "function", "function": {"name": name}});
        }
        let body = json!({
            "messages": messages,
            "tools": self.options.tools.definitions(),
            "parameters": parameters,
            "stream": !self.options.whole,
        });
        let request = self.web.post(format!("{}/turns", self.session)).json(&body);
        let answer = sound(request.send().await?).await?;
        if !self.options.whole {
            return read_stream(answer).await;
        }
        let turn: Value = answer.json().await?;
        if let Some(said) = newest(&turn)["content"].as_str() {
            println!("{said}");
        }
        Ok(turn)
    }
}

/// The answer, or what the service says is wrong.
async fn sound(answer: Response) -> Outcome<Response> {
    if answer.status().is_success() {
        return Ok(answer);
    }
    Err(format!("{}: {}", answer.status(), answer.text().await?).into())
}

/// Prints the answer as it comes, and gives the turn that stands at its end.
async fn read_stream(mut answer: Response) -> Outcome<Value> {
    let mut received = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        received.extend_from_slice(&piece);
        while let Some(end) = received.windows(2).position(|two| two == b"\n\n") {
            let frame = String::from_utf8(received.drain(..end + 2).collect())?;
            let line = |name| frame.lines().find_map(|line| line.strip_prefix(name));
            let data = serde_json::from_str(line("data: ").unwrap_or("null"))?;
            if let Some(turn) = take_event(line("event: ").unwrap_or_default(), data)? {
                return Ok(turn);
            }
        }
    }
    Err("the stream ended before the turn".into())
}

fn take_event(kind: &str, data: Value) -> Outcome<Option<Value>> {
    match kind {
        "message.delta" => {
            print!("{}", data["delta"]["content"].as_str().unwrap_or_default());
            std::io::stdout().flush()?;
        }
        "turn.restarted" => println!("  [it was too long: it is sent once more, made smaller]"),
        "turn.completed" => {
            let said = newest(&data)["content"].as_str().unwrap_or_default();
            print!("{}", if said.is_empty() { "" } else { "\n" });
            return Ok(Some(data));
        }
        "turn.failed" => return Err(format!("the turn failed: {data}").into()),
        _ => {}
    }
    Ok(None)
}

/// The message that came last: the model's.
fn newest(turn: &Value) -> &Value {
    let last = turn["messages"].as_array().and_then(|all| all.last());
    last.map_or(&Value::Null, |last| &last["message"])
}

fn report(turn: &Value) {
    let (status, usage) = (turn["status"].as_str().unwrap_or_default(), &turn["usage"]);
    let (read, written) = (&usage["prompt_tokens"], &usage["completion_tokens"]);
    println!(
        "  [{status}: dispatch {}, {read} tokens read, {written} written]",
        turn["dispatch"]
    );
    if let Some(made) = turn["compaction"].as_object() {
        println!(
            "  [compaction {}: trigger {}, method {}, {} characters became {}]",
            made["version"],
            made["trigger"],
            made["method"],
            made["batchLength"],
            made["summaryLength"]
        );
    }
}
