//! Which results a newer result of the same resource stands in for.
//!
//! A newer call covers an older one if its arguments are among the older one's. Calls with the same
//! arguments form a group, of which only the newest that worked matters; the groups that cover a call
//! are found by looking up, for each set of argument names in use, the older call's arguments of those
//! names. So ten thousand pages of one file cost a look-up each. What costs is the number of such sets,
//! and a hostile caller could invent many: of one tool only the newest 32 sets can cover anything.
//!
//! Whether a newer call worked is known only from its body. Bodies are asked for when a group matters,
//! newest first, and after failures in growing numbers, so that a thousand failures are a few questions.

use std::collections::HashMap;

use super::arguments::{Argument, is_naming};

/// Sets of argument names of one tool that can cover other calls.
const MAX_SHAPES: usize = 32;

/// Results by what they were called for. Messages are known by their index in the history.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// For each tool the sets of argument names in use, the newest first.
    shapes: HashMap<String, Vec<Vec<i64>>>,
    /// By the digests of their arguments.
    groups: HashMap<Vec<i64>, Group>,
    /// The call that each result answers.
    calls: HashMap<usize, (String, Vec<Argument>)>,
    /// Whether a result was found to be one that worked.
    checked: HashMap<usize, bool>,
}

/// Results that could cover others.
#[derive(Debug, Default)]
struct Group {
    /// The newest first.
    members: Vec<usize>,
    /// How many of them, from the newest, were found useless.
    useless: usize,
}

impl Reads {
    /// Notes a call that a result answers. The newest result comes first. One that is not `verbatim`
    /// covers nothing.
    pub fn add(&mut self, result: usize, tool: &str, arguments: Vec<Argument>, verbatim: bool) {
        if arguments.iter().any(|one| is_naming(one.digest)) {
            self.add_shape(tool, &arguments);
            if verbatim {
                let group = self.groups.entry(digests(&arguments)).or_default();
                group.members.push(result);
            }
        }
        self.calls.insert(result, (tool.to_owned(), arguments));
    }

    /// The arguments of the call behind `result`, as digests; empty if they are not known.
    pub fn arguments(&self, result: usize) -> Vec<i64> {
        let call = self.calls.get(&result);
        call.map(|(_, arguments)| digests(arguments))
            .unwrap_or_default()
    }

    fn add_shape(&mut self, tool: &str, arguments: &[Argument]) {
        let mut names: Vec<_> = arguments.iter().map(|one| one.name).collect();
        names.sort_unstable();
        if !self.shapes.contains_key(tool) {
            self.shapes.insert(tool.to_owned(), Vec::new());
        }
        if let Some(shapes) = self.shapes.get_mut(tool)
            && shapes.len() < MAX_SHAPES
            && !shapes.contains(&names)
        {
            shapes.push(names);
        }
    }

    /// Takes a result out: it is no longer as it was stored.
    pub fn withdraw(&mut self, result: usize) {
        self.checked.insert(result, false);
    }

    /// Whether a result is worth a look: something newer has all its arguments.
    pub fn may_be_covered(&self, result: usize) -> bool {
        self.covering(result).iter().any(|key| {
            let members = self.groups.get(key).map(|group| &group.members);
            members
                .and_then(|members| members.first())
                .is_some_and(|newest| *newest > result)
        })
    }

    /// Results whose bodies must be known to say what covers `result`.
    pub fn unknown(&mut self, result: usize) -> Vec<usize> {
        let mut unknown = Vec::new();
        for key in self.covering(result) {
            let Some(group) = self.groups.get_mut(&key) else {
                continue;
            };
            group.skip_useless(&self.checked);
            let ahead = group.members.iter().skip(group.useless);
            let next = ahead.clone().next();
            if next.is_some_and(|next| !self.checked.contains_key(next)) {
                let newer = ahead.take_while(|member| **member > result);
                unknown.extend(newer.take(group.useless.max(1)).copied());
            }
        }
        unknown.retain(|member| !self.checked.contains_key(member));
        unknown
    }

    /// Notes whether the call behind a result worked.
    pub fn check(&mut self, result: usize, worked: bool) {
        self.checked.entry(result).or_insert(worked);
    }

    /// The newest result that covers `result`; call it when nothing is unknown.
    pub fn cover(&mut self, result: usize) -> Option<usize> {
        let mut newest = None;
        for key in self.covering(result) {
            if let Some(group) = self.groups.get_mut(&key) {
                group.skip_useless(&self.checked);
                newest = newest.max(group.members.get(group.useless).copied());
            }
        }
        newest.filter(|newest| *newest > result)
    }

    /// The groups whose arguments are all among those of the call behind `result`.
    fn covering(&self, result: usize) -> Vec<Vec<i64>> {
        let Some((tool, arguments)) = self.calls.get(&result) else {
            return Vec::new();
        };
        let shapes = self.shapes.get(tool).map(Vec::as_slice);
        let key = |shape: &Vec<i64>| {
            let of_shape = |one: &&Argument| shape.binary_search(&one.name).is_ok();
            let those = arguments.iter().filter(of_shape);
            let key: Vec<_> = those.map(|one| one.digest).collect();
            (key.len() == shape.len() && self.groups.contains_key(&key)).then_some(key)
        };
        shapes.unwrap_or_default().iter().filter_map(key).collect()
    }
}

impl Group {
    fn skip_useless(&mut self, checked: &HashMap<usize, bool>) {
        let ahead = self.members.iter().skip(self.useless);
        self.useless += ahead
            .take_while(|member| checked.get(*member) == Some(&false))
            .count();
    }
}

fn digests(arguments: &[Argument]) -> Vec<i64> {
    arguments.iter().map(|one| one.digest).collect()
}
