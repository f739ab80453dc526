//! Kills and outages of processors and their engines under load. `./dev soak counts-…` are the long forms.

use std::time::Duration;

use tests::faults::counts::{
    ClickhouseKills, ClickhouseOutage, CountsKafkaKills, Members, ProcessorKills, ReplicaFaults, Stops,
    counts_clickhouse_kills, counts_clickhouse_outage, counts_kafka_kills, counts_members,
    counts_processor_kills, counts_replica_faults, counts_stops,
};
use tests::faults::progress;

/// Maximum memory of a processor under any fault.
const MEMORY: u64 = 256 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn each_click_is_one_row_when_the_processor_is_killed() {
    let exact = counts_processor_kills(ProcessorKills { kills: 5, rate: 500 }).await;
    progress(&format!("processor killed: {exact}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_click_is_one_row_when_clickhouse_is_killed() {
    let exact = counts_clickhouse_kills(ClickhouseKills { kills: 5, rate: 500 }).await;
    progress(&format!("ClickHouse killed: {exact}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_click_is_one_row_and_memory_is_flat_when_clickhouse_stops() {
    let down = Duration::from_secs(15);
    let drained = counts_clickhouse_outage(ClickhouseOutage { down, rate: 3_000 }).await;
    progress(&format!("ClickHouse stopped for {down:?}: {drained}"));
    assert!(drained.memory.iter().all(|bytes| *bytes < MEMORY), "{drained}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_click_is_one_row_when_kafka_is_killed() {
    let exact = counts_kafka_kills(CountsKafkaKills { kills: 2, rate: 500 }).await;
    progress(&format!("Kafka killed: {exact}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_click_is_one_row_when_processors_are_frozen() {
    let exact = counts_stops(Stops { stops: 3, rate: 500 }).await;
    progress(&format!("processors frozen: {exact}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_click_is_one_row_while_processors_and_partitions_change() {
    let pause = Duration::from_secs(3);
    let exact = counts_members(Members { changes: 8, pause, rate: 500 }).await;
    progress(&format!("processors came and went: {exact}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_click_is_one_row_on_failing_replicas() {
    let exact = counts_replica_faults(ReplicaFaults { shards: 1, replicas: 2, rounds: 1, rate: 500 }).await;
    progress(&format!("replicas broken: {exact}"));
}
