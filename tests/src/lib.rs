//! The harness of Hopline's tests: isolated engines, conditions to wait for, a scripted webhook receiver.
//!
//! It knows no service, so the services' own tests may use it too. It panics where a test would fail anyway.

#![allow(clippy::unwrap_used, reason = "a harness fails its test by panicking")]

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
pub mod processor;
pub mod proxy;
pub mod receiver;
pub mod signals;
pub mod tally;

pub use eventually::eventually;
