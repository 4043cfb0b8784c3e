//! Server-sent events, as model servers send them.
//!
//! The bytes may be cut anywhere: inside a line break, inside a character. Understood are all
//! three line breaks, comments, a byte order mark, `data:` with and without a space behind it, data
//! of several lines, and what some servers do beside the rules: a line that is a JSON object
//! without any field name in front of it counts as data (an error that was written into the
//! stream by something that did not know it was one), and the end of the stream ends the last
//! event even if the blank line is missing.
//!
//! Held at any time: the event that is being received, and no more than the limit of it.
//!
//! What does not belong here: what the events say. `id` and `retry` are for readers who come
//! back, and nobody comes back to a model's answer.

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Whether its type is `error`.
    pub is_error: bool,
    /// The data lines, joined by line feeds. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub data: String,
}

/// An event is longer than it may be.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

/// The reader of one stream.
#[derive(Debug)]
pub struct Events {
    /// Bytes that an event may have.
    limit: usize,
    /// The line that is being received.
    line: Vec<u8>,
    /// The data lines of the event that is being received, each with a line feed behind it.
    data: Vec<u8>,
    is_error: bool,
    /// The last byte was a carriage return: a line feed belongs to it.
    after_return: bool,
    /// No line has ended yet: a byte order mark may stand in front of it.
    at_start: bool,
}

impl Events {
    /// A reader of events that have at most this many bytes each.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            data: Vec::new(),
            is_error: false,
            after_return: false,
            at_start: true,
        }
    }

    /// Takes the next bytes and gives the events that end in them.
    ///
    /// # Errors
    /// An event is longer than the limit; nothing can be read behind it.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Event>, TooLong> {
        let mut events = Vec::new();
        let mut rest = bytes;
        if self.after_return && !rest.is_empty() {
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            self.after_return = false;
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, tail) = rest.split_at(end);
            self.extend_line(line)?;
            events.extend(self.end_line());
            self.after_return = tail == b"\r";
            let end = if tail.starts_with(b"\r\n") { 2 } else { 1 };
            rest = tail.get(end..).unwrap_or_default();
        }
        self.extend_line(rest)?;
        Ok(events)
    }

    /// The event that the end of a stream ends. Not for a stream that was cut off: half a line
    /// may look like a whole one.
    pub fn finish(&mut self) -> Option<Event> {
        // A line without an end is one; if it is blank, it ends the event itself.
        self.end_line().or_else(|| self.end_event())
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.line.len() + self.data.len() + bytes.len() > self.limit {
            return Err(TooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self) -> Option<Event> {
        let mut taken = std::mem::take(&mut self.line);
        let mut line = taken.as_slice();
        if std::mem::take(&mut self.at_start) {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        }
        let event = if line.is_empty() {
            self.end_event()
        } else {
            self.read_field(line);
            None
        };
        // Keeps the room for the next line.
        taken.clear();
        self.line = taken;
        event
    }

    fn read_field(&mut self, line: &[u8]) {
        if line.starts_with(b"{") {
            self.add_data(line);
            return;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => self.add_data(value),
            b"event" => self.is_error = value == b"error",
            // A comment (an empty name), or a field that is nothing to us.
            _ => {}
        }
    }

    fn add_data(&mut self, value: &[u8]) {
        self.data.extend_from_slice(value);
        self.data.push(b'\n');
    }

    fn end_event(&mut self) -> Option<Event> {
        let is_error = std::mem::take(&mut self.is_error);
        if self.data.is_empty() && !is_error {
            return None;
        }
        let data = self.data.strip_suffix(b"\n").unwrap_or(&self.data);
        let data = String::from_utf8_lossy(data).into_owned();
        self.data.clear();
        Some(Event { is_error, data })
    }

    /// Bytes of memory that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.line.capacity() + self.data.capacity()
    }
}
