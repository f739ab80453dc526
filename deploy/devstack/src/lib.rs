//! Starts real Kafka, ClickHouse and Postgres as child processes, without Docker and without root.
//!
//! `./dev` and the tests use this crate. It knows engines and processes, and none of Hopline's services. Its child
//! processes cannot outlive it: the kernel kills each of them when their parent dies.
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
pub mod clickhouse_cluster;
mod engines;
mod error;
pub mod http;
pub mod install;
pub mod kafka;
pub mod libchdb;
mod options;
pub mod ports;
pub mod postgres;
pub mod private;
mod probe;
pub mod process;
mod programs;
pub mod random;
pub mod readiness;
pub mod scratch;
mod server;
mod tls;
pub mod usage;
pub mod zookeeper;

pub use account::Account;
pub use engines::{Engine, Kind, USERS_VARIABLE};
pub use error::{Cause, Error};
pub use options::Options;
pub use probe::{Probe, each_host};
pub use server::Server;
pub use tls::Tls;
