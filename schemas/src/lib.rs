//! The data that Hopline's processes exchange: topics, ids, messages, rows and migrations.
//!
//! Nothing here opens a socket, reads a clock or draws a random number, so plain values test every rule.

pub mod click_id;
pub mod clickhouse;
pub mod grants;
pub mod id;
pub mod message;
pub mod referrer;
pub mod row;
mod text;
pub mod time;
pub mod topic;
