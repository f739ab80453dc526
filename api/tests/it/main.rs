//! The API in-process, on real engines.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admin;
mod bulk;
mod clicks;
mod conversions;
mod faults;
mod idempotency;
mod keys;
mod limits;
mod links;
mod list;
mod lists_on_indexes;
mod locked;
mod outbox;
mod plans;
mod qr;
mod server;
mod slugs;
mod upsert;
mod usage;
mod webhooks;
