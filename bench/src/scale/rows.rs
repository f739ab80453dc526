//! Clicks to rows, by several processors and on several replicas and shards.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use ::tests::engines::{counting_on, counting_on_cluster};
use ::tests::processor::Processor;
use devstack::clickhouse_cluster::start_cluster;
use devstack::{Kind, Options};
use schemas::topic;

use super::report::Round;
use crate::cpu;
use crate::process::clicks;
use crate::process::stage::Stage;
use crate::server::{pid, start_as, stop};

/// The shards of a cluster and the replicas of each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    shards: usize,
    replicas: usize,
}

impl FromStr for Layout {
    type Err = &'static str;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let count = |text: &str| text.parse().ok().filter(|count| (1..=9).contains(count));
        let counts = given
            .split_once('x')
            .and_then(|(shards, replicas)| Some(Self { shards: count(shards)?, replicas: count(replicas)? }));
        counts.ok_or("expected shards and replicas, 1 to 9 of each, such as 2x3")
    }
}

/// The servers of a round, and their processor program.
pub(super) struct Way {
    pub(super) name: String,
    /// None for a single server, without replication.
    cluster: Option<Layout>,
    processors: usize,
    partitions: i32,
    program: Option<PathBuf>,
}

/// Returns the ways, that of one server of each kind first.
pub(super) fn ways(clusters: &[Layout], former: Option<&Path>) -> Vec<Way> {
    let way = |processors, cluster: Option<Layout>| {
        let servers = cluster
            .map_or_else(|| "1".to_owned(), |Layout { shards, replicas }| format!("{shards} x {replicas}"));
        Way {
            name: format!("{processors} of processor, {servers} of clickhouse"),
            cluster,
            processors,
            partitions: topic::CLICKS.partitions,
            program: None,
        }
    };
    let mut ways = vec![way(1, None)];
    ways.extend(former.map(|folder| Way {
        name: "1 of processor, former release".to_owned(),
        program: Some(folder.join("processor")),
        ..way(1, None)
    }));
    ways.push(Way {
        name: "1 of processor, 1 of clickhouse, 1 partition".to_owned(),
        partitions: 1,
        ..way(1, None)
    });
    ways.extend([way(2, None), way(4, None)]);
    ways.extend(clusters.iter().map(|cluster| way(2, Some(*cluster))));
    ways
}

/// Starts empty engines with clicks on the topic and then the processors, and waits until every click is a row.
pub(super) async fn round(way: &Way, count: u64) -> anyhow::Result<Round> {
    let kafka = std::env::var("KAFKA_BROKERS")?;
    let (engines, servers) = match way.cluster {
        None => {
            let server = Kind::ClickHouse.start(Options::throw_away("clickhouse")?).await?;
            (counting_on(&kafka, server.url(), way.partitions).await, vec![server])
        }
        Some(Layout { shards, replicas }) => {
            let cluster = start_cluster(shards, replicas, Options::throw_away).await?;
            let engines = counting_on_cluster(&kafka, &cluster, way.partitions).await;
            (engines, cluster.shards.into_iter().flatten().chain([cluster.zookeeper]).collect())
        }
    };
    let zookeeper = way.cluster.and(servers.last()).map(pid).transpose()?;
    let stage = Stage::new(engines, count)?;
    clicks::write(&stage.engines, count, None).await?;
    let of_zookeeper = || zookeeper.map_or(Ok(Duration::ZERO), cpu::process);

    let began = Instant::now();
    let prepared: Vec<Processor> = (0..way.processors).map(|_| Processor::prepare(&stage.engines)).collect();
    let mut processors = Vec::new();
    for processor in &prepared {
        let program = way.program.as_ref().unwrap_or(&processor.server.launch().program);
        processors.push(start_as(&processor.server, program).await?);
    }
    let (before, zookeeper_before) = (stage.read(&processors)?, of_zookeeper()?);
    let per_second = stage.filled(began).await?;
    stage.settle().await?;
    let used = stage.used(before, stage.read(&processors)?);
    let coordinating = (of_zookeeper()? - zookeeper_before).as_secs_f64() * 1e6 / count as f64;
    for processor in &processors {
        stop(processor).await?;
    }
    stage.check_rows().await?;
    stage.engines.remove_topics().await;
    let cpu = [
        ("processors", used.client),
        ("kafka", used.kafka),
        ("clickhouse", used.clickhouse),
        ("zookeeper", coordinating),
    ];
    Ok(Round { per_second, cpu: cpu.into() })
}
