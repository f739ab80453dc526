//! The pipeline that turns records of clicks into rows.
//!
//! [`consume`] → [`decode`] → [`repeats`] → [`batch`] → [`crate::clickhouse`] → [`commit`]: one thread polls Kafka and
//! sends the records of each partition to its [`lane`], which does the rest. A lane works only while it has
//! [`ownership`] of its partition, and continues only when the previous batch is known to be stored. An invalid record
//! becomes a [`dead_letter`]. [`progress`] publishes up to when clicks are counted. [`intake`] reads the other topics:
//! conversions and deleted links.

pub mod batch;
pub mod chunk;
pub mod commit;
pub mod consume;
pub mod dead_letter;
pub mod decode;
pub mod deleted_links;
pub mod intake;
pub mod lane;
pub mod lane_state;
pub mod lanes;
pub mod log;
pub mod ownership;
pub mod progress;
pub mod repeats;
pub mod retry;
