//! The foundation of the four Hopline processes.
//!
//! Configuration, logs, metrics, start and shutdown, the HTTP server, and clients for Kafka, Postgres and ClickHouse.
//! Nothing here knows what a link or a click is.
//!
//! | Feature | Adds |
//! |---|---|
//! | `http` | [`http`]: the server, routes, extractors, errors, operations |
//! | `kafka` | [`kafka`]: client settings, log limits, topic creation, probe |
//! | `postgres` | [`postgres`]: pool and probe |
//! | `clickhouse` | [`clickhouse`]: client and probe |
//! | `sealed` | [`sealed`]: encryption of stored webhook secrets |
//! | `agent` | [`agent`]: classification of User-Agents |
//! | `destination` | [`destination`]: checks of webhook URLs and addresses |
//! | `traces` | [`traces`]: traces of single clicks and events, over OTLP |

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

#[cfg(feature = "agent")]
pub mod agent;
#[cfg(feature = "clickhouse")]
pub mod clickhouse;
pub mod config;
#[cfg(feature = "destination")]
pub mod destination;
pub mod health;
mod healthcheck;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
mod log_limit;
pub mod metrics;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod process;
#[cfg(feature = "sealed")]
pub mod sealed;
pub mod shutdown;
pub mod slots;
#[cfg(feature = "postgres")]
mod sockets;
pub mod telemetry;
#[cfg(feature = "traces")]
pub mod traces;

pub use health::{Check, Health};
pub use log_limit::{KeyedLogLimit, LogLimit};
pub use shutdown::Shutdown;

/// The version of every program; all crates have that of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
