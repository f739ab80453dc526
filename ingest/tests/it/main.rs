//! Tests of a running edge with a real Kafka, through its HTTP ports.

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
