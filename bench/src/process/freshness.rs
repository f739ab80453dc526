//! Freshness: the time from sending a click until a query sees its row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ::tests::deployment::Deployment;
use ::tests::engines::{Isolated, isolated};
use anyhow::{Context as _, bail, ensure};
use devstack::Server;
use parking_lot::Mutex;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use rdkafka::{ClientContext, Message as _};
use schemas::message::Message as _;
use schemas::topic;
use serde::Serialize;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::clicks;
use crate::server::{peak_mib, start, stop};
use crate::statistics::histogram;
use crate::terminal::report_progress;

/// Time between two queries.
const POLL: Duration = Duration::from_millis(10);

/// Seconds before anything is timed, in which the processor connects.
const WARM_UP_SECONDS: u32 = 2;

/// Latencies from Kafka's client to the table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Freshness {
    /// Wanted clicks per second.
    pub(super) rate: u32,
    pub(super) sent_per_second: f64,
    pub(super) clicks: usize,
    pub(super) p50_ms: u64,
    pub(super) p99_ms: u64,
    pub(super) max_ms: u64,
    pub(super) peak_mib: u64,
}

/// A confirmed click: its partition, its offset, and when it was sent.
type Sent = (i32, i64, Instant);

/// Collects what Kafka confirms.
#[derive(Clone, Default)]
struct Deliveries(Arc<Mutex<Vec<Sent>>>);

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<Instant>;

    fn delivery(&self, result: &DeliveryResult<'_>, sent: Self::DeliveryOpaque) {
        // `send` notices a missing one at the end.
        if let Ok(message) = result {
            self.0.lock().push((message.partition(), message.offset(), *sent));
        }
    }
}

/// One query's answer: the last offset of each partition that is a row.
struct Look {
    at: Instant,
    last: Vec<i64>,
}

/// Sends clicks at a steady rate to a running processor, and measures when they become rows.
pub(super) async fn round(rate: u32, seconds: u32) -> anyhow::Result<Freshness> {
    report_progress(&format!("sending {rate} clicks per second for {seconds} s"));
    let engines = isolated().await;
    let deployment = Deployment::prepare(engines.clone());
    let processor = start(&deployment.processor).await?;
    let until = async || {
        sleep(Duration::from_secs((WARM_UP_SECONDS + seconds).into())).await;
        Ok(())
    };
    let (freshness, ()) = measure(&engines, &processor, rate, 0, until).await?;
    stop(&processor).await?;
    engines.remove().await;
    Ok(freshness)
}

/// Sends clicks until `until` is done, and also returns its result. The topic has `before` others, which are rows.
pub(super) async fn measure<T>(
    engines: &Isolated,
    processor: &Server,
    rate: u32,
    before: u64,
    until: impl AsyncFnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Freshness, T)> {
    let stop = Arc::new(AtomicBool::new(false));
    let sending = tokio::spawn(send(engines.clone(), rate, before, Arc::clone(&stop)));
    let looking = async {
        let mut looks = vec![Look { at: Instant::now(), last: vec![-1; topic::CLICKS.partitions as usize] }];
        let mut ended = None;
        while !sending.is_finished() {
            looks.push(look(engines, looks.last()).await?);
            sleep(POLL).await;
        }
        let sent = sending.await??;
        loop {
            let look = look(engines, looks.last()).await?;
            let rows: i64 = look.last.iter().map(|last| last + 1).sum();
            looks.push(look);
            // Offsets have no gaps.
            if rows >= before as i64 + sent.len() as i64 {
                return Ok::<_, anyhow::Error>((sent, looks));
            }
            let since = *ended.get_or_insert_with(Instant::now);
            ensure!(since.elapsed() < ::tests::PATIENCE, "only {rows} clicks became rows");
            sleep(POLL).await;
        }
    };
    let until = async {
        let done = until().await;
        // Also after an error; sending would not end.
        stop.store(true, Ordering::Relaxed);
        done
    };
    let (found, done) = tokio::join!(looking, until);
    let ((mut sent, looks), done) = (found?, done?);
    let peak_mib = peak_mib(processor)?;

    sent.sort_unstable_by_key(|(_, _, at)| *at);
    sent.drain(..(rate as usize * WARM_UP_SECONDS as usize).min(sent.len()));
    let ((_, _, first), (_, _, last)) = sent.first().zip(sent.last()).context("nothing was sent")?;
    let span = last.duration_since(*first).as_secs_f64();
    let mut latencies = histogram()?;
    for latency in latencies_ms(&sent, &looks) {
        latencies.record(latency)?;
    }
    let seen = latencies.len();
    ensure!(seen == sent.len() as u64, "{seen} of {} clicks became rows", sent.len());
    let freshness = Freshness {
        rate,
        sent_per_second: sent.len() as f64 / span,
        clicks: sent.len(),
        p50_ms: latencies.value_at_quantile(0.5),
        p99_ms: latencies.value_at_quantile(0.99),
        max_ms: latencies.max(),
        peak_mib,
    };
    Ok((freshness, done))
}

/// Asks once which offsets are rows.
async fn look(engines: &Isolated, before: Option<&Look>) -> anyhow::Result<Look> {
    let mut last = before.map(|look| look.last.clone()).unwrap_or_default();
    // The rows of a partition become visible in order, so earlier ones do not matter.
    let behind = last.iter().min().copied().unwrap_or(-1).max(0);
    let sql = format!("SELECT src % 65536, max(koff) FROM clicks WHERE koff >= {behind} GROUP BY src");
    let answer = engines.clickhouse(&sql).await;
    let at = Instant::now();
    for line in answer.lines() {
        let (partition, offset) = line.split_once('\t').context("two columns")?;
        let place: usize = partition.parse()?;
        last[place] = offset.parse()?;
    }
    Ok(Look { at, last })
}

/// Returns, for each click, the milliseconds until the first query that saw it.
fn latencies_ms(sent: &[Sent], looks: &[Look]) -> Vec<u64> {
    let latency = |(partition, offset, at): &Sent| {
        let place = usize::try_from(*partition).ok()?;
        let first = looks.partition_point(|look| look.last[place] < *offset);
        let seen = looks.get(first)?.at;
        u64::try_from(seen.saturating_duration_since(*at).as_millis()).ok()
    };
    sent.iter().filter_map(latency).collect()
}

/// Sends clicks from a number on, each when it is due, until `stop`, and returns the confirmed ones.
async fn send(engines: Isolated, rate: u32, from: u64, stop: Arc<AtomicBool>) -> anyhow::Result<Vec<Sent>> {
    spawn_blocking(move || {
        let clicks = clicks::Clicks::new()?;
        let deliveries = Deliveries::default();
        let producer: BaseProducer<Deliveries> =
            clicks::producer_config(&engines).create_with_context(deliveries.clone())?;
        let topic = engines.topic(topic::CLICKS);
        let started = Instant::now();
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let due = (started.elapsed().as_secs_f64() * f64::from(rate)) as u64;
            while count < due {
                let click = clicks.click(from + count);
                let value = click.encode();
                let partition = (count % topic::CLICKS.partitions as u64) as i32;
                let record = BaseRecord::with_opaque_to(&topic, Box::new(Instant::now()))
                    .partition(partition)
                    .key(click.click_id.as_str())
                    .payload(value.as_slice());
                if let Err((error, _)) = producer.send(record) {
                    bail!("cannot send a click: {error}");
                }
                count += 1;
            }
            producer.poll(Duration::ZERO);
            thread::sleep(Duration::from_millis(1));
        }
        producer.flush(::tests::PATIENCE)?;
        let sent = std::mem::take(&mut *deliveries.0.lock());
        ensure!(sent.len() as u64 == count, "Kafka confirmed {} of {count} clicks", sent.len());
        Ok(sent)
    })
    .await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_click_is_seen_by_the_first_query_with_its_offset() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let looks = [
            Look { at: at(0), last: vec![-1, -1] },
            Look { at: at(100), last: vec![4, -1] },
            Look { at: at(200), last: vec![9, 0] },
        ];
        let sent = [(0, 4, at(40)), (0, 5, at(40)), (1, 0, at(150)), (1, 1, at(150))];
        assert_eq!(latencies_ms(&sent, &looks), [60, 160, 50], "the last one is never seen");
    }
}
