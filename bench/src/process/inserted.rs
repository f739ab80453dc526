//! Inserting alone: the processor's own statements, with rows encoded before the round.

use std::collections::BTreeMap;
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use ::tests::engines::Isolated;
use ::tests::log::for_each_record;
use anyhow::{Context as _, ensure};
use chrono::DateTime;
use processor::clickhouse::sources::Sources;
use processor::clickhouse::{After, FencingToken, Insertion, Store};
use processor::pipeline::batch::{Batcher, Limits};
use schemas::message::{Click, Message as _};
use schemas::row::ClickRow;
use schemas::topic;
use service::clickhouse::{Clickhouse, ClickhouseConfig, ClickhouseUrl};
use tokio::task::JoinSet;

use super::stage::{Round, Stage};

/// The inserts of each partition, in order.
pub(super) type Bodies = BTreeMap<i32, Vec<Insertion>>;

/// Reads the topic and encodes it as the processor does, in the batches of a backlog.
pub(super) fn encode(engines: &Isolated) -> anyhow::Result<Bodies> {
    // Only full batches, whatever their age.
    let limits = Limits { age: Duration::MAX / 4, ..Limits::default() };
    let mut batchers: BTreeMap<i32, Batcher> = BTreeMap::new();
    let mut bodies = Bodies::new();
    let mut fault = None;
    let mut cut = |partition: i32, batcher: &mut Batcher| {
        let insertion = batcher.cut().and_then(|batch| batch.insertion(&[]));
        bodies.entry(partition).or_default().extend(insertion);
    };
    for_each_record(engines, topic::CLICKS, |record| {
        let partition = record.partition;
        let row = Click::decode(&record.value).ok().zip(DateTime::from_timestamp_millis(record.timestamp));
        let Some((click, broker_ts)) = row else {
            fault = Some(record.offset);
            return;
        };
        let koff = u64::try_from(record.offset).unwrap_or_default();
        let row = ClickRow { click, src: Sources::default().of(partition), koff, broker_ts };
        let batcher = batchers.entry(partition).or_insert_with(|| Batcher::new(limits));
        if !batcher.accepts(&row) {
            cut(partition, batcher);
        }
        batcher.push(&row);
        if batcher.is_full(1) {
            cut(partition, batcher);
        }
    });
    for (partition, batcher) in &mut batchers {
        cut(*partition, batcher);
    }
    ensure!(fault.is_none(), "the record of offset {fault:?} is not a click");
    Ok(bodies)
}

/// Inserts all bodies, one of each partition at a time, as the processor does.
pub(super) async fn round(stage: &Stage, bodies: &Bodies) -> anyhow::Result<Round> {
    stage.clear().await?;
    let url = ClickhouseUrl::from_str(&stage.engines.clickhouse_url)?;
    let store = Store::new(Clickhouse::new(&ClickhouseConfig::of(url)), "bench".to_owned());
    let before = stage.read(&[])?;
    let started = Instant::now();
    let mut partitions = JoinSet::new();
    for (partition, insertions) in bodies {
        let (store, src) = (store.clone(), Sources::default().of(*partition));
        // Clones share the bodies.
        let insertions = insertions.clone();
        partitions.spawn(async move {
            let token = FencingToken { src, epoch: store.raise_epoch(src).await? };
            let mut after = After::default();
            for insertion in &insertions {
                let inserted = store.insert(token, after, insertion).await;
                inserted.context("an insert failed")?;
                after.koff = Some(insertion.last_koff);
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = partitions.join_next().await {
        ended??;
    }
    let seconds = started.elapsed().as_secs_f64();
    stage.settle().await?;
    let cpu = stage.used(before, stage.read(&[])?);
    let rows = stage.number("SELECT count() FROM clicks").await?;
    ensure!(rows == stage.clicks, "{rows} rows instead of {}", stage.clicks);
    Ok(Round { rows_per_second: rows as f64 / seconds, cpu_seconds_per_million: cpu })
}
