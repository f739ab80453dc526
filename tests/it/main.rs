//! Black-box tests: Hopline over HTTP, with kills and stops. One file for each promise.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attempts;
mod configuration;
mod counts_clocks;
mod counts_deletion;
mod counts_faults;
mod counts_log;
mod counts_moments;
mod counts_replay;
mod disaster;
mod edge_full;
mod edge_kills;
mod edge_limits;
mod edge_outages;
mod edge_privacy;
mod encrypted;
mod handovers;
mod imports;
mod kills;
mod metrics;
mod migrations;
mod pipeline;
mod power_loss;
mod replicas;
mod standby;
mod stops;
mod traces;
mod traffic;
mod webhooks_changes;
mod webhooks_faults;
mod webhooks_isolation;
mod webhooks_wire;
