//! The dispatcher on real Kafka and Postgres, with receivers on this machine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod again;
mod bad_receivers;
mod crash;
mod disable;
mod events;
mod example_receiver;
mod failures;
mod fairness;
mod health;
mod limits;
mod plans;
mod positions;
mod raw;
mod retries;
mod secrets;
mod ssrf;
mod verify_examples;
mod world;
