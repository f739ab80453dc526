//! Starts real Kafka, ClickHouse and Postgres as child processes, without Docker and without root.
//!
//! The program behind `./dev` and the tests share this one starter. It knows engines and processes, and no
//! service of ours. What it starts cannot outlive it: every child asks the kernel to be killed when its parent dies.
//!
//! ```no_run
//! # async fn example() -> Result<(), devstack::Error> {
//! let kafka = devstack::kafka::start(devstack::Options::throw_away("kafka")?).await?;
//! println!("brokers: {}", kafka.url());
//! kafka.kill().await; // kill -9
//! kafka.start().await?; // the same port, the same data
//! # Ok(())
//! # }
//! ```

mod account;
pub mod clickhouse;
mod engines;
mod error;
pub mod http;
pub mod install;
pub mod kafka;
pub mod libchdb;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod random;
pub mod readiness;
pub mod scratch;
mod server;
pub mod usage;

pub use account::Account;
pub use engines::{Engine, Engines, Kind, Options};
pub use error::{Cause, Error};
pub use server::{Probe, Server};
