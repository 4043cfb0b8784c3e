//! `Idempotency-Key`: a request that is made again is done once, on every route that takes a POST, across
//! replicas, crashes and failures of a model, until its answer expires or what it shows is taken away.

mod every_post;
mod keys;
mod races;
mod taken_away;
mod turns;
mod work;

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::support::backend::TestDatabase;
use crate::support::model::{COMPACT, MAIN};
use crate::support::stream_model::{Script, StreamModel};
use crate::support::{Backend, Http, Reply, TestApp};

pub const SUMMARY: &str =
    "SUMMARY of what was said: decisions, findings, files and open problems of the conversation.";

/// Posts exactly this body under a key.
pub async fn keyed(http: &Http, path: &str, key: &str, body: &str) -> Reply {
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", key),
    ];
    http.send(Method::POST, path, &headers, Some(body.to_owned().into()))
        .await
}

/// That an answer is the first one, given again.
#[track_caller]
pub fn is_repeated(again: &Reply, first: &Reply) {
    assert_eq!(again.status, first.status, "{again}");
    assert_eq!(
        again.header("idempotency-replayed"),
        Some("true"),
        "{again}"
    );
    assert_eq!(first.header("idempotency-replayed"), None, "{first}");
    for name in ["location", "etag", "content-type"] {
        assert_eq!(again.header(name), first.header(name), "{name} of {again}");
    }
    assert!(again.body == first.body, "{again}\n\nfirst:\n{first}");
}

/// A body of an append or a turn.
pub fn messages(texts: &[String]) -> String {
    format!("{{\"messages\":[{}]}}", texts.join(","))
}

/// The stored messages as texts.
pub async fn stored(http: &Http, id: &str) -> Vec<String> {
    let items = http.history(id).await;
    items
        .iter()
        .map(|item| item.message.get().to_owned())
        .collect()
}

/// How many answers are kept.
pub async fn kept_answers(app: &TestApp) -> i64 {
    const COUNT: &str = "SELECT count(*) FROM idempotency";
    let url = &app.database.url;
    let count = match app.database.backend {
        Backend::Sqlite => {
            let mut conn = SqliteConnection::connect(url).await.expect("the file");
            sqlx::query_scalar(COUNT).fetch_one(&mut conn).await
        }
        Backend::Postgres => {
            let mut conn = PgConnection::connect(url).await.expect("the database");
            sqlx::query_scalar(COUNT).fetch_one(&mut conn).await
        }
    };
    count.expect("the table is there")
}

/// All sessions, newest first.
pub async fn sessions(http: &Http) -> Vec<Value> {
    let list = http.get("/sessions?limit=1000").await.expect(200).json();
    list["data"].as_array().expect("a list").clone()
}

/// Everything that a client can read of all sessions.
pub async fn everything(http: &Http) -> Vec<String> {
    let mut read = vec![http.get("/sessions?limit=1000").await.expect(200)];
    for session in sessions(http).await {
        let id = session["id"].as_str().expect("an id");
        for part in ["messages", "dispatches", "turns", "compactions", "stats"] {
            read.push(
                http.get(&format!("/sessions/{id}/{part}"))
                    .await
                    .expect(200),
            );
        }
    }
    let text = |reply: &Reply| String::from_utf8_lossy(&reply.body).into_owned();
    read.iter().map(text).collect()
}

/// A service, and the model that it asks. Summaries come from a model of another name.
pub struct Stage {
    pub model: StreamModel,
    pub app: TestApp,
}

impl Stage {
    pub async fn new(backend: Backend) -> Self {
        let model = StreamModel::start().await;
        model.script(COMPACT, [Script::Text(SUMMARY.to_owned())]);
        model.script(MAIN, [Script::Text("Ferns.".to_owned())]);
        let database = Arc::new(TestDatabase::create(backend).await);
        let app = TestApp::on(database, variables(&model)).await;
        Self { model, app }
    }
}

/// Settings for this model, with another name for the one that summarises.
pub fn variables(model: &StreamModel) -> Vec<(String, String)> {
    let mut all = model.variables();
    all.push(("PRECIS_COMPACTION_MODEL".to_owned(), COMPACT.to_owned()));
    all
}

/// A session of turns that a compaction is worth.
pub async fn long_session(http: &Http) -> String {
    let id = http.create(&json!({"title": "long"})).await;
    http.append(&id, &crate::support::messages::turns(6, 400))
        .await;
    id
}
