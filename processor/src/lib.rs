//! Turns clicks on the topic into ClickHouse rows, exactly once.
//!
//! [`consume`] → [`decode`] → [`repeats`] → [`batch`] → [`store`] → [`commit`]: one thread polls Kafka and hands
//! the records of each partition to its [`lane`], which does the rest. A lane works only while it has
//! [`ownership`] of its partition, and goes on only when the batch before is known to be stored. What is no click
//! becomes a [`dead_letter`]; how far the count is, [`progress`] says.
//!
//! What operators do beside it, compare, repeat and repair, is in [`mod@operate`].
//!
//! Why a click is a row exactly once, whatever is killed:
//!
//! - A row carries its position in the log, and a batch is one part of the table: all of it or nothing.
//! - Whoever may insert rows of a partition has the highest epoch, and each insert carries its own; see
//!   [`ownership`].
//! - After an insert without an answer the rows are read back. Nothing is concluded from silence.
//! - Every owner starts behind the last stored row. Offsets that Kafka keeps are a convenience.

pub mod batch;
pub mod chunk;
pub mod clock;
pub mod commit;
pub mod config;
pub mod consume;
pub mod dead_letter;
pub mod decode;
pub mod deleted_links;
pub mod intake;
pub mod lane;
pub mod lanes;
pub mod log;
pub mod operate;
pub mod ownership;
pub mod progress;
pub mod repeats;
pub mod retry;
mod run;
pub mod sources;
pub mod store;
pub mod upkeep;

pub use config::Config;
pub use operate::operate;
pub use run::run;
