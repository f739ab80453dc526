//! Faults of ClickHouse's replicas and of ZooKeeper while clicks are inserted.

use std::ops::Range;
use std::time::{Duration, Instant};

use devstack::clickhouse_cluster::{Cluster, start_cluster};
use devstack::{Engine, Kind, Options, Server};
use schemas::topic;
use tokio::time::sleep;

use super::super::{at_random, progress};
use crate::clicks::{Clicks, Plan};
use crate::counted::{Exact, all_counted, is_exact};
use crate::engines::{Isolated, clickhouse, counting_on_cluster};
use crate::eventually;
use crate::processor::Processor;

/// The number of shards and replicas, and of rounds with all faults.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaFaults {
    /// The shards.
    pub shards: usize,
    /// The replicas of each shard.
    pub replicas: usize,
    /// How often each fault is injected.
    pub rounds: u32,
    /// Clicks per second.
    pub rate: u32,
}

/// A fault of one replica or of ZooKeeper.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// kill -9 of each replica of the shard, one as soon as the former is back.
    KillInTurn,
    /// SIGSTOP of the replica until its session has ended, then SIGCONT.
    Freeze,
    /// The replica fetches no rows, and another one of its shard is killed.
    Lag,
    /// kill -9 of ZooKeeper, which is back after a moment.
    KillZookeeper,
    /// kill -9 of ZooKeeper, which is away for a minute.
    LoseZookeeper,
    /// SIGSTOP of ZooKeeper until the sessions have ended, then SIGCONT.
    FreezeZookeeper,
    /// kill -9 of a processor.
    KillProcessor,
}

const FAULTS: [Fault; 7] = [
    Fault::KillInTurn,
    Fault::Freeze,
    Fault::Lag,
    Fault::KillZookeeper,
    Fault::LoseZookeeper,
    Fault::FreezeZookeeper,
    Fault::KillProcessor,
];

/// The longest time between a kill and the next start.
const DOWN: Duration = Duration::from_secs(3);

/// How long ZooKeeper is lost.
const AWAY: Duration = Duration::from_secs(60);

/// Longer than a session with ZooKeeper.
const FROZEN: Duration = Duration::from_secs(13);

/// Breaks replicas and ZooKeeper in turn, while two processors insert.
///
/// # Panics
/// When a click is lost or doubled, or a replica has other rows than the first.
pub async fn counts_replica_faults(plan: ReplicaFaults) -> Exact {
    let stage = Stage::start(plan.shards, plan.replicas).await;
    let clicks = Clicks::start(&stage.engines, Plan::at(plan.rate));
    let processors = [Processor::start(&stage.engines).await, Processor::start(&stage.engines).await];
    for round in 0..plan.rounds as usize {
        for fault in FAULTS {
            stage.more_rows().await;
            let began = Instant::now();
            stage.inject(fault, round, &processors[round % 2]).await;
            let repaired = Instant::now();
            let rows = stage.more_rows().await;
            progress(&format!(
                "round {} of {}: {fault:?} for {:.1?}, more rows {:.1?} after it ended: {} clicks written, {rows} rows",
                round + 1,
                plan.rounds,
                repaired - began,
                repaired.elapsed(),
                clicks.confirmed()
            ));
        }
    }
    let ledger = clicks.stop().await;
    all_counted(&stage.engines, &ledger).await;
    for processor in &processors {
        processor.stop().await;
    }
    stage.equal().await;
    is_exact(&stage.engines, &ledger).await
}

struct Stage {
    engines: Isolated,
    cluster: Cluster,
    _kafka: Engine,
}

impl Stage {
    async fn start(shards: usize, replicas: usize) -> Self {
        let kafka = Engine::from_env_or_start(Kind::Kafka, |kind| Options::throw_away(kind.name()));
        let cluster = start_cluster(shards, replicas, Options::throw_away);
        let (kafka, cluster) = tokio::join!(kafka, cluster);
        let (kafka, cluster) = (kafka.unwrap(), cluster.unwrap());
        let engines = counting_on_cluster(kafka.url(), &cluster, topic::CLICKS.partitions).await;
        Self { engines, cluster, _kafka: kafka }
    }

    /// Returns the places of each shard's replicas, which are numbered over all shards.
    fn shards(&self) -> Vec<Range<usize>> {
        let replicas = self.cluster.shards[0].len();
        (0..self.cluster.shards.len()).map(|shard| shard * replicas..(shard + 1) * replicas).collect()
    }

    async fn inject(&self, fault: Fault, round: usize, processor: &Processor) {
        let shards = self.shards();
        let shard = shards[round % shards.len()].clone();
        let replicas = &self.cluster.shards[round % shards.len()];
        let number = round / shards.len() % replicas.len();
        let (place, replica) = (shard.start + number, &replicas[number]);
        match fault {
            Fault::KillInTurn => {
                for replica in replicas {
                    killed(replica).await;
                }
            }
            Fault::Freeze => frozen(replica).await,
            Fault::Lag => {
                self.run(place, "SYSTEM STOP FETCHES clicks").await;
                self.run(place, "SYSTEM STOP FETCHES owners").await;
                killed(&replicas[(number + 1) % replicas.len()]).await;
                self.run(place, "SYSTEM START FETCHES clicks").await;
                self.run(place, "SYSTEM START FETCHES owners").await;
            }
            Fault::KillZookeeper => killed(&self.cluster.zookeeper).await,
            Fault::LoseZookeeper => away(&self.cluster.zookeeper, AWAY).await,
            Fault::FreezeZookeeper => frozen(&self.cluster.zookeeper).await,
            Fault::KillProcessor => killed(&processor.server).await,
        }
    }

    /// Runs a statement on a replica.
    async fn run(&self, place: usize, sql: &str) -> String {
        let url = self.engines.clickhouse_of(place);
        eventually(sql, async || clickhouse(&url, sql, Vec::new()).await).await
    }

    /// Waits until there are more rows than now, and returns how many.
    async fn more_rows(&self) -> u64 {
        let before = self.rows().await;
        eventually("more rows", async || match self.rows().await {
            rows if rows > before => Ok(rows),
            rows => Err(rows),
        })
        .await
    }

    /// Returns the sum over the shards of the most rows that a replica reports.
    async fn rows(&self) -> u64 {
        let mut rows = 0;
        for shard in self.shards() {
            let mut most = 0;
            for place in shard {
                let url = self.engines.clickhouse_of(place);
                let answer = clickhouse(&url, "SELECT count() FROM clicks", Vec::new()).await;
                most = most.max(answer.ok().and_then(|rows| rows.trim().parse().ok()).unwrap_or_default());
            }
            rows += most;
        }
        rows
    }

    /// Waits until all replicas of each shard have the same rows.
    async fn equal(&self) {
        const CONTENT: &str = "SELECT count(), sum(cityHash64(*)) FROM clicks";
        for shard in self.shards() {
            let first = self.run(shard.start, CONTENT).await;
            for place in shard.skip(1) {
                eventually("the replicas are equal", async || match self.run(place, CONTENT).await {
                    same if same == first => Ok(()),
                    other => Err((first.clone(), other)),
                })
                .await;
            }
        }
    }
}

async fn killed(server: &Server) {
    away(server, at_random(DOWN)).await;
}

async fn away(server: &Server, down: Duration) {
    server.kill().await;
    // The time is the input of this test.
    sleep(down).await;
    server.start().await.unwrap();
}

async fn frozen(server: &Server) {
    server.pause().await.unwrap();
    // The time is the input of this test.
    sleep(FROZEN).await;
    server.resume().await.unwrap();
}
