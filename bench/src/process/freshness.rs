//! How soon a click is a row that queries see.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ::tests::engines::{Isolated, isolated};
use anyhow::{Context as _, bail, ensure};
use rdkafka::{
    ClientContext, Message as _,
    message::DeliveryResult,
    producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext},
};
use schemas::{message::Message as _, topic};
use serde::Serialize;
use tokio::{task::spawn_blocking, time::sleep};

use super::{clicks, processed};
use crate::{child::Child, statistics::percentile, terminal::complain};

/// Time between two looks at the table.
const LOOK: Duration = Duration::from_millis(10);

/// How long the last click may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Before anything is timed, the processor has its partitions and its connections.
const WARM_UP_SECONDS: u32 = 2;

/// From Kafka's client to the table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Freshness {
    /// Clicks per second that were asked for, and that were sent.
    pub(super) rate: u32,
    pub(super) sent_per_second: f64,
    pub(super) clicks: usize,
    pub(super) p50_ms: u32,
    pub(super) p99_ms: u32,
    pub(super) max_ms: u32,
    pub(super) peak_mib: u64,
}

/// A click that Kafka has taken: its partition, its offset, and when it was sent.
type Sent = (i32, i64, Instant);

/// Notes what Kafka has taken.
#[derive(Clone, Default)]
struct Deliveries(Arc<Mutex<Vec<Sent>>>);

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<Instant>;

    fn delivery(&self, result: &DeliveryResult<'_>, sent: Self::DeliveryOpaque) {
        // One that failed is missing, which is noticed at the end.
        if let Ok(message) = result {
            let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            taken.push((message.partition(), message.offset(), *sent));
        }
    }
}

/// What a look saw: the last offset of each partition that is a row.
struct Look {
    at: Instant,
    last: Vec<i64>,
}

/// Sends clicks at a steady rate while a processor runs, and looks all the time which of them are rows.
pub(super) async fn round(rate: u32, seconds: u32) -> anyhow::Result<Freshness> {
    complain(&format!("sending {rate} clicks per second for {seconds} s"));
    let engines = isolated().await;
    let processor = processed::start(&engines).await?;
    let until = async || {
        sleep(Duration::from_secs((WARM_UP_SECONDS + seconds).into())).await;
        Ok(())
    };
    let (freshness, ()) = measure(&engines, &processor, rate, 0, until).await?;
    processor.stop().await?;
    engines.remove().await;
    Ok(freshness)
}

/// Sends clicks to a topic that has `before` others, which are rows, until something is done, and returns what that
/// gave, too.
pub(super) async fn measure<T>(
    engines: &Isolated,
    processor: &Child,
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
            sleep(LOOK).await;
        }
        let sent = sending.await??;
        loop {
            let look = look(engines, looks.last()).await?;
            let rows: i64 = look.last.iter().map(|last| last + 1).sum();
            looks.push(look);
            // Offsets are without gaps, so the last one of each partition tells how many there are.
            if rows >= before as i64 + sent.len() as i64 {
                return Ok::<_, anyhow::Error>((sent, looks));
            }
            let since = *ended.get_or_insert_with(Instant::now);
            ensure!(since.elapsed() < PATIENCE, "only {rows} clicks became rows");
            sleep(LOOK).await;
        }
    };
    let until = async {
        let done = until().await;
        // Also when it failed, or the sending would have no end.
        stop.store(true, Ordering::Relaxed);
        done
    };
    let (found, done) = tokio::join!(looking, until);
    let ((mut sent, looks), done) = (found?, done?);
    let peak_mib = processor.peak_memory()? >> 20;

    sent.sort_unstable_by_key(|(_, _, at)| *at);
    sent.drain(..(rate as usize * WARM_UP_SECONDS as usize).min(sent.len()));
    let ((_, _, first), (_, _, last)) = sent.first().zip(sent.last()).context("nothing was sent")?;
    let span = last.duration_since(*first).as_secs_f64();
    let mut latencies = latencies(&sent, &looks);
    ensure!(latencies.len() == sent.len(), "{} of {} clicks became rows", latencies.len(), sent.len());
    latencies.sort_unstable();
    let freshness = Freshness {
        rate,
        sent_per_second: sent.len() as f64 / span,
        clicks: sent.len(),
        p50_ms: percentile(&latencies, 50),
        p99_ms: percentile(&latencies, 99),
        max_ms: latencies.last().copied().unwrap_or_default(),
        peak_mib,
    };
    Ok((freshness, done))
}

/// Looks once which offsets are rows.
async fn look(engines: &Isolated, before: Option<&Look>) -> anyhow::Result<Look> {
    let mut last = before.map(|look| look.last.clone()).unwrap_or_default();
    // Rows of one partition become visible in their order, so only those behind the last look matter.
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

/// For each click, the milliseconds until the first look that saw it.
fn latencies(sent: &[Sent], looks: &[Look]) -> Vec<u32> {
    let latency = |(partition, offset, at): &Sent| {
        let place = usize::try_from(*partition).ok()?;
        let first = looks.partition_point(|look| look.last[place] < *offset);
        let seen = looks.get(first)?.at;
        u32::try_from(seen.saturating_duration_since(*at).as_millis()).ok()
    };
    sent.iter().filter_map(latency).collect()
}

/// Sends clicks from a number on, each when it is due, until told to stop, and returns what Kafka has taken.
async fn send(engines: Isolated, rate: u32, from: u64, stop: Arc<AtomicBool>) -> anyhow::Result<Vec<Sent>> {
    spawn_blocking(move || {
        let made = clicks::Clicks::new()?;
        let deliveries = Deliveries::default();
        let producer: BaseProducer<Deliveries> =
            clicks::producer_config(&engines).create_with_context(deliveries.clone())?;
        let topic = engines.topic(topic::CLICKS);
        let started = Instant::now();
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let due = (started.elapsed().as_secs_f64() * f64::from(rate)) as u64;
            while count < due {
                let click = made.click(from + count);
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
        producer.flush(PATIENCE)?;
        let sent = std::mem::take(&mut *deliveries.0.lock().unwrap_or_else(PoisonError::into_inner));
        ensure!(sent.len() as u64 == count, "Kafka took {} of {count} clicks", sent.len());
        Ok(sent)
    })
    .await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_click_is_seen_by_the_first_look_that_has_its_offset() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let looks = [
            Look { at: at(0), last: vec![-1, -1] },
            Look { at: at(100), last: vec![4, -1] },
            Look { at: at(200), last: vec![9, 0] },
        ];
        let sent = [(0, 4, at(40)), (0, 5, at(40)), (1, 0, at(150)), (1, 1, at(150))];
        assert_eq!(latencies(&sent, &looks), [60, 160, 50], "the last one is never seen");
    }
}
