//! The test kit: isolated engines, programs, conditions to wait for, a scripted webhook receiver, load and faults.
//!
//! It does not depend on the services, so that their own tests can use it. It panics where a test would fail anyway.

#![allow(clippy::unwrap_used, reason = "a harness fails its test by panicking")]

mod address;
pub mod arrivals;
pub mod clicks;
pub mod counted;
pub mod deployment;
pub mod edge;
pub mod engines;
mod eventually;
pub mod faults;
pub mod links;
pub mod load;
pub mod log;
mod operations;
pub mod processor;
pub mod proxy;
pub mod receiver;
pub mod signals;
pub mod tally;

pub use address::free_address;
pub use eventually::{ANSWER, PATIENCE, eventually, eventually_within};
pub use operations::{find_metric, metric, metrics_page, readyz};
