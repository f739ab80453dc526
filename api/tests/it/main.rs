//! The API in-process, on real engines.

mod conversions;
mod faults;
mod keys;
mod links;
mod outbox;
mod server;
mod webhooks;
