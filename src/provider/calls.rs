//! Tool calls that arrive in pieces.
//!
//! By the rules each piece names its call by `index`, the first one brings `id` and
//! `function.name`, and the rest bring stretches of `function.arguments`. Servers leave out the
//! index, repeat id and name in every piece, send whole calls in one piece, count from 1, mix the
//! pieces of parallel calls, or give the head of the second call the index of the first. So a
//! piece finds its call by the first of these that applies:
//!
//! 1. an id that was seen before;
//! 2. an index that was seen before; but a new id together with a name begins a new call, which
//!    has the index from then on;
//! 3. a piece without id and name, or with an index but nothing else: the call that is being
//!    written;
//! 4. a piece without id and index that repeats the name of the call that is being written, whose
//!    arguments are not whole yet: that call;
//! 5. otherwise it begins a new call.
//!
//! What does not belong here: whether the arguments are JSON. A model may have been cut off.

use serde::de::IgnoredAny;

use super::grown::{Grown, Members, write_member};
use crate::domain::json;

/// The calls of one message.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// In the order in which they began.
    calls: Vec<Call>,
    /// Which of them was touched last.
    current: Option<usize>,
}

#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    members: Members,
}

/// What of a piece says where it belongs.
#[derive(Default)]
struct Piece {
    index: Option<u64>,
    id: String,
    name: String,
}

impl Calls {
    /// Takes the value of `tool_calls` of one delta, as JSON text. What is no object in it is
    /// left out.
    pub(super) fn grow(&mut self, pieces: &str) {
        for text in json::elements(pieces) {
            if text.starts_with('{') {
                self.grow_one(text);
            }
        }
    }

    fn grow_one(&mut self, text: &str) {
        let piece = Piece::read(text);
        let at = self.place(&piece);
        self.current = Some(at);
        let Some(call) = self.calls.get_mut(at) else {
            return;
        };
        for member in json::members(text) {
            if member.name != "index" {
                call.members.grow_member(&member.name, member.value);
            }
        }
    }

    /// The position of the piece's call, which may be a new one.
    fn place(&mut self, piece: &Piece) -> usize {
        if let Some(at) = self.find(piece) {
            return at;
        }
        self.calls.push(Call {
            index: piece.index,
            members: Members::default(),
        });
        self.calls.len() - 1
    }

    fn find(&self, piece: &Piece) -> Option<usize> {
        let has_id = !piece.id.is_empty();
        let has_name = !piece.name.is_empty();
        let by_id = || self.calls.iter().position(|call| call.id() == piece.id);
        if has_id && let Some(at) = by_id() {
            return Some(at);
        }
        if piece.index.is_some() {
            // The last of that index: a later call may have taken it over.
            let at = self
                .calls
                .iter()
                .rposition(|call| call.index == piece.index);
            let call = at.and_then(|at| self.calls.get(at));
            let is_another = call.is_some_and(|call| has_id && has_name && !call.id().is_empty());
            if at.is_some() {
                return at.filter(|_| !is_another);
            }
        }
        let current = self.current?;
        if !has_id && !has_name {
            return Some(current);
        }
        let call = self.calls.get(current)?;
        let goes_on = piece.index.is_none()
            && !has_id
            && call.name() == piece.name
            && !call.has_whole_arguments();
        goes_on.then_some(current)
    }

    /// Whether there is any call that says what is called or with what.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.iter().all(Call::is_empty)
    }

    /// Writes the list as JSON: by index if all have one, else in the order in which they began.
    /// Calls without an id, which no result could name, get one: `call_1` and so on.
    pub(super) fn write(&self, out: &mut String) {
        let mut calls: Vec<&Call> = self.calls.iter().filter(|call| !call.is_empty()).collect();
        if calls.iter().all(|call| call.index.is_some()) {
            calls.sort_by_key(|call| call.index);
        }
        let mut next_id = 1_u32;
        let mut separator = '[';
        for call in &calls {
            out.push(separator);
            separator = ',';
            if call.id().is_empty() {
                let mut id = format!("call_{next_id}");
                while calls.iter().any(|call| call.id() == id) {
                    next_id += 1;
                    id = format!("call_{next_id}");
                }
                next_id += 1;
                call.write(&id, out);
            } else {
                call.write(call.id(), out);
            }
        }
        if separator == '[' {
            out.push('[');
        }
        out.push(']');
    }
}

impl Call {
    fn id(&self) -> &str {
        self.members.text("id").unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.function("name")
    }

    fn function(&self, member: &str) -> &str {
        match self.members.get("function") {
            Some(Grown::Members(function)) => function.text(member).unwrap_or_default(),
            _ => "",
        }
    }

    fn has_whole_arguments(&self) -> bool {
        serde_json::from_str::<IgnoredAny>(self.function("arguments")).is_ok()
    }

    /// Nothing but an id, a type and empty texts.
    fn is_empty(&self) -> bool {
        let said = |(name, value): (&str, &Grown)| match (name, value) {
            ("id" | "type", _) => false,
            (_, Grown::Members(members)) => members.iter().any(|(_, value)| !value.is_empty()),
            (_, value) => !value.is_empty(),
        };
        !self.members.iter().any(said)
    }

    fn write(&self, id: &str, out: &mut String) {
        out.push('{');
        write_member(out, "id", |out| out.push_str(&json::encode_string(id)));
        let function = self.members.get("function");
        let kind = self.members.text("type").filter(|kind| !kind.is_empty());
        if let Some(kind) = kind.or(function.map(|_| "function")) {
            out.push(',');
            write_member(out, "type", |out| out.push_str(&json::encode_string(kind)));
        }
        let others = self.members.iter();
        for (name, value) in others.filter(|(name, _)| !matches!(*name, "id" | "type")) {
            out.push(',');
            write_member(out, name, |out| match (name, value) {
                ("function", Grown::Members(function)) => write_function(function, out),
                _ => value.write(out),
            });
        }
        out.push('}');
    }
}

/// A function always has a name and arguments, be they empty.
fn write_function(function: &Members, out: &mut String) {
    let mut whole = function.clone();
    for name in ["name", "arguments"] {
        whole.grow_member(name, "\"\"");
    }
    whole.write(out);
}

impl Piece {
    fn read(text: &str) -> Self {
        let mut piece = Self::default();
        for member in json::members(text) {
            match member.name.as_ref() {
                "index" => piece.index = member.value.parse().ok(),
                "id" => piece.id = decoded(member.value),
                "function" | "custom" => {
                    let name = json::members(member.value)
                        .into_iter()
                        .find(|member| member.name == "name");
                    piece.name = name.map(|name| decoded(name.value)).unwrap_or_default();
                }
                _ => {}
            }
        }
        piece
    }
}

fn decoded(text: &str) -> String {
    json::decode_string(text).unwrap_or_default().into_owned()
}
