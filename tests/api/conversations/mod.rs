//! `/v1`: conversations, their items and stateless compaction, as the official clients ask for them.

mod compact;
mod compaction;
mod crud;
mod errors;
mod list;
mod mixed;
mod pop;
mod retries;
mod types;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::support::TestApp;

/// A list of items, each as the bytes that came.
#[derive(Debug, Deserialize)]
struct List {
    object: String,
    data: Vec<Box<RawValue>>,
    first_id: String,
    last_id: String,
    has_more: bool,
}

impl List {
    fn ids(&self) -> Vec<String> {
        let id = |item: &RawValue| {
            let item: Value = serde_json::from_str(item.get()).expect("an item");
            item["id"]
                .as_str()
                .expect("every item has an id")
                .to_owned()
        };
        self.data.iter().map(|item| id(item)).collect()
    }

    fn texts(&self) -> Vec<String> {
        self.data.iter().map(|item| item.get().to_owned()).collect()
    }
}

async fn create(app: &TestApp, body: &Value) -> String {
    let created = app.post("/v1/conversations", body).await.expect(200).json();
    created["id"].as_str().expect("an id").to_owned()
}

async fn append(app: &TestApp, conversation: &str, items: &[String]) -> List {
    let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
    let path = format!("/v1/conversations/{conversation}/items");
    let reply = app.post_raw(&path, body).await.expect(200);
    serde_json::from_slice(&reply.body).expect("a list")
}

async fn page(app: &TestApp, conversation: &str, query: &str) -> List {
    let path = format!("/v1/conversations/{conversation}/items?{query}");
    let reply = app.get(&path).await.expect(200);
    serde_json::from_slice(&reply.body).expect("a list")
}

/// Every item, oldest first, page by page.
async fn all(app: &TestApp, conversation: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut query = "order=asc&limit=100".to_owned();
    loop {
        let list = page(app, conversation, &query).await;
        texts.extend(list.texts());
        if !list.has_more {
            return texts;
        }
        query = format!("order=asc&limit=100&after={}", list.last_id);
    }
}

fn user(text: &str) -> String {
    json!({"type": "message", "role": "user", "content": text}).to_string()
}

fn says(text: &str) -> String {
    json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}]}).to_string()
}

fn call(id: &str) -> String {
    json!({"type": "function_call", "call_id": id, "name": "look", "arguments": "{\"p\":1}"})
        .to_string()
}

fn output(id: &str, text: &str) -> String {
    json!({"type": "function_call_output", "call_id": id, "output": text}).to_string()
}

/// The context's messages as they are sent.
async fn context(app: &TestApp, conversation: &str) -> Vec<Value> {
    let context = app.context(conversation).await;
    let read = |raw: &RawValue| serde_json::from_str(raw.get()).expect("a message");
    context.messages.iter().map(|raw| read(raw)).collect()
}
