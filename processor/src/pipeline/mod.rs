//! A click's way from its record to its row.
//!
//! [`consume`] → [`decode`] → [`repeats`] → [`batch`] → [`crate::clickhouse`] → [`commit`]: one thread polls Kafka and
//! hands the records of each partition to its [`lane`], which does the rest. A lane works only while it has
//! [`ownership`] of its partition, and goes on only when the batch before is known to be stored. What is no click
//! becomes a [`dead_letter`]; how far the count is, [`progress`] says. What else is read, conversions and deletions of
//! links, comes in by [`intake`].

pub mod batch;
pub mod chunk;
pub mod commit;
pub mod consume;
pub mod dead_letter;
pub mod decode;
pub mod deleted_links;
pub mod intake;
pub mod lane;
pub mod lanes;
pub mod log;
pub mod ownership;
pub mod progress;
pub mod repeats;
pub mod retry;
