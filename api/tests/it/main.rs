//! The API in-process, on real engines.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conversions;
mod faults;
mod keys;
mod limits;
mod links;
mod outbox;
mod server;
mod webhooks;
