//! An outage of ClickHouse.

use std::fmt;
use std::time::{Duration, Instant};

use devstack::Kind;

use super::super::progress;
use super::{Stage, own};
use crate::clicks::{Clicks, Plan};
use crate::counted::{Exact, all_counted, is_exact};
use crate::processor::Processor;

/// The length of the outage and the load.
#[derive(Debug, Clone, Copy)]
pub struct ClickhouseOutage {
    /// How long ClickHouse is stopped.
    pub down: Duration,
    /// Clicks per second.
    pub rate: u32,
}

/// The counts and the processor's memory after an outage.
#[derive(Debug)]
pub struct Drained {
    /// The counts.
    pub exact: Exact,
    /// The processor's memory before the outage, and its maximum during the outage and while the backlog was processed.
    pub memory: [u64; 3],
    /// The time from ClickHouse's start until everything was counted.
    pub drained: Duration,
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, during, after] = self.memory.map(|bytes| bytes >> 20);
        write!(
            f,
            "{}; processor's memory {before} MiB before, {during} MiB during, {after} MiB after; all counted {:.1?} \
             after ClickHouse was started",
            self.exact, self.drained
        )
    }
}

/// Stops ClickHouse under load, and starts it again later.
///
/// # Panics
/// When a click is lost or doubled.
pub async fn counts_clickhouse_outage(plan: ClickhouseOutage) -> Drained {
    const LOOK: Duration = Duration::from_millis(500);
    let stage = Stage::new(&[Kind::ClickHouse]).await;
    let clicks = Clicks::start(&stage.engines, Plan::at(plan.rate));
    let processor = Processor::start(&stage.engines).await;
    stage.more_rows().await;
    clicks.more(u64::from(plan.rate) * 3).await;
    let before = processor.memory();
    own(&stage.clickhouse).stop().await;
    let (stopped, mut during, mut reported) = (Instant::now(), 0, Instant::now());
    while stopped.elapsed() < plan.down {
        // The length of the outage is the input of this test.
        tokio::time::sleep(LOOK.min(plan.down)).await;
        during = during.max(processor.memory());
        if reported.elapsed() > 20 * LOOK {
            reported = Instant::now();
            let (seconds, mib) = (stopped.elapsed().as_secs(), processor.memory() >> 20);
            let written = clicks.confirmed();
            progress(&format!("{seconds} s without ClickHouse: {written} clicks written, {mib} MiB"));
        }
    }
    own(&stage.clickhouse).start().await.unwrap();
    let started = Instant::now();
    let ledger = clicks.stop().await;
    let mut after = 0;
    let counted = all_counted(&stage.engines, &ledger);
    let watched = async {
        loop {
            after = after.max(processor.memory());
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = counted => {}
        () = watched => {}
    }
    let drained = started.elapsed();
    processor.stop().await;
    let exact = is_exact(&stage.engines, &ledger).await;
    Drained { exact, memory: [before, during, after], drained }
}
