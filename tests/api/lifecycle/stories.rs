//! Sessions to which everything has been done, and all that can be read of one.

use serde_json::{Value, json};

use crate::support::Http;
use crate::support::messages::{assistant, calls, result, system, user};

/// Rolls the same numbers each time.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Makes a session and does `steps` things to it, of those that the service allows; its id and those of its forks.
pub async fn tell(http: &Http, dice: &mut Dice, steps: usize) -> Vec<String> {
    let body = json!({
        "title": "Ünïcode \u{0} and \u{1F980}",
        "metadata": {"customer": "42", "n": 1.50, "deep": {"a": [1, 2]}},
        "pruning": {"enabled": true, "budgetTokens": 300, "protectRecentTurns": 0, "maxToolResultBytes": 200, "keepHeadBytes": 50, "keepTailBytes": 50},
        "retentionDays": 12,
        "messages": [{"role": "system", "content": "be brief"}],
    });
    let mut ids = vec![http.create(&body).await];
    for step in 0..steps {
        let which = dice.below(ids.len() as u64);
        let id = ids[usize::try_from(which).expect("an index")].clone();
        if let Some(fork) = act(http, dice, &id, step).await {
            ids.push(fork);
        }
    }
    ids
}

/// One thing. What the service refuses (409, say) is no matter.
async fn act(http: &Http, dice: &mut Dice, id: &str, step: usize) -> Option<String> {
    let length = usize::try_from(20 + dice.below(900)).expect("a length");
    let text = format!("s{step} \u{e9} {}", "words ".repeat(length / 6));
    match dice.below(27) {
        0..=5 => {
            let array = format!(
                "[{},\n {}]",
                user(&text),
                assistant("a\u{2028}nd \\ \" 1e2")
            );
            http.append_raw(id, &array).await.expect(201);
        }
        6..=8 => {
            let array = [calls(&["c1", "c2"], 30), result("c1", &text)].join(",");
            http.append_raw(id, &format!("[{array}]")).await.expect(201);
        }
        // Refused if no such call is open.
        9..=10 => drop(
            http.append_raw(id, &format!("[{}]", result("c2", &text)))
                .await,
        ),
        11 => drop(http.append(id, &[system(&text)]).await),
        12..=14 => {
            let body = json!({"compactCount": 10 + dice.below(80), "boundary": "step", "keepRecentTurns": dice.below(2)});
            drop(http.compact(id, &body).await);
        }
        15..=16 => drop(
            http.post(&format!("/sessions/{id}/context"), &json!({}))
                .await,
        ),
        17 => {
            let last = http.session(id).await["lastSeq"].as_u64().unwrap_or(0);
            drop(http.rewind(id, last.saturating_sub(dice.below(4))).await);
        }
        18 => drop(http.restore(id, dice.below(3)).await),
        19 => {
            let history = http.history(id).await;
            let at = usize::try_from(dice.below(history.len().max(1) as u64)).expect("an index");
            if let Some(item) = history.get(at) {
                drop(http.erase(id, &item.id).await);
            }
        }
        20 => {
            let history = http.history(id).await;
            let mut users = history
                .iter()
                .filter(|item| item.message.get().contains("\"user\""));
            if let Some(item) = users.next_back() {
                drop(http.replace(id, &item.id, &user("edited")).await);
            }
        }
        21..=24 => append_items(http, id, step, &text).await,
        25 => {
            let path = format!("/v1/conversations/{id}/items");
            let list = http
                .get(&format!("{path}?limit=4"))
                .await
                .expect(200)
                .json();
            let at = usize::try_from(dice.below(4)).expect("an index");
            if let Some(item) = list["data"][at]["id"].as_str() {
                drop(http.delete(&format!("{path}/{item}")).await);
            }
        }
        _ => {
            let body = json!({"title": "a fork"});
            let fork = http.fork(id, &body).await.expect(201).json();
            return fork["id"].as_str().map(str::to_owned);
        }
    }
    None
}

/// An answer as the items that it consists of, with one result, and something that no context shows.
async fn append_items(http: &Http, id: &str, step: usize, text: &str) {
    let items = json!([
        {"type": "reasoning", "id": format!("rs_{step}"), "summary": [], "encrypted_content": text},
        {"role": "assistant", "content": [{"type": "output_text", "text": text, "annotations": []}]},
        {"type": "function_call", "call_id": format!("i{step}"), "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": format!("j{step}"), "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": format!("i{step}"), "output": text},
        {"type": "something_new", "text": text},
    ]);
    let path = format!("/v1/conversations/{id}/items");
    // A fork's items have the ids of the session's, so the same step may be refused there.
    drop(http.post(&path, &json!({ "items": items })).await);
}

/// Everything that can be read of a session, as the bytes that come; `shown` stands for its id.
pub async fn everything(http: &Http, id: &str, shown: &str) -> Vec<(String, String)> {
    let mut paths = vec![
        String::new(),
        "/messages?limit=1000".to_owned(),
        "/compactions?limit=1000".to_owned(),
        "/dispatches?limit=1000".to_owned(),
        "/context".to_owned(),
        "/context?format=anthropic".to_owned(),
        "/stats".to_owned(),
        "/turns".to_owned(),
        "/items".to_owned(),
    ];
    let session = http.session(id).await;
    assert!(session["lastSeq"].as_u64() < Some(1_000), "one page");
    let list = format!("/sessions/{id}/dispatches?limit=1000");
    let dispatches = http.get(&list).await.expect(200).json();
    for dispatch in dispatches["data"].as_array().expect("a list") {
        let n = dispatch["n"].as_u64().or(dispatch["dispatch"].as_u64());
        paths.push(format!("/dispatches/{}", n.expect("a number")));
    }
    let mut all = Vec::new();
    for path in paths {
        let address = match path.as_str() {
            "/items" => format!("/v1/conversations/{id}/items?limit=100&order=asc"),
            _ => format!("/sessions/{id}{path}"),
        };
        let reply = http.get(&address).await;
        let body = String::from_utf8(reply.body.to_vec()).expect("UTF-8");
        let body = stable(&body.replace(id, shown));
        all.push((path, format!("{} {body}", reply.status)));
    }
    all
}

/// Refusals name the request, which is another each time.
fn stable(body: &str) -> String {
    match serde_json::from_str::<Value>(body) {
        Ok(Value::Object(mut problem)) if problem.contains_key("requestId") => {
            problem.remove("requestId");
            Value::Object(problem).to_string()
        }
        _ => body.to_owned(),
    }
}
