//! Does everything that there is to do, so that every statement is sent once.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use precis::config::Settings;
use precis::service::{ImportRequest, PruneRequest, Selection};
use precis::upkeep;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::app::base_variables;
use crate::support::messages::{calls, padded, result, turns, user};
use crate::support::model::{Answer, MAIN};
use crate::support::{Http, Reply, ScriptedModel, TestApp};

/// The server's own key.
pub const ADMIN: &str = "an-admin-key-for-these-tests";

/// Settings under which more is done than without: limits that are measured, and work that nobody asks for.
pub const VARIABLES: &[(&str, &str)] = &[
    ("PRECIS_ADMIN_KEY", ADMIN),
    ("PRECIS_TENANTS__STORED_BYTES", "1000000000"),
    ("PRECIS_TENANTS__CONCURRENT_COMPACTIONS", "100"),
    ("PRECIS_TENANTS__CONCURRENT_TURNS", "100"),
    ("PRECIS_TENANTS__REQUESTS_PER_SECOND", "100000"),
    ("PRECIS_RETENTION__DAYS", "30"),
];

pub struct Walk<'a> {
    http: Http,
    app: &'a TestApp,
    model: &'a ScriptedModel,
    /// Operations that were asked for: method and path, as the document names them.
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Walk<'a> {
    pub fn new(app: &'a TestApp, model: &'a ScriptedModel) -> Self {
        Self {
            http: app.with_key(ADMIN),
            app,
            model,
            asked: RefCell::default(),
        }
    }

    /// All of it. Every operation of the document is asked for, or this fails.
    pub async fn go(&self) {
        self.model.script(MAIN, [Answer::Text(padded("Yes. ", 80))]);
        self.agents().await;
        self.admin().await;
        let id = self.session().await;
        self.lists(&id).await;
        self.events(&id).await;
        self.turns(&id).await;
        self.rewrites(&id).await;
        self.automatic().await;
        self.conversations().await;
        self.operations().await;
        self.upkeep(&id).await;
        self.ends(&id).await;
        let document: Value = serde_json::from_str(&precis::http::openapi_json()).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        let all = paths.iter().flat_map(|(path, item)| {
            let methods = item.as_object().expect("operations").keys();
            methods.map(move |method| format!("{} {path}", method.to_ascii_uppercase()))
        });
        let all: BTreeSet<String> = all.collect();
        assert_eq!(
            *self.asked.borrow(),
            all,
            "the operations that were asked for"
        );
    }

    /// One request: `path` as the document has it, with what stands for its parameters, and a query behind it.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        parts: &[&str],
        query: &str,
        body: Option<Value>,
    ) -> Reply {
        self.asked.borrow_mut().insert(format!("{method} {path}"));
        let mut parts = parts.iter();
        let filled = path.split('/').map(|part| match part.strip_prefix('{') {
            Some(_) => *parts.next().expect("a parameter"),
            None => part,
        });
        let address = filled.collect::<Vec<_>>().join("/") + query;
        // Each once more under its key: the answer is kept, and found.
        let key = uuid::Uuid::now_v7().to_string();
        let mut headers = vec![("content-type", "application/json")];
        if method == Method::POST {
            headers.push(("idempotency-key", key.as_str()));
        }
        let body = body.map(|body| body.to_string().into_bytes());
        let http = &self.http;
        if method == Method::POST {
            let first = http.send(method.clone(), &address, &headers, body.clone());
            let first = first.await;
            assert!(first.status < 300, "{first}");
        }
        let reply = http.send(method, &address, &headers, body).await;
        assert!(reply.status < 300, "{reply}");
        reply
    }

    async fn get(&self, path: &str, parts: &[&str], query: &str) -> Reply {
        self.ask(Method::GET, path, parts, query, None).await
    }

    async fn post(&self, path: &str, parts: &[&str], body: Value) -> Value {
        self.ask(Method::POST, path, parts, "", Some(body))
            .await
            .json()
    }

    /// A list, and its second page.
    async fn list(&self, path: &str, parts: &[&str]) -> Value {
        let page = self.get(path, parts, "?limit=1").await.json();
        if let Some(cursor) = page["nextCursor"].as_str() {
            let query = format!("?limit=1&cursor={cursor}");
            self.get(path, parts, &query).await;
        }
        page
    }

    async fn agents(&self) {
        for name in ["coder", "critic", "nobody"] {
            let body = json!({"instructions": "Be careful.", "retentionDays": 20});
            self.ask(Method::PUT, "/agents/{name}", &[name], "", Some(body))
                .await;
        }
        self.list("/agents", &[]).await;
        self.get("/agents/{name}", &["coder"], "").await;
        self.ask(Method::DELETE, "/agents/{name}", &["nobody"], "", None)
            .await;
    }

    async fn admin(&self) {
        let body = json!({"tenant": "other", "name": "ci", "scopes": ["read", "write"]});
        let mut ids = Vec::new();
        for _ in 0..2 {
            // The answer to this one is not kept: it is a secret.
            self.asked
                .borrow_mut()
                .insert("POST /admin/keys".to_owned());
            let made = self
                .http
                .post("/admin/keys", &body)
                .await
                .expect(201)
                .json();
            ids.push(made["id"].as_str().expect("an id").to_owned());
            let theirs = self.app.with_key(made["key"].as_str().expect("a key"));
            let id = theirs.create_with(&turns(4, 100)).await;
            theirs.context(&id).await;
        }
        self.list("/admin/keys", &[]).await;
        self.ask(Method::DELETE, "/admin/keys/{id}", &[&ids[0]], "", None)
            .await;
        self.list("/admin/tenants", &[]).await;
        self.get("/admin/tenants/{name}", &["other"], "").await;
        let limits = json!({"storedBytes": 1_000_000_000, "requestsPerSecond": 100_000, "retentionDays": 40});
        self.ask(
            Method::PATCH,
            "/admin/tenants/{name}",
            &["other"],
            "",
            Some(limits),
        )
        .await;
    }

    /// A session with a summary, a plan, several dispatches, and results shown for calls that were interrupted.
    async fn session(&self) -> String {
        let body = json!({
            "agentName": "coder", "title": "One", "metadata": {"customer": "42"}, "retentionDays": 10,
            "pruning": {"enabled": true, "budgetTokens": 2_000}, "messages": [{"role": "user", "content": "Hello"}],
        });
        let made = self.post("/sessions", &[], body).await;
        let id = made["id"].as_str().expect("an id").to_owned();
        let path = "/sessions/{id}/messages";
        for _ in 0..3 {
            let messages: Vec<_> = turns(40, 200).iter().map(|raw| parsed(raw)).collect();
            self.post(path, &[&id], json!({"messages": messages})).await;
        }
        self.post("/sessions/{id}/compact", &[&id], json!({"dryRun": true}))
            .await;
        self.post(
            "/sessions/{id}/compact",
            &[&id],
            json!({"boundary": "step"}),
        )
        .await;
        self.post(
            "/sessions/{id}/compact",
            &[&id],
            json!({"keepTokens": 1_000}),
        )
        .await;
        for step in 0..12 {
            let call = format!("call_{step}");
            let mut messages = vec![user("Go on."), calls(&[&call], 10)];
            // Every third is interrupted.
            if step % 3 > 0 {
                messages.push(result(&call, &padded("", 5_000)));
            }
            self.http.append(&id, &messages).await;
        }
        let named =
            json!({"messages": [{"role": "user", "content": "Again", "precis": {"id": "mine"}}]});
        self.http
            .post(&format!("/sessions/{id}/messages"), &named)
            .await
            .expect(201);
        self.http
            .post(&format!("/sessions/{id}/messages"), &named)
            .await;
        let path = "/sessions/{id}/context";
        let windows = json!({"contextWindow": 8_000, "candidates": [{"model": "small", "contextWindow": 4_000}]});
        self.post(path, &[&id], windows).await;
        self.http.append(&id, &[user("And now?")]).await;
        self.post(path, &[&id], json!({"format": "anthropic"}))
            .await;
        self.post(
            "/sessions/{id}/compact",
            &[&id],
            json!({"compactCount": 20}),
        )
        .await;
        self.post(path, &[&id], json!({})).await;
        for format in ["openai", "anthropic"] {
            self.get(path, &[&id], &format!("?format={format}")).await;
        }
        id
    }

    async fn lists(&self, id: &str) {
        self.http.create_with(&turns(2, 50)).await;
        self.list("/sessions", &[]).await;
        for query in [
            "status=active",
            "agentName=coder",
            "mode=chat",
            "metadata.customer=42",
            "status=active&agentName=coder&mode=chat&metadata.customer=42",
        ] {
            self.get("/sessions", &[], &format!("?{query}&limit=2"))
                .await;
        }
        self.get("/sessions/{id}", &[id], "").await;
        let change = json!({"title": "Two", "metadata": {"customer": "43"}, "compactCount": 40, "retentionDays": 9});
        self.ask(Method::PATCH, "/sessions/{id}", &[id], "", Some(change))
            .await;
        let path = "/sessions/{id}/messages";
        let page = self.list(path, &[id]).await;
        for query in [
            "order=desc",
            "role=tool",
            "afterSeq=10&beforeSeq=20",
            "order=desc&role=user&beforeSeq=50",
        ] {
            let page = self
                .get(path, &[id], &format!("?{query}&limit=3"))
                .await
                .json();
            if let Some(cursor) = page["nextCursor"].as_str() {
                self.get(path, &[id], &format!("?{query}&limit=3&cursor={cursor}"))
                    .await;
            }
        }
        let first = page["data"][0]["id"].as_str().expect("an id");
        self.get("/sessions/{id}/messages/{messageId}", &[id, first], "")
            .await;
        self.list("/sessions/{id}/compactions", &[id]).await;
        self.get("/sessions/{id}/compactions/{version}", &[id, "1"], "")
            .await;
        self.list("/sessions/{id}/dispatches", &[id]).await;
        for n in ["1", "2", "3"] {
            self.get("/sessions/{id}/dispatches/{n}", &[id, n], "")
                .await;
        }
        self.get("/sessions/{id}/stats", &[id], "").await;
        for query in ["?q=hello", "?q=hello%20again&limit=1", "?q=xxx*"] {
            let found = self.get("/sessions/{id}/search", &[id], query).await.json();
            if let Some(cursor) = found["nextCursor"].as_str() {
                let query = format!("?q=hello%20again&limit=1&cursor={cursor}");
                self.get("/sessions/{id}/search", &[id], &query).await;
            }
        }
    }

    async fn events(&self, id: &str) {
        for path in ["GET /events", "GET /sessions/{id}/events"] {
            self.asked.borrow_mut().insert(path.to_owned());
        }
        let mut of_one = self
            .http
            .read_events(&format!("/sessions/{id}/events?after=0"), None)
            .await;
        of_one.next().await;
        let mut of_all = self.http.read_events("/events", None).await;
        self.http.append(id, &[user("Do you hear me?")]).await;
        of_all.next().await;
        // Somebody looks for what nobody told of.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }

    async fn turns(&self, id: &str) {
        let body = json!({"messages": [{"role": "user", "content": "Well?"}]});
        let path = "/sessions/{id}/turns";
        let made = self.post(path, &[id], body.clone()).await;
        let turn = made["turnId"]
            .as_str()
            .or(made["id"].as_str())
            .or(made["turn"]["id"].as_str());
        let turn = turn.unwrap_or_else(|| panic!("a turn has an id: {made}"));
        self.list(path, &[id]).await;
        self.get("/sessions/{id}/turns/{turnId}", &[id, turn], "")
            .await;
        self.post(
            "/sessions/{id}/turns/{turnId}/cancel",
            &[id, turn],
            json!({}),
        )
        .await;
    }

    async fn rewrites(&self, id: &str) {
        let fork = self
            .post("/sessions/{id}/fork", &[id], json!({"title": "Fork"}))
            .await;
        let fork = fork["id"].as_str().expect("an id");
        self.post("/sessions/{id}/fork", &[id], json!({"atSeq": 60}))
            .await;
        let history = self.http.history(fork).await;
        let newest = &history[history.len() - 1];
        let path = "/sessions/{id}/messages/{messageId}";
        let users: Vec<_> = history
            .iter()
            .filter(|item| item.message.get().contains("\"user\""))
            .collect();
        self.ask(
            Method::PUT,
            path,
            &[fork, &users[1].id],
            "",
            Some(json!({"role": "user", "content": "Else"})),
        )
        .await;
        self.ask(Method::DELETE, path, &[fork, &users[2].id], "", None)
            .await;
        self.get("/sessions/{id}/context", &[fork], "").await;
        let restore = "/sessions/{id}/compactions/{version}/restore";
        self.ask(Method::POST, restore, &[fork, "0"], "", None)
            .await;
        self.post(
            "/sessions/{id}/rewind",
            &[fork],
            json!({"toSeq": newest.seq - 2}),
        )
        .await;
        self.get("/sessions/{id}/dispatches/{n}", &[id, "1"], "")
            .await;
    }

    /// What nobody asks for.
    async fn automatic(&self) {
        let policy = json!({"enabled": true, "triggerTokens": 500, "when": "now"});
        let id = self.http.create(&json!({"autoCompact": policy})).await;
        self.http.append(&id, &turns(10, 400)).await;
        for _ in 0..200 {
            if self.http.session(&id).await["compactionVersion"] != 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("a session that is due is compacted");
    }

    async fn conversations(&self) {
        let item = |text: &str| json!({"type": "message", "role": "user", "content": text});
        let made = self
            .post(
                "/v1/conversations",
                &[],
                json!({"items": [item("One")], "metadata": {"a": "b"}}),
            )
            .await;
        let id = made["id"].as_str().expect("an id");
        let one = "/v1/conversations/{conversation_id}";
        let items = "/v1/conversations/{conversation_id}/items";
        self.get(one, &[id], "").await;
        self.post(one, &[id], json!({"metadata": {"a": "c"}})).await;
        self.post(
            items,
            &[id],
            json!({"items": [item("Two"), item("Three"),
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "Nothing."}]}),
        )
        .await;
        for order in ["asc", "desc"] {
            let page = self
                .get(items, &[id], &format!("?limit=2&order={order}"))
                .await
                .json();
            let last = page["last_id"].as_str().expect("an id");
            let query = format!("?limit=2&order={order}&after={last}");
            self.get(items, &[id], &query).await;
        }
        let page = self.get(items, &[id], "?order=asc").await.json();
        let first = page["first_id"].as_str().expect("an id");
        let path = "/v1/conversations/{conversation_id}/items/{item_id}";
        self.get(path, &[id, first], "").await;
        self.ask(Method::DELETE, path, &[id, first], "", None).await;
        self.http.context(&id.replace("conv_", "sess_")).await;
        self.post(
            "/v1/responses/compact",
            &[],
            json!({"model": MAIN, "input": [item("One"), item("Two")]}),
        )
        .await;
        self.ask(Method::DELETE, one, &[id], "", None).await;
    }

    async fn operations(&self) {
        for path in ["/health/live", "/health/ready", "/metrics", "/openapi.json"] {
            self.get(path, &[], "").await;
        }
    }

    /// What an operator does beside the service.
    async fn upkeep(&self, id: &str) {
        let settings = || {
            let url = self.app.database.url.as_str();
            Settings::from_vars(base_variables(url)).expect("the settings of a test")
        };
        precis::app::explain(&settings(), "default", id, None)
            .await
            .expect("an explanation");
        let directory = self.app.database.directory();
        let file = directory.join("all.jsonl");
        upkeep::export(&settings(), &Selection::All, Some(&file))
            .await
            .expect("an export");
        for (new_ids, skip_existing) in [(true, false), (false, true)] {
            let request = ImportRequest {
                tenant: None,
                new_ids,
                skip_existing,
                dry_run: false,
                line_bytes: 0,
            };
            upkeep::import(&settings(), request, Some(&file))
                .await
                .expect("an import");
        }
        for dry_run in [true, false] {
            for (older_than, tenant) in [
                (None, None),
                (Some(Duration::ZERO), Some("other".to_owned())),
            ] {
                let request = PruneRequest {
                    older_than,
                    tenant,
                    dry_run,
                };
                upkeep::prune_store(&settings(), &request)
                    .await
                    .expect("it prunes");
            }
        }
        precis::app::list_tenants(&settings())
            .await
            .expect("tenants");
        precis::app::list_keys(&settings()).await.expect("keys");
    }

    async fn ends(&self, id: &str) {
        for path in [
            "/sessions/{id}/close",
            "/sessions/{id}/reopen",
            "/sessions/{id}/reset",
        ] {
            self.ask(Method::POST, path, &[id], "", None).await;
        }
        self.ask(Method::DELETE, "/sessions/{id}", &[id], "", None)
            .await;
    }
}

fn parsed(raw: &str) -> Value {
    serde_json::from_str(raw).expect("a message")
}
