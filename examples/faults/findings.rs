//! What a run finds: violations, and counts of what was done and answered.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};

/// Violations that are kept in words; the rest is counted.
const KEPT: usize = 100;

/// Findings of a run, filled by all of its tasks.
#[derive(Debug, Default)]
pub struct Findings(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    violations: Vec<String>,
    total: usize,
    counts: BTreeMap<String, u64>,
    figures: BTreeMap<String, Value>,
}

impl Findings {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something that may not be.
    pub fn violation(&self, text: impl Into<String>) {
        let text: String = text.into();
        let mut inner = self.inner();
        inner.total += 1;
        if inner.violations.len() < KEPT {
            eprintln!("VIOLATION {text}");
            inner.violations.push(text);
        }
    }

    /// A violation unless it holds.
    pub fn check(&self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.violation(text());
        }
    }

    /// One more of a kind.
    pub fn count(&self, name: impl Into<String>) {
        self.add(name, 1);
    }

    /// So many more of a kind.
    pub fn add(&self, name: impl Into<String>, many: usize) {
        let many = u64::try_from(many).unwrap_or(u64::MAX);
        *self.inner().counts.entry(name.into()).or_default() += many;
    }

    /// How many of a kind there were.
    pub fn counted(&self, name: &str) -> u64 {
        self.inner().counts.get(name).copied().unwrap_or_default()
    }

    /// A figure to be reported.
    pub fn figure(&self, name: impl Into<String>, value: impl Into<Value>) {
        self.inner().figures.insert(name.into(), value.into());
    }

    /// How many violations there are.
    pub fn violations(&self) -> usize {
        self.inner().total
    }

    /// Prints the table, or one line for programs.
    pub fn print(&self, json_line: bool) {
        let inner = self.inner();
        if json_line {
            let figures: Map<String, Value> = inner.figures.clone().into_iter().collect();
            let line = json!({
                "figures": figures,
                "counts": inner.counts,
                "violations": inner.total,
                "first": inner.violations,
            });
            println!("{line}");
            return;
        }
        for (name, value) in &inner.figures {
            println!("{name:<58} {value}");
        }
        for (name, count) in &inner.counts {
            println!("{name:<58} {count}");
        }
        println!("{:<58} {}", "violations", inner.total);
    }
}
