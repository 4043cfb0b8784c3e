//! Reads server-sent events.

use reqwest::Response;

/// A frame.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Frame {
    pub id: Option<String>,
    pub event: String,
    pub data: String,
}

/// A stream of frames.
pub struct Frames {
    response: Response,
    received: Vec<u8>,
}

impl Frames {
    /// The frames of a response.
    pub fn new(response: Response) -> Self {
        Self {
            response,
            received: Vec::new(),
        }
    }

    /// The next frame; comments are frames without data. `None` when the stream ends, however it does.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(end) = self.received.windows(2).position(|two| two == b"\n\n") {
                let frame: Vec<u8> = self.received.drain(..end + 2).collect();
                return Some(parse(&String::from_utf8_lossy(&frame)));
            }
            let piece = self.response.chunk().await.ok()??;
            self.received.extend_from_slice(&piece);
        }
    }
}

fn parse(text: &str) -> Frame {
    let mut frame = Frame::default();
    for line in text.lines() {
        if let Some(id) = line.strip_prefix("id: ") {
            frame.id = Some(id.to_owned());
        } else if let Some(event) = line.strip_prefix("event: ") {
            event.clone_into(&mut frame.event);
        } else if let Some(data) = line.strip_prefix("data: ") {
            frame.data.push_str(data);
        }
    }
    frame
}
