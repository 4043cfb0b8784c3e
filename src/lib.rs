//! Precis: a session store that keeps an agent's history short without losing it.
//!
//! ```text
//! http ──▶ service ──▶ domain ◀── storage
//!              └──▶ provider ─▶ domain
//! ```
//!
//! `domain` holds the rules, pure; `service` the use cases; `storage` the SQL; `provider` the client of
//! model servers; `http` the routes. `app` puts them together; `upkeep` is what an operator
//! does beside the running service.

pub mod app;
pub mod config;
pub mod domain;
pub mod http;
pub mod new_file;
pub mod provider;
pub mod service;
pub mod storage;
pub mod telemetry;
pub mod upkeep;
