//! Keys, scopes, tenants, the open mode, CORS: who is answered, and who is told nothing.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Backend, Http, Reply, TestApp};

mod commands;
mod cors;
mod foreign;
mod keys;
mod open;
mod walk;

/// The server's own key.
pub const ADMIN: &str = "an-admin-key-for-these-tests";

/// Longer than any answer about a key is believed, by far.
const TAKEN_UP: Duration = Duration::from_secs(30);

/// An application that asks for keys.
pub async fn guarded(backend: Backend) -> TestApp {
    TestApp::with(backend, &[("PRECIS_ADMIN_KEY", ADMIN)]).await
}

/// A key as its maker is told of it: all members of the answer.
pub async fn make_key(app: &Http, tenant: &str, scopes: &[&str]) -> Value {
    let body = json!({"tenant": tenant, "name": format!("{tenant}'s"), "scopes": scopes});
    let made = app.with_key(ADMIN).post("/admin/keys", &body).await;
    made.expect(201).json()
}

/// The service, asked with a new key of this tenant.
pub async fn holder(app: &Http, tenant: &str, scopes: &[&str]) -> Http {
    let key = make_key(app, tenant, scopes).await;
    app.with_key(key["key"].as_str().expect("a key"))
}

/// Asks again until the answer has this status: what another process does is taken up within a second.
pub async fn until(status: u16, path: &str, http: &Http) -> Reply {
    let deadline = Instant::now() + TAKEN_UP;
    loop {
        let reply = http.get(path).await;
        if reply.status == status {
            return reply;
        }
        assert!(Instant::now() < deadline, "expected {status}: {reply}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An operation of the OpenAPI document.
pub struct Operation {
    pub path: String,
    pub method: reqwest::Method,
    pub about: Value,
}

impl Operation {
    pub fn is_secured(&self) -> bool {
        self.about["security"] == json!([{"bearer": []}])
    }

    pub fn is_admins(&self) -> bool {
        self.path.starts_with("/admin/")
    }

    /// The address, with its parameters filled in. A parameter that is not known here is a route that was forgotten.
    pub fn address(&self, fill: impl Fn(&str) -> String) -> String {
        let mut address = String::new();
        let mut rest = self.path.as_str();
        while let Some((before, behind)) = rest.split_once('{') {
            let (name, after) = behind.split_once('}').expect("a parameter's end");
            address += before;
            address += &fill(name);
            rest = after;
        }
        address += rest;
        let parameters = self.about["parameters"].as_array().into_iter().flatten();
        let asked = parameters
            .filter(|parameter| parameter["in"] == "query" && parameter["required"] == true)
            .map(|parameter| format!("{}=x", parameter["name"].as_str().expect("a name")));
        let asked: Vec<_> = asked.collect();
        if !asked.is_empty() {
            address = format!("{address}?{}", asked.join("&"));
        }
        address
    }

    /// The body that the document shows, if it takes one.
    pub fn body(&self) -> Option<Vec<u8>> {
        let body = self.about.get("requestBody")?;
        let example = &body["content"]["application/json"]["example"];
        assert!(
            !example.is_null(),
            "{} {}: no example",
            self.method,
            self.path
        );
        Some(example.to_string().into_bytes())
    }

    pub async fn ask(&self, http: &Http, address: &str) -> Reply {
        let json = [("content-type", "application/json")];
        http.send(self.method.clone(), address, &json, self.body())
            .await
    }
}

/// Every operation of the document.
pub fn operations() -> Vec<Operation> {
    let document: Value = serde_json::from_str(&precis::http::openapi_json()).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let mut found = Vec::new();
    for (path, item) in paths {
        for (method, about) in item.as_object().expect("operations") {
            found.push(Operation {
                path: path.clone(),
                method: method.to_ascii_uppercase().parse().expect("a method"),
                about: about.clone(),
            });
        }
    }
    assert!(found.len() > 40, "the document has operations");
    found
}

/// The body of a problem without what differs between any two requests.
pub fn bare(reply: &Reply) -> Value {
    let mut body = reply.json();
    let members = body.as_object_mut().expect("a problem is an object");
    members.remove("requestId");
    members.remove("instance");
    body
}
