//! Turns clicks on the topic into ClickHouse rows, exactly once.
//!
//! Imports run downwards:
//!
//! - [`mod@operate`]: what operators do beside it, compare, repeat and repair.
//! - [`upkeep`]: what is done to the tables beside inserting clicks, by one process at a time.
//! - [`pipeline`]: a click's way from its record to its row.
//! - [`clickhouse`]: the tables.
//!
//! Why a click is a row exactly once, whatever is killed:
//!
//! - A row carries its position in the log, and a batch is one part of the table: all of it or nothing.
//! - Whoever may insert rows of a partition has the highest epoch, and each insert carries its own; see
//!   [`pipeline::ownership`].
//! - After an insert without an answer the rows are read back. Nothing is concluded from silence.
//! - Every owner starts behind the last stored row. Offsets that Kafka keeps are for people who look.

pub mod clickhouse;
pub mod config;
pub mod operate;
pub mod pipeline;
mod run;
pub mod upkeep;

pub use config::Config;
pub use operate::operate;
pub use run::run;
