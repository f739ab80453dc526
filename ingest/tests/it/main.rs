//! The edge in this process, with a real Kafka, as visitors and operators see it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod edge;
mod links;
mod outages;
mod redirects;
