//! The rules as cases, as laws over random histories, and against a planner written another way.

mod cases;
mod histories;
mod laws;
mod oracle;
mod reading;
mod support;
