//! Tries of appends: whether one that a client makes again may have been stored before.
//!
//! Clients number their tries, and try again after a refusal as they do after silence. A try that this process
//! refused before anything was stored leaves a mark for the next; the next that finds it is as good as a first.
//! What another process refused, or nobody heard, leaves none: such a try is known by what is stored.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix_web::dev::ServiceRequest;
use actix_web::http::{Method, header};
use actix_web::web::Data;
use actix_web::{HttpMessage, HttpRequest};
use hashlink::LruCache;
use sha2::{Digest, Sha256};

/// How many refusals are remembered.
const REMEMBERED: usize = 4_096;
/// How long one is. Clients come back within seconds, or when they were told to.
const VALID: Duration = Duration::from_mins(2);

/// A try that is to come: SHA-256 of who makes it, where, and which it is.
type Mark = [u8; 32];

/// The refusals that are remembered, shared by all workers.
#[derive(Debug)]
pub struct Refusals(Mutex<LruCache<Mark, Instant>>);

impl Default for Refusals {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl Refusals {
    fn put(&self, mark: Mark, now: Instant) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marks.insert(mark, now);
    }

    /// Takes a mark off; whether it was there and is not too old.
    fn take(&self, mark: &Mark, now: Instant) -> bool {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = marks.remove(mark);
        since.is_some_and(|since| now.duration_since(since) <= VALID)
    }
}

/// No try before this one can have stored anything.
#[derive(Debug, Clone, Copy)]
struct IsFirst;

/// An append that says which try it is, on its way to its answer.
pub struct Try {
    refusals: Data<Refusals>,
    next: Mark,
    is_first: bool,
}

impl Try {
    /// Begins a request; `None` if it is no append of items, or does not say which try it is. `path` is decoded.
    pub fn begin(request: &ServiceRequest, path: &str) -> Option<Self> {
        let is_append = *request.method() == Method::POST
            && path
                .strip_prefix("/v1/conversations/")
                .is_some_and(|rest| rest.ends_with("/items"));
        if !is_append {
            return None;
        }
        let number = number(request.request())?;
        let refusals = request.app_data::<Data<Refusals>>()?.clone();
        let mut whose = Sha256::new();
        if let Some(key) = request.headers().get(header::AUTHORIZATION) {
            whose.update(key.as_bytes());
        }
        whose.update([0]);
        whose.update(path);
        whose.update([0]);
        let mark = |number: u32| whose.clone().chain_update(number.to_be_bytes()).finalize();
        let is_first = number == 0 || refusals.take(&mark(number).into(), Instant::now());
        if is_first {
            request.extensions_mut().insert(IsFirst);
        }
        Some(Self {
            next: mark(number.saturating_add(1)).into(),
            refusals,
            is_first,
        })
    }

    /// Its request was refused for now, with nothing stored.
    pub fn refused(self) {
        if self.is_first {
            self.refusals.put(self.next, Instant::now());
        }
    }
}

/// Which try a request is, from 0, if its client says so.
fn number(request: &HttpRequest) -> Option<u32> {
    let count = request.headers().get("x-stainless-retry-count")?;
    count.to_str().ok()?.parse().ok()
}

/// Whether a request may have been stored before: its client makes it again, and this process refused no earlier try.
pub fn is_retried(request: &HttpRequest) -> bool {
    number(request).is_some_and(|number| number > 0) && !request.extensions().contains::<IsFirst>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_taken_once_and_not_for_long() {
        let refusals = Refusals::default();
        let now = Instant::now();
        refusals.put([1; 32], now);
        assert!(!refusals.take(&[2; 32], now));
        assert!(refusals.take(&[1; 32], now + VALID));
        assert!(!refusals.take(&[1; 32], now));
        refusals.put([1; 32], now);
        assert!(!refusals.take(&[1; 32], now + VALID + Duration::from_secs(1)));
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let refusals = Refusals::default();
        let now = Instant::now();
        let mark = |number: usize| -> Mark { Sha256::digest(number.to_be_bytes()).into() };
        for number in 0..=REMEMBERED {
            refusals.put(mark(number), now);
        }
        assert!(!refusals.take(&mark(0), now));
        assert!(refusals.take(&mark(1), now));
    }
}
