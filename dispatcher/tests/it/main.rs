//! The dispatcher on real Kafka and Postgres, with receivers on this machine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod crash;
mod disable;
mod example_receiver;
mod fan_out;
mod retries;
mod world;
