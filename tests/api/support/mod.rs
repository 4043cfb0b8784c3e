//! What every test stands on: databases that are made and dropped, applications in this process,
//! the real binary as a child process, a scripted model, and an independent reading of the
//! contract (`oracle`, `strict`) that the service is judged by.
//!
//! Nothing here knows how the service is built. It speaks HTTP, and SQL only to break things on
//! purpose.

pub mod app;
pub mod backend;
pub mod chain;
pub mod http;
pub mod messages;
pub mod model;
pub mod oracle;
pub mod process;
pub mod raw_model;
pub mod shadow;
pub mod sse;
pub mod stream_model;
pub mod strict;
pub mod strict_anthropic;
pub mod template;
pub mod tokens;

pub use app::TestApp;
pub use backend::Backend;
pub use http::{Http, Reply};
pub use model::{Answer, ScriptedModel};
pub use oracle::{Boundary, History, Plan, Request};

/// The fixtures that are conversations (the others are probes, expectations and a bad file).
pub const FIXTURES: [&str; 6] = [
    "01_plain_chat_12",
    "02_coding_agent_60",
    "03_cjk_emoji_rtl",
    "04_multimodal",
    "05_research_200",
    "06_pathological",
];

/// The text of a file in `tests/fixtures`.
pub fn fixture(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    std::fs::read_to_string(&path)
        .unwrap_or_else(|cause| panic!("fixture {} cannot be read: {cause}", path.display()))
}

/// The messages of a conversation fixture, each as the bytes that stand in the file.
pub fn conversation(name: &str) -> Vec<String> {
    messages::split(&fixture(&format!("{name}.json")))
}

/// rustls must know its cryptography before the first client is built.
pub fn install_crypto() {
    // An error only says that another test was first.
    drop(rustls::crypto::ring::default_provider().install_default());
}
