//! `/sessions` and what lies below it.

mod append;
mod append_json;
mod closing;
mod compact;
mod compactions;
mod context;
mod crud;
mod erase;
mod fork;
mod keep_tokens;
mod list;
mod messages_list;
mod precis_member;
mod races;
mod refusals;
mod reopened_calls;
mod replace;
mod restore;
mod rewind;
mod rewrites;
mod summaries;
mod summarizer;
mod tool_pairing;
