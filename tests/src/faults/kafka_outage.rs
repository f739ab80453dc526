//! An outage of Kafka.

use std::fmt;
use std::time::{Duration, Instant};

use super::{Stage, progress};
use crate::metric;
use crate::tally::Tally;

/// The length of the outage and the load.
#[derive(Debug, Clone, Copy)]
pub struct KafkaOutage {
    /// How long Kafka is stopped.
    pub down: Duration,
    /// Visitors.
    pub connections: u32,
    /// Clicks per second of all visitors together.
    pub rate: u32,
}

/// The results of an outage.
#[derive(Debug)]
pub struct Outage {
    /// The clicks.
    pub tally: Tally,
    /// The 99th percentile of the redirects' latency before it.
    pub p99_before: Duration,
    /// The same during the outage.
    pub p99_during: Duration,
    /// The same while the edge published its spool, and afterwards.
    pub p99_after: Duration,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tally, p99_before, p99_during, p99_after } = self;
        write!(
            f,
            "{tally}; redirect p99 {p99_before:.1?} before, {p99_during:.1?} during ({:.2} x), {p99_after:.1?} after",
            p99_during.as_secs_f64() / p99_before.as_secs_f64()
        )
    }
}

/// Stops Kafka under load, and starts it again later.
///
/// # Panics
/// When Kafka does not become ready again, or a click is not answered with a redirect.
pub async fn kafka_outage(plan: KafkaOutage) -> Outage {
    let stage = Stage::new().await;
    let load = stage.load(plan.connections, Some(plan.rate));
    let some = u64::from(plan.rate) * 5;
    load.answers(u64::from(plan.rate)).await;
    let began = Instant::now();
    load.answers(some).await;

    let stopped = Instant::now();
    stage.kafka.stop().await;
    let down = Instant::now();
    progress(&format!("Kafka is stopped for {:?}; {} clicks answered", plan.down, load.answered()));
    while down.elapsed() < plan.down {
        // The length of the outage is the input of this test.
        tokio::time::sleep(Duration::from_secs(10).min(plan.down.saturating_sub(down.elapsed()))).await;
        let spool = metric(stage.edge.server.url(), "hopline_spool_bytes").await / 1e6;
        progress(&format!(
            "{:.0} s without Kafka: {} clicks answered, {spool:.0} MB spooled",
            down.elapsed().as_secs_f32(),
            load.answered()
        ));
    }
    let started = Instant::now();
    stage.kafka.start().await.unwrap();
    let up = Instant::now();
    load.answers(some).await;
    let log = load.stop().await;
    progress("Kafka is back; waiting for every click");
    log.is_complete();
    let p99 = |from, until| log.latency(99, from, until).unwrap();
    Outage {
        p99_before: p99(began, stopped),
        // Excludes the start of Kafka, which uses much CPU time.
        p99_during: p99(down, started),
        p99_after: p99(up, Instant::now()),
        tally: stage.tally(&log).await,
    }
}
