//! Turns clicks on the topic into ClickHouse rows, exactly once.
//!
//! Imports run downwards:
//!
//! - [`mod@operate`]: the operators' commands, such as audit, replay and recount.
//! - [`upkeep`]: closes slices and removes old rows, in one process at a time.
//! - [`pipeline`]: turns records into rows.
//! - [`clickhouse`]: access to the tables.
//!
//! Why each click becomes a row exactly once, even after kills:
//!
//! - A row carries its position in the log, and a batch is one part of the table, so it is stored completely or not at
//!   all.
//! - Only the owner with the highest epoch may insert rows of a partition, and each insert checks its epoch; see
//!   [`pipeline::ownership`].
//! - After an insert without an answer, the processor reads the rows back.
//! - Each owner starts after the last stored row. The offsets committed to Kafka are only for monitoring.

pub mod clickhouse;
pub mod config;
mod metrics;
pub mod operate;
pub mod pipeline;
mod program;
mod run;
pub mod upkeep;

pub use self::metrics::METRICS;
pub use config::Config;
pub use operate::operate;
pub use program::Program;
pub use run::run;
