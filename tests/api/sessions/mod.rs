//! `/sessions` and what lies below it.

mod append;
mod append_json;
mod closing;
mod compact;
mod compactions;
mod context;
mod crud;
mod list;
mod messages_list;
mod precis_member;
mod races;
mod summaries;
mod summarizer;
mod tool_pairing;
