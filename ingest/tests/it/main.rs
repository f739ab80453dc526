//! The edge in this process, with a real Kafka, as visitors and operators see it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod countries;
mod edge;
mod edge_clicks;
mod links;
mod outages;
mod program;
mod redirects;
mod snapshot;
mod spool;
