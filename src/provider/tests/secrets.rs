//! What is never shown.

use serde_json::json;
use wiremock::ResponseTemplate;

use super::support::{KEY, base, model, ok, request, scripted};
use crate::provider::{ChatModel, Endpoint, ProviderError};

#[tokio::test]
async fn nothing_secret_is_ever_printed() {
    use std::sync::{Arc, Mutex};
    use tracing::field::{Field, Visit};
    use tracing::span;

    /// Keeps all that is logged by this thread, of any level and from any library.
    #[derive(Clone, Default)]
    struct Keep(Arc<Mutex<Vec<(tracing::Level, String)>>>);
    struct Line(String);
    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            use std::fmt::Write as _;
            let _ = write!(self.0, " {}={value:?}", field.name());
        }
    }
    impl tracing::Subscriber for Keep {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
            let mut line = Line(attributes.metadata().target().to_owned());
            attributes.record(&mut line);
            self.0
                .lock()
                .unwrap()
                .push((*attributes.metadata().level(), line.0));
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut line = Line(event.metadata().target().to_owned());
            event.record(&mut line);
            self.0
                .lock()
                .unwrap()
                .push((*event.metadata().level(), line.0));
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    let keep = Keep::default();
    // With a single subscriber alive, tracing asks that of the thread which meets a log line first
    // (another test's: none) and remembers "never" for all. Two make it ask both.
    let _second = tracing::Dispatch::new(Keep::default());
    let guard = tracing::subscriber::set_default(keep.clone());
    let body = json!({"error": {"message": format!("you sent: the secret prompt with {KEY}")}});
    let mut shown = Vec::new();
    for status in [503, 429, 400, 200] {
        let server = scripted(vec![
            ResponseTemplate::new(status).set_body_json(body.clone()),
        ])
        .await;
        let url = format!(
            "http://user:pass-word@127.0.0.1:{}/v1?key={KEY}",
            server.address().port()
        );
        let model = model(&url);
        let error = model.complete(&request()).await.unwrap_err();
        shown.push(format!("{error} {error:?} {model:?}"));
        let source = std::error::Error::source(&error);
        assert!(source.is_none());
    }
    let server = scripted(vec![ResponseTemplate::new(500), ok("the secret answer")]).await;
    model(&base(&server)).complete(&request()).await.unwrap();
    let endpoint =
        Endpoint::parse("http://user:pass-word@127.0.0.1:1/v1", Some(KEY.into())).unwrap();
    shown.push(format!("{endpoint:?}"));
    let unreachable = model("http://user:pass-word@127.0.0.1:1/v1");
    shown.push(format!("{:?}", unreachable.complete(&request()).await));
    drop(guard);

    let logged = keep.0.lock().unwrap().clone();
    let ours: Vec<_> = logged
        .iter()
        .filter(|(_, line)| line.contains("provider::attempts"))
        .collect();
    // Each attempt once: 3 + 3 + 1 + 1 refused, 2 for the answer, 3 unreachable.
    assert_eq!(ours.len(), 13, "{ours:#?}");
    assert!(
        ours.iter()
            .all(|(level, _)| *level == tracing::Level::DEBUG),
        "whoever asked says once, at a level of its own, what failed"
    );
    shown.extend(
        logged
            .into_iter()
            .filter(|(_, line)| !line.starts_with("wiremock"))
            .map(|(_, line)| line),
    );
    for line in &shown {
        for secret in [KEY, "pass-word", "secret prompt", "secret answer"] {
            assert!(!line.contains(secret), "{line}");
        }
    }
}

#[test]
fn calls_can_be_made_from_any_thread() {
    fn check<T: Send + Sync + Clone + 'static>() {}
    fn check_future<T: Send>(_: T) {}
    check::<ChatModel>();
    check::<ProviderError>();
    let model = model("http://127.0.0.1:1/v1");
    check_future(model.complete(&request()));
}
