//! Through the whole service: what is taken is stored byte for byte, what is no JSON is refused.

use std::cell::OnceCell;

use precis::app::Application;
use precis::config::Settings;
use proptest::collection::vec;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::runtime::Runtime;

use crate::generate::{Bytes, message_bytes};
use crate::runner::{Verdict, fuzz};

/// A service on an empty database.
struct Running {
    runtime: Runtime,
    client: reqwest::Client,
    base: String,
    _directory: tempfile::TempDir,
}

#[derive(Deserialize)]
struct Sent<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    data: Vec<Item<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    message: &'a RawValue,
}

impl Running {
    fn start() -> Self {
        // Fails when another test of this process was first.
        drop(rustls::crypto::ring::default_provider().install_default());
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite://{}/fuzz.db", directory.path().display());
        let variables = [
            ("PRECIS_LISTEN", "127.0.0.1:0"),
            ("PRECIS_DATABASE_URL", url.as_str()),
            ("PRECIS_LOG", "error"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let settings = Settings::from_vars(variables).expect("settings");
        let runtime = Runtime::new().expect("a runtime");
        let application = runtime
            .block_on(Application::build(settings))
            .expect("the service starts");
        let base = format!("http://{}", application.address());
        runtime.spawn(async move { application.run().await.expect("the service runs") });
        let client = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([])
            .build()
            .expect("a client");
        Self {
            runtime,
            client,
            base,
            _directory: directory,
        }
    }

    fn request(&self, request: reqwest::RequestBuilder) -> (u16, Vec<u8>) {
        self.runtime.block_on(async {
            let response = request.send().await.expect("an answer");
            let status = response.status().as_u16();
            (status, response.bytes().await.expect("a body").to_vec())
        })
    }

    fn create(&self, body: &[u8]) -> (u16, Vec<u8>) {
        self.request(
            self.client
                .post(format!("{}/sessions", self.base))
                .body(body.to_vec()),
        )
    }

    fn get(&self, path: &str) -> Vec<u8> {
        let (status, body) = self.request(self.client.get(format!("{}{path}", self.base)));
        assert_eq!(status, 200, "GET {path}: {}", body.escape_ascii());
        body
    }

    /// Sends bodies in place of messages and reads back what was stored.
    fn check(&self, messages: &[Bytes]) -> Verdict {
        let messages: Vec<_> = messages
            .iter()
            .map(|message| message.0.as_slice())
            .collect();
        let sent = [
            b"{\"messages\":[",
            messages.join(&b","[..]).as_slice(),
            b"]}",
        ]
        .concat();
        let (status, answer) = self.create(&sent);
        let Ok(answer) = serde_json::from_slice::<Value>(&answer) else {
            return Err(TestCaseError::fail(format!(
                "{status}: {}",
                answer.escape_ascii()
            )));
        };
        match serde_json::from_slice::<Value>(&sent) {
            Err(error) if !error.to_string().starts_with("number out of range") => {
                let is_refused = (400..500).contains(&status)
                    || error.to_string().starts_with("recursion limit");
                prop_assert!(is_refused, "{status}: {error}");
            }
            _ => {}
        }
        if status != 201 {
            prop_assert!(matches!(status, 400 | 422), "{status}: {answer}");
            prop_assert!(answer["code"].is_string(), "{answer}");
            return Ok(());
        }
        let sent: Sent<'_> = serde_json::from_slice(&sent).expect("what was taken has messages");
        let page = self.get(&format!(
            "/sessions/{}/messages?limit=100",
            answer["id"].as_str().expect("an id")
        ));
        let page: Page<'_> = serde_json::from_slice(&page).expect("a page");
        prop_assert_eq!(page.data.len(), sent.messages.len());
        for (sent, stored) in sent.messages.iter().zip(page.data) {
            let is_marked = precis::domain::json::members(sent.get())
                .iter()
                .any(|member| member.name == "precis");
            if !is_marked {
                prop_assert_eq!(stored.message.get(), sent.get());
            }
        }
        // Numbers without bounds are handed on like everything else; a parser has no room for them.
        let context = self.get(&format!(
            "/sessions/{}/context",
            answer["id"].as_str().expect("an id")
        ));
        serde_json::from_slice::<serde::de::IgnoredAny>(&context).expect("a context is JSON");
        Ok(())
    }
}

#[test]
fn stored_messages() {
    let running = OnceCell::new();
    fuzz(
        "stored_messages",
        150,
        &vec(message_bytes(), 1..4),
        |messages| running.get_or_init(Running::start).check(&messages),
    );
}
