//! A reader of server-sent events that takes one frame at a time and can be dropped between any two.

use std::time::Duration;

use reqwest::Response;
use serde_json::Value;

use super::http::Http;

/// Nothing in a test takes this long unless it is stuck.
const STUCK: Duration = Duration::from_secs(30);

/// What came through a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Sent {
    Event(Frame),
    Comment(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    pub id: Option<String>,
    pub event: String,
    pub data: Value,
}

impl Frame {
    /// The number at the end of the id.
    #[track_caller]
    pub fn number(&self) -> i64 {
        let id = self.id.as_deref().expect("an event has an id");
        let (_, number) = id.rsplit_once('_').expect("an id ends in a number");
        number.parse().expect("an id ends in a number")
    }
}

pub struct Reader {
    pub response: Response,
    received: Vec<u8>,
}

impl Http {
    /// Opens a stream, which must succeed.
    pub async fn read_events(&self, path: &str, last: Option<&str>) -> Reader {
        let mut request = self.streaming().get(self.url(path));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.expect("the stream is answered");
        Reader::of(response, path)
    }

    /// Posts exactly these bytes to what answers with a stream.
    pub async fn post_for_events(&self, path: &str, body: String) -> Reader {
        let request = self.streaming().post(self.url(path));
        let request = request.header("content-type", "application/json");
        let response = request.body(body).send().await;
        Reader::of(response.expect("the stream is answered"), path)
    }

    /// The stream of a session, from the beginning, from a point on, or live.
    pub async fn events(&self, id: &str, last: Option<&str>) -> Reader {
        self.read_events(&format!("/sessions/{id}/events"), last)
            .await
    }

    /// The first so many events of a session.
    pub async fn first_events(&self, id: &str, count: usize) -> Vec<Frame> {
        self.events(id, Some("0")).await.take(count).await
    }
}

impl Reader {
    /// A reader of this answer, which must be a stream.
    fn of(response: Response, path: &str) -> Self {
        assert_eq!(response.status(), 200, "{path}");
        let header = |name| response.headers()[name].to_str().expect("a text");
        assert_eq!(header("content-type"), "text/event-stream");
        assert_eq!(header("cache-control"), "no-store");
        assert_eq!(header("x-accel-buffering"), "no");
        Self {
            response,
            received: Vec::new(),
        }
    }

    /// All events up to the end of the stream.
    pub async fn rest(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }

    /// What comes next; `None` at the end of the stream.
    pub async fn sent(&mut self) -> Option<Sent> {
        loop {
            let end = self.received.windows(2).position(|two| two == b"\n\n");
            if let Some(end) = end {
                let block: Vec<u8> = self.received.drain(..end + 2).collect();
                return Some(parse(
                    std::str::from_utf8(&block).expect("a frame is a text"),
                ));
            }
            let chunk = tokio::time::timeout(STUCK, self.response.chunk())
                .await
                .expect("expected something to come through the stream");
            // A connection that is cut is an end as well.
            self.received.extend_from_slice(&chunk.ok().flatten()?);
        }
    }

    /// The next event, comments left out.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Sent::Event(frame) = self.sent().await? {
                return Some(frame);
            }
        }
    }

    /// The next so many events.
    pub async fn take(&mut self, count: usize) -> Vec<Frame> {
        let mut frames = Vec::with_capacity(count);
        while frames.len() < count {
            let frame = self.next().await;
            frames.push(frame.unwrap_or_else(|| {
                panic!("expected {count} events, the stream ended after {frames:?}")
            }));
        }
        frames
    }
}

fn parse(block: &str) -> Sent {
    if let Some(comment) = block.strip_prefix(':') {
        return Sent::Comment(comment.trim().to_owned());
    }
    let member = |name: &str| {
        let lines = block.lines().filter_map(|line| line.strip_prefix(name));
        let values: Vec<_> = lines.collect();
        assert!(values.len() < 2, "`{name}` stands in a frame once: {block}");
        values.first().map(|value| (*value).to_owned())
    };
    let data = member("data: ").expect("a frame has data");
    Sent::Event(Frame {
        id: member("id: "),
        event: member("event: ").expect("a frame names its type"),
        data: serde_json::from_str(&data).expect("data is one line of JSON"),
    })
}
