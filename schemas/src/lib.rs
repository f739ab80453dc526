//! What crosses a process border in Hopline: topics, ids, messages, rows and migrations.
//!
//! Data only. Nothing here opens a socket, reads a clock or draws a random number, so every rule can be
//! tested with plain values.

pub mod click_id;
pub mod clickhouse;
pub mod id;
pub mod message;
pub mod referrer;
pub mod row;
pub mod time;
pub mod topic;
