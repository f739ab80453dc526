//! How fast one, two and four processors process a backlog, most of it on one link.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::super::progress;
use super::Stage;
use crate::PATIENCE;
use crate::clicks::{Plan, write};
use crate::counted::is_exact;
use crate::processor::Processor;

/// The size of the backlog.
#[derive(Debug, Clone, Copy)]
pub struct Throughput {
    /// Clicks.
    pub clicks: u64,
}

/// Partitions and processors.
const ROUNDS: [(i32, usize); 5] = [(2, 1), (2, 2), (4, 1), (4, 2), (4, 4)];

/// The interval of queries.
const LOOK: Duration = Duration::from_millis(50);

/// Lets processors process a backlog, and returns a table of rows per second.
///
/// Measures from the first to the last rows, without the start of the processors.
///
/// # Panics
/// When a click is lost or doubled.
pub async fn counts_throughput(plan: Throughput) -> String {
    let mut table = "partitions  processors  rows/s".to_owned();
    for (partitions, processors) in ROUNDS {
        let stage = Stage::with_partitions(&[], partitions).await;
        // As fast as Kafka accepts them.
        let written = Plan { hot_percent: 90, ..Plan::at(1_000_000) };
        let ledger = write(&stage.engines, written, plan.clicks).await;
        let mut running = Vec::new();
        for _ in 0..processors {
            running.push(Processor::start(&stage.engines).await);
        }
        let (mut first, mut last) = (None, (Instant::now(), 0));
        while last.1 < ledger.clicks.len() {
            let rows = stage.rows().await;
            if rows > last.1 {
                last = (Instant::now(), rows);
                first.get_or_insert(last);
            }
            assert!(last.0.elapsed() < PATIENCE, "{rows} of {} clicks are counted", ledger.clicks.len());
            sleep(LOOK).await;
        }
        for processor in &running {
            processor.stop().await;
        }
        is_exact(&stage.engines, &ledger).await;
        let (began, at_first) = first.unwrap_or(last);
        let rate = (last.1 - at_first) as f64 / last.0.duration_since(began).as_secs_f64().max(0.001);
        let line = format!("{partitions:>10}  {processors:>10}  {rate:>6.0}");
        progress(&line);
        // Writing to a string does not fail.
        let _ = write!(table, "\n{line}");
    }
    table
}
