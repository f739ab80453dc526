//! The processor between a real Kafka and a real ClickHouse.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adopt_topic;
mod audit;
mod backup;
mod clicks;
mod conversions;
mod counting;
mod dead_letters;
mod doubt;
mod owning;
mod processor;
mod recount;
mod repeats;
mod replay;
mod replica_down;
mod replicas;
mod rollups;
mod shards;
mod storing;
mod upkeep;
